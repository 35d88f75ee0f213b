//! A place for temporary files.

use std::io;
use std::path::Path;

/// Memory of the system that is a folder. Container engines provide it also if the root folder is read-only
/// and has no folder for temporary files.
const MEMORY: &str = "/dev/shm";

/// Creates a file or a folder in the directory for temporary files, or in `/dev/shm` if that fails.
///
/// # Errors
///
/// Neither works. The error is that of the directory for temporary files.
pub(crate) fn create<T>(create: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    create_in([&std::env::temp_dir(), Path::new(MEMORY)], create)
}

fn create_in<T>([usual, other]: [&Path; 2], create: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    create(usual).or_else(|error| create(other).map_err(|_| error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_folder_is_used_if_the_first_does_not_work() {
        let root = tempfile::tempdir().unwrap();
        let gone = root.path().join("gone");
        let create = |folder: &Path| tempfile::tempdir_in(folder);
        let at = |places| create_in(places, create).map(|made| made.path().parent().unwrap().to_owned());
        assert_eq!(at([root.path(), &gone]).unwrap(), root.path());
        assert_eq!(at([&gone, root.path()]).unwrap(), root.path());
        let error = at([&gone, &gone.join("below")]).unwrap_err().to_string();
        assert!(error.contains("gone/.tmp"), "{error}");
    }
}
