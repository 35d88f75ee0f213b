//! The codec on arbitrary bytes: frames, dissections, outer headers, datagrams in one and two slices, all
//! headers.
//!
//! Properties that are checked for every input: no panic; a frame, its dissection and its form in two slices
//! agree; a datagram has the same content wherever it is split; parsed input is written again byte for byte,
//! except reserved bits, and parses to the same value again.

use roce_packet::outer::{Link, MAX_LAYERS, Outer};
use roce_packet::pause::PauseFrame;
use roce_packet::{
    Aeth, AethView, AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView, Bth, BthView, Cnp,
    CnpDeviations, Datagram, DatagramWriter, Deth, DethView, Dissection, Envelope, EthernetHeader,
    EthernetView, Feth, FethView, Frame, Grh, GrhView, HeaderSet, Ieth, IethView, ImmDt, ImmDtView,
    Ipv4Header, Ipv4View, Ipv6Header, Ipv6View, ROCE_UDP_PORT, Rdeth, RdethView, Reth, RethView, UdpHeader,
    UdpView, VlanHeader, VlanView, Xrceth, XrcethView,
};

/// Runs the target on an input, see the module.
pub fn run(data: &[u8]) {
    frame(data);
    split_frames(data);
    outer_headers(data);
    headers(data);
    views(data);
    if let Ok(pause) = PauseFrame::parse(data) {
        let mut out = [0; PauseFrame::LEN];
        pause.emit(&mut out);
        assert_eq!(PauseFrame::parse(&out), Ok(pause), "a pause frame written and read");
    }
    if let Ok(datagram) = Datagram::parse(data, &[]) {
        datagram_in_two_slices(data, &datagram);
        datagram_again(&datagram);
    }
}

/// Compares the frame with its dissection, and writes the frame again.
fn frame(data: &[u8]) {
    let dissection = Dissection::new(data);
    let parsed = Frame::parse(data);
    assert_eq!(dissection.into_frame(), parsed, "both walks agree");
    if let Some(transport) = dissection.transport {
        assert!(transport.len() <= dissection.transport_len.max(transport.len()));
        assert_eq!(
            data.get(dissection.transport_offset..).map(|rest| rest.starts_with(transport)),
            Some(true)
        );
    }
    let Ok(frame) = parsed else {
        assert!(dissection.error.is_some(), "a frame that does not parse has an error");
        return;
    };
    assert_eq!(frame.len_bytes(), data.len());
    let mut out = vec![0; data.len()];
    assert_eq!(frame.emit(&mut out), Ok(data.len()));
    let mut expected = data.to_vec();
    forget_reserved(&frame, &mut expected);
    assert_eq!(out, expected, "a frame is written as it was read");
    let again = Frame::parse(&out).expect("what was written parses");
    assert_eq!(again.headers, frame.headers);
    for short in 0..data.len().min(80) {
        assert!(frame.emit(out.get_mut(..short).expect("shorter than the frame")).is_err());
    }
    let check = frame.verify_icrc();
    match frame.datagram() {
        Ok(datagram) => {
            let check = check.expect("a datagram has an ICRC");
            assert_eq!(check.found, datagram.icrc());
            assert_eq!(check.computed, datagram.compute_icrc(&frame.envelope()));
            let _ = Cnp::parse(&datagram);
            let _ = CnpDeviations::of(&datagram);
        }
        Err(error) => assert!(error.offset <= data.len(), "{error}"),
    }
}

/// Clears reserved bits that are not written: the top bit of the IPv4 flags, which also changes the checksum.
fn forget_reserved(frame: &Frame<'_>, bytes: &mut [u8]) {
    if !matches!(frame.headers.network, roce_packet::NetworkHeader::Ipv4 { .. }) {
        return;
    }
    let start = frame.headers.network_offset();
    let header = bytes.get_mut(start..).and_then(|rest| rest.first_chunk_mut::<{ Ipv4Header::LEN }>());
    let header = header.expect("the frame has an IPv4 header");
    let old = *header;
    header[6] &= 0x7f;
    let (parsed, _) = Ipv4Header::parse(&old).expect("it parsed before");
    if *header != old {
        parsed.emit(header);
    } else {
        // 0x0000 and 0xffff are equal as checksums, and only one of them is written.
        let mut written = [0; Ipv4Header::LEN];
        parsed.emit(&mut written);
        if old[10..12] == [0xff, 0xff] {
            *header = written;
        }
    }
}

