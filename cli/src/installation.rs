//! The folder of this command, and the command that installs what is missing beside it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Returns the folder of this command.
pub(crate) fn own_folder() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot determine the path of this command")?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_owned())
}

/// Returns whether cargo has built the command in this folder, and not installed it.
pub(crate) fn is_built(folder: &Path) -> bool {
    folder.join("deps").is_dir()
}

/// Returns the command that installs everything below the prefix of a command in this folder.
pub(crate) fn install_command(folder: &Path) -> String {
    // `cargo install` installs only the command, in a folder `bin`.
    let prefix = folder.parent().filter(|_| folder.ends_with("bin"));
    let prefix = prefix.map_or_else(|| "~/.local".to_owned(), |prefix| quoted(&prefix.to_string_lossy()));
    format!("cargo run -p xtask -- install --prefix {prefix}")
}

/// Returns a word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "/._-+".contains(sign);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_is_that_of_the_command_and_a_word_of_a_shell() {
        let of = |folder: &str| install_command(Path::new(folder));
        let begin = "cargo run -p xtask -- install --prefix ";
        assert_eq!(of("/home/me/.cargo/bin"), format!("{begin}/home/me/.cargo"));
        assert_eq!(of("/my dir/bin"), format!("{begin}'/my dir'"));
        assert_eq!(of("/it's/bin"), format!("{begin}'/it'\\''s'"));
        assert_eq!(of("/downloads"), format!("{begin}~/.local"));
    }
}
