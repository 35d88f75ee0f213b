//! Asking a link which stations have an IPv4 address, and collecting all answers.
//!
//! The kernel keeps only one answer, so it hides two machines with one address, and one machine that answers
//! on two interfaces (ARP flux).

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use roce_packet::{EtherType, EthernetHeader, MacAddr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::socket;

/// Returns the Ethernet addresses that answer for an IPv4 address on an interface within `patience`. The
/// request is a probe (RFC 5227): it names no sender and changes no neighbour table.
///
/// # Errors
///
/// Fails without the privilege to open a packet socket (`PermissionDenied`), or on non-Ethernet interfaces.
pub fn who_has(interface: &str, address: Ipv4Addr, patience: Duration) -> io::Result<Vec<MacAddr>> {
    let link = crate::link::Link::find("raw", interface).map_err(io::Error::other)?;
    let socket = socket::open_for_arp(link.index)?;
    let request = request(link.mac, address);
    let mut found = Vec::new();
    for _ in 0..REQUESTS {
        socket.send(&request)?;
        let end = Instant::now() + patience / REQUESTS;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: rest.subsec_nanos().into() };
            match poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)], Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let mut frame = [0; 64];
            match rustix::io::read(&socket, &mut frame) {
                Ok(len) => {
                    let answer = answer(&frame[..len], address);
                    found.extend(answer.filter(|mac| !found.contains(mac)));
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(found)
}

/// Returns an ARP request (RFC 826) in an Ethernet frame of minimum length.
fn request(mac: MacAddr, address: Ipv4Addr) -> [u8; SHORTEST_FRAME] {
    let mut frame = [0; SHORTEST_FRAME];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac.0);
    frame[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
    frame[ARP..ARP + 8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, REQUEST]);
    frame[ARP + 8..ARP + 14].copy_from_slice(&mac.0);
    frame[ARP + 24..ARP + 28].copy_from_slice(&address.octets());
    frame
}

/// Returns the sender of an answer about this address.
fn answer(frame: &[u8], address: Ipv4Addr) -> Option<MacAddr> {
    let arp = frame.get(ARP..ARP + 28)?;
    let is_answer = arp[..8] == [0, 1, 8, 0, 6, 4, 0, REPLY] && arp[14..18] == address.octets();
    is_answer.then(|| arp[8..14].first_chunk().copied().map(MacAddr)).flatten()
}

const ARP: usize = EthernetHeader::LEN;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const SHORTEST_FRAME: usize = 60;
/// Sent twice, because a switch whose link just came up drops the first request.
const REQUESTS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_about_the_address_count() {
        let (mac, address) = (MacAddr([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(198, 18, 0, 2));
        let mut frame = request(mac, address);
        assert_eq!(answer(&frame, address), None, "a request");
        frame[ARP + 7] = REPLY;
        assert_eq!(answer(&frame, address), None, "an answer about 0.0.0.0");
        frame[ARP + 14..ARP + 18].copy_from_slice(&address.octets());
        assert_eq!(answer(&frame, address), Some(mac));
        assert_eq!(answer(&frame, Ipv4Addr::new(198, 18, 0, 3)), None);
        for len in 0..ARP + 28 {
            assert_eq!(answer(&frame[..len], address), None);
        }
    }
}
