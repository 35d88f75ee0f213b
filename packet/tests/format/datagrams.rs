//! Complete datagrams: which are accepted, which are rejected and at which offset, and the output of a
//! writer.

use proptest::prelude::*;
use roce_packet::{
    Aeth, AtomicAckEth, AtomicEth, Bth, BufferTooSmall, Datagram, DatagramWriter, Deth, Encapsulation,
    Envelope, Feth, FlushSelectivity, HeaderSet, Ieth, ImmDt, Layer, Msn, Opcode, OpcodeInfo, ParseError,
    ParseErrorKind, Path, PayloadRule, Psn, Qpn, Rdeth, Reth, Syndrome, Xrceth, icrc,
};

const ENVELOPE: Envelope = Envelope::new(
    &Path {
        encapsulation: Encapsulation::RoceV2,
        source: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
        destination: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    },
    7,
);

fn known() -> impl Iterator<Item = &'static OpcodeInfo> {
    (0..=u8::MAX).filter_map(|value| Opcode(value).info())
}

fn any_known() -> impl Strategy<Value = &'static OpcodeInfo> {
    proptest::sample::select(known().collect::<Vec<_>>())
}

/// Returns whether the length is legal, as far as a datagram shows without the path MTU.
fn legal_payload_len(info: &OpcodeInfo, len: usize) -> bool {
    match info.payload {
        PayloadRule::None => len == 0,
        PayloadRule::Exactly(exact) => len == exact,
        PayloadRule::FullMtu | PayloadRule::OneToMtu | PayloadRule::ZeroToMtu => true,
    }
}

/// Returns a legal payload for `info`, `wish` if possible.
fn legal_payload<'a>(info: &OpcodeInfo, wish: &'a [u8]) -> &'a [u8] {
    const ANY: &[u8] = &[0xa5; 16];
    match info.payload {
        PayloadRule::None => &[],
        PayloadRule::Exactly(len) => &ANY[..len],
        PayloadRule::FullMtu | PayloadRule::OneToMtu if wish.is_empty() => &ANY[..1],
        PayloadRule::FullMtu | PayloadRule::OneToMtu | PayloadRule::ZeroToMtu => wish,
    }
}

/// Writes the headers of the opcode and the payload.
fn write(bth: &Bth, payload: &[u8], out: &mut [u8]) -> Result<usize, BufferTooSmall> {
    let mut writer = DatagramWriter::new(out, bth)?;
    for header in bth.opcode.info().map_or(HeaderSet::empty(), |info| info.headers) {
        match header {
            HeaderSet::RDETH => writer.rdeth(&RDETH)?,
            HeaderSet::DETH => writer.deth(&DETH)?,
            HeaderSet::XRCETH => writer.xrceth(&XRCETH)?,
            HeaderSet::FETH => writer.feth(&FETH)?,
            HeaderSet::RETH => writer.reth(&RETH)?,
            HeaderSet::ATOMIC_ETH => writer.atomic_eth(&ATOMIC_ETH)?,
            HeaderSet::AETH => writer.aeth(&AETH)?,
            HeaderSet::ATOMIC_ACK_ETH => writer.atomic_ack_eth(&ATOMIC_ACK_ETH)?,
            HeaderSet::IMMDT => writer.imm_dt(&IMM_DT)?,
            HeaderSet::IETH => writer.ieth(&IETH)?,
            other => panic!("{other:?}"),
        }
    }
    writer.payload_slot(payload.len())?.copy_from_slice(payload);
    let expected = writer.len_with_icrc();
    let len = writer.finish(&ENVELOPE)?;
    assert_eq!(len, expected);
    Ok(len)
}

const RDETH: Rdeth = Rdeth { ee_context: 0x01_0203 };
const DETH: Deth = Deth { q_key: 0x8001_0000, source_qp: Qpn::GSI };
const XRCETH: Xrceth = Xrceth { srq: 0x0a_0b0c };
const FETH: Feth =
    Feth { global_visibility: true, persistence: false, selectivity: FlushSelectivity::WholeRegion };
