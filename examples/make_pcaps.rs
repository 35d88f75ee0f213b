//! Writes the captures in `pcaps/`: all operations, loss, missing receives and rejected requests.
//!
//! ```text
//! cargo run --example make_pcaps                     all of them, into pcaps/
//! cargo run --example make_pcaps FOLDER [NAME]...    these, into a folder that exists
//! ```
//!
//! Two contexts exchange the packets over a pair of devices in memory. Such a device does not carry RoCE v1,
//! VLAN tags, congestion notifications or pause frames, so the program builds those from the packets.

use std::error::Error;
use std::net::IpAddr;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use roce::device::OpenOptions;
use roce::device::memory::MemoryDevice;
use roce::device::pcap::CaptureFile;
use roce::verbs::*;
use roce_capture::{CaptureReader, Direction, PcapWriter};
use roce_fault::FaultInjector;
use roce_packet::{
    Cnp, Ecn, Encapsulation, Envelope, Frame, FrameHeaders, MacAddr, Path, PauseFrame, VlanTag, icrc,
    pause::PauseRequest,
};

type Outcome = Result<(), Box<dyn Error>>;
/// The file name of a capture, and the function that writes it.
type Recipe = (&'static str, fn(&FilePath) -> Outcome);

const RECIPES: &[Recipe] = &[
    ("rc-operations", |file| rc_operations(file, V4)),
    ("rc-operations-ipv6", |file| rc_operations(file, V6)),
    ("uc", uc),
    ("ud", ud),
    ("rc-loss", rc_loss),
    ("rc-read-loss", rc_read_loss),
    ("rc-rnr", rc_rnr),
    ("rc-refused", rc_refused),
    ("roce-v1", |file| reframed(file, roce_v1)),
    ("vlan", |file| reframed(file, tagged)),
    ("cnp", cnp),
    ("pause", pause),
];

const V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];
const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));
/// 2026-01-01, the time of frames that no device sent.
const NEW_YEAR_NS: u64 = 1_767_225_600 * 1_000_000_000;

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/pcaps").into());
    let names: Vec<String> = arguments.collect();
    for (name, make) in RECIPES {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            let file = PathBuf::from(&folder).join(format!("{name}.pcapng"));
            make(&file)?;
            println!("{}", file.display());
        }
    }
    Ok(())
}

/// One end of a connection.
struct Side {
    context: Context,
    region: MemoryRegion,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    qp: QueuePair,
}

impl Side {
    fn new(context: Context, qp_type: QpType) -> Result<Self, Box<dyn Error>> {
        let pd = context.alloc_pd()?;
        let region = pd.allocate(16 << 10, Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND)?;
        let text = b"All of this was sent by software alone. ";
        for offset in (0..4000).step_by(text.len()) {
            region.write(offset, text)?;
        }
        let cq = context.create_cq(64, None)?;
        let qp = pd.create_qp(&QueuePairOptions::new(qp_type, &cq))?;
        Ok(Self { context, region, cq, pd, qp })
    }

    /// Posts a request and waits for its completion, which may have any status.
    fn carry_out(&self, op: SendOp, elements: &[Sge]) -> Result<Wc, Box<dyn Error>> {
        self.qp.post_send(&SendWr::new(1, op, elements))?;
        self.next()
    }

    fn next(&self) -> Result<Wc, Box<dyn Error>> {
        let mut done = [Wc::default()];
        self.cq.wait(&mut done, PATIENCE)?;
        Ok(done[0])
    }

    fn receive(&self, len: usize) -> Outcome {
        Ok(self.qp.post_recv(&RecvWr { wr_id: 1, elements: &[self.region.element(8000..8000 + len)] })?)
    }

    fn first(&self, len: usize) -> [Sge; 1] {
        [self.region.element(0..len)]
    }

    fn remote(&self) -> (u64, RKey) {
        (self.region.addr() + 4096, self.region.rkey())
    }
}

