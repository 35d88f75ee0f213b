//! The binary interface of libibverbs: structures that the application reads and writes, and the numbers in them.
//!
//! Names and layouts are those of `infiniband/verbs.h` (rdma-core 44, with the fields that later releases appended).
//! Enumerations of C are integers here, because the application may pass any value. Sizes and offsets are asserted while this
//! crate compiles.

#![allow(non_camel_case_types)]
// `Self` in the type of a function that programs call would hide what they pass.
#![allow(clippy::use_self)]

/// Asserts the size of a structure and offsets of fields, as they are on 64-bit Linux.
macro_rules! layout {
    ($($name:ident: $size:literal { $($($field:ident).+ $offset:literal),* $(,)? })+) => {
        $(#[cfg(target_arch = "x86_64")]
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(std::mem::offset_of!($name, $($field).+) == $offset);)*
        };)+
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
