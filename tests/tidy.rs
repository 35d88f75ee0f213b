//! Tests of the rules of this repository that a compiler does not check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of lines of a file before its tests.
const MOST_LINES_OF_A_FILE: usize = 600;
/// Maximum number of lines of a function outside tests, including signature and braces.
const MOST_LINES_OF_A_FUNCTION: usize = 70;

/// Files that may be longer, with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// Functions that may be longer, by file and name, with the reason.
const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[];

/// Maximum size of a file of the repository, in bytes.
const MOST_BYTES_OF_A_FILE: u64 = 128 << 10;
/// Files that may be larger, and why.
const LARGE_FILES: &[(&str, &str)] =
    &[("pcaps/rxe/rc-write-131072-ackreq.pcap", "a WRITE of 128 KiB between two kernels, with its contents")];
/// Maximum size of all files of the repository, in bytes.
const MOST_BYTES_OF_ALL_FILES: u64 = 15 << 20;
/// First bytes of programs, libraries, core files and archives.
const BINARIES: &[(&str, &[u8])] = &[
    ("an ELF file", b"\x7fELF"),
    ("an archive of ar", b"!<arch>\n"),
    ("a gzip file", b"\x1f\x8b"),
    ("a zip file", b"PK\x03\x04"),
    ("an xz file", b"\xfd7zXZ\0"),
];
/// Folders with files that may have any contents.
const ANY_CONTENTS: &[&str] = &["pcaps/", "fuzz/seeds/"];
/// Maximum number of folders at the root.
const MOST_ROOT_FOLDERS: usize = 16;
/// Folders at the root.
const ROOT_FOLDERS: &[&str] = &[
    ".ci",
    "bench",
    "cli",
    "common",
    "device",
    "docs",
    "examples",
    "fuzz",
    "libs",
    "packet",
    "pcaps",
    "sim",
    "src",
    "tests",
    "tools",
    "transport",
];
/// Files at the root.
const ROOT_FILES: &[&str] = &[
    ".dockerignore",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "RELEASING.md",
    "SECURITY.md",
    // GitHub reads an action only here: `uses: OWNER/roce@REF`.
    "action.yml",
    "deny.toml",
    "rust-toolchain.toml",
    "rustfmt.toml",
];

/// Maximum width of a comment.
const MOST_COLUMNS_OF_A_COMMENT: usize = 110;
/// Phrases that readers stumble over. Plain English has a usual word for each.
const UNUSUAL_PHRASES: &[(&str, &str)] = &[
    ("in vain", "without effect, or say what fails"),
    ("for ever", "forever, or name the limit"),
    ("as ever", "still"),
    ("so many", "the number or the name of the constant"),
    ("in place of", "instead of"),
    ("there is none", "say what does not exist"),
    ("has it once", "has one"),
    ("at times", "sometimes"),
    ("/// The same", "repeat the noun: a doc comment is read alone"),
];

/// Places where `unsafe` is allowed: system calls and libc, memory of the application, and unshipped code.
const UNSAFE_PLACES: &[&str] = &[
    "common/machine/src/",
    "device/src/",
    "device/tests/",
    "common/testing/src/",
    "tools/measure/tests/",
    "cli/tests/",
    "src/verbs/",
    "libs/ibverbs/src/",
    "libs/sysfs/src/",
    "libs/sim/src/",
    "tests/",
    "bench/",
    "fuzz/",
    "packet/tests/",
    "packet/benches/",
    // Allocators that count.
    "transport/tests/allocations.rs",
    "sim/scenario/tests/footprint.rs",
];

/// Crates in which no input may end the process.
const NO_PANICS: &[&str] = &[
    "packet/src/",
    "transport/src/",
    "transport/congestion/src/",
    "common/document/src/",
    "tools/peer/src/script/",
    "tools/peer/src/run/",
    "tools/web/src/",
    "libs/sim/src/",
];
const PANICS: &[&str] = &[".unwrap()", ".expect(", "panic!(", "unreachable!(", "todo!(", "unimplemented!("];

/// Crates that have no clock, thread or runtime.
const SANS_IO: &[&str] = &[
    "packet/src/",
    "transport/src/",
    "transport/congestion/src/",
    "common/analysis/src/",
    "common/document/src/",
    "common/fault/src/",
    "common/policy/src/",
    "sim/src/",
    "sim/scenario/src/",
];
/// Files of these crates that may use threads, with the reason.
const THREADS: &[(&str, &str)] = &[(
    "sim/src/net/simulation/parallel.rs",
    "parts of a network run side by side, and no result depends on it",
)];
const CLOCKS_AND_THREADS: &[&str] = &[
    "std::time::Instant",
    "std::time::{",
    "SystemTime",
    "std::thread",
    "thread::spawn",
    "tokio",
    "UdpSocket",
];

/// Returns the tracked files, or `None` outside a git repository: a copy of the sources has none.
fn tracked_files() -> Option<Vec<String>> {
    let output =
        std::process::Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output().ok()?;
    let names = output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())?;
    let names: Vec<String> = names.split_terminator('\0').map(str::to_owned).collect();
    (!names.is_empty()).then_some(names)
}

/// Says that a test of tracked files is skipped. This is not an error, even if every test is required.
fn skip_without_git() {
    println!("SKIPPED: not a git repository");
}

/// Returns the entries of the root. A folder ends with a slash, so that a file cannot take its name.
fn root_entries<'a>(files: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let entry = |name: &str| name.split_once('/').map_or(name.to_owned(), |(folder, _)| format!("{folder}/"));
    files.into_iter().map(entry).collect()
}

/// Returns the entries of the root that are not on the lists, and those of the lists that are not there.
fn root_differences(found: &BTreeSet<String>) -> Vec<String> {
    let folders = ROOT_FOLDERS.iter().map(|name| format!("{name}/"));
    let known: BTreeSet<String> = folders.chain(ROOT_FILES.iter().map(|name| (*name).to_owned())).collect();
    let unknown = found.difference(&known).map(|name| format!("{name} is not in ROOT_FOLDERS or ROOT_FILES"));
    let gone = known.difference(found).map(|name| format!("{name} is gone from the root"));
    unknown.chain(gone).collect()
}

#[test]
fn the_root_has_few_entries() {
    let Some(files) = tracked_files() else { return skip_without_git() };
    let found = root_entries(files.iter().map(String::as_str));
    report(
        &root_differences(&found),
        "put the entry into a folder of the root, beside the code that uses it",
    );
    let folders = found.iter().filter(|name| name.ends_with('/')).count();
    assert!(folders <= MOST_ROOT_FOLDERS, "{folders} folders at the root; the limit is {MOST_ROOT_FOLDERS}");
}

#[test]
fn unknown_entries_of_the_root_are_noticed() {
    let folders: Vec<String> = ROOT_FOLDERS.iter().map(|name| format!("{name}/x")).collect();
    let all: Vec<&str> = folders.iter().map(String::as_str).chain(ROOT_FILES.iter().copied()).collect();
    assert_eq!(root_differences(&root_entries(all.iter().copied())), [""; 0]);
    let others = all.into_iter().filter(|name| *name != "src/x").chain(["notes/x", "src", "a"]);
    let wrong = root_differences(&root_entries(others));
    let unknown = ["a", "notes/", "src"].map(|name| format!("{name} is not in ROOT_FOLDERS or ROOT_FILES"));
    assert_eq!(wrong[..3], unknown);
    assert_eq!(wrong[3..], ["src/ is gone from the root"]);
}

/// Returns the kind of a program, library, core file or archive.
fn binary_kind(contents: &[u8]) -> Option<&'static str> {
    BINARIES.iter().find(|(_, first)| contents.starts_with(first)).map(|(kind, _)| *kind)
}

/// Regression: a core dump of 199 MB was committed.
#[test]
fn tracked_files_are_small_and_neither_binaries_nor_links() {
    let Some(files) = tracked_files() else { return skip_without_git() };
    let (mut wrong, mut sum) = (Vec::new(), 0);
    for name in &files {
        let path = root().join(name);
        // A file that was deleted but not committed yet.
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_symlink() {
            wrong.push(format!("{name} is a symbolic link, which a copy of the sources may lack"));
            continue;
        }
        if !meta.is_file() {
            continue;
        }
        sum += meta.len();
        let is_allowed = LARGE_FILES.iter().any(|(large, _)| large == name);
        if meta.len() > MOST_BYTES_OF_A_FILE && !is_allowed {
            wrong.push(format!("{name} has {} bytes; the limit is {MOST_BYTES_OF_A_FILE}", meta.len()));
        }
        if !ANY_CONTENTS.iter().any(|folder| name.starts_with(folder))
            && let Some(kind) = binary_kind(&fs::read(&path).unwrap_or_default())
        {
            wrong.push(format!("{name} is {kind}"));
        }
    }
    for (name, reason) in LARGE_FILES {
        assert!(files.iter().any(|file| file == name), "{name} is gone; its exception ({reason}) can go");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        sum <= MOST_BYTES_OF_ALL_FILES,
        "the files have {sum} bytes; the limit is {MOST_BYTES_OF_ALL_FILES}"
    );
    assert_eq!(binary_kind(b"\x7fELF\x02"), Some("an ELF file"), "the check can fail");
}