const RETH: Reth = Reth { va: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, dma_len: 0xddee_ff00 };
const ATOMIC_ETH: AtomicEth = AtomicEth { va: 8, rkey: 9, swap_or_add: 10, compare: 11 };
const AETH: Aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(12) };
const ATOMIC_ACK_ETH: AtomicAckEth = AtomicAckEth { original: 13 };
const IMM_DT: ImmDt = ImmDt([14, 15, 16, 17]);
const IETH: Ieth = Ieth { rkey: 18 };

fn joined((first, second): (&[u8], &[u8])) -> Vec<u8> {
    [first, second].concat()
}

/// Calls every accessor of a datagram. None may panic, and slicing must not change a result.
fn answers(datagram: &Datagram<'_>) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        (*datagram.bth(), datagram.info(), datagram.payload_len(), datagram.len(), datagram.icrc()),
        (joined(datagram.payload()), joined(datagram.covered()), datagram.compute_icrc(&ENVELOPE)),
        (datagram.rdeth(), datagram.deth(), datagram.xrceth(), datagram.feth(), datagram.reth()),
        (
            datagram.atomic_eth(),
            datagram.aeth(),
            datagram.atomic_ack_eth(),
            datagram.imm_dt(),
            datagram.ieth(),
        ),
    )
}

/// Checks the invariants of every datagram that parses.
fn check_invariants(datagram: &Datagram<'_>, bytes: &[u8]) {
    let info = datagram.info();
    let around = info.header_len + usize::from(datagram.bth().pad_count) + icrc::LEN;
    assert_eq!(datagram.payload_len() + around, bytes.len());
    assert_eq!(datagram.len(), bytes.len());
    assert!(bytes.len().is_multiple_of(4));
    assert!(legal_payload_len(info, datagram.payload_len()));
    let payload = &bytes[info.header_len..][..datagram.payload_len()];
    assert_eq!(joined(datagram.payload()), payload);
    assert_eq!(joined(datagram.covered()), bytes[..bytes.len() - icrc::LEN]);
    assert_eq!(datagram.icrc().to_le_bytes(), bytes[bytes.len() - icrc::LEN..]);
    for (flag, found) in [
        (HeaderSet::RDETH, datagram.rdeth().is_some()),
        (HeaderSet::DETH, datagram.deth().is_some()),
        (HeaderSet::XRCETH, datagram.xrceth().is_some()),
        (HeaderSet::FETH, datagram.feth().is_some()),
        (HeaderSet::RETH, datagram.reth().is_some()),
        (HeaderSet::ATOMIC_ETH, datagram.atomic_eth().is_some()),
        (HeaderSet::AETH, datagram.aeth().is_some()),
        (HeaderSet::ATOMIC_ACK_ETH, datagram.atomic_ack_eth().is_some()),
        (HeaderSet::IMMDT, datagram.imm_dt().is_some()),
        (HeaderSet::IETH, datagram.ieth().is_some()),
    ] {
        assert_eq!(info.headers.contains(flag), found, "{flag:?} of {}", info.name);
    }
}

/// Returns the expected error for a datagram of zeros after this opcode, pad count and length. Implements the
/// rule independently of the parser.
fn expected_kind(opcode: Opcode, pad: usize, len: usize) -> Option<ParseErrorKind> {
    if len < Bth::LEN {
        return Some(ParseErrorKind::Truncated);
    }
    let Some(info) = opcode.info() else { return Some(ParseErrorKind::UnknownOpcode) };
    if len < info.header_len + pad + icrc::LEN {
        return Some(ParseErrorKind::Truncated);
    }
    let payload_len = len - info.header_len - pad - icrc::LEN;
    if !len.is_multiple_of(4) {
        return Some(ParseErrorKind::BadLength);
    }
    if legal_payload_len(info, payload_len) {
        return None;
    }
    let none = info.payload == PayloadRule::None;
    Some(if none { ParseErrorKind::TrailingBytes } else { ParseErrorKind::BadLength })
}

