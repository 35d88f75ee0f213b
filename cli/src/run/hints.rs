//! Finds the device that a program was told to use, for the hint if it opened none.

use std::ffi::OsString;

/// Variables of UCX, NCCL and Open MPI that contain names of devices.
const VARIABLES: [&str; 3] = ["UCX_NET_DEVICES", "NCCL_IB_HCA", "OMPI_MCA_btl_openib_if_include"];

/// Prefixes of device names that the kernel or udev assigns.
const BEGINNINGS: [&str; 13] = [
    "bnxt_re", "efa_", "erdma_", "hfi1_", "hns_", "ibp", "irdma", "mlx4_", "mlx5_", "qedr", "rocep", "rxe",
    "siw",
];

/// Returns the name of a device in the arguments of the program, or in a variable that selects a device for a
/// library.
pub(super) fn device_in(words: &[OsString]) -> Option<String> {
    let variables = VARIABLES.iter().filter_map(std::env::var_os);
    words.iter().skip(1).cloned().chain(variables).find_map(|word| device_in_word(&word.to_string_lossy()))
}

/// Returns the name of a device in a word such as `--ib-dev=mlx5_0` or `mlx5_0:1,mlx5_1:1`.
fn device_in_word(word: &str) -> Option<String> {
    let parts = word.split(|character: char| "=:, ".contains(character));
    let is_device = |part: &&str| {
        BEGINNINGS.iter().any(|beginning| {
            part.strip_prefix(beginning).is_some_and(|rest| rest.contains(|c: char| c.is_ascii_digit()))
        }) && roce::verbs::raw::listing::is_name(part)
    };
    parts.into_iter().find(is_device).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_found_in_arguments() {
        for (word, device) in [
            ("mlx5_0", Some("mlx5_0")),
            ("--ib-dev=mlx5_bond_0", Some("mlx5_bond_0")),
            ("mlx4_1:1,mlx4_2:1", Some("mlx4_1")),
            ("rxe0", Some("rxe0")),
            ("rocep1s0f0", Some("rocep1s0f0")),
            ("roce0", None),
            ("rxe", None),
            ("/etc/mlx5_0", None),
            ("-d", None),
        ] {
            assert_eq!(device_in_word(word).as_deref(), device, "{word}");
        }
        let words = ["rxe0", "-d", "mlx5_3"].map(OsString::from);
        assert_eq!(device_in(&words).as_deref(), Some("mlx5_3"));
    }
}