/// The lines of comments of a file with their numbers, without code blocks of doc comments.
fn comment_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let comment = line.trim_start().strip_prefix("//")?;
        let is_fence = comment.trim_start_matches(['/', '!']).trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

/// Returns whether a line contains a phrase as whole words. "The same as" is not the phrase "The same".
fn has_phrase(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let after = &line[at + phrase.len()..];
        let goes_on = after.starts_with(char::is_alphanumeric);
        let is_comparison = phrase.ends_with("same") && after.starts_with(" as");
        !goes_on && !is_comparison
    })
}

#[test]
fn comments_are_narrow_and_in_plain_english() {
    let mut wrong = Vec::new();
    for file in sources() {
        for (number, line) in comment_lines(&file.text) {
            // A table or an address cannot be broken.
            let may_be_wide = line.contains('|') || line.contains("http");
            if line.chars().count() > MOST_COLUMNS_OF_A_COMMENT && !may_be_wide {
                wrong.push(format!("{}:{number}: wider than {MOST_COLUMNS_OF_A_COMMENT} columns", file.name));
            }
            let found = UNUSUAL_PHRASES.iter().find(|(phrase, _)| has_phrase(line, phrase));
            wrong.extend(found.map(|(phrase, usual)| format!("{}:{number}: `{phrase}`: {usual}", file.name)));
        }
    }
    assert!(wrong.is_empty(), "{} comments:\n{}", wrong.len(), wrong.join("\n"));
    // The check can fail.
    let text = "/// ```text\n/// for ever\n/// ```\n//! for ever\nlet a = \"for ever\";";
    assert_eq!(comment_lines(text).map(|(number, _)| number).collect::<Vec<_>>(), [4]);
    assert!(has_phrase("waits for ever.", "for ever") && !has_phrase("for every packet", "for ever"));
}

#[test]
fn files_are_short() {
    let mut wrong = Vec::new();
    for file in sources() {
        let lines = before_tests(&file.text).lines().count();
        let allowed = LONG_FILES.iter().any(|(name, _)| *name == file.name);
        if lines > MOST_LINES_OF_A_FILE && !allowed && !file.is_test() {
            wrong.push(format!("{} has {lines} lines before its tests", file.name));
        }
    }
    report(&wrong, "split the file, or move its tests to a file of their own");
}

#[test]
fn functions_are_short() {
    let mut wrong = Vec::new();
    for file in sources().iter().filter(|file| !file.is_test()) {
        for (name, line, lines) in functions(before_tests(&file.text)) {
            let allowed = LONG_FUNCTIONS.iter().any(|(at, known, _)| *at == file.name && *known == name);
            if lines > MOST_LINES_OF_A_FUNCTION && !allowed {
                wrong.push(format!("{}:{line}: fn {name} has {lines} lines", file.name));
            }
        }
    }
    report(&wrong, "split the function");
}

#[test]
fn exceptions_are_still_needed() {
    let sources = sources();
    let text_of = |name: &str| sources.iter().find(|file| file.name == name).map(|file| file.text.as_str());
    for (name, reason) in LONG_FILES {
        let lines = text_of(name).map_or(0, |text| before_tests(text).lines().count());
        assert!(lines > MOST_LINES_OF_A_FILE, "{name} is short now; its exception ({reason}) can go");
    }
    for (name, function, reason) in LONG_FUNCTIONS {
        let found = text_of(name)
            .into_iter()
            .flat_map(functions)
            .any(|(known, _, lines)| known == *function && lines > MOST_LINES_OF_A_FUNCTION);
        assert!(found, "{name}: fn {function} is short now; its exception ({reason}) can go");
    }
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let mut wrong = Vec::new();
    for file in sources() {
        if UNSAFE_PLACES.iter().any(|place| file.name.starts_with(place)) {
            continue;
        }
        for (number, line) in code_lines(&file.text) {
            let is_other = ["forbid(unsafe_code)", "deny(unsafe_code)", "wasm-unsafe-eval"];
            // The names of functions that a page calls. The functions contain no unsafe code.
            let is_name = file.name == "tools/web/src/export.rs" && line.trim() == "#[unsafe(no_mangle)]";
            if has_word(line, "unsafe") && !is_name && !is_other.iter().any(|other| line.contains(other)) {
                wrong.push(format!("{}:{number}: {}", file.name, line.trim()));
            }
        }
    }
    report(
        &wrong,
        "unsafe code belongs to common/machine, device, src/verbs, libs/ibverbs, libs/sysfs and libs/sim",
    );
}

/// Libraries that programs load, whose locks must be free in the child of a fork.
const FORKED: &[&str] = &[
    "packet/src",
    "transport/src",
    "transport/congestion/src",
    "common/fault/src",
    "common/capture/src",
    "common/policy/src",
    "common/machine/src",
    "device/src",
    "src",
    "libs/ibverbs/src",
    "libs/rdmacm/src",
    "libs/sysfs/src",
];

/// Types of the standard library that another thread may hold while a thread forks.
const LOCKS: &[&str] = &["Mutex", "RwLock", "Once", "OnceLock", "LazyLock", "ReentrantLock", "Barrier"];

/// The file that implements the locks.
const FORK: &str = "common/machine/src/fork.rs";

/// A lock of the standard library stays locked in the child of a fork if another thread held it.
#[test]
fn every_lock_is_free_in_the_child_of_a_fork() {
    let mut wrong = Vec::new();
    for file in sources() {
        let is_checked = FORKED.iter().any(|place| file.name.starts_with(&format!("{place}/")));
        if !is_checked || file.is_test() || file.name == FORK {
            continue;
        }
        wrong.extend(foreign_locks(&file.text).map(|line| format!("{}: {line}", file.name)));
    }
    report(&wrong, "use Mutex and StaticMutex of roce_machine::fork, or atomics");
    let own = sources().into_iter().find(|file| file.name == FORK).expect("the file of the locks");
    assert!(own.text.contains("pthread_atfork"));
}

/// Returns uses of locks other than those of `fork`.
fn foreign_locks(text: &str) -> impl Iterator<Item = String> {
    let has_own = text.lines().any(|line| line.contains("fork::") && has_word(line, "Mutex"));
    code_lines(text)
        .filter(move |(_, line)| {
            let is_use = line.contains("sync::") && !line.contains("fork::");
            LOCKS.iter().any(|lock| has_word(line, lock) && (is_use || *lock != "Mutex" || !has_own))
        })
        .map(|(number, line)| format!("{number}: {}", line.trim()))
}

#[test]
fn locks_of_the_standard_library_are_noticed() {
    let count = |text: &str| foreign_locks(text).count();
    assert_eq!(count("use std::sync::{Arc, Mutex};\nstatic A: Mutex<u8> = Mutex::new(1);\n"), 2);
    assert_eq!(count("static A: std::sync::OnceLock<u8> = OnceLock::new();\n"), 1);
    assert_eq!(count("use std::sync::RwLock;\nuse crate::fork::Mutex;\nstruct A(Mutex<u8>);\n"), 1);
    assert_eq!(
        count("use crate::fork::{Mutex, StaticMutex};\nstruct A(Mutex<u8>);\nuse std::sync::Arc;\n"),
        0
    );
}

/// A program that prints an error and its sources would print such a source twice.
#[test]
fn no_error_contains_its_source() {
    let mut wrong = Vec::new();
    for file in sources().into_iter().filter(|file| !file.is_test()) {
        wrong.extend(texts_with_sources(&file.text).map(|text| format!("{}: {text}", file.name)));
    }
    report(&wrong, "leave the inner error out of the text, and mark its field with #[from] or #[source]");
}

