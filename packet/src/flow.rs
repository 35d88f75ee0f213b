//! UDP source ports: rules by which different senders spread their flows over the network's paths.
//!
//! Switches hash the source port to choose a path, so all packets of a queue pair must use one port. A
//! receiver must not filter by source port, because every producer below chooses it differently. All rules
//! except [`SourcePortRule::Constant`] use the dynamic range 0xc000 to 0xffff, as Annex A17 recommends.

use core::fmt;
use core::str::FromStr;

use crate::number::Qpn;

/// The lowest port of the range that Annex A17 recommends.
pub const LOWEST_SOURCE_PORT: u16 = 0xc000;

/// Returns the port of a 20-bit flow label: its low 14 bits XOR its upper six bits.
#[must_use]
pub const fn flow_label_to_port(flow_label: u32) -> u16 {
    let low = flow_label & 0x3fff;
    let high = (flow_label >> 14) & 0x3f;
    (low ^ high) as u16 | LOWEST_SOURCE_PORT
}

/// Returns a nonzero flow label whose port is `port`: the inverse of [`flow_label_to_port`] for ports of
/// [`LOWEST_SOURCE_PORT`] or more.
#[must_use]
pub const fn flow_label_of_port(port: u16) -> u32 {
    match port as u32 & 0x3fff {
        // Label 0 means "no label"; in this label the upper bits cancel the lower ones.
        0 => 1 << 14 | 1,
        low => low,
    }
}

/// Returns the flow label that Linux derives from the two queue pairs of a connection. Both ends compute the
/// same label.
#[must_use]
pub const fn qp_pair_flow_label(one: Qpn, other: Qpn) -> u32 {
    // The product of two 24-bit numbers has 48 bits, folded to 20.
    let mut product = one.get() as u64 * other.get() as u64;
    product ^= product >> 20;
    product ^= product >> 40;
    (product & 0x000f_ffff) as u32
}

/// Returns the flow label that rdma_cm of Linux derives from the ports of a connection, as the active side
/// sees them.
#[must_use]
pub const fn rdma_cm_flow_label(source_port: u16, destination_port: u16) -> u32 {
    (source_port as u32 * 31 + destination_port as u32) & 0x000f_ffff
}

/// Returns the port that rxe in the kernel uses without a flow label (QP1 and UD): a multiplicative hash of
/// the sender's own QP number.
#[must_use]
pub const fn rxe_qpn_port(local: Qpn) -> u16 {
    // 14 bits of the golden ratio hash; 0x3fff + 0xc000 just fits into 16 bits.
    LOWEST_SOURCE_PORT + (local.get().wrapping_mul(0x61c8_8647) >> 18) as u16
}

/// Returns the port that mlx4 (ConnectX-3 Pro) derives from the two QP numbers.
#[must_use]
pub const fn mlx4_port(local: Qpn, remote: Qpn) -> u16 {
    let folded = mlx4_fold(local);
    let folded = if local.get() == remote.get() { folded } else { folded ^ mlx4_fold(remote) };
    folded | LOWEST_SOURCE_PORT
}

/// Folds 24 bits to 16: the lowest byte becomes its XOR with the highest.
const fn mlx4_fold(qpn: Qpn) -> u16 {
    let number = qpn.get();
    (((number & 0xff) ^ ((number >> 16) & 0xff)) | (number & 0xff00)) as u16
}

/// Returns the port that WinOF-2 derives from the ports of a connection. Both ends compute the same port.
#[must_use]
pub const fn win_of_2_port(source_port: u16, destination_port: u16) -> u16 {
    (source_port ^ destination_port) | LOWEST_SOURCE_PORT
}

/// The inputs of a source port rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowInputs {
    /// QP of the sender.
    pub local: Qpn,
    /// QP of the receiver.
    pub remote: Qpn,
    /// 20-bit flow label of the address vector, or of the IPv6 address of the connection; 0 without a label.
    pub flow_label: u32,
    /// Source and destination port of the rdma_cm connection, as its active side sees them, if rdma_cm made
    /// the connection.
    pub connection: Option<(u16, u16)>,
}

impl FlowInputs {
    /// Returns the label of the address vector, or `otherwise` if it is 0.
    const fn flow_label_or(&self, otherwise: u32) -> u32 {
        let given = self.flow_label & 0x000f_ffff;
        if given == 0 { otherwise } else { given }
    }

    const fn qp_pair_flow_label(&self) -> u32 {
        qp_pair_flow_label(self.local, self.remote)
    }
}

