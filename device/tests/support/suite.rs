//! The tests of each port that carries frames on an interface of the kernel without a program there: `raw`
//! and `pnet`. Each module of such a port has them by [`port_suite`].

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant as Clock};

use roce_device::framed::port::FramePort;
use roce_device::framed::{FrameSettings, FramedDevice, Host};
use roce_device::{Device, OpenError};
use roce_testing::{Cable, Namespace};
use roce_transport::Instant;
use socket2::{Domain, Protocol, Socket, Type};

use crate::ports::{
    Arrived, PLAIN, Shape, TAG, check_devices, check_kinds, check_lengths, check_paced_way, check_way, frame,
    is_to_be_tried_again, port_counter, put, receive, send, what_is_taken,
};
use crate::testing::{counter, datagram, path, put as put_datagram};

/// A port, and its host with the addresses of the kernel.
type Opened = (Box<dyn FramePort>, Box<dyn Host>);

/// A kind of port.
#[derive(Clone, Copy)]
pub(crate) struct PortKind {
    pub(crate) name: &'static str,
    pub(crate) open: fn(&str) -> Result<Opened, OpenError>,
    /// Whether the port reports the tag that the kernel removes from a frame.
    pub(crate) reports_tags: bool,
    /// The number of frames for which the kernel has room while nobody receives.
    pub(crate) at_once: usize,
}

/// A cable with a port at each end.
struct Rig {
    near: Box<dyn FramePort>,
    far: Box<dyn FramePort>,
    _hosts: [Box<dyn Host>; 2],
    cable: Cable,
}

impl PortKind {
    fn try_open(self, namespace: &Namespace, interface: &str) -> Result<Opened, OpenError> {
        let spec = format!("{}:{interface}", self.name);
        namespace.run(move || (self.open)(&spec))
    }

    #[track_caller]
    fn open_in(self, namespace: &Namespace, interface: &str) -> Opened {
        self.try_open(namespace, interface).unwrap()
    }

    fn rig(self, mtu: usize) -> Option<Rig> {
        let cable = Cable::new(mtu)?;
        let (near, near_host) = self.open_in(&cable.near, "v0");
        let (far, far_host) = self.open_in(&cable.far, "v1");
        Some(Rig { near, far, _hosts: [near_host, far_host], cable })
    }

    /// Returns the value of the counter with this end of its name.
    fn counter(self, port: &dyn FramePort, name: &str) -> u64 {
        port_counter(port, &format!("{}_{name}", self.name))
    }

    #[track_caller]
    fn assert_clean(self, rig: &Rig) {
        for port in [&rig.near, &rig.far] {
            for name in ["rx_overflow", "rx_too_long", "tx_refused", "tx_gave_up", "tx_too_long"] {
                assert_eq!(self.counter(port.as_ref(), name), 0, "{name}");
            }
        }
    }

    pub(crate) fn every_length_arrives(self) {
        let Some(mut rig) = self.rig(4200) else { return };
        assert_eq!(rig.near.record().kind, self.name);
        assert_eq!(rig.near.record().link_mtu, 4200);
        assert_eq!(rig.near.record().bits_per_second, Some(10_000_000_000));
        check_lengths(rig.near.as_mut(), rig.far.as_mut(), self.at_once);
        self.assert_clean(&rig);
    }

    pub(crate) fn every_kind_of_frame_arrives(self) {
        let Some(mut rig) = self.rig(4200) else { return };
        check_kinds(rig.near.as_mut(), rig.far.as_mut(), self.reports_tags);
    }

    pub(crate) fn only_roce_for_us_is_taken(self) {
        let Some(mut rig) = self.rig(1500) else { return };
        for (name, mut bytes, mut is_taken) in what_is_taken() {
            send(rig.near.as_mut(), std::slice::from_ref(&bytes));
            if !self.reports_tags && bytes[12..14] == [0x81, 0] {
                // The port sees the frame without its outer tag.
                bytes.drain(12..16);
                is_taken = true;
            }
            println!("{name}");
            let arrived = receive(rig.far.as_mut(), usize::from(is_taken));
            let expected = if is_taken { vec![Arrived { bytes, segment_len: None }] } else { Vec::new() };
            assert_eq!(arrived, expected, "{name}");
        }
    }

    pub(crate) fn bursts_of_thousands_are_kept(self) {
        let Some(mut rig) = self.rig(4200) else { return };
        let frames: Vec<Vec<u8>> = (0..3000).map(|psn| frame(PLAIN, psn, 1024)).collect();
        check_paced_way(rig.near.as_mut(), rig.far.as_mut(), &frames, self.at_once);
        self.assert_clean(&rig);
        assert_eq!(self.counter(rig.near.as_ref(), "tx_frames"), 3000);
        assert_eq!(self.counter(rig.far.as_ref(), "rx_frames"), 3000);
    }

