//! Abilities of an ordinary user: `tap` and `raw` inside `unshare -Urn`. Without that, the error says what is
//! missing and what works anyway.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::common::{Finished, Running, TAPS_ON_A_BRIDGE, check_measured, has_program, script, skip_unless};
use roce_testing::AS_NOBODY;
use tempfile::TempDir;

/// Preparation by root: `$SCRIPT` runs as nobody, with a /dev/net/tun of the mode `$TUN_MODE`, which is 666
/// on most systems. This device is visible only in a mount namespace that ends with the script.
const BECOME_NOBODY: &str = r#"
    set -e
    mknod "$FOLDER/tun" c 10 200
    chmod "$TUN_MODE" "$FOLDER/tun"
    mount --bind "$FOLDER/tun" /dev/net/tun
    exec $AS_NOBODY sh -c "$SCRIPT"
"#;

/// Runs a server and a client of `$ROCE $TOOL` in two namespaces, at both ends of a cable.
const RAW_AT_BOTH_ENDS: &str = r#"
    set -e
    unshare --net sleep 60 &
    far=$!
    trap 'kill $far $server 2>/dev/null || true' EXIT
    retry has_own_network $far
    inside() { nsenter --target $far --net "$@"; }
    ip link add v0 mtu 4200 type veth peer name v1 mtu 4200
    ip link set v1 netns $far
    # Both sides have both IP versions: they talk in that of the address that the client is given.
    ip address add 198.18.0.1/24 dev v0
    ip address add 2001:db8::1/64 dev v0 nodad
    inside ip address add 198.18.0.2/24 dev v1
    inside ip address add 2001:db8::2/64 dev v1 nodad
    ip link set v0 up
    inside ip link set v1 up
    # What an earlier one said would be taken for this one.
    : >"$FOLDER/server"
    inside "$ROCE" "$TOOL" --device raw:v1 --once >"$FOLDER/server" 2>&1 &
    server=$!
    retry grep -q 'waiting on' "$FOLDER/server" || { cat "$FOLDER/server" >&2; exit 1; }
    "$ROCE" "$TOOL" "$TO" --device raw:v0 -n 50 --json
    wait $server
"#;

/// An unprivileged user with a copy of the command that every user may run.
struct User {
    folder: TempDir,
    roce: PathBuf,
}

