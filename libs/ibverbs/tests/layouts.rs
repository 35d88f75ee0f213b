//! Compares layouts and numbers of the interface with the headers of rdma-core, through a C compiler. Besides
//! the headers of the distribution, it uses those in the folders of `ROCE_TEST_HEADERS`, separated by `:`.
//! Each folder contains `infiniband/verbs.h` and `rdma/rdma_cma.h`. docs/reference/verbs.md lists the
//! compared releases.

mod common;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use roce::verbs::{Access, QpState, SendFlags, WcFlags, WcStatus};
use roce_testing::{Running, has_program, skip_unless};

#[path = "../src/abi/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub, reason = "only the layouts are asked for")]
mod abi;

/// Parts of structures that have no name in C: the enclosing structure, and the path inside it.
const PARTS: &[(&str, &str, &str)] = &[
    ("wr_rdma", "ibv_send_wr", "wr.rdma"),
    ("wr_atomic", "ibv_send_wr", "wr.atomic"),
    ("wr_ud", "ibv_send_wr", "wr.ud"),
    ("wr_bind_mw", "ibv_send_wr", "bind_mw"),
    ("wr_tso", "ibv_send_wr", "tso"),
];

/// Fields that have a different name in C, or no name, or that cover several C fields from the first to the
/// last one given.
const NAMES: &[(&str, &str, &str)] = &[
    ("ibv_context_ops.before_mw", "_compat_query_device", "_compat_dereg_mr"),
    ("ibv_context_ops.create_cq", "_compat_create_cq", ""),
    ("ibv_context_ops.before_post_srq", "_compat_cq_event", "_compat_destroy_srq"),
    ("ibv_context_ops.before_post", "_compat_create_qp", "_compat_destroy_qp"),
    ("ibv_context_ops.after_post", "_compat_create_ah", "_compat_async_event"),
    ("ibv_cq_ex.base", "context", "async_events_completed"),
    ("ibv_device_attr_ex.odp_general_caps", "odp_caps.general_caps", ""),
    ("ibv_device_attr_ex.odp_caps_of_rc", "odp_caps.per_transport_caps.rc_odp_caps", ""),
    ("ibv_device_attr_ex.odp_caps_of_uc", "odp_caps.per_transport_caps.uc_odp_caps", ""),
    ("ibv_device_attr_ex.odp_caps_of_ud", "odp_caps.per_transport_caps.ud_odp_caps", ""),
    ("ibv_device_attr_ex.odp_padding", "", ""),
    ("ibv_device.ops", "_ops", ""),
    ("ibv_device.transport_type", "transport_type", ""),
    ("ibv_device_attr_ex.raw_packet_and_tags", "raw_packet_caps", "cq_mod_caps"),
    ("ibv_device_attr_ex.tso_rss_and_pacing", "tso_caps", "packet_pacing_caps"),
    ("ibv_mw.mw_type", "type", ""),
    ("ibv_qp_ex.base", "qp_base", ""),
    ("ibv_send_wr.remote_srqn", "qp_type.xrc.remote_srqn", ""),
    ("ibv_send_wr.special", "bind_mw", ""),
    ("rdma_addr.dst", "dst_storage", ""),
    ("rdma_addr.ibaddr", "addr.ibaddr", ""),
    ("rdma_addr.src", "src_storage", ""),
    ("verbs_context.counters", "read_counters", "destroy_counters"),
    ("verbs_context.flow_actions_and_rates", "modify_flow_action_esp", "modify_qp_rate_limit"),
    ("verbs_context.tags_and_work_queues", "post_srq_ops", "create_wq"),
    ("verbs_context.flow", "ibv_destroy_flow", "ABI_placeholder1"),
    ("verbs_context.placeholder", "_ABI_placeholder3", ""),
    ("verbs_context.private", "priv", ""),
];

