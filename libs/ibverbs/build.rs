//! Writes the version script and the assembly of the names without a function, both from `src/table.rs`, and
//! tells the linker about them; docs/explanation/decisions.md, "libibverbs.so.1", says why so.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "src/table.rs"]
mod table;

use table::{
    Answer, OF_RDMACM, PRIVATE, PRIVATE_DEFAULT, PRIVATE_FLAG, PRIVATE_FUNCTION, PRIVATE_NODES, PUBLIC,
    RDMACM_NODE,
};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/table.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let script = out.join("libibverbs.map");
    fs::write(&script, version_script()).expect("writing the version script");
    let assembly = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => assembly("jmp", |number| format!("mov eax, {number}\nret\n")),
        Ok("aarch64") => assembly("b", |number| format!("mov x0, #{number}\nret\n")),
        other => panic!("roce-ibverbs has entry points for x86_64 and aarch64, not for {other:?}"),
    };
    fs::write(out.join("unused.s"), assembly).expect("writing the assembly");

    link_names(&out);

    // Only lld combines this script with the anonymous one that rustc gives to every cdylib.
    let mut arguments = Vec::new();
    if let Some(folder) = bundled_lld() {
        arguments.push(format!("-B{}", folder.display()));
    }
    arguments.push("-fuse-ld=lld".into());
    arguments.push(format!("-Wl,--version-script={}", script.display()));
    arguments.push("-Wl,-soname,libibverbs.so.1".into());
    // Programs that open the library close it while a thread of it may still run.
    arguments.push("-Wl,-z,nodelete".into());
    for argument in arguments {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}

/// Makes links to the library by the names under which programs load it, in `lib/` beside it. Whoever has set
/// up cargo so that the library is elsewhere makes them by hand, so this may fail.
fn link_names(out: &Path) {
    // target/<profile>/build/<package>/out
    let Some(folder) = out.ancestors().nth(3).map(|results| results.join("lib")) else { return };
    if fs::create_dir_all(&folder).is_ok() {
        for name in ["libibverbs.so", "libibverbs.so.1"] {
            // There from an earlier build, or else it cannot be made.
            let _ = std::os::unix::fs::symlink("../libibverbs.so", folder.join(name));
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

/// The version script of the linker: each name at its node, and nothing else exported.
fn version_script() -> String {
    let mut script = String::new();
    let mut before = String::new();
    for node in PUBLIC {
        script += &format!("{} {{\n", node.name);
        let names = node.functions.iter().copied().chain(node.unused.iter().map(|(name, _)| *name));
        if let Some(names) = lines(names) {
            script += &format!("  global:\n{names}");
        }
        if before.is_empty() {
            script += "  local: *;\n";
        }
        script += &format!("}}{before};\n");
        before = format!(" {}", node.name);
    }
    // Their names come with the node from the assembly, because a script can have a name once only.
    for number in PRIVATE_NODES {
        script += &format!("IBVERBS_PRIVATE_{number} {{ }};\n");
    }
    let entries: String = OF_RDMACM.iter().map(|name| format!("    roce_{name};\n")).collect();
    script + &format!("{RDMACM_NODE} {{\n  global:\n{entries}}};\n")
}

fn lines<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let text: String = names.map(|name| format!("    {name};\n")).collect();
    (!text.is_empty()).then_some(text)
}

/// The assembly of the names that have no function of this crate, and of those at the private nodes. `jump`
/// goes on at a symbol, `number` returns an integer; what `{query_gid_type}` stands for is put in by the
/// macro that takes the text.
fn assembly(jump: &str, number: fn(u32) -> String) -> String {
    const EOPNOTSUPP: u32 = 95;
    let answer = |answer: Answer| match answer {
        Answer::Unsupported => number(EOPNOTSUPP),
        Answer::Zero => number(0),
    };
    let mut text = String::from(".text\n");
    for (name, kind) in PUBLIC.iter().flat_map(|node| node.unused) {
        text += &format!(".globl {name}\n.type {name},@function\n{name}:\n{}", answer(*kind));
        text += &format!(".size {name}, . - {name}\n");
    }
    for node in PRIVATE_NODES {
        let register = format!("verbs_register_driver_{node}");
        let others = PRIVATE.iter().map(|(name, kind)| (*name, answer(*kind)));
        let function = (PRIVATE_FUNCTION, format!("{jump} {{query_gid_type}}\n"));
        for (name, code) in others.chain([(register.as_str(), number(0)), function]) {
            let label = format!("roce_private_{node}_{name}");
            text += &format!(".globl {label}\n.type {label},@function\n{label}:\n{code}");
            // `dlsym` without a node finds the default version only.
            let at = if *node == PRIVATE_DEFAULT && name == PRIVATE_FUNCTION { "@@" } else { "@" };
            text +=
                &format!(".size {label}, . - {label}\n.symver {label}, {name}{at}IBVERBS_PRIVATE_{node}\n");
        }
    }
    text += ".data\n";
    for node in PRIVATE_NODES {
        let label = format!("roce_private_{node}_{PRIVATE_FLAG}");
        text += &format!(".globl {label}\n.type {label},@object\n{label}:\n.byte 0\n.size {label}, 1\n");
        text += &format!(".symver {label}, {PRIVATE_FLAG}@IBVERBS_PRIVATE_{node}\n");
    }
    text + ".text\n"
}
