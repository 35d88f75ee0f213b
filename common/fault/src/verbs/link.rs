//! The link of one device: whether it is up, by time and by sent bytes.

use roce_transport::Instant;

use super::plan::{Outage, VerbsItem, VerbsPlan, Window};

/// The faults of the link of one device. Link flaps count the bytes that the device sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// When the port is down.
    windows: Vec<Window>,
    /// When the device fails.
    fatal_ns: Option<u64>,
    /// Bytes and durations of the flaps that have not begun, the first one last.
    flaps: Vec<(u64, u64)>,
    sent: u64,
    flapped: u32,
    /// The end of the current flap.
    down_until: Instant,
}

impl LinkFaults {
    /// Creates the faults of the device with this name.
    #[must_use]
    pub fn new(plan: &VerbsPlan, name: &str) -> Self {
        let mut link = Self::default();
        let is_meant = |device: &Option<String>| device.as_deref().is_none_or(|device| device == name);
        for item in &plan.items {
            match item {
                VerbsItem::Outage(Outage::Port { device, window }) if is_meant(device) => {
                    link.windows.push(*window);
                }
                VerbsItem::Outage(Outage::Device { device, at_ns }) if is_meant(device) => {
                    link.fatal_ns = Some(link.fatal_ns.map_or(*at_ns, |known| known.min(*at_ns)));
                }
                VerbsItem::Flap(flap) if is_meant(&flap.device) => {
                    link.flaps.push((flap.after_bytes, flap.for_ns));
                }
                _ => {}
            }
        }
        link.flaps.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        link
    }

    /// Returns whether the link has no faults, at any time.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty() && self.fatal_ns.is_none() && self.flaps.is_empty() && self.flapped == 0
    }

    /// Returns whether the port is up.
    #[must_use]
    pub fn is_up(&self, now: Instant) -> bool {
        self.down_until <= now && !self.windows.iter().any(|window| window.contains(now))
    }

    /// Returns whether the device has failed.
    #[must_use]
    pub fn has_failed(&self, now: Instant) -> bool {
        self.fatal_ns.is_some_and(|fatal_ns| fatal_ns <= now.as_nanos())
    }

    /// Counts sent bytes. Returns whether the link goes down with them; they are still sent.
    pub fn sent(&mut self, now: Instant, bytes: usize) -> bool {
        self.sent = self.sent.saturating_add(bytes as u64);
        let mut goes_down = false;
        while let Some((_, for_ns)) = self.flaps.pop_if(|(after, _)| *after <= self.sent) {
            self.down_until = self.down_until.max(now.plus_nanos(for_ns));
            self.flapped = self.flapped.saturating_add(1);
            goes_down = true;
        }
        goes_down
    }

    /// Returns the number of flaps that have begun.
    #[must_use]
    pub fn flapped(&self) -> u32 {
        self.flapped
    }

    /// Returns the time at which the last flap ends.
    #[must_use]
    pub fn down_until(&self) -> Instant {
        self.down_until
    }
}
