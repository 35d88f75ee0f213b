//! Frames to begin with.

use std::net::{IpAddr, Ipv4Addr};

use roce_packet::mad::{
    CmMad, CmMessage, CmPath, CmReq, CmTimeout, CommId, IpCm, MAD_LEN, PortSpace, ServiceId,
    TransportService, private_data,
};
use roce_packet::{Gid, PathMtu, Psn, Qpn, icrc};
use serde_json::{Value, json};

use super::build::build;
use super::input::hex;

/// A CNP that a ConnectX-4 Lx sent.
const HARDWARE_CNP: &str = "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b70028000\
                            08100ffff40000118000000000000000000000000000000000000000082fd002a";
const REQUESTER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const RESPONDER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// A frame with its description.
struct Example {
    name: &'static str,
    about: &'static str,
    bytes: Result<Vec<u8>, String>,
}

/// Returns all examples as JSON.
pub(super) fn examples() -> String {
    let mut examples = requests();
    examples.extend(responses());
    examples.extend(others());
    let rows = examples.into_iter().filter_map(|example| {
        let hex = hex(&example.bytes.ok()?);
        Some(json!({ "name": example.name, "about": example.about, "hex": hex, "from": "ethernet" }))
    });
    Value::Array(rows.collect()).to_string()
}

/// Builds a frame from the requester to the responder.
fn request(description: Value) -> Result<Vec<u8>, String> {
    build(&description.to_string())
}

/// Builds a frame from the responder to the requester.
fn response(mut description: Value) -> Result<Vec<u8>, String> {
    if let Value::Object(keys) = &mut description {
        keys.insert("source".to_owned(), json!(RESPONDER.to_string()));
        keys.insert("destination".to_owned(), json!(REQUESTER.to_string()));
        keys.insert("qp".to_owned(), json!(0x12));
    }
    build(&description.to_string())
}

fn requests() -> Vec<Example> {
    vec![
        Example {
            name: "WRITE",
            about: "An RDMA WRITE of 13 bytes, with 3 bytes of padding. It asks for an acknowledgement.",
            bytes: request(json!({
                "opcode": "RC_RDMA_WRITE_ONLY", "psn": 5, "payload": hex(b"hello, world!"),
            })),
        },
        Example {
            name: "READ request",
            about: "A request for 1,024 bytes of the responder's memory.",
            bytes: request(json!({ "opcode": "RC_RDMA_READ_REQUEST", "psn": 6 })),
        },
        Example {
            name: "SEND with immediate data",
            about: "A message of 8 bytes into the next receive, and 4 bytes into its completion.",
            bytes: request(json!({
                "opcode": "RC_SEND_ONLY_WITH_IMM", "psn": 7, "payload": hex(b"message!"),
                "fields": { "infiniband.bth.se": "true", "infiniband.immdt": "0x2a" },
            })),
        },
        Example {
            name: "SEND, first of several packets",
            about: "The first 256 bytes of a longer message. The path MTU is 256.",
            bytes: request(json!({ "opcode": "RC_SEND_FIRST", "psn": 8 })),
        },
        Example {
            name: "FETCH ADD",
            about: "An atomic operation: it adds 1 to 8 bytes and returns their old value.",
            bytes: request(json!({ "opcode": "RC_FETCH_ADD", "psn": 9 })),
        },
        Example {
            name: "UD SEND",
            about: "A datagram. Its DETH names the sender and carries the key of the receiver.",
            bytes: request(json!({ "opcode": "UD_SEND_ONLY", "psn": 1, "payload": hex(b"datagram") })),
        },
    ]
}

