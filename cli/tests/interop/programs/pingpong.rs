//! The ping-pongs: `ibv_rc_pingpong` and its siblings, and `rping`.

use roce::verbs::{Context, GidEntry};
use roce_packet::Encapsulation;

use super::{Pair, Role};
use crate::case::{Family, Scope};
use crate::setting::Setting;

/// Returns the index of a family in the guest's GID table, which begins with a link-local GID.
fn gid_index(family: Family) -> usize {
    family as usize + 1
}

/// Returns the server's address for the command line of the client: the original's, and ours.
fn server_address(setting: &Setting, role: Role, family: Family) -> [String; 2] {
    match role {
        Role::Server => [setting.addresses(family).ours.to_string(), String::new()],
        // The originals listen only over IPv4, with any GID.
        Role::Client => [String::new(), setting.addresses(Family::V4).theirs.to_string()],
    }
}

/// Returns the option that makes our client send from the tested family. It connects to the server over IPv4,
/// and the interface may have both families.
fn own_gid(setting: &Setting, family: Family) -> String {
    if family == Family::V4 || setting.device == "udp" {
        return String::new();
    }
    let (spec, ours) = (setting.spec(family), setting.addresses(family).ours);
    let context = Context::open(spec).unwrap_or_else(|error| panic!("{spec}: {error:?}"));
    let table = context.gid_table();
    let fits = |entry: &&GidEntry| entry.address() == ours && entry.gid_type == Encapsulation::RoceV2;
    let entry = table.iter().find(fits).unwrap_or_else(|| panic!("{spec} has no GID of {ours}: {table:?}"));
    format!("-g {}", entry.index)
}

pub(crate) fn pingpongs(setting: &Setting) -> Vec<Pair> {
    let iterations = if setting.scope == Scope::Smoke { 200 } else { 1000 };
    // Without retransmission, a lost message ends the test.
    let kinds: &[&str] = if setting.is_lossy() { &["rc", "srq"] } else { &["rc", "uc", "ud", "srq"] };
    let mut pairs = Vec::new();
    for family in [Family::V4, Family::V6] {
        let own_gid = own_gid(setting, family);
        for kind in kinds {
            for role in Role::BOTH {
                // The small matrix runs each kind in each role, and each kind with each family.
                if setting.scope == Scope::Smoke && (family == Family::V6) != (role == Role::Server) {
                    continue;
                }
                // A separate host with only an IPv6 address cannot reach a server over IPv4.
                if setting.device == "tap" && family == Family::V6 && role == Role::Client {
                    continue;
                }
                let [of_original, of_ours] = server_address(setting, role, family);
                let size = if *kind == "ud" { 1024 } else { 4096 };
                let gid = gid_index(family);
                let own_gid = if role == Role::Client { &*own_gid } else { "" };
                pairs.push(Pair {
                    name: format!("ibv_{kind}_pingpong -n {iterations}"),
                    role,
                    family,
                    original: format!(
                        "ibv_{kind}_pingpong -d rxe0 -g {gid} -n {iterations} -s {size} {of_original}"
                    ),
                    // The guest's processors sometimes stand still for longer than the original's eight times
                    // 67 ms. The kernel at the other end never gives up.
                    ours: format!(
                        "pingpong {kind} -n {iterations} -s {size} --timeout 16 {own_gid} {of_ours}"
                    ),
                    seconds: 120,
                });
            }
        }
    }
    pairs
}

pub(crate) fn rpings(setting: &Setting) -> Vec<Pair> {
    let count = if setting.scope == Scope::Smoke { 100 } else { 1000 };
    let mut pairs = Vec::new();
    for family in [Family::V4, Family::V6] {
        pairs.extend(Role::BOTH.map(|role| rping(setting, &format!("-C {count} -V"), role, family)));
    }
    // The smallest sizes of rping, which its text fills.
    for size in 23..=26 {
        pairs.extend(Role::BOTH.map(|role| rping(setting, &format!("-C 12 -V -S {size}"), role, Family::V4)));
    }
    pairs
}

fn rping(setting: &Setting, options: &str, role: Role, family: Family) -> Pair {
    let addresses = setting.addresses(family);
    let (ours, theirs) = (addresses.ours, addresses.theirs);
    let (original, ours) = match role {
        Role::Server => (format!("rping -c -a {ours} {options}"), format!("rping -s -a {ours}")),
        Role::Client => (format!("rping -s -a {theirs}"), format!("rping -c -a {theirs} {options}")),
    };
    Pair {
        name: format!("rping {options}"),
        role,
        family,
        original,
        ours,
        // Each loss costs a timeout of a second, and 1 % of losses causes a hundred of them.
        seconds: if setting.is_lossy() { 600 } else { 180 },
    }
}
