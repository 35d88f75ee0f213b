//! Builds a network from the tables of a scenario file.

use std::ops::Range;

use roce_packet::PathMtu;
use roce_transport::congestion::{Congestion, Paths, Pulls};
use toml::Spanned;

use super::expect::{Expect, Relation};
use super::file::{self, File};
use super::hosts::find_host;
use super::ports;
use super::profiles;
use super::switches::{balance, headroom, marks, priorities, threshold, trimming, watchdog};
use super::values::{explained, parsed, set};
use super::workload::{self, Context, Tables, Workload};
use super::{Load, Own, Scenario, ScenarioError, Wrong, topology};
use roce_sim::net::{
    ApplicationError, Balance, Class, Failed, Failure, HostSettings, Marking, MeasureSettings, NamedRules,
    PauseMode, PauseStorm, PayloadMode, ReadSettings, ReceiveLimit, RouteOverride, Settings, SwitchSettings,
    Time, Topology, check_failures, check_routes, priority_of,
};

pub(super) fn build(text: &str, file: File, load: &Load<'_>, own: &Own) -> Result<Scenario, ScenarioError> {
    let fail = |span: Range<usize>| move |reason: Wrong| ScenarioError::at(text, Some(span.clone()), reason);
    let place = file.topology.span();
    let blame = |place: Range<usize>, reason: Wrong| ScenarioError::at(text, Some(place), reason);
    let (topology, mut warnings) = topology::build(file.topology.into_inner(), load, &blame, place)?;
    let mut settings = Settings { seed: file.seed, ties: file.ties.into(), ..Settings::default() };
    settings.payload = match file.payload {
        file::Payload::Implied => PayloadMode::Implied,
        file::Payload::Real => PayloadMode::Real,
    };
    if let Some(stop) = file.stop {
        settings.stop = stop.0;
    }
    let trimming_place = span(file.switch.trimming.as_ref());
    settings.host = host(file.host, &topology, text, own)?;
    let data = priority_of(settings.host.dscp);
    let (switch, port_places) = switch(file.switch, data, &topology, text, own)?;
    settings.switch = switch;
    settings.measure = measure(&file.measure, text)?;
    settings.routes = routes(file.route, &topology, text)?;
    for storm in file.storm {
        let place = storm.span();
        settings.storms.push(pause_storm(storm.into_inner(), &topology).map_err(fail(place))?);
    }
    settings.failures = failures(file.failure, &topology, text)?;
    let tables = Tables {
        flows: file.flows,
        collective: file.collective,
        training: file.training,
        workload: file.workload,
    };
    let context = Context { topology: &topology, seed: file.seed, load, text };
    let Workload { flows, schedule, operations, tables, warnings: more } = workload::build(tables, &context)?;
    warnings.extend(more);
    profiles::assign(&mut settings, &file.group, &tables, &flows, &topology, (text, own))?;
    if let Some((rule, reason)) = settings.trimming_problem() {
        let place = rule.map_or(trimming_place, |rule| port_places.get(rule).cloned());
        return Err(ScenarioError::at(text, place, format!("trimming: {reason}")));
    }
    let mut sweeps = Vec::new();
    for sweep in file.sweep {
        let place = sweep.span();
        sweeps.push(swept(sweep.into_inner()).map_err(fail(place))?);
    }
    let mut expect = Vec::new();
    for condition in file.expect {
        let place = condition.span();
        expect.push(expected(condition.into_inner()).map_err(fail(place))?);
    }
    Ok(Scenario {
        name: file.name,
        description: file.description,
        expectation: file.expectation,
        open_ended: file.open_ended,
        topology,
        settings,
        flows,
        schedule,
        operations,
        tables: tables.into_iter().map(|table| table.traffic).collect(),
        expect,
        warnings,
        sweeps,
    })
}

/// Returns name and values in the form of [`Scenario::parse_with`].
fn swept(sweep: file::Sweep) -> Result<(String, Vec<String>), Wrong> {
    if sweep.values.is_empty() {
        return Err(format!("the sweep of {} has no values", sweep.name));
    }
    let text = |value: toml::Value| match value {
        toml::Value::String(text) => text,
        other => other.to_string(),
    };
    Ok((sweep.name, sweep.values.into_iter().map(text).collect()))
}