/// Fields that a release appended to a structure, in order. In headers without them, the structure ends
/// before them.
const APPENDED: &[(&str, &str)] =
    &[("ibv_port_attr", "active_speed_ex"), ("ibv_qp_ex", "wr_atomic_write"), ("ibv_qp_ex", "wr_flush")];

/// The structure that grows at its front, where later releases have entries that are unknown here. Programs
/// use offsets from its end.
const GROWS_UP: &str = "verbs_context";

/// Numbers of these files that have a different name in C, or no name.
const NUMBERS: &[(&str, &str)] = &[
    ("PHYSICAL_DISABLED", ""),
    ("PHYSICAL_LINK_UP", ""),
    (
        "DEVICE_CAPABILITIES",
        "(IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW_TYPE_2B)",
    ),
    ("ODP_CAPABILITIES", "(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT)"),
    ("ODP_OF_RC", ""),
    ("ODP_OF_UC", ""),
    ("ODP_OF_UD", ""),
    ("ODP_OF_XRC", ""),
    ("PORT_NEEDS_GRH", "IBV_QPF_GRH_REQUIRED"),
    ("IBV_GID_TYPE_SYSFS_IB_ROCE_V1", ""),
    ("IBV_GID_TYPE_SYSFS_ROCE_V2", ""),
    ("SEND_OPS_OF_UD", "(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)"),
    (
        "SEND_OPS_OF_UC",
        "(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)",
    ),
    ("SEND_OPS_OF_RC", ""),
    ("SEND_OPS_OF_XRC", ""),
    ("SEND_OP_ATOMIC_WRITE", "IBV_QP_EX_WITH_ATOMIC_WRITE"),
    ("RDMA_MAX_DEPTH", "RDMA_MAX_RESP_RES"),
    ("JOIN_FULL_MEMBER", "RDMA_MC_JOIN_FLAG_FULLMEMBER"),
    ("JOIN_SEND_ONLY", "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER"),
    ("JOIN_HAS_ADDRESS", "RDMA_CM_JOIN_MC_ATTR_ADDRESS"),
    ("JOIN_HAS_FLAGS", "RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS"),
];
/// Numbers that were added after release 39.
const LATER_NUMBERS: &[&str] = &[
    "IBV_WR_ATOMIC_WRITE",
    "IBV_QP_EX_WITH_ATOMIC_WRITE",
    "IBV_WC_ATOMIC_WRITE",
    "IBV_WC_FLUSH",
    "IBV_REG_MR_MASK_IOVA",
    "IBV_REG_MR_MASK_ADDR",
    "IBV_REG_MR_MASK_FD",
    "IBV_REG_MR_MASK_FD_OFFSET",
    "IBV_REG_MR_MASK_DMAH",
    "IBV_REG_MR_MASK_BUF",
];
/// Structures that were added after release 39, each with a name that exists in headers with the same
/// structure.
const LATER_STRUCTURES: &[(&str, &str)] = &[("ibv_mr_init_attr", "IBV_REG_MR_MASK_BUF")];

/// A folder of headers.
struct Headers {
    folder: PathBuf,
    text: String,
}

impl Headers {
    #[track_caller]
    fn read(folder: PathBuf) -> Self {
        let read = |name: &str| {
            let file = folder.join(name);
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        };
        let text = read("infiniband/verbs.h") + &read("rdma/rdma_cma.h");
        Self { folder, text }
    }

    /// Returns whether the headers contain a name.
    fn have(&self, name: &str) -> bool {
        let is_part = |character: char| character.is_alphanumeric() || character == '_';
        self.text.match_indices(name).any(|(at, _)| {
            !self.text[..at].ends_with(is_part) && !self.text[at + name.len()..].starts_with(is_part)
        })
    }

    /// Returns whether a structure has a field; fields that a later release appended may be missing.
    fn have_field(&self, structure: &str, field: &str) -> bool {
        !APPENDED.contains(&(structure, field)) || self.have(field)
    }

