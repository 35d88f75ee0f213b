//! Tests of the spans of the library: a subscriber sees them, and without a subscriber none are created.

use roce_testing as common;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};

use roce::device::memory::MemoryDevice;
use roce::verbs::*;
use roce_exchange::Exchange;
use roce_measure::measure::{self as perf, Completion, Op, Plan, Post, Signal, Tool};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Subscriber};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use common::within;

/// One span, with its state when the test read it.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    /// Names of the enclosing spans, outermost first.
    parents: Vec<&'static str>,
    fields: BTreeMap<&'static str, String>,
    entered: usize,
    closed: bool,
}

/// A layer that records every span.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<BTreeMap<u64, Seen>>>);

impl Recorder {
    fn spans(&self) -> Vec<Seen> {
        self.0.lock().unwrap().values().cloned().collect()
    }

    /// Returns the spans with this name.
    #[track_caller]
    fn named(&self, name: &str) -> Vec<Seen> {
        let found: Vec<Seen> = self.spans().into_iter().filter(|seen| seen.name == name).collect();
        assert!(!found.is_empty(), "no span {name} among {:#?}", self.spans());
        found
    }
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").replace('"', ""));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: LayerContext<'_, S>) {
        let parents = context.span(id).unwrap().scope().from_root().map(|span| span.name()).collect();
        let mut seen = Seen { name: attributes.metadata().name(), parents, ..Seen::default() };
        seen.parents.pop();
        attributes.record(&mut Fields(&mut seen.fields));
        // The registry reuses identifiers, so the number of recorded spans identifies them here.
        let mut all = self.0.lock().unwrap();
        let number = all.len() as u64;
        context.span(id).unwrap().extensions_mut().insert(number);
        all.insert(number, seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: LayerContext<'_, S>) {
        self.change(id, &context, |seen| values.record(&mut Fields(&mut seen.fields)));
    }

    fn on_enter(&self, id: &Id, context: LayerContext<'_, S>) {
        self.change(id, &context, |seen| seen.entered += 1);
    }

    fn on_close(&self, id: Id, context: LayerContext<'_, S>) {
        self.change(&id, &context, |seen| seen.closed = true);
    }
}

impl Recorder {
    fn change<S>(&self, id: &Id, context: &LayerContext<'_, S>, change: impl FnOnce(&mut Seen))
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let span = context.span(id).unwrap();
        let number = *span.extensions().get::<u64>().unwrap();
        change(self.0.lock().unwrap().get_mut(&number).unwrap());
    }

    /// Returns a subscriber for this level and more important ones.
    fn at(&self, level: LevelFilter) -> Dispatch {
        Dispatch::new(tracing_subscriber::registry().with(self.clone().with_filter(level)))
    }
}

/// Returns two contexts, with or without a background thread.
fn contexts(background: bool) -> (Context, Context) {
    let [a, b] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
    let (a, b) = MemoryDevice::pair(a, b).unwrap();
    let attach = |device| Context::builder().background(background).attach(device).unwrap();
    (attach(a), attach(b))
}

/// Posts a WRITE that succeeds and one with a wrong key, which moves both queue pairs to ERR. Returns the
/// number of the requesting queue pair.
fn life_of_a_queue_pair() -> u32 {
    // Only spans of this thread are recorded, so no other thread may make progress.
    let (near, far) = contexts(false);
    let side = |context: &Context| {
        let pd = context.alloc_pd().unwrap();
        let region = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq)).unwrap();
        (region, cq, qp)
    };
    let ((region, cq, qp), (target, _, peer)) = (side(&near), side(&far));
    let options = ConnectOptions::default();
    qp.connect(&peer.endpoint().unwrap(), &options).unwrap();
    peer.connect(&qp.endpoint().unwrap(), &options).unwrap();
    let element = region.element(0..64);
    for (rkey, expected) in
        [(target.rkey(), WcStatus::Success), (RKey(target.rkey().0 ^ 1), WcStatus::RemoteAccessError)]
    {
        let op = SendOp::Write { remote_addr: target.addr(), rkey };
        qp.post_send(&SendWr::new(1, op, &[element])).unwrap();
        let mut done = [Wc::default()];
        while cq.poll(&mut done).unwrap() == 0 {
            far.progress();
        }
        assert_eq!(done[0].status, expected);
    }
    qp.number().get()
}

