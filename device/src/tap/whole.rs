//! A TAP as a port that carries every frame: nothing is finished, split or joined on the way.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use roce_transport::Instant;
use rustix::io::Errno;

use super::ioctl::VNET_HEADER;
use super::{BURST, TapPort};
use crate::framed::port::{FramePort, PortRecord};
use crate::whole::{Offload, WholeFrame, WholePort};

impl WholePort for TapPort {
    fn record(&self) -> &PortRecord {
        &self.record
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&WholeFrame<'_>)) -> io::Result<usize> {
        for count in 0..BURST {
            let len = match rustix::io::read(&self.tun, &mut self.buffer[..]) {
                Ok(len) => len,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(count),
                Err(error) => return Err(self.record.lasting(error)),
            };
            match self.buffer.get(..len).and_then(<[u8]>::split_first_chunk::<VNET_HEADER>) {
                Some((header, bytes)) => sink(&WholeFrame { offload: Offload(*header), bytes, vlan: None }),
                None => self.counters.rx_malformed += 1,
            }
        }
        Ok(BURST)
    }

    fn send(&mut self, offload: Offload, frame: &[u8]) -> bool {
        loop {
            match rustix::io::writev(&self.tun, &[IoSlice::new(&offload.0), IoSlice::new(frame)]) {
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(error) => return !self.note(error),
            }
        }
    }

    fn flush(&mut self, _: Instant) -> io::Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        FramePort::counters(self, visit);
    }
}
