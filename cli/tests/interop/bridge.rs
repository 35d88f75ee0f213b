//! A bridge on the wire between `roce` and the kernel. It marks packets, which our notification point answers
//! with CNPs, and loses packets, which the transport repairs.
//!
//! ```text
//!  h0 198.18.0.11 --- m0 [ roce bridge ] m1 --- bridge0 br0 --- the guest, 198.18.0.2
//! ```

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use roce::verbs::*;
use roce_capture::CaptureReader;
use roce_packet::{Bth, Frame, Opcode};
use serde_json::Value;

use crate::common::{Running, has_program, roce, tshark};
use crate::end::{End, Link, Op, Ours, Theirs, Work, connect};
use crate::namespaces::Namespace;
use crate::peer::Addresses;
use crate::setting::Setting;

const OURS: &str = "198.18.0.11";
/// Faults in both directions: 1 % of the packets is lost, and 5 % are marked, whether ECN capable or not.
const FAULTS: &str = "drop=1%;rule:chance=5%,action=force-ecn";
const LEN: usize = 256 << 10;
const MESSAGES: u64 = 4;
const SOURCE: usize = 0;
const TARGET: usize = 2 << 20;
/// DSCP of notifications.
const CNP_DSCP: &str = "48";

/// Two namespaces, which remove their interfaces when they are dropped.
struct Wire {
    middle: Namespace,
    end: Namespace,
}

impl Wire {
    fn new() -> Result<Self> {
        let root = "namespaces take root";
        let wire = Self { middle: Namespace::new().context(root)?, end: Namespace::new().context(root)? };
        for line in [
            "link add name bridge0 mtu 4200 type veth peer name m1 mtu 4200".to_owned(),
            format!("link set dev m1 netns {}", wire.middle.path()),
            "link set dev bridge0 master br0 up".to_owned(),
        ] {
            let output = Command::new("ip").args(line.split(' ')).output()?;
            ensure!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
        }
        wire.middle.ip(&[
            "link add name m0 mtu 4200 type veth peer name h0 mtu 4200",
            &format!("link set dev h0 netns {}", wire.end.path()),
            "link set dev m0 up",
            "link set dev m1 up",
        ]);
        wire.end.ip(&[&format!("address add {OURS}/15 dev h0"), "link set dev h0 up"]);
        Ok(wire)
    }

