//! Tests of peers and their operations.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use roce::device::memory::MemoryDevice;
use roce::verbs::{
    ConnectionParameters, Context, QpType, QueuePairOptions, RemoteMemory, VerbsError, WcStatus,
};
use roce::{Error, Operation, Peer, PeerOptions};

/// Maximum time of what takes microseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns contexts of two devices that are connected in memory.
fn contexts() -> (Context, Context) {
    let (near, far) = MemoryDevice::pair([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).unwrap();
    (Context::builder().attach(near).unwrap(), Context::builder().attach(far).unwrap())
}

fn connected(options: &PeerOptions) -> (Peer, Peer) {
    let (near, far) = contexts();
    let listener = options.clone().context(&far).listen("192.0.2.2:7471").unwrap();
    thread::scope(|threads| {
        let accepting = threads.spawn(|| listener.accept().unwrap());
        let near = options.clone().context(&near).connect("192.0.2.2:7471").unwrap();
        (near, accepting.join().unwrap())
    })
}

fn pair() -> (Peer, Peer) {
    connected(&PeerOptions::default())
}

fn wait<T>(mut operation: Operation<T>) -> Result<T, Error> {
    operation.wait_timeout(PATIENCE)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + seed) as u8).collect()
}

/// A waker that counts.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_once<T>(operation: &mut Operation<T>, waker: &Waker) -> Poll<Result<T, Error>> {
    pin!(operation).poll(&mut Task::from_waker(waker))
}

#[test]
fn bytes_of_every_length_are_sent_written_and_read() {
    let (near, far) = connected(&PeerOptions::default().memory(200_000).message(200_000).buffers(2));
    for (seed, len) in [0, 1, 511, 512, 513, 4096, 100_000].into_iter().enumerate() {
        let bytes = pattern(len, seed);
        let sent = near.send(&bytes).unwrap();
        assert_eq!(wait(far.receive()).unwrap(), bytes);
        wait(sent).unwrap();
        wait(near.write(near.remote(), &bytes).unwrap()).unwrap();
        let mut found = vec![0; len];
        far.memory().read(0, &mut found).unwrap();
        assert_eq!(found, bytes);
        let place = near.remote().slice(0..len as u64).unwrap();
        assert_eq!(wait(near.read(place).unwrap()).unwrap(), bytes);
    }
}

#[test]
fn atomics_return_the_value_before() {
    let (near, far) = pair();
    let at = near.remote().slice(8..16).unwrap();
    assert_eq!(wait(near.fetch_add(at, 7).unwrap()).unwrap(), 0);
    assert_eq!(wait(near.compare_swap(at, 1, 9).unwrap()).unwrap(), 7);
    assert_eq!(wait(near.compare_swap(at, 7, 9).unwrap()).unwrap(), 7);
    let mut found = [0; 8];
    far.memory().read(8, &mut found).unwrap();
    assert_eq!(u64::from_ne_bytes(found), 9);
}

/// More messages than buffers wait at the sender, and arrive in order.
#[test]
fn messages_wait_for_buffers_and_keep_their_order() {
    const MESSAGES: usize = 100;
    let (near, far) = connected(&PeerOptions::default().buffers(3).operations(MESSAGES));
    let sent: Vec<_> = (0..MESSAGES).map(|index| near.send(&pattern(index, index)).unwrap()).collect();
    for index in 0..MESSAGES {
        assert_eq!(wait(far.receive()).unwrap(), pattern(index, index), "message {index}");
    }
    sent.into_iter().for_each(|operation| wait(operation).unwrap());
}

#[test]
fn what_cannot_work_is_refused_at_the_call() {
    let (near, _far) = connected(&PeerOptions::default().memory(64).message(100).operations(1));
    assert!(matches!(near.send(&[0; 101]), Err(Error::TooLong { len: 101, limit: 100 })));
    assert!(matches!(near.write(near.remote(), &[0; 65]), Err(Error::OutOfBounds(_))));
    let short = RemoteMemory { len: 7, ..near.remote() };
    assert!(matches!(near.fetch_add(short, 1), Err(Error::OutOfBounds(_))));
    assert!(matches!(near.compare_swap(short, 1, 1), Err(Error::OutOfBounds(_))));
    let long = RemoteMemory { len: (1 << 31) + 1, ..near.remote() };
    assert!(matches!(near.read(long), Err(Error::TooLong { .. })));
    // Nothing of this has ended the connection.
    wait(near.write(near.remote(), &[1; 64]).unwrap()).unwrap();
}

#[test]
fn more_operations_than_allowed_are_refused_until_one_completes() {
    let (near, far) = connected(&PeerOptions::default().buffers(1).operations(2));
    // Fills the only buffer; the others wait for it.
    wait(near.send(b"x").unwrap()).unwrap();
    let sent = [0; 2].map(|_| near.send(b"x").unwrap());
    assert!(matches!(near.send(b"x"), Err(Error::Verbs(VerbsError::Post(_)))));
    for _ in 0..3 {
        wait(far.receive()).unwrap();
    }
    sent.into_iter().for_each(|operation| wait(operation).unwrap());
    wait(near.send(b"x").unwrap()).unwrap();
}

