//! Shell scripts that tests run in their own network namespaces.

/// Shell functions for the scripts.
const FUNCTIONS: &str = r#"
    # Runs a command until it succeeds, for ten seconds and the time that it takes itself.
    retry() {
        tries=0
        until "$@" 2>/dev/null; do
            tries=$((tries + 1))
            [ $tries -lt 500 ] || { echo "in vain: $*" >&2; return 1; }
            sleep 0.02
        done
    }
    # Whether a process has left the network namespace of this shell.
    has_own_network() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink "/proc/$$/ns/net")" ]; }
"#;

/// Returns a script that can use `retry COMMAND...` and `has_own_network PID`.
pub fn script(body: &str) -> String {
    format!("{FUNCTIONS}{body}")
}

/// A server and a client of `$ROCE $TOOL`, each with a TAP, and a bridge between them. `$SERVER` and
/// `$CLIENT` are the options of their devices, and `$TO` is the address of the server.
pub const TAPS_ON_A_BRIDGE: &str = r#"
    set -e
    ip link set lo up
    ip link add br0 type bridge mcast_snooping 0
    ip link set br0 mtu 4200 up
    ip addr add 198.18.0.1/24 dev br0
    said=$(mktemp)
    "$ROCE" "$TOOL" --device "tap:roce2,$SERVER,mtu=4200" --once $SERVER_OPTIONS >$said 2>&1 &
    server=$!
    trap 'kill $server 2>/dev/null || true; cat $said >&2; rm -f $said' EXIT
    retry ip link set roce2 master br0
    retry grep -q 'waiting on' $said
    "$ROCE" "$TOOL" "$TO" --device "tap:roce3,$CLIENT,mtu=4200" -n 50 --json $MORE &
    client=$!
    retry ip link set roce3 master br0
    wait $client
    wait $server
"#;
