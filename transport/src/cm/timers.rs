//! Timeouts of connection management.

use alloc::boxed::Box;

use roce_packet::mad::CmMessageKind;

use super::connection::Connection;
use super::{CmEvent, CmInput, CmState, ConnectionManager};
use crate::Instant;

impl ConnectionManager {
    /// Handles all expired deadlines. An early call has no effect.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.set_now(now);
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= self.now
        {
            self.deadlines.pop_first();
            if let Ok(mut connection) = self.take(id) {
                connection.deadline = None;
                self.on_deadline(connection);
            }
        }
    }

    fn on_deadline(&mut self, mut connection: Box<Connection>) {
        let waits = connection.retries_left > 0 && !connection.is_forsaken(self.now);
        if connection.state.repeats() && waits {
            connection.retries_left -= 1;
            self.send_again(&mut connection);
            let interval = connection.repetition.interval_ns;
            self.wake_after(&mut connection, interval);
            self.put(connection);
            return;
        }
        let from = connection.state;
        if self.advance(&mut connection, CmInput::Expire).is_none() {
            self.put(connection);
            return;
        }
        match from {
            state if state.lingers() => self.finish_lingering(connection, state),
            CmState::DreqSent => {
                self.counters.timed_out += 1;
                self.end(connection);
            }
            _ => {
                self.counters.timed_out += 1;
                self.give_up(connection, from);
            }
        }
    }

    /// Sends a REJ to a peer that does not answer, and reports the failure to the application.
    fn give_up(&mut self, mut connection: Box<Connection>, from: CmState) {
        let rejected = match from {
            CmState::ReqSent | CmState::MraReqReceived => Some(CmMessageKind::Req),
            CmState::RepSent | CmState::MraRepReceived => Some(CmMessageKind::Rep),
            _ => None,
        };
        if let Some(rejected) = rejected {
            let rej = connection.rej_timeout(rejected, self.config.ca_guid);
            self.send_of(&mut connection, &rej);
        }
        self.tell(&connection, CmEvent::Unreachable { id: connection.id, state: from });
        self.close(connection);
    }

    /// Ends a connection, and keeps its record for late packets.
    pub(super) fn end(&mut self, connection: Box<Connection>) {
        self.tell(&connection, CmEvent::Disconnected { id: connection.id });
        let nanos = connection.timewait_ns();
        self.linger(connection, nanos);
    }
}
