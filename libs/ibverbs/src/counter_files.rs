//! The counters below `/sys/class/infiniband`, in the directory that `roce run` creates for its program. A
//! device adds its counters when it closes, so the files contain the sums of all processes that have ended.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// The environment variable with the directory.
pub(crate) const VARIABLE: &str = "ROCE_SYSFS";

/// The port counters that kernels have for every device, each with its source counter and its unit.
const OF_PORTS: [(&str, &str, u64); 5] = [
    ("port_rcv_packets", "rdma_rx_packets", 1),
    ("port_xmit_packets", "rdma_tx_packets", 1),
    // In words of four bytes.
    ("port_rcv_data", "rdma_rx_bytes", 4),
    ("port_xmit_data", "rdma_tx_bytes", 4),
    ("port_rcv_errors", "rx_icrc_encapsulated", 1),
];

/// Adds the counters of a device. Ignores errors, because they must not make the program fail.
pub(crate) fn add(device: &str, counters: &[(&'static str, u64)]) {
    let Some(root) = std::env::var_os(VARIABLE).filter(|root| !root.is_empty()) else { return };
    let port: PathBuf =
        [Path::new(&root), "sys/class/infiniband".as_ref(), device.as_ref(), "ports/1".as_ref()]
            .iter()
            .collect();
    // The lock serializes processes.
    let Ok(lock) = File::open(port.join("hw_counters")) else { return };
    if lock.lock().is_err() {
        return;
    }
    for (name, value) in counters {
        let _ = add_to(&port.join("hw_counters").join(name), *value);
        for (file, _, unit) in OF_PORTS.iter().filter(|(_, source, _)| source == name) {
            let _ = add_to(&port.join("counters").join(file), value / unit);
        }
    }
}

/// Adds to the number in a file that exists.
fn add_to(file: &Path, value: u64) -> std::io::Result<()> {
    if value == 0 {
        return Ok(());
    }
    let mut file = File::options().read(true).write(true).open(file)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let sum = text.trim().parse::<u64>().unwrap_or(0).saturating_add(value);
    file.rewind()?;
    writeln!(file, "{sum}")
}
