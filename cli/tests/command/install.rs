//! An installation as `xtask install` makes it: its files, and programs that run with it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::build::{self, Build};
use xtask::install;
use xtask::layout::{self, Content, File, LAYOUT, Package};

use crate::common::{Finished, Running, has_program, installed_command, skip_unless};

/// Returns the build of this test.
fn build() -> Build {
    let folder = Path::new(env!("CARGO_BIN_EXE_roce")).parent().unwrap().to_owned();
    Build { folder, target: build::host().unwrap() }
}

/// Returns all files and links below a folder, with their paths in it.
fn below(folder: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut open) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(next) = open.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_owned());
            }
        }
    }
    found
}

/// Checks that the folder has the files, with contents and permissions, and no others.
fn check_files(files: &[File], prefix: &Path) {
    let expected: BTreeSet<PathBuf> = files.iter().map(|file| file.destination.clone()).collect();
    assert_eq!(below(prefix), expected);
    for File { destination, content, mode, .. } in files {
        let path = prefix.join(destination);
        // Follows links: each leads to a file.
        let meta = path.metadata().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(meta.len() > 0, "{} is empty", path.display());
        if !matches!(content, Content::Link(_)) {
            assert_eq!(meta.permissions().mode() & 0o7777, *mode, "{}", path.display());
        }
    }
    let left_out = layout::left_out(build::root());
    for entry in LAYOUT {
        let is_left_out = left_out.iter().any(|sentence| sentence.contains(entry.destination));
        let is_installed = files.iter().any(|file| file.destination.starts_with(entry.destination));
        assert_ne!(is_installed, is_left_out, "{entry:?}");
    }
}

/// Runs a program with a clean environment for the libraries.
#[track_caller]
fn finish(command: &mut Command) -> Finished {
    command.env_remove("ROCE_LIBRARY_PATH").env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
    Running::start(command.env("ROCE_DEVICE", "udp:127.0.0.1")).finish(60)
}

/// Compiles a program that prints the name of its only device, linked with an installed library.
fn compiled(folder: &Path, libraries: &Path) -> PathBuf {
    let (source, program) = (folder.join("list.c"), folder.join("list"));
    let text = "#include <stdio.h>\nstruct ibv_device;\nstruct ibv_device **ibv_get_device_list(int *);\n\
                const char *ibv_get_device_name(struct ibv_device *);\n\
                int main(void) { int n = 0; struct ibv_device **l = ibv_get_device_list(&n);\n\
                puts(n == 1 ? ibv_get_device_name(l[0]) : \"none\"); return n != 1; }\n";
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&program).arg(&source).arg(libraries.join("libibverbs.so"));
    let compiled = finish(compiler.arg("-Wl,--allow-shlib-undefined"));
    assert!(compiled.success, "{compiled:?}");
    program
}

#[test]
fn an_installation_has_every_file_and_runs_programs() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Names of folders may contain spaces and quotes.
    let prefix = folder.path().join("it's here");
    let files = layout::files(&build()).unwrap();
    install::install(&files, &prefix).unwrap();
    check_files(&files, &prefix);

    let (command, libraries) = (prefix.join("bin/roce"), prefix.join("lib/roce"));
    let maps = finish(Command::new(&command).args(["run", "--", "cat", "/proc/self/maps"]));
    for name in ["libibverbs.so.1", "librdmacm.so.1", "libroce_sysfs.so"] {
        let path = libraries.join(name).display().to_string();
        assert!(maps.success && maps.stdout.contains(&path), "{path}: {maps:?}");
    }

    let program = compiled(folder.path(), &libraries);
    let by_command = finish(Command::new(&command).args(["run", "--"]).arg(&program));
    assert_eq!((by_command.success, by_command.stdout.as_str()), (true, "roce0\n"), "{by_command:?}");
    let env = libraries.join("env");
    let without = finish(Command::new(&env).arg(&program));
    assert_eq!((without.success, without.stdout.as_str()), (true, "roce0\n"), "{without:?}");
    let mut shell = Command::new("sh");
    shell.args(["-c", "eval \"$(\"$1\")\" && \"$2\"", "sh"]).arg(&env).arg(&program);
    let in_shell = finish(&mut shell);
    assert_eq!((in_shell.success, in_shell.stdout.as_str()), (true, "roce0\n"), "{in_shell:?}");
}

/// The script `alternatives` changes copies of the folders of a system.
const IN_COPIES: &str = "set -e
for folder in /etc /var/lib/dpkg/alternatives /var/cache/ldconfig; do
    mkdir -p \"$folder\" \"$0/$folder\" && cp -a \"$folder/.\" \"$0/$folder\" && mount --bind \"$0/$folder\" \"$folder\"
