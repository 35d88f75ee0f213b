//! The files of the program's devices, as kernels with RDMA have them below `/sys` and `/dev`. A library that
//! is loaded before the program (`libs/sysfs/`) redirects the program to them. The libraries of verbs add
//! their counters to some of them.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use roce::verbs::raw::listing;
use roce_device::{LocalAddress, interfaces_of, local_addresses};
use roce_packet::Gid;

use super::netlink;
use crate::network::devices::groups;

/// The counters of a port that kernels have for every kind of device, and that the library counts.
const COUNTERS: [&str; 5] =
    ["port_rcv_data", "port_rcv_errors", "port_rcv_packets", "port_xmit_data", "port_xmit_packets"];

/// `IBV_PORT_CM_SUP` and `IBV_PORT_IP_BASED_GIDS`, which the library returns from `ibv_query_port`.
const CAPABILITIES: u32 = 0x0401_0000;

/// Creates the files of the devices in `devices` and `names`, which are the values of the environment
/// variables.
///
/// # Errors
///
/// A file or a link cannot be created.
pub(super) fn create(
    root: &Path,
    devices: Option<&str>,
    names: Option<&str>,
    gid_index: usize,
) -> std::io::Result<()> {
    for (index, specification) in listing::specifications(devices).iter().enumerate() {
        let addresses = addresses(specification);
        let first = addresses.first().cloned();
        let gids: Vec<LocalAddress> = listing::in_gid_order(addresses.into_iter()).collect();
        let present = gids.iter().take_while(|gid| Some(*gid) == first.as_ref()).count();
        let more = (gid_index + 1).saturating_sub(present);
        let gids = std::iter::repeat_n(first, more).flatten().chain(gids).collect();
        Device { index, name: listing::name(names, index), specification, gids }.create(root)?;
    }
    netlink::create_system(root)?;
    write(&root.join("sys/class/infiniband_mad"), &[("abi_version", "5")])?;
    write(&root.join("sys/class/infiniband_verbs"), &[("abi_version", "6")])
}

/// Returns the addresses of a device, with their interfaces.
fn addresses(specification: &str) -> Vec<LocalAddress> {
    if let Some(address) = listing::address(specification) {
        return interfaces_of(address, None).into_iter().take(1).collect();
    }
    let interface = listing::place(specification).unwrap_or_default();
    let locals = local_addresses().unwrap_or_default();
    locals.into_iter().filter(|local| local.interface == interface).collect()
}

struct Device<'a> {
    index: usize,
    name: String,
    specification: &'a str,
    /// The addresses of the GIDs, in the order of their indexes.
    gids: Vec<LocalAddress>,
}

