//! Several contexts on one address, as in several processes. Each of them is a NIC of its own.

use roce::observe::with_causes;
use roce::verbs::*;

use crate::cm::{at, join, talk};
use crate::common::{own_address, within};
use crate::world::*;

fn on(device: &str) -> Side {
    Side::new(Context::open(device).unwrap(), QpType::Rc)
}

#[test]
fn contexts_on_one_address_connect_to_each_other_and_to_others() {
    within(60, || {
        let [here, there] = [own_address(), own_address()].map(|address| format!("udp:{address}"));
        let hosts = [on(&here), on(&here), on(&here)];
        let peers = [on(&there), on(&there)];
        let listeners = [0, 1].map(|place| {
            let port = 7174 + place as u16;
            hosts[place].context.listen(PortSpace::Tcp, port).unwrap()
        });
        // The third context only reads packets for the others.
        let links = [0, 1].map(|place| join(&peers[place], &hosts[place], &listeners[place]));
        for place in [0, 1] {
            talk(&peers[place], &hosts[place]);
        }
        drop(links);
        // A connection from one context to another on the same address works too.
        let fourth = on(&here);
        let listener = hosts[2].context.listen(PortSpace::Tcp, 7180).unwrap();
        let _link = join(&fourth, &hosts[2], &listener);
        talk(&fourth, &hosts[2]);
        let slots: Vec<_> = hosts.iter().map(|side| side.context.query().limits.process_slot.get()).collect();
        assert_eq!(slots, [1, 2, 3]);
        for side in hosts.iter().chain(&peers) {
            let slot = side.context.query().capabilities.process_slot;
            assert_eq!(ProcessSlot::of(side.qp.number().get()), slot);
        }
    });
}

#[test]
fn a_port_has_one_listener_on_an_address_and_nobody_is_refused_for_the_wrong_reader() {
    within(60, || {
        let [here, there] = [own_address(), own_address()].map(|address| format!("udp:{address}"));
        let [first, second, near] = [on(&here), on(&here), on(&there)];
        let listener = first.context.listen(PortSpace::Tcp, 7174).unwrap();
        let error = second.context.listen(PortSpace::Tcp, 7174).unwrap_err().to_string();
        assert!(error.contains("already has a listener; choose another port"), "{error}");
        let any = second.context.listen(PortSpace::Tcp, 0).unwrap();
        assert_ne!(any.port(), first.context.listen(PortSpace::Tcp, 0).unwrap().port());
        // Both contexts have queue pair 1 now, and either may read a request for the first one.
        for _ in 0..20 {
            let qp = near.another_qp(QpType::Rc);
            let active = near.context.start_connect(at(&first, 7174), &qp, &Default::default()).unwrap();
            drop(listener.accept(Some(PATIENCE)).unwrap());
            drop(active);
        }
        drop(listener);
        let listener = second.context.listen(PortSpace::Tcp, 7174).unwrap();
        let _link = join(&near, &second, &listener);
        talk(&near, &second);
        // Nothing listens on that port, and one of the contexts rejects the request.
        let qp = near.another_qp(QpType::Rc);
        let refused = near.context.connect(at(&first, 9), &qp, &Default::default()).unwrap_err();
        assert!(matches!(refused, ConnectionError::Rejected { .. }), "{refused}");
    });
}

#[test]
fn another_slot_than_the_devices_is_refused() {
    let device = format!("udp:{}", own_address());
    let nine = ProcessSlot::new(9).unwrap();
    let error = Context::builder().process_slot(nine).open(&device).unwrap_err();
    let error = with_causes(&error).to_string();
    assert!(error.contains("has slot 1") && error.contains("share=off"), "{error}");
    let alone = Context::builder().process_slot(nine).open(&format!("{device},share=off")).unwrap();
    assert_eq!(alone.query().limits.process_slot, nine);
}
