//! The plots of a run.

use std::collections::BTreeMap;

use roce_sim::net::{MeasureSettings, RatePoint, Results, Time};

use roce_tools::plot::{Chart, Line, MOST_LINES};

/// The plots with their file names; empty plots are left out.
pub(super) fn charts(results: &Results, measure: &MeasureSettings) -> Vec<(&'static str, Chart)> {
    let chart = |title: &str, y: &str, lines| Chart {
        title: title.to_owned(),
        x_label: "time, ms".to_owned(),
        y_label: y.to_owned(),
        lines,
    };
    let mut all = vec![
        (
            "rates",
            chart(
                "Payload sent, by flow",
                "Gb/s",
                flow_lines(results, |point| Some(point.goodput_bps / 1e9)),
            ),
        ),
        (
            "allowed",
            chart(
                "Rate that congestion control allows",
                "Gb/s",
                flow_lines(results, |point| Some(point.rate_bps / 1e9).filter(|rate| rate.is_finite())),
            ),
        ),
        ("alpha", chart("alpha: estimate of congestion", "", flow_lines(results, |point| point.alpha))),
        ("queues", chart("Longest queues", "KB", queue_lines(results, measure))),
    ];
    let times = results.completion_times();
    if times.len() > 2 {
        // The share of all flows: the curve stays below 100 if some flows do not complete.
        let count = results.flows.len() as f64;
        let points =
            (1..).zip(&times).map(|(number, time)| (ms(*time), 100.0 * f64::from(number) / count)).collect();
        let lines = vec![Line { name: "flows".to_owned(), points }];
        let (x_label, y_label) = ("completion time, ms".to_owned(), "percent of flows".to_owned());
        all.push(("completion", Chart { title: "Completion times".to_owned(), x_label, y_label, lines }));
    }
    all.retain(|(_, chart)| !chart.lines.is_empty());
    all
}

fn flow_lines(results: &Results, value: impl Fn(&RatePoint) -> Option<f64>) -> Vec<Line> {
    let mut lines: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for point in &results.rates {
        if let Some(value) = value(point) {
            lines.entry(point.flow).or_default().push((ms(point.time), value));
        }
    }
    lines.into_iter().map(|(flow, points)| Line { name: format!("flow {flow}"), points }).collect()
}

/// The queues of the ports with the longest queues, over the time in which they were sampled. Samples of empty queues
/// are not stored; the line is zero there.
fn queue_lines(results: &Results, measure: &MeasureSettings) -> Vec<Line> {
    let mut ports: Vec<usize> =
        (0..results.ports.len()).filter(|port| results.ports[*port].queue.count() > 0).collect();
    ports.sort_by_key(|port| std::cmp::Reverse(results.ports[*port].stats.queue_most));
    ports.truncate(MOST_LINES);
    let known = known_queues(results, measure);
    let line = |port: &usize| {
        let samples = results.queues.iter().filter(|point| point.port as usize == *port);
        let samples = samples.map(|point| (point.time, point.bytes));
        let points = with_zeros(samples, known, measure.interval);
        let points = points.into_iter().map(|(time, bytes)| (ms(time), bytes as f64 / 1e3)).collect();
        Line { name: results.ports[*port].name.clone(), points }
    };
    ports.iter().map(line).collect()
}

/// The interval in which a queue without samples is known to be empty.
fn known_queues(results: &Results, measure: &MeasureSettings) -> (Time, Time) {
    let interval = measure.interval.as_ps().max(1);
    // The first sample. Without a warm-up, this is the start, at which all queues are empty.
    let begin = Time::from_ps(measure.warm_up.as_ps().div_ceil(interval).saturating_mul(interval));
    let is_cut = results.points_left_out > 0 && results.queues.len() >= measure.most_points;
    let end = match results.queues.last() {
        // The last sample may lack some ports.
        Some(last) if is_cut => last.time.since(measure.interval),
        None if is_cut => begin,
        _ => results.end,
    };
    (begin, end)
}

