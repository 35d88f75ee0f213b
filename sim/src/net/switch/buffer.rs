//! The buffer that all ports of a switch share: the admission of frames, and the pauses of peers.
//!
//! Bytes of lossless priorities are accounted at their ingress port and priority. Frames first use the
//! reserve, then the shared part up to a threshold and, after the pause has been sent, the headroom. Bytes of
//! lossy priorities are accounted at their egress queue.

use std::sync::Arc;

use super::super::settings::{Headroom, PRIORITIES, SwitchSettings, Threshold};
use super::super::time::Time;
use super::super::topology::LinkSpec;

/// The maximum size of headers and checksums of a frame.
const AROUND_PAYLOAD: u64 = 100;
/// The size of a pause frame on the wire.
const PAUSE_LEN: u64 = 84;
/// The minimum allowance for frames in transmission: two frames of the largest RoCE path MTU, because other
/// traffic can use longer frames than the configured path MTU.
const LEAST_FRAMES: u64 = 2 * (4096 + AROUND_PAYLOAD);

#[derive(Debug)]
pub(super) struct Buffer {
    /// The size of the shared part: the buffer without reserves and headrooms.
    shared: u64,
    used: u64,
    limits: Vec<Limits>,
    accounts: Vec<[Account; PRIORITIES]>,
}

/// The limits of a port according to its settings.
#[derive(Clone, Copy, Debug)]
struct Limits {
    reserve: u64,
    headroom: u64,
    threshold: Limit,
    xon_offset: u64,
    /// The maximum length of each lossy queue.
    lossy: Limit,
}

/// Bytes that arrived at one port with one priority.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Bytes in the reserve and the shared part.
    bytes: u64,
    /// Bytes in the headroom.
    headroom: u64,
    paused: bool,
}

/// A share of the free bytes in units of 1/65,536, or a number of bytes.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Share(u64),
    Bytes(u64),
}

impl Limit {
    fn share(alpha: f64) -> Self {
        Self::Share((alpha * 65_536.0).round().clamp(0.0, 4e9) as u64)
    }