fn expected(table: file::Expect) -> Result<Expect, Wrong> {
    let file::Expect { metric, relation, value } = table;
    let relation = Relation::of_sign(&relation)
        .ok_or_else(|| format!("there is no relation {relation:?}; there are <, <=, =, >= and >"))?;
    Ok(Expect { metric, relation, value })
}

fn host(
    table: file::Host,
    topology: &Topology,
    text: &str,
    own: &Own,
) -> Result<HostSettings, ScenarioError> {
    let mut host = HostSettings::default();
    let places = [
        ("depth", span(table.depth.as_ref())),
        ("message", span(table.message.as_ref())),
        ("dscp", span(table.dscp.as_ref())),
        ("ack_dscp", span(table.ack_dscp.as_ref())),
        ("timeout", span(table.timeout.as_ref())),
        ("retry_cnt", span(table.retry_cnt.as_ref())),
        ("application", span(table.application.as_ref())),
        ("poll_time", span(table.poll_time.as_ref())),
        ("wake_up_time", span(table.wake_up_time.as_ref())),
        ("socket_buffer", span(table.socket_buffer.as_ref())),
        ("reads", span(table.reads.as_ref())),
    ];
    if let Some(application) = table.application {
        host.application = application.get_ref().parse().map_err(|error: ApplicationError| {
            ScenarioError::at(text, Some(application.span()), error.to_string())
        })?;
    }
    set(&mut host.poll_time, table.poll_time.map(|time| time.into_inner().0));
    set(&mut host.wake_up_time, table.wake_up_time.map(|time| time.into_inner().0));
    set(&mut host.socket_buffer_bytes, table.socket_buffer.map(|bytes| bytes.into_inner().0));
    set(&mut host.delay, table.delay.map(|delay| delay.0));
    set(&mut host.dscp, table.dscp.map(Spanned::into_inner));
    set(&mut host.window_packets, table.window);
    if let Some(reads) = table.reads {
        let place = reads.span();
        host.reads = read_settings(reads.into_inner(), own)
            .map_err(|reason| ScenarioError::at(text, Some(place), reason))?;
    }
    set(&mut host.timeout, table.timeout.map(Spanned::into_inner));
    set(&mut host.retry_cnt, table.retry_cnt.map(Spanned::into_inner));
    set(&mut host.message_bytes, table.message.map(|bytes| bytes.into_inner().0));
    set(&mut host.depth, table.depth.map(Spanned::into_inner));
    set(&mut host.ack_dscp, table.ack_dscp.map(|dscp| Some(dscp.into_inner())));
    if let Some((key, reason)) = host.problem() {
        return Err(ScenarioError::at(text, place_of(&places, key), format!("{key}: {reason}")));
    }
    if let Some(control) = table.congestion {
        let read = |control: &str| explained(Congestion::parse_among(control, &own.algorithms));
        (host.congestion, host.notification) = read_at(&control, text, read)?;
    }
    if let Some(recovery) = table.recovery {
        host.recovery = read_at(&recovery, text, parsed)?;
    }
    if let Some(paths) = table.paths {
        host.paths = read_at(&paths, text, |paths| explained(Paths::parse_among(paths, &own.policies)))?;
    }
    if let Some(mtu) = table.path_mtu {
        let wrong =
            || ScenarioError::at(text, Some(mtu.span()), "path_mtu must be 256, 512, 1024, 2048 or 4096");
        host.path_mtu = PathMtu::from_bytes(usize::from(*mtu.get_ref())).ok_or_else(wrong)?;
    }
    if let Some(limit) = table.receive_limit {
        let (place, limit) = (limit.span(), limit.into_inner());
        let host_number = limit.host.as_deref().map(|name| find_host(topology, name)).transpose();
        host.receive_limit = Some(ReceiveLimit {
            host: host_number.map_err(|reason| ScenarioError::at(text, Some(place), reason))?,
            rate_bps: limit.rate.0,
            xoff_bytes: limit.xoff.0,
        });
    }
    Ok(host)
}