    fn compiler(&self) -> Command {
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-Wall", "-Werror", "-I"]).arg(&self.folder);
        command
    }
}

/// Returns the headers of the distribution, if available, and those that the environment names.
fn all_headers() -> Vec<Headers> {
    let distribution = common::distribution().map(|root| root.join("usr/include"));
    let named = std::env::var_os("ROCE_TEST_HEADERS").unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|folder| !folder.as_os_str().is_empty());
    distribution.into_iter().chain(named.collect::<Vec<_>>()).map(Headers::read).collect()
}

/// Writes a static assertion in C.
fn assert_equal(text: &mut String, what: &str, value: impl std::fmt::Display, name: &str) {
    writeln!(text, "_Static_assert({what} == {value}, \"{name}\");").expect("a text");
}

/// Writes assertions for the size and the offsets of a structure.
fn layout(text: &mut String, headers: &Headers, layout: &abi::Layout) {
    let part = PARTS.iter().find(|(name, ..)| *name == layout.name);
    let (outer, way) = part.map_or((layout.name, None), |(_, outer, way)| (*outer, Some(way)));
    let tag = if outer == "ibv_gid" { "union" } else { "struct" };
    let object = format!("((({tag} {outer} *)0)->");
    let inner = |field: &str| way.map_or(field.to_owned(), |way| format!("{way}.{field}"));
    let offset = |field: &str| format!("offsetof({tag} {outer}, {})", inner(field));
    let size = |field: &str| format!("sizeof {object}{})", inner(field));
    let end = layout.fields.iter().find(|(field, ..)| !headers.have_field(layout.name, field));
    let whole = end.map_or(layout.size, |(_, offset, _)| *offset);
    let begin = match (way, layout.fields.first()) {
        (Some(way), _) => {
            assert_equal(text, &format!("sizeof {object}{way})"), whole, layout.name);
            format!("offsetof({tag} {outer}, {way})")
        }
        (None, Some((first, ..))) if layout.name == GROWS_UP => {
            assert_equal(text, &format!("sizeof({tag} {outer}) - {}", offset(first)), whole, layout.name);
            offset(first)
        }
        _ => {
            assert_equal(text, &format!("sizeof({tag} {outer})"), whole, layout.name);
            "0".into()
        }
    };
    for (field, our_offset, our_size) in layout.fields {
        if !headers.have_field(layout.name, field) {
            continue;
        }
        let path = format!("{}.{field}", layout.name);
        let renamed = NAMES.iter().find(|(name, ..)| *name == path);
        let (first, last) = renamed.map_or((*field, ""), |(_, first, last)| (*first, *last));
        if first.is_empty() {
            continue;
        }
        assert_equal(text, &format!("{} - {begin}", offset(first)), our_offset, &path);
        let their_size = match last {
            "" => size(first),
            last => format!("{} + {} - {}", offset(last), size(last), offset(first)),
        };
        assert_equal(text, &their_size, our_size, &format!("the size of {path}"));
    }
}

/// Returns the constants in a file of the crate, as names and expressions.
fn constants(source: &str) -> impl Iterator<Item = (&str, String)> {
    source.lines().filter_map(|line| {
        let (name, rest) = line.trim().strip_prefix("pub(crate) const ")?.split_once(": ")?;
        let (_, value) = rest.split_once(" = ")?;
        // C has no grouped digits.
        Some((name, value.trim_end_matches(';').replace("0x0", "0x").replace('_', "")))
    })
}