#[test]
fn the_life_of_a_queue_pair_is_seen() {
    within(60, || {
        let recorder = Recorder::default();
        let number =
            tracing::dispatcher::with_default(&recorder.at(LevelFilter::TRACE), life_of_a_queue_pair);
        let lives = recorder.named("queue_pair");
        assert_eq!(lives.len(), 2);
        let own: Vec<_> = lives.iter().filter(|life| life.fields["qpn"].parse() == Ok(number)).collect();
        assert_eq!(own.len(), 1, "{lives:#?}");
        assert!(lives.iter().all(|life| life.closed && life.fields["transport"] == "Rc"), "{lives:#?}");
        let modified = recorder.named("modify");
        assert!(modified.iter().all(|span| span.parents == ["queue_pair"]), "{modified:#?}");
        let states: Vec<_> = modified.iter().map(|span| span.fields["to"].as_str()).collect();
        assert_eq!(states, ["INIT", "RTR", "RTS", "INIT", "RTR", "RTS"]);
        assert_eq!(recorder.named("destroy").len(), 2);
        let errors = recorder.named("error");
        assert_eq!(errors.len(), 2, "{errors:#?}");
        assert!(errors.iter().all(|error| error.fields["from"] == "RTS"), "{errors:#?}");
        let progress = recorder.named("progress");
        assert!(progress.iter().all(|span| span.entered == 1 && span.closed), "{progress:#?}");
        assert!(progress.iter().all(|span| span.fields["datagrams"].parse::<u64>().is_ok()), "{progress:#?}");
    });
}

/// A queue pair fails inside a span that names it.
#[test]
fn an_error_has_a_span_with_its_queue_pair() {
    let recorder = Recorder::default();
    tracing::dispatcher::with_default(&recorder.at(LevelFilter::DEBUG), || {
        let (context, _peer) = contexts(false);
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let qp = pd.create_qp(&QueuePairOptions::new(QpType::Ud, &cq)).unwrap();
        qp.activate_datagram(7).unwrap();
        qp.modify(&QpAttr::to_state(QpState::Err)).unwrap();
        let errors = recorder.named("error");
        assert_eq!(errors.len(), 1, "{errors:#?}");
        assert_eq!(errors[0].fields["qpn"], qp.number().get().to_string());
        assert_eq!(errors[0].fields["from"], "RTS");
        assert_eq!(errors[0].parents, ["queue_pair", "modify"]);
    });
    // This level does not include spans of single bursts.
    assert!(recorder.spans().iter().all(|span| span.name != "progress"));
}

fn measure(near: &Dispatch, far: &Dispatch) {
    let (client, server) = contexts(true);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let far = far.clone();
    let serving = std::thread::spawn(move || {
        tracing::dispatcher::with_default(&far, || {
            let exchange = Exchange::accept_from(&listener).unwrap().allow_any_peer();
            perf::serve(&server, exchange, &perf::ServerOptions::default()).unwrap();
        });
    });
    let plan = Plan {
        tool: Tool::Ping,
        op: Op::Send,
        sizes: vec![8, 64],
        iterations: 20,
        buffers: 4,
        inline: false,
        completion: Completion::Poll,
        post: Post::List,
        signal: Signal::Full,
        path_mtu: 1024,
        timeout: 16,
    };
    tracing::dispatcher::with_default(near, || {
        let exchange = Exchange::connect_from(&client, address).unwrap();
        perf::run_client(&client, exchange, &plan, None, &mut |_| {}).unwrap();
    });
    serving.join().unwrap();
}

#[test]
fn a_measurement_and_its_exchange_are_seen_on_both_sides() {
    within(60, || {
        let (near, far) = (Recorder::default(), Recorder::default());
        measure(&near.at(LevelFilter::TRACE), &far.at(LevelFilter::TRACE));
        for (recorder, side) in [(&near, "client"), (&far, "server")] {
            let sessions = recorder.named("session");
            assert_eq!(sessions.len(), 1, "{side}");
            let fields = &sessions[0].fields;
            assert_eq!((fields["side"].as_str(), fields["tool"].as_str()), (side, "Ping"));
            assert_eq!(fields["op"], "Send");
            assert!(fields["peer"].starts_with("127."), "{fields:?}");
            let sizes = recorder.named("size");
            let bytes: Vec<_> = sizes.iter().map(|span| span.fields["bytes"].as_str()).collect();
            assert_eq!(bytes, ["8", "64"], "{side}");
            assert!(sizes.iter().all(|span| span.parents == ["session"] && span.closed));
            let exchanges = recorder.named("exchange");
            assert_eq!(exchanges.len(), 1, "{side}");
            let told: Vec<_> =
                recorder.named("send").into_iter().map(|span| span.fields["what"].clone()).collect();
            assert!(told.contains(&"the other side's queue pair".to_owned()), "{told:?}");
            assert!(recorder.named("receive").iter().all(|span| span.parents == ["exchange"]));
            assert_eq!(recorder.named("queue_pair")[0].parents, ["session"], "{side}");
        }
        assert_eq!(near.named("connect").len(), 1);
        assert!(far.spans().iter().all(|span| span.name != "connect"));
    });
}

/// At the default level of `roce`, no span is created.
#[test]
fn spans_that_nobody_asked_for_are_not_made() {
    within(60, || {
        let recorder = Recorder::default();
        let quiet = recorder.at(LevelFilter::WARN);
        tracing::dispatcher::with_default(&quiet, life_of_a_queue_pair);
        measure(&quiet, &quiet);
        assert!(recorder.spans().is_empty(), "{:#?}", recorder.spans());
    });
}
