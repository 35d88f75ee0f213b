//! `roce dissect` of a pipe whose sender is hostile: memory stays bounded. The child has a limit on its address space.

use std::io::Write;
use std::process::{Command, Stdio};

/// Address space of the child: several times what it takes for a small file, and a fraction of what arrives.
const LIMIT_KIB: u32 = 300 << 10;
/// Bytes that are sent, unless the child ends before.
const SENT: usize = 400 << 20;

/// A block of pcapng, little-endian.
fn block(block_type: u32, body: &[u8]) -> Vec<u8> {
    let len = (body.len() + 12) as u32;
    [&block_type.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
}

fn section() -> Vec<u8> {
    block(0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat())
}

/// An interface with a name of `name_len` bytes.
fn interface(name_len: usize) -> Vec<u8> {
    let mut body = vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    body.extend((name_len as u16).to_le_bytes());
    body.resize(body.len() + name_len.next_multiple_of(4), b'x');
    block(1, &body)
}

/// Sends `begin` and then `part` again and again; returns the exit code and what was written to standard error.
fn dissect(begin: &[u8], part: &[u8]) -> (Option<i32>, String) {
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit -v {LIMIT_KIB} && exec \"$0\" dissect -"), env!("CARGO_BIN_EXE_roce")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let chunk = part.repeat((64 << 10) / part.len() + 1);
    let mut sent = pipe.write(begin).unwrap();
    while sent < SENT && pipe.write_all(&chunk).is_ok() {
        sent += chunk.len();
    }
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn interface_blocks_without_end_are_an_error_and_not_memory() {
    for name_len in [4, 60_000] {
        let (code, stderr) = dissect(&section(), &interface(name_len));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("more than 4096 interfaces") && stderr.contains("at byte"), "{stderr}");
    }
}

#[test]
fn sections_without_end_and_long_blocks_take_no_memory() {
    let many_interfaces = [section(), interface(200).repeat(1000)].concat();
    let (code, stderr) = dissect(&[], &many_interfaces);
    assert_eq!(code, Some(0), "{stderr}");
    // One block of 1 GiB that is not read to its end.
    let begin = [section(), vec![0xad, 0x0b, 0, 0], (1_u32 << 30).to_le_bytes().to_vec()].concat();
    let (code, stderr) = dissect(&begin, &[7; 4096]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("the file ends here"), "{stderr}");
}
