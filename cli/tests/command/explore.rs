//! `roce explore`: the page, its link, the capture and the live data.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::frames::{frame, pcapng_header, pcapng_packet};
use crate::common::{self, Running, installed_command, own_address, roce, within};
use crate::documents::check;
use roce_packet::{Opcode, Psn};
use serde_json::Value;

const PAGE: &str = "<!doctype html><title>the page</title>";

/// A folder with a page and a private directory for the sockets of processes.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::write(place.path("page.html"), PAGE).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = roce();
        command.env("XDG_RUNTIME_DIR", self.0.path()).env_remove("ROCE_STAT");
        command
    }

    /// Starts `roce explore` with the page of this folder.
    #[track_caller]
    fn explore(&self, arguments: &[&str]) -> Explore {
        let mut command = self.command();
        Explore::start(command.arg("explore").args(arguments).arg("--page").arg(self.path("page.html")))
    }
}

/// A running `roce explore`.
struct Explore {
    running: Running,
    port: u16,
    token: String,
    /// The end of the link.
    fragment: String,
}

/// An answer: status, headers in lower case, body.
struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Explore {
    #[track_caller]
    fn start(command: &mut Command) -> Self {
        let mut running = Running::start(command);
        let line = running.wait_for_line("http://127.0.0.1:");
        let (port, rest) =
            line.trim().strip_prefix("http://127.0.0.1:").unwrap().split_once("/?token=").unwrap();
        let (token, fragment) = rest.split_at(32);
        assert!(token.bytes().all(|digit| digit.is_ascii_hexdigit()), "{line}");
        Self { port: port.parse().unwrap(), token: token.to_owned(), fragment: fragment.to_owned(), running }
    }

    /// Sends a request with these lines after the first one.
    fn connect(&self, first: &str, lines: &[&str]) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        stream.write_all(format!("{first}\r\n{lines}Connection: close\r\n\r\n").as_bytes()).unwrap();
        BufReader::new(stream)
    }

    /// Reads status and headers.
    fn head(reader: &mut BufReader<TcpStream>) -> (u16, String) {
        let mut headers = String::new();
        while !headers.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut headers).unwrap(), 0, "{headers}");
        }
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        (status, headers.to_lowercase())
    }

    fn ask(&self, first: &str, lines: &[&str]) -> Answer {
        let mut reader = self.connect(first, lines);
        let (status, headers) = Self::head(&mut reader);
        let mut body = Vec::new();
        reader.read_to_end(&mut body).unwrap();
        Answer { status, headers, body }
    }

    /// Gets a path with the token, as a browser does.
    fn get(&self, path: &str) -> Answer {
        let host = format!("Host: 127.0.0.1:{}", self.port);
        self.ask(&format!("GET {path}?token={} HTTP/1.1", self.token), &[&host])
    }

    fn live(&self) -> Events {
        let host = format!("Host: localhost:{}", self.port);
        let mut reader = self.connect(&format!("GET /live?token={} HTTP/1.1", self.token), &[&host]);
        let (status, headers) = Self::head(&mut reader);
        assert_eq!(status, 200, "{headers}");
        assert!(headers.contains("content-type: text/event-stream"), "{headers}");
        Events(reader)
    }
}

/// The events of a live connection.
struct Events(BufReader<TcpStream>);

impl Iterator for Events {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        while self.0.read_line(&mut line).is_ok_and(|len| len > 0) {
            // Other lines are lengths of chunks.
            if let Some(event) = line.strip_prefix("data: ") {
                let event = serde_json::from_str(event).unwrap();
                check(&event, "roce/explore/1");
                return Some(event);
            }
            line.clear();
        }
        None
    }
}

