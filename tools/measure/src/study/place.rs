//! The environment of the cells: loopback addresses, and two network namespaces with cables between them.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, unshare};
use nix::unistd::Pid;

use super::grid::{Carrier, Cell, Device};

/// The MTU of the cables; it allows a path MTU of 4096.
const MTU: usize = 4200;

/// One side of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The device, in the syntax of `--device`.
    pub(super) device: String,
    /// The kernel's address for the exchange and for TCP.
    pub(super) own: IpAddr,
    /// The network namespace; `None` is that of the study.
    pub(super) namespace: Option<PathBuf>,
    /// The processors of this side; empty if there are fewer than two.
    pub(super) processors: Vec<usize>,
}

/// Two network namespaces, which live as long as this value.
#[derive(Debug)]
pub struct Places {
    /// The namespaces of client and server.
    namespaces: Result<[File; 2], String>,
    tap: Result<(), String>,
}

impl Places {
    /// Creates the namespaces, as root or as root of a user namespace.
    ///
    /// Without root, this process enters a user namespace, which requires that the process has only one
    /// thread. If that is not permitted, only loopback can be used.
    #[must_use]
    pub fn new() -> Self {
        let namespaces = make_namespaces();
        let tap = match &namespaces {
            Ok(both) => add_taps(both),
            Err(reason) => Err(reason.clone()),
        };
        Self { namespaces, tap }
    }

    /// Uses loopback only.
    #[must_use]
    pub fn loopback() -> Self {
        let reason = || "only loopback is needed".to_owned();
        Self { namespaces: Err(reason()), tap: Err(reason()) }
    }

    /// Returns the client and the server of a device for a cell, or the reason why it cannot be used.
    pub(super) fn ends(&self, device: Device, cell: &Cell) -> Result<[End; 2], String> {
        let processors = processors();
        if !device.takes_cable() {
            // Frames of the limit do not belong to a queue pair, so a shared device would not receive them.
            let share = if cell.carrier == Carrier::Limit { ",share=off" } else { "" };
            let end = |net: u8, processors: &[usize]| {
                let [.., high, low] = std::process::id().to_be_bytes();
                let own = Ipv4Addr::new(127, net, high, low.max(1));
                let device = format!("udp:{own}{share}");
                End { device, own: own.into(), namespace: None, processors: processors.to_vec() }
            };
            return Ok([end(19, &processors[0]), end(18, &processors[1])]);
        }
        let namespaces = self.namespaces.as_ref().map_err(Clone::clone)?;
        if device == Device::Tap {
            self.tap.clone()?;
        }
        let end = |index: usize| {
            let own = Ipv4Addr::new(198, 18, 0, index as u8 + 1);
            let device = match device {
                Device::Raw => format!("raw:v{index}"),
                Device::Xdp => format!("xdp:v{index}"),
                Device::Tap => format!("tap:roce{index},ip=198.18.1.{}/24", index + 1),
                Device::Udp | Device::UdpLoopback if cell.carrier == Carrier::Limit => {
                    format!("udp:{own},share=off")
                }
                Device::Udp | Device::UdpLoopback => format!("udp:{own}"),
            };
            let namespace = Some(path_of(&namespaces[index]));
            End { device, own: own.into(), namespace, processors: processors[index].clone() }
        };
        Ok([end(0), end(1)])
    }
}

impl Default for Places {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the path of a namespace for other processes.
fn path_of(namespace: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd()))
}

/// Returns one half of the processors for each side, so that the sides never share one. The halves are empty
/// if there is only one processor.
fn processors() -> [Vec<usize>; 2] {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Default::default() };
    let allowed: Vec<usize> =
        (0..CpuSet::count()).filter(|number| set.is_set(*number).unwrap_or(false)).collect();
    if allowed.len() < 2 {
        return Default::default();
    }
    let (first, second) = allowed.split_at(allowed.len() / 2);
    [first.to_vec(), second.to_vec()]
}