/// Returns the texts of the attribute `error` that contain a field with another error.
fn texts_with_sources(text: &str) -> impl Iterator<Item = &str> {
    let items = before_tests(text).split("#[error(").skip(1).filter_map(|item| item.split_once(")]\n"));
    items.filter_map(|(text, rest)| {
        let fields = rest.split("\n}").next().unwrap_or_default();
        let mut is_marked = false;
        let is_repeated = fields.lines().map(str::trim).any(|line| {
            let (name, kind) = match (line.split_once('('), line.split_once(": ")) {
                _ if line.starts_with("//") => return false,
                _ if line.starts_with("#[") => {
                    is_marked |= ["#[source]", "#[from]"].contains(&line);
                    return false;
                }
                (Some((_, kind)), _) => ("0", kind.trim_end_matches("),")),
                (_, Some((name, kind))) => (name.trim_start_matches("pub "), kind.trim_end_matches(',')),
                _ => return false,
            };
            let is_error = kind.ends_with("Error") || kind.starts_with("#[") || name == "source" || is_marked;
            is_marked = false;
            is_error && [format!("{{{name}}}"), format!("{{{name}:")].iter().any(|name| text.contains(name))
        });
        is_repeated.then_some(text.trim())
    })
}

#[test]
fn texts_that_contain_a_source_are_noticed() {
    let count = |text: &str| texts_with_sources(text).count();
    let tuple =
        |text: &str, field: &str| count(&format!("enum E {{\n    #[error({text})]\n    A({field}),\n}}\n"));
    assert_eq!(tuple("\"one: {0}\"", "#[from] InnerError"), 1);
    assert_eq!(tuple("\"one: {0:?}\"", "io::Error"), 1);
    assert_eq!(tuple("transparent", "#[from] InnerError") + tuple("\"one\"", "#[source] InnerError"), 0);
    assert_eq!(tuple("\"one: {0}\"", "String"), 0);
    let named = |text: &str, field: &str| {
        count(&format!("#[error({text})]\nstruct E {{\n    /// Why.\n    {field},\n    pub n: u8,\n}}\n"))
    };
    assert_eq!(named("\"{n} {error}\"", "#[source]\n    pub error: Box<Self>"), 1);
    assert_eq!(named("\"{n} {source}\"", "source: Problem") + named("\"{e}\"", "e: io::Error"), 2);
    assert_eq!(
        named("\"{n}\"", "#[source]\n    error: Box<Self>") + named("\"{n} {kind}\"", "kind: Kind"),
        0
    );
}

#[test]
fn nothing_that_arrives_can_end_the_process() {
    check_words(NO_PANICS, PANICS, "return an error, or count the packet and drop it");
}

#[test]
fn packet_transport_and_sim_own_no_clock_and_no_thread() {
    let advice = "time, packets and randomness come from the caller";
    check_words_of(SANS_IO, CLOCKS_AND_THREADS, advice, |file, word| {
        word.contains("thread") && THREADS.iter().any(|(name, _)| *name == file)
    });
    let sources = sources();
    for (name, reason) in THREADS {
        let file = sources.iter().find(|file| file.name == *name);
        assert!(
            file.is_some_and(|file| file.text.contains("std::thread")),
            "{name} has no threads: {reason}"
        );
    }
}

/// Orders between two words of memory are hard to get right, and locks are not. They exist in the waiting
/// policy, where loom tries all interleavings, and between a flag and a lock, where fences stand.
#[test]
fn sequential_consistency_is_needed_in_two_files() {
    let sources = sources();
    let needs = |file: &&Source| before_tests(&file.text).contains("Ordering::SeqCst");
    let found: Vec<&str> = sources
        .iter()
        .filter(needs)
        .map(|file| file.name.as_str())
        .filter(|name| !name.starts_with("tests/") && !name.contains("/tests/"))
        .collect();
    assert_eq!(found, ["common/policy/src/watch.rs", "libs/ibverbs/src/rdmacm/mod.rs"]);
}

/// The folders inside each crate from bottom to top: code imports only from folders further left.
const FOLDERS: &[(&str, &[&str])] = &[
    ("packet/src", &["frame", "mad", "outer"]),
    ("transport/src", &["memory", "congestion", "qp", "rc", "engine", "cm"]),
    ("transport/congestion/src", &["paths"]),
    ("common/analysis/src", &["icrc", "counters", "replay", "verdict", "ladder", "event", "testing"]),
    ("common/document/src", &["dissect", "explain", "analyze"]),
    ("common/fault/src", &["verbs"]),
    ("common/policy/src", &["models"]),
    ("sim/src", &["pair", "adversary", "net"]),
    ("sim/scenario/src", &["import"]),
    ("device/src", &["framed", "host", "udp", "pcap", "tap", "raw", "pnet", "xdp"]),
    ("src", &["driver", "observe", "cm", "runtime", "verbs", "peer"]),
    ("libs/ibverbs/src", &["abi", "rdmacm"]),
    ("tools/measure/src", &["harness", "limit", "measure", "study", "perf", "pingpong"]),
    ("tools/doctor/src", &["judge"]),
    ("tools/peer/src", &["wire", "script", "run", "bed", "recorded", "output"]),
    ("tools/report/src", &["data", "figures", "pages"]),
    ("tools/web/src", &["frame", "capture", "hosts", "lessons"]),
    (
        "cli/src",
        &[
            "platform", "decode", "input", "peer", "analyze", "dissect", "explain", "inject", "help", "sim",
            "bridge", "measure", "demo", "perf", "run", "explore",
        ],
    ),
];

/// The folders of the crates from bottom to top: a crate depends only on crates further left. `src` is the
/// library `roce`.
const HOUSE: &[&str] = &[
    "packet",
    "transport/congestion",
    "transport",
    "common/codes",
    "common/fault",
    "common/capture",
    "common/plot",
    "common/analysis",
    "common/document",
    "common/policy",
    "sim",
    "sim/scenario",
    "common/machine",
    "libs/sim",
    "device",
    "src",
    "libs/ibverbs",
    "libs/rdmacm",
    "libs/sysfs",
    "tools/exchange",
    "tools/measure",
    "tools/doctor",
    "tools/bridge",
    "tools/peer",
    "tools/report",
    "tools/web",
    "libs/python",
    "cli",
];

/// Crates that do not depend on each other, because each of them is a product of its own.
const PRODUCTS: &[&str] =
    &["tools/measure", "tools/doctor", "tools/bridge", "tools/peer", "tools/report", "tools/web"];

/// The product that is a program of its own: the page is not a part of the command.
const PAGE: &str = "tools/web";

/// Crates below others that they may not use, with the names of these packages.
const NEVER_USES: &[(&str, &[&str])] = &[
    ("tools/bridge", &["roce"]),
    ("tools/peer", &["roce"]),
    ("tools/report", &["roce", "roce-device"]),
    ("tools/web", &["roce", "roce-device", "roce-machine"]),
];

/// Dependencies that only the command has, with the reason.
const ONLY_OF_THE_COMMAND: &[(&str, &str)] = &[
    ("clap", "a tool takes a plan and does not read a command line"),
    ("clap_complete", "it describes a command line"),
    ("clap_mangen", "it describes a command line"),
    ("ratatui", "a tool does not write to a terminal"),
    ("axum", "a tool does not serve pages"),
    ("tokio", "the tools and the library have no runtime"),
    ("anyhow", "the errors of a library have types"),
];

/// Maximum number of lines of a crate, including its unit tests.
const MOST_LINES_OF_A_CRATE: usize = 20_000;

#[test]
fn arrows_between_folders_point_down() {
    let files = sources();
    let mut wrong = Vec::new();
    for (place, folders) in FOLDERS {
        let found: Vec<String> = folders_in(place);
        let unknown = found.iter().filter(|name| !folders.contains(&name.as_str()));
        wrong.extend(unknown.map(|name| format!("{place}/{name} has no place in FOLDERS of tests/tidy.rs")));
        let gone = folders.iter().filter(|name| !found.iter().any(|there| there == *name));
        wrong.extend(
            gone.map(|name| format!("{place}/{name} is in FOLDERS of tests/tidy.rs and nowhere else")),
        );
        for (level, folder) in folders.iter().enumerate() {
            let inside = [format!("{place}/{folder}/"), format!("{place}/{folder}.rs")];
            let is_inside = |file: &&Source| inside.iter().any(|begin| file.name.starts_with(begin.as_str()));
            for file in files.iter().filter(is_inside).filter(|file| !file.is_test()) {
                // The number of steps that lead out of the folder.
                let depth = file.name.matches('/').count() - place.matches('/').count();
                let depth = if file.name.ends_with("/mod.rs") { depth - 1 } else { depth };
                let up = "super::".repeat(depth);
                for (number, line) in code_lines(&file.text) {
                    let line = line.replace(&up, "crate::");
                    let above = folders[level + 1..].iter().filter(|above| imports(&line, above));
                    wrong.extend(above.map(|above| format!("{}:{number}: {folder} uses {above}", file.name)));
                }
            }
        }
    }
    report(&wrong, "move what both need into the lower folder, or hand it in");
}