/// Linux rxe, fixed 2026-04-01: if headers, forged padding and ICRC together exceeded the packet, the payload
/// length wrapped around. Tests every length, pad count and opcode, and every division into two slices.
#[test]
fn rxe_2026_04_01_forged_padding_underflows_payload_length() {
    let mut bytes = [0; 120];
    for opcode in 0..=u8::MAX {
        for pad in 0..4 {
            bytes[0] = opcode;
            bytes[1] = (pad as u8) << 4;
            for len in 0..=bytes.len() {
                let whole = Datagram::parse(&bytes[..len], &[]);
                let kind = whole.as_ref().err().map(|error| error.kind);
                let expected = expected_kind(Opcode(opcode), pad, len);
                assert_eq!(kind, expected, "{:?}, {pad} bytes of padding, {len} in all", Opcode(opcode));
                match whole {
                    Ok(datagram) => check_invariants(&datagram, &bytes[..len]),
                    Err(error) => assert!(error.offset <= len, "{error}"),
                }
                check_cuts(&bytes[..len]);
            }
        }
    }
}

/// Checks that a datagram in two slices equals the one in a single slice, unless the cut divides the headers.
fn check_cuts(bytes: &[u8]) {
    let whole = Datagram::parse(bytes, &[]);
    for cut in 0..bytes.len() {
        let (head, tail) = bytes.split_at(cut);
        let split = Datagram::parse(head, tail);
        match (&whole, &split) {
            (Ok(whole), Ok(split)) => {
                assert!(cut >= whole.info().header_len);
                assert_eq!(whole.icrc(), split.icrc());
                assert_eq!(whole.payload_len(), split.payload_len());
                let (first, second) = split.payload();
                let payload = whole.payload().0;
                assert_eq!((first, second), payload.split_at(first.len()));
                let (first, second) = split.covered();
                assert_eq!((first, second), whole.covered().0.split_at(first.len()));
            }
            (Ok(whole), Err(error)) => {
                assert!(cut < whole.info().header_len);
                assert_eq!(error.kind, ParseErrorKind::Truncated);
            }
            (Err(_), Err(_)) => {}
            (Err(error), Ok(_)) => panic!("cutting at {cut} of {} made good: {error}", bytes.len()),
        }
    }
}

#[test]
fn errors_name_the_header_and_the_place() {
    let bth = Bth::new(Opcode::RD_RDMA_WRITE_ONLY_WITH_IMM, Qpn::new(1), Psn::new(2));
    let mut bytes = [0; 64];
    let len = write(&bth, b"abcd", &mut bytes).expect("enough room");
    assert_eq!(len, 12 + 4 + 8 + 16 + 4 + 4 + 4);
    for (layer, offset, need) in [
        (Layer::Bth, 0, 12),
        (Layer::Rdeth, 12, 4),
        (Layer::Deth, 16, 8),
        (Layer::Reth, 24, 16),
        (Layer::ImmDt, 40, 4),
        (Layer::Icrc, 44, 4),
    ] {
        for have in 0..need {
            let expected = ParseError { layer, kind: ParseErrorKind::Truncated, offset, need, have };
            assert_eq!(Datagram::parse(&bytes[..offset + have], &[]).err(), Some(expected));
        }
    }
    let error = Datagram::parse(&bytes[..len - 1], &[]).expect_err("not a multiple of four");
    assert_eq!((error.layer, error.kind, error.offset), (Layer::Payload, ParseErrorKind::BadLength, 44));
    assert_eq!((error.need, error.have), (52, 51));
}

