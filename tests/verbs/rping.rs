//! rping's ping-pong between two contexts, over connections of connection management.

use roce::device::OpenOptions;
use roce::verbs::*;
use roce_exchange::ToolError;
use roce_fault::FaultInjector;
use roce_measure::rping::{
    MAX_PING, MIN_PING, RPING_PORT, RpingPlan, client as rping_client, serve as rping_serve,
};

use crate::common::within;
use crate::world::*;

fn plan(count: u64, size: usize) -> RpingPlan {
    RpingPlan { count, size, verify: true, path_mtu: PathMtu::Mtu1024 }
}

/// Runs rping; returns how many pings each end saw.
fn play(near: &Context, far: &Context, plan: &RpingPlan) -> (Result<u64, ToolError>, Result<u64, ToolError>) {
    let listener = far.listen(PortSpace::Tcp, RPING_PORT).unwrap();
    let server = far.address().unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let request = listener.accept(Some(PATIENCE)).unwrap();
            let mut seen = 0;
            let served = rping_serve(far, request, &mut |ping| {
                assert!(ping.starts_with(format!("rdma-ping-{seen}: ").as_bytes()));
                seen += 1;
            });
            served.inspect(|count| assert_eq!(*count, seen))
        });
        let mut back = 0;
        let played = rping_client(near, server, RPING_PORT, plan, &mut |ping| {
            assert!(ping.starts_with(format!("rdma-ping-{back}: ").as_bytes()));
            assert_eq!(ping.len(), plan.size);
            back += 1;
        });
        (played.map(|()| back), serving.join().unwrap())
    })
}

#[test]
fn pings_of_every_size_on_every_wire() {
    within(60, || {
        for wire in Wire::ALL {
            for size in [MIN_PING, 64, 1024, 5000, MAX_PING] {
                let Some((near, far)) = wire.open() else { continue };
                let (played, served) = play(&near, &far, &plan(20, size));
                assert_eq!((played.unwrap(), served.unwrap()), (20, 20), "{wire:?}, {size} bytes");
            }
        }
    });
}

#[test]
fn a_thousand_pings() {
    within(60, || {
        let (near, far) = Wire::UdpV4.open().unwrap();
        let (played, served) = play(&near, &far, &plan(1_000, 64));
        assert_eq!((played.unwrap(), served.unwrap()), (1_000, 1_000));
    });
}

#[test]
fn pings_over_a_lossy_wire() {
    within(120, || {
        let lossy = |seed| {
            Context::builder().options(OpenOptions {
                transmit_faults: Some(FaultInjector::new("drop=2%".parse().unwrap(), seed)),
                ..OpenOptions::default()
            })
        };
        let (near, far) = Wire::UdpV4.open_with(lossy(5), lossy(6)).unwrap();
        let (played, _) = play(&near, &far, &plan(30, 3000));
        assert_eq!(played.unwrap(), 30);
    });
}