/// Returns whether a line of code imports a folder of its own crate, directly or in a list after `crate::{`.
fn imports(line: &str, folder: &str) -> bool {
    let direct = line.match_indices("crate::").any(|(at, begin)| {
        let rest = &line[at + begin.len()..];
        let is_other = |next: char| next.is_alphanumeric() || next == '_';
        rest.strip_prefix(folder).is_some_and(|rest| !rest.starts_with(is_other))
            || rest.strip_prefix('{').is_some_and(|list| {
                list.split([',', '}']).any(|item| item.trim().split("::").next() == Some(folder))
            })
    });
    direct && !line.contains(&format!("roce_{folder}"))
}

fn folders_in(place: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(place)).expect("a folder of sources").flatten();
    let is_room = |path: &PathBuf| path.is_dir() && !path.ends_with("tests");
    let name = |path: PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    entries.map(|entry| entry.path()).filter(is_room).filter_map(name).collect()
}

#[test]
fn arrows_between_crates_point_down() {
    let mut wrong = Vec::new();
    for (level, folder) in HOUSE.iter().enumerate() {
        let manifest = manifest_of(folder);
        let text = read(&manifest);
        for above in &HOUSE[level + 1..] {
            let name = package_of(above);
            if normal_dependencies(&text).contains(&name) {
                wrong.push(format!("{manifest} depends on {name}, which stands above it"));
            }
        }
    }
    report(&wrong, "an arrow only goes down; see the picture in docs/explanation/architecture.md");
}

#[test]
fn products_stand_alone_and_only_the_command_has_a_command_line() {
    let mut wrong = Vec::new();
    for folder in HOUSE.iter().filter(|folder| **folder != "cli") {
        let manifest = manifest_of(folder);
        let found = normal_dependencies(&read(&manifest));
        for (name, reason) in ONLY_OF_THE_COMMAND.iter().filter(|(name, _)| found.contains(*name)) {
            wrong.push(format!("{manifest} depends on {name}: {reason}"));
        }
        let others = PRODUCTS.iter().filter(|other| PRODUCTS.contains(folder) && *other != folder);
        let others = others.map(|other| package_of(other));
        let never = NEVER_USES.iter().filter(|(known, _)| known == folder).flat_map(|(_, names)| *names);
        for name in others.chain(never.map(|name| (*name).to_owned())).filter(|name| found.contains(name)) {
            wrong.push(format!(
                "{manifest} depends on {name}; see the table in docs/explanation/architecture.md"
            ));
        }
    }
    report(&wrong, "move what two products share into a crate below both, and options into cli/");
    // The check can fail.
    let command = normal_dependencies(&read("cli/Cargo.toml"));
    for name in ONLY_OF_THE_COMMAND.iter().map(|(name, _)| (*name).to_owned()) {
        assert!(command.contains(&name), "the command does not use {name}; remove it from the list");
    }
    for product in PRODUCTS {
        assert_eq!(command.contains(&package_of(product)), *product != PAGE, "{product}");
    }
}

/// Each crate with folders has a row in [`FOLDERS`], so that a new crate cannot be missed.
#[test]
fn every_crate_with_folders_is_checked() {
    let mut wrong = Vec::new();
    for place in HOUSE.iter().map(|folder| sources_of(folder)) {
        if !folders_in(&place).is_empty() && !FOLDERS.iter().any(|(known, _)| *known == place) {
            wrong.push(format!("{place} has folders, and no row in FOLDERS of tests/tidy.rs"));
        }
    }
    report(&wrong, "add the row, with the lowest folder first");
}

/// Returns the path of the sources of a folder of [`HOUSE`].
fn sources_of(folder: &str) -> String {
    if folder == "src" { folder.to_owned() } else { format!("{folder}/src") }
}

/// Returns the path of the manifest of a folder of [`HOUSE`].
fn manifest_of(folder: &str) -> String {
    if folder == "src" { "Cargo.toml".to_owned() } else { format!("{folder}/Cargo.toml") }
}

/// Returns the name of the package in a folder of [`HOUSE`].
fn package_of(folder: &str) -> String {
    match folder.rsplit('/').next() {
        // `roce-sim` is the simulator itself.
        _ if folder == "libs/sim" => "roce-sim-c".to_owned(),
        Some("src") | None => "roce".to_owned(),
        Some(name) => format!("roce-{name}"),
    }
}

/// Returns only the names in the table `[dependencies]` and in those of single systems.
fn normal_dependencies(manifest: &str) -> BTreeSet<String> {
    let is_normal = |table: &&str| {
        let header = table.lines().next().unwrap_or_default();
        header == "dependencies]" || (header.starts_with("target.") && header.ends_with(".dependencies]"))
    };
    let tables = manifest.split("\n[").filter(is_normal);
    tables.flat_map(|table| dependencies(&format!("[{table}"))).collect()
}

#[test]
fn arrows_that_point_up_are_noticed() {
    for line in ["use crate::verbs::Context;", "    crate::verbs::poll();", "use crate::{cm, verbs};"] {
        assert!(imports(line, "verbs"), "{line}");
    }
    for line in ["use crate::verbs_of::X;", "use roce::verbs::Context;", "let verbs = 1;"] {
        assert!(!imports(line, "verbs"), "{line}");
    }
    let manifest = "[package]\nname = \"x\"\n\n[dependencies]\nroce-sim = 1\n\n[target.'cfg(unix)'.dependencies]\nroce = 1\n\n\
         [target.'cfg(unix)'.dev-dependencies]\na = 1\n[dev-dependencies]\nroce-cli = 1\n";
    let names = normal_dependencies(manifest);
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["roce", "roce-sim"]);
}

#[test]
fn no_crate_is_too_large() {
    let files = sources();
    let lines_of = |folder: &str| -> usize {
        let begin = format!("{}/", sources_of(folder));
        let inside = files.iter().filter(|file| file.name.starts_with(&begin));
        inside.map(|file| file.text.lines().count()).sum()
    };
    let large = HOUSE.iter().map(|folder| (folder, lines_of(folder)));
    let wrong: Vec<String> = large
        .filter(|(_, lines)| *lines > MOST_LINES_OF_A_CRATE)
        .map(|(folder, lines)| format!("{folder} has {lines} lines"))
        .collect();
    report(&wrong, "find the two crates that it is");
}

/// The crate diagram in docs/explanation/architecture.md names the folder of each crate at the start of a
/// line, from top to bottom.
#[test]
fn the_picture_of_the_house_shows_the_crates() {
    let document = "docs/explanation/architecture.md";
    let text = read(document);
    let picture = text.split("```text").find(|block| block.contains("cli/") && block.contains("packet/"));
    let picture = picture.unwrap_or_else(|| panic!("{document} has no picture of the house"));
    let picture = picture.split("```").next().unwrap_or_default();
    let first = |line: &str| line.split_whitespace().next().map(|word| word.trim_end_matches('/').to_owned());
    let shown: Vec<String> =
        picture.lines().filter(|line| !line.starts_with(' ')).filter_map(first).collect();
    let expected: Vec<&str> = HOUSE.iter().rev().copied().collect();
    assert_eq!(shown, expected, "{document}: the picture and the crates differ");
}

#[test]
fn the_readme_has_the_first_program() {
    let program = read("examples/hello.rs");
    let (_, code) = program.split_once("\n\n").expect("a comment, then the program");
    assert!(read("README.md").contains(code), "README.md and examples/hello.rs differ");
}

/// Most files that a packet passes through on its way out and in; `tests/path.rs` compares the tables with a
/// trace.
const MOST_FILES_OF_A_PACKET: [usize; 2] = [16, 14];

