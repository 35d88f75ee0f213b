//! Tests of when an acknowledgement leaves relative to the requests of its queue pair.

use roce_packet::{Datagram, Opcode, PathMtu, Qpn};
use roce_sim::pair::{Pair, Settings, Side};
use roce_transport::{
    Allowed, Batch, Engine, EngineConfig, Identification, Instant, Pending, QpType, Received, SendOp, SendWr,
    Transmit, TxSlot,
};

const NOW: Instant = Instant::from_nanos(1_000);

/// Two connected engines whose packets the test moves.
struct Ends {
    pair: Pair,
    qps: [Qpn; 2],
}

impl Ends {
    fn new() -> Self {
        let mut pair = Pair::with_config(EngineConfig::from_number(5), 1 << 20);
        let settings = Settings { mtu: PathMtu::Mtu4096, ..Settings::default() };
        let (a, b) = pair.connect_with(QpType::Rc, &settings);
        Self { pair, qps: [a, b] }
    }

    fn engine(&mut self, side: Side) -> &mut Engine {
        &mut self.pair.host_mut(side).engine
    }

    /// Posts a WRITE or a READ without sending it.
    fn post(&mut self, side: Side, len: usize, is_read: bool) {
        let peer = self.pair.host(side.other());
        let (remote_addr, rkey) = (peer.memory_range(0, len).addr, peer.rkey());
        let op =
            if is_read { SendOp::Read { remote_addr, rkey } } else { SendOp::Write { remote_addr, rkey } };
        let element = [self.pair.host(side).memory_range(0, len)];
        let qpn = self.qps[usize::from(side == Side::B)];
        self.engine(side).post_send(NOW, qpn, &SendWr::new(1, op, &element)).unwrap();
    }

    /// Delivers the pending packets of one side to the other.
    fn carry(&mut self, from: Side) {
        let mut buffer = [0; 4200];
        while let Some(sent) =
            self.engine(from).poll_transmit(NOW, &mut TxSlot::new(&mut buffer), Allowed::All)
        {
            let identification =
                Identification::Known { identification: sent.identification, dont_fragment: true };
            let (head, tail) = (&buffer[..sent.len], &[][..]);
            let received = Received::in_pieces(sent.path, identification, [head, tail]);
            self.engine(from.other()).handle(NOW, &received);
        }
    }

    /// Returns ends of which B has a pending acknowledgement and last sent a request.
    fn owing() -> Self {
        let mut ends = Self::new();
        ends.post(Side::B, 8, false);
        ends.carry(Side::B);
        ends.carry(Side::A);
        ends.post(Side::A, 8, false);
        ends.carry(Side::A);
        ends
    }

    /// Returns the packets that B sends through a device that joins datagrams, and whether each joined the
    /// previous one.
    fn sent_by_b(&mut self) -> Vec<(Opcode, bool)> {
        let mut batch = Batch::EMPTY;
        let mut sent = Vec::new();
        let mut buffer = [0; 4200];
        while let Some(transmit) = self.engine(Side::B).poll_transmit(
            NOW,
            &mut TxSlot { buffer: &mut buffer, batch: &batch },
            Allowed::All,
        ) {
            let is_joined = batch.accepts(&transmit);
            match is_joined {
                true => batch.push(&transmit),
                false => batch = Batch::start(&transmit, 64, 65_000),
            }
            sent.push((opcode(&buffer, &transmit), is_joined));
        }
        sent
    }
}

fn opcode(buffer: &[u8], transmit: &Transmit) -> Opcode {
    Datagram::parse(&buffer[..transmit.len], &[]).unwrap().bth().opcode
}

#[test]
fn an_acknowledgement_is_the_end_of_the_superpacket_of_a_request() {
    let mut ends = Ends::owing();
    ends.post(Side::B, 8, false);
    let expected = [(Opcode::RC_RDMA_WRITE_ONLY, false), (Opcode::RC_ACKNOWLEDGE, true)];
    assert_eq!(ends.sent_by_b(), expected);
    assert_eq!(ends.sent_by_b(), []);
}

#[test]
fn an_acknowledgement_waits_for_no_more_requests_than_a_superpacket_has() {
    let mut ends = Ends::owing();
    ends.post(Side::B, 40 * 4096, false);
    let sent = ends.sent_by_b();
    let place = sent.iter().position(|(opcode, _)| *opcode == Opcode::RC_ACKNOWLEDGE).unwrap();
    assert_eq!((sent.len(), sent[place].1), (41, true));
    // The first packet has a RETH, so it forms a superpacket with the second one alone.
    assert_eq!(place, 2 + 14);
    // Messages that do not join, because each is longer than the previous one.
    let mut ends = Ends::owing();
    (0..40).for_each(|number| ends.post(Side::B, 8 + 4 * number, false));
    let sent = ends.sent_by_b();
    let place = sent.iter().position(|(opcode, _)| *opcode == Opcode::RC_ACKNOWLEDGE).unwrap();
    assert!(sent.len() == 41 && place <= 15, "{place}");
}

