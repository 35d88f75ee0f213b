//! Settings of the flows of a table and of the hosts of a group, and the applications of groups.

use std::collections::BTreeMap;

use roce_packet::PathMtu;
use roce_transport::congestion::{Congestion, NotificationPoint, Paths};
use toml::Spanned;

use super::file::Group;
use super::flows::Operation;
use super::hosts::select_hosts;
use super::profile::Profile;
use super::values::{explained, parsed, set};
use super::workload::FlowsOfTable;
use super::{Own, ScenarioError, Wrong};
use roce_sim::net::{
    Application, ApplicationError, FlowOperation, FlowSpec, HostSettings, Settings, Topology,
};

/// Assigns the settings of each flow: those of `[host]`, changed by the last group with its sender, and then
/// by its own table. Also assigns the application of each host.
pub(super) fn assign(
    settings: &mut Settings,
    groups: &[Spanned<Group>],
    tables: &[FlowsOfTable],
    flows: &[FlowSpec],
    topology: &Topology,
    (text, own): (&str, &Own),
) -> Result<(), ScenarioError> {
    if groups.is_empty() && tables.iter().all(|table| table.profile.is_none() && table.operation.is_none()) {
        return Ok(());
    }
    let mut bases = vec![settings.host.clone()];
    let mut base_of: Vec<usize> = vec![0; topology.hosts()];
    for group in groups {
        let wrong = |reason: Wrong| ScenarioError::at(text, Some(group.span()), reason);
        let hosts = select_hosts(topology, Some(&group.get_ref().hosts)).map_err(wrong)?;
        let Group { host: profile, application, .. } = group.get_ref();
        if profile.is_none() && application.is_none() {
            return Err(wrong("a group needs host or application".to_owned()));
        }
        if let Some(application) = application {
            let application = parse_application(application).map_err(wrong)?;
            settings.applications.resize(topology.hosts(), settings.host.application);
            hosts.iter().for_each(|host| settings.applications[*host as usize] = application);
        }
        if let Some(profile) = profile {
            hosts.iter().for_each(|host| base_of[*host as usize] = bases.len());
            bases.push(changed(&settings.host, profile, own).map_err(wrong)?);
        }
    }
    if flows.is_empty() {
        // A network whose messages a program sends refuses them.
        settings.profiles = bases.split_off(1);
    }
    settings.flow_profiles = vec![0; flows.len()];
    let mut known: BTreeMap<(usize, usize), u16> = BTreeMap::new();
    for (number, table) in tables.iter().enumerate() {
        let wrong = |reason: Wrong| ScenarioError::at(text, Some(table.place.clone()), reason);
        for flow in table.traffic.flows.clone() {
            let base = base_of[flows[flow].source as usize];
            let profile = match known.get(&(base, number)) {
                Some(profile) => *profile,
                None => {
                    let mut own_settings = match &table.profile {
                        Some(profile) => changed(&bases[base], profile, own).map_err(wrong)?,
                        None => bases[base].clone(),
                    };
                    own_settings.operation = match table.operation {
                        None | Some(Operation::Write) => FlowOperation::Write,
                        Some(Operation::Send) => FlowOperation::Send,
                        Some(Operation::Read) => FlowOperation::Read,
                    };
                    let profile = number_of(settings, own_settings).map_err(wrong)?;
                    known.insert((base, number), profile);
                    profile
                }
            };
            settings.flow_profiles[flow] = profile;
        }
    }
    Ok(())
}

fn parse_application(text: &str) -> Result<Application, Wrong> {
    let application: Application = text.parse().map_err(|error: ApplicationError| error.to_string())?;
    match application.problem() {
        Some(reason) => Err(format!("application: {reason}")),
        None => Ok(application),
    }
}

/// Returns the number of a profile, and adds the profile if it is new.
fn number_of(settings: &mut Settings, profile: HostSettings) -> Result<u16, Wrong> {
    if profile == settings.host {
        return Ok(0);
    }
    let place = settings.profiles.iter().position(|known| *known == profile).unwrap_or_else(|| {
        settings.profiles.push(profile);
        settings.profiles.len() - 1
    });
    u16::try_from(place + 1).map_err(|_| "more than 65535 different settings of flows".to_owned())
}

fn changed(base: &HostSettings, table: &Profile, own: &Own) -> Result<HostSettings, Wrong> {
    let mut host = base.clone();
    if let Some(control) = &table.congestion {
        // A host sends notifications for all its queue pairs, so their settings always come from `[host]`.
        host.congestion = explained(Congestion::parse_among(control, &own.algorithms))?.0;
        let mut names = control.split([':', ',']).filter_map(|piece| Some(piece.split_once('=')?.0));
        let of_host = NotificationPoint::PARAMETERS;
        if let Some(name) = names.find(|name| of_host.iter().any(|of| [of.name, of.alias].contains(name))) {
            return Err(format!(
                "congestion: {name} applies to all notifications of a host; set it in [host]"
            ));
        }
    }
    set(&mut host.recovery, table.recovery.as_deref().map(parsed).transpose()?);
    if let Some(paths) = &table.paths {
        host.paths = explained(Paths::parse_among(paths, &own.policies))?;
    }
    if let Some(mtu) = table.path_mtu {
        let wrong = || "path_mtu must be 256, 512, 1024, 2048 or 4096".to_owned();
        host.path_mtu = PathMtu::from_bytes(usize::from(mtu)).ok_or_else(wrong)?;
    }
    host.dscp = table.dscp.unwrap_or(host.dscp);
    host.timeout = table.timeout.unwrap_or(host.timeout);
    host.retry_cnt = table.retry_cnt.unwrap_or(host.retry_cnt);
    host.message_bytes = table.message.map_or(host.message_bytes, |bytes| bytes.0);
    host.depth = table.depth.unwrap_or(host.depth);
    match host.problem() {
        Some((key, reason)) => Err(format!("{key}: {reason}")),
        None => Ok(host),
    }
}
