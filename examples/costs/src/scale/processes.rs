//! A connection of a process that shares its address with others.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use roce::verbs::{Context, QpCapabilities};
use roce_testing::own_address;
use serde_json::{Value, json};

use super::median::median;
use crate::outcome::Outcome;
use crate::pair::{Side, check, connect};

const MESSAGES: u64 = 400;

/// Another process on the address, which ends with this one.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Measures the time of a WRITE and its acknowledgement, of one of `count` processes on an address.
pub(crate) fn latency(count: usize) -> Outcome<Value> {
    let address = own_address();
    let mut others = Vec::with_capacity(count);
    for _ in 1..count {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["scale", "hold", &address.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = Other(command.spawn()?);
        let output = other.0.stdout.take().ok_or("the output of a process is a pipe")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err(format!("process {} on {address} did not open its device", others.len() + 2).into());
        }
        others.push(other);
    }
    let (near, far) = (Side::on(address)?, Side::new()?);
    let [qp, _far_qp] = connect(&near, &far, QpCapabilities::default())?;
    let mut times = Vec::with_capacity(MESSAGES as usize);
    for value in 1..=MESSAGES {
        let begun = Instant::now();
        check(&near, &far, &qp, value)?;
        times.push(begun.elapsed().as_secs_f64());
    }
    Ok(json!({"x": count, "seconds": median(&mut times), "messages": MESSAGES}))
}

/// Opens a device on an address and keeps it until the input ends.
pub(crate) fn hold(address: Ipv4Addr) -> Outcome<()> {
    let _context = Context::open(&format!("udp:{address}"))?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
