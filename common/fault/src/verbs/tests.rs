use proptest::prelude::*;
use roce_transport::{Instant, WcStatus};

use super::*;
use crate::Chance;

const SECOND: u64 = 1_000_000_000;

fn plan(text: &str) -> VerbsPlan {
    text.parse().expect(text)
}

const fn ms(milliseconds: u64) -> Instant {
    Instant::from_nanos(milliseconds * 1_000_000)
}

/// Returns the numbers of the first `count` calls of a verb that fail.
fn failing(faults: &mut VerbsFaults, verb: Verb, count: u64) -> Vec<u64> {
    (0..count).filter_map(|_| Some(faults.on_call(verb, Instant::ZERO)?.call)).collect()
}

#[test]
fn an_item_of_a_call_says_what_it_means() {
    let call = |text: &str| match &plan(text).items[..] {
        [VerbsItem::Call(call)] => *call,
        items => panic!("{text}: {items:?}"),
    };
    let fails = |which| CallFault {
        verb: Verb::ibv_reg_mr,
        which,
        window: Window::default(),
        delay_ns: 0,
        errno: Errno::find("ENOMEM"),
    };
    assert_eq!(call("ibv_reg_mr=ENOMEM"), fails(Which::All));
    assert_eq!(call("ibv_reg_mr:3=ENOMEM"), fails(Which::Numbers(3, Some(3))));
    assert_eq!(call(" ibv_reg_mr : 3..5 = 12 "), fails(Which::Numbers(3, Some(5))));
    assert_eq!(call("ibv_reg_mr_iova2:3..=ENOMEM"), fails(Which::Numbers(3, None)));
    assert_eq!(call("ibv_reg_mr:every=4=ENOMEM"), fails(Which::Every(4)));
    let one_percent = Chance::from_parts_per_billion(10_000_000).unwrap();
    assert_eq!(call("ibv_reg_mr:p=1%=ENOMEM"), fails(Which::Chance(one_percent)));
    let window = Window { from_ns: 2 * SECOND, until_ns: Some(5 * SECOND) };
    let in_window = CallFault { window, ..fails(Which::Numbers(1, None)) };
    assert_eq!(call("ibv_reg_mr:1..@2s..5s=ENOMEM"), in_window);
    let slow = CallFault { delay_ns: 200_000_000, errno: None, ..fails(Which::Every(2)) };
    assert_eq!(call("ibv_reg_mr:every=2:delay=200ms"), slow);
    let both = CallFault { errno: Errno::find("EIO"), ..slow };
    assert_eq!(call("ibv_reg_mr:every=2:delay=200ms=EIO"), both);
    assert_eq!(call("rdma_destroy_ep:delay=1us").errno, None);
}

#[test]
fn the_other_items_say_what_they_mean() {
    let text = "# a file\nseed=7\ncompletion:send:qp=2:5..6=IBV_WC_RETRY_EXC_ERR # why\ncompletion=FATAL_ERR;\
                port:down@2s..5s;port:roce1:down@1s;device:roce1:fatal@3s;qp:1:error@1ms;link:flap@1MiB for 50ms";
    let found = plan(text);
    assert_eq!(found.seed, 7);
    let completion = |queue, qp, which, status| {
        VerbsItem::Completion(CompletionFault { queue, qp, which, window: Window::default(), status })
    };
    let window = |from, until| Window { from_ns: from * SECOND, until_ns: until };
    let expected = [
        completion(Some(WorkQueue::Send), Some(2), Which::Numbers(5, Some(6)), WcStatus::RetryExceededError),
        completion(None, None, Which::All, WcStatus::FatalError),
        VerbsItem::Outage(Outage::Port { device: None, window: window(2, Some(5 * SECOND)) }),
        VerbsItem::Outage(Outage::Port { device: Some("roce1".to_owned()), window: window(1, None) }),
        VerbsItem::Outage(Outage::Device { device: Some("roce1".to_owned()), at_ns: 3 * SECOND }),
        VerbsItem::Outage(Outage::QueuePair { qp: 1, at_ns: 1_000_000 }),
        VerbsItem::Flap(LinkFlap { device: None, after_bytes: 1 << 20, for_ns: 50_000_000 }),
    ];
    assert_eq!(found.items, expected);
    for empty in ["", " ; \n", "none", "# nothing"] {
        assert!(plan(empty).is_empty(), "{empty}");
    }
}