impl Device<'_> {
    fn create(&self, root: &Path) -> std::io::Result<()> {
        let (name, file) = (&self.name, listing::file(self.index));
        let folder = root.join("sys/devices/virtual/infiniband").join(name);
        self.create_node(&folder)?;
        self.create_port(&folder.join("ports/1"))?;
        self.netlink().create(root)?;

        let class = root.join("sys/class/infiniband");
        fs::create_dir_all(&class)?;
        symlink(Path::new("../../devices/virtual/infiniband").join(name), class.join(name))?;
        let verbs = root.join("sys/class/infiniband_verbs").join(&file);
        write(&verbs, &[("ibdev", name), ("abi_version", "1")])?;
        // Programs check that it is a character device that they may read and write. They use it only through
        // libibverbs.
        let files = root.join("dev/infiniband");
        fs::create_dir_all(&files)?;
        symlink("/dev/null", files.join(file))
    }

    /// Returns the description of the device in answers over netlink.
    fn netlink(&self) -> netlink::Device<'_> {
        netlink::Device {
            index: u32::try_from(self.index).unwrap_or(u32::MAX),
            name: &self.name,
            guid: u64::from_be_bytes(listing::guid(self.specification)),
            lid: listing::lid(self.address()),
            capabilities: CAPABILITIES,
            interface: self.gids.first(),
        }
    }

    /// Returns the first address.
    fn address(&self) -> Option<IpAddr> {
        self.gids.first().map(|local| local.address)
    }

    fn create_node(&self, folder: &Path) -> std::io::Result<()> {
        let guid = groups(&listing::guid(self.specification));
        let description = format!("roce {}", self.specification);
        write(
            folder,
            &[
                ("node_type", "1: CA"),
                ("node_guid", &guid),
                ("sys_image_guid", &guid),
                ("node_desc", &description),
                ("fw_ver", env!("CARGO_PKG_VERSION")),
                ("hw_rev", "0"),
                ("hca_type", "roce"),
                ("board_id", "roce"),
            ],
        )?;
        // The device has no preferred NUMA node.
        write(&folder.join("device"), &[("numa_node", "-1")])?;
        let net = folder.join("device/net");
        fs::create_dir_all(&net)?;
        let mut interfaces: Vec<&str> = self.gids.iter().map(|local| local.interface.as_str()).collect();
        interfaces.sort_unstable();
        interfaces.dedup();
        interfaces.into_iter().try_for_each(|interface| {
            symlink(Path::new("/sys/class/net").join(interface), net.join(interface))
        })
    }

    fn create_port(&self, folder: &Path) -> std::io::Result<()> {
        write(
            folder,
            &[
                ("state", "4: ACTIVE"),
                ("phys_state", "5: LinkUp"),
                ("link_layer", "Ethernet"),
                ("rate", "100 Gb/sec (4X EDR)"),
                ("lid", &format!("{:#x}", listing::lid(self.address()))),
                ("lid_mask_count", "0"),
                ("sm_lid", "0x0"),
                ("sm_sl", "0"),
                ("cap_mask", &format!("{CAPABILITIES:#010x}")),
            ],
        )?;
        // A device adds its counters when it is closed.
        let zeros = |names: &[&'static str]| names.iter().map(|name| (*name, "0")).collect::<Vec<_>>();
        write(&folder.join("counters"), &zeros(&COUNTERS))?;
        write(&folder.join("hw_counters"), &zeros(roce_transport::Counters::NAMES))?;
        write(&folder.join("pkeys"), &[("0", "0xffff")])?;
        for folder in ["gids", "gid_attrs/types", "gid_attrs/ndevs"].map(|name| folder.join(name)) {
            fs::create_dir_all(folder)?;
        }
        for (index, local) in self.gids.iter().enumerate() {
            let index = index.to_string();
            write(&folder.join("gids"), &[(&index, &groups(&Gid::from_ip(local.address).0))])?;
            write(&folder.join("gid_attrs/types"), &[(&index, "RoCE v2")])?;
            write(&folder.join("gid_attrs/ndevs"), &[(&index, &local.interface)])?;
        }
        Ok(())
    }
}

/// Writes one-line files into a folder.
fn write(folder: &Path, files: &[(&str, &str)]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    files.iter().try_for_each(|(name, line)| fs::write(folder.join(name), format!("{line}\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_files_that_programs_read() {
        let root = tempfile::tempdir().unwrap();
        create(root.path(), Some("udp:127.0.0.9;udp:[::1]"), Some(";mlx5_1"), 5).unwrap();
        let read = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        assert_eq!(read("sys/class/infiniband/roce0/node_guid"), "0200:7fff:fe00:0009\n");
        for index in ["0", "1", "3", "5"] {
            let gid = read(&format!("sys/class/infiniband/roce0/ports/1/gids/{index}"));
            assert_eq!(gid, "0000:0000:0000:0000:0000:ffff:7f00:0009\n");
        }
        assert!(!root.path().join("sys/class/infiniband/roce0/ports/1/gids/6").exists());
        assert_eq!(read("sys/class/infiniband/mlx5_1/ports/1/gid_attrs/types/0"), "RoCE v2\n");
        assert_eq!(read("sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/3"), "lo\n");
        assert_eq!(read("sys/class/infiniband_verbs/uverbs1/ibdev"), "mlx5_1\n");
        assert_eq!(read("sys/class/infiniband/roce0/ports/1/lid"), "0x9\n");
        for (file, text) in
            [("counters/port_xmit_data", "0\n"), ("cap_mask", "0x04010000\n"), ("sm_sl", "0\n")]
        {
            assert_eq!(read(&format!("sys/class/infiniband/roce0/ports/1/{file}")), text);
        }
        assert!(root.path().join("sys/class/infiniband/roce0/device/net/lo/mtu").exists());
        assert!(root.path().join("dev/infiniband/uverbs1").exists());
    }
}
