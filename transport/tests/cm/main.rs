//! Connection management: two managers in virtual time, on a wire that does what a test wants.

mod gsi;
mod hostile;
mod losses;
mod random;
mod scenarios;
mod table;
mod unchanged;
mod world;
