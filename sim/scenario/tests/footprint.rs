//! The estimate of the memory of a run, compared with measurements.

use roce_scenario::Scenario;
use roce_testing::allocations;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Returns the lower estimate, the most bytes that the run takes beside the scenario, and the upper estimate.
fn measure(text: &str) -> (u64, u64, u64) {
    let scenario = Scenario::parse(text, &|name| Err(format!("{name} is not here"))).unwrap();
    let estimate = scenario.memory();
    let (most, results) = allocations::most_held(|| {
        let mut simulation = scenario.simulation().unwrap();
        simulation.run_to_end();
        simulation.results()
    });
    assert_eq!(results.incomplete(), 0);
    (estimate.least(), most as u64, estimate.most())
}

const STAR: &str = "name = \"n\"\n[topology]\nkind = \"star\"\n";

/// A run takes at least its fixed memory, and at most the memory of full windows, queues and series. If fixed
/// memory is most of it, the lower estimate must be near: otherwise a run would begin that does not fit.
#[test]
fn the_estimate_is_near_what_runs_take() {
    let hosts = |k: u32| {
        format!(
            "name = \"n\"\n[topology]\nkind = \"fat-tree\"\nk = {k}\n[[flows]]\nkind = \"permutation\"\nbytes = \"1KB\"\n"
        )
    };
    let all_to_all = |hosts: u32, bytes: &str, rest: &str| {
        format!("{STAR}hosts = {hosts}\n{rest}\n[[flows]]\nkind = \"all-to-all\"\nbytes = \"{bytes}\"\n")
    };
    let collective = |algorithm: &str| {
        format!(
            "{STAR}hosts = 48\n[[collective]]\nkind = \"all-reduce\"\nalgorithm = \"{algorithm}\"\nbytes = \"96KB\"\n"
        )
    };
    let selective =
        "[host]\nrecovery = \"selective-repeat:cap=1024\"\n[switch]\npfc = []\nbuffer = \"100KB\"";
    let spread = selective.replace("[switch]", "paths = \"recycle\"\n[switch]");
    let poisson = format!(
        "{STAR}hosts = 16\n[[flows]]\nkind = \"poisson\"\nload = 0.5\nduration = \"2ms\"\nsizes = \"hadoop\"\n"
    );
    let real = format!(
        "payload = \"real\"\n{STAR}hosts = 9\n[[flows]]\nkind = \"incast\"\ndegree = 8\nto = \"h8\"\nbytes = \"2MB\"\n"
    );
    let mut wrong = Vec::new();
    for (name, text, is_certain) in [
        ("128 hosts", hosts(8), true),
        ("1,024 hosts", hosts(16), true),
        ("all to all", all_to_all(96, "1KB", ""), true),
        ("all to all, deep", all_to_all(96, "1KB", "[host]\ndepth = 64"), true),
        ("all to all, selective repeat", all_to_all(64, "20KB", selective), true),
        ("all to all, several paths", all_to_all(64, "20KB", &spread), true),
        ("ring", collective("ring"), true),
        ("direct", collective("direct"), true),
        ("poisson", poisson, false),
        ("real payload", real, false),
    ] {
        let (least, taken, most) = measure(&text);
        println!("{name}: {least} bytes at least, {taken} taken, {most} at most");
        let is_near = !is_certain || taken <= 2 * least;
        if least > taken + taken / 5 || taken > most + most / 5 || !is_near {
            wrong.push(format!("{name}: {least} at least, {taken} taken, {most} at most"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Regression: room for 1,024 packets was reserved at both ends of each flow, 4 GB for these 240 flows.
#[test]
fn selective_repeat_takes_memory_for_early_packets_only() {
    let text = format!(
        "{STAR}hosts = 16\nrate = \"400Gbps\"\n[host]\npath_mtu = 4096\nrecovery = \"selective-repeat:cap=1024\"\n\
         [[flows]]\nkind = \"all-to-all\"\nbytes = \"20KB\"\n"
    );
    let (_, taken, _) = measure(&text);
    assert!(taken < 10_000_000, "{taken}");
}
