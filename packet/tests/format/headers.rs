//! Every transport header: writing and parsing, every bit of its view, and every length that is too short.

use proptest::prelude::*;
use roce_packet::{
    Aeth, AethView, AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView, Bth, BthView, Deth, DethView,
    Feth, FethView, FlushSelectivity, Ieth, IethView, ImmDt, ImmDtView, Layer, Msn, NakCode, Opcode,
    ParseError, ParseErrorKind, Psn, Qpn, Rdeth, RdethView, Reth, RethView, RnrTimer, Syndrome, Xrceth,
    XrcethView,
};

/// Checks one header. Its output parses to an equal header and leaves the remaining bytes. Any bytes are
/// written again, with reserved bits as zero. Every shorter input is rejected.
macro_rules! header_laws {
    ($($name:ident: $header:ty, $layer:expr, $strategy:expr, reserved $reserved:expr;)*) => {
        proptest! {
            $(#[test]
            fn $name(
                header in $strategy,
                bytes: [u8; <$header>::LEN],
                rest in proptest::collection::vec(any::<u8>(), 0..8),
            ) {
                let mut wire = [0xff; <$header>::LEN];
                header.emit(&mut wire);
                let mut long = wire.to_vec();
                long.extend_from_slice(&rest);
                prop_assert_eq!(<$header>::parse(&long), Ok((header, &rest[..])));

                let mut reserved = [0; <$header>::LEN];
                for (offset, mask) in $reserved {
                    let masks: &mut [u8] = &mut reserved;
                    let offset: usize = offset;
                    masks[offset] = mask;
                }
                if let Ok((header, _)) = <$header>::parse(&bytes) {
                    header.emit(&mut wire);
                    for (offset, byte) in bytes.iter().enumerate() {
                        prop_assert_eq!(wire[offset], byte & !reserved[offset], "byte {}", offset);
                    }
                }

                for have in 0..<$header>::LEN {
                    let need = <$header>::LEN;
                    let error = ParseError::truncated($layer, 0, need, have);
                    prop_assert_eq!(<$header>::parse(&bytes[..have]), Err(error));
                }
            })*
        }
    };
}

const NOTHING: [(usize, u8); 0] = [];

header_laws! {
    bth: Bth, Layer::Bth, any_bth(), reserved [(4, 0x3f), (8, 0x7f)];
    reth: Reth, Layer::Reth, any::<(u64, u32, u32)>().prop_map(|(va, rkey, dma_len)| Reth { va, rkey, dma_len }),
        reserved NOTHING;
    aeth: Aeth, Layer::Aeth, (any_syndrome(), any::<u32>()).prop_map(|(syndrome, msn)| {
        Aeth { syndrome, msn: Msn::new(msn) }
    }), reserved NOTHING;
    deth: Deth, Layer::Deth, any::<(u32, u32)>().prop_map(|(q_key, source)| {
        Deth { q_key, source_qp: Qpn::new(source) }
    }), reserved [(4, 0xff)];
    rdeth: Rdeth, Layer::Rdeth, (0..1_u32 << 24).prop_map(|ee_context| Rdeth { ee_context }),
        reserved [(0, 0xff)];
    xrceth: Xrceth, Layer::Xrceth, (0..1_u32 << 24).prop_map(|srq| Xrceth { srq }), reserved [(0, 0xff)];
    atomic_eth: AtomicEth, Layer::AtomicEth, any::<(u64, u32, u64, u64)>().prop_map(
        |(va, rkey, swap_or_add, compare)| AtomicEth { va, rkey, swap_or_add, compare }
    ), reserved NOTHING;
    atomic_ack_eth: AtomicAckEth, Layer::AtomicAckEth,
        any::<u64>().prop_map(|original| AtomicAckEth { original }), reserved NOTHING;
    imm_dt: ImmDt, Layer::ImmDt, any::<[u8; 4]>().prop_map(ImmDt), reserved NOTHING;
    ieth: Ieth, Layer::Ieth, any::<u32>().prop_map(|rkey| Ieth { rkey }), reserved NOTHING;
    feth: Feth, Layer::Feth, any::<(bool, bool, u8)>().prop_map(|(global_visibility, persistence, bits)| {
        Feth { global_visibility, persistence, selectivity: FlushSelectivity::from_bits(bits) }
    }), reserved [(0, 0xff), (1, 0xff), (2, 0xff), (3, 0xcc)];
}

fn any_bth() -> impl Strategy<Value = Bth> {
    let flags = any::<(bool, bool, bool, bool, bool)>();
    (any::<u8>(), flags, 0..4_u8, any::<u16>(), any::<u32>(), any::<u32>()).prop_map(
        |(opcode, (solicited, mig_req, fecn, becn, ack_req), pad_count, p_key, dest_qp, psn)| Bth {
            opcode: Opcode(opcode),
            solicited,
            mig_req,
            pad_count,
            p_key,
            fecn,
            becn,
            dest_qp: Qpn::new(dest_qp),
            ack_req,
            psn: Psn::new(psn),
        },
    )
}

fn any_syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        (0..32_u8).prop_map(|credit_code| Syndrome::Ack { credit_code }),
        (0..32_u8).prop_map(|code| Syndrome::RnrNak { timer: RnrTimer::new(code).expect("below 32") }),
        (0..32_u8).prop_map(|code| Syndrome::Nak(NakCode::from_code(code))),
        (0x40..0x60_u8).prop_map(Syndrome::Reserved),
        (0x80..=0xff_u8).prop_map(Syndrome::Reserved),
    ]
}