/// A rule that chooses a UDP source port. Every rule has a name, see [`Self::from_name`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SourcePortRule {
    /// The flow label of the address vector, or that of the QP pair without one. Linux drivers use this
    /// rule for connected queue pairs, for example those of ConnectX-5 and rxe. Named `flow-label`.
    #[default]
    FlowLabel,
    /// Always the flow label of the QP pair. Named `qp-pair`.
    QpPair,
    /// The flow label that rdma_cm derives from the connection's ports, unless the address has one. Without a
    /// connection, this rule equals [`Self::FlowLabel`]. Named `rdma-cm`.
    RdmaCm,
    /// A hash of the sender's own QP number, the fallback of rxe. Named `rxe-qpn`.
    RxeQpn,
    /// The folded QP numbers of ConnectX-3 Pro. Named `mlx4`.
    Mlx4,
    /// The flow label if there is one, otherwise the lowest port of the range: mlx5 for UD. Named `mlx5-ud`.
    Mlx5Ud,
    /// The exclusive or of the connection's ports: Windows with WinOF-2. Without a connection, this rule
    /// equals [`Self::FlowLabel`]. Named `winof2`.
    WinOf2,
    /// One port for everything: 0 as in CNPs of ConnectX, or a small number as in older Huawei NICs. Named
    /// `constant` with the port, for example `constant:69`.
    Constant(u16),
}

impl SourcePortRule {
    /// All rules, in the order of the names in the help text. The constant is 0, as in CNPs of ConnectX.
    pub const ALL: [Self; 8] = [
        Self::FlowLabel,
        Self::QpPair,
        Self::RdmaCm,
        Self::RxeQpn,
        Self::Mlx4,
        Self::Mlx5Ud,
        Self::WinOf2,
        Self::Constant(0),
    ];

    /// Returns the name of the rule, without the port of a constant. [`fmt::Display`] includes the port.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlowLabel => "flow-label",
            Self::QpPair => "qp-pair",
            Self::RdmaCm => "rdma-cm",
            Self::RxeQpn => "rxe-qpn",
            Self::Mlx4 => "mlx4",
            Self::Mlx5Ud => "mlx5-ud",
            Self::WinOf2 => "winof2",
            Self::Constant(_) => "constant",
        }
    }

    /// Returns the rule with this name; `constant` needs a port, as in `constant:69`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some(port) = name.strip_prefix("constant:") {
            return port.parse().ok().map(Self::Constant);
        }
        Self::ALL.into_iter().find(|rule| !matches!(rule, Self::Constant(_)) && rule.name() == name)
    }

    /// Returns the port for packets of one flow.
    #[must_use]
    pub const fn port(self, inputs: &FlowInputs) -> u16 {
        let default = inputs.flow_label_or(inputs.qp_pair_flow_label());
        match (self, inputs.connection) {
            (Self::QpPair, _) => flow_label_to_port(inputs.qp_pair_flow_label()),
            (Self::RdmaCm, Some((source, destination))) => {
                flow_label_to_port(inputs.flow_label_or(rdma_cm_flow_label(source, destination)))
            }
            (Self::WinOf2, Some((source, destination))) => win_of_2_port(source, destination),
            (Self::FlowLabel | Self::RdmaCm | Self::WinOf2, _) => flow_label_to_port(default),
            (Self::RxeQpn, _) => rxe_qpn_port(inputs.local),
            (Self::Mlx4, _) => mlx4_port(inputs.local, inputs.remote),
            (Self::Mlx5Ud, _) => flow_label_to_port(inputs.flow_label_or(0)),
            (Self::Constant(port), _) => port,
        }
    }
}

impl fmt::Display for SourcePortRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(port) => write!(f, "constant:{port}"),
            rule => f.write_str(rule.name()),
        }
    }
}

/// The error for the name of an unknown rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSourcePortRule;

impl fmt::Display for UnknownSourcePortRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown source port rule: expected one of ")?;
        for rule in SourcePortRule::ALL {
            match rule {
                SourcePortRule::Constant(_) => f.write_str("constant:<port>")?,
                rule => write!(f, "{}, ", rule.name())?,
            }
        }
        Ok(())
    }
}

impl core::error::Error for UnknownSourcePortRule {}

impl FromStr for SourcePortRule {
    type Err = UnknownSourcePortRule;