/// Creates two connected ends. The packets of the near end are written to `file`.
fn pair(
    file: &FilePath,
    addresses: [&str; 2],
    qp_type: QpType,
    faults: [&str; 2],
) -> Result<(Side, Side), Box<dyn Error>> {
    let [a, b] = addresses.map(|text| text.parse::<IpAddr>());
    let (near_device, far) = MemoryDevice::pair(a?, b?)?;
    let interfaces = CaptureFile::create(file, &["near"])?;
    let injector = |plan: &str, seed| match plan {
        "" => Ok(None),
        plan => plan.parse().map(|plan| Some(FaultInjector::new(plan, seed))),
    };
    let options = OpenOptions {
        transmit_faults: injector(faults[0], 1)?,
        receive_faults: injector(faults[1], 2)?,
        capture: interfaces.into_iter().next().map(|file| Box::new(file) as _),
    };
    // No early retransmission, so that a busy machine does not change a capture.
    let near = Context::builder().seed(1).retransmission(Retransmission::IBTA).options(options);
    let near = near.attach(near_device)?;
    let far = Context::builder().seed(2).attach(far)?;
    let (near, far) = (Side::new(near, qp_type)?, Side::new(far, qp_type)?);
    if qp_type == QpType::Ud {
        near.qp.activate_datagram(1)?;
        far.qp.activate_datagram(0x1122)?;
    } else {
        let options = ConnectOptions::default().path_mtu(PathMtu::Mtu256).timeout(12).min_rnr_timer(10);
        near.qp.connect(&far.qp.endpoint()?, &options)?;
        far.qp.connect(&near.qp.endpoint()?, &options)?;
    }
    Ok((near, far))
}

/// Captures every RC operation, with every possible position of a packet in its message.
fn rc_operations(file: &FilePath, addresses: [&str; 2]) -> Outcome {
    let (near, far) = pair(file, addresses, QpType::Rc, ["", ""])?;
    let (remote_addr, rkey) = far.remote();
    let imm = ImmDt(*b"imm!");
    for len in [0, 21, 256, 700] {
        for op in [SendOp::Send, SendOp::SendWithImm(imm)] {
            far.receive(len)?;
            near.carry_out(op, &near.first(len))?;
            far.next()?;
        }
        near.carry_out(SendOp::Write { remote_addr, rkey }, &near.first(len))?;
        far.receive(0)?;
        near.carry_out(SendOp::WriteWithImm { remote_addr, rkey, imm }, &near.first(len))?;
        far.next()?;
        near.carry_out(SendOp::Read { remote_addr, rkey }, &[near.region.element(8000..8000 + len)])?;
    }
    let result = [near.region.element(8000..8008)];
    near.carry_out(SendOp::FetchAdd { remote_addr, rkey, add: 5 }, &result)?;
    near.carry_out(SendOp::CompareSwap { remote_addr, rkey, compare: 5, swap: 6 }, &result)?;
    near.carry_out(SendOp::AtomicWrite { remote_addr, rkey }, &near.first(8))?;
    let placement = FlushPlacement::GLOBAL_VISIBILITY;
    near.carry_out(SendOp::Flush { remote_addr, rkey, length: 256, placement, whole_region: false }, &[])?;
    for len in [21, 700] {
        let window = far.pd.alloc_window(WindowType::Type2)?;
        let new_rkey = RKey(window.rkey().0 ^ 0x11);
        let (region, access) = (far.region.lkey(), Access::REMOTE_WRITE);
        let binding = WindowBinding { region, addr: remote_addr, len: 64, access };
        far.carry_out(SendOp::BindWindow { window: window.rkey(), new_rkey, binding }, &[])?;
        far.receive(len)?;
        near.carry_out(SendOp::SendWithInvalidate(new_rkey), &near.first(len))?;
        far.next()?;
    }
    Ok(())
}

fn uc(file: &FilePath) -> Outcome {
    let (near, far) = pair(file, V4, QpType::Uc, ["", ""])?;
    let (remote_addr, rkey) = far.remote();
    let imm = ImmDt(*b"imm!");
    for len in [0, 21, 700] {
        for op in [SendOp::Send, SendOp::SendWithImm(imm)] {
            far.receive(len)?;
            near.carry_out(op, &near.first(len))?;
            far.next()?;
        }
        near.carry_out(SendOp::Write { remote_addr, rkey }, &near.first(len))?;
        far.receive(0)?;
        near.carry_out(SendOp::WriteWithImm { remote_addr, rkey, imm }, &near.first(len))?;
        far.next()?;
    }
    Ok(())
}

