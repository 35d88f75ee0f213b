//! The pages agree with the command: options, defaults and parameters. The picture of `README.md` shows the
//! packets of a capture; `ROCE_BLESS=1 cargo test -p roce-cli --test command pages::` draws it again.

use crate::common;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use roce_scenario::Scenario;
use roce_transport::SelectiveRepeat;
use roce_transport::congestion::{
    DcqcnParameters, DctcpParameters, HpccParameters, NotificationPoint, Parameter, ParameterRange,
    PathParameters, PowerTcpParameters, RepsParameters, SwiftParameters, TimelyParameters,
};
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcaps/rc-loss.pcapng");
const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/lossy-write.svg");

/// Width of the picture, and the places of requester and responder, in pixels.
const WIDTH: u32 = 760;
const REQUESTER: u32 = 265;
const RESPONDER: u32 = 500;
/// Height of the headings, and the distance between two packets.
const HEADINGS: u32 = 52;
const ROW: u32 = 17;
/// Difference in height between the two ends of an arrow.
const SLOPE: u32 = 9;

const BLACK: &str = "#333";
const RED: &str = "#c62828";
const BLUE: &str = "#1565c0";
const GREEN: &str = "#2e7d32";

/// An arrow of the ladder.
#[derive(Debug, PartialEq, Eq)]
enum Arrow {
    Request {
        text: String,
        color: &'static str,
    },
    /// A request that does not arrive.
    Lost {
        psn: u64,
    },
    Response {
        text: String,
        color: &'static str,
    },
}

/// Returns the arrows of the first WRITE of the capture, up to its acknowledgement.
fn arrows(packets: &[Value]) -> Vec<Arrow> {
    let mut arrows = Vec::new();
    let mut last = None;
    for packet in packets {
        let psn = packet["infiniband.bth.psn"].as_u64().expect("a PSN");
        let opcode = packet["roce.opcode"].as_str().expect("an opcode");
        if opcode == "RC_ACKNOWLEDGE" {
            let is_nak = packet["infiniband.aeth.syndrome.opcode"] == 3;
            let (text, color) = if is_nak {
                (format!("NAK: PSN {psn} is missing"), RED)
            } else {
                (format!("ACK up to PSN {psn}"), GREEN)
            };
            arrows.push(Arrow::Response { text, color });
            if !is_nak && last == Some(psn) {
                break;
            }
            continue;
        }
        if let Some(missing) = packet["roce.missing_psn"].as_u64() {
            arrows.push(Arrow::Lost { psn: missing });
        }
        let name = opcode.trim_start_matches("RC_RDMA_").replace('_', " ");
        if opcode.ends_with("_LAST") {
            last = Some(psn);
        }
        let is_again = ["late", "repeat"].iter().any(|mark| packet["roce.mark"] == *mark);
        let (again, color) = if is_again { (" again", BLUE) } else { ("", BLACK) };
        arrows.push(Arrow::Request { text: format!("{name}, PSN {psn}{again}"), color });
    }
    arrows
}

/// Draws a ladder: time goes down, the requester is on the left.
fn ladder(title: &str, arrows: &[Arrow]) -> String {
    let rows = u32::try_from(arrows.len()).expect("few arrows");
    let height = HEADINGS + ROW * rows + 14;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"{BLACK}\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"18\" font-size=\"14\" font-weight=\"bold\" text-anchor=\"middle\">{title}</text>\n",
        WIDTH / 2
    );
    for (x, name) in [(REQUESTER, "requester"), (RESPONDER, "responder")] {
        _ = writeln!(svg, "<text x=\"{x}\" y=\"38\" text-anchor=\"middle\">{name}</text>");
        _ = writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"44\" x2=\"{x}\" y2=\"{}\" stroke=\"#999\" stroke-width=\"2\"/>",
            height - 6
        );
    }
    for (row, arrow) in (0..).zip(arrows) {
        let y = HEADINGS + ROW * row;
        svg += &match arrow {
            Arrow::Request { text, color } => {
                line(REQUESTER, RESPONDER, y, color) + &label(REQUESTER - 10, y, "end", color, text)
            }
            Arrow::Lost { psn } => {
                let middle = (REQUESTER + RESPONDER) / 2;
                let text = format!("PSN {psn} is lost");
                line(REQUESTER, middle, y, RED)
                    + &label(middle + 8, y + SLOPE, "start", RED, "\u{2715}")
                    + &label(REQUESTER - 10, y, "end", RED, &text)
            }
            Arrow::Response { text, color } => {
                line(RESPONDER, REQUESTER, y, color) + &label(RESPONDER + 10, y, "start", color, text)
            }
        };
    }
    svg + "</svg>\n"
}

