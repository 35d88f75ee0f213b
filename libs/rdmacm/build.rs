//! Writes the jumps and the version script, and an empty `libibverbs.so.1` for the linker, so that the
//! library names the one that it needs and the version of its functions; docs/explanation/decisions.md,
//! "librdmacm.so.1", says why so.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "src/table.rs"]
mod table;

use table::{ENTRY_NODE, NODES, REFUSING};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/table.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    fs::write(out.join("jumps.s"), jumps(&architecture)).expect("writing the assembly");
    let script = out.join("librdmacm.map");
    fs::write(&script, version_script()).expect("writing the version script");
    make_placeholder(&out, &architecture);
    link_names(&out);

    let mut arguments = Vec::new();
    if let Some(folder) = bundled_lld() {
        arguments.push(format!("-B{}", folder.display()));
    }
    // Only lld combines this script with the anonymous one that rustc gives to every cdylib.
    arguments.push("-fuse-ld=lld".into());
    arguments.push(format!("-Wl,--version-script={}", script.display()));
    arguments.push("-Wl,-soname,librdmacm.so.1".into());
    arguments.push("-Wl,-z,nodelete".into());
    arguments.push("-Wl,--no-as-needed".into());
    arguments.push(out.join("placeholder.so").display().to_string());
    for argument in arguments {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}

/// Each name with the function in the other library that it leads to.
fn targets() -> impl Iterator<Item = (&'static str, &'static str)> {
    NODES.iter().flat_map(|node| {
        let functions = node.functions.iter().map(|name| (*name, *name));
        functions.chain(node.unsupported.iter().map(|name| (*name, REFUSING)))
    })
}

/// The functions of the other library, each once.
fn entries() -> Vec<String> {
    let mut entries: Vec<String> = targets().map(|(_, target)| format!("roce_{target}")).collect();
    entries.sort_unstable();
    entries.dedup();
    entries
}

/// Through the table of addresses that the loader fills in.
fn jump(architecture: &str, to: &str) -> String {
    match architecture {
        "x86_64" => format!("jmp qword ptr [rip + {to}@GOTPCREL]\n"),
        "aarch64" => format!("adrp x16, :got:{to}\nldr x16, [x16, :got_lo12:{to}]\nbr x16\n"),
        other => panic!("roce-rdmacm has entry points for x86_64 and aarch64, not for {other:?}"),
    }
}

fn jumps(architecture: &str) -> String {
    let mut text = String::from(".text\n");
    for (name, target) in targets() {
        let code = jump(architecture, &format!("roce_{target}"));
        text += &format!(".globl {name}\n.type {name},@function\n{name}:\n{code}.size {name}, . - {name}\n");
    }
    text
}

/// Each name at its node, and nothing else exported.
fn version_script() -> String {
    let mut script = String::new();
    let mut before = String::new();
    for node in NODES {
        let names: String =
            node.functions.iter().chain(node.unsupported).map(|name| format!("    {name};\n")).collect();
        let local = if before.is_empty() { "  local: *;\n" } else { "" };
        script += &format!("{} {{\n  global:\n{names}{local}}}{before};\n", node.name);
        before = format!(" {}", node.name);
    }
    script
}

/// A library with the name, the functions and the node of the one that is needed, of which only these are
/// kept.
fn make_placeholder(out: &Path, architecture: &str) {
    let source = out.join("placeholder.s");
    let functions: String =
        entries().iter().map(|name| format!(".globl {name}\n.type {name},%function\n{name}:\n")).collect();
    fs::write(&source, format!(".text\n{functions}")).expect("writing the assembly");
    let script = out.join("placeholder.map");
    let names: String = entries().iter().map(|name| format!("{name};\n")).collect();
    fs::write(&script, format!("{ENTRY_NODE} {{ global:\n{names}local: *; }};\n"))
        .expect("writing the script");
    let linker = env::var_os("RUSTC_LINKER").unwrap_or_else(|| default_linker(architecture).into());
    let made = Command::new(&linker)
        .args(["-shared", "-nostdlib", "-Wl,-soname,libibverbs.so.1", "-o"])
        .arg(out.join("placeholder.so"))
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg(&source)
        .status();
    assert!(made.as_ref().is_ok_and(|status| status.success()), "{}: {made:?}", linker.display());
}

/// The compiler that rustc links with, unless cargo is told another one.
fn default_linker(architecture: &str) -> String {
    match env::var("HOST") {
        Ok(host) if !host.starts_with(architecture) => format!("{architecture}-linux-gnu-gcc"),
        _ => "cc".into(),
    }
}

/// Makes links to the library by the names under which programs load it, as the build of `libibverbs.so.1`
/// does.
fn link_names(out: &Path) {
    let Some(folder) = out.ancestors().nth(3).map(|results| results.join("lib")) else { return };
    if fs::create_dir_all(&folder).is_ok() {
        for name in ["librdmacm.so", "librdmacm.so.1"] {
            // There from an earlier build, or else it cannot be made.
            let _ = std::os::unix::fs::symlink("../librdmacm.so", folder.join(name));
        }
    }
}

/// The folder in which this toolchain has lld as compilers look for it; without it, the system's lld is used.
fn bundled_lld() -> Option<PathBuf> {
    let rustc = env::var_os("RUSTC")?;
    let printed = Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
    let sysroot = String::from_utf8(printed.stdout).ok()?;
    let host = env::var("HOST").ok()?;
    let folder = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin/gcc-ld");
    folder.join("ld.lld").exists().then_some(folder)
}
