//! Scenarios that use another file. `super::directories` adds those of the simulator.

use super::Seeds;

pub(super) fn add(seeds: &mut Seeds) {
    let star = "[topology]\nkind = \"star\"\nhosts = 3\n";
    let pair = "[[flows]]\nkind = \"pair\"\nfrom = \"a\"\nto = \"b\"\nbytes = \"9KB\"\n";
    let topology = "host a b # two\nswitch s\nlink a s 100Gbps 1us\nlink s b 40Gbps 5us drop=1%,ecn=2%\n";
    let flows = "source,destination,bytes,start\n0,1,5000,0\n1 2 3000 10 # later\n";
    let sizes = "# bytes, per cent\n0 0\n1000 50\n9000 100\n";
    let poisson = "[[flows]]\nkind = \"poisson\"\nload = 0.4\nduration = \"20us\"\nsizes = \"s\"\n";
    let files = [
        ("topology", format!("[topology]\nkind = \"file\"\nfile = \"t\"\n{pair}"), topology),
        ("trace", format!("{star}[[flows]]\nkind = \"trace\"\nfile = \"f\"\n"), flows),
        ("sizes", format!("{star}{poisson}"), sizes),
    ];
    for (name, text, file) in files {
        let text = format!("name = \"{name}\"\n{text}\n%%%\n{file}");
        seeds.insert(("scenario", format!("with-{name}")), text.into_bytes());
    }
}
