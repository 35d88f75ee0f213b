//! Those tests of the other backend that treat ports as black boxes, for this backend.

use std::ptr;

use super::*;
use crate::framed::FramedDevice;
use crate::framed::port::FramePort;
use crate::host::kernel::KernelHost;
use crate::ports::{
    PLAIN, Shape, check_devices, check_kinds, check_lengths, check_way, frame, receive, send, what_is_taken,
};
use crate::suite::check_other_traffic;
use crate::xdp::tests::{MODES, counter, has_privilege, has_program};
use crate::xdp::{self, XdpSpec};
use roce_testing::{Cable, Namespace};

/// Mounts a separate bpffs in a namespace, where libxdp pins its dispatchers, to keep the system's clean.
fn with_own_bpffs(namespace: &Namespace) {
    namespace.run(|| {
        let mount = |kind: *const libc::c_char, target: &std::ffi::CStr, flags| {
            // SAFETY: the texts end with zeros, and the kernel reads no further.
            let result = unsafe { libc::mount(kind, target.as_ptr(), kind, flags, ptr::null()) };
            assert_eq!(result, 0, "mounting {target:?}: {}", io::Error::last_os_error());
        };
        // SAFETY: only this thread's view of the file system changes.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0, "{}", io::Error::last_os_error());
        mount(ptr::null(), c"/", libc::MS_REC | libc::MS_PRIVATE);
        mount(c"bpf".as_ptr(), c"/sys/fs/bpf", 0);
    });
}

type Opened = (Box<dyn FramePort>, KernelHost);

fn try_open(namespace: &Namespace, spec: &str) -> Result<Opened, OpenError> {
    let spec: XdpSpec = spec.parse().unwrap();
    namespace.run(move || xdp::open(&spec))
}

#[track_caller]
fn open_in(namespace: &Namespace, spec: &str) -> Opened {
    try_open(namespace, spec).unwrap()
}

/// A cable with a port at each end. Ports are closed where they were opened: libxdp uses interface indices.
struct Rig {
    ends: Option<[Opened; 2]>,
    cable: Cable,
}

#[track_caller]
fn cable(mtu: usize) -> Option<Cable> {
    if !has_privilege() {
        return None;
    }
    let cable = Cable::new(mtu)?;
    for namespace in [&cable.near, &cable.far] {
        with_own_bpffs(namespace);
    }
    Some(cable)
}

#[track_caller]
fn rig(mtu: usize, mode: &str, far: &str) -> Option<Rig> {
    let cable = cable(mtu)?;
    let ends = [
        open_in(&cable.near, &format!("xdp:v0,mode={mode},backend=libxdp")),
        open_in(&cable.far, &format!("xdp:v1,mode={mode}{far}")),
    ];
    for (port, _) in &ends {
        assert_eq!(counter(port.as_ref(), "xdp_native"), u64::from(mode == "native"));
    }
    Some(Rig { ends: Some(ends), cable })
}

const BOTH: &str = ",backend=libxdp";

impl Rig {
    fn ports(&mut self) -> (&mut dyn FramePort, &mut dyn FramePort) {
        let [near, far] = self.ends.as_mut().expect("open until dropped");
        (near.0.as_mut(), far.0.as_mut())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let Some([near, far]) = self.ends.take() else { return };
        self.cable.near.run(move || drop(near));
        self.cable.far.run(move || drop(far));
    }
}

#[track_caller]
fn assert_clean(port: &dyn FramePort) {
    for name in ["xdp_rx_dropped", "xdp_rx_invalid", "xdp_tx_invalid", "xdp_rx_ring_full", "xdp_tx_refused"] {
        assert_eq!(counter(port, name), 0, "{name}");
    }
}

#[test]
fn every_length_arrives_byte_for_byte() {
    for mode in MODES {
        let Some(mut rig) = rig(4200, mode, BOTH) else { return };
        let (near, far) = rig.ports();
        check_lengths(near, far, 300);
        assert!(counter(far, "xdp_rx_fragmented") >= 300, "{mode}: 4170 bytes take two chunks");
        assert_clean(near);
        assert_clean(far);
    }
}

#[test]
fn every_kind_of_frame_arrives() {
    for mode in MODES {
        let Some(mut rig) = rig(4200, mode, BOTH) else { return };
        let (near, far) = rig.ports();
        check_kinds(near, far, true);
    }
}

#[test]
fn the_two_backends_understand_each_other() {
    for mode in MODES {
        let Some(mut rig) = rig(4200, mode, "") else { return };
        let (near, far) = rig.ports();
        check_lengths(near, far, 300);
        check_kinds(near, far, true);
    }
}