#[test]
fn headers_cut_in_two_are_refused() {
    let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(1), Psn::new(2));
    let mut bytes = [0; 20];
    assert_eq!(write(&bth, &[], &mut bytes), Ok(20));
    let error = |cut: usize| Datagram::parse(&bytes[..cut], &bytes[cut..]).err();
    assert_eq!(error(0), Some(ParseError::truncated(Layer::Bth, 0, 12, 0)));
    assert_eq!(error(11), Some(ParseError::truncated(Layer::Bth, 0, 12, 11)));
    assert_eq!(error(14), Some(ParseError::truncated(Layer::Aeth, 12, 4, 2)));
    assert_eq!(error(16), None);
    assert_eq!(error(18), None);
}

#[test]
fn payload_rules() {
    let parse = |opcode: Opcode, payload: &[u8]| {
        let mut bytes = [0; 128];
        let len =
            write(&Bth::new(opcode, Qpn::new(1), Psn::new(2)), payload, &mut bytes).expect("enough room");
        Datagram::parse(&bytes[..len], &[]).err().map(|error| (error.kind, error.need, error.have))
    };
    // A message whose length is a multiple of the MTU ends with a full Last packet, so an empty Last is
    // wrong. The queue pair must answer it, because the datagram itself is valid.
    for opcode in [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST, Opcode::RC_SEND_ONLY]
    {
        assert_eq!(parse(opcode, &[]), None, "{opcode}");
    }
    assert_eq!(parse(Opcode::RC_ACKNOWLEDGE, &[0; 4]), Some((ParseErrorKind::TrailingBytes, 0, 4)));
    assert_eq!(parse(Opcode::RC_ATOMIC_WRITE, &[0; 4]), Some((ParseErrorKind::BadLength, 8, 4)));
    assert_eq!(parse(Opcode::RC_ATOMIC_WRITE, &[0; 7]), Some((ParseErrorKind::BadLength, 8, 7)));
    assert_eq!(parse(Opcode::CNP, &[0; 16]), None);
    assert_eq!(parse(Opcode::CNP, &[0; 20]), Some((ParseErrorKind::BadLength, 16, 20)));
}

#[test]
fn padding_is_zero_and_counted() {
    for len in 0..9 {
        let mut bytes = [0xff; 64];
        let bth = Bth { pad_count: 2, ..Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(1), Psn::new(2)) };
        let total = write(&bth, &vec![0xaa; len], &mut bytes).expect("enough room");
        let pad = (4 - len % 4) % 4;
        assert_eq!(total, 12 + len + pad + 4);
        assert_eq!(bytes[12 + len..][..pad], vec![0; pad]);
        let datagram = Datagram::parse(&bytes[..total], &[]).expect("a datagram");
        assert_eq!(usize::from(datagram.bth().pad_count), pad);
        assert_eq!(datagram.payload_len(), len);
        assert!(bytes[total..].iter().all(|byte| *byte == 0xff), "bytes behind the datagram changed");
    }
}

#[test]
fn without_payload_there_is_no_padding() {
    let mut bytes = [0; 20];
    let bth = Bth { pad_count: 2, ..Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(1), Psn::new(2)) };
    let mut writer = DatagramWriter::new(&mut bytes, &bth).expect("enough room");
    assert_eq!(writer.aeth(&AETH), Ok(()));
    assert_eq!(writer.finish(&ENVELOPE), Ok(20));
    assert_eq!(Datagram::parse(&bytes, &[]).expect("a datagram").bth().pad_count, 0);
}

#[test]
fn a_writer_needs_exactly_its_length() {
    for info in known() {
        let payload = legal_payload(info, b"12345");
        let bth = Bth::new(info.opcode, Qpn::new(1), Psn::new(2));
        let mut bytes = [0; 128];
        let need = write(&bth, payload, &mut bytes).expect("enough room");
        assert_eq!(write(&bth, payload, &mut bytes[..need]), Ok(need));
        for have in 0..need {
            let error = write(&bth, payload, &mut bytes[..have]).expect_err("too small");
            assert_eq!(error.have, have);
            assert!(error.need > have && error.need <= need, "{error}");
        }
    }
}

