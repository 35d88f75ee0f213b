//! The reason why the matrix has no cells for FLUSH: Soft-RoCE computes the ICRC over the headers of a FLUSH
//! twice, when it sends and when it checks. So only another Soft-RoCE accepts the packet. (Its table of
//! opcodes has no payload offset for FLUSH, so Soft-RoCE treats the headers as payload too.)
//!
//! If a kernel computes the ICRC correctly, this test fails and says what to do.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use roce::verbs::{Access, PathMtu, QpType};
use roce_capture::CaptureReader;

use crate::case::Family;
use crate::end::{End, Link, Op, Ours, Theirs, Work, connect};
use crate::setting::Setting;

/// RC FLUSH (IBTA A19.4.1).
const FLUSH: u8 = 0x1c;
const ETHERNET: usize = 14;
const IPV6: usize = 40;
const UDP: usize = 8;

/// Returns a description of the result.
pub(crate) fn run(setting: &Setting) -> Result<String> {
    let (mut peer, device) = setting.connect()?;
    if !device.flush {
        return Ok("this kernel has no FLUSH".to_owned());
    }
    let folder = tempfile::tempdir()?;
    {
        // Uses IPv6 because it has no Identification field; a socket does not show that of IPv4.
        let context = setting.open_captured(Family::V6, &folder.path().join("flush.pcapng"))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::FLUSH_GLOBAL;
        let mut ours = Ours::new(&context, QpType::Rc, access)?;
        let mut theirs = Theirs::new(&mut peer, "rc", true)?;
        let addresses = setting.addresses(Family::V6);
        let link = Link { addresses, mtu: PathMtu::Mtu1024, timeout: 14, retries: 1 };
        connect(&mut ours, &mut theirs, &link, QpType::Rc)?;
        theirs.post(&Work { wr_id: 1, op: Op::Flush, local: 0, len: 64, remote: 0 })?;
        let end = Instant::now() + Duration::from_secs(10);
        while context.counters().rx_icrc_encapsulated == 0 {
            if ours.context.counters().rx_handled > 0 {
                bail!(
                    "this kernel's FLUSH has a right ICRC: take RcFlush into the matrix (Case::error_of_kernel)"
                );
            }
            ensure!(Instant::now() < end, "no FLUSH arrived");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let mut reader = CaptureReader::open(&folder.path().join("flush.pcapng"))?;
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        if let Some(found) = check(packet.bytes)? {
            return Ok(found);
        }
    }
    bail!("the capture has no FLUSH")
}

/// Checks that the ICRC covers the headers twice; returns `None` if the frame is not a FLUSH.
fn check(frame: &[u8]) -> Result<Option<String>> {
    let datagram = frame.get(ETHERNET + IPV6 + UDP..).context("a short frame")?;
    if datagram.first() != Some(&FLUSH) {
        return Ok(None);
    }
    let (datagram, icrc) = datagram.split_last_chunk::<4>().context("a short datagram")?;
    // Traffic class, flow label, hop limit, UDP checksum and the byte after P_Key count as ones.
    let mut covered = vec![0xff; 8];
    covered.extend(&frame[ETHERNET..ETHERNET + IPV6 + UDP]);
    covered[8] |= 0x0f;
    covered[9..12].fill(0xff);
    covered[8 + 7] = 0xff;
    covered[8 + IPV6 + 6..8 + IPV6 + UDP].fill(0xff);
    let bth = covered.len();
    covered.extend(datagram);
    covered[bth + 4] = 0xff;
    let right = crc32(&covered);
    covered.extend(datagram);
    let twice = crc32(&covered);
    let found = u32::from_le_bytes(*icrc);
    ensure!(found != right, "the ICRC of a FLUSH is right, and yet it was dropped");
    ensure!(found == twice, "the ICRC of a FLUSH is {found:#x}, neither {right:#x} nor {twice:#x}");
    Ok(Some("the ICRC covers the headers of a FLUSH twice: an error of this kernel".to_owned()))
}

/// Returns the CRC of Ethernet, computed bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}