/// In the tables of a packet's path, each function exists, and the ways have few files.
#[test]
fn the_path_of_a_packet_exists() {
    let text = read("docs/explanation/architecture.md");
    let (mut wrong, mut ways): (Vec<String>, Vec<BTreeSet<String>>) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [number, place, _] = cells[..] else { continue };
        let Ok(number) = number.parse::<usize>() else { continue };
        let mut names = place.split('`').skip(1).step_by(2);
        let (file, function) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
        let source = fs::read_to_string(root().join(file)).unwrap_or_default();
        if !["(", "<"].iter().any(|end| source.contains(&format!("fn {function}{end}"))) {
            wrong.push(format!("hop {number}: there is no {function} in {file}"));
        }
        if number == 1 {
            ways.push(BTreeSet::new());
        }
        ways.last_mut().expect("hop 1 comes first").insert(file.to_owned());
    }
    let counts: Vec<usize> = ways.iter().map(BTreeSet::len).collect();
    let is_few = counts.iter().zip(MOST_FILES_OF_A_PACKET).all(|(&count, most)| count <= most);
    assert!(is_few && counts.len() == 2, "files out and in: {counts:?}, at most {MOST_FILES_OF_A_PACKET:?}");
    report(&wrong, "correct the table in docs/explanation/architecture.md");
}

/// The calls that move packets through an engine. All other calls are verbs and queries.
const PACKET_CALLS: [&str; 5] = ["handle", "handle_timeout", "pending", "poll_timeout", "poll_transmit"];
/// The outputs of an engine that are not packets.
const OTHER_OUTPUTS: [&str; 2] = ["poll_cq", "poll_event"];
/// The files of `transport/src/engine` that may make packet calls public.
const PACKET_FILES: [&str; 5] = ["receive.rs", "telemetry.rs", "timeouts.rs", "transmit.rs", "trimmed.rs"];

#[test]
fn five_calls_move_packets_through_an_engine() {
    let files = sources();
    let mut calls = BTreeSet::new();
    for file in &files {
        let Some(name) = file.name.strip_prefix("transport/src/engine/") else { continue };
        let is_packet_file = PACKET_FILES.contains(&name);
        for line in code_lines(&file.text).filter_map(|(_, line)| line.trim_start().strip_prefix("pub fn ")) {
            let call = line.split(['(', '<']).next().unwrap_or_default();
            if is_packet_file || call.starts_with("handle") || call.starts_with("poll_") {
                calls.insert(call);
            }
        }
    }
    let expected: BTreeSet<&str> = PACKET_CALLS.into_iter().chain(OTHER_OUTPUTS).collect();
    assert_eq!(calls, expected, "a packet reaches and leaves an engine by five calls");
}

#[test]
fn every_dependency_is_explained() {
    let text = read("docs/reference/dependencies.md");
    let mut wrong = Vec::new();
    for manifest in manifests() {
        for name in dependencies(&read(&manifest)) {
            if !name.starts_with("roce") && !text.contains(&format!("`{name}`")) {
                wrong.push(format!("{manifest}: {name} is not in docs/reference/dependencies.md"));
            }
        }
    }
    report(&wrong, "say there what it is for, and why it and not another");
}

#[test]
fn no_explained_dependency_is_gone() {
    let used: BTreeSet<String> =
        manifests().iter().flat_map(|manifest| dependencies(&read(manifest))).collect();
    // The rows of the tables begin with the name of the dependency.
    let text = read("docs/reference/dependencies.md");
    let explained = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let gone: Vec<String> = explained
        .filter(|(name, _)| !used.contains(*name))
        .map(|(name, _)| format!("docs/reference/dependencies.md explains {name}, which no Cargo.toml names"))
        .collect();
    report(&gone, "remove the row");
}

#[test]
fn every_counter_is_explained() {
    let text = read("docs/reference/counters.md");
    let wrong: Vec<String> = roce_transport::Counters::NAMES
        .iter()
        .filter(|name| !text.contains(&format!("| `{name}` |")))
        .map(|name| format!("{name} has no row in docs/reference/counters.md"))
        .collect();
    report(&wrong, "say there which side counts it, and when");
}

#[test]
fn what_the_documents_name_exists() {
    let files = sources();
    let mut wrong = Vec::new();
    for (document, columns) in NAMING_DOCUMENTS {
        let text = read(document);
        let names = names_in(&text, columns);
        assert!(names.len() > 50, "{document}: only {} names were found", names.len());
        for (line, name) in names {
            if !names_something(&name, &files) {
                wrong.push(format!("{document}:{line}: there is no {name}"));
            }
        }
    }
    report(&wrong, "correct the name, or write the test that it promises");
}

/// Documents that name an implementation and the test that covers it, with the columns of their tables,
/// counted from the last, in which every name in backquotes must exist.
const NAMING_DOCUMENTS: &[(&str, &[usize])] = &[
    ("docs/reference/conformance.md", &[0, 1]),
    ("docs/reference/mutations.md", &[0, 2]),
    ("docs/reference/simulator-tests.md", &[0]),
];

/// The page names every scenario, and no other.
#[test]
fn the_page_of_what_shows_what_has_every_scenario() {
    let mut named = BTreeSet::new();
    for line in read("docs/reference/simulator-tests.md").lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').collect();
        assert_eq!(cells.len(), 4, "{line}");
        named.extend(cells[2].split('`').skip(1).step_by(2).map(str::to_owned));
    }
    let entries = fs::read_dir(root().join("sim/scenario/shipped")).expect("a folder of scenarios").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let shipped: BTreeSet<String> =
        names.filter_map(|name| name.strip_suffix(".toml").map(str::to_owned)).collect();
    let missing: Vec<String> = named.symmetric_difference(&shipped).cloned().collect();
    report(&missing, "name every scenario of sim/scenario/shipped/ on the page, and no other");
}

/// Returns the names in backquotes: all in these columns of tables of four, and elsewhere those that look
/// like a path or a test. A word after a file in one of these columns is an item of that file.
fn names_in(text: &str, columns: &[usize]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').collect();
        let is_row = line.starts_with('|') && cells.len() == 4;
        for (place, cell) in cells.iter().enumerate() {
            let strict = is_row && columns.contains(&(cells.len() - 1 - place));
            let mut file = None;
            for name in cell.split('`').skip(1).step_by(2) {
                let is_file = name.ends_with(".rs") || name.ends_with('/');
                match file {
                    _ if is_file => {
                        file = Some(name);
                        found.push((index + 1, name.to_owned()));
                    }
                    Some(file) if strict && !name.contains("::") => {
                        found.push((index + 1, format!("{file} {name}")));
                    }
                    _ if strict || name.contains("::") => found.push((index + 1, name.to_owned())),
                    _ => {}
                }
            }
        }
    }
    found
}

/// Returns whether a name exists: a file or folder (`path.rs`, `path/`), an item of a file (`path.rs name`),
/// a test (`file::test`, `file::begins_*`, or only its name), a file of tests (only its name), or an item of
/// a crate (`roce_packet::Name`). Paths begin at the root or in `transport/src`, files of tests also in
/// `transport/tests/engine`.
fn names_something(name: &str, files: &[Source]) -> bool {
    let find = |path: &str| {
        let begins = ["", "transport/src/", "transport/tests/engine/", "transport/tests/"];
        begins.iter().find_map(|begin| files.iter().find(|file| file.name == format!("{begin}{path}")))
    };
    if let Some((path, item)) = name.split_once(' ') {
        let is_defined = |file: &Source| {
            ["(", "<"].map(|end| format!("fn {item}{end}")).iter().any(|at| file.text.contains(at))
        };
        return find(path).is_some_and(is_defined);
    }
    if let Some(folder) = name.strip_suffix('/') {
        return ["", "transport/src/"].iter().any(|begin| root().join(begin).join(folder).is_dir());
    }
    if name.ends_with(".rs") {
        return find(name).is_some();
    }
    let Some((place, item)) = name.rsplit_once("::") else {
        let has_test = |file: &Source| tests_of(&file.text).any(|test| test == name);
        return find(&format!("{name}.rs")).is_some() || files.iter().any(has_test);
    };
    if place.starts_with("roce_") {
        let package = place.replace('_', "-");
        let Some(folder) = HOUSE.iter().find(|folder| package_of(folder) == package) else { return false };
        let inside = |file: &Source| file.name.starts_with(&format!("{folder}/src/"));
        return files.iter().filter(|file| inside(file)).any(|file| has_word(&file.text, item));
    }
    let Some(file) = find(&format!("{place}.rs")) else { return false };
    match item.strip_suffix('*') {
        Some(begin) => tests_of(&file.text).any(|test| test.starts_with(begin)),
        None => tests_of(&file.text).any(|test| test == item),
    }
}

/// Returns the names of the tests in a file.
fn tests_of(text: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    text.lines().map(str::trim_start).filter_map(move |line| {
        if line.starts_with("#[test]") {
            is_test = true;
        }
        let name = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn "))?;
        let end = name.find(|character: char| !character.is_alphanumeric() && character != '_')?;
        std::mem::take(&mut is_test).then_some(&name[..end])
    })
}

