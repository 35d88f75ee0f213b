//! Network namespaces for tests. They live as long as a value, and a virtual cable connects them.

use std::fs;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::skip::skip_unless;

/// Runs a test on a thread with its own network namespace, after running `ip` there with each of `lines`. The
/// namespace ends with the thread and its last socket, however the test ends. Returns whether the test ran:
/// it requires `ip` and the right to create a namespace.
#[track_caller]
pub fn in_own_network(lines: &[&str], test: impl FnOnce() + Send + 'static) -> bool {
    // Child processes inherit the namespace of the thread that starts them.
    let has_ip = Command::new("ip").arg("-V").output().is_ok_and(|output| output.status.success());
    if skip_unless(has_ip, "`ip` is not installed; it is in iproute2") {
        return false;
    }
    let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let body = std::thread::Builder::new().name(name).spawn(move || {
        // SAFETY: the call only changes the network of this thread, on which nothing was opened yet.
        // Descriptors and memory remain shared with the other threads.
        let made = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        if skip_unless(made, "a network namespace takes root (CAP_SYS_ADMIN)") {
            return false;
        }
        for line in &lines {
            let output = Command::new("ip").args(line.split(' ')).output().expect("running ip");
            assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
        }
        test();
        true
    });
    match body.expect("starting a thread").join() {
        Ok(ran) => ran,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A network namespace with one thread in it. Sockets opened there may be used anywhere.
pub struct Namespace {
    jobs: Option<Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<JoinHandle<()>>,
    /// Path by which other programs open the namespace.
    path: String,
}

impl Namespace {
    /// Creates a namespace. Returns `None` without the right to do so; a message then reports the test as
    /// skipped.
    #[track_caller]
    pub fn new() -> Option<Self> {
        let has_ip = Command::new("ip").arg("-V").output().is_ok_and(|output| output.status.success());
        if skip_unless(has_ip, "`ip` is not installed; it is in iproute2") {
            return None;
        }
        let (sender, path) = channel();
        let (jobs, queue) = channel::<Box<dyn FnOnce() + Send>>();
        let thread = std::thread::spawn(move || {
            // SAFETY: the call only changes the network of this thread, on which nothing was opened yet.
            // Descriptors and memory remain shared with the other threads.
            let made = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
            let id = rustix::thread::gettid().as_raw_nonzero();
            let path = made.then(|| format!("/proc/{}/task/{id}/ns/net", std::process::id()));
            let _ = sender.send(path);
            queue.iter().for_each(|job| job());
        });
        let path = path.recv().expect("the thread of a namespace");
        if skip_unless(path.is_some(), "a network namespace takes root (CAP_SYS_ADMIN)") {
            return None;
        }
        Some(Self { jobs: Some(jobs), thread: Some(thread), path: path? })
    }

    /// Returns a path for other programs, for example as the target of `ip link set … netns`.
    #[allow(dead_code, reason = "for tests of whole networks")]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Runs a function inside the namespace and returns its result. Propagates its panic.
    #[track_caller]
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, result) = channel();
        let job = Box::new(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            let _ = sender.send(result);
        });
        self.jobs.as_ref().expect("open until dropped").send(job).expect("the thread of a namespace");
        match result.recv().expect("the thread of a namespace") {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Runs `ip` inside the namespace, once for each line.
    #[track_caller]
    pub fn ip(&self, lines: &[&str]) {
        for line in lines {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let output = self.run(move || Command::new("ip").args(arguments).output()).expect("running ip");
            assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Two namespaces and a cable. One end is `v0` with 198.18.0.1, 2001:db8::1 and 02:00:00:00:00:01. The other
/// end is `v1`, whose addresses end in 2.
pub struct Cable {
    /// Namespace of `v0`.
    pub near: Namespace,
    /// Namespace of `v1`.
    pub far: Namespace,
}

impl Cable {
    /// Creates both namespaces with this MTU. Returns `None` without the right to do so; a message then
    /// reports the test as skipped.
    #[track_caller]
    pub fn new(mtu: usize) -> Option<Self> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        near.ip(&["link add v0 type veth peer name v1", &format!("link set v1 netns {}", far.path)]);
        for (end, name, number) in [(&near, "v0", 1), (&far, "v1", 2)] {
            // Disables duplicate address detection, so that addresses are usable at once.
            let accept_dad = format!("/proc/sys/net/ipv6/conf/{name}/accept_dad");
            end.run(move || fs::write(&accept_dad, "0")).expect("switching off address detection");
            end.ip(&[
                &format!("link set {name} address 02:00:00:00:00:0{number} mtu {mtu}"),
                &format!("address add 198.18.0.{number}/24 dev {name}"),
                &format!("address add 2001:db8::{number}/64 dev {name} nodad"),
                &format!("link set {name} up"),
            ]);
        }
        let cable = Self { near, far };
        cable.settle();
        Some(cable)
    }

    /// Waits until the cable carries frames. The kernel silently drops frames before.
    #[track_caller]
    pub fn settle(&self) {
        self.near.run(settle_here);
        self.far.run(settle_here);
    }
}

/// Waits until the cables of this namespace (`v0` and similar) carry frames.
///
/// A cable shows `LOWER_UP` before that: a thread of the kernel activates its queue later, on a busy machine
/// tens of milliseconds, and sets the state just before.
#[track_caller]
pub fn settle_here() {
    let end = Instant::now() + Duration::from_secs(30);
    let ip = |line: &str| {
        let output = Command::new("ip").args(line.split(' ')).output().expect("running ip");
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    loop {
        let text = ip("-o link show type veth");
        let mut cables = text.lines().filter(|line| line.contains(": v")).peekable();
        let first = cables.peek().and_then(|line| line.split([':', '@']).nth(1)).map(str::trim);
        if let Some(first) = first
            && cables.all(|line| line.contains("state UP"))
        {
            // Any change waits for the lock that the kernel holds from then on until the queue is active.
            ip(&format!("link set {first} up"));
            return;
        }
        assert!(Instant::now() < end, "a cable carries nothing:\n{text}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
