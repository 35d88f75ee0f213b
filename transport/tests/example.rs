//! The example of an algorithm of one's own does what the guide says of it.

#[path = "../examples/own_congestion_control/main.rs"]
mod own_congestion_control;

#[test]
fn the_example_finds_the_rate_of_the_link() {
    let seen = own_congestion_control::run();
    assert_eq!(seen[0], (0, 40e9), "it starts at line rate");
    // After 2 ms it swings about the 10 Gb/s of the link.
    let later: Vec<f64> = seen.iter().filter(|(micros, _)| *micros > 2_000).map(|(_, rate)| *rate).collect();
    let mean = later.iter().sum::<f64>() / later.len() as f64;
    assert!((6e9..11e9).contains(&mean), "{mean}");
    let (least, most) =
        later.iter().fold((f64::MAX, 0.0_f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
    assert!(least > 2e9 && most < 15e9, "{least} to {most}");
    assert!(most > 1.5 * least, "it saws");
}
