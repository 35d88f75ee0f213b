//! A packet socket as a port that carries every frame of its interface, regardless of destination.

use std::io;
use std::os::fd::AsFd;

use super::{MAX_SEGMENTS, RawPort, RawSpec, socket};
use crate::OpenError;
use crate::link::Link;
use crate::whole::{Offload, WholeFrame, WholePort};

/// Opens a packet socket without filter and makes the interface promiscuous.
pub(crate) fn open_whole(spec: &RawSpec) -> Result<RawPort, OpenError> {
    let text = spec.to_string();
    let link = Link::find(&text, &spec.interface)?;
    let socket = socket::open_whole(&text, &link)?;
    // Frames are split only if they arrived joined.
    Ok(RawPort::new(socket, &link, MAX_SEGMENTS))
}

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
