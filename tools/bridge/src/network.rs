//! The settings of a switch port, taken from a scenario of the simulator.

use std::num::NonZeroU64;

use roce_scenario::Scenario;
use roce_sim::net::{LinkSpec, NodeId, NodeKind, SwitchSettings, priority_of};

use super::settings::QueueSettings;

/// Returns the settings of a port of the switch of a star, for a bridge between its hosts. `pauses` is true
/// if the file sets the pauses of the bridge.
///
/// # Errors
///
/// One port cannot represent the network. The error is a sentence.
pub(super) fn port(network: &Scenario, pauses: bool) -> Result<QueueSettings, String> {
    let topology = &network.topology;
    let switches = topology.nodes.iter().filter(|node| node.kind == NodeKind::Switch).count();
    let Some(link) = topology.links.first() else { return Err(NO_STAR.to_owned()) };
    if switches != 1 || topology.links.iter().any(|other| other.spec != link.spec) {
        return Err(NO_STAR.to_owned());
    }
    if topology.links.iter().any(|link| link.faults != [None, None]) {
        return Err(
            "a bridge cannot distinguish the links of a topology: write faults as [[bridge.rule]] or as \
                    `fault` of [bridge.left] and [bridge.right] instead of [[topology.faults]]"
                .to_owned(),
        );
    }
    let data = usize::from(priority_of(network.settings.host.dscp));
    let is_switch = |node: NodeId| topology.nodes[node as usize].kind == NodeKind::Switch;
    let mut ports = topology.links.iter().map(|link| {
        let neighbour = if is_switch(link.a) { link.b } else { link.a };
        let switch = network.settings.switch.of_port(0, neighbour, link.spec.rate_bps);
        (queue(&switch, link.spec, data), switch.pfc)
    });
    let Some((port, pfc)) = ports.next() else { return Err(NO_STAR.to_owned()) };
    if ports.any(|other| other != (port.clone(), pfc)) {
        return Err(
            "a bridge cannot distinguish the ports of a switch: write the settings of one direction in \
             [bridge.queue] instead of [[switch.port]]"
                .to_owned(),
        );
    }
    if pfc != 0 && !pauses {
        return Err("the pauses of this scenario's switch depend on a shared buffer, which a bridge does not have: write \
                    `pfc = []` in [switch], or set the pauses of the bridge in [bridge.queue]"
            .to_owned());
    }
    Ok(port)
}

/// Returns the queue of a switch port for data of this priority.
fn queue(switch: &SwitchSettings, link: LinkSpec, data: usize) -> QueueSettings {
    // The queue q of a single congested port settles at alpha × the free bytes: q = alpha (buffer - q).
    let limit = switch.buffer_bytes as f64 * switch.lossy_alpha / (1.0 + switch.lossy_alpha);
    QueueSettings {
        rate: NonZeroU64::new(link.rate_bps),
        delay_ns: link.delay.as_ns(),
        limit_bytes: limit as u64,
        marking: switch.marking_of_port(link.rate_bps, data),
        // The switches of the simulator write into all telemetry.
        telemetry: true,
        ..QueueSettings::default()
    }
}

const NO_STAR: &str =
    "a bridge replaces one switch with identical links: write kind = \"star\" in [topology]";