/// Draws an arrow that starts at height `y`.
fn line(from: u32, to: u32, y: u32, color: &str) -> String {
    let (end, back) = (y + SLOPE, if to > from { to - 7 } else { to + 7 });
    format!(
        "<path d=\"M{from} {y}L{to} {end}M{back} {}L{to} {end}L{back} {}\" fill=\"none\" stroke=\"{color}\" \
         stroke-width=\"1.3\"/>\n",
        end - 4,
        end + 3
    )
}

fn label(x: u32, y: u32, anchor: &str, color: &str, text: &str) -> String {
    format!("<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"{color}\">{text}</text>\n", y + 4)
}

#[test]
fn the_picture_shows_the_packets_of_the_capture() {
    let finished = common::run(&["dissect", "--json", CAPTURE]);
    let packets: Vec<Value> =
        finished.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let arrows = arrows(&packets);
    let is_lost = |arrow: &Arrow| matches!(arrow, Arrow::Lost { .. });
    let is_nak = |arrow: &Arrow| matches!(arrow, Arrow::Response { color: RED, .. });
    let (lost, nak) = (arrows.iter().position(is_lost), arrows.iter().position(is_nak));
    assert!(lost.is_some() && lost < nak, "{arrows:?}");
    let length = packets[0]["infiniband.reth.dmalen"].as_u64().expect("a WRITE");
    let drawn = ladder(&format!("A WRITE of {length} bytes that loses a packet"), &arrows);
    if std::env::var_os("ROCE_BLESS").is_some() {
        fs::write(PICTURE, &drawn).expect("writing docs/lossy-write.svg");
    }
    let shown = fs::read_to_string(PICTURE).expect("docs/lossy-write.svg");
    assert!(shown == drawn, "docs/lossy-write.svg is not that of the capture; ROCE_BLESS=1 draws it again");
}

