//! The list of devices: one for each local address that the environment names.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use roce::device::fork::StaticMutex;
use roce::verbs::raw::listing;
use roce_fault::verbs::Verb;

use crate::abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device};
use crate::answer::{Errno, free_list, list, pointer, value};
use crate::live::Kind;
use crate::{process, report};

/// An `ibv_device` with the state of the library.
#[repr(C)]
pub(crate) struct Device {
    abi: ibv_device,
    /// Provider libraries read a pointer behind an `ibv_device` to recognize their own devices; it must be
    /// null.
    zero: [u64; 45],
    specification: String,
    index: c_int,
}

// SAFETY: the object never changes, and its pointers are all null.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// All devices that were ever listed. Listing a device again returns the same object, as with kernel devices.
static DEVICES: StaticMutex<Vec<Arc<Device>>> = StaticMutex::new(Vec::new());

impl Device {
    fn new(index: usize, name: &str, specification: &str) -> Self {
        let number = c_int::try_from(index).unwrap_or(c_int::MAX);
        Self {
            abi: ibv_device {
                ops: [None; 2],
                node_type: IBV_NODE_CA,
                transport_type: IBV_TRANSPORT_IB,
                name: text(name),
                dev_name: text(&listing::file(index)),
                dev_path: text(&format!("/sys/class/infiniband_verbs/{}", listing::file(index))),
                ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
            },
            zero: [0; 45],
            specification: specification.to_owned(),
            index: number,
        }
    }

    /// Returns its name, such as `roce0`.
    pub(crate) fn name(&self) -> &str {
        // SAFETY: the field ends with a zero, and lives as long as the object.
        let name = unsafe { std::ffi::CStr::from_ptr(self.abi.name.as_ptr()) };
        name.to_str().unwrap_or_default()
    }

    /// Returns its pointer for the application.
    pub(crate) fn abi(self: &Arc<Self>) -> *mut ibv_device {
        Arc::as_ptr(self).cast_mut().cast()
    }

    /// Returns its index in the list of devices.
    pub(crate) fn index(&self) -> usize {
        usize::try_from(self.index).unwrap_or(usize::MAX)
    }

    /// Returns its specification for `Context::open`.
    pub(crate) fn specification(&self) -> &str {
        &self.specification
    }

    /// Returns the device of an application's pointer. Devices are never destroyed.
    pub(crate) fn of(device: *mut ibv_device) -> Result<Arc<Self>, Errno> {
        let known = DEVICES.lock();
        let found = known.iter().find(|known| std::ptr::eq(Arc::as_ptr(known), device.cast()));
        found.cloned().ok_or(Errno::INVALID)
    }

    /// Returns the GUID of the node in network byte order, derived from the address if the specification has
    /// one.
    pub(crate) fn guid(&self) -> u64 {
        u64::from_ne_bytes(listing::guid(&self.specification))
    }
}

/// Returns a text as a field of fixed length, truncated if it does not fit.
fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from.cast_signed() as c_char;
    }
    field
}

/// Returns the devices that the environment names now.
pub(crate) fn devices() -> Vec<Arc<Device>> {
    let value = std::env::var(listing::VARIABLE).ok();
    let wanted = listing::specifications(value.as_deref());
    let names = std::env::var(listing::NAMES).ok();
    let mut known = DEVICES.lock();
    let find = |(index, specification): (usize, String)| {
        let name = listing::name(names.as_deref(), index);
        let is_same = |device: &&Arc<Device>| {
            device.specification == specification
                && usize::try_from(device.index) == Ok(index)
                && device.name() == name
        };
        if let Some(device) = known.iter().find(is_same) {
            return Arc::clone(device);
        }
        let device = Arc::new(Device::new(index, &name, &specification));
        known.push(Arc::clone(&device));
        device
    };
    wanted.into_iter().enumerate().map(find).collect()
}

pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(Verb::ibv_get_device_list, || {
        if let Some(other) = process::another_libibverbs() {
            report::refusal("libibverbs", &process::refusal_of_another(&other));
            return Err(Errno::UNSUPPORTED);
        }
        let devices = devices();
        report::listed(devices.iter().map(|device| device.name()));
        let devices: Vec<_> = devices.iter().map(Device::abi).collect();
        // SAFETY: the application gives a null pointer or room for an integer.
        Ok(unsafe { list(Kind::DeviceList, &devices, count) })
    })
}

pub(crate) extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    value(Verb::ibv_free_device_list, (), || free_list(Kind::DeviceList, list));
}

pub(crate) extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    pointer(Verb::ibv_get_device_name, || Ok(Device::of(device)?.abi.name.as_ptr().cast_mut()))
}

pub(crate) extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    value(Verb::ibv_get_device_guid, 0, || Device::of(device).map_or(0, |device| device.guid()))
}

pub(crate) extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    value(Verb::ibv_get_device_index, -1, || Device::of(device).map_or(-1, |device| device.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_a_device_is_zero() {
        let device = Device::new(3, "mlx5_0", "udp:192.0.2.7");
        let begin = std::mem::offset_of!(Device, zero);
        assert_eq!(begin, size_of::<ibv_device>());
        assert!(begin + size_of_val(&device.zero) >= 1024, "provider libraries read as far as this");
        assert_eq!(device.guid().to_ne_bytes(), [2, 0, 192, 0xff, 0xfe, 0, 2, 7]);
        assert_eq!(device.name(), "mlx5_0");
        assert_ne!(Device::new(0, "roce0", "xdp:eth1").guid(), Device::new(0, "roce0", "xdp:eth2").guid());
    }
}
