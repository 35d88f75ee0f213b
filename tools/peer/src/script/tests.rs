//! Tests of the language.

use super::*;

fn load(text: &str) -> Result<Script, ScriptError> {
    Script::load("a.roce", &Files::of([("a.roce", text)]))
}

/// Errors name the line, the word, and what to write.
#[test]
fn errors_say_what_where_and_what_to_do() {
    for (text, expected) in [
        ("connect rc\nsned ack psn=1", "a.roce:2: there is no statement `sned`; did you mean `send`?"),
        (
            "connect rc\n\nsend write_onyl psn=1",
            "a.roce:3: there is no packet `write_onyl`; did you mean `write_only`?",
        ),
        (
            "connect rc\nsend send_only pns=1",
            "a.roce:2: `pns` is not a field of RC_SEND_ONLY; did you mean `psn`?",
        ),
        ("connect rc\nsend send_only", "add psn=NUMBER"),
        ("connect rc\nsend send_only psn=a", "there is no variable `a`"),
        ("connect rc\nsend send_only psn=", "expected a number, a time or a variable at the end of the line"),
        ("connect rc\nexpect ack psn=1 within", "at the end of the line"),
        ("connect rc\ncounter duplicate_requests += 1", "did you mean `duplicate_request`?"),
        ("connect xc", "one of rc, uc, ud is expected"),
        ("connect rc mtu=1000", "mtu is not one of [256, 512, 1024, 2048, 4096]"),
        ("send ack psn=1", "a.roce:1: there is no connection yet; write `connect rc` before this line"),
        ("connect rc\ncheck m[0..1] == 0", "there is no memory `m`"),
        ("repeat 3 {\nwait 1ms", "a.roce:1: the loop has no end; add a line with `}`"),
        ("wait 1ms\n}", "a.roce:2: there is no loop that could end here"),
        ("include \"b.roce\"", "a.roce:1: cannot read b.roce: there is no such script"),
        ("include \"a.roce\"", "does a.roce include itself?"),
        ("connect rc\nsend raw 5", "hex\"...\""),
        ("connect rc\nsend raw hex\"123\"", "3 hexadecimal digits are not whole bytes"),
        ("connect rc\nwait 1ms 2ms", "`2000000ns` is not expected here"),
        ("connect rc\nsend send_only psn=1 source=\"x\"", "\"x\" is not an IP address"),
        ("connect rc\nsend send_only psn", "`psn` has no value; write psn=VALUE"),
        ("connect rc\nexpect ack bytes=1 len=3", "`len` is not a field of RC_ACKNOWLEDGE"),
    ] {
        let error = load(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}\n  {error}");
    }
}

#[test]
fn deep_expressions_are_refused() {
    let text = format!("let a = {}1{}", "(".repeat(100), ")".repeat(100));
    assert!(load(&text).unwrap_err().what.contains("nested more than 32 deep"));
    assert!(load(&format!("let a = {}1", "-".repeat(100))).unwrap_err().what.contains("nested"));
    let text = format!("let a = 1{}", " + 1".repeat(1_000));
    assert!(load(&text).unwrap_err().what.contains("2004 words and signs; at most 500"));
}

#[test]
fn includes_are_beside_their_file_and_keep_their_lines() {
    let files = Files::of([("x/a.roce", "include \"b.roce\"\nwait 1ms"), ("x/b.roce", "\nwait 2ms")]);
    let script = Script::load("x/a.roce", &files).unwrap();
    let places: Vec<String> = script.statements.iter().map(|statement| statement.place.to_string()).collect();
    assert_eq!(places, ["x/b.roce:2", "x/a.roce:2"]);
    let files = Files::of([("a.roce", "include \"b.roce\""), ("b.roce", "\n\nwiat 1ms")]);
    let error = Script::load("a.roce", &files).unwrap_err().to_string();
    assert!(error.starts_with("b.roce:3: there is no statement `wiat`"), "{error}");
}

#[test]
fn only_files_are_read() {
    let error = Script::load("/dev/zero", &Files::Disk).unwrap_err().to_string();
    assert!(error.contains("it is not a file"), "{error}");
}

#[test]
fn loops_and_continued_lines() {
    let script = load("# Title\nrepeat 3 as i {\n  let a = \\\n    i + 1\n}\n").unwrap();
    assert_eq!(script.title, "Title");
    assert!(matches!(script.statements[0].action, Action::Repeat(_, Some(_), 2)));
    assert_eq!(script.statements[1].text, "let a = i + 1");
    assert!(matches!(script.statements[2].action, Action::End(0)));
}

#[test]
fn rules_are_listed() {
    let script = load("rule \"IBA 9.7.5\"\nwait 1ms\nrule \"b\"").unwrap();
    assert_eq!(script.rules().collect::<Vec<_>>(), ["IBA 9.7.5", "b"]);
}