/// Returns the text of a page by its path from the root.
#[track_caller]
fn read(page: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Returns the paths of the pages with commands.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    for folder in ["tutorials", "how-to", "reference", "explanation", "results"] {
        let entries = fs::read_dir(Path::new(ROOT).join("docs").join(folder)).expect("a folder of pages");
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        pages.extend(names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{folder}/{name}")));
    }
    assert!(pages.len() > 30, "{pages:?}");
    pages
}

/// Returns the help of a command.
fn help(command: &str) -> String {
    common::run(&[command, "--help"]).stdout
}

/// Returns whether a help text has an option, for example `--json`.
fn has_option(help: &str, option: &str) -> bool {
    help.match_indices(option).any(|(at, _)| {
        let goes_on = |character: char| character.is_alphanumeric() || "-_".contains(character);
        !help[at + option.len()..].starts_with(goes_on)
    })
}

/// Returns the commands of `roce` in a page, each with its long options. Code blocks and words in backquotes
/// are searched.
fn commands_of(page: &str) -> Vec<(String, Vec<String>)> {
    let page = page.replace("\\\n", " ");
    let (mut code, mut is_code) = (Vec::new(), false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            code.push(line.split(" # ").next().unwrap_or_default().to_owned());
        } else {
            code.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    code.iter().flat_map(|line| commands_of_line(line)).collect()
}

fn commands_of_line(line: &str) -> Vec<(String, Vec<String>)> {
    // Values in quotes contain separators.
    let unquoted: String =
        line.split('\'').enumerate().map(|(index, part)| if index % 2 == 0 { part } else { "X" }).collect();
    let mut found = Vec::new();
    for part in unquoted.split(['|', ';', '&', '>']) {
        // `cargo run … -- COMMAND` runs the same command, unless it names another program.
        let is_cargo = part.contains("cargo run")
            && !["--example", "-p costs", "-p xtask"].iter().any(|one| part.contains(one));
        let start = if is_cargo { part.split_once(" -- ").map(|(_, rest)| rest) } else { None };
        let start = start.or_else(|| {
            let at =
                part.find("roce ").filter(|at| !part[..*at].ends_with(|end: char| end.is_alphanumeric()))?;
            Some(&part[at + 5..])
        });
        let mut words = start.unwrap_or_default().split_whitespace();
        let Some(command) =
            words.next().filter(|word| word.chars().all(|letter| letter.is_ascii_lowercase()))
        else {
            continue;
        };
        let mut options = Vec::new();
        for word in words {
            if word == "--" {
                break;
            }
            // Not a drawing of a cable.
            if word.starts_with("--") && word.contains(char::is_alphanumeric) {
                options.push(word.split('=').next().unwrap_or(word).to_owned());
            }
        }
        found.push((command.to_owned(), options));
    }
    found
}

#[test]
fn options_in_pages_exist() {
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages() {
        for (command, options) in commands_of(&read(&page)) {
            // The options of the program that `roce run` starts follow without a mark.
            if options.is_empty() || command == "run" {
                continue;
            }
            let help = helps.entry(command.clone()).or_insert_with(|| help(&command));
            if help.is_empty() {
                wrong.push(format!("{page}: roce has no command {command}"));
                continue;
            }
            checked += options.len();
            let missing = options.iter().filter(|option| !has_option(help, option));
            wrong.extend(missing.map(|option| format!("{page}: roce {command} has no option {option}")));
        }
    }
    assert!(checked > 100, "{checked} options");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_in_pages_are_found() {
    let page = "`roce a --b C` and `--d`\n```sh\nleft$ roce e 'f;--g' --h=1 \\\n    --i | j --k   # --l\n\
                cargo run --release -- m --n\ncargo run --example o -- p --q\n```\n";
    let expected = [("a", vec!["--b"]), ("e", vec!["--h", "--i"]), ("m", vec!["--n"])];
    let expected = expected.map(|(command, options)| {
        (command.to_owned(), options.into_iter().map(str::to_owned).collect::<Vec<_>>())
    });
    assert_eq!(commands_of(page), expected);
    assert!(has_option("  --pcap <FILE>", "--pcap") && !has_option("--pcap-limit <N>", "--pcap"));
}

#[test]
fn profiles_of_cargo_in_pages_exist() {
    let manifest = read("Cargo.toml");
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages() {
        let text = read(&page);
        for line in text.lines().filter(|line| line.contains("cargo ")) {
            let Some((_, after)) = line.split_once("--profile ") else { continue };
            let name = after.split(|sign: char| !sign.is_ascii_lowercase()).next().unwrap_or_default();
            checked += 1;
            if !manifest.contains(&format!("\n[profile.{name}]\n")) {
                wrong.push(format!("{page}: Cargo.toml has no profile {name}: {line}"));
            }
        }
    }
    assert!(checked > 2, "{checked} profiles");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// README.md says which commands have the common options.
#[test]
fn commands_have_the_options_that_the_readme_names() {
    let readme = read("README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let sending = ["ping", "blast", "perf", "pingpong", "rping", "run", "doctor"];
    let names = |commands: &[&str]| commands.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
    let (last, first) =
        names(&sending).split_last().map(|(last, first)| (last.clone(), first.join(", "))).unwrap();
    assert!(readme.contains(&format!("- {first} and {last} take")), "{first} and {last}");
    for command in sending {
        let help = help(command);
        for option in ["--device", "--pcap", "--fault", "--seed", "--congestion"] {
            assert!(has_option(&help, option), "roce {command} has no {option}");
        }
    }
    let list = common::run(&["--help"]).stdout;
    let list = list.split("Options:").next().unwrap_or_default();
    let commands = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let commands = commands.filter_map(|line| line.split_whitespace().next());
    let commands: BTreeSet<&str> = commands.filter(|name| name.chars().all(char::is_alphabetic)).collect();
    assert!(commands.len() > 12, "{list}");
    let others = ["completions", "help", "man"];
    let without: Vec<&str> = commands
        .into_iter()
        .filter(|command| !others.contains(command) && !has_option(&help(command), "--json"))
        .collect();
    assert_eq!(without, ["explore", "ladder", "peer", "rping", "run", "study"]);
    let readme = readme.replace("\n  ", " ");
    assert!(readme.contains("`explore`, `ladder`, `peer`, `rping`, `run` and `study` do not"));
}

/// Returns the cells of the row of a parameter in a section of a page.
#[track_caller]
fn row<'a>(section: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!("| `{name}`");
    let row =
        section.lines().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("no row {begin}"));
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// Returns the part of a page below a heading.
#[track_caller]
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, after) = page.split_once(&format!("{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    after.split("\n##").next().unwrap_or(after)
}

/// Returns a range as the pages write it: `0 to 2^24`, `1 to 10^6`, or words.
fn shown_range(range: ParameterRange) -> Vec<String> {
    let ParameterRange::Number(least, most) = range else {
        return vec![range.to_string().replace(", ", ",")];
    };
    let digits = most.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let mut forms = vec![format!("{least} to {most}"), format!("{least} to {grouped}")];
    if most.is_power_of_two() {
        forms.push(format!("{least} to 2^{}", most.ilog2()));
    }
    if most > 1 && 10_u32.pow(most.ilog10()) == most {
        forms.push(format!("{least} to 10^{}", most.ilog10()));
    }
    forms
}

/// Checks the rows of parameters in a section. The cells are given by their numbers: the value and the range.
#[track_caller]
fn check_parameters(section: &str, parameters: &[Parameter], values: &str, cells: [usize; 2]) {
    let values: BTreeMap<&str, &str> = values.split(',').filter_map(|pair| pair.split_once('=')).collect();
    assert_eq!(values.len(), parameters.len(), "{values:?}");
    for parameter in parameters {
        let row = row(section, parameter.name);
        assert_eq!(row[cells[0]].trim_matches('`'), values[parameter.name], "{}: {row:?}", parameter.name);
        let range = row[cells[1]].replace(['`'], "").replace(", ", ",");
        let ranges = shown_range(parameter.range);
        assert!(ranges.contains(&range), "{}: {range} is not {ranges:?}", parameter.name);
        let unit = parameter.unit.replace("us", "µs");
        let unit = unit.trim_start_matches("x ");
        assert!(row[cells[1] + 1].contains(unit), "{}: {row:?} is not in {unit}", parameter.name);
    }
}

#[test]
fn parameters_on_the_pages_are_those_of_the_algorithms() {
    let page = read("docs/reference/congestion.md");
    let values = NotificationPoint::default().to_string();
    check_parameters(section(&page, "## Notification point"), NotificationPoint::PARAMETERS, &values, [1, 2]);
    let dcqcn = section(&page, "### dcqcn");
    for (preset, cell) in [("cx-default", 2), ("paper", 3), ("hpcc", 4), ("tester", 5)] {
        let parameters = DcqcnParameters::preset(preset).expect("a preset");
        // The cell of the form also has that of `ns3`.
        let section = dcqcn.replace("| device; ns3 |", "| device |");
        check_columns(&section, &parameters.to_string(), cell);
    }
    let dctcp = DctcpParameters::default().to_string();
    check_parameters(section(&page, "### dctcp"), DctcpParameters::PARAMETERS, &dctcp, [1, 2]);
    let swift = SwiftParameters::default().to_string();
    check_parameters(section(&page, "### swift"), SwiftParameters::PARAMETERS, &swift, [1, 2]);
    let timely = TimelyParameters::default().to_string();
    check_parameters(section(&page, "### timely"), TimelyParameters::PARAMETERS, &timely, [1, 2]);
    let hpcc = HpccParameters::default().to_string();
    check_parameters(section(&page, "### hpcc"), HpccParameters::PARAMETERS, &hpcc, [1, 2]);
    let powertcp = PowerTcpParameters::default().to_string();
    check_parameters(section(&page, "### powertcp"), PowerTcpParameters::PARAMETERS, &powertcp, [1, 2]);

    let page = read("docs/reference/loss-recovery.md");
    let repeat = SelectiveRepeat::default().to_string();
    check_parameters(section(&page, "## Selective repeat"), SelectiveRepeat::PARAMETERS, &repeat, [1, 2]);
    let help = help("ping");
    let (_, help) = help.split_once("--recovery").expect("an option");
    let missing = SelectiveRepeat::PARAMETERS.iter().filter(|parameter| !help.contains(parameter.name));
    assert_eq!(missing.map(|parameter| parameter.name).collect::<Vec<_>>(), [""; 0], "in --recovery");

    let page = read("docs/reference/paths.md");
    let page = section(&page, "## What counts for and against a path");
    check_parameters(page, PathParameters::PARAMETERS, &PathParameters::default().to_string(), [1, 2]);
    check_parameters(page, RepsParameters::PARAMETERS, &RepsParameters::default().to_string(), [1, 2]);
}

/// Checks one column of the table of DCQCN, and the ranges.
#[track_caller]
fn check_columns(section: &str, values: &str, cell: usize) {
    let names = DcqcnParameters::PARAMETERS;
    check_parameters(section, names, values, [cell, 6]);
    for parameter in names.iter().filter(|parameter| !parameter.alias.is_empty()) {
        assert_eq!(row(section, parameter.name)[1], format!("`{}`", parameter.alias), "{}", parameter.name);
    }
}

/// A row of the table of scenario keys in docs/reference/simulator.md: the first cell, the default there, and
/// the same as values of keys.
type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const DEFAULTS: &[Row] = &[
    ("`seed`", "1", &[("seed", "1")]),
    ("`payload`", "implied", &[("payload", "implied")]),
    ("`stop`", "10 s", &[("stop", "10s")]),
    ("`open_ended`", "false", &[("open_ended", "false")]),
    ("`rate`, `delay`", "100 Gb/s, 1 µs", &[("topology.rate", "100Gbps"), ("topology.delay", "1us")]),
    (
        "`[switch] buffer`, `reserve`, `headroom`",
        "32 MiB, 4,096, auto",
        &[("switch.buffer", "32MiB"), ("switch.reserve", "4096"), ("switch.headroom", "auto")],
    ),
    ("`threshold`", "1/8", &[("switch.threshold.alpha", "0.125")]),
    (
        "`xon_offset`, `lossy_alpha`, `pfc`",
        "3,072; 1; that of data",
        &[("switch.xon_offset", "3072"), ("switch.lossy_alpha", "1.0"), ("switch.pfc", "[3]")],
    ),
    ("`pause`, `watchdog`", "frames, none", &[("switch.pause", "frames"), ("switch.watchdog.off", "true")]),
    ("`balance`", "flow", &[("switch.balance", "flow")]),
    ("`trimming`", "off", &[("switch.trimming.off", "true")]),
    (
        "`marking`",
        "400 KB, 1.6 MB, 0.2",
        &[
            ("switch.marking.kmin", "400KB"),
            ("switch.marking.kmax", "1600KB"),
            ("switch.marking.pmax", "0.2"),
        ],
    ),
    ("`[host] congestion`", "none", &[("host.congestion", "none")]),
    ("`recovery`", "go-back-n", &[("host.recovery", "go-back-n")]),
    ("`paths`", "one", &[("host.paths", "one")]),
    ("`delay` |", "0", &[("host.delay", "0us")]),
    ("`application`", "immediate", &[("host.application", "immediate")]),
    (
        "`poll_time`, `wake_up_time`, `socket_buffer`",
        "500 ns, 10 µs, 16 MiB",
        &[("host.poll_time", "500ns"), ("host.wake_up_time", "10us"), ("host.socket_buffer", "16MiB")],
    ),
    ("`dscp`, `ack_dscp`", "26, 56", &[("host.dscp", "26"), ("host.ack_dscp", "56")]),
    ("`path_mtu`, `window`", "1024, 4096", &[("host.path_mtu", "1024"), ("host.window", "4096")]),
    ("`timeout`, `retry_cnt`", "14, 7", &[("host.timeout", "14"), ("host.retry_cnt", "7")]),
    ("`message`, `depth`", "1 GiB, 2", &[("host.message", "1GiB"), ("host.depth", "2")]),
    (
        "`[measure] interval`, `warm_up`, `points`",
        "10 µs, 0, 2,000,000",
        &[("measure.interval", "10us"), ("measure.warm_up", "0us"), ("measure.points", "2000000")],
    ),
];

const SCENARIO: &str = "name = \"x\"\n[topology]\nkind = \"star\"\nhosts = 3\n\
    [[flows]]\nkind = \"incast\"\ndegree = 2\nto = \"h2\"\nbytes = \"1MB\"\n";

#[test]
fn defaults_on_the_page_of_the_simulator_are_those_of_scenarios() {
    let page = read("docs/reference/simulator.md");
    let load = |name: &str| Err(format!("no file {name}"));
    let parse = |replaced: &[(String, String)]| Scenario::parse_with(SCENARIO, replaced, &load);
    let unchanged = parse(&[]).expect("a scenario");
    for (cell, default, values) in DEFAULTS {
        let begin = format!("| {cell}");
        let row =
            page.lines().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("no row {cell}"));
        assert!(row.ends_with(&format!(" {default} |")), "the default of {cell} is {default}: {row}");
        let replaced: Vec<(String, String)> =
            values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let with = parse(&replaced).unwrap_or_else(|error| panic!("{cell}: {error}"));
        assert_eq!(with.settings, unchanged.settings, "{values:?} are not the defaults");
        assert_eq!((&with.topology, &with.flows), (&unchanged.topology, &unchanged.flows), "{values:?}");
    }
    // The check can fail.
    let changed = parse(&[("host.depth".to_owned(), "3".to_owned())]).expect("a scenario");
    assert_ne!(changed.settings, unchanged.settings);
}