/// Checks that outer headers follow each other, for every link type and every truncation, and that the
/// decoder finds every frame that a receiver accepts.
fn outer_headers(data: &[u8]) {
    let (wire, _) = data.split_at(data.len() / 2);
    for link in [Link::Ethernet, Link::Ip, Link::AddressFamily, Link::LinuxSll, Link::LinuxSll2] {
        for (bytes, wire_len) in [(data, data.len()), (wire, data.len()), (wire, wire.len())] {
            outer(&Outer::decode(bytes, link, wire_len, ROCE_UDP_PORT));
        }
    }
    if let Ok(frame) = Frame::parse(data) {
        let outer = Outer::decode(data, Link::Ethernet, data.len(), ROCE_UDP_PORT);
        assert_eq!(outer.transport, Some(frame.transport), "both decoders agree");
        assert_eq!(outer.envelope(), Some(frame.envelope()));
        assert_eq!(outer.frame_headers(), Some(frame.headers));
        assert_eq!((outer.error, outer.cut), (None, None));
    }
}

fn outer(outer: &Outer<'_>) {
    assert!(outer.layers().len() <= MAX_LAYERS);
    let mut end = outer.link_end;
    for layer in outer.layers() {
        assert_eq!(layer.offset, end, "headers follow each other");
        assert_eq!(outer.layer_bytes(layer).len(), layer.len);
        end += layer.len;
    }
    if let Some(transport) = outer.transport {
        assert_eq!(outer.transport_offset, end);
        assert_eq!(outer.cut.is_some(), transport.len() < outer.transport_len);
    }
    let is_good = outer.check_icrc().is_some_and(|icrc| icrc.check.is_good());
    assert!(!is_good || outer.is_certainly_roce());
    let _ = (outer.is_answer_of_service(), outer.guess());
}

/// Checks that every split of a frame after its headers gives the same headers and the same bytes.
fn split_frames(data: &[u8]) {
    let whole = Frame::parse(data);
    for at in cuts(data) {
        let (head, tail) = data.split_at(at);
        match (Frame::parse_split(head, tail, ROCE_UDP_PORT), &whole) {
            (Ok(split), Ok(whole)) => {
                assert_eq!(split.headers, whole.headers);
                assert_eq!([split.head, split.tail].concat(), whole.transport);
            }
            (Ok(_), Err(error)) => panic!("cut at {at} it parses, whole it does not: {error}"),
            (Err(_), Ok(whole)) => assert!(at < whole.headers.len_bytes(), "cut at {at}"),
            (Err(_), Err(_)) => {}
        }
    }
}

/// Returns some positions for a split: the ends, the middle, near the end, and one that the input selects.
fn cuts(data: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let len = data.len();
    let chosen = data.last().map_or(0, |byte| usize::from(*byte) * len / 256);
    [0, len / 2, len.saturating_sub(1), len.saturating_sub(3), len, chosen].into_iter()
}

fn datagram_in_two_slices(data: &[u8], whole: &Datagram<'_>) {
    for at in cuts(data) {
        let (head, tail) = data.split_at(at);
        let Ok(split) = Datagram::parse(head, tail) else {
            assert!(at < whole.info().header_len, "headers in the first slice, cut at {at}");
            continue;
        };
        assert_eq!(split.bth(), whole.bth());
        assert_eq!(split.icrc(), whole.icrc());
        assert_eq!(split.len(), whole.len());
        let (first, second) = split.payload();
        assert_eq!([first, second].concat(), whole.payload().0);
        let (first, second) = split.covered();
        assert_eq!([first, second].concat(), whole.covered().0);
        assert_eq!((split.reth(), split.aeth(), split.deth()), (whole.reth(), whole.aeth(), whole.deth()));
    }
}

/// Writes a datagram again from its parts and compares both.
fn datagram_again(datagram: &Datagram<'_>) {
    let mut out = vec![0; datagram.len()];
    let envelope =
        Envelope::new(&crate::packet::path(crate::packet::PEER_ADDRESS, crate::packet::OWN_ADDRESS), 0);
    let len = write_again(datagram, &envelope, &mut out).expect("as long as the one that was read");
    let again = Datagram::parse(out.get(..len).expect("inside"), &[]).expect("what was written parses");
    assert_eq!(len, datagram.len());
    assert_eq!(again.bth(), datagram.bth());
    assert_eq!(again.payload(), datagram.payload());
    assert_eq!(again.icrc(), again.compute_icrc(&envelope));
    assert_eq!(
        (again.reth(), again.aeth(), again.deth(), again.atomic_eth(), again.feth()),
        (datagram.reth(), datagram.aeth(), datagram.deth(), datagram.atomic_eth(), datagram.feth())
    );
    let mut short = vec![0; len - 1];
    assert!(write_again(datagram, &envelope, &mut short).is_err(), "one byte is missing");
}

