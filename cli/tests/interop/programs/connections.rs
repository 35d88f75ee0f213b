//! Many connections are established and ended; afterwards neither side has more objects than before.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use roce::device::udp::UdpSpec;
use roce::verbs::*;
use roce_measure::rping::{RpingPlan, client as rping_client};
use roce_transport::EngineConfig;

use super::{Detached, ask_guest, await_listener, check, cmatose, in_guest};
use crate::case::{Family, Scope};
use crate::common::Running;
use crate::setting::Setting;

/// Number of objects of each kind that fit into our device, so that a leak exhausts them soon.
const ROOM: usize = 24;
/// Number of simultaneous connections of one process in the guest.
const AT_ONCE: usize = 10;
const RPING_PORT: u16 = 7174;

fn small(config: &mut EngineConfig) {
    config.max_qp = ROOM;
    config.max_cq = ROOM;
    config.max_pd = ROOM;
    config.max_mr = ROOM;
}

fn connections(setting: &Setting) -> usize {
    match setting.scope {
        Scope::All if !setting.is_lossy() => 1000,
        _ => 100,
    }
}

/// Returns how many protection domains, memory regions, completion queues and queue pairs can still be
/// created.
fn free_objects(context: &Context) -> Result<[usize; 4]> {
    fn count<T>(make: impl FnMut() -> Option<T>) -> usize {
        std::iter::from_fn(make).take(ROOM + 1).collect::<Vec<T>>().len()
    }
    let pds = count(|| context.alloc_pd().ok());
    let cqs = count(|| context.create_cq(4, None).ok());
    let pd = context.alloc_pd()?;
    let regions = count(|| pd.allocate(64, Access::LOCAL_WRITE).ok());
    let cq = context.create_cq(4, None)?;
    let options = QueuePairOptions::new(QpType::Rc, &cq);
    let qps = count(|| pd.create_qp(&options).ok());
    Ok([pds, regions, cqs, qps])
}

fn open_descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// Returns the objects of the guest's RDMA device: protection domains, queue pairs, connection identifiers
/// and so on.
fn resources_of_guest(setting: &Setting) -> Result<String> {
    Ok(ask_guest(setting, "rdma resource show")?.trim().to_owned())
}

/// The objects of both sides.
#[derive(Clone, Debug)]
struct Inventory {
    free_objects: [usize; 4],
    descriptors: usize,
    of_guest: String,
    descriptors_of_guest: String,
}

impl Inventory {
    /// Counts the objects. `program` is a program in the guest that runs all the time.
    fn take(setting: &Setting, context: &Context, program: Option<&str>) -> Result<Self> {
        let descriptors_of_guest = match program {
            None => String::new(),
            Some(program) => {
                let mut command = in_guest(setting, 30, "sh -c");
                command.arg(format!("ls /proc/$(pidof {program} | cut -d ' ' -f 1)/fd | wc -l"));
                let finished = Running::start(&mut command).finish(60);
                check("counting descriptors in the guest", &finished)?;
                finished.stdout.trim().to_owned()
            }
        };
        Ok(Self {
            free_objects: free_objects(context)?,
            descriptors: open_descriptors()?,
            of_guest: resources_of_guest(setting)?,
            descriptors_of_guest,
        })
    }

    fn is_as(&self, before: &Self) -> bool {
        // A UDP device keeps some sockets, one for each source port. The test makes more connections than
        // that.
        let descriptors = before.descriptors..=before.descriptors + UdpSpec::SOURCE_PORTS;
        let guest = |inventory: &Self| (inventory.of_guest.clone(), inventory.descriptors_of_guest.clone());
        self.free_objects == before.free_objects
            && descriptors.contains(&self.descriptors)
            && guest(self) == guest(before)
    }

    /// Waits until the last connections have ended.
    fn stays(&self, setting: &Setting, context: &Context, program: Option<&str>) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let now = Self::take(setting, context, program)?;
            if now.is_as(self) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "there was {self:?} and there is {now:?}");
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Connects, pings once, and disconnects, many times. The server in the guest is the same rping all the time.
pub(crate) fn we_ask(setting: &Setting) -> Result<String> {
    let theirs = setting.addresses(Family::V4).theirs;
    let context = setting.open_tuned(Family::V4, 41, small)?;
    let count = connections(setting);
    let line = format!("rping -s -P -a {theirs} -p {RPING_PORT}");
    let _server = Detached::start(setting, 1500, &line)?;
    await_listener(setting)?;
    let plan = RpingPlan { count: 1, size: 64, verify: true, path_mtu: PathMtu::Mtu1024 };
    let connect = |index: usize| {
        rping_client(&context, theirs, RPING_PORT, &plan, &mut |_| {})
            .with_context(|| format!("connection {index}"))
    };
    // The first connections create objects that stay: queue pair 1, stacks of threads.
    (0..5).try_for_each(connect)?;
    std::thread::sleep(Duration::from_secs(2));
    let before = Inventory::take(setting, &context, Some("rping"))?;
    (0..count).try_for_each(connect)?;
    before.stays(setting, &context, Some("rping"))?;
    Ok(summary(count, &before))
}

/// Processes in the guest connect to us, with several connections at once, and are disconnected.
pub(crate) fn they_ask(setting: &Setting) -> Result<String> {
    let plan = cmatose::Plan { connections: AT_ONCE, messages: 2, bytes: 100 };
    let context = setting.open_tuned(Family::V4, 42, small)?;
    let listener = context.listen(PortSpace::Tcp, cmatose::PORT)?;
    let line = format!("ucmatose -s {} {}", setting.addresses(Family::V4).ours, plan.options());
    let round = |round: usize| {
        let client = Running::start(&mut in_guest(setting, 120, &line));
        cmatose::serve(&context, &listener, plan).with_context(|| format!("round {round}"))?;
        check("ucmatose in the guest", &client.finish(140))
    };
    round(0)?;
    std::thread::sleep(Duration::from_secs(2));
    let before = Inventory::take(setting, &context, None)?;
    let rounds = connections(setting) / AT_ONCE;
    (1..=rounds).try_for_each(round)?;
    before.stays(setting, &context, None)?;
    Ok(summary(rounds * AT_ONCE, &before))
}

fn summary(connections: usize, before: &Inventory) -> String {
    format!(
        "{connections} connections established and closed; resources in the guest, as before: {}",
        before.of_guest
    )
}