impl User {
    /// Creates the user; if something is missing, prints the reason and returns `None`.
    #[track_caller]
    fn new() -> Option<Self> {
        let tools = ["unshare", "setpriv", "nsenter", "ip"].into_iter().all(has_program);
        if skip_unless(tools, "unshare, setpriv, nsenter (util-linux) or ip (iproute2) is not installed") {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let roce = folder.path().join("roce");
        fs::copy(env!("CARGO_BIN_EXE_roce"), &roce).unwrap();
        fs::set_permissions(&roce, Permissions::from_mode(0o755)).unwrap();
        let user = Self { folder, roce };
        let works = user.run("666", "unshare --user --map-root-user --net true", &[]);
        let reason = "an ordinary user may not make namespaces here (`unshare -Urn`)";
        (!skip_unless(works.success, reason)).then_some(user)
    }

    /// Runs a shell script as this user, for at most 60 seconds.
    #[track_caller]
    fn run(&self, tun_mode: &str, script: &str, variables: &[(&str, &str)]) -> Finished {
        let is_root = rustix::process::getuid().is_root();
        let mut command = Command::new(if is_root { "unshare" } else { "sh" });
        if is_root {
            command.args(["--mount", "sh", "-c", BECOME_NOBODY]);
            let _ = fs::remove_file(self.folder.path().join("tun"));
        } else {
            command.args(["-c", script]);
        }
        command.env("SCRIPT", script).env("TUN_MODE", tun_mode).env("HOME", self.folder.path());
        command.env("AS_NOBODY", AS_NOBODY.join(" "));
        command.env("ROCE", &self.roce).env("FOLDER", self.folder.path()).envs(variables.iter().copied());
        Running::start(&mut command).finish(60)
    }

    /// Runs a script with the functions of [`script`], as root of a user namespace with its own network:
    /// `unshare -Urn`.
    #[track_caller]
    fn run_in_own_network(&self, tun_mode: &str, body: &str, variables: &[(&str, &str)]) -> Finished {
        let inner = script(body);
        let all = [&[("INNER", &*inner)], variables].concat();
        self.run(tun_mode, r#"exec unshare -Urn sh -c "$INNER""#, &all)
    }
}

#[test]
fn it_is_an_ordinary_user() {
    let Some(user) = User::new() else { return };
    let finished = user.run("666", "id -u; grep -i capeff /proc/self/status", &[]);
    assert!(finished.success, "{finished:?}");
    assert!(!finished.stdout.starts_with("0\n"), "{}", finished.stdout);
    assert!(finished.stdout.contains("0000000000000000"), "{}", finished.stdout);
}

#[test]
fn two_taps_on_a_bridge_talk() {
    let Some(user) = User::new() else { return };
    let there = std::path::Path::new("/dev/net/tun").exists();
    if skip_unless(there, "there is no /dev/net/tun; `modprobe tun` makes it") {
        return;
    }
    for (tool, server, client, to) in [
        ("ping", "ip=198.18.0.2/24", "ip=198.18.0.3/24", "198.18.0.2"),
        ("ping", "ip6=2001:db8::2/64,vlan=9,prio=3", "ip6=2001:db8::3/64,vlan=9,prio=3", "2001:db8::2"),
        ("blast", "ip=198.18.0.2/24", "ip=198.18.0.3/24", "198.18.0.2"),
    ] {
        let variables = [("TOOL", tool), ("SERVER", server), ("CLIENT", client), ("TO", to)];
        let finished = user.run_in_own_network("666", TAPS_ON_A_BRIDGE, &variables);
        assert!(finished.success, "{tool} {server}: {finished:?}");
        check_measured(&finished.stdout, "tap");
    }
}

#[test]
fn packet_sockets_at_both_ends_of_a_cable_talk() {
    let Some(user) = User::new() else { return };
    for (tool, to) in [("ping", "198.18.0.2"), ("ping", "2001:db8::2"), ("blast", "198.18.0.2")] {
        let finished = user.run_in_own_network("666", RAW_AT_BOTH_ENDS, &[("TOOL", tool), ("TO", to)]);
        assert!(finished.success, "{tool} {to}: {finished:?}");
        check_measured(&finished.stdout, "raw");
    }
}

/// Creates an interface, then runs `$ROCE` as a user without rights to it.
const WITHOUT_RIGHTS: &str = r#"
    ip link add v0 type veth peer name v1 && ip address add 198.18.0.1/24 dev v0
    ip link set v0 up && ip link set v1 up
    exec unshare --user "$ROCE" $ARGUMENTS --device "$DEVICE"
"#;

const TAP: &str = "tap:roce0,ip=198.18.0.3/24";

#[test]
fn without_privilege_every_device_says_what_is_missing_and_what_works() {
    let Some(user) = User::new() else { return };
    let commands =
        ["ping 198.18.0.2", "blast", "pingpong rc", "perf write bw", "rping -s", "limit 198.18.0.2"];
    for (device, tun_mode, missing) in [
        (TAP, "666", "CAP_NET_ADMIN"),
        (TAP, "600", "the right to read and write it"),
        ("raw:v0", "666", "CAP_NET_RAW"),
        ("xdp:v0", "666", "CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW"),
    ] {
        // Only root can remove this permission; other users test with the existing one.
        if tun_mode == "600" && !rustix::process::getuid().is_root() {
            continue;
        }
        for arguments in commands {
            let variables = [("ARGUMENTS", arguments), ("DEVICE", device)];
            let finished = user.run_in_own_network(tun_mode, WITHOUT_RIGHTS, &variables);
            let place = format!("{arguments} --device {device}: {finished:?}");
            assert_eq!(finished.code, Some(1), "{place}");
            assert!(finished.stderr.contains(&format!("device `{device}`: cannot ")), "{place}");
            assert!(finished.stderr.contains(missing), "{place}");
            assert!(finished.stderr.contains("`--device udp:ADDRESS`"), "{place}");
            // The error of the system occurs only once.
            assert_eq!(finished.stderr.matches("(os error").count(), 1, "{place}");
        }
    }
}

#[test]
fn xdp_reports_that_an_own_namespace_is_not_enough() {
    let Some(user) = User::new() else { return };
    let script = r#"
        ip link add v0 type veth peer name v1 && ip address add 198.18.0.1/24 dev v0
        ip link set v0 up && ip link set v1 up
        exec "$ROCE" ping --device xdp:v0
    "#;
    let finished = user.run_in_own_network("666", script, &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    for part in ["CAP_BPF", "being root inside `unshare -Urn` is not enough", "`--device udp:ADDRESS`"] {
        assert!(finished.stderr.contains(part), "{part}: {}", finished.stderr);
    }
}
