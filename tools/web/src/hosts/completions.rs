//! Completions: what the engine reports about work requests, and whether memory is right.

use roce_sim::pair::Side;
use roce_transport::{Cause, Wc, WcStatus};

use super::Hosts;
use super::rules;
use super::story::{Kind, Line};
use super::work::{Completion, Op, Progress, Receive, Request, bytes};

impl Hosts {
    /// Takes the completions of both hosts. Returns whether there were any.
    pub(super) fn take_completions(&mut self) -> bool {
        let mut any = false;
        for side in [Side::A, Side::B] {
            for wc in self.pair.completions(side) {
                any = true;
                self.complete(side, &wc);
            }
        }
        any
    }

    fn complete(&mut self, side: Side, wc: &Wc) {
        let end = self.end_mut(side);
        let receive = end.receives.iter().position(|receive| receive.wr_id == wc.wr_id);
        let completed = match receive.and_then(|index| end.receives.remove(index)) {
            Some(receive) => Some(self.complete_receive(side, receive, wc)),
            None => self.complete_request(side, wc),
        };
        let Some((what, completion)) = completed else { return };
        let Completion { wr_id, status, why, .. } = &completion;
        let text = format!("Request {wr_id}, a {what}, completes with {}: {why}.", status.name());
        let line = Line::new(Kind::Complete, completion.rule, text);
        self.end_mut(side).completions.push(completion);
        self.note(side, line, None);
    }

    fn complete_request(&mut self, side: Side, wc: &Wc) -> Option<(String, Completion)> {
        let (why, rule) = self.failure(side, wc);
        let end = self.end_mut(side);
        let request = end.requests.iter_mut().rev().find(|request| request.wr_id == wc.wr_id)?;
        request.progress = match wc.status {
            WcStatus::Success => Progress::Done,
            WcStatus::WrFlushError => Progress::Flushed,
            _ => Progress::Failed,
        };
        let request = request.clone();
        let is_right = is_success(wc).then(|| request.is_right(&self.pair, side));
        let (why, rule) = if is_success(wc) { success(&request) } else { (why, rule) };
        let (wr_id, op, status, len) = (wc.wr_id, request.op.key(), wc.status, request.len);
        Some((request.words(), Completion { wr_id, op, status, len, why, rule, is_right }))
    }

    fn complete_receive(&mut self, side: Side, receive: Receive, wc: &Wc) -> (String, Completion) {
        let what = format!("receive of {}", bytes(receive.len));
        let (wr_id, op, status) = (wc.wr_id, "recv", wc.status);
        if !is_success(wc) {
            let (why, rule) = self.failure(side, wc);
            return (what, Completion { wr_id, op, status, len: receive.len, why, rule, is_right: None });
        }
        let index = self.end(side).arrived;
        self.end_mut(side).arrived += 1;
        // Messages take receives in the order in which both were posted.
        let mut messages = self.end(side.other()).requests.iter().filter(|one| one.op.needs_receive());
        let message = messages.nth(index);
        let is_right = message.is_some_and(|message| receive.is_right(message, self.pair.host(side)));
        let len = message.map_or(0, |message| message.len);
        let why = match message.map(|message| message.op) {
            Some(Op::WriteImm) => "a WRITE with immediate data has arrived".to_owned(),
            _ => format!("a message of {} has arrived in it", bytes(len)),
        };
        let rule = rules::MSN;
        (what, Completion { wr_id, op, status, len, why, rule, is_right: Some(is_right) })
    }

    /// Returns why a request failed, and the rule.
    fn failure(&self, side: Side, wc: &Wc) -> (String, &'static str) {
        let reason = self.pair.host(side).engine.reason(self.end(side).qpn);
        match (reason, wc.cause) {
            (Some(reason), Cause::Flushed) => {
                (format!("the queue pair failed before, because of this: {}", reason.rule), rules::FLUSH)
            }
            (Some(reason), _) => (reason.rule.to_string(), rules::of(&reason.rule)),
            (None, _) => ("the queue pair has failed".to_owned(), rules::FLUSH),
        }
    }
}

fn is_success(wc: &Wc) -> bool {
    wc.status == WcStatus::Success
}

/// Returns why a request is complete, and the rule.
fn success(request: &Request) -> (String, &'static str) {
    let psn = request.last_psn().get();
    match request.op {
        Op::Send | Op::SendImm | Op::Write | Op::WriteImm => {
            (format!("everything up to PSN {psn} is acknowledged"), rules::ACK)
        }
        Op::Read => (format!("all its bytes up to PSN {psn} have arrived"), rules::RESPONSE),
        Op::FetchAdd | Op::CmpSwap => {
            ("the value before the operation has arrived".to_owned(), rules::ATOMIC)
        }
    }
}
