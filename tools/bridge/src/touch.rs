//! The record of the changes to a packet and their reasons, for the comment in a capture.

use std::fmt::Write as _;

use roce_fault::{Delivery, FaultPlan};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touch {
    /// The rule that applied, as an index into the plan.
    pub rule: Option<usize>,
    /// The effect of rules or chance, if any.
    pub delivery: Option<Delivery>,
    pub loss: Option<Loss>,
    /// The bytes left in the queue when it marked the packet.
    pub queue_mark: Option<u64>,
}

/// The reason why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A rule or chance dropped it.
    Fault,
    /// The queue was full.
    Queue,
    /// Too many packets were held.
    Held,
}

impl Touch {
    /// Returns the comment, or `None` if the packet passed unchanged.
    pub fn text(&self, plan: &FaultPlan) -> Option<String> {
        let mut text = String::new();
        if self.delivery.is_some() || self.loss == Some(Loss::Fault) {
            match self.rule.and_then(|rule| Some((rule, plan.rules.get(rule)?))) {
                Some((index, rule)) => _ = write!(text, "rule {} ({rule}):", index + 1),
                None => text.push_str("chance:"),
            }
        }
        if let Some(delivery) = &self.delivery {
            describe(delivery, &mut text);
        }
        let mut append = |part: &str| {
            text.push_str(if text.is_empty() || text.ends_with(':') { "" } else { "," });
            text.push_str(if text.is_empty() { "" } else { " " });
            text.push_str(part);
        };
        if let Some(queued) = self.queue_mark {
            append(&format!("marked CE by the queue, which holds {queued} bytes after this packet"));
        }
        match self.loss {
            Some(Loss::Fault) => append("dropped"),
            Some(Loss::Queue) => append("dropped because the queue is full"),
            Some(Loss::Held) => append("dropped because too many packets are held"),
            None => {}
        }
        (!text.is_empty()).then_some(text)
    }
}

fn describe(delivery: &Delivery, text: &mut String) {
    let mut parts = Vec::new();
    if delivery.mark {
        parts.push("marked CE".to_owned());
    }
    match delivery.clears {
        0 => {}
        0b11 => parts.push("ECN cleared".to_owned()),
        _ => parts.push("DSCP cleared".to_owned()),
    }
    if !delivery.flips.is_empty() {
        let bits: Vec<String> = delivery.flips.bits().map(|bit| bit.to_string()).collect();
        parts.push(format!("corrupted (bits {} from the BTH on)", bits.join(", ")));
    }
    if delivery.duplicate {
        parts.push("duplicated".to_owned());
    }
    if delivery.delay_ns > 0 {
        parts.push(format!("delayed by {} ns", delivery.delay_ns));
    }
    if let Some(reorder) = delivery.reorder {
        parts.push(format!("moved behind {} later packets", reorder.behind));
    }
    if !parts.is_empty() {
        text.push(' ');
        text.push_str(&parts.join(", "));
    }
}
