//! Creates installations of `roce`: `cargo run -p xtask -- install --prefix DIR`, `-- dist`, `-- deb` and
//! `-- image`.
//!
//! [`layout::LAYOUT`] lists every file of an installation. [`install`], [`dist`], [`deb`] and [`image`] copy
//! files of this list, and the tests of the command compare an installation with it.
//! docs/how-to/install.md is for users. [`packages`] makes and tests what is published. [`ci`] runs workflows
//! of other projects that use the action at the root of the repository.

#![forbid(unsafe_code)]

pub mod binary;
pub mod build;
pub mod ci;
pub mod deb;
pub mod dist;
pub mod image;
pub mod install;
pub mod layout;
pub mod licences;
pub mod packages;