fn read_settings(table: file::Reads, own: &Own) -> Result<ReadSettings, Wrong> {
    let file::Reads { packets, rate, policy, dscp } = table;
    if policy.is_some() && rate.is_some() {
        return Err("reads: rate and policy exclude each other".to_owned());
    }
    let policy = policy.map(|name| Pulls::parse_among(&name, &own.pulls)).transpose();
    let policy = explained(policy).map_err(|reason| format!("reads: policy: {reason}"))?;
    Ok(ReadSettings { packets: packets.unwrap_or(0), rate, policy, dscp })
}

/// Reads a value that the file has as text.
fn read_at<T>(
    value: &Spanned<String>,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, Wrong>,
) -> Result<T, ScenarioError> {
    read(value.get_ref()).map_err(|reason| ScenarioError::at(text, Some(value.span()), reason))
}

fn span<T>(value: Option<&Spanned<T>>) -> Option<Range<usize>> {
    value.map(Spanned::span)
}

/// Returns the position of a key in the file.
fn place_of(places: &[(&str, Option<Range<usize>>)], key: &str) -> Option<Range<usize>> {
    places.iter().find(|(name, _)| *name == key).and_then(|(_, place)| place.clone())
}

/// Returns the settings of switches, and the position of each `[[switch.port]]` table.
fn switch(
    table: file::Switch,
    data: u8,
    topology: &Topology,
    text: &str,
    own: &Own,
) -> Result<(SwitchSettings, Vec<Range<usize>>), ScenarioError> {
    let mut switch = SwitchSettings::default();
    let wrong = |place: Range<usize>| move |reason: Wrong| ScenarioError::at(text, Some(place), reason);
    let places = [
        ("threshold", span(table.threshold.as_ref())),
        ("marking_rate", span(table.marking_rate.as_ref())),
        ("lossy_alpha", span(table.lossy_alpha.as_ref())),
        ("weight", table.queue.iter().find(|queue| queue.get_ref().weight.is_some()).map(Spanned::span)),
    ];
    set(&mut switch.buffer_bytes, table.buffer.map(|bytes| bytes.0));
    set(&mut switch.reserve_bytes, table.reserve.map(|bytes| bytes.0));
    set(&mut switch.xon_offset_bytes, table.xon_offset.map(|bytes| bytes.0));
    set(&mut switch.lossy_alpha, table.lossy_alpha.map(Spanned::into_inner));
    switch.marking_rate_bps = table.marking_rate.map(|rate| rate.into_inner().0);
    set(&mut switch.headroom, table.headroom.as_ref().map(headroom));
    set(&mut switch.pause, table.pause.map(PauseMode::from));
    if let Some(given) = table.balance {
        switch.balance = balance(&given, table.flowlet_gap.as_ref().map(|gap| gap.get_ref().0));
    }
    if let (Some(gap), false) = (&table.flowlet_gap, matches!(switch.balance, Balance::Flowlet { .. })) {
        return Err(wrong(gap.span())("flowlet_gap: balance is not \"flowlet\"".to_owned()));
    }
    if let Some(rules) = table.rules.filter(|rules| rules.get_ref() != "none") {
        let read = |name: &str| explained(NamedRules::parse_among(name, &own.rules));
        let read = |name: &str| read(name).map_err(|reason| format!("rules: {reason}"));
        switch.rules = Some(read_at(&rules, text, read)?);
    }
    if let Some(table) = table.trimming {
        switch.trimming = trimming(table.get_ref()).map_err(wrong(table.span()))?;
    }
    if let Some(table) = table.watchdog {
        switch.watchdog = watchdog(table.get_ref()).map_err(wrong(table.span()))?;
    }
    if let Some(table) = table.threshold {
        switch.threshold = threshold(table.get_ref()).map_err(wrong(table.span()))?;
    }
    // The priority of data is lossless and marked, unless the file specifies otherwise.
    switch.pfc = match table.pfc {
        None => 1 << data,
        Some(list) => priorities(list.get_ref()).map_err(wrong(list.span()))?,
    };
    let marking = switch.marking[3];
    switch.marking = [Marking::Off; 8];
    switch.marking[usize::from(data)] = match table.marking {
        Some(table) => marks(table.get_ref()).map_err(wrong(table.span()))?,
        None => marking,
    };
    for queue in table.queue {
        let (place, queue) = (queue.span(), queue.into_inner());
        set_queue(&mut switch, &queue).map_err(wrong(place))?;
    }
    let (rules, rule_places) = ports::rules(table.port, data, topology, text)?;
    switch.port_rules = rules;
    match switch.problem() {
        Some((rule, key, reason)) => {
            let of_rule = rule.and_then(|rule| rule_places.get(rule).cloned());
            let place = of_rule.or_else(|| place_of(&places, key));
            Err(ScenarioError::at(text, place, format!("{key}: {reason}")))
        }
        None => Ok((switch, rule_places)),
    }
}

