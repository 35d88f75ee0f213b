//! The binary interface of libibverbs: structures that the application reads and writes, and constants for
//! their fields.
//!
//! Names and layouts are those of `infiniband/verbs.h` in rdma-core 64, without the verbs that releases after
//! 44 added at the front of `verbs_context`. C enumerations are integers here, because the application may
//! pass any value. Compile-time assertions check sizes and offsets.

#![allow(non_camel_case_types)]
// `Self` in the type of a function that programs call would hide its parameter types.
#![allow(clippy::use_self)]

/// Asserts the size of each structure and the offset of each of its fields on x86-64. A table without one of
/// the fields does not compile. On every machine, a test compares `layouts` with the C headers.
macro_rules! layout {
    ($($name:ident: $size:literal { $($field:ident $offset:literal),* $(,)? })+) => {
        $(const _: () = {
            #[cfg(target_arch = "x86_64")]
            const { assert!(size_of::<$name>() == $size) };
            $(#[cfg(target_arch = "x86_64")]
            const { assert!(std::mem::offset_of!($name, $field) == $offset) };)*
            #[expect(dead_code, reason = "it only has to compile")]
            fn every_field_is_there(structure: &$name) {
                let $name { $($field: _),* } = structure;
            }
        };)+

        #[cfg(test)]
        pub(super) const LAYOUTS: &[super::Layout] = &[$(super::Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[$((
                stringify!($field),
                std::mem::offset_of!($name, $field),
                super::size_of_field(|from: &$name| &raw const from.$field),
            )),*],
        }),+];
    };
}

mod attributes;
mod connection;
mod constants;
mod context;
mod objects;
mod work;

pub(crate) use attributes::*;
pub(crate) use connection::*;
pub(crate) use constants::*;
pub(crate) use context::*;
pub(crate) use objects::*;
pub(crate) use work::*;

/// A structure: its fields with their offsets and sizes.
#[cfg(test)]
#[allow(dead_code, reason = "as `layouts`")]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: &'static [(&'static str, usize, usize)],
}

#[cfg(test)]
const fn size_of_field<S, F>(_field: fn(&S) -> *const F) -> usize {
    size_of::<F>()
}

/// Returns all structures.
#[cfg(test)]
#[allow(dead_code, reason = "tests/layouts.rs uses it, which includes this file")]
#[allow(unused_qualifications, reason = "each file has a table of this name")]
pub(crate) fn layouts() -> impl Iterator<Item = &'static Layout> {
    let files = [attributes::LAYOUTS, connection::LAYOUTS, context::LAYOUTS, objects::LAYOUTS, work::LAYOUTS];
    files.into_iter().flatten()
}