fn responses() -> Vec<Example> {
    vec![
        Example {
            name: "READ response",
            about: "The answer to a READ of 16 bytes.",
            bytes: response(json!({
                "opcode": "RC_RDMA_READ_RESPONSE_ONLY", "psn": 6, "payload": hex(b"sixteen bytes...")
            })),
        },
        Example {
            name: "ACK",
            about: "An acknowledgement of all packets up to PSN 5.",
            bytes: response(json!({ "opcode": "RC_ACKNOWLEDGE", "psn": 5 })),
        },
        Example {
            name: "NAK, PSN sequence error",
            about: "The responder misses the packet with PSN 5 and asks for it.",
            bytes: response(json!({
                "opcode": "RC_ACKNOWLEDGE", "psn": 5, "fields": { "infiniband.aeth.syndrome": "0x60" },
            })),
        },
        Example {
            name: "RNR NAK",
            about: "The responder has no receive. The requester has to wait at least 0.64 ms.",
            bytes: response(json!({
                "opcode": "RC_ACKNOWLEDGE", "psn": 7, "fields": { "infiniband.aeth.syndrome": "0x2c" },
            })),
        },
        Example {
            name: "Atomic acknowledge",
            about: "The answer to an atomic operation, with the value before it.",
            bytes: response(json!({
                "opcode": "RC_ATOMIC_ACKNOWLEDGE", "psn": 9,
                "fields": { "infiniband.atomicacketh.origremdt": "41" },
            })),
        },
    ]
}

fn others() -> Vec<Example> {
    let hardware = roce_document::bytes::parse(HARDWARE_CNP).map_err(|error| error.to_string());
    vec![
        Example {
            name: "CNP",
            about: "A congestion notification of a ConnectX-4 Lx: queue pair 0x118 has to slow down.",
            bytes: hardware,
        },
        Example {
            name: "CM REQ",
            about: "A request for a connection, as rdma_cm sends it to queue pair 1.",
            bytes: request(json!({
                "opcode": "UD_SEND_ONLY", "qp": 1, "payload": hex(&connection_request()),
            })),
        },
        Example {
            name: "WRITE over IPv6",
            about: "An RDMA WRITE whose addresses are the GIDs of both ends.",
            bytes: request(json!({
                "opcode": "RC_RDMA_WRITE_ONLY", "psn": 5, "payload": hex(b"hello, world!"),
                "source": "2001:db8::1", "destination": "2001:db8::2",
            })),
        },
        Example {
            name: "WRITE with a wrong ICRC",
            about: "The sender wrote the four bytes of the ICRC in reverse order. Receivers drop the packet.",
            bytes: request(json!({
                "opcode": "RC_RDMA_WRITE_ONLY", "psn": 5, "payload": hex(b"hello, world!"),
            }))
            .map(|mut bytes| {
                if let Some(icrc) = bytes.last_chunk_mut::<{ icrc::LEN }>() {
                    icrc.reverse();
                }
                bytes
            }),
        },
    ]
}

/// Returns the management datagram that asks for a reliable connection to port 7174.
fn connection_request() -> [u8; MAD_LEN] {
    let addresses = [REQUESTER, RESPONDER].map(IpAddr::V4);
    let [source, destination] = addresses;
    let mut private = [0; IpCm::LEN];
    IpCm { source_port: 40_000, source, destination }.emit(&mut private);
    let unused = CmPath {
        local_lid: 0,
        remote_lid: 0,
        local_gid: Gid::ZERO,
        remote_gid: Gid::ZERO,
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 0,
        sl: 0,
        subnet_local: false,
        local_ack_timeout: CmTimeout::new(0),
    };
    let primary = CmPath {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: source.into(),
        remote_gid: destination.into(),
        flow_label: 0x1_2345,
        hop_limit: 64,
        local_ack_timeout: CmTimeout::new(18),
        ..unused
    };
    let request = CmReq {
        local_comm_id: CommId(0x0101_0101),
        vendor_id: 0,
        service_id: ServiceId::of_port(PortSpace::Tcp, 7174),
        local_ca_guid: 0x0200_00ff_fe00_0001,
        local_q_key: 0,
        local_qpn: Qpn::new(0x12),
        responder_resources: 16,
        local_eecn: 0,
        initiator_depth: 16,
        remote_eecn: 0,
        remote_cm_response_timeout: CmTimeout::new(20),
        transport: TransportService::Rc,
        flow_control: false,
        starting_psn: Psn::new(0x5eed),
        local_cm_response_timeout: CmTimeout::new(20),
        retry_count: 7,
        p_key: 0xffff,
        path_mtu_code: PathMtu::Mtu1024.code(),
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        extended_transport: 0,
        primary,
        alternate: unused,
        private_data: private_data(&private),
    };
    let mut bytes = [0; MAD_LEN];
    CmMad::new(1, CmMessage::Req(request)).emit(&mut bytes);
    bytes
}