#[test]
fn names_that_do_not_exist_are_noticed() {
    let text = "Prose with `word` and `naks::no_such_test`.\n\
                | rule | number | done in | tested by |\n\
                |---|---|---|---|\n\
                | `retry_cnt` | – | `rc/reply.rs` | `naks::shared_receive_queue_stays_filled`, `nothing` |\n";
    let names = names_in(text, &[0, 1]);
    let expected =
        ["naks::no_such_test", "rc/reply.rs", "naks::shared_receive_queue_stays_filled", "nothing"];
    assert_eq!(names.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), expected);
    assert_eq!(names.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 4, 4, 4]);
    let mutation = "| what | `rc/reply.rs` `transmit` | seed 1 | |";
    let names: Vec<String> = names_in(mutation, &[0, 2]).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["rc/reply.rs", "rc/reply.rs transmit"]);

    let files = sources();
    for good in [
        "rc/reply.rs",
        "tests/tidy.rs",
        "src/verbs/",
        "rc/reply.rs transmit",
        "naks",
        "naks::shared_receive_queue_stays_filled",
        "memory::boundary_grid_of_*",
        "files_are_short",
        "tests/tidy::files_are_short",
        "packet/src/mtu::sizes_and_codes",
        "roce_packet::RnrTimer",
        "roce_machine::Mutex",
    ] {
        assert!(names_something(good, &files), "{good}");
    }
    for bad in [
        "rc/replies.rs",
        "src/verb/",
        "rc/reply.rs transmitted",
        "nak",
        "naks::shared_receive_queue",
        // A helper of tests is not a test.
        "naks::refuse",
        "memory::boundary_lattice_*",
        "files_are_long",
        "roce_packet::RnrTimers",
        "roce_machines::Mutex",
    ] {
        assert!(!names_something(bad, &files), "{bad}");
    }
}

/// The page that lists all others.
const INDEX: &str = "docs/README.md";
/// Maximum number of links from [`INDEX`] to any page.
const MOST_STEPS_TO_A_PAGE: usize = 2;

#[test]
fn every_page_is_two_steps_from_the_index() {
    let pages = pages();
    let reached = pages_within(MOST_STEPS_TO_A_PAGE, &pages);
    let missed: Vec<String> = pages.keys().filter(|name| !reached.contains(*name)).cloned().collect();
    report(&missed, "link the page in docs/README.md, or in a page that docs/README.md links");
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let mut pages = pages();
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pcaps/MANIFEST.md"] {
        pages.insert(name.to_owned(), read(name));
    }
    report(&broken_links(&pages, |file| root().join(file).exists()), "correct the link");
}

/// Maximum number of words of a page. Words of tables and code count.
const MOST_WORDS_OF_A_PAGE: usize = 6_000;
/// Lower limits, for pages that a reader should read as a whole.
const SHORT_PAGES: &[(&str, usize)] = &[("docs/explanation/architecture.md", 2_500)];
/// Pages with a row for each case of a test, which a script writes.
const LONG_PAGES: &str = "docs/results/interop/";

#[test]
fn pages_are_short() {
    let mut wrong = Vec::new();
    for (page, text) in pages().iter().filter(|(page, _)| !page.starts_with(LONG_PAGES)) {
        let words = text.split_whitespace().count();
        let short = SHORT_PAGES.iter().find(|(name, _)| name == page);
        let limit = short.map_or(MOST_WORDS_OF_A_PAGE, |(_, limit)| *limit);
        if words > limit {
            wrong.push(format!("{page} has {words} words; the limit is {limit}"));
        }
    }
    report(&wrong, "say it once, and move what remains to another page or to the documentation of a module");
}

/// Comments, messages and scripts name pages by their path from the root.
#[test]
fn every_named_page_exists() {
    let mut wrong = Vec::new();
    // Scripts have no extension. A file that was deleted but not committed yet has no text.
    let is_script = |name: &String| Path::new(name).extension().is_none_or(|extension| extension == "toml");
    let scripts = tracked_files().unwrap_or_default().into_iter().filter(is_script);
    let scripts = scripts.filter_map(|name| Some((fs::read_to_string(root().join(&name)).ok()?, name)));
    // This file has names of pages that do not exist, for the test below.
    let sources = sources().into_iter().filter(|source| source.name != "tests/tidy.rs");
    let sources = sources.map(|source| (source.text, source.name));
    let pages = pages().into_iter().map(|(name, text)| (text, name));
    for (text, file) in sources.chain(pages).chain(scripts) {
        let missing = named_pages(&text).into_iter().filter(|page| !root().join(page).exists());
        wrong.extend(missing.map(|page| format!("{file}: there is no {page}")));
    }
    report(&wrong, "correct the path");
}

/// The numbers of pages that come from a constant of the code.
const NUMBERS: &str = include_str!("tidy/numbers.txt");

#[test]
fn numbers_of_pages_are_those_of_the_code() {
    let sources = sources();
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (mut wrong, mut page, mut text) = (Vec::new(), "", String::new());
    for line in NUMBERS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some(row) = line.strip_prefix("    ") else {
            (page, text) = (line, one_line(&read(line)));
            continue;
        };
        let (phrase, from) = row.split_once(" <- ").unwrap_or_else(|| panic!("no <- in {row}"));
        let (file, code) = from.split_once(": ").unwrap_or_else(|| panic!("no file in {row}"));
        if !text.contains(phrase) {
            wrong.push(format!("{page} does not say: {phrase}"));
        }
        let is_named = |source: &&Source| source.name.rsplit('/').next() == Some(file);
        if !sources.iter().filter(is_named).any(|source| source.text.contains(code)) {
            wrong.push(format!("{page}: `{phrase}`: no {file} contains {code}"));
        }
    }
    report(&wrong, "correct the page and tests/tidy/numbers.txt");
}

/// Paths in pages that begin like a folder of this repository, but belong to other places.
const FOREIGN_PATHS: &[&str] = &["device/net", "device/numa_node"];
/// Items in pages that belong to crates elsewhere.
const FOREIGN_ITEMS: &[&str] = &["rand::rngs::StdRng"];

#[test]
fn every_path_of_a_page_exists() {
    let mut wrong = Vec::new();
    for (page, text) in all_pages() {
        for (number, word) in quoted_words(&text) {
            let path = word.trim_end_matches('/');
            let is_ours = path.split_once('/').is_some_and(|(first, _)| ROOT_FOLDERS.contains(&first));
            let is_path =
                path.chars().all(|character| character.is_alphanumeric() || "/_-.".contains(character));
            if is_ours && is_path && !FOREIGN_PATHS.contains(&path) && !root().join(path).exists() {
                wrong.push(format!("{page}:{number}: there is no {path}"));
            }
        }
    }
    report(&wrong, "correct the path; it begins at the root");
}

/// A path such as `EngineConfig::line_rate` needs a file whose code contains each of its names.
#[test]
fn every_item_of_a_page_exists() {
    let sources = sources();
    let names_of = |source: &Source| -> BTreeSet<String> {
        let stems = source.name.split(['/', '.']);
        let lines = code_lines(&source.text).map(|(_, line)| line);
        let is_other = |character: char| !character.is_alphanumeric() && character != '_';
        stems.chain(lines.flat_map(|line| line.split(is_other))).map(str::to_owned).collect()
    };
    let names: Vec<BTreeSet<String>> = sources.iter().map(names_of).collect();
    let mut wrong = Vec::new();
    for (page, text) in all_pages() {
        for (number, word) in quoted_words(&text) {
            let item = word.split(['(', '<', '{', '!']).next().unwrap_or_default();
            // The tests that these pages name are checked more strictly above.
            let is_name = |character: char| character.is_alphanumeric() || "_:".contains(character);
            if !item.contains("::")
                || !item.chars().all(is_name)
                || NAMING_DOCUMENTS.iter().any(|(own, _)| *own == page)
            {
                continue;
            }
            let parts: Vec<&str> = item.split("::").filter(|part| !part.is_empty()).collect();
            let has_all = |names: &BTreeSet<String>| {
                parts.iter().all(|part| part.starts_with("roce") || names.contains(*part))
            };
            if !FOREIGN_ITEMS.contains(&item) && !names.iter().any(has_all) {
                wrong.push(format!("{page}:{number}: there is no {item}"));
            }
        }
    }
    report(&wrong, "correct the name");
}

