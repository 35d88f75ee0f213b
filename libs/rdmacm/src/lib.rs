//! `librdmacm.so.1`: every name is a jump to its function in `libibverbs.so.1`, so that both libraries share
//! one engine in any installation. `build.rs` generates the jumps and the version script from `table.rs`.
//!
//! With the `libibverbs.so.1` of another project, programs do not start, because it lacks the version node.

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
