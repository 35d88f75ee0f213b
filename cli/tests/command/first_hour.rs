//! The commands of `docs/tutorials/first-hour.md` and of `README.md` print what the pages show.
//!
//! A page has one code block for each command, as a terminal shows it:
//!
//! ```text
//! left$ roce ping 198.18.0.2
//! …
//! ```
//!
//! `left` and `right` are network namespaces with a cable between them; `left-2` is a second terminal on the
//! left. A prompt without a name is on the left, too. A shell runs the command as an ordinary user, in a
//! folder that all terminals share. The block continues with its standard output and standard error; after a
//! failure it ends with `[exit status 1]`. A block that ends with `^C` runs until the next command of its
//! terminal, or until the page ends. A line `...` stands for any number of lines. Figures are compared as
//! `#`, except in addresses and in commands.
//!
//! `ROCE_BLESS=1 cargo test -p roce-cli --test command first_hour::` writes the current output of the
//! commands into the pages.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Finished, Running, as_nobody, share_command, shell_of_user, skip_unless, within};
use roce_testing::Cable;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tutorials/first-hour.md");
const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
/// The line that stands for any number of lines.
const OMITTED: &str = "...";
const BEGIN: &str = "```console\n";
const END: &str = "\n```\n";
/// Time limit of one command, in seconds.
const LIMIT: u64 = 120;

/// A code block of the page: a command and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    terminal: String,
    command: String,
    output: Vec<String>,
    /// Whether the command runs until it is interrupted.
    is_server: bool,
}

impl Block {
    #[track_caller]
    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let (terminal, command) = first.split_once("$ ").unwrap_or_else(|| panic!("no prompt in {first}"));
        let mut output: Vec<String> = lines.map(str::to_owned).collect();
        let is_server = output.last().is_some_and(|last| last == "^C");
        if is_server {
            output.pop();
        }
        Self { terminal: terminal.to_owned(), command: command.to_owned(), output, is_server }
    }

    fn text(&self) -> String {
        let prompt = format!("{}$ {}", self.terminal, self.command);
        let end = self.is_server.then(|| "^C".to_owned());
        let lines: Vec<String> =
            std::iter::once(prompt).chain(self.output.iter().cloned()).chain(end).collect();
        lines.join("\n")
    }

    /// Returns this block with the printed output. Lines that a single `...` stands for are omitted again. If
    /// there are several, the block shows the whole output, because the lines in between may have changed.
    fn with_output(&self, printed: &[String]) -> Self {
        let mut output = printed.to_vec();
        let parts: Vec<_> = self.output.split(|line| line == OMITTED).collect();
        if let [before, after] = parts[..]
            && printed.len() > before.len() + after.len()
        {
            output = printed[..before.len()].to_vec();
            output.push(OMITTED.to_owned());
            output.extend_from_slice(&printed[printed.len() - after.len()..]);
        }
        Self { output, ..self.clone() }
    }

    /// Returns whether the output on the page agrees with the printed output.
    fn agrees(&self, printed: &[String]) -> bool {
        let mask = |lines: &[String]| -> Vec<String> {
            let lines = unwrapped(lines);
            lines.iter().map(|line| masked(line)).filter(|line| !is_of_busy_machine(line)).collect()
        };
        matches_with_omissions(&mask(&self.output), &mask(printed))
    }
}

/// Returns whether lines are those of a page, in which `...` stands for any number of lines.
fn matches_with_omissions(page: &[String], lines: &[String]) -> bool {
    let mut parts = page.split(|line| line == OMITTED);
    let Some(mut rest) = lines.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, parts)) = parts.split_last() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = (0..=rest.len()).find(|at| rest[*at..].starts_with(part)) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Joins the lines of long texts in tables, because the line breaks depend on the figures in the text.
fn unwrapped(lines: &[String]) -> Vec<String> {
    const CONTINUED: &str = "                         ";
    let mut whole: Vec<String> = Vec::new();
    for line in lines {
        match whole.last_mut() {
            Some(last) if line.starts_with(CONTINUED) => {
                last.push(' ');
                last.push_str(line.trim_start());
            }
            _ => whole.push(line.clone()),
        }
    }
    whole
}

/// Returns whether a line appears only on a busy machine: on retransmission, and during long measurements.
fn is_of_busy_machine(line: &str) -> bool {
    matches!(line, "# packet was retransmitted" | "# packets were retransmitted")
        || line.starts_with("roce: running for # s: ")
}

/// Returns a line without the parts that differ from run to run: figures become `#`, and columns lose their
/// width. Addresses stay.
fn masked(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(masked_word).collect();
    let line = words.join(" ");
    // This part is also printed only on a busy machine.
    let repeated = ["; # packet was retransmitted", "; # packets were retransmitted"];
    repeated.iter().find_map(|end| line.strip_suffix(end)).unwrap_or(&line).to_owned()
}