/// Regression: sixteen small requests and an acknowledgement left in two superpackets.
#[test]
fn an_acknowledgement_waits_for_the_requests_of_its_superpacket_and_for_no_other_turn() {
    let quantum = EngineConfig::from_number(5).quantum as usize;
    for (requests, expected) in [(16, 16), (70, quantum - 1)] {
        let mut ends = Ends::owing();
        (0..requests).for_each(|_| ends.post(Side::B, 8, false));
        let sent = ends.sent_by_b();
        let place = sent.iter().position(|(opcode, _)| *opcode == Opcode::RC_ACKNOWLEDGE).unwrap();
        assert_eq!((sent.len(), place), (requests + 1, expected));
        assert!(sent[1..=place].iter().all(|(_, is_joined)| *is_joined));
    }
}

#[test]
fn requests_of_queue_pairs_with_one_path_form_a_superpacket_before_their_acknowledgements() {
    let mut ends = Ends::new();
    let settings = Settings { mtu: PathMtu::Mtu4096, ..Settings::default() };
    let pairs = [ends.qps, ends.pair.connect_with(QpType::Rc, &settings).into()];
    let post = |ends: &mut Ends, side, requests: usize| {
        for qps in pairs {
            ends.qps = qps;
            (0..requests).for_each(|_| ends.post(side, 8, false));
        }
    };
    post(&mut ends, Side::B, 1);
    ends.carry(Side::B);
    ends.carry(Side::A);
    post(&mut ends, Side::A, 1);
    ends.carry(Side::A);
    post(&mut ends, Side::B, 4);
    let (request, acknowledgement) = (Opcode::RC_RDMA_WRITE_ONLY, Opcode::RC_ACKNOWLEDGE);
    let mut expected = vec![(request, false)];
    expected.extend([(request, true); 7]);
    expected.extend([(acknowledgement, true), (acknowledgement, false)]);
    assert_eq!(ends.sent_by_b(), expected);
}

/// Only the first of three queue pairs owes an acknowledgement; the others have requests for several turns.
#[test]
fn an_acknowledgement_leaves_its_place_to_others_once() {
    let mut ends = Ends::owing();
    let settings = Settings { mtu: PathMtu::Mtu4096, ..Settings::default() };
    let quantum = EngineConfig::from_number(5).quantum as usize;
    for _ in 0..2 {
        ends.qps = ends.pair.connect_with(QpType::Rc, &settings).into();
        (0..3 * quantum).for_each(|_| ends.post(Side::B, 8, false));
    }
    let sent = ends.sent_by_b();
    let place = sent.iter().position(|(opcode, _)| *opcode == Opcode::RC_ACKNOWLEDGE).unwrap();
    assert!(sent.len() == 6 * quantum + 1 && place <= 2 * quantum, "{place}");
}

#[test]
fn requests_leave_alone_and_the_acknowledgement_stays() {
    let mut ends = Ends::owing();
    assert_eq!(ends.engine(Side::B).pending(NOW), Pending::Acknowledgements);
    ends.post(Side::B, 8, false);
    let b = ends.engine(Side::B);
    assert_eq!(b.pending(NOW), Pending::More, "a request as well");
    let mut buffer = [0; 4200];
    let first = b.poll_transmit(NOW, &mut TxSlot::new(&mut buffer), Allowed::Requests).unwrap();
    assert_eq!(opcode(&buffer, &first), Opcode::RC_RDMA_WRITE_ONLY);
    assert_eq!(b.poll_transmit(NOW, &mut TxSlot::new(&mut buffer), Allowed::Requests), None);
    assert_eq!(b.pending(NOW), Pending::Acknowledgements);
    let second = b.poll_transmit(NOW, &mut TxSlot::new(&mut buffer), Allowed::All).unwrap();
    assert_eq!(opcode(&buffer, &second), Opcode::RC_ACKNOWLEDGE);
    assert_eq!(b.pending(NOW), Pending::Turns, "nothing");
    assert_eq!(b.poll_transmit(NOW, &mut TxSlot::new(&mut buffer), Allowed::All), None);
    assert_eq!(b.pending(NOW), Pending::Nothing);
}

#[test]
fn responses_and_refusals_are_more_than_acknowledgements() {
    let mut ends = Ends::owing();
    ends.post(Side::A, 8, true);
    ends.carry(Side::A);
    assert_eq!(ends.engine(Side::B).pending(NOW), Pending::More, "a READ response");
    let mut ends = Ends::new();
    let op = SendOp::Send;
    let (qpn, element) = (ends.qps[0], [ends.pair.host(Side::A).memory_range(0, 8)]);
    ends.engine(Side::A).post_send(NOW, qpn, &SendWr::new(1, op, &element)).unwrap();
    ends.carry(Side::A);
    assert_eq!(ends.engine(Side::B).pending(NOW), Pending::More, "an RNR NAK");
}