#[test]
fn the_link_shows_the_page_and_nothing_else_does() {
    let explore = Place::new().explore(&[]);
    assert_eq!(explore.fragment, "");
    let page = explore.get("/");
    assert_eq!((page.status, page.body.as_slice()), (200, PAGE.as_bytes()));
    for header in
        ["content-type: text/html; charset=utf-8", "cache-control: no-store", "referrer-policy: no-referrer"]
    {
        assert!(page.headers.contains(header), "{}", page.headers);
    }
    // The page has the rest of its policy in itself.
    assert!(page.headers.contains("content-security-policy: frame-ancestors 'none'\r\n"), "{}", page.headers);
    assert_eq!(explore.get("/capture").status, 204, "no capture was given");
    assert_eq!(explore.get("/other").status, 404);
    let other = explore.token.bytes().rev().map(char::from).collect::<String>();
    for token in
        ["", "?token=", "?token=0", &format!("?token={other}"), &format!("?token={}0", explore.token)]
    {
        for path in ["/", "/capture", "/live", "/other"] {
            let answer = explore.ask(&format!("GET {path}{token} HTTP/1.1"), &["Host: localhost"]);
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!(answer.status, 403, "{path}{token}: {text}");
            assert!(text.contains("the token is missing or wrong"), "{text}");
        }
    }
    // Two commands have different tokens.
    assert_ne!(Place::new().explore(&[]).token, explore.token);
}

/// `xtask install` puts the page below the prefix of the command.
#[test]
fn an_installed_command_serves_the_page_of_its_prefix() {
    let place = Place::new();
    let prefix = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let own = installed_command(prefix.path());
    let command = || {
        let mut command = Command::new(&own);
        command.arg("explore").env("XDG_RUNTIME_DIR", place.0.path());
        command
    };
    let refused = Running::start(&mut command()).finish(60);
    let install =
        format!("tools/web/build && cargo run -p xtask -- install --prefix {}\n", prefix.path().display());
    assert!(!refused.success && refused.stderr.ends_with(&install), "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");

    let page = xtask::layout::LAYOUT.iter().find(|entry| entry.destination.ends_with(".html")).unwrap();
    let page = prefix.path().join(page.destination);
    std::fs::create_dir_all(page.parent().unwrap()).unwrap();
    std::fs::write(page, PAGE).unwrap();
    assert_eq!(Explore::start(&mut command()).get("/").body, PAGE.as_bytes());
}

/// With DNS rebinding, the name of a foreign site leads to 127.0.0.1, and its scripts may read the answers.
#[test]
fn a_foreign_host_is_refused() {
    let explore = Place::new().explore(&[]);
    let first = format!("GET /?token={} HTTP/1.1", explore.token);
    for host in ["example.org", "127.0.0.1.example.org", "192.0.2.1:80"] {
        let answer = explore.ask(&first, &[&format!("Host: {host}")]);
        assert_eq!(answer.status, 403, "{host}");
        assert!(!answer.body.starts_with(PAGE.as_bytes()));
    }
    // Two hosts, or none, cannot be judged.
    assert_ne!(explore.ask(&first, &["Host: localhost", "Host: example.org"]).status, 200);
    assert_ne!(explore.ask(&first.replace("1.1", "1.0"), &[]).status, 200);
    let absolute = first.replace("GET /", "GET http://example.org/");
    assert_eq!(explore.ask(&absolute, &["Host: localhost"]).status, 403);
    for host in ["localhost", "127.0.0.1", "[::1]:1"] {
        assert_eq!(explore.ask(&first, &[&format!("Host: {host}")]).status, 200, "{host}");
    }
}