    pub(crate) fn the_rest_of_the_traffic_goes_on(self) {
        let Some(rig) = self.rig(1500) else { return };
        check_other_traffic(&rig.cable);
    }

    pub(crate) fn the_kernel_does_not_call_the_port_unreachable(self) {
        let Some(mut rig) = self.rig(1500) else { return };
        for (address, any) in [("198.18.0.1:4791", "0.0.0.0:0"), ("[2001:db8::1]:4791", "[::]:0")] {
            let socket = rig.cable.far.run(move || UdpSocket::bind(any)).unwrap();
            socket.connect(address).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            socket.send(&[0; 64]).unwrap();
            let error = socket.recv(&mut [0; 9]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{address}: {error}");
            assert_eq!(receive(rig.near.as_mut(), 1).len(), 1);
        }
    }

    pub(crate) fn what_is_too_long_is_dropped_and_counted(self) {
        let Some(mut rig) = self.rig(1500) else { return };
        let frames = [frame(PLAIN, 0, 2048), frame(PLAIN, 1, 1024)];
        send(rig.near.as_mut(), &frames);
        assert_eq!(receive(rig.far.as_mut(), 1)[0].bytes, frames[1]);
        assert_eq!(self.counter(rig.near.as_ref(), "tx_too_long"), 1);
    }

    pub(crate) fn an_interface_that_goes_down_comes_back(self) {
        let Some(mut rig) = self.rig(1500) else { return };
        let (near, far) = (rig.near.as_mut(), rig.far.as_mut());
        rig.cable.near.ip(&["link set v0 down"]);
        let kept = frame(PLAIN, 0, 64);
        assert!(put(near, &kept, None));
        near.flush(Instant::ZERO).unwrap();
        assert!(is_to_be_tried_again(near, Instant::ZERO));
        assert!(receive(far, 0).is_empty());
        rig.cable.near.ip(&["link set v0 up"]);
        rig.cable.settle();
        send(near, &[frame(PLAIN, 1, 64)]);
        assert_eq!(receive(far, 2)[0].bytes, kept);
        let back = Shape { to_far: false, ..PLAIN };
        check_way(far, near, &[frame(back, 2, 64)]);
        // A deleted interface is an error.
        rig.cable.near.ip(&["link delete v0"]);
        assert!(put(near, &frame(PLAIN, 3, 64), None));
        assert!(near.flush(Instant::ZERO).is_err());
    }

    pub(crate) fn a_deleted_interface_is_an_error_for_a_port_that_only_receives(self) {
        let Some(mut rig) = self.rig(1500) else { return };
        rig.cable.near.ip(&["link set v0 down"]);
        assert!(receive(rig.near.as_mut(), 0).is_empty(), "it may come up again");
        rig.cable.near.ip(&["link delete v0"]);
        let end = Clock::now() + Duration::from_secs(10);
        let error = loop {
            match rig.near.receive(&mut |_| panic!("a frame")) {
                Err(error) => break error,
                Ok(_) => assert!(Clock::now() < end, "no call reports that the interface is deleted"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(error.to_string().contains("interface has been deleted"), "{error}");
    }

    pub(crate) fn errors_say_what_to_do_next(self) {
        let Some(cable) = Cable::new(1500) else { return };
        let refusal = |interface| match self.try_open(&cable.near, interface) {
            Ok(_) => panic!("{interface} was opened"),
            Err(error) => error.to_string(),
        };
        assert!(refusal("eth7").contains("there is no interface `eth7`; this machine has v0"));
        assert!(refusal("lo").contains("use udp:127.0.0.1"));
        assert!(refusal("v0,fast").contains("`fast`"));
        let _first = self.open_in(&cable.near, "v0");
        assert!(refusal("v0").contains("UDP port 4791 of 198.18.0.1 is taken"));
    }

    pub(crate) fn whole_devices_talk(self, settings: FrameSettings) {
        let Some(cable) = Cable::new(4200) else { return };
        let mut devices = [(&cable.near, "v0"), (&cable.far, "v1")].map(|(namespace, name)| {
            let (port, host) = self.open_in(namespace, name);
            FramedDevice::new(port, host, settings)
        });
        let [near, far] = &mut devices;
        check_devices(near, far);
        if self.name == "raw" {
            let superframes = counter(far, "raw_rx_superframes");
            assert_eq!(superframes > 0, settings == FrameSettings::default(), "{superframes} superframes");
        }
    }

    pub(crate) fn what_could_not_be_reached_once_can_be_reached_later(self) {
        let Some(cable) = Cable::new(1500) else { return };
        let (port, host) = self.open_in(&cable.near, "v0");
        let mut device = FramedDevice::new(port, host, FrameSettings::default());
        let way = |to: &str| path("198.18.0.1".parse().unwrap(), to.parse().unwrap());
        let at = |second: u64| Instant::from_nanos(second * 1_000_000_000);

        // A route that is added later.
        let far = way("198.19.0.1");
        assert!(device.bind_source_port(&far, 49_152).is_err());
        cable.near.ip(&["route add 198.19.0.0/16 via 198.18.0.2"]);
        device.flush(at(1)).unwrap();
        device.bind_source_port(&far, 49_152).unwrap();

        // A peer that is added later.
        let near = way("198.18.0.3");
        device.bind_source_port(&near, 49_152).unwrap();
        device.flush(at(4)).unwrap();
        let error = device.bind_source_port(&near, 49_152).unwrap_err();
        assert!(error.to_string().contains("198.18.0.3 does not answer"), "{error}");
        cable.far.ip(&["address add 198.18.0.3/24 dev v1"]);
        device.flush(at(5)).unwrap();
        device.bind_source_port(&near, 49_152).unwrap();
        let mut now = at(5);
        put_datagram(&mut device, now, &near, &datagram(&near, 0, 64));
        let end = Clock::now() + Duration::from_secs(20);
        while counter(&device, "frame_tx_frames") == 0 {
            now = now.plus_nanos(1_000_000);
            device.flush(now).unwrap();
            assert!(Clock::now() < end, "no request for 198.18.0.3 comes again");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The tag of [`TAG`] as settings of a device.
pub(crate) const TAGGED: FrameSettings = FrameSettings { vlan: Some(TAG.vid), priority: Some(TAG.pcp) };

/// Defines the tests of the suite for a [`PortKind`], and one of whole devices for each of the settings.
macro_rules! port_suite {
    ($kind:expr, $settings:expr) => {
        $crate::suite::port_tests! {
            $kind;
            every_length_arrives
            every_kind_of_frame_arrives
            only_roce_for_us_is_taken
            bursts_of_thousands_are_kept
            the_rest_of_the_traffic_goes_on
            the_kernel_does_not_call_the_port_unreachable
            what_is_too_long_is_dropped_and_counted
            an_interface_that_goes_down_comes_back
            a_deleted_interface_is_an_error_for_a_port_that_only_receives
            errors_say_what_to_do_next
            what_could_not_be_reached_once_can_be_reached_later
        }

        #[test]
        fn whole_devices_talk() {
            for settings in $settings {
                $kind.whole_devices_talk(settings);
            }
        }
    };
}
macro_rules! port_tests {
    ($kind:expr; $($test:ident)+) => {
        $(
            #[test]
            fn $test() {
                $kind.$test();
            }
        )+
    };
}
pub(crate) use {port_suite, port_tests};

/// Checks TCP, UDP and ping between the kernels at both ends.
pub(crate) fn check_other_traffic(cable: &Cable) {
    for address in ["198.18.0.2", "[2001:db8::2]"] {
        let listener_at = format!("{address}:7777");
        let listener = cable.far.run(move || TcpListener::bind(listener_at)).unwrap();
        let to = listener.local_addr().unwrap();
        let mut stream =
            cable.near.run(move || TcpStream::connect_timeout(&to, Duration::from_secs(5))).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let bytes: Vec<u8> = (0..100_000).map(|at| at as u8).collect();
        let copy = bytes.clone();
        let writer = std::thread::spawn(move || stream.write_all(&copy));
        let mut found = vec![0; bytes.len()];
        accepted.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        accepted.read_exact(&mut found).unwrap();
        writer.join().unwrap().unwrap();
        assert!(found == bytes);

        let there_at = format!("{address}:7778");
        let there = cable.far.run(move || UdpSocket::bind(there_at)).unwrap();
        there.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let to = there.local_addr().unwrap();
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let here = cable.near.run(move || UdpSocket::bind(any)).unwrap();
        here.send_to(b"hello", to).unwrap();
        assert_eq!(there.recv(&mut [0; 9]).unwrap(), 5);
    }
    ping(cable);
}

fn ping(cable: &Cable) {
    let icmp = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4));
    let mut socket = cable.near.run(icmp).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // Echo request, identifier 1, sequence 2, and its checksum.
    let request = [8, 0, 0xf7, 0xfc, 0, 1, 0, 2];
    let to: std::net::SocketAddr = "198.18.0.2:0".parse().unwrap();
    socket.send_to(&request, &to.into()).unwrap();
    let end = Clock::now() + Duration::from_secs(5);
    loop {
        let mut reply = [0; 100];
        let len = socket.read(&mut reply).unwrap();
        if reply[20..len].starts_with(&[0, 0]) && reply[..len].ends_with(&[0, 1, 0, 2]) {
            return;
        }
        assert!(Clock::now() < end, "no answer to a ping");
    }
}
