//! Writes the seeds of all targets: `cargo run --manifest-path fuzz/Cargo.toml --example make_seeds`.
//!
//! This is an example instead of a second binary, because `cargo fuzz` treats every binary as a target.

use std::fs;
use std::io;

fn main() -> io::Result<()> {
    for (target, _) in roce_fuzz::seeds::TARGETS {
        let directory = roce_fuzz::seeds::directory(target);
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
    }
    let mut total = 0;
    for ((target, name), content) in roce_fuzz::seeds::all() {
        total += content.len();
        fs::write(roce_fuzz::seeds::directory(target).join(name), content)?;
    }
    println!("{total} bytes");
    Ok(())
}
