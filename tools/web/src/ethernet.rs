//! Datagrams as Ethernet frames.

use std::net::IpAddr;

use roce_packet::{FrameHeaders, MacAddr, Path};

/// Returns a datagram, BTH to ICRC, as a frame from its Ethernet header to its ICRC. The two addresses are
/// those of the receiver and of the sender. Returns `None` if the path cannot carry the datagram.
pub(crate) fn frame(
    path: &Path,
    identification: u16,
    [destination, source]: [MacAddr; 2],
    datagram: &[u8],
) -> Option<Vec<u8>> {
    let headers = FrameHeaders::new(path, identification, destination, source, datagram.len()).ok()?;
    let mut frame = vec![0; headers.len_bytes()];
    headers.emit(&mut frame).ok()?;
    frame.extend_from_slice(datagram);
    Some(frame)
}

/// Returns a locally administered address with the bytes of an IPv4 address, as in captures of `roce`.
pub(crate) fn address(address: IpAddr) -> MacAddr {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    };
    MacAddr([0x02, 0x00, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_addresses_are_those_of_captures() {
        assert_eq!(address([198, 18, 0, 2].into()), MacAddr([2, 0, 198, 18, 0, 2]));
        let ipv6: IpAddr = "2001:db8::1:2".parse().unwrap();
        assert_eq!(address(ipv6), MacAddr([2, 0, 0, 1, 0, 2]));
    }
}