fn write_again(
    datagram: &Datagram<'_>,
    envelope: &Envelope,
    out: &mut [u8],
) -> Result<usize, roce_packet::BufferTooSmall> {
    const PRESENT: &str = "the opcode has this header";
    let mut writer = DatagramWriter::new(out, datagram.bth())?;
    for header in datagram.info().headers.iter() {
        match header {
            HeaderSet::RDETH => writer.rdeth(&datagram.rdeth().expect(PRESENT))?,
            HeaderSet::DETH => writer.deth(&datagram.deth().expect(PRESENT))?,
            HeaderSet::XRCETH => writer.xrceth(&datagram.xrceth().expect(PRESENT))?,
            HeaderSet::FETH => writer.feth(&datagram.feth().expect(PRESENT))?,
            HeaderSet::RETH => writer.reth(&datagram.reth().expect(PRESENT))?,
            HeaderSet::ATOMIC_ETH => writer.atomic_eth(&datagram.atomic_eth().expect(PRESENT))?,
            HeaderSet::AETH => writer.aeth(&datagram.aeth().expect(PRESENT))?,
            HeaderSet::ATOMIC_ACK_ETH => writer.atomic_ack_eth(&datagram.atomic_ack_eth().expect(PRESENT))?,
            HeaderSet::IMMDT => writer.imm_dt(&datagram.imm_dt().expect(PRESENT))?,
            HeaderSet::IETH => writer.ieth(&datagram.ieth().expect(PRESENT))?,
            other => panic!("a header without a writer: {other:?}"),
        }
    }
    writer.payload_slot(datagram.payload_len())?.copy_from_slice(datagram.payload().0);
    writer.finish(envelope)
}

/// Reads the start of the input as a header, writes the header, and checks that reading it again gives the
/// same.
macro_rules! round_trip {
    ($data:expr, $($header:ty),+) => {$(
        if let Ok((header, rest)) = <$header>::parse($data) {
            assert!(rest.len() <= $data.len());
            let mut out = [0; <$header>::LEN];
            header.emit(&mut out);
            let (again, rest) = <$header>::parse(&out).expect("what was written parses");
            assert_eq!(again, header, stringify!($header));
            assert!(rest.is_empty());
        }
    )+};
}

fn headers(data: &[u8]) {
    round_trip!(data, Bth, Reth, Aeth, AtomicEth, AtomicAckEth, Deth, Rdeth, Xrceth, Feth, ImmDt, Ieth);
    round_trip!(data, EthernetHeader, VlanHeader);
    // These headers compare their length fields with the following bytes, which a header alone does not have.
    let _ = (Ipv4Header::parse(data), Ipv6Header::parse(data), UdpHeader::parse(data), Grh::parse(data));
}

/// Reads every field of every view, to find panics.
fn views(data: &[u8]) {
    macro_rules! show {
        ($($view:ty),+) => {$(
            if let Ok((view, rest)) = <$view>::from_prefix(data) {
                assert_eq!(rest.len() + size_of::<$view>(), data.len(), stringify!($view));
                std::hint::black_box(view);
            }
        )+};
    }
    show!(BthView, RethView, AethView, AtomicEthView, AtomicAckEthView, DethView, RdethView, XrcethView);
    show!(FethView, ImmDtView, IethView, EthernetView, VlanView, Ipv4View, Ipv6View, UdpView, GrhView);
    if let Ok((view, _)) = BthView::from_prefix(data) {
        let _ = (view.version(), view.reserved6(), view.reserved7(), view.fecn(), view.becn());
        assert!(view.opcode().info().is_none_or(|info| info.opcode == view.opcode()));
    }
    if let Ok((view, rest)) = Ipv4View::from_prefix(data) {
        let options = view.header_len().saturating_sub(Ipv4Header::LEN).min(rest.len());
        let _ = (view.checksum_is_valid(rest.get(..options).unwrap_or_default()), view.fragment_offset());
    }
    if let Ok((udp, rest)) = UdpHeader::parse(data) {
        let _ = udp.compute_checksum(crate::packet::PEER_ADDRESS, crate::packet::OWN_ADDRESS, rest);
    }
    if let Ok((aeth, _)) = Aeth::parse(data) {
        let byte = aeth.syndrome.to_byte();
        assert_eq!(roce_packet::Syndrome::from_byte(byte), aeth.syndrome);
    }
}