/// The samples of one queue, with zeros for samples that were not stored.
fn with_zeros(
    samples: impl Iterator<Item = (Time, u64)>,
    (begin, end): (Time, Time),
    interval: Time,
) -> Vec<(Time, u64)> {
    let mut points = Vec::new();
    let mut next = begin;
    for (time, bytes) in samples {
        if time > next {
            points.extend([(next, 0), (time.since(interval), 0)]);
        }
        points.push((time, bytes));
        next = time + interval;
    }
    if end >= next {
        points.extend([(next, 0), (end, 0)]);
    }
    points.dedup();
    points
}

fn ms(time: Time) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use roce_sim::net::Simulation;
    use roce_sim::scenario::Scenario;

    use super::*;

    /// Two bursts into one port, with a gap between them.
    const BURSTS: &str = r#"
        name = "bursts"
        [topology]
        kind = "star"
        hosts = 3
        [[flows]]
        kind = "incast"
        degree = 2
        to = "h2"
        bytes = "500KB"
        [[flows]]
        kind = "incast"
        degree = 2
        to = "h2"
        bytes = "500KB"
        start = "200us"
    "#;

    fn run(text: &str) -> (Results, MeasureSettings) {
        let scenario = Scenario::parse(text, &|_| Err("there are no files".to_owned())).unwrap();
        let measure = scenario.settings.measure.clone();
        let mut simulation = Simulation::new(&scenario.topology, &scenario.flows, scenario.settings).unwrap();
        simulation.run_to_end();
        (simulation.results(), measure)
    }

    /// The line of the port that receives the bursts.
    fn longest_queue(measure: &str) -> (Vec<(f64, f64)>, Results) {
        let (results, measure) = run(&format!("{BURSTS}[measure]\n{measure}"));
        let line = queue_lines(&results, &measure).swap_remove(0);
        assert!(line.points.is_sorted_by(|a, b| a.0 < b.0), "{:?}", line.points);
        (line.points, results)
    }

    #[test]
    fn a_queue_is_empty_before_and_between_bursts() {
        let (points, results) = longest_queue("");
        assert_eq!(points.first(), Some(&(0.0, 0.0)));
        let between = points.iter().filter(|(time, _)| (0.085..=0.2).contains(time));
        assert!(
            between.clone().count() >= 2 && between.clone().all(|(_, queue)| *queue == 0.0),
            "{points:?}"
        );
        assert!(points.iter().any(|(time, queue)| *time > 0.2 && *queue > 0.0), "{points:?}");
        assert!(points.last().unwrap().0 <= ms(results.end));
    }

    #[test]
    fn a_queue_plot_starts_with_the_measurement() {
        let (points, _) = longest_queue("warm_up = \"205us\"");
        assert_eq!(points[0].0, ms(Time::from_us(210)), "{points:?}");
        assert!(points[0].1 > 0.0, "the second burst is under way: {points:?}");
    }

    #[test]
    fn a_queue_plot_ends_with_the_last_stored_point() {
        let (points, results) = longest_queue("points = 5");
        assert!(results.points_left_out > 0);
        let last = ms(results.queues.last().unwrap().time);
        assert!(last < 0.1 && points.iter().all(|(time, _)| *time <= last), "{points:?}");
    }

    /// The fourth flow would take 80 ms.
    #[test]
    fn incomplete_flows_keep_completion_below_100_percent() {
        let pair =
            |bytes| format!("[[flows]]\nkind = \"pair\"\nfrom = \"h0\"\nto = \"h1\"\nbytes = \"{bytes}\"\n");
        let flows = ["10KB", "20KB", "30KB", "1GB"].map(pair).concat();
        let head = "name = \"stuck\"\nstop = \"1ms\"\n[topology]\nkind = \"point-to-point\"\n";
        let (results, measure) = run(&format!("{head}{flows}"));
        assert_eq!(results.incomplete(), 1);
        let charts = charts(&results, &measure);
        let (_, chart) = charts.iter().find(|(name, _)| *name == "completion").unwrap();
        let shares: Vec<f64> = chart.lines[0].points.iter().map(|(_, share)| *share).collect();
        assert_eq!(shares, [25.0, 50.0, 75.0]);
    }
}