/// Writes assertions for the numbers of the crate and of the engine.
fn numbers(text: &mut String, headers: &Headers) {
    let sources = [include_str!("../src/abi/constants.rs"), include_str!("../src/abi/connection.rs")];
    let mut all: Vec<(String, String)> = Vec::new();
    for (name, value) in sources.into_iter().flat_map(constants) {
        let renamed = NUMBERS.iter().find(|(known, _)| *known == name).map(|(_, in_c)| (*in_c).to_owned());
        let is_event = headers.have(&format!("RDMA_CM_EVENT_{name}"));
        let in_c = renamed
            .unwrap_or_else(|| if is_event { format!("RDMA_CM_EVENT_{name}") } else { name.to_owned() });
        all.push((in_c, value));
    }
    let engine = |pairs: &[(&str, u64)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
    };
    all.extend(engine(&[
        ("IBV_ACCESS_LOCAL_WRITE", Access::LOCAL_WRITE.bits().into()),
        ("IBV_ACCESS_REMOTE_WRITE", Access::REMOTE_WRITE.bits().into()),
        ("IBV_ACCESS_REMOTE_READ", Access::REMOTE_READ.bits().into()),
        ("IBV_ACCESS_REMOTE_ATOMIC", Access::REMOTE_ATOMIC.bits().into()),
        ("IBV_ACCESS_MW_BIND", Access::MW_BIND.bits().into()),
        ("IBV_ACCESS_ZERO_BASED", Access::ZERO_BASED.bits().into()),
        ("IBV_SEND_FENCE", SendFlags::FENCE.bits().into()),
        ("IBV_SEND_SIGNALED", SendFlags::SIGNALED.bits().into()),
        ("IBV_SEND_SOLICITED", SendFlags::SOLICITED.bits().into()),
        ("IBV_WC_GRH", WcFlags::GRH.bits().into()),
        ("IBV_WC_WITH_IMM", WcFlags::WITH_IMM.bits().into()),
        ("IBV_WC_WITH_INV", WcFlags::WITH_INV.bits().into()),
        ("IBV_WC_SUCCESS", WcStatus::Success as u64),
        ("IBV_WC_LOC_LEN_ERR", WcStatus::LocalLengthError as u64),
        ("IBV_WC_LOC_PROT_ERR", WcStatus::LocalProtectionError as u64),
        ("IBV_WC_WR_FLUSH_ERR", WcStatus::WrFlushError as u64),
        ("IBV_WC_REM_ACCESS_ERR", WcStatus::RemoteAccessError as u64),
        ("IBV_WC_RETRY_EXC_ERR", WcStatus::RetryExceededError as u64),
        ("IBV_WC_SEND", 0),
        ("IBV_WC_RDMA_WRITE", 1),
        ("IBV_WC_RDMA_READ", 2),
        ("IBV_WC_COMP_SWAP", 3),
        ("IBV_WC_FETCH_ADD", 4),
        ("IBV_WC_BIND_MW", 5),
        ("IBV_WC_LOCAL_INV", 6),
        ("IBV_WC_FLUSH", 8),
        ("IBV_WC_ATOMIC_WRITE", 9),
        ("IBV_WC_RECV", 128),
        ("IBV_WC_RECV_RDMA_WITH_IMM", 129),
        ("IBV_REREG_MR_CHANGE_TRANSLATION", 1),
        ("IBV_REREG_MR_CHANGE_PD", 2),
        ("IBV_REREG_MR_CHANGE_ACCESS", 4),
        ("IBV_REREG_MR_ERR_INPUT", u64::MAX),
    ]));
    let states = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    assert_eq!(states.len(), QpState::ALL.len());
    for (name, (number, state)) in states.iter().zip(QpState::ALL.iter().enumerate()) {
        assert!(format!("{state:?}").eq_ignore_ascii_case(name), "{state:?} is not {name}");
        all.push((format!("IBV_QPS_{name}"), number.to_string()));
    }
    for (number, bytes) in [256, 512, 1024, 2048, 4096].into_iter().enumerate() {
        all.push((format!("IBV_MTU_{bytes}"), (number + 1).to_string()));
    }
    let is_there =
        |name: &String| !name.is_empty() && (!LATER_NUMBERS.contains(&&**name) || headers.have(name));
    for (name, value) in all.iter().filter(|(name, _)| is_there(name)) {
        let value = if *value == u64::MAX.to_string() { "-1" } else { value };
        assert_equal(text, &format!("(long long)({name})"), format_args!("({value})"), name);
    }
}