fn ud(file: &FilePath) -> Outcome {
    let (near, far) = pair(file, V4, QpType::Ud, ["", ""])?;
    let group: IpAddr = "239.1.2.3".parse()?;
    far.qp.attach_multicast(group)?;
    let path = PathOptions::default();
    for (address, qpn) in [(V4[1].parse()?, far.qp.number()), (group, Qpn::MULTICAST)] {
        let destination = near.context.create_address_handle(address, qpn, 0x1122, &path)?;
        for (op, len) in [(SendOp::Send, 0), (SendOp::Send, 700), (SendOp::SendWithImm(ImmDt(*b"imm!")), 21)]
        {
            far.receive(len + 40)?;
            near.qp.post_send(&SendWr::new(1, op, &near.first(len)).to(&destination))?;
            near.next()?;
            far.next()?;
        }
    }
    Ok(())
}

/// Loses the third packet of a WRITE, then the only packet of a SEND, for which no NAK arrives.
fn rc_loss(file: &FilePath) -> Outcome {
    let plan = "rule:rpsn=2,pass=1,action=drop;rule:rpsn=8,pass=1,action=drop";
    let (near, far) = pair(file, V4, QpType::Rc, [plan, ""])?;
    let (remote_addr, rkey) = far.remote();
    near.carry_out(SendOp::Write { remote_addr, rkey }, &near.first(8 * 256))?;
    far.receive(21)?;
    near.carry_out(SendOp::Send, &near.first(21))?;
    far.next()?;
    Ok(())
}

/// Loses a READ response.
fn rc_read_loss(file: &FilePath) -> Outcome {
    let plan = "rule:rpsn=3,pass=1,action=drop";
    let (near, far) = pair(file, V4, QpType::Rc, ["", plan])?;
    let (remote_addr, rkey) = far.remote();
    near.carry_out(SendOp::Read { remote_addr, rkey }, &[near.region.element(8000..8000 + 8 * 256)])?;
    Ok(())
}

/// Sends to a receiver that is not ready, twice.
fn rc_rnr(file: &FilePath) -> Outcome {
    let (near, far) = pair(file, V4, QpType::Rc, ["", ""])?;
    near.qp.post_send(&SendWr::new(1, SendOp::Send, &near.first(21)))?;
    while near.context.counters().rnr_nak_retry_err < 2 {
        near.context.progress();
    }
    far.receive(21)?;
    near.next()?;
    Ok(())
}

/// Sends a WRITE with a wrong key, and a SEND that is too long for its receive.
fn rc_refused(file: &FilePath) -> Outcome {
    let (near, far) = pair(file, V4, QpType::Rc, ["", ""])?;
    let (remote_addr, rkey) = far.remote();
    near.carry_out(SendOp::Write { remote_addr, rkey: RKey(rkey.0 ^ 1) }, &near.first(21))?;
    let qps = [&near, &far].map(|side| side.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &side.cq)));
    let [a, b] = qps;
    let (a, b) = (a?, b?);
    a.connect(&b.endpoint()?, &ConnectOptions::default())?;
    b.connect(&a.endpoint()?, &ConnectOptions::default())?;
    b.post_recv(&RecvWr { wr_id: 1, elements: &[far.region.element(0..20)] })?;
    a.post_send(&SendWr::new(1, SendOp::Send, &near.first(21)))?;
    near.next()?;
    Ok(())
}

/// The time, direction and bytes of each frame.
type Frames = Vec<(u64, Direction, Vec<u8>)>;

/// Returns the frames of [`rc_operations`] with their times.
fn operation_frames(beside: &FilePath) -> Result<Frames, Box<dyn Error>> {
    let scratch = beside.with_extension("scratch");
    rc_operations(&scratch, V4)?;
    let mut reader = CaptureReader::open(&scratch)?;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        frames.push((packet.time_ns.unwrap_or(NEW_YEAR_NS), packet.direction, packet.bytes.to_vec()));
    }
    std::fs::remove_file(&scratch)?;
    Ok(frames)
}

fn roce_v1(path: &Path) -> Path {
    Path { encapsulation: Encapsulation::RoceV1, source_port: 0, ..*path }
}

fn tagged(path: &Path) -> Path {
    Path { vlan: Some(VlanTag { pcp: 3, dei: false, vid: 100 }), ..*path }
}

