//! The program, run by the kernel on test frames.

use std::os::fd::AsRawFd;

use super::*;
use crate::ports::{FAR, what_is_taken};
use crate::xdp::bpf;
use roce_testing::skip_unless;

/// The `bpf` attributes of `BPF_PROG_TEST_RUN`.
#[derive(Default)]
#[repr(C)]
struct TestRun {
    program: u32,
    result: u32,
    len: u32,
    out_len: u32,
    data: u64,
    out: u64,
    _repeat: u32,
    _duration: u32,
    _rest: [u64; 5],
}

#[test]
fn it_takes_roce_and_nothing_else() {
    const XDP_DROP: i32 = 1;
    const TEST_RUN: libc::c_long = 10;
    let map = bpf::create_socket_map(1);
    if skip_unless(map.is_ok(), "loading programs takes CAP_BPF and CAP_NET_ADMIN") {
        return;
    }
    let map = map.unwrap();
    let mut program = roce_program(map.as_raw_fd(), FAR);
    // The map has no socket: frames for it are dropped, to distinguish them from passed frames.
    let fallback = program.iter_mut().find(|it| (it.code, it.registers) == (0xb7, R3)).unwrap();
    fallback.value = XDP_DROP;
    let program = bpf::load(&program, true).unwrap();
    for (name, frame, is_taken) in what_is_taken() {
        let mut out = vec![0_u8; 8192];
        let mut run = TestRun {
            program: program.as_raw_fd().cast_unsigned(),
            len: frame.len() as u32,
            out_len: out.len() as u32,
            data: frame.as_ptr() as u64,
            out: out.as_mut_ptr() as u64,
            ..TestRun::default()
        };
        // SAFETY: both buffers have the lengths given and live until the call returns.
        let result = unsafe { libc::syscall(libc::SYS_bpf, TEST_RUN, &raw mut run, size_of::<TestRun>()) };
        assert_eq!(result, 0, "{name}: {}", std::io::Error::last_os_error());
        assert_eq!(run.result == XDP_DROP.cast_unsigned(), is_taken, "{name}");
        assert_eq!(&out[..run.out_len as usize], frame, "{name}: unchanged");
    }
}

#[test]
fn every_jump_leads_into_the_program() {
    let program = roce_program(3, FAR);
    let is_jump = |it: &&(usize, Instruction)| it.1.code & 7 == 5 && ![CALL, EXIT].contains(&it.1.code);
    let numbered: Vec<_> = program.iter().copied().enumerate().collect();
    assert!(numbered.iter().filter(is_jump).count() > 15);
    for (at, instruction) in numbered.iter().filter(is_jump) {
        let target = *at as i64 + 1 + i64::from(instruction.offset);
        assert!(target > *at as i64 && target < program.len() as i64, "jump at {at}");
    }
}