#[test]
fn absurd_payload_lengths_are_refused() {
    let mut bytes = [0; 64];
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(1), Psn::new(2));
    let mut writer = DatagramWriter::new(&mut bytes, &bth).expect("enough room");
    for len in [49, 1000, usize::MAX - 16, usize::MAX - 3, usize::MAX] {
        assert!(writer.payload_slot(len).is_err(), "{len}");
    }
    // A rejected call changes nothing.
    assert_eq!(writer.len_with_icrc(), 16);
    assert_eq!(writer.payload_slot(48).map(|slot| slot.len()), Ok(48));
    assert_eq!(writer.finish(&ENVELOPE), Ok(64));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        info in any_known(),
        (solicited, mig_req, fecn, becn, ack_req) in any::<(bool, bool, bool, bool, bool)>(),
        (p_key, dest_qp, psn) in any::<(u16, u32, u32)>(),
        wish in proptest::collection::vec(any::<u8>(), 0..64),
        cut in any::<proptest::sample::Index>(),
    ) {
        let payload = legal_payload(info, &wish);
        let (dest_qp, psn) = (Qpn::new(dest_qp), Psn::new(psn));
        let pad_count = (payload.len().wrapping_neg() & 3) as u8;
        let opcode = info.opcode;
        let bth = Bth { opcode, solicited, mig_req, pad_count, p_key, fecn, becn, dest_qp, ack_req, psn };
        let mut buffer = [0x77; 256];
        let len = write(&bth, payload, &mut buffer).expect("enough room");
        let bytes = &buffer[..len];
        let datagram = Datagram::parse(bytes, &[]).expect("a datagram");
        check_invariants(&datagram, bytes);
        prop_assert_eq!(datagram.bth(), &bth);
        prop_assert_eq!(datagram.payload().0, payload);
        prop_assert_eq!(datagram.icrc(), datagram.compute_icrc(&ENVELOPE));
        let seed = icrc::Seed::new(&ENVELOPE);
        prop_assert_eq!(datagram.icrc(), datagram.compute_icrc_from(&seed, ENVELOPE.identification));
        let unknown = ENVELOPE.with_identification(0);
        prop_assert_eq!(datagram.recover_identification(&unknown), Some(ENVELOPE.identification));
        for (found, written) in [
            (datagram.rdeth().is_none_or(|header| header == RDETH), "RDETH"),
            (datagram.deth().is_none_or(|header| header == DETH), "DETH"),
            (datagram.xrceth().is_none_or(|header| header == XRCETH), "XRCETH"),
            (datagram.feth().is_none_or(|header| header == FETH), "FETH"),
            (datagram.reth().is_none_or(|header| header == RETH), "RETH"),
            (datagram.atomic_eth().is_none_or(|header| header == ATOMIC_ETH), "AtomicETH"),
            (datagram.aeth().is_none_or(|header| header == AETH), "AETH"),
            (datagram.atomic_ack_eth().is_none_or(|header| header == ATOMIC_ACK_ETH), "AtomicAckETH"),
            (datagram.imm_dt().is_none_or(|header| header == IMM_DT), "ImmDt"),
            (datagram.ieth().is_none_or(|header| header == IETH), "IETH"),
        ] {
            prop_assert!(found, "{}", written);
        }

        let cut = info.header_len + cut.index(len - info.header_len + 1);
        let split = Datagram::parse(&bytes[..cut], &bytes[cut..]).expect("a datagram");
        prop_assert!(answers(&split) == answers(&datagram), "cut at {}", cut);
    }

    #[test]
    fn no_bytes_panic(
        head in proptest::collection::vec(any::<u8>(), 0..160),
        tail in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let bytes = [&head[..], &tail[..]].concat();
        if let Ok(datagram) = Datagram::parse(&head, &tail) {
            check_invariants(&datagram, &bytes);
            let _ = answers(&datagram);
            let _ = datagram.recover_identification(&ENVELOPE);
        }
        let _ = icrc::compute(&ENVELOPE, &head, &tail);
        let _ = icrc::recover_identification(&ENVELOPE, &head, &tail, 7);
    }
}
