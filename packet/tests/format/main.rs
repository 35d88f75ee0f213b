//! The format of packets and frames, against tables, captures and other implementations.

mod datagrams;
mod extremes;
mod fields;
mod frames;
mod golden;
mod headers;
mod mad;
mod oracle;
mod outer;
mod shared;
mod tables;