fn masked_word(word: &str) -> String {
    let core = word.trim_matches(|character: char| !character.is_ascii_alphanumeric());
    let address = core.split('%').next().unwrap_or(core);
    if address.parse::<IpAddr>().is_ok() && address.len() > 2 {
        return word.to_owned();
    }
    // Hashes and identifiers.
    let is_hex = core.len() >= 8 && core.chars().all(|digit| digit.is_ascii_hexdigit());
    // Bytes of a packet. A word of two such letters is masked on both sides.
    let is_byte = core.len() == 2 && core.chars().all(|digit| digit.is_ascii_hexdigit());
    if is_byte || is_hex && core.contains(|digit: char| digit.is_ascii_digit()) {
        return word.replace(core, "#");
    }
    let mut masked = String::new();
    let mut characters = word.chars().peekable();
    while let Some(character) = characters.next() {
        if !character.is_ascii_digit() {
            masked.push(character);
            continue;
        }
        // A number continues with digits or a fraction, and in hexadecimal with letters.
        let mut is_hex = false;
        while let Some(&next) = characters.peek() {
            let goes_on = next.is_ascii_digit()
                || is_hex && next.is_ascii_hexdigit()
                || next == 'x' && character == '0'
                || next == '.' && characters.clone().nth(1).is_some_and(|digit| digit.is_ascii_digit());
            if !goes_on {
                break;
            }
            is_hex |= next == 'x';
            characters.next();
        }
        masked.push('#');
    }
    masked
}

/// The page as alternating text and blocks; it begins and ends with text.
struct Page {
    texts: Vec<String>,
    blocks: Vec<Block>,
}

impl Page {
    #[track_caller]
    fn parse(page: &str) -> Self {
        let (mut texts, mut blocks) = (Vec::new(), Vec::new());
        let mut rest = page;
        while let Some((text, from)) = rest.split_once(BEGIN) {
            let (block, after) = from.split_once(END).expect("a block ends");
            texts.push(text.to_owned());
            blocks.push(Block::parse(block));
            rest = after;
        }
        texts.push(rest.to_owned());
        Self { texts, blocks }
    }

    fn text(&self) -> String {
        let mut page = self.texts[0].clone();
        for (block, text) in self.blocks.iter().zip(&self.texts[1..]) {
            page += &format!("{BEGIN}{}{END}{text}", block.text());
        }
        page
    }
}

/// The two machines, their terminals, and the folder that the terminals share.
struct Place {
    cable: Cable,
    folder: PathBuf,
    /// Blocks that are still running, by terminal.
    running: BTreeMap<String, (usize, Running)>,
    printed: BTreeMap<usize, Vec<String>>,
}

impl Place {
    fn new(cable: Cable, folder: &Path) -> Self {
        for end in [&cable.near, &cable.far] {
            end.ip(&["link set lo up"]);
        }
        share_command(folder);
        Self { cable, folder: folder.to_owned(), running: BTreeMap::new(), printed: BTreeMap::new() }
    }

    fn start(&self, block: &Block) -> Running {
        // A signal must reach the command, not the shell.
        let exec = if block.is_server { "exec " } else { "" };
        let line = format!("{exec}{} 2>&1", block.command);
        let mut command = shell_of_user(&line, &self.folder, &self.folder);
        let machine = block.terminal.split('-').next().unwrap_or_default();
        let place = match machine {
            "" | "left" => &self.cable.near,
            "right" => &self.cable.far,
            _ => panic!("{} is neither left nor right", block.terminal),
        };
        place.run(move || Running::start(&mut command))
    }

    fn run(&mut self, number: usize, block: &Block) {
        self.interrupt(&block.terminal);
        let mut running = self.start(block);
        if block.is_server {
            // The first output shows that the command is ready. A client that runs until it is stopped prints
            // nothing before.
            running.wait_for_output(Duration::from_secs(3));
            self.running.insert(block.terminal.clone(), (number, running));
        } else {
            let finished = running.finish(LIMIT);
            self.keep(number, &finished);
        }
    }

    /// Presses Ctrl-C in a terminal, after later commands: a client would report the end of its server.
    fn interrupt(&mut self, terminal: &str) {
        if let Some((number, running)) = self.running.remove(terminal) {
            let later = self.running.iter().filter(|(_, (later, _))| *later > number);
            for terminal in later.map(|(terminal, _)| terminal.clone()).collect::<Vec<_>>() {
                self.interrupt(&terminal);
            }
            running.interrupt();
            let finished = running.finish(LIMIT);
            let mut lines = lines(&finished);
            lines.retain(|line| !line.starts_with("[exit status") && line != "[signal]");
            self.printed.insert(number, lines);
        }
    }

