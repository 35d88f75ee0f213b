//! Settings of some switches, and of some of their ports.
//!
//! A rule selects ports and changes their settings. When a simulation is built, all rules are merged into the
//! settings of the network. Every port then has its settings in one place, without any search while frames
//! are forwarded.

use super::settings::{PortChanges, PortRule, SwitchSettings};
use super::topology::NodeId;

impl PortRule {
    /// Returns whether the rule applies to whole switches.
    const fn is_for_switches(&self) -> bool {
        self.neighbours.is_none() && self.rate_bps.is_none()
    }

    fn has_switch(&self, switch: u32) -> bool {
        self.switches.as_ref().is_none_or(|list| list.contains(&switch))
    }

    /// Returns whether the rule applies to the port of this switch to this neighbour, with this link rate.
    #[must_use]
    pub fn has_port(&self, switch: u32, neighbour: NodeId, rate_bps: u64) -> bool {
        self.has_switch(switch)
            && self.neighbours.as_ref().is_none_or(|list| list.contains(&neighbour))
            && self.rate_bps.is_none_or(|rate| rate == rate_bps)
    }

    /// Returns the scenario key that makes the rule invalid, and the reason.
    fn problem(&self) -> Option<(&'static str, &'static str)> {
        let PortChanges { buffer_bytes, balance, .. } = self.changes;
        let checks = [
            (
                "buffer",
                buffer_bytes.is_none(),
                "all ports of a switch share this setting, so it cannot belong to one port",
            ),
            (
                "balance",
                balance.is_none(),
                "a switch applies this setting before a frame has a port, so it cannot belong to one port",
            ),
        ];
        let wrong = checks.into_iter().find(|(_, good, _)| !good).map(|(key, _, reason)| (key, reason));
        wrong.filter(|_| !self.is_for_switches())
    }
}

impl PortChanges {
    fn apply(&self, settings: &mut SwitchSettings) {
        fn set<T: Copy>(own: &mut T, given: Option<T>) {
            *own = given.unwrap_or(*own);
        }
        set(&mut settings.buffer_bytes, self.buffer_bytes);
        set(&mut settings.balance, self.balance);
        set(&mut settings.reserve_bytes, self.reserve_bytes);
        set(&mut settings.headroom, self.headroom);
        set(&mut settings.threshold, self.threshold);
        set(&mut settings.xon_offset_bytes, self.xon_offset_bytes);
        set(&mut settings.lossy_alpha, self.lossy_alpha);
        set(&mut settings.pfc, self.pfc);
        set(&mut settings.watchdog, self.watchdog);
        set(&mut settings.trimming, self.trimming);
        for (own, given) in settings.marking.iter_mut().zip(self.marking) {
            set(own, given);
        }
        for (own, given) in settings.scheduling.iter_mut().zip(self.scheduling) {
            set(own, given);
        }
    }
}

impl SwitchSettings {
    /// Returns the settings of a whole switch by its number in the order of the topology, with all rules
    /// applied.
    #[must_use]
    pub fn of_switch(&self, switch: u32) -> Self {
        self.changed_by(|rule| rule.is_for_switches() && rule.has_switch(switch))
    }

    /// Returns the settings of the port of a switch to a neighbour with this link rate, with all rules
    /// applied.
    #[must_use]
    pub fn of_port(&self, switch: u32, neighbour: NodeId, rate_bps: u64) -> Self {
        self.changed_by(|rule| rule.has_port(switch, neighbour, rate_bps))
    }

    fn changed_by(&self, applies: impl Fn(&PortRule) -> bool) -> Self {
        let mut own = Self { port_rules: Vec::new(), ..self.clone() };
        for rule in self.port_rules.iter().filter(|rule| applies(rule)) {
            rule.changes.apply(&mut own);
        }
        own
    }

    /// Returns the first setting out of range, of the network or of a rule: the index of the rule, the
    /// scenario key and the reason.
    #[must_use]
    pub fn problem(&self) -> Option<(Option<usize>, &'static str, &'static str)> {
        let of_rule = |(place, rule): (usize, &PortRule)| {
            // The validity of a key does not depend on other keys.
            let wrong =
                rule.problem().or_else(|| self.changed_by(|other| std::ptr::eq(other, rule)).own_problem());
            wrong.map(|(key, reason)| (Some(place), key, reason))
        };
        let own = self.own_problem().map(|(key, reason)| (None, key, reason));
        own.or_else(|| self.port_rules.iter().enumerate().find_map(of_rule))
    }

    /// Returns the priorities that are lossless at any port.
    fn any_pfc(&self) -> u8 {
        self.port_rules.iter().filter_map(|rule| rule.changes.pfc).fold(self.pfc, |all, pfc| all | pfc)
    }

