//! The state of a port in the files that `roce run` creates for its program: below `/sys/class/infiniband`,
//! and in the answers over netlink. Errors are ignored, because they must not make the program fail.

use std::path::Path;

use crate::counter_files::VARIABLE;

/// Netlink attributes of a port: `RDMA_NLDEV_ATTR_PORT_STATE` and `RDMA_NLDEV_ATTR_PORT_PHYS_STATE`.
const STATES: [u16; 2] = [12, 13];
/// The command with these attributes, `RDMA_NLDEV_CMD_PORT_GET`, which is the name of their folder.
const COMMAND: &str = "5";

/// Writes the state of the port of a device, which is the one with this index.
pub(crate) fn write(index: usize, name: &str, is_up: bool) {
    let Some(root) = std::env::var_os(VARIABLE).filter(|root| !root.is_empty()) else { return };
    let root = Path::new(&root);
    let port = root.join("sys/class/infiniband").join(name).join("ports/1");
    let (state, physical) = if is_up { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    for (file, text) in [("state", state), ("phys_state", physical)] {
        let file = port.join(file);
        if file.exists() {
            let _ = std::fs::write(file, format!("{text}\n"));
        }
    }
    let answer = root.join("netlink").join(COMMAND).join(index.to_string());
    if let Ok(mut attributes) = std::fs::read(&answer) {
        set_states(&mut attributes, if is_up { [4, 5] } else { [1, 3] });
        let _ = std::fs::write(answer, attributes);
    }
}

/// Sets the values of [`STATES`] among netlink attributes: length, type and value, aligned to four bytes.
fn set_states(mut rest: &mut [u8], values: [u8; 2]) {
    while let Some((head, tail)) = rest.split_first_chunk_mut::<4>() {
        let [len, kind] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_ne_bytes);
        let known = STATES.iter().position(|state| *state == kind);
        if let (Some(known), Some(value)) = (known, tail.first_mut()) {
            *value = values[known];
        }
        let len = usize::from(len).saturating_sub(4).next_multiple_of(4);
        let Some((_, next)) = tail.split_at_mut_checked(len) else { return };
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_states_change() {
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = [(4 + value.len() as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let all = |state: u8, physical: u8| {
            let parts = [
                attribute(2, b"roce0\0"),
                attribute(STATES[0], &[state]),
                attribute(STATES[1], &[physical]),
                attribute(50, &7_u32.to_ne_bytes()),
            ];
            parts.concat()
        };
        let mut bytes = all(4, 5);
        set_states(&mut bytes, [1, 3]);
        assert_eq!(bytes, all(1, 3));
        // Attributes that end too early.
        for len in 0..bytes.len() {
            set_states(&mut bytes.clone()[..len], [4, 5]);
        }
    }
}
