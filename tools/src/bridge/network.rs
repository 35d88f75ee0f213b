//! The port of a switch, out of a scenario of the simulator.

use std::num::NonZeroU64;

use roce_sim::net::{NodeKind, priority_of};
use roce_sim::scenario::Scenario;

use super::settings::QueueSettings;

/// What a port of the switch in the middle of a star does, for a bridge between its hosts. `pauses` says that somebody has
/// said what shall be paused.
///
/// # Errors
///
/// The network is more than one port, as a sentence.
pub(super) fn port(network: &Scenario, pauses: bool) -> Result<QueueSettings, String> {
    let topology = &network.topology;
    let switches = topology.nodes.iter().filter(|node| node.kind == NodeKind::Switch).count();
    let Some(link) = topology.links.first() else { return Err(NO_STAR.to_owned()) };
    if switches != 1 || topology.links.iter().any(|other| other.spec != link.spec) {
        return Err(NO_STAR.to_owned());
    }
    if topology.links.iter().any(|link| link.faults.is_some()) {
        return Err("a bridge cannot tell the links of a topology apart: say what goes wrong in [[bridge.rule]] or as \
                    `fault` of [bridge.left] and [bridge.right] instead of [[topology.faults]]"
            .to_owned());
    }
    let switch = &network.settings.switch;
    if switch.pfc != 0 && !pauses {
        return Err("the switch of this scenario pauses, by a buffer that a bridge does not have: write `pfc = []` in \
                    [switch], or say what the bridge pauses in [bridge.queue]"
            .to_owned());
    }
    // Where one port is congested, its queue q comes to rest at alpha times what it leaves free: q = alpha (buffer - q).
    let limit = switch.buffer_bytes as f64 * switch.lossy_alpha / (1.0 + switch.lossy_alpha);
    let data = usize::from(priority_of(network.settings.host.dscp));
    Ok(QueueSettings {
        rate: NonZeroU64::new(link.spec.rate_bps),
        delay_ns: link.spec.delay.as_ns(),
        limit_bytes: limit as u64,
        marking: switch.marking[data],
        ..QueueSettings::default()
    })
}

const NO_STAR: &str =
    "a bridge takes the place of one switch whose links are all alike: [topology] takes kind = \"star\"";
