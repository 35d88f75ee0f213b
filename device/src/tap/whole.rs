//! A TAP as a port that carries every frame: nothing is finished, split or joined on the way.

use std::io;

use super::{TapPort, write};
use crate::whole::{Offload, WholeFrame, WholePort};

impl WholePort for TapPort {
    fn receive_whole(&mut self, sink: &mut dyn FnMut(&WholeFrame<'_>)) -> io::Result<usize> {
        self.receive_all(&mut |offload, bytes| {
            sink(&WholeFrame { offload, bytes, vlan: None });
            true
        })
    }

    fn send_whole(&mut self, offload: Offload, frame: &[u8]) -> bool {
        match write(&self.tun, offload, frame) {
            Ok(()) => true,
            Err(error) => !self.note(error),
        }
    }
}
