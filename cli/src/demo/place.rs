//! The devices of the demo on this machine (two addresses, or one address that both processes share), and a
//! file for its packets.

use std::fs::DirBuilder;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use roce::observe::with_causes;
use roce_device::OpenOptions;
use roce_device::pcap::CaptureFile;

use crate::network::temporary;

/// Returns the devices of both processes: the first pair that can be opened. A machine may have only one
/// loopback address, or only that of IPv6, and another user may have 127.0.0.1. The addresses between are
/// free on nearly every machine.
pub(super) fn devices() -> anyhow::Result<[String; 2]> {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let usual = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];
    // The byte is 0 to 127, so that neither address is 127.0.0.1 or a broadcast address.
    let own = [1, 2].map(|last| Ipv4Addr::new(127, 100 + high % 128, low, last));
    let pairs = [
        usual.map(|address| format!("udp:{address}")),
        own.map(|address| format!("udp:{address}")),
        [Ipv4Addr::LOCALHOST; 2].map(|address| format!("udp:{address}")),
        [Ipv6Addr::LOCALHOST; 2].map(|address| format!("udp:[{address}]")),
    ];
    let mut first = None;
    for pair in pairs {
        match open_both(&pair) {
            Ok(()) => return Ok(pair),
            Err(error) => _ = first.get_or_insert(error),
        }
    }
    let reason = first.unwrap_or_default();
    Err(anyhow!(
        "no loopback address can be used: {reason}; if the interface lo is down, bring it up with `ip link set lo up`, or \
         choose addresses with --device NEAR FAR"
    ))
}

fn open_both([near, far]: &[String; 2]) -> Result<(), String> {
    let open = |spec: &str| {
        let opened = roce_device::open(spec, OpenOptions::default());
        opened.map_err(|error| with_causes(&error).to_string())
    };
    let _near = open(near)?;
    open(far).map(drop)
}

/// Opens a port for the second process, on an existing loopback address.
pub(super) fn listen() -> anyhow::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .or_else(|_| TcpListener::bind((Ipv6Addr::LOCALHOST, 0)))
        .context("cannot open a TCP port on 127.0.0.1 or ::1")
}

/// Creates the capture file: the one that the user named, or demo.pcapng in this directory. If this directory
/// is read-only, creates demo.pcapng in a new directory for temporary files.
pub(super) fn capture(wanted: Option<&Path>) -> anyhow::Result<(PathBuf, Vec<CaptureFile>)> {
    let create = |path: PathBuf| {
        let files = CaptureFile::create(&path, &["clean", "with faults"])
            .with_context(|| format!("cannot create {}; --pcap chooses another file", path.display()))?;
        Ok((path, files))
    };
    match wanted {
        Some(path) => create(path.to_owned()),
        None => create(NAME.into())
            .or_else(|error: anyhow::Error| create(temporary_directory().map_err(|_| error)?.join(NAME))),
    }
}

/// Creates a directory that only this user can enter, so that no other user can put a link into it.
fn temporary_directory() -> io::Result<PathBuf> {
    let name = format!("roce-demo-{}-{:08x}", std::process::id(), fastrand::u32(..));
    temporary::create(|folder| {
        let path = folder.join(&name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(path)
    })
}

const NAME: &str = "demo.pcapng";