    fn keep(&mut self, number: usize, finished: &Finished) {
        self.printed.insert(number, lines(finished));
    }

    /// Runs all commands of a page, and replaces the output of blocks that differ. Returns the differences.
    fn run_all(&mut self, page: &mut Page) -> Vec<String> {
        for (number, block) in page.blocks.iter().enumerate() {
            self.run(number, block);
        }
        for terminal in self.running.keys().cloned().collect::<Vec<_>>() {
            self.interrupt(&terminal);
        }
        let printed = std::mem::take(&mut self.printed);
        let mut wrong = Vec::new();
        for (number, block) in page.blocks.iter_mut().enumerate() {
            let printed = &printed[&number];
            if !block.agrees(printed) {
                let now = block.with_output(printed);
                wrong.push(format!("the page:\n{}\nnow:\n{}\n", block.text(), now.text()));
                *block = now;
            }
        }
        wrong
    }
}

fn lines(finished: &Finished) -> Vec<String> {
    let mut lines: Vec<String> = finished.stdout.lines().map(|line| line.trim_end().to_owned()).collect();
    if !finished.success {
        lines.push(finished.code.map_or("[signal]".to_owned(), |code| format!("[exit status {code}]")));
    }
    lines
}

#[test]
fn every_command_of_the_pages_prints_what_the_pages_show() {
    within(1_800, || {
        if skip_unless(as_nobody().is_some(), "setpriv is not installed; it is in util-linux") {
            return;
        }
        let Some(cable) = Cable::new(1500) else { return };
        let folder = tempfile::tempdir().unwrap();
        let mut place = Place::new(cable, folder.path());
        let mut wrong = Vec::new();
        for path in [PAGE, README] {
            let mut page = read_page(path);
            let differences = place.run_all(&mut page);
            if std::env::var_os("ROCE_BLESS").is_some() {
                fs::write(path, page.text()).unwrap_or_else(|error| panic!("writing {path}: {error}"));
            } else {
                wrong.extend(differences);
            }
        }
        assert!(
            wrong.is_empty(),
            "{}\n{} blocks differ; ROCE_BLESS=1 writes what the commands print now into the pages",
            wrong.join("\n"),
            wrong.len()
        );
    });
}

#[track_caller]
fn read_page(path: &str) -> Page {
    Page::parse(&fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}")))
}

#[test]
fn the_page_shows_only_what_a_newcomer_can_type() {
    let page = read_page(PAGE);
    assert!(page.blocks.len() > 15, "{} commands", page.blocks.len());
    for block in &page.blocks {
        assert!(block.command.starts_with("roce "), "{}", block.command);
        // Every command uses the default device.
        assert!(!block.command.contains("--device"), "{}", block.command);
        // A client that runs until it is stopped prints nothing.
        assert!(block.is_server || !block.output.is_empty(), "{} has no output", block.command);
    }
}

#[test]
fn a_page_that_differs_is_noticed() {
    let text = "# A\n\n```console\nleft$ roce x 1\nA  198.18.0.1 12.5 us 0x0a1f\n...\nend\n```\n\nB\n\n```console\nright-2$ roce y\nhello\n^C\n```\n";
    let page = Page::parse(text);
    assert_eq!(page.text(), text);
    let [first, second] = &page.blocks[..] else { panic!("two blocks") };
    assert!(!first.is_server && second.is_server && second.terminal == "right-2");
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for same in ["A 198.18.0.1 7.25 us 0x77\nend", "A 198.18.0.1   1 us 0xffffffff\nx\ny\nend"] {
        assert!(first.agrees(&lines(same)), "{same}");
    }
    for other in
        ["A 198.18.0.2 7.25 us 0x77\nend", "A 198.18.0.1 7 ms 0x77\nend", "A 198.18.0.1 7 us 0x1", "end"]
    {
        assert!(!first.agrees(&lines(other)), "{other}");
    }
    assert!(!second.agrees(&lines("hello\nagain")));
    let gaps = Block::parse("$ roce z\na\n...\nb\nc\n...\nd");
    assert!(gaps.agrees(&lines("a\nb\nx\nb\nc\nd")) && gaps.agrees(&lines("a\nb\nc\nx\nd")));
    for other in ["a\nb\nx\nc\nd", "a\nb\nc\nd\nx", "b\nc\nd", "a\nb\nc"] {
        assert!(!gaps.agrees(&lines(other)), "{other}");
    }
    assert_eq!(gaps.with_output(&lines("a\nx\nd")).output, ["a", "x", "d"]);
    let shorter = first.with_output(&lines("1\n2\n3\n4"));
    assert_eq!(shorter.output, ["1", "...", "4"]);
    assert_eq!(masked("(2001:db8::1) a12:3.5 -4,5 [198.18.0.1]:4791"), "(2001:db8::1) a#:# -#,# [#]:#");
}
