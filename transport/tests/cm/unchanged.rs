//! A call that a manager refuses changes only a counter, in any state and for any reason.

use roce_packet::Qpn;
use roce_packet::mad::{CmTimeout, CommId, RejReason, ServiceId, SidrStatus, TransportService};
use roce_transport::Instant;
use roce_transport::cm::{CmAccepts, CmConfig, CmConnect, CmError, CmListen, CmResolve, ConnectionManager};

use crate::table::{Rig, ways};
use crate::world::{PASSIVE, SERVICE, offer, path, question, request};

/// Returns the debug text of the manager without the counters, because refusals are counted.
fn text(manager: &ConnectionManager) -> String {
    let text = format!("{manager:#?}");
    let (before, counters) = text.split_once("counters: CmCounters {").expect("the counters are shown");
    let (_, after) = counters.split_once('}').expect("their end is shown");
    format!("{before}{after}")
}

/// Makes every call, for the connection `id`, with private data of this length.
fn calls(manager: &mut ConnectionManager, now: Instant, id: CommId, len: usize) -> Vec<(&'static str, bool)> {
    type Call<'a> = (&'static str, Box<dyn Fn(&mut ConnectionManager) -> Result<(), CmError> + 'a>);
    let data = vec![7; len];
    let mixed = roce_packet::Path { destination: "2001:db8::1".parse().unwrap(), ..path(PASSIVE) };
    let connect = CmConnect { private_data: &data, ..request(0x33) };
    let resolve = CmResolve { private_data: &data, ..question() };
    let calls: Vec<Call<'_>> = vec![
        ("accept", Box::new(|manager| manager.accept(now, id, &offer(0x44), &data).map(|_| ()))),
        ("delay", Box::new(|manager| manager.delay(now, id, CmTimeout::new(10)))),
        ("ready", Box::new(|manager| manager.ready(now, id, &data))),
        ("reject", Box::new(|manager| manager.reject(now, id, RejReason::CONSUMER, &data))),
        ("disconnect", Box::new(|manager| manager.disconnect(now, id, &data))),
        ("first packet", Box::new(|manager| manager.notify_first_packet(now, id))),
        ("answer", Box::new(|manager| manager.answer(now, id, SidrStatus::VALID, (Qpn::new(5), 1), &data))),
        ("preview", Box::new(|manager| manager.preview(id, &offer(0x44)).map(|_| ()))),
        ("connect", Box::new(|manager| manager.connect(now, &connect).map(|_| ()))),
        (
            "connect UD",
            Box::new(|manager| {
                manager.connect(now, &CmConnect { transport: TransportService::Rd, ..connect }).map(|_| ())
            }),
        ),
        (
            "connect to another family",
            Box::new(|manager| manager.connect(now, &CmConnect { path: mixed, ..connect }).map(|_| ())),
        ),
        ("resolve", Box::new(|manager| manager.resolve(now, &resolve).map(|_| ()))),
        (
            "resolve in another family",
            Box::new(|manager| manager.resolve(now, &CmResolve { path: mixed, ..resolve }).map(|_| ())),
        ),
        (
            "listen",
            Box::new(|manager| {
                manager.listen(SERVICE, CmListen { accepts: CmAccepts::Both, backlog: 1, ip_cm: true })
            }),
        ),
        ("unlisten", Box::new(|manager| manager.unlisten(ServiceId(1)))),
    ];
    // A call advances the time, whether it succeeds or not.
    manager.handle_timeout(now);
    let mut outcomes = Vec::new();
    for (name, call) in calls {
        let before = text(manager);
        let refused = call(manager).is_err();
        if refused {
            let after = text(manager);
            let differs = before.lines().zip(after.lines()).find(|(before, after)| before != after);
            assert_eq!(differs, None, "{name} with {len} bytes was refused");
            assert_eq!(before.len(), after.len(), "{name} with {len} bytes was refused");
        }
        outcomes.push((name, refused));
    }
    outcomes
}

#[test]
fn a_refused_call_has_changed_nothing_in_any_state() {
    let mut refused = std::collections::BTreeSet::new();
    let mut all = std::collections::BTreeSet::new();
    for (_, ways) in ways() {
        for way in ways {
            for (len, stranger) in [(0, false), (1_000, false), (0, true)] {
                let mut rig = Rig::new();
                way.iter().for_each(|step| rig.apply(*step));
                let id = if stranger { CommId(0xdead_beef) } else { rig.id };
                for (name, was_refused) in calls(&mut rig.manager, rig.now, id, len) {
                    all.insert(name);
                    if was_refused {
                        refused.insert(name);
                    }
                }
            }
        }
    }
    assert_eq!(refused, all, "calls that were never refused");
}

#[test]
fn a_full_manager_refuses_and_has_changed_nothing() {
    let config = CmConfig { max_connections: 1, ..CmConfig::new([1; 32], 1) };
    let mut manager = ConnectionManager::new(config);
    let now = Instant::from_nanos(1);
    manager.connect(now, &request(0x33)).unwrap();
    let before = text(&manager);
    assert_eq!(manager.connect(now, &request(0x34)), Err(CmError::TooManyConnections { limit: 1 }));
    assert_eq!(manager.resolve(now, &question()), Err(CmError::TooManyConnections { limit: 1 }));
    assert_eq!(before, text(&manager));
}