    #[inline]
    fn of(self, free: u64) -> u64 {
        match self {
            Self::Share(share) => ((u128::from(free) * u128::from(share)) >> 16) as u64,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// The error of a buffer that is smaller than the sum of its reserves and headrooms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a buffer of {buffer} bytes is too small: reserves and headrooms of its ports need {needed}")]
pub struct BufferTooSmall {
    /// The size of the buffer.
    pub buffer: u64,
    /// The sum of reserves and headrooms.
    pub needed: u64,
}

impl Buffer {
    /// Creates the buffer of a switch for ports with these settings and links. Frames have up to `path_mtu`
    /// bytes of payload.
    pub(super) fn new(
        switch: &SwitchSettings,
        path_mtu: usize,
        ports: &[(Arc<SwitchSettings>, LinkSpec)],
    ) -> Result<Self, BufferTooSmall> {
        let limits: Vec<Limits> =
            ports.iter().map(|(settings, link)| Limits::new(settings, path_mtu, link)).collect();
        let kept = ports.iter().zip(&limits).fold(0, |kept: u64, ((settings, _), limits)| {
            let each = limits.headroom.saturating_add(limits.reserve);
            kept.saturating_add(each.saturating_mul(settings.pfc.count_ones().into()))
        });
        let buffer = switch.buffer_bytes;
        let shared = buffer.checked_sub(kept).ok_or(BufferTooSmall { buffer, needed: kept })?;
        let accounts = vec![[Account::default(); PRIORITIES]; ports.len()];
        Ok(Self { shared, used: 0, limits, accounts })
    }

    fn free(&self) -> u64 {
        self.shared.saturating_sub(self.used)
    }

    /// Admits a frame of a lossless priority if there is room, and returns whether the peer must be paused
    /// now.
    #[inline]
    pub(super) fn admit(&mut self, port: usize, priority: usize, len: u64) -> Option<bool> {
        let Limits { reserve, headroom, threshold, .. } = self.limits[port];
        let free = self.free();
        let threshold = threshold.of(free);
        let account = &mut self.accounts[port][priority];
        let before = account.bytes.saturating_sub(reserve);
        let after = account.bytes + len;
        let over = after.saturating_sub(reserve);
        // A threshold in bytes may be larger than what is free.
        if over > threshold || over - before > free {
            if account.headroom + len > headroom {
                return None;
            }
            account.headroom += len;
        } else {
            account.bytes = after;
            self.used += over - before;
        }
        let stop = !account.paused
            && (account.headroom > 0 || account.bytes.saturating_sub(reserve) >= threshold.max(1));
        account.paused |= stop;
        Some(stop)
    }

    /// Releases the space of a frame of a lossless priority, and returns whether the pause of the peer ends.
    #[inline]
    pub(super) fn release(&mut self, port: usize, priority: usize, len: u64) -> bool {
        let Limits { reserve, threshold, xon_offset, .. } = self.limits[port];
        let account = &mut self.accounts[port][priority];
        let from_headroom = account.headroom.min(len);
        account.headroom -= from_headroom;
        let rest = (len - from_headroom).min(account.bytes);
        let before = account.bytes.saturating_sub(reserve);
        account.bytes -= rest;
        let after = account.bytes.saturating_sub(reserve);
        self.used -= before - after;
        if !account.paused || account.headroom > 0 {
            return false;
        }
        let shared = after;
        let go_on = shared == 0 || shared + xon_offset <= threshold.of(self.free());
        if go_on {
            self.accounts[port][priority].paused = false;
        }
        go_on
    }

    /// Admits a frame of a lossy priority if its queue at this port, with `queued` bytes, can grow.
    #[inline]
    pub(super) fn admit_lossy(&mut self, port: usize, queued: u64, len: u64) -> bool {
        if len > self.free() || queued + len > self.limits[port].lossy.of(self.free()) {
            return false;
        }
        self.used += len;
        true
    }

    #[inline]
    pub(super) fn release_lossy(&mut self, len: u64) {
        self.used = self.used.saturating_sub(len);
    }

    pub(super) fn is_paused(&self, port: usize, priority: usize) -> bool {
        self.accounts[port][priority].paused
    }

    /// Returns the number of used bytes of the shared part.
    #[cfg(test)]
    fn used(&self) -> u64 {
        self.used
    }
}

impl Limits {
    fn new(settings: &SwitchSettings, path_mtu: usize, link: &LinkSpec) -> Self {
        Self {
            reserve: settings.reserve_bytes,
            headroom: headroom(settings.headroom, path_mtu, link),
            threshold: match settings.threshold {
                Threshold::Dynamic { alpha } => Limit::share(alpha),
                Threshold::Static { bytes } => Limit::Bytes(bytes),
            },
            xon_offset: settings.xon_offset_bytes,
            lossy: Limit::share(settings.lossy_alpha),
        }
    }
}

/// Returns the bytes that can arrive after a pause was sent: the bytes on the link in both directions, the
/// frame that crossed the threshold, and one frame in transmission at each end; the local frame delays the
/// pause.
fn headroom(setting: Headroom, path_mtu: usize, link: &LinkSpec) -> u64 {
    match setting {
        Headroom::Bytes(bytes) => bytes,
        Headroom::Auto => {
            let in_flight = u128::from(link.rate_bps) * u128::from(link.delay.as_ps()) / 8;
            let in_flight = u64::try_from(in_flight / u128::from(Time::from_us(1_000_000).as_ps()));
            let frames = 3 * (path_mtu as u64 + AROUND_PAYLOAD) + PAUSE_LEN;
            in_flight.unwrap_or(u64::MAX).saturating_mul(2).saturating_add(frames.max(LEAST_FRAMES))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> SwitchSettings {
        SwitchSettings {
            buffer_bytes: 1_000_000,
            reserve_bytes: 0,
            headroom: Headroom::Bytes(10_000),
            threshold: Threshold::Dynamic { alpha: 0.5 },
            xon_offset_bytes: 3_000,
            ..SwitchSettings::default()
        }
    }

    fn built(switch: &SwitchSettings, ports: &[&SwitchSettings]) -> Result<Buffer, BufferTooSmall> {
        let ports: Vec<_> = ports.iter().map(|port| (Arc::new((*port).clone()), LinkSpec::DEFAULT)).collect();
        Buffer::new(switch, 1024, &ports)
    }

    fn buffer(settings: &SwitchSettings) -> Buffer {
        built(settings, &[settings, settings]).unwrap()
    }

    #[test]
    fn one_port_gets_its_share_then_pauses_then_drops() {
        let mut buffer = buffer(&settings());
        let mut taken = 0;
        while buffer.admit(0, 3, 1_000) == Some(false) {
            taken += 1_000;
        }
        // The equation x = (980,000 - x) / 2 has the solution 326,667.
        assert!((325_000..328_000).contains(&taken), "{taken}");
        assert!(buffer.is_paused(0, 3) && !buffer.is_paused(1, 3));
        let mut headroom = 0;
        while buffer.admit(0, 3, 1_000).is_some() {
            headroom += 1;
        }
        assert!((9..=10).contains(&headroom), "{headroom}");
        assert_eq!(buffer.admit(1, 3, 1_000), Some(false), "the other port has its own share");
    }

    #[test]
    fn it_goes_on_below_the_threshold_and_ends_empty() {
        let mut buffer = buffer(&settings());
        let mut frames = 0;
        loop {
            frames += 1;
            if buffer.admit(0, 3, 1_000) == Some(true) {
                break;
            }
        }
        let mut left = frames;
        while !buffer.release(0, 3, 1_000) {
            left -= 1;
        }
        assert!((frames - 8..frames).contains(&left), "{frames} {left}");
        for _ in 1..left {
            assert!(!buffer.release(0, 3, 1_000));
        }
        assert_eq!((buffer.used(), buffer.is_paused(0, 3)), (0, false));
    }

    #[test]
    fn a_static_threshold_and_the_headroom_of_a_link() {
        let settings = SwitchSettings {
            threshold: Threshold::Static { bytes: 5_000 },
            headroom: Headroom::Auto,
            ..settings()
        };
        let mut buffer = buffer(&settings);
        assert_eq!(buffer.limits[0].headroom, 2 * 12_500 + LEAST_FRAMES);
        let answers: Vec<_> = (0..6).map(|_| buffer.admit(0, 3, 1_000)).collect();
        let (go, stop) = (Some(false), Some(true));
        assert_eq!(answers, [go, go, go, go, stop, go]);
        let small = SwitchSettings { buffer_bytes: 20_000, ..settings };
        let error = built(&small, &[&small, &small]).unwrap_err();
        assert!(error.to_string().starts_with("a buffer of 20000 bytes is too small"), "{error}");
    }

    /// Regression: a threshold above the size of the buffer made the buffer endless.
    #[test]
    fn a_threshold_above_the_buffer_does_not_enlarge_it() {
        let settings = SwitchSettings { threshold: Threshold::Static { bytes: 10_000_000 }, ..settings() };
        let mut buffer = buffer(&settings);
        let mut taken = 0;
        for port in [0, 1] {
            while buffer.admit(port, 3, 1_000).is_some() {
                taken += 1_000;
            }
            assert!(buffer.is_paused(port, 3));
        }
        assert_eq!(taken, 1_000_000, "the whole buffer with the headrooms, and not more");
    }

    #[test]
    fn lossy_queues_share_too() {
        let mut buffer = buffer(&SwitchSettings { lossy_alpha: 1.0, pfc: 0, ..settings() });
        let mut queued = 0;
        while buffer.admit_lossy(0, queued, 1_000) {
            queued += 1_000;
        }
        assert!((499_000..=501_000).contains(&queued), "{queued}");
        for _ in 0..queued / 1_000 {
            buffer.release_lossy(1_000);
        }
        assert_eq!(buffer.used(), 0);
    }

    #[test]
    fn each_port_has_limits_of_its_own() {
        let own = SwitchSettings {
            reserve_bytes: 2_000,
            threshold: Threshold::Static { bytes: 3_000 },
            headroom: Headroom::Bytes(1_000),
            xon_offset_bytes: 1_000,
            lossy_alpha: 0.25,
            ..settings()
        };
        let lossy = SwitchSettings { pfc: 0, headroom: Headroom::Bytes(1 << 40), ..settings() };
        let mut buffer = built(&settings(), &[&settings(), &own, &lossy]).unwrap();
        assert_eq!(buffer.shared, 1_000_000 - 10_000 - 3_000, "no headroom where nothing is lossless");
        let answers = [(); 7].map(|()| buffer.admit(1, 3, 1_000));
        let (go, stop) = (Some(false), Some(true));
        assert_eq!(answers, [go, go, go, go, stop, go, None], "reserve, threshold, headroom");
        assert_eq!(buffer.admit(0, 3, 1_000), go);
        assert_eq!([(); 4].map(|()| buffer.release(1, 3, 1_000)), [false, true, false, false]);
        let mut most =
            |port: usize| (1..).find(|queued| !buffer.admit_lossy(port, queued * 1_000, 1_000)).unwrap();
        let (usual, short) = (most(0), most(1));
        assert!(short * 2 < usual, "{short} {usual}");
    }
}
