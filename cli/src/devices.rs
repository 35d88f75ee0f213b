//! `roce devices`: the devices of this machine, in the format of `ibv_devinfo`.

use std::io::Write;
use std::process::ExitCode;

use roce_packet::{Gid, PathMtu};
use roce_transport::{EngineConfig, MAX_MESSAGE, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE};
use serde_json::{Value, json};

use super::terminal::{Output, Paint};
use roce::verbs::Context;
use roce::verbs::raw::listing;
use roce_device::{Availability, Kind, ListedDevice, kinds};

/// List the kinds of devices, the missing requirements of each, and the addresses that RoCE can use
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also show limits and GID tables
    #[arg(long, short)]
    verbose: bool,

    /// Open this device, such as raw:eth0 or tap:roce0,ip=198.18.0.2/24, and show its GID table in the format
    /// of show_gids
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    if let Some(spec) = &args.device {
        return show_gids(spec, args.json, output);
    }
    let kinds = kinds();
    if args.json {
        super::document::print(output, "devices", &document(&kinds, args.verbose))?;
        return Ok(ExitCode::SUCCESS);
    }
    for kind in &kinds {
        print_kind(output, kind)?;
    }
    for device in kinds.iter().flat_map(Kind::devices) {
        writeln!(output)?;
        print_device(output, &device, args.verbose)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the GID table of one device and its MTUs. Sends no packets except those that the device sends by
/// itself.
fn show_gids(spec: &str, json: bool, output: &mut Output) -> anyhow::Result<ExitCode> {
    let context = Context::builder().publish(false).open(spec)?;
    let table = context.gid_table();
    let (capabilities, mtu) = (context.query().capabilities, context.largest_path_mtu());
    if json {
        let gids: Vec<Value> = table
            .iter()
            .map(|entry| {
                json!({
                    "index": entry.index, "gid": entry.gid.to_string(), "address": entry.address(),
                    "type": entry.gid_type.name(),
                })
            })
            .collect();
        let document = json!({
            "device_spec": spec, "device": capabilities.kind, "link_mtu": capabilities.link_mtu,
            "active_mtu": mtu.map(PathMtu::bytes), "gids": gids,
        });
        super::document::print(output, "device", &document)?;
        return Ok(ExitCode::SUCCESS);
    }
    let title = format!("{:<8}{:<8}{:<42}{:<18}VER", "PORT", "INDEX", "GID", "IPv4");
    writeln!(output, "{spec}: link MTU {}, path MTU {}", capabilities.link_mtu, mtu_text(mtu))?;
    writeln!(output, "{}", output.style.paint(Paint::BOLD, title))?;
    for entry in &table {
        let address = entry.address();
        let ipv4 = if address.is_ipv4() { address.to_string() } else { String::new() };
        let (index, gid) = (entry.index, entry.gid.to_string());
        writeln!(output, "{:<8}{index:<8}{gid:<42}{ipv4:<18}{}", 1, entry.gid_type.name())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_kind(output: &mut Output, kind: &Kind) -> std::io::Result<()> {
    let name = output.style.paint(Paint::BOLD, format!("{:<7}", kind.name)).to_string();
    let status = match &kind.availability {
        Availability::Usable(_) => output.style.paint(Paint::GREEN, "usable").to_string(),
        Availability::Lacks(what) => output.style.paint(Paint::RED, format!("lacks: {what}")).to_string(),
    };
    writeln!(output, "{name} {:<55} {status}", kind.summary)
}

/// Returns a GUID derived from the first address, because a software device does not have one.
fn guid(listed: &ListedDevice) -> String {
    let bytes = listed.addresses.first().map_or([0; 16], |local| Gid::from(local.address).0);
    let mut guid = [0x02, 0, 0, 0, 0, 0, 0, 0];
    guid[2..].copy_from_slice(&bytes[10..]);
    groups(&guid)
}

/// Formats bytes as the kernel writes a GUID or a GID: groups of two, with colons between them.
pub(crate) fn groups(bytes: &[u8]) -> String {
    bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect::<Vec<_>>().join(":")
}

/// Returns the largest path MTU whose packets fit the link MTU, with the headers of the first address.
fn active_mtu(listed: &ListedDevice) -> Option<PathMtu> {
    let local = listed.addresses.first()?;
    let overhead = if local.address.is_ipv4() { 64 } else { 84 };
    PathMtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() + overhead <= local.link_mtu)
}

/// Returns the GIDs of RoCE v2, in the order of their indexes.
fn gids(listed: &ListedDevice) -> impl Iterator<Item = Gid> {
    listing::in_gid_order(listed.addresses.iter().map(|local| Gid::from(local.address)))
}

fn netdev(listed: &ListedDevice) -> String {
    listed
        .addresses
        .first()
        .map_or_else(String::new, |local| format!("{}, MTU {}", local.interface, local.link_mtu))
}

fn mtu_text(mtu: Option<PathMtu>) -> String {
    mtu.map_or_else(|| "none".into(), |mtu| format!("{} ({})", mtu.bytes(), mtu.code()))
}

fn print_device(output: &mut Output, listed: &ListedDevice, verbose: bool) -> std::io::Result<()> {
    let limits = EngineConfig::new([0; 32]);
    let bold = output.style.paint(Paint::BOLD, &listed.spec).to_string();
    writeln!(output, "hca_id:\t{bold}")?;
    let mut device: Vec<(&str, String)> = vec![
        ("transport:", "InfiniBand (0)".into()),
        ("fw_ver:", env!("CARGO_PKG_VERSION").into()),
        ("node_guid:", guid(listed)),
        ("sys_image_guid:", guid(listed)),
        ("vendor_id:", "0x000000".into()),
        ("vendor_part_id:", "0".into()),
        ("hw_ver:", "0x0".into()),
        ("phys_port_cnt:", "1".into()),
    ];
    if verbose {
        device.extend([
            ("max_mr_size:", "0xffffffffffffffff".into()),
            ("max_qp:", limits.max_qp.to_string()),
            ("max_qp_wr:", MAX_QP_WR.to_string()),
            ("max_sge:", MAX_SGE.to_string()),
            ("max_inline:", roce_transport::MAX_INLINE.to_string()),
            ("max_cq:", limits.max_cq.to_string()),
            ("max_cqe:", limits.max_cqe.to_string()),
            ("max_mr:", limits.max_mr.to_string()),
            ("max_mw:", limits.max_mr.to_string()),
            ("max_pd:", limits.max_pd.to_string()),
            ("max_srq:", limits.max_srq.to_string()),
            ("max_qp_rd_atom:", MAX_RD_ATOMIC.to_string()),
            ("max_qp_init_rd_atom:", MAX_RD_ATOMIC.to_string()),
            ("atomic_cap:", "ATOMIC_HCA (1)".into()),
            ("max_pkeys:", "1".into()),
        ]);
    }
    for (name, value) in device {
        writeln!(output, "\t{name:<24}{value}")?;
    }
    print_port(output, listed, verbose)
}

fn print_port(output: &mut Output, listed: &ListedDevice, verbose: bool) -> std::io::Result<()> {
    writeln!(output, "\t\tport:\t1")?;
    let mut port: Vec<(&str, String)> = vec![
        ("state:", "PORT_ACTIVE (4)".into()),
        ("max_mtu:", "4096 (5)".into()),
        ("active_mtu:", mtu_text(active_mtu(listed))),
        ("sm_lid:", "0".into()),
        ("port_lid:", "0".into()),
        ("port_lmc:", "0x00".into()),
        ("link_layer:", "Ethernet".into()),
    ];
    if verbose {
        port.extend([
            ("max_msg_sz:", format!("{MAX_MESSAGE:#x}")),
            ("pkey_tbl_len:", "1".into()),
            ("gid_tbl_len:", gids(listed).count().to_string()),
            ("netdev:", netdev(listed)),
        ]);
    }
    for (name, value) in port {
        writeln!(output, "\t\t\t{name:<16}{value}")?;
    }
    if verbose {
        for (index, gid) in gids(listed).enumerate() {
            writeln!(output, "\t\t\tGID[{index:3}]:\t{gid}, RoCE v2")?;
        }
    }
    Ok(())
}

fn document(kinds: &[Kind], verbose: bool) -> Value {
    let limits = EngineConfig::new([0; 32]);
    let device = |listed: &ListedDevice| {
        let first = listed.addresses.first();
        let gids = gids(listed)
            .enumerate()
            .map(|(index, gid)| json!({ "index": index, "gid": gid.to_string(), "type": "RoCE v2" }));
        let mut device = json!({
            "device_spec": listed.spec,
            "node_guid": guid(listed),
            "interface": first.map(|local| &local.interface),
            "link_mtu": first.map(|local| local.link_mtu),
            "active_mtu": active_mtu(listed).map(PathMtu::bytes),
            "gids": gids.collect::<Vec<_>>(),
        });
        if verbose {
            device["limits"] = json!({
                "max_qp": limits.max_qp, "max_qp_wr": MAX_QP_WR, "max_sge": MAX_SGE, "max_cq": limits.max_cq,
                "max_cqe": limits.max_cqe, "max_mr": limits.max_mr, "max_pd": limits.max_pd, "max_srq": limits.max_srq,
                "max_qp_rd_atom": MAX_RD_ATOMIC, "max_msg_sz": MAX_MESSAGE,
            });
        }
        device
    };
    let kinds: Vec<Value> = kinds
        .iter()
        .map(|kind| {
            let (usable, lacks) = match &kind.availability {
                Availability::Usable(_) => (true, None),
                Availability::Lacks(what) => (false, Some(what.clone())),
            };
            json!({
                "device": kind.name, "summary": kind.summary, "example": kind.example, "usable": usable, "lacks": lacks,
                "devices": kind.devices().iter().map(device).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({ "kinds": kinds })
}