#[test]
fn addresses_that_cannot_be_used_are_refused() {
    for address in ["0.0.0.0:7471", "[::]:7471"] {
        let error = roce::listen(address).unwrap_err();
        assert!(error.to_string().contains("name an address"), "{error}");
    }
    let error = roce::connect("no colon").unwrap_err();
    assert!(error.to_string().contains("cannot resolve"), "{error}");
}

#[test]
fn an_operation_can_be_waited_for_again_after_a_timeout() {
    let (near, far) = pair();
    let mut message = far.receive();
    assert!(matches!(message.wait_timeout(Duration::from_millis(1)), Err(Error::TimedOut)));
    wait(near.send(b"late").unwrap()).unwrap();
    assert_eq!(message.wait_timeout(PATIENCE).unwrap(), b"late");
    assert!(matches!(message.wait_timeout(PATIENCE), Err(Error::Finished)));
}

/// The memory of a dropped READ stays registered until the answer has arrived.
#[test]
fn dropped_operations_complete_in_the_background() {
    let (near, far) = connected(&PeerOptions::default().operations(8));
    for round in 0..100 {
        drop(near.read(near.remote()).unwrap());
        drop(near.send(&pattern(1000, round)).unwrap());
        drop(far.receive());
        assert_eq!(wait(far.receive()).unwrap(), pattern(1000, round));
        // Whatever came before is complete, because a queue pair completes in order.
        wait(near.write(near.remote(), b"x").unwrap()).unwrap();
    }
}

#[test]
fn the_end_of_a_connection_ends_receives_and_names_the_first_error() {
    let (near, far) = pair();
    wait(near.send(b"last").unwrap()).unwrap();
    let wrong = RemoteMemory { rkey: !near.remote().rkey, ..near.remote() };
    let first = near.write(wrong, b"x").unwrap();
    let second = near.write(near.remote(), b"x").unwrap();
    let Err(Error::Work(error)) = wait(first) else { panic!("the key is wrong") };
    assert_eq!(error.wc.status, WcStatus::RemoteAccessError);
    assert!(error.ends.is_some(), "the error names both addresses");
    let text = Error::Work(error).to_string();
    assert!(text.contains("(NAK 0x62 (remote access error) for PSN "), "{text}");
    let Err(Error::Work(error)) = wait(second) else { panic!("the queue pair is in ERR") };
    assert_eq!(error.wc.status, WcStatus::WrFlushError);
    match wait(near.receive()) {
        Err(Error::Disconnected { source: Some(error) }) => {
            assert_eq!(error.wc.status, WcStatus::RemoteAccessError);
        }
        other => panic!("{other:?}"),
    }
    // What arrived before is not lost.
    assert_eq!(wait(far.receive()).unwrap(), b"last");
    assert!(matches!(wait(far.receive()), Err(Error::Disconnected { .. })));
}

#[test]
fn a_dropped_peer_ends_the_receives_of_the_other() {
    let (near, far) = pair();
    let waiting = thread::spawn(move || wait(far.receive()));
    drop(near);
    assert!(matches!(waiting.join().unwrap(), Err(Error::Disconnected { source: None })));
}