fn set_queue(switch: &mut SwitchSettings, queue: &file::Queue) -> Result<(), Wrong> {
    let index = usize::from(queue.priority);
    let class = switch.scheduling.get_mut(index).ok_or("a priority must be 0 to 7")?;
    if let Some(weight) = queue.weight {
        *class = Class::Weighted(weight);
    }
    if let Some(marking) = &queue.marking {
        switch.marking[index] = marks(marking)?;
    }
    Ok(())
}

fn measure(table: &file::Measure, text: &str) -> Result<MeasureSettings, ScenarioError> {
    let mut measure = MeasureSettings::default();
    if let Some(interval) = &table.interval {
        measure.interval = interval.get_ref().0;
        if measure.interval == Time::ZERO {
            let reason = "interval: it must be longer than 0";
            return Err(ScenarioError::at(text, Some(interval.span()), reason));
        }
    }
    set(&mut measure.warm_up, table.warm_up.map(|warm_up| warm_up.0));
    set(&mut measure.most_points, table.points);
    Ok(measure)
}

fn routes(
    tables: Vec<Spanned<file::Route>>,
    topology: &Topology,
    text: &str,
) -> Result<Vec<RouteOverride>, ScenarioError> {
    let (places, routes): (Vec<_>, Vec<_>) = tables
        .into_iter()
        .map(|table| {
            let (place, route) = (table.span(), table.into_inner());
            (place, RouteOverride { at: route.at, to: route.to, via: route.via })
        })
        .unzip();
    check_routes(topology, &routes)
        .map_err(|(number, error)| ScenarioError::at(text, places.get(number).cloned(), error.to_string()))?;
    Ok(routes)
}

/// The default delay until the switches use other routes after a failure. Data plane protocols detect a lost
/// link and reroute in this order of magnitude.
const REROUTE_AFTER: Time = Time::from_us(1_000);

fn failures(
    tables: Vec<Spanned<file::Failure>>,
    topology: &Topology,
    text: &str,
) -> Result<Vec<Failure>, ScenarioError> {
    let (mut places, mut failures) = (Vec::new(), Vec::new());
    for table in tables {
        let (place, table) = (table.span(), table.into_inner());
        let what = match (table.link, table.switch) {
            (Some([one, other]), None) => Failed::Links(one, other),
            (None, Some(switch)) => Failed::Switch(switch),
            _ => {
                let reason = "a failure needs either link = [\"A\", \"B\"] or switch = \"NAME\"";
                return Err(ScenarioError::at(text, Some(place), reason));
            }
        };
        failures.push(Failure {
            what,
            at: table.at.0,
            until: table.until.map_or(Time::NEVER, |until| until.0),
            reroute_after: table.reroute_after.map_or(REROUTE_AFTER, |after| after.0),
        });
        places.push(place);
    }
    check_failures(topology, &failures)
        .map_err(|(number, error)| ScenarioError::at(text, places.get(number).cloned(), error.to_string()))?;
    Ok(failures)
}

fn pause_storm(storm: file::Storm, topology: &Topology) -> Result<PauseStorm, Wrong> {
    let host = find_host(topology, &storm.host)?;
    if storm.priority > 7 {
        return Err(format!("priority {} is not 0 to 7", storm.priority));
    }
    if storm.end.0 <= storm.start.0 {
        return Err("end: a storm must end after its start".to_owned());
    }
    Ok(PauseStorm { host, priority: storm.priority, start: storm.start.0, end: storm.end.0 })
}