/// The bytes 1, 2, 3 and so on, which reveal a field at the wrong offset.
const COUNTED: [u8; 28] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28];

#[test]
fn fields_are_where_they_belong() {
    let (reth, rest) = Reth::parse(&COUNTED).expect("long enough");
    assert_eq!(reth, Reth { va: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c, dma_len: 0x0d0e_0f10 });
    assert_eq!(rest, &COUNTED[16..]);
    let atomic = AtomicEth {
        va: 0x0102_0304_0506_0708,
        rkey: 0x090a_0b0c,
        swap_or_add: 0x0d0e_0f10_1112_1314,
        compare: 0x1516_1718_191a_1b1c,
    };
    assert_eq!(AtomicEth::parse(&COUNTED), Ok((atomic, &[][..])));
    assert_eq!(AtomicAckEth::parse(&COUNTED).expect("long enough").0.original, 0x0102_0304_0506_0708);
    let deth = Deth { q_key: 0x0102_0304, source_qp: Qpn::new(0x06_0708) };
    assert_eq!(Deth::parse(&COUNTED).expect("long enough").0, deth);
    assert_eq!(Rdeth::parse(&COUNTED).expect("long enough").0, Rdeth { ee_context: 0x02_0304 });
    assert_eq!(Xrceth::parse(&COUNTED).expect("long enough").0, Xrceth { srq: 0x02_0304 });
    assert_eq!(Ieth::parse(&COUNTED).expect("long enough").0, Ieth { rkey: 0x0102_0304 });
    assert_eq!(ImmDt::parse(&COUNTED).expect("long enough").0, ImmDt([1, 2, 3, 4]));
    let aeth = Aeth { syndrome: Syndrome::Ack { credit_code: 1 }, msn: Msn::new(0x02_0304) };
    assert_eq!(Aeth::parse(&COUNTED).expect("long enough").0, aeth);
}

#[test]
fn flush_words() {
    let parse = |byte| Feth::parse(&[0, 0, 0, byte]).expect("long enough").0;
    let feth =
        |global_visibility, persistence, selectivity| Feth { global_visibility, persistence, selectivity };
    assert_eq!(parse(0x01), feth(true, false, FlushSelectivity::Range));
    assert_eq!(parse(0x02), feth(false, true, FlushSelectivity::Range));
    assert_eq!(parse(0x13), feth(true, true, FlushSelectivity::WholeRegion));
    assert_eq!(parse(0x30), feth(false, false, FlushSelectivity::Reserved(3)));
}

#[test]
fn views_show_every_bit() {
    let bytes = [0x11, 0xf5, 0x12, 0x34, 0xea, 1, 2, 3, 0xff, 4, 5, 6];
    let (view, rest) = BthView::from_prefix(&bytes).expect("long enough");
    assert!(rest.is_empty());
    assert_eq!(view.opcode(), Opcode::RC_ACKNOWLEDGE);
    assert_eq!((view.solicited(), view.mig_req(), view.pad_count(), view.version()), (true, true, 3, 5));
    assert_eq!(view.p_key(), 0x1234);
    assert_eq!((view.fecn(), view.becn(), view.reserved6(), view.variant_byte()), (true, true, 0x2a, 0xea));
    assert_eq!(view.dest_qp(), Qpn::new(0x01_0203));
    assert_eq!((view.ack_req(), view.reserved7()), (true, 0x7f));
    assert_eq!(view.psn(), Psn::new(0x04_0506));

    assert_eq!(DethView::from_prefix(&COUNTED).expect("long enough").0.reserved(), 5);
    assert_eq!(RdethView::from_prefix(&COUNTED).expect("long enough").0.reserved(), 1);
    assert_eq!(XrcethView::from_prefix(&COUNTED).expect("long enough").0.reserved(), 1);
    let (view, _) = FethView::from_prefix(&[0xff, 0xff, 0xff, 0xec]).expect("long enough");
    assert_eq!((view.reserved(), view.selectivity(), view.placement_type()), (0x03ff_ffff, 2, 0xc));
    let (view, _) = AethView::from_prefix(&[0xe5, 1, 2, 3]).expect("long enough");
    assert_eq!((view.syndrome(), view.msn()), (0xe5, Msn::new(0x01_0203)));

    assert_eq!(RethView::from_prefix(&COUNTED).expect("long enough").0.dma_len(), 0x0d0e_0f10);
    assert_eq!(AtomicEthView::from_prefix(&COUNTED).expect("long enough").0.compare(), 0x1516_1718_191a_1b1c);
    assert_eq!(
        AtomicAckEthView::from_prefix(&COUNTED).expect("long enough").0.original(),
        0x0102_0304_0506_0708
    );
    assert_eq!(IethView::from_prefix(&COUNTED).expect("long enough").0.rkey(), 0x0102_0304);
    assert_eq!(ImmDtView::from_prefix(&COUNTED).expect("long enough").0.data(), [1, 2, 3, 4]);
}

#[test]
fn other_transport_versions_are_refused() {
    for version in 1..16 {
        let bytes = [0x04, 0x40 | version, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0];
        let error = Bth::parse(&bytes).expect_err("a wrong version");
        assert_eq!((error.layer, error.kind, error.offset), (Layer::Bth, ParseErrorKind::BadVersion, 1));
        assert_eq!((error.need, error.have), (0, usize::from(version)));
    }
}