done
mount -t tmpfs none /usr/local/lib
exec sh -ec \"$1\"";

#[test]
fn a_system_uses_the_libraries_only_between_install_and_remove() {
    let is_root = rustix::process::geteuid().is_root();
    let has_programs = ["unshare", "update-alternatives", "ibv_devinfo"].iter().all(|name| has_program(name));
    if skip_unless(is_root, "the libraries of a system need root")
        || skip_unless(has_programs, "unshare, update-alternatives or ibverbs-utils is not installed")
    {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let prefix = folder.path().join("usr");
    let files = layout::files(&build()).unwrap();
    let of_run: Vec<File> = files.into_iter().filter(|file| file.package == Package::Run).collect();
    install::install(&of_run, &prefix).unwrap();
    let alternatives = prefix.join("lib/roce/alternatives");
    let run = |script: &str| {
        let script = script.replace("ALTERNATIVES", &alternatives.display().to_string());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", IN_COPIES]).arg(folder.path().join("copies")).arg(script);
        finish(command.env_remove("LD_PRELOAD"))
    };
    // What ibv_devinfo finds, and a sum of all files that the script may change.
    let script = "
        look() { ibv_devinfo 2>/dev/null | grep -o roce0 || echo none; }
        sum() { find /etc /usr/local/lib /var/lib/dpkg/alternatives -type f -not -name ld.so.cache -exec sha256sum {} + | sort | sha256sum; }
        first=$(sum); before=$(look)
        ALTERNATIVES install; after=$(look)
        ldconfig; upgraded=$(look)
        ALTERNATIVES install >/dev/null
        ALTERNATIVES remove; removed=$(look)
        ALTERNATIVES remove >/dev/null
        [ \"$(sum)\" = \"$first\" ] && echo same
        echo $before $after $upgraded $removed";
    let switched = run(script);
    assert!(switched.stdout.ends_with("same\nnone roce0 roce0 none\n"), "{switched:?}");
    let own = prefix.join("lib/roce/libibverbs.so.1");
    assert!(switched.stdout.contains(&format!("libibverbs.so.1 is {}\n", own.display())), "{switched:?}");
    // The system outside the copies is unchanged.
    assert!(!Path::new("/etc/ld.so.conf.d/000-roce.conf").exists());

    for change in ["chown 65534 LIBRARY", "chmod o+w LIBRARY", "chmod g+w \"$(dirname LIBRARY)\""] {
        let change = change.replace("LIBRARY", &format!("'{}'", own.display()));
        let refused = run(&format!("{change}; ALTERNATIVES install"));
        assert!(!refused.success && refused.stderr.contains("what all users run"), "{refused:?}");
        install::install(&of_run, &prefix).unwrap();
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(own.parent().unwrap(), mode).unwrap();
    }
}

/// The files are those of a static build, although this command is not one.
#[test]
fn a_static_installation_is_the_command_without_libraries() {
    let target = "x86_64-unknown-linux-musl".to_owned();
    let files = layout::files(&Build { target, ..build() }).unwrap();
    let has = |path: &str| files.iter().any(|file| file.destination.starts_with(path));
    assert!(has("bin/roce") && has("share/man/man1/roce.1") && !has("lib"), "{files:?}");
    let licences = files.iter().find(|file| file.destination.ends_with("THIRD-PARTY-LICENSES"));
    let Some(File { content: Content::Bytes(text), .. }) = licences else { panic!("{files:?}") };
    assert!(String::from_utf8_lossy(text).contains("The C library musl"));
}

/// `cargo install` installs the command without the libraries.
#[test]
fn a_command_without_libraries_names_the_command_that_installs_them() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let own = installed_command(folder.path());
    let refused = finish(Command::new(&own).args(["run", "--", "true"]));
    let command = format!("cargo run -p xtask -- install --prefix {}", folder.path().display());
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
    assert!(refused.stderr.starts_with("roce: libibverbs.so is missing in "), "{refused:?}");
    assert!(refused.stderr.ends_with(&format!("; run in the sources of roce: {command}\n")), "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");

    let mut elsewhere = Command::new(&own);
    elsewhere.args(["run", "--", "true"]).env("ROCE_LIBRARY_PATH", folder.path());
    let refused = Running::start(&mut elsewhere).finish(60);
    assert!(!refused.success && refused.stderr.ends_with(": unset ROCE_LIBRARY_PATH\n"), "{refused:?}");
}