#[test]
fn only_roce_for_us_is_taken() {
    for mode in MODES {
        let Some(mut rig) = rig(1500, mode, BOTH) else { return };
        let (near, far) = rig.ports();
        for (name, bytes, is_taken) in what_is_taken() {
            send(near, std::slice::from_ref(&bytes));
            let arrived = receive(far, usize::from(is_taken));
            assert!(arrived.iter().all(|it| it.bytes == bytes), "{mode}: {name}");
        }
    }
}

#[test]
fn the_rest_of_the_traffic_goes_on() {
    for mode in MODES {
        let Some(rig) = rig(1500, mode, BOTH) else { return };
        check_other_traffic(&rig.cable);
    }
}

#[test]
fn bursts_of_thousands_are_kept() {
    let Some(mut rig) = rig(4200, "generic", BOTH) else { return };
    let (near, far) = rig.ports();
    let frames: Vec<Vec<u8>> = (0..4000).map(|psn| frame(PLAIN, psn, 1024)).collect();
    check_way(near, far, &frames);
    assert_clean(far);
    assert_eq!(counter(far, "xdp_rx_fill_empty"), 0);
}

#[test]
fn whole_devices_talk() {
    for options in ["", ",mode=native", ",vlan=77,prio=5"] {
        let Some(cable) = cable(4200) else { return };
        let mut devices = [(&cable.near, "v0"), (&cable.far, "v1")].map(|(namespace, name)| {
            let spec: XdpSpec = format!("xdp:{name}{options}{BOTH}").parse().unwrap();
            let (port, host) = open_in(namespace, &spec.to_string());
            FramedDevice::new(port, Box::new(host), spec.settings)
        });
        let [near, far] = &mut devices;
        check_devices(near, far);
        let [near, far] = devices;
        cable.near.run(move || drop(near));
        cable.far.run(move || drop(far));
    }
}

#[test]
fn it_leaves_the_interface_as_it_was() {
    let Some(cable) = cable(4200) else { return };
    for round in 0..10_u32 {
        let mode = MODES[round as usize % 2];
        let ends = [
            open_in(&cable.near, &format!("xdp:v0,mode={mode}{BOTH}")),
            open_in(&cable.far, &format!("xdp:v1,mode={mode}{BOTH}")),
        ];
        assert!(has_program(&cable.near));
        let [mut near, mut far] = ends;
        check_way(near.0.as_mut(), far.0.as_mut(), &[frame(PLAIN, round, 4096)]);
        let back = Shape { to_far: false, ..PLAIN };
        check_way(far.0.as_mut(), near.0.as_mut(), &[frame(back, round, 1024)]);
        cable.near.run(move || drop(near));
        cable.far.run(move || drop(far));
        assert!(!has_program(&cable.near), "round {round}");
    }
}

/// Kernel build options determine whether programs can coexist; the test determines this, and reports if it
/// is not possible.
#[test]
fn another_program_of_libxdp_is_left_where_it_is() {
    let Some(cable) = cable(4200) else { return };
    let mac = roce_packet::MacAddr([2, 0, 0, 0, 0, 0x7f]);
    let attach = move || {
        let link = crate::link::Link::find("xdp:v0", "v0").unwrap();
        Program::attach(link.index, mac, false)
    };
    let other = cable.near.run(attach).unwrap();
    let beside = cable.near.run(attach);
    let spec = format!("xdp:v0,mode=generic{BOTH}");
    match beside {
        Ok(beside) => {
            cable.near.run(move || drop(beside));
            let mut near = open_in(&cable.near, &spec);
            let mut far = open_in(&cable.far, &format!("xdp:v1,mode=generic{BOTH}"));
            check_way(near.0.as_mut(), far.0.as_mut(), &[frame(PLAIN, 1, 4096)]);
            cable.near.run(move || drop(near));
            cable.far.run(move || drop(far));
            assert!(has_program(&cable.near), "the other one is still there");
            println!("this kernel lets several programs share an interface");
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
            let error = try_open(&cable.near, &spec).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("another XDP program on v0 cannot be combined with"), "{error}");
            assert!(error.contains("/sys/fs/bpf") && error.contains("allows no dispatcher"), "{error}");
            println!("this kernel does not let several programs share an interface");
        }
    }
    cable.near.run(move || drop(other));
    assert!(!has_program(&cable.near));
}

#[test]
fn queues_that_it_has_no_place_for_are_refused() {
    let Some(cable) = cable(1500) else { return };
    let error = try_open(&cable.near, &format!("xdp:v0,queue=7{BOTH}")).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("v0 has 1 receive queues") && error.contains("ethtool -L v0"), "{error}");
}
