//! Explanations of the drop counters after a failed exchange: which packets were lost, and what to do.

use super::Snapshot;

/// A counter of lost packets: what happened to the packets, and what to do.
struct Reason {
    counter: &'static str,
    happened: &'static str,
    advice: &'static str,
}

/// The most certain explanations come first. The list omits counters that also rise in successful exchanges,
/// such as those of retransmitted and reordered packets.
const REASONS: &[Reason] = &[
    Reason {
        counter: "fault_tx_dropped",
        happened: "dropped by --fault before they were sent",
        advice: "leave --fault out to see whether the exchange then succeeds",
    },
    Reason {
        counter: "fault_tx_corrupted",
        happened: "damaged by --fault before they were sent, so the peer drops them",
        advice: "leave --fault out to see whether the exchange then succeeds",
    },
    Reason {
        counter: "rx_telemetry_refused",
        happened: "dropped because in-band telemetry follows their ICRC",
        advice: "use --telemetry on both sides, or on neither",
    },
    Reason {
        counter: "rx_icrc_encapsulated",
        happened: "dropped because their ICRC is wrong",
        advice: "a device on the path changes packets (address translation, a proxy, a bridge or peer with --fault corrupt), \
                 or the peer computes the ICRC differently: record packets with --pcap, and examine the capture with \
                 `roce dissect --bad-icrc`",
    },
    Reason {
        counter: "drop_unknown_qpn",
        happened: "dropped because their queue pair does not exist here",
        advice: "check that the peer uses the queue pair number of this exchange, and that no earlier program still sends",
    },
    Reason {
        counter: "drop_bad_address",
        happened: "dropped because their source or destination is not an address of the connection",
        advice: "check the --device and --gid-index of both sides; RoCE does not work through NAT",
    },
    Reason {
        counter: "drop_bad_state",
        happened: "dropped because the queue pair was not ready to receive",
        advice: "check that the peer sends only after both sides are connected",
    },
    Reason {
        counter: "drop_bad_pkey",
        happened: "dropped because of another partition key",
        advice: "use the same P_Key on both sides, 0xffff by default",
    },
    Reason {
        counter: "drop_bad_qkey",
        happened: "dropped because of a wrong Q_Key",
        advice: "use the Q_Key of this side's queue pair at the peer",
    },
    Reason {
        counter: "drop_no_receive",
        happened: "dropped because no receive was posted",
        advice: "post more receives before the peer sends, or keep fewer messages of the peer in flight",
    },
    Reason {
        counter: "drop_receive_too_small",
        happened: "dropped because the posted receive was too small",
        advice: "give both sides the same message size",
    },
    Reason {
        counter: "drop_access",
        happened: "dropped because of a wrong key, range or permission",
        advice: "check the remote address and rkey that the peer uses",
    },
    Reason {
        counter: "drop_bad_version",
        happened: "dropped because of an unknown transport version",
        advice: "find the other program that sends to UDP port 4791 of this address",
    },
    Reason {
        counter: "drop_unknown_opcode",
        happened: "dropped because their opcode is not assigned",
        advice: "find the other program that sends to UDP port 4791 of this address",
    },
    Reason {
        counter: "drop_short",
        happened: "dropped because they are shorter than their headers",
        advice: "find the other program that sends to UDP port 4791 of this address",
    },
    Reason {
        counter: "drop_bad_length",
        happened: "dropped because their length does not fit their opcode",
        advice: "check that both sides use the same path MTU",
    },
    Reason {
        counter: "frame_rx_malformed",
        happened: "dropped because their Ethernet, IP or UDP headers contradict each other",
        advice: "record the interface with tcpdump, and examine the packets with `roce dissect`",
    },
    Reason {
        counter: "frame_rx_wrong_vlan",
        happened: "dropped because they belong to another VLAN",
        advice: "give the device the VLAN of the peer (vlan=ID)",
    },
    Reason {
        counter: "frame_tx_unreachable",
        happened: "not sent because the next hop does not answer or no route exists",
        advice: "check `ip route get` and `ip neigh` for the address of the peer",
    },
    Reason {
        counter: "fault_rx_dropped",
        happened: "dropped by --fault after they were received",
        advice: "leave --fault out to see whether the exchange then succeeds",
    },
];