/// Each completion reaches its operation, whichever thread or task takes it from the queue.
#[test]
fn threads_and_tasks_wait_for_operations_of_one_peer() {
    const CALLS: usize = 200;
    let (near, far) = pair();
    let server = thread::spawn(move || {
        while let Ok(message) = far.receive().wait() {
            wait(far.send(&message).unwrap()).unwrap();
        }
    });
    let answers = Mutex::new(Vec::new());
    thread::scope(|threads| {
        for thread in 0..2 {
            let (near, answers) = (&near, &answers);
            threads.spawn(move || {
                for call in 0..CALLS {
                    wait(near.send(&[thread, call as u8]).unwrap()).unwrap();
                    let place = near.remote().slice(0..8).unwrap();
                    wait(near.fetch_add(place, 1).unwrap()).unwrap();
                    answers.lock().unwrap().push(wait(near.receive()).unwrap());
                }
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let call = |task: u8, call: usize| {
            let near = &near;
            async move {
                near.send(&[task, call as u8]).unwrap().await.unwrap();
                near.receive().await.unwrap()
            }
        };
        for number in 0..CALLS {
            let both = async { tokio::join!(call(2, number), call(3, number)) };
            let (first, second) =
                runtime.block_on(async { tokio::time::timeout(PATIENCE, both).await.unwrap() });
            answers.lock().unwrap().extend([first, second]);
        }
    });
    let mut answers = answers.into_inner().unwrap();
    answers.sort();
    let mut expected: Vec<_> =
        (0..4).flat_map(|caller| (0..CALLS).map(move |call| vec![caller, call as u8])).collect();
    expected.sort();
    assert_eq!(answers, expected);
    let mut count = [0; 8];
    wait(near.read(near.remote().slice(0..8).unwrap()).unwrap())
        .map(|bytes| count.copy_from_slice(&bytes))
        .unwrap();
    assert_eq!(u64::from_ne_bytes(count), 2 * CALLS as u64);
    drop(near);
    server.join().unwrap();
}

#[test]
fn a_task_is_woken_once_and_forgotten_when_it_drops_its_operation() {
    let (near, far) = pair();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut message = far.receive();
    // Polling again without an event wakes nobody.
    for _ in 0..3 {
        assert!(poll_once(&mut message, &waker).is_pending());
    }
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    drop(message);
    let (peer, mut message) = (far.clone(), far.receive());
    let other = Arc::new(Count::default());
    assert!(poll_once(&mut message, &Waker::from(other.clone())).is_pending());
    wait(near.send(b"x").unwrap()).unwrap();
    let begin = std::time::Instant::now();
    while other.0.load(Ordering::SeqCst) == 0 {
        assert!(begin.elapsed() < PATIENCE, "the task is not woken");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(wait(message).unwrap(), b"x");
    drop(peer);
}

/// A waker that uses the peer: no lock is held while it runs.
struct Reentrant {
    peer: Peer,
    received: Mutex<Option<Vec<u8>>>,
}

impl Wake for Reentrant {
    fn wake(self: Arc<Self>) {
        let mut message = self.peer.receive();
        if let Poll::Ready(Ok(bytes)) = poll_once(&mut message, Waker::noop()) {
            *self.received.lock().unwrap() = Some(bytes);
        }
    }
}

#[test]
fn a_waker_may_use_the_peer() {
    let (near, far) = pair();
    let task = Arc::new(Reentrant { peer: far.clone(), received: Mutex::default() });
    let mut message = far.receive();
    assert!(poll_once(&mut message, &Waker::from(task.clone())).is_pending());
    wait(near.send(b"inside").unwrap()).unwrap();
    let begin = std::time::Instant::now();
    while task.received.lock().unwrap().is_none() {
        assert!(begin.elapsed() < PATIENCE, "the waker did not receive the message");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(task.received.lock().unwrap().as_deref(), Some(&b"inside"[..]));
}

/// A program that is not a `Peer` can connect; it offers no memory.
#[test]
fn other_programs_can_connect() {
    let (near, far) = contexts();
    let listener = PeerOptions::default().context(&far).listen("192.0.2.2:7471").unwrap();
    let server = thread::spawn(move || {
        let peer = listener.accept().unwrap();
        assert_eq!(peer.remote().len, 0);
        assert!(matches!(peer.write(peer.remote(), b"x"), Err(Error::OutOfBounds(_))));
        wait(peer.receive()).unwrap()
    });
    let (pd, cq) = (near.alloc_pd().unwrap(), near.create_cq(16, None).unwrap());
    let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq)).unwrap();
    let parameters = ConnectionParameters::default().private_data(b"something else");
    let _connection = near.connect("192.0.2.2:7471".parse().unwrap(), &qp, &parameters).unwrap();
    let request = roce::verbs::SendWr::inline(1, roce::verbs::SendOp::Send, b"plain");
    qp.post_send(&request).unwrap();
    let mut done = [roce::verbs::Wc::default()];
    cq.wait(&mut done, Some(PATIENCE)).unwrap();
    done[0].result().unwrap();
    assert_eq!(server.join().unwrap(), b"plain");
}

#[test]
fn several_peers_share_a_context() {
    let (near, far) = contexts();
    let listener = PeerOptions::default().context(&far).listen("192.0.2.2:0").unwrap();
    let options = PeerOptions::default().context(&near);
    thread::scope(|threads| {
        let accepting = threads.spawn(|| [(); 3].map(|()| listener.accept().unwrap()));
        let clients = [(); 3].map(|()| options.connect(listener.address()).unwrap());
        let servers = accepting.join().unwrap();
        for (index, client) in clients.iter().enumerate() {
            wait(client.send(&[index as u8]).unwrap()).unwrap();
        }
        for (index, server) in servers.iter().enumerate() {
            assert_eq!(wait(server.receive()).unwrap(), [index as u8]);
        }
    });
}

/// The devices of the kernel: without options, and with IPv6.
#[test]
fn listeners_and_peers_find_their_devices() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let listener = roce::listen(at).unwrap();
        let address = listener.address();
        let server = thread::spawn(move || wait(listener.accept().unwrap().receive()).unwrap());
        let client = roce::connect(address).unwrap();
        wait(client.send(b"hello").unwrap()).unwrap();
        assert_eq!(server.join().unwrap(), b"hello", "{at}");
    }
}

#[test]
fn nobody_listens() {
    let (near, far) = contexts();
    // Connection management must run there, to refuse.
    let _listener = PeerOptions::default().context(&far).listen("192.0.2.2:7471").unwrap();
    let error = PeerOptions::default().context(&near).connect("192.0.2.2:7472").unwrap_err();
    assert!(matches!(error, Error::Connection(_)), "{error:?}");
}