#[test]
fn errors_name_the_item_and_what_was_expected() {
    for (text, parts) in [
        ("ibv_reg_mr=EIO;ibv_regmr=EIO", ["item 2 `ibv_regmr=EIO`", "did you mean `ibv_reg_mr`?"]),
        ("reg_mr=EIO", ["item 1", "did you mean `ibv_reg_mr`?"]),
        ("Accept=EIO", ["`Accept` is not a function", "did you mean `rdma_accept`?"]),
        ("prt:down@1s", ["`prt` is not a function", "did you mean `port`?"]),
        ("malloc=ENOMEM", ["`malloc` is not a function of libibverbs", "expected such a name, completion"]),
        ("ibv_reg_mr:3=ENOMAM", ["`ENOMAM` is not valid here", "did you mean `ENOMEM`?"]),
        ("ibv_reg_mr:3=0", ["`0` is not valid here", "a number from 1 to 4095"]),
        ("ibv_reg_mr:3=", ["`` is not valid here", "the name of an error"]),
        ("ibv_reg_mr:3", ["an error such as =ENOMEM, or a delay", "is missing"]),
        ("ibv_reg_mr:0=EIO", ["`0` is not valid here", "numbers of calls such as 3"]),
        ("ibv_reg_mr:5..3=EIO", ["`5..3` is not valid here", "3..5"]),
        ("ibv_reg_mr:evry=3=EIO", ["`evry` is not valid here (did you mean `every`?)", "every=10"]),
        ("ibv_reg_mr:3:every=4=EIO", ["the selection of calls is given twice", ""]),
        ("ibv_reg_mr:delay=1s:delay=2s", ["the delay is given twice", ""]),
        ("ibv_reg_mr:delay=5", ["`delay=5` is not valid here", "delay=200ms"]),
        ("ibv_reg_mr=EIO:3", ["`EIO` is not valid here", "at the end of the item"]),
        ("ibv_reg_mr:p=200%=EIO", ["`p=200%` is not valid here", "p=1%"]),
        ("ibv_reg_mr@5s..2s=EIO", ["`5s..2s` is not valid here", "a later one"]),
        ("ibv_ack_cq_events=EIO", ["ibv_ack_cq_events cannot report an error", ":delay=1ms"]),
        ("completion:5", ["the status of a failure", "is missing"]),
        ("completion:5=IBV_WC_SUCCESS", ["`IBV_WC_SUCCESS` is not valid here", "IBV_WC_RETRY_EXC_ERR"]),
        ("completion:5=IBV_WC_RETRY_EXC_ER", ["did you mean `RETRY_EXC_ERR`?", ""]),
        ("completion:snd:5=IBV_WC_FATAL_ERR", ["`snd` is not valid here (did you mean `send`?)", "recv"]),
        ("completion:qp=0=IBV_WC_FATAL_ERR", ["`qp=0` is not valid here", "qp=1"]),
        ("port:dwn@2s", ["did you mean `down`?", "port:down@2s..5s"]),
        ("port:down", ["@ and the time such as @2s..5s", "is missing"]),
        ("port:down@2s=EIO", ["`=EIO` is not valid here", "the end of the item"]),
        ("device:fatal@3", ["`3` is not valid here", "@3s"]),
        ("qp:error@3s", ["qp:1:error@3s", "is missing"]),
        ("qp:0:error@3s", ["`0` is not valid here", "qp:1:error@3s"]),
        ("link:flap@1MiB", ["`1MiB` is not valid here", "1MiB for 50ms"]),
        ("seed=x", ["`x` is not valid here", "seed=7"]),
        ("seed=1;seed=2", ["the seed is given twice", ""]),
    ] {
        let error = text.parse::<VerbsPlan>().expect_err(text).to_string();
        for part in parts {
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

#[test]
fn calls_are_counted_for_each_verb() {
    let text = "ibv_reg_mr:3=ENOMEM;ibv_reg_mr:5..6=EIO;ibv_poll_cq:every=3=EIO;ibv_alloc_pd:4..=EAGAIN";
    let mut faults = VerbsFaults::new(plan(text));
    assert_eq!(failing(&mut faults, Verb::ibv_reg_mr, 7), [3, 5, 6]);
    assert_eq!(failing(&mut faults, Verb::ibv_poll_cq, 7), [3, 6]);
    assert_eq!(failing(&mut faults, Verb::ibv_alloc_pd, 6), [4, 5, 6]);
    assert_eq!(failing(&mut faults, Verb::ibv_dereg_mr, 5), [0; 0]);
}

#[test]
fn several_items_of_a_call_add_up() {
    let text = "ibv_reg_mr:2:delay=1us;ibv_reg_mr:1..:delay=2us=EIO;ibv_reg_mr:2=ENOMEM";
    let mut faults = VerbsFaults::new(plan(text));
    faults.on_call(Verb::ibv_reg_mr, Instant::ZERO);
    let second = faults.on_call(Verb::ibv_reg_mr, Instant::ZERO).unwrap();
    assert_eq!(second, Fault { call: 2, delay_ns: 3_000, errno: Errno::find("EIO") });
}

#[test]
fn a_window_selects_calls_by_time() {
    let mut faults = VerbsFaults::new(plan("ibv_poll_cq@2s..5s=EIO;ibv_reg_mr:2@1s=EIO"));
    let times =
        [1_900, 2_000, 4_900, 5_000].map(|time| faults.on_call(Verb::ibv_poll_cq, ms(time)).is_some());
    assert_eq!(times, [false, true, true, false]);
    // The second call comes too early, and the third one is another one.
    let times = [100, 200, 1_500].map(|time| faults.on_call(Verb::ibv_reg_mr, ms(time)).is_some());
    assert_eq!(times, [false; 3]);
}

#[test]
fn chances_depend_on_the_seed_and_not_on_other_calls() {
    let failed = |text: &str, others: bool| {
        let mut faults = VerbsFaults::new(plan(text));
        let mut found = Vec::new();
        for _ in 0..10_000 {
            if others {
                faults.on_call(Verb::ibv_poll_cq, Instant::ZERO);
            }
            found.extend(faults.on_call(Verb::ibv_reg_mr, Instant::ZERO).map(|fault| fault.call));
        }
        found
    };
    let first = failed("ibv_reg_mr:p=1%=EIO;seed=7", false);
    assert!((50..200).contains(&first.len()), "{}", first.len());
    assert_eq!(failed("ibv_reg_mr:p=1%=EIO;ibv_poll_cq:p=50%=EIO;seed=7", true), first);
    assert_ne!(failed("ibv_reg_mr:p=1%=EIO;seed=8", false), first);
    // Two items with equal chances select different calls.
    assert_ne!(failed("ibv_poll_cq:p=1%=EIO;ibv_reg_mr:p=1%=EIO;seed=7", false), first);
}

#[test]
fn a_failed_completion_flushes_the_rest_of_its_queue() {
    let mut faults = VerbsFaults::new(plan("completion:send:qp=2:2=IBV_WC_RETRY_EXC_ERR"));
    let send = |faults: &mut VerbsFaults, key| faults.on_completion(key, WorkQueue::Send, Instant::ZERO);
    faults.created(100);
    faults.created(50);
    let fails = CompletionFate::Fails { number: 2, status: WcStatus::RetryExceededError };
    assert_eq!([send(&mut faults, 100), send(&mut faults, 100)], [None; 2]);
    assert_eq!(faults.on_completion(50, WorkQueue::Receive, Instant::ZERO), None);
    assert_eq!([send(&mut faults, 50), send(&mut faults, 50)], [None, Some(fails)]);
    assert_eq!(send(&mut faults, 50), Some(CompletionFate::Flushed));
    // Receives that completed before the failure have succeeded.
    assert_eq!(faults.on_completion(50, WorkQueue::Receive, Instant::ZERO), None);
    assert_eq!(send(&mut faults, 100), None);
    faults.reset(50);
    assert_eq!(send(&mut faults, 50), None);
    assert_eq!((faults.key_of(2), faults.key_of(3)), (Some(50), None));
    faults.destroyed(50);
    assert_eq!((faults.key_of(2), send(&mut faults, 50)), (None, None));
    // A later queue pair with the same key is another one.
    faults.created(50);
    assert_eq!(faults.key_of(3), Some(50));
}

#[test]
fn a_link_is_down_in_its_windows_and_flaps() {
    let text = "port:down@2s..5s;device:roce1:fatal@3s;link:roce0:flap@1000 for 50ms;link:flap@3000 for 1ms";
    let (mut near, far) = (LinkFaults::new(&plan(text), "roce0"), LinkFaults::new(&plan(text), "roce1"));
    for (time, is_up) in [(0, true), (1_999, true), (2_000, false), (4_999, false), (5_000, true)] {
        assert_eq!((near.is_up(ms(time)), far.is_up(ms(time))), (is_up, is_up), "{time}");
    }
    assert!(!near.has_failed(ms(9_000)) && far.has_failed(ms(3_000)) && !far.has_failed(ms(2_900)));
    assert!(!near.sent(ms(6_000), 999));
    assert!(near.is_up(ms(6_000)) && near.sent(ms(6_000), 1) && !near.is_up(ms(6_000)));
    assert!(!near.is_up(ms(6_049)) && near.is_up(ms(6_050)));
    assert!(near.sent(ms(7_000), 5_000) && !near.sent(ms(7_000), 5_000));
    assert_eq!((near.flapped(), near.down_until()), (2, ms(7_001)));
    assert!(!near.is_empty() && LinkFaults::new(&plan("device:x:fatal@1s"), "roce0").is_empty());
}

#[test]
fn the_timeline_is_in_order() {
    let found = plan("port:down@2s..5s;qp:3:error@4s;device:fatal@1s;port:roce0:down@9s").timeline();
    let expected = [
        (1_000, Occurrence::Device),
        (2_000, Occurrence::Port),
        (4_000, Occurrence::QueuePair(3)),
        (5_000, Occurrence::Port),
        (9_000, Occurrence::Port),
    ];
    assert_eq!(found, expected.map(|(time, what)| Timed { at: ms(time), what }));
}

#[test]
fn every_verb_has_its_name() {
    for (index, verb) in Verb::ALL.iter().enumerate() {
        assert_eq!(*verb as usize, index, "{verb}");
        assert_eq!(Verb::find(verb.name()), Some(*verb));
    }
    assert_eq!(Verb::find("ibv_reg_mr_iova"), Some(Verb::ibv_reg_mr));
    assert!(Verb::ibv_poll_cq.can_fail() && !Verb::rdma_destroy_qp.can_fail());
    assert_eq!(Errno::find("0x1f").map(|errno| errno.to_string()).as_deref(), Some("31"));
    assert_eq!(Errno::find("95").map(|errno| errno.to_string()).as_deref(), Some("EOPNOTSUPP"));
}

proptest! {
    #[test]
    fn no_text_and_no_calls_panic(
        text in "((ibv_reg_mr|completion|port|device|qp|link|seed)?[:@=;.a-z0-9% \n]{0,12}){0,4}",
        calls in proptest::collection::vec((0..Verb::ALL.len(), any::<u64>()), 0..50),
    ) {
        let plan = text.parse::<VerbsPlan>().unwrap_or_default();
        let mut link = LinkFaults::new(&plan, "roce0");
        let mut faults = VerbsFaults::new(plan);
        faults.created(1);
        for (verb, number) in calls {
            let now = Instant::from_nanos(number);
            faults.on_call(Verb::ALL[verb], now);
            faults.on_completion(number % 3, WorkQueue::Send, now);
            link.sent(now, verb);
            assert!(link.is_up(now) || !link.is_empty());
        }
    }
}
