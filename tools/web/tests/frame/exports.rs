//! Frames for other programs.

use std::io::Cursor;

use roce_capture::{CaptureFormat, CaptureReader, LinkType};
use roce_web::frame;

use super::{bytes, example, roce_v1, tagged};

#[test]
fn a_dump_is_that_of_xxd_and_reads_back() {
    let hex = example("WRITE");
    let dump = frame::export(&hex, "auto", "hex").unwrap();
    let lines: Vec<_> = dump.lines().collect();
    assert_eq!(lines[0], "00000000: 0200 0000 0002 0200 0000 0001 0800 4502  ..............E.");
    assert_eq!(lines.last().unwrap().len(), 10 + 39 + 2 + hex.len() / 2 % 16);
    assert_eq!(frame::frame(&dump, "auto"), frame::frame(&hex, "auto"));
}

#[test]
fn a_constant_has_all_bytes() {
    let hex = example("ACK");
    let text = frame::export(&hex, "ethernet", "rust").unwrap();
    assert!(text.starts_with("/// RC_ACKNOWLEDGE.\nconst FRAME: [u8; 62] = [\n    0x02, 0x00,"), "{text}");
    assert!(text.ends_with(",\n];\n"), "{text}");
    let (_, list) = text.split_once("= [").unwrap();
    let digits: String = list.split("0x").skip(1).map(|byte| &byte[..2]).collect();
    assert_eq!(digits, hex);
}

#[test]
fn a_command_explains_the_frame() {
    let hex = example("ACK");
    assert_eq!(frame::export(&hex, "auto", "command").unwrap(), format!("roce explain --from eth {hex}"));
    let ip = &hex[28..];
    assert_eq!(frame::export(ip, "auto", "command").unwrap(), format!("roce explain --from ip {ip}"));
    // The command does not know packets that begin with UDP.
    let (udp, bth) = (&hex[68..], &hex[84..]);
    assert_eq!(frame::export(udp, "udp", "command").unwrap(), format!("roce explain --from bth {bth}"));
}

#[test]
fn scapy_gets_the_layers_that_it_has() {
    let hex = example("ACK");
    let text = frame::export(&hex, "ethernet", "scapy").unwrap();
    assert!(text.starts_with("from scapy.all import Ether, IP, UDP, Raw\n"), "{text}");
    assert!(
        text.contains("Ether(dst=\"02:00:00:00:00:02\", src=\"02:00:00:00:00:01\", type=0x0800)"),
        "{text}"
    );
    assert!(text.contains("/ UDP(sport=49152, dport=4791, len=28, chksum=0x0000)"), "{text}");
    assert!(text.contains(&format!("/ Raw(bytes.fromhex(\"{}\"))", &hex[84..])), "{text}");
    assert!(text.ends_with(&format!("assert bytes(frame).hex() == \"{hex}\"\n")), "{text}");
    let tagged = frame::export(&tagged(&hex), "ethernet", "scapy").unwrap();
    assert!(tagged.contains("/ Dot1Q(prio=3, vlan=100, type=0x0800)"), "{tagged}");
    // The GRH stays in the bytes, and Ethernet padding follows them.
    let v1 = frame::export(&(roce_v1() + "0000"), "ethernet", "scapy").unwrap();
    assert!(v1.starts_with("from scapy.all import Ether, Raw, Padding\n"), "{v1}");
    let bth = frame::export(&hex[84..], "bth", "scapy").unwrap();
    assert!(bth.starts_with("from scapy.all import Raw\n"), "{bth}");
}

#[test]
fn other_formats_do_not_exist() {
    let error = frame::export(&example("ACK"), "auto", "pdf").unwrap_err();
    assert!(error.contains("hex, rust, scapy or command"), "{error}");
}

#[test]
fn a_capture_file_reads_back() {
    let ack = example("ACK");
    let frames = [example("WRITE"), ack[28..].to_owned(), ack.clone()];
    let file = frame::pcap(&frames).unwrap();
    let mut reader = CaptureReader::new(Cursor::new(file), "frames").unwrap();
    assert_eq!(reader.format(), CaptureFormat::Pcapng);
    let links = [LinkType::ETHERNET, LinkType::RAW_IP, LinkType::ETHERNET];
    for (index, (frame, link)) in frames.iter().zip(links).enumerate() {
        let packet = reader.next_packet().unwrap().unwrap();
        assert_eq!(packet.bytes, bytes(frame));
        assert_eq!(packet.link_type, link);
        assert_eq!(packet.time_ns, Some((index as u64 + 1) * 1_000));
        assert_eq!(packet.original_len as usize, frame.len() / 2);
    }
    assert!(reader.next_packet().is_none());
}

#[test]
fn frames_that_a_capture_cannot_have_are_refused() {
    let ack = example("ACK");
    let error = |frames: &[&str]| {
        frame::pcap(&frames.iter().map(|frame| (*frame).to_owned()).collect::<Vec<_>>()).unwrap_err()
    };
    assert!(error(&[]).contains("there is no frame"));
    assert!(
        error(&[&ack, &ack[84..]]).starts_with("frame 2 has neither an Ethernet header nor an IP header")
    );
    assert!(error(&["xyz"]).starts_with("frame 1: line 1, character 1"));
}
