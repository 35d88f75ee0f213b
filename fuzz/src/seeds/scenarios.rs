//! Scenarios that use another file. `super::directories` adds those of the simulator.

use super::Seeds;

pub(super) fn add(seeds: &mut Seeds) {
    let star = "[topology]\nkind = \"star\"\nhosts = 3\n";
    let pair = "[[flows]]\nkind = \"pair\"\nfrom = \"a\"\nto = \"b\"\nbytes = \"9KB\"\n";
    let topology = "host a b # two\nswitch s\nlink a s 100Gbps 1us\nlink s b 40Gbps 5us drop=1%,ecn=2%\n";
    let flows = "source,destination,bytes,start\n0,1,5000,0\n1 2 3000 10 # later\n";
    let sizes = "# bytes, per cent\n0 0\n1000 50\n9000 100\n";
    let poisson = "[[flows]]\nkind = \"poisson\"\nload = 0.4\nduration = \"20us\"\nsizes = \"s\"\n";
    let imported = |kind: &str| format!("{star}[[workload]]\nkind = \"{kind}\"\nfile = \"f\"\n");
    let goal = "num_ranks 2\nrank 0 {\na: calc 100 cpu 1\nb: send 900b to 1 tag 3\nb requires a\n}\nrank 1 {\nc: recv 900b from 0 tag 3 ; d: calc 5 ; d irequires c\n}\n";
    let connections = "Nodes 3\nConnections 2\nTriggers 1\n0->1 id 1 start 5.0 size 900 send_done_trigger 1\n2->0 id 2 trigger 1 size 700\ntrigger id 1 barrier count 1\n";
    let simai = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 ep: 1 pp: 1 all_gpus: 2\n1\nlayer -1 10 ALLREDUCE 900 5 NONE 0 5 NONE 0 1\n";
    let chakra = "base64:BwoFMC4wLjQGCAEYBDgCJggCGAcqAQFSDQoJY29tbV90eXBlSABSDgoJY29tbV9zaXplSIQH\n";
    let tree = "Nodes 4\nTiers 2\nPodsize 4\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 2\nRadix_Up 1\nOversubscribed 2\nDownlink_Latency_ns 10\nTier 1\nDownlink_speed_Gbps 100\nRadix_Down 2\nDownlink_Latency_ns 10\n";
    let permutation = "[[flows]]\nkind = \"permutation\"\nbytes = 900\n";
    let files = [
        ("topology", format!("[topology]\nkind = \"file\"\nfile = \"t\"\n{pair}"), topology),
        ("trace", format!("{star}[[flows]]\nkind = \"trace\"\nfile = \"f\"\n"), flows),
        ("sizes", format!("{star}{poisson}"), sizes),
        ("connections", imported("connections"), connections),
        ("goal", imported("goal"), goal),
        ("simai", imported("simai"), simai),
        ("chakra", imported("chakra"), chakra),
        ("htsim", format!("[topology]\nkind = \"htsim\"\nfile = \"t\"\n{permutation}"), tree),
    ];
    for (name, text, file) in files {
        let text = format!("name = \"{name}\"\n{text}\n%%%\n{file}");
        seeds.insert(("scenario", format!("with-{name}")), text.into_bytes());
    }
}