/// A variable that the code reads is on a page, and a variable of a page is in the code or in a script.
#[test]
fn every_environment_variable_is_on_a_page() {
    let variables = |text: &str| -> BTreeSet<String> {
        let words = text.split(|character: char| !character.is_ascii_uppercase() && character != '_');
        words.filter(|word| word.len() > 5 && word.starts_with("ROCE_")).map(str::to_owned).collect()
    };
    let shown: BTreeSet<String> = all_pages().values().flat_map(|text| variables(text)).collect();
    let (mut read, mut known) = (BTreeSet::new(), BTreeSet::new());
    for script in ["tools/ci-action/wrap", "tools/ci-action/gitlab.yml"] {
        known.extend(variables(&fs::read_to_string(root().join(script)).expect("a script")));
    }
    for source in sources() {
        known.extend(variables(&source.text));
        // A variable is read by its name, which is a string.
        let strings = source.text.split('"').skip(1).step_by(2).filter(|_| !source.is_test());
        read.extend(strings.filter(|string| variables(string).contains(*string)).map(str::to_owned));
    }
    assert!(read.len() > 10, "{read:?}");
    let missing = read.difference(&shown).map(|name| format!("no page has the variable {name}"));
    let unknown = shown.difference(&known).map(|name| format!("no code reads the variable {name}"));
    report(&missing.chain(unknown).collect::<Vec<_>>(), "docs/how-to/run.md lists the variables");
}

/// The files with the tables of a scenario, and the pages that explain their keys.
const SCENARIO_TABLES: &[&str] = &[
    "sim/scenario/src/file.rs",
    "sim/scenario/src/flows.rs",
    "sim/scenario/src/operations.rs",
    "sim/scenario/src/import/table.rs",
];
const SCENARIO_PAGES: &[&str] = &["docs/reference/simulator.md", "docs/reference/collectives.md"];

#[test]
fn every_key_of_a_scenario_is_on_its_page() {
    let explained: BTreeSet<String> = SCENARIO_PAGES
        .iter()
        .flat_map(|page| quoted_words(&read(page)))
        .flat_map(|(_, word)| {
            word.split(|character: char| !character.is_alphanumeric() && character != '_')
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    let mut keys = BTreeSet::new();
    for file in SCENARIO_TABLES {
        let text = read(file);
        for table in
            text.split("#[derive(").filter(|part| part.contains("Deserialize") && part.contains("struct "))
        {
            let body = table.split_once("struct ").map_or("", |(_, body)| body);
            let body = body.split("\n}").next().unwrap_or_default();
            for line in body.lines().skip(1) {
                let line = line.trim_start().trim_start_matches("pub(super) ");
                let key = line.split_once(": ").map_or("", |(key, _)| key);
                if !key.is_empty()
                    && key.chars().all(|character| character.is_alphanumeric() || character == '_')
                {
                    keys.insert(key.to_owned());
                }
            }
        }
    }
    assert!(keys.len() > 90, "{keys:?}");
    // The key `bridge` is ignored here.
    let missing: Vec<String> =
        keys.into_iter().filter(|key| key != "_bridge" && !explained.contains(key)).collect();
    report(&missing, "explain the key in docs/reference/simulator.md or docs/reference/collectives.md");
}

/// The site has the table of contents of [`INDEX`].
#[test]
fn every_page_is_in_a_list_of_the_index() {
    let text = read(INDEX);
    let lists = text.split_once("\n## ").expect("lists").1;
    let listed: BTreeSet<String> = links(INDEX, lists).into_iter().map(|link| link.file).collect();
    let missing: Vec<String> = pages()
        .into_keys()
        .filter(|page| page != INDEX && !page.starts_with(LONG_PAGES) && !listed.contains(page))
        .collect();
    report(&missing, "add the page to a list of docs/README.md");
}

/// Returns the pages below docs/ and those at the root, without the changelog and without tables of tests.
fn all_pages() -> BTreeMap<String, String> {
    let mut all = pages();
    all.retain(|page, _| !page.starts_with(LONG_PAGES));
    for page in ["README.md", "CONTRIBUTING.md", "SECURITY.md", "RELEASING.md", "pcaps/MANIFEST.md"] {
        all.insert(page.to_owned(), read(page));
    }
    all
}

/// Returns the words in backquotes of a page, with the numbers of their lines.
fn quoted_words(text: &str) -> Vec<(usize, String)> {
    let spans = prose_lines(text)
        .flat_map(|(number, line)| line.split('`').skip(1).step_by(2).map(move |span| (number, span)));
    spans
        .flat_map(|(number, span)| span.split_whitespace().map(move |word| (number, word)))
        .map(|(number, word)| (number, word.trim_matches([',', ';', ':', '.', '(', ')']).to_owned()))
        .collect()
}

#[test]
fn words_in_backquotes_are_found() {
    let text = "a `b c/d.rs,` e\n```sh\nx `y`\n```\n`F::g(…)` `h`";
    let words = quoted_words(text);
    let expected = [(1, "b"), (1, "c/d.rs"), (5, "F::g(…"), (5, "h")];
    assert_eq!(words, expected.map(|(line, word)| (line, word.to_owned())));
}

/// Returns the pages below docs/ by path, with their text.
fn pages() -> BTreeMap<String, String> {
    let mut files = Vec::new();
    collect(&root().join("docs"), "md", &mut files);
    assert!(files.len() > 30, "the pages were not found");
    files.into_iter().map(|path| (name_of(&path), fs::read_to_string(&path).expect("a page"))).collect()
}

/// Returns the lines of a page with their numbers, without code blocks.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

/// A link to a file of this repository.
struct Link {
    line: usize,
    /// Path from the root. It begins with `..` if it leads out of the repository.
    file: String,
    heading: Option<String>,
}

/// Returns the links of a page, without those to other sites.
fn links(page: &str, text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (line, content) in prose_lines(text) {
        for (at, begin) in content.match_indices("](") {
            let target = content[at + begin.len()..].split(')').next().unwrap_or_default();
            if target.contains("://") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
            let file = if path.is_empty() { page.to_owned() } else { joined(folder, path) };
            found.push(Link { line, file, heading: (!heading.is_empty()).then(|| heading.to_owned()) });
        }
    }
    found
}

/// Returns a path below a folder, with each `..` resolved that stays below the root.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." if parts.last().is_some_and(|last| *last != "..") => _ = parts.pop(),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the anchors of the headings of a page, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose_lines(text).filter(|(_, line)| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let is_kept = |character: &char| character.is_alphanumeric() || "-_ ".contains(*character);
        let anchor = heading.chars().filter(is_kept).collect::<String>().replace(' ', "-");
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let anchor = std::iter::once(anchor.clone()).chain(repeated).find(|name| !found.contains(name));
        found.extend(anchor);
    }
    found
}

/// Returns the links of these pages to a file or a heading that does not exist.
fn broken_links(pages: &BTreeMap<String, String>, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (page, text) in pages {
        for Link { line, file, heading } in links(page, text) {
            if file.starts_with("..") || !exists(&file) {
                wrong.push(format!("{page}:{line}: there is no {file}"));
            } else if let Some(heading) = heading
                && pages.get(&file).is_none_or(|text| !anchors(text).contains(&heading))
            {
                wrong.push(format!("{page}:{line}: {file} has no heading #{heading}"));
            }
        }
    }
    wrong
}

/// Returns the pages that at most `steps` links lead to from [`INDEX`], with [`INDEX`].
fn pages_within(steps: usize, pages: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut reached = BTreeSet::from([INDEX.to_owned()]);
    for _ in 0..steps {
        let texts = reached.iter().filter_map(|name| Some((name, pages.get(name)?)));
        let next: Vec<String> =
            texts.flat_map(|(name, text)| links(name, text)).map(|link| link.file).collect();
        reached.extend(next.into_iter().filter(|name| pages.contains_key(name)));
    }
    reached
}

/// Returns the paths in a text that begin with the folder of the pages and end with `.md`.
fn named_pages(text: &str) -> Vec<&str> {
    let is_part = |character: char| character.is_alphanumeric() || "/_-.".contains(character);
    let begins = text.match_indices("docs/").map(|(at, _)| at).filter(|at| {
        let before = &text[..*at];
        // A relative link or another repository.
        !before.ends_with(is_part) || before.ends_with("/../")
    });
    let word = |at: usize| text[at..].split(|character: char| !is_part(character)).next();
    let path = |at| word(at).unwrap_or_default().trim_end_matches('.');
    begins.map(path).filter(|path| path.ends_with(".md")).collect()
}

