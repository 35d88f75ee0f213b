//! `librdmacm.so.1`: every name is a jump to its function in `libibverbs.so.1`, so that both libraries share one engine however
//! they are installed. `build.rs` writes the jumps and the version script from `table.rs`.
//!
//! With another `libibverbs.so.1` than that of this project, programs do not start: the version node of the functions is missing.

#[cfg(test)]
#[expect(dead_code, reason = "the linker and the tests of the library use the rest")]
mod table;

std::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/jumps.s")));

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::table::NODES;

    #[test]
    fn no_name_is_listed_twice() {
        let names: Vec<&str> =
            NODES.iter().flat_map(|node| node.functions.iter().chain(node.unsupported)).copied().collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    }
}
