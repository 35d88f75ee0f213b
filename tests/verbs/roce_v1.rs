//! RoCE v1 over verbs, compared with a frame of a NIC.

use std::net::IpAddr;

use roce::device::FrameSettings;
use roce::device::framed::Resolution;
use roce::verbs::*;
use roce_packet::{Encapsulation, Frame, icrc};
use roce_testing::vectors;

use crate::rig::{device_of, sent};

/// Returns the bytes of the frame with this name.
fn vector(name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(vectors("icrc.json")).expect("the file of vectors");
    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let vectors = document["vectors"].as_array().expect("a list of vectors");
    let vector = vectors.iter().find(|vector| vector["name"] == name).expect("a vector of this name");
    let hex = vector["frame_hex"].as_str().expect("a frame");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Verbs create the same WRITE over RoCE v1 as the NIC; only a GID of that type is needed.
#[test]
fn a_gid_of_roce_v1_makes_the_frame_of_a_nic() {
    const NAME: &str = "mlx-rocev1-rc-write-only-pad3";
    let bytes = vector(NAME);
    let known = Frame::parse(&bytes).unwrap();
    // The NIC sent to itself. Here, the last byte of the destination differs, and so does the ICRC.
    let (source, destination) = (known.path().source, IpAddr::from([15, 0, 0, 3]));
    assert_eq!(source, IpAddr::from([15, 0, 0, 2]));
    let (device, link) = device_of(known.headers.source, vec![source], 1, FrameSettings::default());
    link.lock().unwrap().neighbours.insert(destination, Resolution::Known(known.headers.destination));

    let context = Context::builder().background(false).attach(device).unwrap();
    let gids = context.gid_table();
    let gid = gids.iter().find(|gid| gid.gid_type == Encapsulation::RoceV1 && gid.address() == source);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16, None).unwrap());
    let region = pd.allocate(64, Access::LOCAL_WRITE).unwrap();
    region.write(0, &[0, 0, 0, 0, 1]).unwrap();
    let options = QueuePairOptions::new(QpType::Rc, &cq);

    // One queue pair has the path created; another one sends with the PSN of the NIC.
    let peer = Qpn::new(0x10a);
    let first = pd.create_qp(&options).unwrap();
    let path = PathOptions::default().sgid_index(gid.map(|gid| gid.index));
    let remote = Endpoint { address: destination, qpn: peer.get(), psn: 0 };
    first.connect(&remote, &ConnectOptions::default().path(path)).unwrap();
    let path = first.query().unwrap().path;
    let second = pd.create_qp(&options).unwrap();
    let init = QpAttr {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::empty()),
        ..QpAttr::to_state(QpState::Init)
    };
    let ready_to_receive = QpAttr {
        path,
        path_mtu: Some(PathMtu::Mtu1024),
        dest_qpn: Some(peer),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: RnrTimer::new(12),
        ..QpAttr::to_state(QpState::Rtr)
    };
    let ready_to_send = QpAttr {
        sq_psn: Some(Psn::new(0xa7_88bc)),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        ..QpAttr::to_state(QpState::Rts)
    };
    for attributes in [init, ready_to_receive, ready_to_send] {
        second.modify(&attributes).unwrap();
    }
    let op = SendOp::Write { remote_addr: 0x55d4_c072_6000, rkey: RKey(0x47b3) };
    second.post_send(&SendWr::new(0, op, &[region.element(0..5)])).unwrap();

    let frames = sent(&link);
    assert_eq!(frames.len(), 1);
    let found = Frame::parse(&frames[0]).unwrap();
    assert!(found.verify_icrc().unwrap().is_good());
    let mut expected = bytes.clone();
    let last_of_dgid = 14 + 39;
    assert_eq!((expected[last_of_dgid], frames[0][last_of_dgid]), (2, 3));
    expected[last_of_dgid] = 3;
    let end = expected.len() - icrc::LEN;
    assert_eq!(frames[0][..end], expected[..end]);
    assert_eq!(frames[0].len(), expected.len());
}
