//! The bits that the ICRC covers.

use roce_web::frame;
use serde_json::Value;

use super::{document, example, over_ipv6, roce_v1, state, tagged};

/// Returns the numbers of the bits that the ICRC covers, and of those that count as ones.
fn bits(document: &Value) -> (Vec<usize>, Vec<usize>) {
    let pairs = |key: &str| -> Vec<(usize, usize)> {
        let list = document[key].as_array().unwrap().iter();
        list.map(|pair| (pair[0].as_u64().unwrap() as usize, pair[1].as_u64().unwrap() as usize)).collect()
    };
    let mut masked = Vec::new();
    for (byte, mask) in pairs("masked") {
        masked.extend((0..8).filter(|bit| mask & 0x80 >> bit != 0).map(|bit| byte * 8 + bit));
    }
    let mut covered = Vec::new();
    for (start, end) in pairs("covered") {
        covered.extend((start * 8..end * 8).filter(|bit| !masked.contains(bit)));
    }
    (covered, masked)
}

/// Returns the offset of the BTH in bytes.
fn bth(document: &Value) -> usize {
    let headers = document["explain"]["headers"].as_array().unwrap();
    headers.iter().find(|header| header["name"] == "BTH").unwrap()["offset"].as_u64().unwrap() as usize
}

#[test]
fn every_covered_bit_breaks_the_icrc_and_no_masked_bit_does() {
    let plain = example("WRITE");
    // Masked bits: traffic class, hop limit and checksum of IPv4; traffic class, flow label and hop limit of
    // IPv6 and of the GRH; the UDP checksum; one byte of the BTH.
    for (hex, masked_bits) in
        [(plain.clone(), 56), (tagged(&plain), 56), (over_ipv6(), 60), (roce_v1(), 44), (example("CNP"), 56)]
    {
        let intact = document(&hex);
        assert_eq!(state(&intact, "icrc"), "good");
        let (covered, masked) = bits(&intact);
        assert_eq!(masked.len(), masked_bits, "{hex}");
        let datagram = bth(&intact) * 8;
        for bit in covered {
            let changed = document(&frame::set_bit(&hex, bit).unwrap());
            let state = state(&changed, "icrc");
            // A bit in the headers before the BTH, or in its first two bytes, may hide the packet, so that
            // nothing can be checked.
            assert_ne!(state, "good", "bit {bit} of {hex}");
            assert!(state == "bad" || bit < datagram + 16, "bit {bit} of {hex}: {state}");
        }
        for bit in masked {
            let changed = document(&frame::set_bit(&hex, bit).unwrap());
            assert_eq!(state(&changed, "icrc"), "good", "bit {bit} of {hex}");
        }
    }
}

#[test]
fn the_cover_is_one_range_from_ip_to_the_padding() {
    let hex = example("WRITE");
    let document = document(&hex);
    assert_eq!(document["covered"], serde_json::json!([[14, hex.len() / 2 - 4]]));
}

#[test]
fn without_an_ip_header_nothing_is_known() {
    let hex = example("WRITE");
    let document = super::document_from(&hex[84..], "bth");
    assert_eq!(state(&document, "icrc"), "unknown");
    assert_eq!(document["covered"], serde_json::json!([]));
}