/// Maximum number of reasons in one sentence.
const MOST_REASONS: usize = 2;

/// Explains packets that this side lost in a failed exchange: the counter, the number of packets, the meaning
/// and the remedy. Returns `None` if no counter explains a loss. The text has no full stop, so that the error
/// can follow it.
///
/// ```
/// use roce::observe::{Snapshot, explain_drops};
///
/// assert_eq!(explain_drops(&Snapshot::default()), None);
/// ```
#[must_use]
pub fn explain_drops(counters: &Snapshot) -> Option<String> {
    let telemetry = counters.get("rx_telemetry_refused").unwrap_or(0);
    let count_of = |reason: &Reason| {
        let count = counters.get(reason.counter).unwrap_or(0);
        // Packets with telemetry are also counted as packets with a wrong ICRC.
        if reason.counter == "rx_icrc_encapsulated" { count.saturating_sub(telemetry) } else { count }
    };
    let found = REASONS.iter().map(|reason| (count_of(reason), reason)).filter(|(count, _)| *count > 0);
    let sentences: Vec<String> = found.take(MOST_REASONS).map(sentence).collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

fn sentence((count, reason): (u64, &Reason)) -> String {
    let Reason { counter, happened, advice } = reason;
    if count == 1 {
        return format!("on this side 1 packet was {} ({counter}): {advice}", singular(happened));
    }
    format!("on this side {count} packets were {happened} ({counter}): {advice}")
}

/// Returns the wording for one packet.
fn singular(happened: &str) -> String {
    happened
        .replace("their ", "its ")
        .replace("they were", "it was")
        .replace("they are", "it is")
        .replace("they belong", "it belongs")
        .replace("drops them", "drops it")
        .replace("its Ethernet, IP or UDP headers", "its headers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::CounterSource;

    struct Counts(Vec<(&'static str, u64)>);

    impl CounterSource for Counts {
        fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
            self.0.iter().for_each(|(name, value)| visit(name, *value));
        }
    }

    fn explain(counts: &[(&'static str, u64)]) -> Option<String> {
        explain_drops(&Snapshot::of(&Counts(counts.to_vec())))
    }

    #[test]
    fn every_reason_says_counter_number_meaning_and_remedy() {
        for reason in REASONS {
            for (count, words) in [(1, "1 packet was "), (7, "7 packets were ")] {
                let text = explain(&[(reason.counter, count)]).unwrap();
                assert!(text.starts_with(&format!("on this side {words}")), "{text}");
                assert!(text.contains(&format!("({}): ", reason.counter)), "{text}");
                assert!(text.ends_with(reason.advice) && !text.ends_with('.'), "{text}");
                let plural = text.contains("they") || text.contains(" them") || text.contains("their");
                assert!(count > 1 || !plural || reason.advice.contains("their"), "{text}");
            }
        }
    }

    #[test]
    fn packets_that_every_exchange_loses_explain_nothing() {
        assert_eq!(
            explain(&[("drop_stale_response", 5), ("drop_out_of_sequence", 2), ("rx_handled", 9)]),
            None
        );
        assert_eq!(explain(&[("rx_icrc_encapsulated", 0)]), None);
    }

    /// A packet with telemetry is counted twice but has one reason.
    #[test]
    fn telemetry_is_not_damage() {
        let text = explain(&[("rx_icrc_encapsulated", 4), ("rx_telemetry_refused", 4)]).unwrap();
        assert!(text.contains("--telemetry") && !text.contains("rx_icrc_encapsulated"), "{text}");
    }
}