#[test]
fn the_capture_arrives_byte_by_byte() {
    let place = Place::new();
    // Larger than several pieces, with every value, and no multiple of a piece.
    let bytes: Vec<u8> =
        (0..1_000_003_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let name = place.path("my trace.pcapng");
    std::fs::write(&name, &bytes).unwrap();
    let explore = place.explore(&[name.to_str().unwrap()]);
    assert_eq!(explore.fragment, "#capture");
    for _ in 0..2 {
        let answer = explore.get("/capture");
        assert_eq!(answer.status, 200);
        assert!(answer.headers.contains("content-length: 1000003"), "{}", answer.headers);
        assert!(answer.headers.contains("filename*=utf-8''my%20trace.pcapng"), "{}", answer.headers);
        assert!(answer.body == bytes, "{} bytes differ", answer.body.len());
    }
    // The file is read for each request. A browser that goes away in the middle does no harm.
    std::fs::write(&name, b"shorter").unwrap();
    let mut gone =
        explore.connect(&format!("GET /capture?token={} HTTP/1.1", explore.token), &["Host: localhost"]);
    Explore::head(&mut gone);
    drop(gone);
    assert_eq!(explore.get("/capture").body, b"shorter");
    std::fs::remove_file(&name).unwrap();
    assert_eq!(explore.get("/capture").status, 404);
}

#[test]
fn what_cannot_be_shown_is_an_error_at_the_start() {
    let place = Place::new();
    let page = place.path("page.html");
    let page = page.to_str().unwrap();
    for (arguments, expected) in [
        (&["explore", "/nonexistent.pcap", "--page", page][..], "cannot read /nonexistent.pcap"),
        (&["explore", "/", "--page", page], "the page needs a file"),
        (&["explore", "--page", "/nonexistent.html"], "cannot read the page /nonexistent.html"),
        (&["explore", "--follow"], "CAPTURE"),
    ] {
        let finished = common::run(arguments);
        assert!(
            !finished.success && finished.stderr.contains(expected),
            "{arguments:?}: {}",
            finished.stderr
        );
    }
    let explore = place.explore(&[]);
    let finished = common::run(&["explore", "--page", page, "--port", &explore.port.to_string()]);
    assert!(finished.stderr.contains("choose another one with --port"), "{}", finished.stderr);
}

/// Ctrl-C ends the command at once, also with an open live connection.
#[test]
fn an_interrupt_ends_it_with_status_0() {
    let explore = Place::new().explore(&[]);
    let mut live = explore.live();
    assert!(live.next().is_some());
    explore.running.interrupt();
    let finished = explore.running.finish(20);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(finished.stderr, "");
    while live.next().is_some() {}
}

/// Starts `roce blast` with losses and DCQCN between two addresses, for longer than the test. Returns server,
/// client and the address of the client.
fn blast(place: &Place) -> (Running, Running, String) {
    let (near, far) = (own_address().to_string(), own_address().to_string());
    let [near_device, far_device] = [&near, &far].map(|address| format!("udp:{address}"));
    let mut server = Running::start(place.command().args(["blast", "--device", &far_device]));
    server.wait_for_line("waiting on");
    let mut client = place.command();
    client.args(["blast", &far, "--device", &near_device, "-n", "10000000", "--size", "4096"]);
    client.args(["--congestion", "dcqcn", "--fault", "drop=1%", "--seed", "3"]);
    (server, Running::start(&mut client), near)
}

#[test]
fn a_running_blast_appears_with_packets_and_rates() {
    within(120, || {
        let place = Place::new();
        let explore = place.explore(&[]);
        let (_server, _client, address) = blast(&place);
        let (mut first, mut times) = (None, Vec::new());
        for (number, event) in explore.live().enumerate() {
            times.push(event["time_seconds"].as_f64().unwrap());
            let processes = event["processes"].as_array().unwrap();
            let Some(process) = processes.iter().find(|one| one["addresses"][0] == address) else { continue };
            let first = *first.get_or_insert(number);
            // Five events are a second. The client may still be connecting in the first of them.
            let rates = &process["counters_per_second"];
            let is_sending = |process: &Value| process["counters"]["rdma_tx_packets"].as_u64() > Some(0);
            if !is_sending(process) || rates["rdma_tx_packets"].is_null() {
                assert!(number < first + 50, "{event}");
                continue;
            }
            assert!(rates["rdma_tx_packets"].as_f64() > Some(1.0), "{event}");
            assert!(process["command"].as_str().unwrap().contains("blast"), "{event}");
            assert!(event["interval_seconds"].as_f64() >= Some(0.1), "{event}");
            // Losses are visible too.
            if process["counters"]["retransmitted_packets"].as_u64() > Some(0) {
                break;
            }
        }
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] > 0.1), "at most 10 in a second: {times:?}");
    });
}