/// Writes the frames of [`rc_operations`] on another path.
fn reframed(file: &FilePath, onto: fn(&Path) -> Path) -> Outcome {
    let mut writer = PcapWriter::create(file, &["near"])?;
    for (time_ns, direction, bytes) in operation_frames(file)? {
        let frame = Frame::parse(&bytes)?;
        let (covered, _) = frame.transport.split_last_chunk::<4>().ok_or("a frame without an ICRC")?;
        let mut covered = covered.to_vec();
        let path = onto(&frame.path());
        let icrc = icrc::compute(&Envelope::new(&path, 0), &covered, &[]);
        covered.extend(icrc.to_le_bytes());
        let headers = (frame.headers.destination, frame.headers.source);
        writer.write(0, time_ns, direction, None, &whole_frame(&path, headers, &covered)?)?;
    }
    Ok(writer.flush()?)
}

/// Puts all headers in front of a datagram whose ICRC is for Identification 0.
fn whole_frame(
    path: &Path,
    (to, from): (MacAddr, MacAddr),
    datagram: &[u8],
) -> Result<Vec<u8>, Box<dyn Error>> {
    let headers = FrameHeaders::new(path, 0, to, from, datagram.len())?;
    let frame = Frame { headers, transport: datagram, trailer: &[] };
    let mut out = vec![0; frame.len_bytes()];
    frame.emit(&mut out).map_err(|_| "a frame longer than it said")?;
    Ok(out)
}

/// Writes a packet that a switch marked and the resulting notification, over IPv4, over IPv6 and with a VLAN
/// tag.
fn cnp(file: &FilePath) -> Outcome {
    let frames = operation_frames(file)?;
    // The longest packet.
    let (.., bytes) = frames.iter().max_by_key(|(.., bytes)| bytes.len()).ok_or("no packet")?;
    let frame = Frame::parse(bytes)?;
    let bth = *frame.datagram()?.bth();
    let (covered, _) = frame.transport.split_last_chunk::<4>().ok_or("a frame without an ICRC")?;
    let (to, from) = (frame.headers.destination, frame.headers.source);
    let v4 = frame.path();
    let v6 = Path { source: V6[0].parse()?, destination: V6[1].parse()?, flow_label: 0x12345, ..v4 };
    let mut writer = PcapWriter::create(file, &["near"])?;
    for (number, path) in (0_u64..).zip([v4, v6, tagged(&v4)]) {
        let time_ns = NEW_YEAR_NS + number * 100_000;
        let data = path.with_ecn(Ecn::CongestionExperienced);
        let mut datagram = covered.to_vec();
        datagram.extend(icrc::compute(&Envelope::new(&data, 0), covered, &[]).to_le_bytes());
        let whole = whole_frame(&data, (to, from), &datagram)?;
        writer.write(0, time_ns, Direction::Outbound, Some("marked on its way"), &whole)?;

        let answer = Cnp::path(&data, roce_packet::DEFAULT_CNP_DSCP, roce_packet::DEFAULT_CNP_PCP);
        let mut datagram = [0; Cnp::LEN];
        // The sender's queue pair has another number here than in the rest of the capture, because only the
        // two ends know the number.
        Cnp { dest_qp: Qpn::new(0x0a_0b0c), p_key: bth.p_key }
            .emit(&Envelope::new(&answer, 0), &mut datagram);
        let whole = whole_frame(&answer, (from, to), &datagram)?;
        writer.write(0, time_ns + 4_000, Direction::Inbound, Some("slow down"), &whole)?;
    }
    Ok(writer.flush()?)
}

/// Writes pauses of the whole link and of priorities, and their ends.
fn pause(file: &FilePath) -> Outcome {
    let mut writer = PcapWriter::create(file, &["near"])?;
    let only = |priority: usize, quanta| {
        let mut all = [None; 8];
        all[priority] = Some(quanta);
        PauseRequest::PerPriority(all)
    };
    let requests = [
        PauseRequest::All(u16::MAX),
        PauseRequest::All(0),
        only(3, 0x0400),
        only(3, 0),
        PauseRequest::PerPriority([Some(1), None, Some(2), None, Some(3), None, Some(4), None]),
        PauseRequest::PerPriority([Some(u16::MAX); 8]),
    ];
    let source = MacAddr([0x02, 0, 192, 0, 2, 2]);
    for (number, request) in (0..).zip(requests) {
        let mut bytes = [0; PauseFrame::LEN];
        PauseFrame { source, request }.emit(&mut bytes);
        writer.write(0, NEW_YEAR_NS + number * 10_000, Direction::Inbound, None, &bytes)?;
    }
    Ok(writer.flush()?)
}
