//! A TAP as a port that carries every frame. Only packets in tunnels are split and completed in this process.

use std::io;

use rustix::io::Errno;

use super::{TapPort, write};
use crate::segment::Plan;
use crate::whole::{Offload, WholeFrame, WholePort};

impl WholePort for TapPort {
    fn receive_whole(&mut self, sink: &mut dyn FnMut(&WholeFrame<'_>)) -> io::Result<usize> {
        self.receive_all(&mut |offload, bytes| {
            sink(&WholeFrame { offload, bytes, vlan: None });
            true
        })
    }

    fn send_whole(&mut self, offload: Offload, frame: &[u8]) -> bool {
        let plan = Plan::of(frame, &offload);
        if let Some(plan) = plan.filter(Plan::is_tunnel) {
            return self.send_finished(&plan, frame);
        }
        match (write(&self.tun, offload, frame), plan) {
            (Ok(()), _) => true,
            (Err(Errno::INVAL), Some(plan)) => self.send_finished(&plan, frame),
            (Err(error), _) => !self.note(error),
        }
    }
}

impl TapPort {
    /// Carries out the offloads of a frame and sends its packets. `false` if some must wait: the next call
    /// must be for the same frame and continues.
    fn send_finished(&mut self, plan: &Plan, frame: &[u8]) -> bool {
        while self.finished < plan.count() {
            plan.write(frame, self.finished, &mut self.single, &[]);
            if let Err(error) = write(&self.tun, Offload::NONE, &self.single)
                && self.note(error)
            {
                return false;
            }
            self.finished += 1;
        }
        self.finished = 0;
        self.counters.tx_finished += 1;
        true
    }
}
