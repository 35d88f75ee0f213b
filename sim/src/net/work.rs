//! An estimate of the work of a run, before the run begins.

use super::memory::host_rates;
use super::settings::Settings;
use super::time::Time;
use super::topology::Topology;
use super::workload::FlowSpec;

/// The packets and bytes that a host sends or receives.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    packets: u64,
    bytes: u64,
}

impl Load {
    /// Returns the packets that a link of this rate carries until a time.
    fn until(self, stop: Time, rate: u64) -> u64 {
        let duration = Time::to_send(self.bytes, rate);
        if duration <= stop {
            return self.packets;
        }
        (self.packets as f64 * (stop.as_secs_f64() / duration.as_secs_f64())) as u64
    }
}

/// Estimates the number of data packets of a run, without retransmissions: those of all flows, or as many as
/// the links of the senders or of the receivers carry until the stop time. The time that a run takes is about
/// proportional to it, and to the number of links between sender and receiver.
#[must_use]
pub fn data_packets(topology: &Topology, flows: &[FlowSpec], settings: &Settings) -> u64 {
    let rates = host_rates(topology);
    let mut loads = vec![[Load::default(); 2]; rates.len()];
    for (number, flow) in (0..).zip(flows) {
        let packets = settings.of_flow(number).0.packets_of(flow.bytes);
        for (direction, host) in [flow.source, flow.destination].into_iter().enumerate() {
            let Some(load) = loads.get_mut(host as usize).and_then(|host| host.get_mut(direction)) else {
                continue;
            };
            load.packets = load.packets.saturating_add(packets);
            load.bytes = load.bytes.saturating_add(flow.bytes);
        }
    }
    let mut sums = [0_u64; 2];
    for (host, rate) in loads.iter().zip(rates) {
        for (sum, load) in sums.iter_mut().zip(host) {
            *sum = sum.saturating_add(load.until(settings.stop, rate));
        }
    }
    let [sent, received] = sums;
    sent.min(received)
}