#[test]
fn broken_links_and_lost_pages_are_noticed() {
    let index = "[a](how-to/a.md#two-words) [root](../README.md)\n```text\n[no link](x.md)\n```\n";
    let a = "# Two words\n[b](../reference/b.md) [self](#two-words-1)\n## `Two`, words!\n";
    let b = "[far](far.md) [web](https://example.org/x.md)\n";
    let texts = [(INDEX, index), ("docs/how-to/a.md", a), ("docs/reference/b.md", b)];
    let mut pages: BTreeMap<String, String> =
        texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    pages.insert("docs/reference/far.md".to_owned(), String::new());
    let exists =
        |pages: &BTreeMap<String, String>, file: &str| file == "README.md" || pages.contains_key(file);
    assert_eq!(broken_links(&pages, |file| exists(&pages, file)), [""; 0]);
    let lost = |steps| pages.len() - pages_within(steps, &pages).len();
    assert_eq!([1, 2, 3].map(lost), [2, 1, 0], "far.md is three steps away");

    pages.insert("docs/how-to/a.md".to_owned(), "[gone](b.md) [heading](../README.md#x)\n".to_owned());
    pages.insert("docs/reference/b.md".to_owned(), "[outside](../../../x.md)\n".to_owned());
    let broken = broken_links(&pages, |file| exists(&pages, file));
    let expected = [
        "docs/README.md:1: docs/how-to/a.md has no heading #two-words",
        "docs/how-to/a.md:1: there is no docs/how-to/b.md",
        "docs/how-to/a.md:1: docs/README.md has no heading #x",
        "docs/reference/b.md:1: there is no ../x.md",
    ];
    assert_eq!(broken, expected);
    let text = "see `docs/none.md`, [x](../docs/none.md), docs/none.rs or /x/../docs/none.md.";
    assert_eq!(named_pages(text), ["docs/none.md"; 2]);
}

/// A Rust file of the repository.
struct Source {
    /// Path relative to the root, with slashes.
    name: String,
    text: String,
}

impl Source {
    /// Returns whether the file contains only tests.
    fn is_test(&self) -> bool {
        self.name.ends_with("tests.rs") || self.name.contains("/tests/") || self.name.starts_with("tests/")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the folders of all crates except the one in the root.
fn crates() -> impl Iterator<Item = &'static str> {
    HOUSE.iter().copied().filter(|folder| *folder != "src").chain(["common/testing", "tools/xtask", "fuzz"])
}

/// Returns the paths of all manifests.
fn manifests() -> Vec<String> {
    let of_crates = crates().map(|name| format!("{name}/Cargo.toml"));
    std::iter::once("Cargo.toml".to_owned()).chain(of_crates).collect()
}

/// Returns all Rust files of this project.
fn sources() -> Vec<Source> {
    let mut files = Vec::new();
    for directory in ["src", "tests", "bench", "examples"].into_iter().chain(crates()) {
        collect(&root().join(directory), "rs", &mut files);
    }
    assert!(files.len() > 50, "the sources were not found");
    files.sort();
    let source = |path: PathBuf| Source { name: name_of(&path), text: fs::read_to_string(&path).unwrap() };
    files.into_iter().map(source).collect()
}

/// Returns the path of a file relative to the root, with slashes.
fn name_of(path: &Path) -> String {
    let path = path.strip_prefix(root()).expect("inside the repository");
    path.to_string_lossy().replace(std::path::MAIN_SEPARATOR, "/")
}

fn collect(directory: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !["target", "corpus", "artifacts", "seeds"].contains(&name.as_str()) {
            collect(&path, extension, files);
        } else if path.extension().is_some_and(|own| own == extension) {
            files.push(path);
        }
    }
}

/// Returns the text up to the module of unit tests.
fn before_tests(text: &str) -> &str {
    let mut from = 0;
    while let Some(at) = text[from..].find("#[cfg(test)]") {
        let rest = &text[from + at..];
        let next = rest.lines().nth(1).unwrap_or_default();
        // `mod tests;` occupies one line, and `extern crate std;` is not a test.
        if next.trim_start().starts_with("mod ") && next.trim_end().ends_with('{') {
            return &text[..from + at];
        }
        from += at + 1;
    }
    text
}

/// Returns lines with their numbers, without comments, doc comments and tests. Strings stay, because none of
/// them contains the checked words.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = before_tests(text).lines().enumerate();
    lines
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(index, line)| (index + 1, line.split(" // ").next().unwrap_or(line)))
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part))
}

/// Checks that no code in these directories contains one of the words.
fn check_words(places: &[&str], words: &[&str], advice: &str) {
    check_words_of(places, words, advice, |_, _| false);
}

/// Does the same as [`check_words`]; `may` returns whether a file may contain a word.
fn check_words_of(places: &[&str], words: &[&str], advice: &str, may: impl Fn(&str, &str) -> bool) {
    let mut wrong = Vec::new();
    for file in sources() {
        if !places.iter().any(|place| file.name.starts_with(place)) || file.is_test() {
            continue;
        }
        for (number, line) in code_lines(&file.text) {
            if let Some(word) = words.iter().find(|word| line.contains(**word) && !may(&file.name, word)) {
                wrong.push(format!("{}:{number}: {word} in {}", file.name, line.trim()));
            }
        }
    }
    report(&wrong, advice);
}

/// Returns the name, the first line and the number of lines of every function that has a body. A nested
/// function counts for both.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let (mut depth, mut opened) = (0_i32, false);
        for (index, line) in lines.iter().enumerate().skip(start) {
            for character in braces(line) {
                match character {
                    '{' => (depth, opened) = (depth + 1, true),
                    '}' => depth -= 1,
                    _ => {}
                }
            }
            // A declaration without a body, in a trait.
            let ends = !opened && line.trim_end().ends_with(';');
            if ends || opened && depth <= 0 {
                if opened {
                    found.push((name.to_owned(), start + 1, index + 1 - start));
                }
                break;
            }
        }
    }
    found
}

/// Returns the name after `fn` if a function begins on this line.
fn function_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with("//") || line.starts_with('*') {
        return None;
    }
    let at = line.match_indices("fn ").map(|(at, _)| at).find(|at| {
        let before = line[..*at].trim_end();
        let words = ["", "pub", "const", "async", "unsafe", "extern \"C\""];
        before.ends_with(')') && before.starts_with("pub(")
            || words.iter().any(|word| before.ends_with(word) && (before.is_empty() || !word.is_empty()))
    })?;
    let name =
        line[at + 3..].split(|character: char| !character.is_alphanumeric() && character != '_').next()?;
    (!name.is_empty()).then_some(name)
}

/// Returns the braces of a line that are code, not part of a comment, a string or a character.
fn braces(line: &str) -> Vec<char> {
    let mut found = Vec::new();
    let mut characters = line.chars().peekable();
    let mut in_string = false;
    while let Some(character) = characters.next() {
        match character {
            '\\' if in_string => _ = characters.next(),
            '"' => in_string = !in_string,
            '/' if !in_string && characters.peek() == Some(&'/') => break,
            '\'' if !in_string => {
                // A character literal of a brace. In lifetimes, no quote follows the next character.
                let mut ahead = characters.clone();
                let brace = ahead.next().is_some_and(|next| "{}\"".contains(next));
                if brace && ahead.next() == Some('\'') {
                    characters = ahead;
                }
            }
            '{' | '}' if !in_string => found.push(character),
            _ => {}
        }
    }
    found
}

/// Returns the names in all dependency tables of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_matches(['[', ']']);
            // A dependency of the workspace is used only if a member names it.
            inside = header.ends_with("dependencies") && !header.starts_with("workspace");
            // `[dependencies.name]`
            if let Some((table, name)) = header.rsplit_once('.')
                && table.ends_with("dependencies")
            {
                names.insert(name.to_owned());
            }
        } else if inside
            && !line.starts_with('#')
            && let Some((name, _)) = line.split_once('=')
        {
            let name = name.trim().trim_matches('"');
            names.insert(name.split('.').next().unwrap_or(name).to_owned());
        }
    }
    names
}

/// Fails with all violations at once.
#[track_caller]
fn report(wrong: &[String], advice: &str) {
    assert!(wrong.is_empty(), "{}\n{} places: {advice}", wrong.join("\n"), wrong.len());
}

#[test]
fn the_line_counter_counts() {
    let text = "fn a() {\n    let x = \"}\";\n    if true {}\n    let c = '{';\n}\n\npub(crate) const fn b(\n    x: u8,\n) -> u8 {\n    x\n}\ntrait T {\n    fn c();\n}\n";
    let found = functions(text);
    let expected = [("a".to_owned(), 1, 5), ("b".to_owned(), 7, 5)];
    assert_eq!(found, expected);
}