/// A process that is there before the browser appears in its first event, and with rates in its second.
#[test]
fn a_running_process_appears_within_a_second() {
    within(120, || {
        let place = Place::new();
        let (_server, _client, address) = blast(&place);
        let explore = place.explore(&[]);
        let of = |event: &Value| {
            let processes = event["processes"].as_array().unwrap();
            processes.iter().find(|one| one["addresses"][0] == address).cloned()
        };
        let is_sending = |event: &Value| {
            of(event).is_some_and(|process| process["counters"]["rdma_tx_packets"].as_u64() > Some(0))
        };
        assert!(explore.live().any(|event| is_sending(&event)), "the client sends");
        // On a busy machine, some browsers wait longer.
        let look = || {
            let start = Instant::now();
            let events: Vec<Value> = explore.live().take(2).collect();
            (start.elapsed(), events)
        };
        let (took, events) =
            (0..10).map(|_| look()).find(|(took, _)| *took < Duration::from_secs(1)).unwrap_or_else(look);
        assert!(common::on_idle(took) < Duration::from_secs(1), "{took:?}");
        let [first, second]: [Value; 2] = events.try_into().unwrap();
        assert!(is_sending(&first), "{first}");
        let rates = &of(&second).unwrap()["counters_per_second"];
        assert!(rates["rdma_tx_packets"].as_f64() > Some(0.0), "{second}");
        assert!(!of(&second).unwrap()["queue_pairs"].as_array().unwrap().is_empty(), "{second}");
    });
}

/// Nobody watches at first, so nothing is read, and nothing is lost.
#[test]
fn packets_of_a_growing_capture_arrive() {
    within(120, || {
        let place = Place::new();
        let file = place.path("growing.pcapng");
        let mut bytes = Vec::new();
        pcapng_header(&mut bytes).unwrap();
        let packet = |psn: u32| frame(Opcode::RC_RDMA_WRITE_ONLY, Psn::new(psn), b"hello");
        let add = |bytes: &mut Vec<u8>, psn| pcapng_packet(bytes, &packet(psn), None).unwrap();
        // More than one event has.
        (0..150).for_each(|psn| add(&mut bytes, psn));
        std::fs::write(&file, &bytes).unwrap();
        let explore = place.explore(&[file.to_str().unwrap(), "--follow"]);
        let mut rows: Vec<Value> = Vec::new();
        let mut left_out = 0;
        let mut live = explore.live();
        let mut read = |until: u64, rows: &mut Vec<Value>| {
            for event in live.by_ref() {
                let capture = &event["capture"];
                rows.extend(capture["rows"].as_array().unwrap().iter().cloned());
                left_out += capture["left_out"].as_u64().unwrap();
                assert_eq!(capture["problem"], Value::Null);
                if capture["packets"] == until {
                    return;
                }
            }
            panic!("the connection ended");
        };
        read(150, &mut rows);
        assert_eq!(rows.last().unwrap()["number"], 150);
        // A gap, in two pieces, the first of which ends inside a packet.
        let mut more = Vec::new();
        add(&mut more, 160);
        let mut growing = OpenOptions::new().append(true).open(&file).unwrap();
        growing.write_all(&more[..50]).unwrap();
        growing.write_all(&more[50..]).unwrap();
        read(151, &mut rows);
        assert_eq!(rows.len() as u64 + left_out, 151);
        let row = rows.last().unwrap();
        assert_eq!((&row["opcode"], &row["psn"]), (&"RC_RDMA_WRITE_ONLY".into(), &160.into()));
        assert_eq!((&row["mark"], &row["icrc"], &row["bytes"]), (&"gap".into(), &"ok".into(), &5.into()));
        // The capture itself has all packets.
        assert_eq!(explore.get("/capture").body.len(), bytes.len() + more.len());
    });
}

/// The page runs the simulator of the command, so both print one trace hash.
#[test]
fn the_page_has_the_trace_hash_of_the_command() {
    for (name, set) in [("two-to-one", None), ("pause-storm", Some("seed=5"))] {
        let mut arguments = vec!["sim", name];
        arguments.extend(set.iter().flat_map(|set| ["--set", *set]));
        let finished = common::run(&arguments);
        let printed = finished.stdout.lines().find_map(|line| line.trim().strip_prefix("trace hash"));
        let sets: Vec<(&str, &str)> = set.iter().filter_map(|set| set.split_once('=')).collect();
        let text = roce_scenario::shipped(name).unwrap();
        let sets = serde_json::to_string(&sets).unwrap();
        let mut run = roce_web::congestion::Run::new(text, &sets).unwrap();
        while run.run(100_000) {}
        let results: Value = serde_json::from_str(&run.results()).unwrap();
        assert_eq!(results["trace_hash"].as_str(), printed.map(str::trim), "{name}: {}", finished.stdout);
        assert_eq!(results["command"], format!("roce {}", arguments.join(" ")));
    }
}
