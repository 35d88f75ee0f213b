//! The attributes of devices that programs request over netlink. The library that is loaded before the
//! program sends them from files, one for each command and device. The numbers are those of
//! `rdma/rdma_netlink.h`.

use std::fs;
use std::path::Path;

use roce_device::LocalAddress;

/// Commands: `RDMA_NLDEV_CMD_GET`, `RDMA_NLDEV_CMD_PORT_GET` and `RDMA_NLDEV_CMD_SYS_GET`.
const DEVICE_GET: u16 = 1;
const PORT_GET: u16 = 5;
const SYSTEM_GET: u16 = 6;

/// `RDMA_NLDEV_ATTR_…`, and `RDMA_NLDEV_SYS_ATTR_NETNS_MODE`.
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const CAP_FLAGS: u16 = 4;
const FW_VERSION: u16 = 5;
const NODE_GUID: u16 = 6;
const SYS_IMAGE_GUID: u16 = 7;
const LID: u16 = 9;
const SM_LID: u16 = 10;
const LMC: u16 = 11;
const PORT_STATE: u16 = 12;
const PORT_PHYS_STATE: u16 = 13;
const DEV_NODE_TYPE: u16 = 14;
const NDEV_INDEX: u16 = 50;
const NDEV_NAME: u16 = 51;
const NETNS_MODE: u16 = 66;
const DEV_PROTOCOL: u16 = 67;

/// Values: a channel adapter, an active port whose link is up, and devices that all network namespaces share.
const CHANNEL_ADAPTER: u8 = 1;
const ACTIVE: u8 = 4;
const LINK_UP: u8 = 5;
const SHARED: u8 = 1;
/// The number of the only port.
const PORT: u32 = 1;

/// The description of a device in answers over netlink.
pub(super) struct Device<'a> {
    pub(super) index: u32,
    pub(super) name: &'a str,
    pub(super) guid: u64,
    pub(super) lid: u16,
    pub(super) capabilities: u32,
    pub(super) interface: Option<&'a LocalAddress>,
}

impl Device<'_> {
    /// Creates the files of the device.
    pub(super) fn create(&self, root: &Path) -> std::io::Result<()> {
        write(root, DEVICE_GET, self.index, &self.device())?;
        write(root, PORT_GET, self.index, &self.port())
    }

    fn device(&self) -> Attributes {
        let mut attributes = Attributes::default();
        attributes.add(DEV_INDEX, &self.index.to_ne_bytes());
        attributes.text(DEV_NAME, self.name);
        attributes.add(PORT_INDEX, &PORT.to_ne_bytes());
        attributes.add(CAP_FLAGS, &0_u64.to_ne_bytes());
        attributes.text(FW_VERSION, env!("CARGO_PKG_VERSION"));
        attributes.add(NODE_GUID, &self.guid.to_ne_bytes());
        attributes.add(SYS_IMAGE_GUID, &self.guid.to_ne_bytes());
        attributes.add(DEV_NODE_TYPE, &[CHANNEL_ADAPTER]);
        attributes.text(DEV_PROTOCOL, "roce");
        attributes
    }

    fn port(&self) -> Attributes {
        let mut attributes = Attributes::default();
        attributes.add(DEV_INDEX, &self.index.to_ne_bytes());
        attributes.text(DEV_NAME, self.name);
        attributes.add(PORT_INDEX, &PORT.to_ne_bytes());
        attributes.add(CAP_FLAGS, &u64::from(self.capabilities).to_ne_bytes());
        attributes.add(LID, &u32::from(self.lid).to_ne_bytes());
        attributes.add(SM_LID, &0_u32.to_ne_bytes());
        attributes.add(LMC, &[0]);
        attributes.add(PORT_STATE, &[ACTIVE]);
        attributes.add(PORT_PHYS_STATE, &[LINK_UP]);
        if let Some(local) = self.interface {
            attributes.add(NDEV_INDEX, &local.index.to_ne_bytes());
            attributes.text(NDEV_NAME, &local.interface);
        }
        attributes
    }
}

/// Creates the file with the attributes of the system.
pub(super) fn create_system(root: &Path) -> std::io::Result<()> {
    let mut attributes = Attributes::default();
    attributes.add(NETNS_MODE, &[SHARED]);
    write(root, SYSTEM_GET, 0, &attributes)
}

fn write(root: &Path, command: u16, index: u32, attributes: &Attributes) -> std::io::Result<()> {
    let folder = root.join("netlink").join(command.to_string());
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(index.to_string()), &attributes.0)
}

/// Netlink attributes: length, type and value, each at a multiple of four bytes.
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn add(&mut self, kind: u16, value: &[u8]) {
        let len = 4 + value.len();
        self.0.extend(u16::try_from(len).unwrap_or(u16::MAX).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Adds a text with a zero at its end.
    fn text(&mut self, kind: u16, text: &str) {
        self.add(kind, &[text.as_bytes(), &[0]].concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_aligned_and_have_their_lengths() {
        let mut attributes = Attributes::default();
        attributes.text(DEV_NAME, "roce0");
        attributes.add(LMC, &[7]);
        let mut wanted = [10_u16.to_ne_bytes(), DEV_NAME.to_ne_bytes()].concat();
        wanted.extend(b"roce0\0\0\0");
        wanted.extend([5_u16.to_ne_bytes(), LMC.to_ne_bytes()].concat());
        wanted.extend([7, 0, 0, 0]);
        assert_eq!(attributes.0, wanted);
    }
}
