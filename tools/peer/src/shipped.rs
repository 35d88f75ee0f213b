//! The scripts of the folder `scripts`, which are part of this crate.

use crate::script::{Files, Script, ScriptError};

macro_rules! texts {
    ($($name:literal),+ $(,)?) => {
        &[$((concat!($name, ".roce"), include_str!(concat!("../scripts/", $name, ".roce")))),+]
    };
}

/// Names and texts of the shipped scripts, in groups: requests to a responder, refusals, dropped packets,
/// states, requests of a requester, congestion notifications, unreliable transports.
pub static SHIPPED: &[(&str, &str)] = texts![
    "write-acknowledged",
    "write-duplicate",
    "write-three-packets",
    "write-empty",
    "write-imm",
    "send-received",
    "send-imm",
    "send-empty",
    "send-two-packets",
    "send-duplicate",
    "ack-only-on-request",
    "ack-cumulative",
    "ack-of-middle",
    "gap-one-nak",
    "gap-second-nak",
    "gap-executes-nothing",
    "psn-wrap",
    "psn-far-ahead",
    "psn-far-behind",
    "msn-in-nak",
    "rnr-nak",
    "rnr-drops-later",
    "rnr-write-imm",
    "read-one-packet",
    "read-three-packets",
    "read-empty",
    "read-whole-mtu",
    "read-duplicate",
    "read-duplicate-part",
    "read-duplicate-outside",
    "read-order",
    "read-not-offered",
    "atomic-fetch-add",
    "atomic-compare-swap",
    "atomic-compare-differs",
    "atomic-duplicate",
    "atomic-wraps",
    "atomic-misaligned",
    "atomic-write",
    "flush",
    "send-invalidate",
    "window-range",
    "window-rights",
    "key-unknown",
    "key-variant",
    "key-revoked",
    "key-revoked-inside-message",
    "key-read-only",
    "key-write-only",
    "key-no-atomics",
    "key-foreign",
    "range-low",
    "range-high",
    "range-wrap",
    "range-first-packet",
    "range-last-byte",
    "rights-of-queue-pair",
    "order-middle-first",
    "order-send-inside-write",
    "order-start-inside-message",
    "length-first-short",
    "length-above-mtu",
    "length-last-empty",
    "length-not-announced",
    "length-above-receive",
    "length-above-2-31",
    "drop-bad-icrc",
    "drop-bit-error",
    "drop-source-address",
    "drop-destination-address",
    "drop-unknown-qp",
    "drop-partition",
    "drop-transport",
    "drop-opcode",
    "drop-version",
    "drop-odd-length",
    "drop-truncated",
    "pad-wrong",
    "reserved-bits",
    "source-port",
    "state-rtr",
    "state-init",
    "state-err",
    "err-after-nak",
    "request-write",
    "request-send",
    "request-ack-partial",
    "request-ack-unsent",
    "request-ack-stale",
    "request-credits",
    "request-nak-sequence",
    "request-nak-twice",
    "request-nak-invalid",
    "request-nak-access",
    "request-nak-operational",
    "request-syndrome-reserved",
    "request-timeout",
    "request-timeout-last",
    "request-timeout-none",
    "request-rnr",
    "request-rnr-longest",
    "request-rnr-last",
    "request-read",
    "request-read-gap",
    "request-read-implied-nak",
    "request-read-short",
    "request-response-unasked",
    "request-response-to-write",
    "request-reads-limit",
    "request-fence",
    "request-atomic",
    "request-atomic-timeout",
    "request-write-imm",
    "request-solicited",
    "cnp-after-mark",
    "cnp-not-without-mark",
    "cnp-interval",
    "cnp-received",
    "cnp-unknown-qp",
    "uc-write",
    "uc-gap",
    "uc-lost-first",
    "uc-bad-key",
    "ud-received",
    "ud-wrong-qkey",
    "ud-no-receive",
];

/// Returns the shipped script with this name, with or without `.roce`.
///
/// # Errors
///
/// Returns the error of the script; the tests of this crate find none.
#[must_use]
pub fn shipped(name: &str) -> Option<Result<Script, ScriptError>> {
    let name = name.strip_suffix(".roce").unwrap_or(name);
    let (file, text) = SHIPPED.iter().find(|(file, _)| file.strip_suffix(".roce") == Some(name))?;
    Some(Script::load(file, &Files::of([(*file, *text)])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_shipped() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut files: Vec<String> = files.map(|name| name.to_string_lossy().into_owned()).collect();
        let mut known: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        files.sort_unstable();
        known.sort_unstable();
        assert_eq!(files, known);
    }
}