fn make_namespaces() -> Result<[File; 2], String> {
    let has_ip = Command::new("ip").arg("-V").output().is_ok_and(|output| output.status.success());
    if !has_ip {
        return Err(
            "network namespaces are set up with `ip`, which is not installed; install iproute2".into()
        );
    }
    let near = match make_namespace() {
        Ok(near) => near,
        Err(_) if !rustix::process::geteuid().is_root() => {
            become_root_of_a_user_namespace()?;
            make_namespace()?
        }
        Err(error) => return Err(error),
    };
    let far = make_namespace()?;
    let far_path = path_of(&far).display().to_string();
    for (own, other) in [("v0", "v1"), ("t0", "t1")] {
        ip(
            &near,
            &[
                &format!("link add {own} type veth peer name {other}"),
                &format!("link set {other} netns {far_path}"),
            ],
        )?;
    }
    for (index, namespace) in [&near, &far].into_iter().enumerate() {
        ip(
            namespace,
            &[
                "link set lo up",
                &format!("link set v{index} mtu {MTU}"),
                &format!("address add 198.18.0.{}/24 dev v{index}", index + 1),
                &format!("link set v{index} up"),
            ],
        )?;
    }
    let both = [near, far];
    settle(&both)?;
    Ok(both)
}

/// Adds a TAP to each namespace, on a bridge with one end of the second cable.
fn add_taps(namespaces: &[File; 2]) -> Result<(), String> {
    for (index, namespace) in namespaces.iter().enumerate() {
        ip(
            namespace,
            &[
                "link add br0 type bridge mcast_snooping 0",
                &format!("tuntap add dev roce{index} mode tap"),
                &format!("link set roce{index} mtu {MTU} master br0 up"),
                &format!("link set t{index} mtu {MTU} master br0 up"),
                &format!("link set br0 mtu {MTU} up"),
            ],
        )?;
    }
    Ok(())
}

/// Creates a network namespace, which lives as long as its file is open.
fn make_namespace() -> Result<File, String> {
    let made = std::thread::spawn(|| {
        // `unshare` changes only the network of this thread.
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| {
            format!("a network namespace requires root (CAP_SYS_ADMIN) or user namespaces: {}", error.desc())
        })?;
        File::open("/proc/thread-self/ns/net").map_err(|error| format!("the new network namespace: {error}"))
    });
    made.join().unwrap_or_else(|_| Err("the thread of a network namespace failed".into()))
}

/// Makes this process root in its own user namespace. The process must have only one thread.
fn become_root_of_a_user_namespace() -> Result<(), String> {
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER)
        .map_err(|error| format!("network namespaces require root or user namespaces: {}", error.desc()))?;
    let write = |name: &str, text: String| {
        std::fs::write(format!("/proc/self/{name}"), text)
            .map_err(|error| format!("the {name} of a user namespace: {error}"))
    };
    write("setgroups", "deny".into())?;
    write("uid_map", format!("0 {user} 1"))?;
    write("gid_map", format!("0 {group} 1"))
}

/// Runs `ip` in a namespace, once for each line.
fn ip(namespace: &File, lines: &[&str]) -> Result<(), String> {
    lines.iter().try_for_each(|line| ip_text(namespace, line).map(drop))
}

fn ip_text(namespace: &File, line: &str) -> Result<String, String> {
    let namespace = namespace.try_clone().map_err(|error| format!("the network namespace: {error}"))?;
    let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
    // A child process runs in the namespace of the thread that starts it.
    let done = std::thread::spawn(move || {
        let network = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(network))?;
        Command::new("ip").args(arguments).output()
    });
    let output = done.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
    let output = output.map_err(|error| format!("ip {line}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Waits until the cable carries frames; until then the kernel drops them silently. `LOWER_UP` is shown too
/// early: the kernel sets the state just before it activates the queue of an end.
fn settle(namespaces: &[File; 2]) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(30);
    for (index, namespace) in namespaces.iter().enumerate() {
        while !ip_text(namespace, &format!("-o link show dev v{index}"))?.contains("state UP") {
            if Instant::now() > end {
                return Err("the cable between the network namespaces carries no packets".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // This takes the lock that the kernel holds until the queue is active.
        ip_text(namespace, &format!("link set dev v{index} up"))?;
    }
    Ok(())
}