fn assertions(headers: &Headers) -> String {
    let mut text =
        String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n");
    let is_there = |structure: &&abi::Layout| {
        let later = LATER_STRUCTURES.iter().find(|(name, _)| *name == structure.name);
        later.is_none_or(|(_, marker)| headers.have(marker))
    };
    abi::layouts().filter(is_there).for_each(|structure| layout(&mut text, headers, structure));
    numbers(&mut text, headers);
    text
}

#[test]
fn layouts_and_numbers_are_those_of_the_headers() {
    let all = all_headers();
    if skip_unless(!all.is_empty() && has_program("cc"), "no packages of a Debian system, or no C compiler") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("layouts.c");
    for headers in &all {
        let text = assertions(headers);
        let count = text.matches("_Static_assert").count();
        assert!(count > 1_000, "{count} assertions");
        println!("{}: {count} assertions", headers.folder.display());
        std::fs::write(&source, text).expect("a file");
        let compiled = Running::start(headers.compiler().arg("-fsyntax-only").arg(&source)).finish(60);
        assert!(compiled.success, "{}: {}", headers.folder.display(), compiled.stderr);
    }
}

/// A wrong offset makes the comparison fail.
#[test]
fn a_wrong_offset_does_not_compile() {
    let all = all_headers();
    if skip_unless(!all.is_empty() && has_program("cc"), "no packages of a Debian system, or no C compiler") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("layouts.c");
    let right = "offsetof(struct ibv_wc, status) - 0 == 8";
    let text = assertions(&all[0]);
    assert!(text.contains(right));
    std::fs::write(&source, text.replace(right, "offsetof(struct ibv_wc, status) - 0 == 12"))
        .expect("a file");
    let compiled = Running::start(all[0].compiler().arg("-fsyntax-only").arg(&source)).finish(60);
    assert!(!compiled.success && compiled.stderr.contains("ibv_wc.status"), "{}", compiled.stderr);
}

/// The inline functions of each header work with the tables of this library: runs C programs compiled with
/// each header.
#[test]
fn inline_functions_of_the_headers_find_their_way() {
    let all = all_headers();
    if skip_unless(!all.is_empty() && has_program("cc"), "no packages of a Debian system, or no C compiler") {
        return;
    }
    let library = common::library_folder();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let program = library.path().join("program");
    // Each program expects this number of engines.
    let programs = [("verbs.c", "1"), ("memory.c", "1"), ("engines.c", "2")]
        .map(|(name, engines)| (folder.join(name), engines));
    for (headers, (source, engines)) in
        all.iter().flat_map(|headers| programs.iter().map(move |source| (headers, source)))
    {
        let mut command = headers.compiler();
        if !headers.have("ibv_wr_atomic_write") {
            command.arg("-DNO_ATOMIC_WRITE");
        }
        if headers.have("ibv_query_comp_cntr_caps") {
            command.arg("-DWITH_BUFFERS");
        }
        command.arg("-o").arg(&program).arg(source).arg("-L").arg(library.path()).arg("-libverbs");
        let compiled = Running::start(&mut command).finish(60);
        assert!(compiled.success, "{}: {}", headers.folder.display(), compiled.stderr);
        let mut command = Command::new(&program);
        command
            .env("LD_LIBRARY_PATH", library.path())
            .env("ROCE_DEVICE", "udp:127.83.0.3")
            .env("ROCE_ENGINES", engines);
        let ran = Running::start(&mut command).finish(60);
        let is_right = ran.success && ran.stdout.contains("all is as it should be");
        assert!(is_right, "{}: {ran:?}", headers.folder.display());
    }
}
