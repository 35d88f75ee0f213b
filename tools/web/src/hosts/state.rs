//! The state of both hosts as JSON.

use roce_packet::Psn;
use roce_sim::pair::Side;
use roce_transport::Instant;
use serde_json::{Value, json};

use super::story::{Snapshot, name};
use super::work::{Completion, Progress, Request};
use super::{End, Entry, Hosts};

/// Most requests and completions of a host in the state; older ones are left out.
const MOST_SHOWN: usize = 100;

impl Hosts {
    pub(super) fn to_json(&self) -> Value {
        let log: Vec<Value> = self.log.iter().map(|entry| self.entry(entry)).collect();
        json!({
            "now_us": self.us(self.pair.now),
            "idle": self.is_idle(),
            "hosts": [self.host(Side::A), self.host(Side::B)],
            "wire": self.wire(),
            "log": log,
        })
    }

    /// Returns a time in microseconds since the start.
    fn us(&self, at: Instant) -> f64 {
        at.since(self.start).as_nanos() as f64 / 1e3
    }

    fn host(&self, side: Side) -> Value {
        let (host, end) = (self.pair.host(side), self.end(side));
        let Some(now) = Snapshot::take(&self.pair, side, end.qpn) else { return Value::Null };
        let [retries, rnr_retries] = now.rc.retries;
        let timer = now.rc.timers.into_iter().flatten().min();
        let receives = host.engine.queue_depths(end.qpn).map_or(0, |(_, receives)| receives);
        let next = now.attributes.sq_psn;
        let send_queue: Vec<Value> = newest(&end.requests).map(|one| request(one, next)).collect();
        let completions: Vec<Value> = newest(&end.completions).map(completion).collect();
        json!({
            "name": name(side),
            "address": host.address.to_string(),
            "qpn": format!("{:#x}", end.qpn.get()),
            "state": now.attributes.state.name(),
            "next_psn": next.get(),
            "unacked_psn": now.unacked.get(),
            "expected_psn": now.attributes.rq_psn.get(),
            "msn": now.rc.msn.get(),
            "retries": retries,
            "rnr_retries": rnr_retries,
            "timer_us": timer.map(|at| self.us(at)),
            "send_queue": send_queue,
            "receives": receives,
            "completions": completions,
        })
    }

    /// Returns the packets on the link in the order of their departure.
    fn wire(&self) -> Vec<Value> {
        let mut packets: Vec<_> = self.pair.on_link().collect();
        packets.sort_by_key(|packet| packet.number);
        let packets =
            packets.into_iter().filter_map(|on_link| Some((self.packets.get(on_link.number)?, on_link)));
        let packets = packets.map(|(packet, on_link)| {
            json!({
                "id": packet.id,
                "from": packet.from as usize,
                "opcode": packet.opcode.name().unwrap_or("unknown"),
                "psn": packet.psn.get(),
                "label": packet.label,
                "sent_us": self.us(packet.sent),
                "arrives_us": self.us(on_link.arrives),
                "action": packet.action,
            })
        });
        packets.collect()
    }

    fn entry(&self, entry: &Entry) -> Value {
        let mut json = json!({
            "us": self.us(entry.at),
            "side": entry.side as usize,
            "kind": entry.line.kind.key(),
            "text": entry.line.text,
            "rule": entry.line.rule,
        });
        if let (Some(packet), Some(fields)) = (entry.packet, json.as_object_mut()) {
            fields.insert("packet".to_owned(), packet.into());
        }
        json
    }
}

fn newest<T>(all: &[T]) -> impl Iterator<Item = &T> {
    all.iter().skip(all.len().saturating_sub(MOST_SHOWN))
}

/// Returns a request. `next` is the PSN that will be sent next for the first time.
fn request(request: &Request, next: Psn) -> Value {
    let is_started = request.first_psn.before(next);
    let state = match request.progress {
        Progress::Open if is_started => "sent",
        Progress::Open => "queued",
        Progress::Done => "done",
        Progress::Failed => "failed",
        Progress::Flushed => "flushed",
    };
    // A request that was flushed before it began never had PSNs.
    let has_psns = is_started || request.progress == Progress::Open;
    json!({
        "wr_id": request.wr_id,
        "op": request.op.key(),
        "bytes": request.len,
        "first_psn": has_psns.then(|| request.first_psn.get()),
        "last_psn": has_psns.then(|| request.last_psn().get()),
        "state": state,
    })
}

fn completion(completion: &Completion) -> Value {
    json!({
        "wr_id": completion.wr_id,
        "op": completion.op,
        "status": completion.status.name(),
        "bytes": completion.len,
        "why": completion.why,
        "rule": completion.rule,
        "right": completion.is_right,
    })
}

impl End {
    /// Tells whether a request has no completion yet.
    pub(super) fn is_busy(&self) -> bool {
        self.requests.iter().rev().any(|request| request.progress == Progress::Open)
    }
}