    /// Returns why frames cannot be trimmed in a network with these data priorities: the index of the rule,
    /// and the reason.
    pub(super) fn trimming_problem(&self, data: u8) -> Option<(Option<usize>, &'static str)> {
        let pfc = self.any_pfc();
        let of_rules = self
            .port_rules
            .iter()
            .enumerate()
            .map(|(place, rule)| (Some(place), rule.changes.trimming.flatten()));
        let all = std::iter::once((None, self.trimming)).chain(of_rules);
        all.filter_map(|(place, trimming)| Some((place, trimming?.problem(pfc, data)?))).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::marking::Marking;
    use crate::net::settings::{Balance, Class, Headroom, PRIORITIES, Threshold, Trimming, Watchdog};

    fn rule(
        switches: Option<u32>,
        neighbours: Option<NodeId>,
        rate_bps: Option<u64>,
        lossy_alpha: f64,
    ) -> PortRule {
        PortRule {
            switches: switches.map(|switch| vec![switch]),
            neighbours: neighbours.map(|node| vec![node]),
            rate_bps,
            changes: PortChanges { lossy_alpha: Some(lossy_alpha), ..PortChanges::default() },
        }
    }

    #[test]
    fn the_last_rule_that_selects_a_port_counts() {
        let port_rules = vec![
            rule(None, None, Some(100), 2.0),
            rule(Some(1), None, None, 3.0),
            rule(Some(1), Some(7), Some(100), 4.0),
        ];
        let settings = SwitchSettings { port_rules, ..SwitchSettings::default() };
        for (switch, neighbour, rate, expected) in [
            (0, 7, 25, 1.0),
            (0, 7, 100, 2.0),
            (1, 6, 100, 3.0),
            (1, 6, 25, 3.0),
            (1, 7, 100, 4.0),
            (1, 7, 25, 3.0),
        ] {
            let alpha = settings.of_port(switch, neighbour, rate).lossy_alpha;
            assert!((alpha - expected).abs() < 1e-9, "{switch} {neighbour} {rate}: {alpha}");
        }
        assert!(
            (settings.of_switch(1).lossy_alpha - 3.0).abs() < 1e-9,
            "rules of its ports are not those of a switch"
        );
    }

    #[test]
    fn every_change_arrives_and_nothing_else_changes() {
        let dog = Watchdog { after: crate::net::Time::from_us(1), restore: crate::net::Time::from_us(2) };
        let changes = PortChanges {
            buffer_bytes: Some(1),
            balance: Some(Balance::Spray),
            reserve_bytes: Some(2),
            headroom: Some(Headroom::Bytes(3)),
            threshold: Some(Threshold::Static { bytes: 4 }),
            xon_offset_bytes: Some(5),
            lossy_alpha: Some(6.0),
            pfc: Some(7),
            watchdog: Some(Some(dog)),
            trimming: Some(Some(Trimming::default())),
            marking: [Some(Marking::Step { bytes: 8 }); PRIORITIES],
            scheduling: [Some(Class::Weighted(9)); PRIORITIES],
        };
        let rules = |changes| vec![PortRule { changes, ..PortRule::default() }];
        let settings = SwitchSettings { port_rules: rules(changes), ..SwitchSettings::default() };
        let expected = SwitchSettings {
            buffer_bytes: 1,
            balance: Balance::Spray,
            reserve_bytes: 2,
            headroom: Headroom::Bytes(3),
            threshold: Threshold::Static { bytes: 4 },
            xon_offset_bytes: 5,
            lossy_alpha: 6.0,
            pfc: 7,
            watchdog: Some(dog),
            trimming: Some(Trimming::default()),
            marking: [Marking::Step { bytes: 8 }; PRIORITIES],
            scheduling: [Class::Weighted(9); PRIORITIES],
            ..SwitchSettings::default()
        };
        assert_eq!(settings.of_port(0, 0, 0), expected);
        assert_eq!(settings.of_switch(3), expected);
        let unchanged =
            SwitchSettings { port_rules: rules(PortChanges::default()), ..SwitchSettings::default() };
        assert_eq!(unchanged.of_port(0, 0, 0), SwitchSettings::default());
    }

    #[test]
    fn impossible_rules_are_named() {
        let problem = |rule: PortRule| {
            let port_rules = vec![PortRule::default(), rule];
            SwitchSettings { port_rules, ..SwitchSettings::default() }
                .problem()
                .map(|(place, key, _)| (place, key))
        };
        let buffer = PortChanges { buffer_bytes: Some(1 << 20), ..PortChanges::default() };
        let balance = PortChanges { balance: Some(Balance::Spray), ..PortChanges::default() };
        for (changes, key) in [(buffer, "buffer"), (balance, "balance")] {
            let whole = PortRule { switches: Some(vec![1]), changes, ..PortRule::default() };
            assert_eq!(problem(whole.clone()), None);
            assert_eq!(problem(PortRule { rate_bps: Some(1), ..whole.clone() }), Some((Some(1), key)));
            assert_eq!(problem(PortRule { neighbours: Some(vec![1]), ..whole }), Some((Some(1), key)));
        }
        assert_eq!(problem(rule(None, None, None, f64::NAN)), Some((Some(1), "lossy_alpha")));
        let mut weight = PortChanges::default();
        weight.scheduling[5] = Some(Class::Weighted(0));
        assert_eq!(problem(PortRule { changes: weight, ..PortRule::default() }), Some((Some(1), "weight")));
    }

    /// A trimmed frame can pass any port, so its priority must be lossy at all ports.
    #[test]
    fn trimmed_frames_are_lossy_everywhere() {
        let trimming = PortChanges { trimming: Some(Some(Trimming::default())), ..PortChanges::default() };
        let pfc = PortChanges { pfc: Some(1 << 5), ..PortChanges::default() };
        let settings = |rules: &[&PortChanges]| {
            let rule =
                |changes: &&PortChanges| PortRule { changes: (*changes).clone(), ..PortRule::default() };
            SwitchSettings { port_rules: rules.iter().map(rule).collect(), ..SwitchSettings::default() }
        };
        assert_eq!(settings(&[&trimming]).trimming_problem(1 << 3), None);
        let (place, reason) = settings(&[&pfc, &trimming]).trimming_problem(1 << 3).unwrap();
        assert_eq!((place, reason), (Some(1), "the priority of its dscp is lossless"));
        assert_eq!(settings(&[&pfc]).trimming_problem(1 << 3), None);
    }
}
