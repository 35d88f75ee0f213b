//! A packet socket as a port that carries every frame of its interface, regardless of destination.

use std::io;
use std::os::fd::AsFd;

use super::RawPort;
use crate::whole::{Offload, WholeFrame, WholePort};

impl WholePort for RawPort {
    fn receive_whole(&mut self, sink: &mut dyn FnMut(&WholeFrame<'_>)) -> io::Result<usize> {
        self.receiver.receive_all(self.socket.as_fd(), &mut |offload, bytes, vlan, counters| {
            counters.superframes += u64::from(offload.is_joined());
            sink(&WholeFrame { offload, bytes, vlan });
            true
        })
    }

    fn send_whole(&mut self, offload: Offload, frame: &[u8]) -> bool {
        let Some(slot) = self.transmitter.slot() else { return false };
        // `commit` refuses and counts frames that are too long.
        let len = frame.len().min(slot.len());
        slot[..len].copy_from_slice(&frame[..len]);
        self.transmitter.commit(&(0..frame.len()), offload);
        self.transmitter.finish_if_in_tunnel();
        true
    }
}
