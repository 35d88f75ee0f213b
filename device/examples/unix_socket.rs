//! An Ethernet device of one's own: a port that carries frames over a Unix socket, as virtual machines and
//! network simulators do, and a host with a fixed table of neighbours. Two such devices exchange a datagram.
//!
//! ```sh
//! cargo run -p roce-device --features framed --example unix_socket
//! ```

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use roce_device::framed::FramedDevice;
use roce_device::framed::port::{FRAME_ROOM, FramePort, Incoming, Outgoing, PortRecord};
use roce_device::framed::{Host, Resolution, Unreachable};
use roce_device::{Device, Encapsulation, FrameSettings, Instant, MacAddr, Path, Qpn, Transmit};

/// Sends each frame as one datagram of a Unix socket.
struct SocketPort {
    record: PortRecord,
    socket: UnixDatagram,
    slot: Vec<u8>,
    buffer: Vec<u8>,
    /// What was committed and is not sent yet; it lies in the slot.
    pending: Option<Outgoing>,
    tx_frames: u64,
    rx_frames: u64,
}

impl SocketPort {
    fn new(socket: UnixDatagram, mac: MacAddr) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let record = PortRecord {
            kind: "unix",
            interface: "a Unix socket".to_owned(),
            mac,
            link_mtu: 4200,
            max_segments: 1,
            bits_per_second: None,
        };
        let room = || vec![0; FRAME_ROOM];
        Ok(Self { record, socket, slot: room(), buffer: room(), pending: None, tx_frames: 0, rx_frames: 0 })
    }
}

impl FramePort for SocketPort {
    fn record(&self) -> &PortRecord {
        &self.record
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        // Full until `flush` has sent the frame that lies in the only slot.
        self.pending.is_none().then_some(&mut self.slot[..])
    }

    fn commit(&mut self, frame: Outgoing) {
        self.pending = Some(frame);
    }

    fn flush(&mut self, _now: Instant) -> io::Result<()> {
        let Some(frame) = self.pending.take() else { return Ok(()) };
        match self.socket.send(&self.slot[frame.bytes.clone()]) {
            Ok(_) => self.tx_frames += 1,
            // The frame stays and is sent by a later call.
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.pending = Some(frame),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize> {
        let len = match self.socket.recv(&mut self.buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        self.rx_frames += 1;
        sink(&Incoming { head: &self.buffer[..len], tail: &[], segment_len: None, vlan: None });
        Ok(1)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("unix_tx_frames", self.tx_frames);
        visit("unix_rx_frames", self.rx_frames);
    }
}

/// Knows all its neighbours from the start.
struct StaticHost {
    addresses: Vec<IpAddr>,
    neighbours: Vec<(IpAddr, MacAddr)>,
}

impl Host for StaticHost {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn resolve(&mut self, _now: Instant, destination: IpAddr) -> Resolution {
        let found = self.neighbours.iter().find(|(address, _)| *address == destination);
        found.map_or(Resolution::Failed(Unreachable::NoRoute), |(_, mac)| Resolution::Known(*mac))
    }

    fn set_multicast(&mut self, _group: IpAddr, _join: bool) -> io::Result<()> {
        Ok(())
    }
}

fn device(socket: UnixDatagram, own: End, peer: End) -> io::Result<FramedDevice> {
    let host = StaticHost { addresses: vec![own.0], neighbours: vec![peer] };
    Ok(FramedDevice::new(Box::new(SocketPort::new(socket, own.1)?), Box::new(host), FrameSettings::default()))
}

/// The addresses of one end.
type End = (IpAddr, MacAddr);

fn main() -> io::Result<()> {
    let near: End = (IpAddr::from([192, 0, 2, 1]), MacAddr([2, 0, 0, 0, 0, 1]));
    let far: End = (IpAddr::from([192, 0, 2, 2]), MacAddr([2, 0, 0, 0, 0, 2]));
    let (a, b) = UnixDatagram::pair()?;
    let (mut sender, mut receiver) = (device(a, near, far)?, device(b, far, near)?);

    let path = Path {
        encapsulation: Encapsulation::RoceV2,
        source: near.0,
        destination: far.0,
        source_port: 49152,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    };
    // An engine writes BTH to ICRC into the slot; any bytes do here.
    let datagram = b"from BTH to ICRC";
    let slot = sender.slot().expect("a new device has room");
    slot.buffer[..datagram.len()].copy_from_slice(datagram);
    sender.commit(Instant::ZERO, &Transmit::new(path, Qpn::default(), datagram.len(), 0));
    sender.flush(Instant::ZERO)?;

    let count = receiver.receive(Instant::ZERO, &mut |received| {
        assert_eq!((received.head(), received.path), (&datagram[..], path));
        println!(
            "{} bytes from {} to {}",
            received.head().len(),
            received.path.source,
            received.path.destination
        );
    })?;
    assert_eq!(count, 1, "the datagram arrives");
    receiver.counters(&mut |name, value| {
        if value > 0 {
            println!("{name} {value}");
        }
    });
    Ok(())
}
