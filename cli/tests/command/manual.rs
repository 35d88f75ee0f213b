//! `roce completions` and `roce man`.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::{has_program, run, skip_unless};

/// Returns the commands that `roce --help` lists.
fn commands() -> Vec<String> {
    let help = run(&["--help"]).stdout;
    let list = help.split("Commands:\n").nth(1).expect("a list of commands");
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names: Vec<String> = lines
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|name| name != "help")
        .collect();
    assert!(names.len() >= 15, "{names:?}");
    names
}

#[test]
fn every_shell_gets_a_script_that_knows_commands_and_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]);
        assert!(script.success, "{shell}: {}", script.stderr);
        for part in ["dissect", "inject", "bad-icrc", "destination-mac", "trace-level"] {
            assert!(script.stdout.contains(part), "{shell}: {part}");
        }
    }
    let finished = run(&["completions", "tcsh"]);
    assert!(finished.code == Some(2) && finished.stderr.contains("bash"), "{finished:?}");
}

#[test]
fn the_script_for_bash_completes_a_command_and_an_option() {
    if skip_unless(has_program("bash"), "bash is not installed") {
        return;
    }
    let script = run(&["completions", "bash"]).stdout;
    let complete = |words: &[&str]| {
        let last = words.len() - 1;
        let ask = format!(
            "COMP_WORDS=({}); COMP_CWORD={last}; _roce roce '{}' '{}'; echo \"${{COMPREPLY[*]}}\"\n",
            words.join(" "),
            words[last],
            words[last - 1],
        );
        let mut shell = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        shell.stdin.take().unwrap().write_all((script.clone() + &ask).as_bytes()).unwrap();
        String::from_utf8(shell.wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(complete(&["roce", "diss"]).trim(), "dissect");
    assert_eq!(complete(&["roce", "dissect", "--bad"]).trim(), "--bad-icrc");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man1");
    let finished = run(&["man", "--out", out.to_str().unwrap()]);
    assert!(finished.success, "{finished:?}");
    let mut names = commands();
    names.iter_mut().for_each(|name| name.insert_str(0, "roce-"));
    names.push("roce".to_owned());
    for name in &names {
        let page =
            std::fs::read_to_string(out.join(format!("{name}.1"))).unwrap_or_else(|_| panic!("no {name}.1"));
        assert!(page.contains(&format!(".TH {name} 1 ")), "{name}: {page:.200}");
        for part in [".SH NAME", ".SH SYNOPSIS", "Examples:", "trace"] {
            assert!(page.contains(part), "{name}: {part}");
        }
    }
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), names.len());
    let one = run(&["man", "dissect"]).stdout;
    assert_eq!(one, std::fs::read_to_string(out.join("roce-dissect.1")).unwrap());
    let finished = run(&["man", "nothing"]);
    assert!(finished.stderr.contains("there is no command `nothing`"), "{finished:?}");
}
