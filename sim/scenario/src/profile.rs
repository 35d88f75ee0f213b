//! The table with settings of some flows, which several other tables contain.

use serde::Deserialize;

use super::values::Bytes;

/// Settings of the queue pairs of some flows.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table for host, such as { congestion = \"dcqcn\", dscp = 10 }")]
pub(super) struct Profile {
    pub(super) congestion: Option<String>,
    pub(super) recovery: Option<String>,
    pub(super) paths: Option<String>,
    pub(super) dscp: Option<u8>,
    pub(super) path_mtu: Option<u16>,
    pub(super) timeout: Option<u8>,
    pub(super) retry_cnt: Option<u8>,
    pub(super) message: Option<Bytes>,
    pub(super) depth: Option<u32>,
}
