//! Messages over a connection of connection management, as perftest exchanges its blocks with `-R`.

use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use roce::device::OpenOptions;
use roce::verbs::*;
use roce_fault::FaultInjector;
use roce_measure::perf::Messages;

use crate::common::within;
use crate::world::*;

const PORT: u16 = 7175;

/// Reads one message, and waits for it if necessary.
fn read(messages: &mut Messages) -> Vec<u8> {
    let mut room = [0; 64];
    let end = Instant::now() + PATIENCE;
    loop {
        match messages.read(&mut room) {
            Ok(count) => return room[..count].to_vec(),
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs a client whose messages are never acknowledged, and a server that leaves after `answers`.
fn last_words(answers: &[&[u8]]) -> (std::io::Result<usize>, Vec<u8>) {
    let plan = "rule:opcode=RC_ACKNOWLEDGE,action=drop".parse().unwrap();
    let options =
        OpenOptions { transmit_faults: Some(FaultInjector::new(plan, 1)), ..OpenOptions::default() };
    let (near, far) = Wire::UdpV4.open_with(Context::builder(), Context::builder().options(options)).unwrap();
    let parameters = ConnectionParameters::default();
    let listener = far.listen(PortSpace::Tcp, PORT).unwrap();
    let server = std::net::SocketAddr::new(far.address().unwrap(), PORT);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut messages, _) = Messages::accept(&far, &listener, &parameters, Some(PATIENCE)).unwrap();
            assert_eq!(read(&mut messages), b"the end?");
            for answer in answers {
                assert_eq!(messages.write(answer).unwrap(), answer.len());
            }
            messages.disconnect();
        });
        let mut messages = Messages::connect(&near, server, &parameters, PATIENCE).unwrap();
        let written = messages.write(b"the end?");
        (written, read(&mut messages))
    })
}

/// Regression: `perf -R` sometimes failed when acknowledgements were lost. The other side had left before it
/// repeated the acknowledgement of the last block, although its own last block had arrived.
#[test]
fn a_message_that_was_answered_has_arrived_although_its_acknowledgement_was_lost() {
    within(60, || {
        let (written, answer) = last_words(&[b"the end."]);
        assert_eq!((written.unwrap(), &answer[..]), (8, &b"the end."[..]));
    });
}

#[test]
fn a_message_without_acknowledgement_or_answer_is_an_error() {
    within(60, || {
        let (written, answer) = last_words(&[]);
        assert_eq!(written.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert!(answer.is_empty(), "the connection is over");
    });
}