    fn from_str(name: &str) -> Result<Self, UnknownSourcePortRule> {
        Self::from_name(name).ok_or(UnknownSourcePortRule)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    const INPUTS: FlowInputs =
        FlowInputs { local: Qpn::new(20591), remote: Qpn::new(35255), flow_label: 0, connection: None };

    #[test]
    fn every_port_has_a_flow_label_that_is_not_0() {
        for port in LOWEST_SOURCE_PORT..=u16::MAX {
            let label = flow_label_of_port(port);
            assert!(label != 0 && label < 1 << 20 && flow_label_to_port(label) == port, "{port}");
        }
    }

    /// Ports of ConnectX-5 queue pairs, equal in both directions.
    #[test]
    fn queue_pairs_of_hardware() {
        let seen = [
            (20591, 35255, 320_749, 58622),
            (20608, 35272, 222_901, 59064),
            (20398, 35062, 66_462, 50074),
            (21556, 36220, 618_456, 61437),
            (21557, 36221, 674_825, 52256),
        ];
        for (one, other, label, port) in seen {
            let (one, other) = (Qpn::new(one), Qpn::new(other));
            assert_eq!(qp_pair_flow_label(one, other), label);
            assert_eq!(qp_pair_flow_label(other, one), label);
            assert_eq!(flow_label_to_port(label), port);
        }
        // Numbers so large that every fold matters, computed with the formula.
        let label = |one, other| qp_pair_flow_label(Qpn::new(one), Qpn::new(other));
        assert_eq!(label(0xff_ffff, 0xff_ffff), 0xf_ff1e);
        assert_eq!(label(0xab_cdef, 0x87_6543), 0x2_e834);
        // Two rxe queue pairs with equal numbers.
        assert_eq!(flow_label_to_port(qp_pair_flow_label(Qpn::new(0x13), Qpn::new(0x13))), 49513);
    }

    /// Labels of rdma_cm in a REQ of a ConnectX and in one of rxe, with the ports on the wire.
    #[test]
    fn connections_of_rdma_cm() {
        assert_eq!(rdma_cm_flow_label(45050, 27411), 0x5_ba59);
        assert_eq!(flow_label_to_port(0x5_ba59), 0xfa4f);
        assert_eq!(rdma_cm_flow_label(43840, 7174), 0x4_d8c6);
        assert_eq!(flow_label_to_port(0x4_d8c6), 0xd8d5);
        assert_eq!(rdma_cm_flow_label(u16::MAX, u16::MAX), (65_535 * 32) & 0xf_ffff);
    }

    #[test]
    fn queue_pair_hash_of_rxe() {
        assert_eq!(rxe_qpn_port(Qpn::GSI), 55410);
        assert_eq!(rxe_qpn_port(Qpn::new(17)), 57236);
        assert_eq!(rxe_qpn_port(Qpn::new(19)), 53368);
    }

    #[test]
    fn fold_of_mlx4() {
        assert_eq!(mlx4_port(Qpn::new(0x12_3456), Qpn::new(0)), 0xc000 | 0x3444);
        assert_eq!(mlx4_port(Qpn::new(0x12_3456), Qpn::new(0x00_00ff)), 0xc000 | 0x34bb);
        // Two equal numbers would cancel each other out.
        assert_eq!(mlx4_port(Qpn::new(0x41), Qpn::new(0x41)), 0xc041);
        assert_eq!(mlx4_port(Qpn::new(0x41), Qpn::new(0x42)), 0xc003);
    }

    #[test]
    fn rule_by_rule() {
        use SourcePortRule::*;
        let with_label = FlowInputs { flow_label: 0x5_ba59, ..INPUTS };
        let with_connection = FlowInputs { connection: Some((43840, 7174)), ..INPUTS };
        let with_both = FlowInputs { flow_label: 0x5_ba59, ..with_connection };
        let rows = [
            (FlowLabel, [58622, 0xfa4f, 58622, 0xfa4f]),
            (QpPair, [58622, 58622, 58622, 58622]),
            (RdmaCm, [58622, 0xfa4f, 0xd8d5, 0xfa4f]),
            (RxeQpn, [rxe_qpn_port(INPUTS.local); 4]),
            (Mlx4, [0xc000 | (0x506f ^ 0x89b7); 4]),
            (Mlx5Ud, [0xc000, 0xfa4f, 0xc000, 0xfa4f]),
            (WinOf2, [58622, 0xfa4f, 0xc000 | (43840 ^ 7174), 0xc000 | (43840 ^ 7174)]),
            (Constant(69), [69; 4]),
        ];
        for (rule, expected) in rows {
            let ports = [INPUTS, with_label, with_connection, with_both].map(|inputs| rule.port(&inputs));
            assert_eq!(ports, expected, "{rule}");
        }
        // A label has only 20 bits.
        let inputs = FlowInputs { flow_label: 0xfff0_0000, ..INPUTS };
        assert_eq!(FlowLabel.port(&inputs), 58622);
    }

    #[test]
    fn all_stay_in_the_dynamic_range() {
        for label in (0..=0xf_ffff).step_by(7) {
            assert!(flow_label_to_port(label) >= LOWEST_SOURCE_PORT);
        }
        for number in (0..=0xff_ffff).step_by(251).chain([0xff_ffff]) {
            let inputs =
                FlowInputs { local: Qpn::new(number), connection: Some((number as u16, 1)), ..INPUTS };
            for rule in SourcePortRule::ALL {
                assert!(rule.port(&inputs) >= LOWEST_SOURCE_PORT || rule == SourcePortRule::Constant(0));
            }
        }
    }

    #[test]
    fn names_go_both_ways() {
        for rule in SourcePortRule::ALL.into_iter().chain([SourcePortRule::Constant(72)]) {
            assert_eq!(rule.to_string().parse(), Ok(rule));
            assert!(UnknownSourcePortRule.to_string().contains(rule.name()));
        }
        assert_eq!(SourcePortRule::from_name("qp-pair"), Some(SourcePortRule::QpPair));
        for name in ["", "constant", "constant:", "constant:65536", "constant:-1", "QP-PAIR", "ecmp"] {
            assert_eq!(SourcePortRule::from_name(name), None, "{name}");
        }
    }
}