    /// Starts the bridge; waits until frames reach the guest and return.
    fn bridge(&self, theirs: IpAddr, pcap: &Path) -> Result<Running> {
        let mut command = roce();
        command
            .args(["bridge", "--left", "raw:m0", "--right", "raw:m1", "--json", "--quiet", "--seed", "11"]);
        command.args(["--fault", FAULTS, "--pcap"]).arg(pcap);
        let running = self.middle.run(move || Running::start(&mut command));
        let refused = move || {
            let result = TcpStream::connect_timeout(&SocketAddr::new(theirs, 9), Duration::from_millis(500));
            result.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        let end = Instant::now() + Duration::from_secs(20);
        while !self.end.run(refused) {
            ensure!(Instant::now() < end, "no frame passes the bridge");
        }
        Ok(running)
    }
}

/// Returns a description of the result.
pub(crate) fn run(setting: &Setting) -> Result<String> {
    ensure!(has_program("tshark"), "tshark is not installed");
    let theirs_at = setting.addresses(crate::case::Family::V4).theirs;
    let folder = tempfile::tempdir()?;
    let pcap = folder.path().join("bridge.pcapng");
    let wire = Wire::new()?;
    let bridge = wire.bridge(theirs_at, &pcap)?;
    let (mut peer, _) = setting.connect()?;
    let context = wire.end.run(|| {
        // This setting is for the sender. The notification point answers marks without it.
        let congestion = Congestion::parse("dcqcn")?;
        let context = Context::builder().congestion(congestion).open(&format!("udp:{OURS}"))?;
        anyhow::Ok(context)
    })?;
    let mut ours = Ours::new(&context, QpType::Rc, Access::LOCAL_WRITE | Access::REMOTE)?;
    let mut theirs = Theirs::new(&mut peer, "rc", false)?;
    let addresses = Addresses { ours: OURS.parse()?, theirs: theirs_at };
    let link = Link { addresses, mtu: PathMtu::Mtu1024, timeout: 15, retries: 7 };
    connect(&mut ours, &mut theirs, &link, QpType::Rc)?;
    transfer(&mut theirs, &mut ours).context("they send")?;
    let their_qpn = theirs.qpn();
    transfer(&mut ours, &mut theirs).context("we send")?;
    context.check_device()?;
    let counters = context.counters();
    drop((ours, context));
    bridge.interrupt();
    let finished = bridge.finish(600);
    ensure!(finished.success, "the bridge: {}", finished.stderr);
    let document: Value = serde_json::from_str(&finished.stdout)?;
    let count = |from: &str, name: &str| document[from]["counts"][name].as_u64().context(name.to_owned());
    for from in ["from_left", "from_right"] {
        for name in ["fault_dropped", "fault_marked", "retransmissions"] {
            ensure!(count(from, name)? > 0, "{name} {from} is 0: {document}");
        }
    }
    let cnps = count("from_left", "cnps")?;
    ensure!(counters.np_ecn_marked_roce_packets > 0 && cnps > 0, "no mark was answered: {counters:?}");
    ensure!(counters.np_cnp_sent == cnps, "{} CNPs were sent and {cnps} seen", counters.np_cnp_sent);
    ensure!(counters.rx_icrc_encapsulated == 0, "packets with a wrong ICRC arrived: {counters:?}");
    check_frames(&pcap, cnps)?;
    check_with_tshark(&pcap, cnps, their_qpn, theirs_at)?;
    Ok(format!(
        "{} KiB in each direction; {} of their packets lost, {} marked and answered by {cnps} CNPs; {} of ours lost, {} marked, \
         {} CNPs back",
        MESSAGES * LEN as u64 / 1024,
        count("from_right", "fault_dropped")?,
        counters.np_ecn_marked_roce_packets,
        count("from_left", "fault_dropped")?,
        count("from_left", "fault_marked")?,
        count("from_right", "cnps")?,
    ))
}

/// Sends WRITEs from one end to the other, one after the other, and compares each of them.
fn transfer(from: &mut dyn End, to: &mut dyn End) -> Result<()> {
    for wr_id in 0..MESSAGES {
        from.fill(SOURCE, LEN, 100 + wr_id)?;
        to.fill(TARGET, LEN, 1)?;
        from.post(&Work { wr_id, op: Op::Write, local: SOURCE, len: LEN, remote: TARGET })?;
        let done = from.succeed(Duration::from_secs(60))?;
        ensure!(done.wr_id == wr_id, "{done:?} instead of {wr_id}");
        to.check(TARGET, LEN, 100 + wr_id)?;
    }
    Ok(())
}

/// Checks that every RoCE packet has a correct ICRC, marked or not, and that `expected` packets are CNPs with
/// BECN.
fn check_frames(pcap: &Path, expected: u64) -> Result<()> {
    let mut reader = CaptureReader::open(pcap)?;
    let mut found = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        let Ok(frame) = Frame::parse(packet.bytes) else { continue };
        ensure!(frame.verify_icrc()?.is_good(), "a wrong ICRC: {:02x?}", packet.bytes);
        let (bth, _) = Bth::parse(frame.transport)?;
        if bth.opcode == Opcode::CNP {
            ensure!(bth.becn, "a CNP without BECN: {:02x?}", packet.bytes);
            found += 1;
        }
    }
    ensure!(found == expected, "{found} CNPs in the capture, {expected} counted");
    Ok(())
}

/// Checks that Wireshark, whose older versions do not name the opcode, finds the same CNPs: from us, to the
/// sender's queue pair, with the DSCP of notifications.
fn check_with_tshark(pcap: &Path, expected: u64, qpn: u32, theirs: IpAddr) -> Result<()> {
    let output = tshark()
        .arg("-r")
        .arg(pcap)
        .args(["-Y", "infiniband.bth.opcode == 0x81", "-T", "fields", "-e", "ip.src", "-e", "ip.dst"])
        .args(["-e", "ip.dsfield.dscp", "-e", "infiniband.bth.destqp"])
        .output()?;
    ensure!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let (theirs, qpn) = (theirs.to_string(), format!("0x{qpn:06x}"));
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [source, destination, dscp, to] = fields[..] else { anyhow::bail!("tshark wrote {line}") };
        ensure!(
            (source, destination, dscp, to) == (OURS, theirs.as_str(), CNP_DSCP, qpn.as_str()),
            "to tshark a CNP is {line}; expected is one to {qpn}"
        );
    }
    ensure!(
        text.lines().count() as u64 == expected,
        "tshark finds {} CNPs, not {expected}",
        text.lines().count()
    );
    Ok(())
}
