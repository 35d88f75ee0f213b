//! The figures of a run.

use std::collections::BTreeMap;

use roce_plot::{Axes, Axis, Band, Chart, Figure, Line, MOST_LINES};
use roce_sim::net::{MeasureSettings, PauseStep, RatePoint, Results, Time, TotalPoint};

use super::means::{means, place, remark, span, with_gaps};
use super::names::{algorithm_alone, seeds};
use super::sweeps::{SIZES, SLOWDOWN};
use crate::data::distribution::Distribution;
use crate::data::summary::{OfSizes, Summary};

/// Maximum number of separate lines. More lines are shown as their median and a band.
const MOST_FLOWS: usize = 6;

/// Returns the figures with their file names. Empty figures are left out.
pub(crate) fn figures(
    results: &Results,
    measure: &MeasureSettings,
    summary: &Summary,
) -> Vec<(&'static str, Figure)> {
    let allowed =
        of_flows(results, measure, ["Rate that congestion control allows", "rate, Gb/s"], |point| {
            Some(point.rate_bps / 1e9).filter(|rate| rate.is_finite())
        });
    let alpha = of_flows(results, measure, ["alpha: estimate of congestion", "alpha"], |point| point.alpha);
    let sent = total(results, ["Payload sent, all flows together", "payload rate, Gb/s"], |point| {
        Some(point.goodput_bps / 1e9)
    });
    let jain = ["Jain's index of the rates of the flows that run", "Jain's index"];
    let charts = [
        ("rates", rates(results, measure)),
        ("allowed", allowed),
        ("alpha", alpha),
        ("total", sent),
        ("jain", total(results, jain, |point| point.jain)),
        ("queues", queues(results, measure)),
        ("pauses", pauses(results)),
        ("completion", completion(results)),
    ];
    let figures = charts.into_iter().map(|(name, chart)| (name, figure(chart, summary)));
    let mut all: Vec<_> = figures.chain([("slowdown", slowdown(summary))]).collect();
    all.retain(|(_, figure)| !figure.charts.is_empty());
    all
}

/// Returns a chart with the caption of its run.
pub(crate) fn figure(chart: Chart, summary: &Summary) -> Figure {
    Figure { caption: caption(summary), ..Figure::from(chart) }.without_empty()
}

/// Returns the words that identify a run.
fn caption(summary: &Summary) -> String {
    let set: Vec<String> = summary.set.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let set = if set.is_empty() { String::new() } else { format!(", with {}", set.join(" ")) };
    let algorithm = algorithm_alone(&summary.congestion);
    format!("Scenario {}, {}, {algorithm}{set}.", summary.scenario, seeds(vec![summary.seed]))
}

fn over_time(title: &str, y_label: &str, lines: Vec<Line>) -> Chart {
    let (title, y_label) = (title.to_owned(), y_label.to_owned());
    let mut chart = Chart { title, x_label: "time, ms".to_owned(), y_label, lines, ..Chart::default() };
    chart.cut_peaks();
    chart
}

/// Returns the payload that flows sent over time.
pub(crate) fn rates(results: &Results, measure: &MeasureSettings) -> Chart {
    of_flows(results, measure, ["Payload sent, by flow", "payload rate, Gb/s"], |point| {
        Some(point.goodput_bps / 1e9)
    })
}

/// Returns a line for each flow, or the median of the running flows and a band with eight of ten of them. If
/// there are many samples, the chart shows means.
fn of_flows(
    results: &Results,
    measure: &MeasureSettings,
    [title, y_label]: [&str; 2],
    value: impl Fn(&RatePoint) -> Option<f64>,
) -> Chart {
    let mut lines: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for point in &results.rates {
        if let Some(value) = value(point) {
            lines.entry(point.flow).or_default().push((ms(point.time), value));
        }
    }
    let interval = ms(measure.interval);
    if lines.len() <= MOST_FLOWS {
        let line = |(flow, points): (u32, Vec<(f64, f64)>)| {
            let points = with_gaps(&points, |point| point.0, 1.5 * interval, |time| (time, f64::NAN));
            Line { name: format!("flow {flow}"), points }
        };
        return over_time(title, y_label, lines.into_iter().map(line).collect());
    }
    let end = results.rates.last().map_or(0.0, |point| ms(point.time));
    let span = span(interval, end);
    let width = span.unwrap_or(interval);
    let mut times: BTreeMap<i64, (f64, Vec<f64>)> = BTreeMap::new();
    for points in lines.values() {
        let averaged = span.map(|span| means(points, span));
        for (time, value) in averaged.as_deref().unwrap_or(points) {
            let (last, values) = times.entry(place(*time, width)).or_default();
            *last = last.max(*time);
            values.push(*value);
        }
    }
    let series = times.into_values().map(|(time, mut values)| {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        (time, [0.5, 0.1, 0.9].map(at))
    });
    let series: Vec<(f64, [f64; 3])> = series.collect();
    let series = with_gaps(&series, |point| point.0, 1.5 * width, |time| (time, [f64::NAN; 3]));
    let title = format!("{title}: {} flows{}", lines.len(), remark(span));
    let median = series.iter().map(|(time, [median, ..])| (*time, *median)).collect();
    let band = series.iter().map(|(time, [_, low, high])| (*time, *low, *high)).collect();
    let line = Line { name: "median of those that run".to_owned(), points: median };
    with_band(&title, y_label, vec![line], band)
}

fn with_band(title: &str, y_label: &str, lines: Vec<Line>, band: Vec<(f64, f64, f64)>) -> Chart {
    let mut chart = over_time(title, y_label, lines);
    if chart.top.is_none() {
        // The peaks may be only in the band.
        let highest: Vec<(f64, f64)> = band.iter().map(|(x, _, high)| (*x, *high)).collect();
        let mut of_band = over_time("", "", vec![Line { name: String::new(), points: highest }]);
        of_band.lines.clear();
        chart.top = of_band.top;
    }
    chart.bands = vec![Band { name: "10 to 90 % of them".to_owned(), points: band, ..Band::default() }];
    chart
}

fn total(results: &Results, [title, y_label]: [&str; 2], value: fn(&TotalPoint) -> Option<f64>) -> Chart {
    let points: Vec<(f64, f64)> =
        results.totals.iter().map(|point| (ms(point.time), value(point).unwrap_or(f64::NAN))).collect();
    let is_measured = points.iter().any(|(_, value)| value.is_finite());
    let line = Line { name: "all flows".to_owned(), points };
    let lines = if results.flows.len() > 1 && is_measured { vec![line] } else { Vec::new() };
    over_time(title, y_label, lines)
}

/// Returns the share of completed flows over time. The curve stays below 100 if some flows do not complete.
pub(crate) fn completion(results: &Results) -> Chart {
    let times = results.completion_times();
    let count = results.flows.len() as f64;
    let points: Vec<(f64, f64)> =
        (1..).zip(&times).map(|(number, time)| (ms(*time), 100.0 * f64::from(number) / count)).collect();
    let lines = if points.len() > 2 { vec![Line { name: "flows".to_owned(), points }] } else { Vec::new() };
    let mut chart = Chart {
        title: "Completion times".to_owned(),
        x_label: "completion time, ms".to_owned(),
        y_label: "percent of flows".to_owned(),
        lines,
        steps: true,
        ..Chart::default()
    };
    // The sizes of flows often differ by powers of ten, and so do their times.
    chart.fit_axes();
    chart
}

/// Returns the slowdown by size and the number of flows of each range, if flows differ in size.
pub(crate) fn slowdown(summary: &Summary) -> Figure {
    let ranges = &summary.slowdown_by_size;
    let line = |name: &str, of: fn(&Distribution) -> f64| {
        let point = |range: &OfSizes| Some((range.to_bytes? as f64, of(&range.slowdown)));
        Line { name: name.to_owned(), points: ranges.iter().filter_map(point).collect() }
    };
    let chart = |title: &str, y_label: &str, lines: Vec<Line>| Chart {
        title: title.to_owned(),
        x_label: SIZES.to_owned(),
        y_label: y_label.to_owned(),
        lines: if ranges.len() > 1 { lines } else { Vec::new() },
        axes: Axes { x: Axis::Sizes, y: Axis::Log },
        ..Chart::default()
    };
    let lines = vec![
        line("median", |of| of.p50),
        line("95th percentile", |of| of.p95),
        line("99th percentile", |of| of.p99),
    ];
    let counts = vec![line("", |of| of.count as f64)];
    let mut counts = Chart { is_low: true, ..chart("Flows in each range", "flows", counts) };
    counts.axes.y = Axis::Linear;
    counts.fit_axes();
    let charts = vec![chart("Slowdown of completion times", SLOWDOWN, lines), counts];
    Figure { charts, columns: 2, caption: caption(summary) }.without_empty()
}

/// Returns the queues over the time in which they were sampled: a line for each port. If there are many
/// ports, the lines are the longest port, the longest at each time, and the median with a band.
pub(crate) fn queues(results: &Results, measure: &MeasureSettings) -> Chart {
    let mut ports: Vec<usize> =
        (0..results.ports.len()).filter(|port| results.ports[*port].queue.count() > 0).collect();
    ports.sort_by_key(|port| std::cmp::Reverse(results.ports[*port].stats.queue_most));
    let count = ports.len();
    if count <= MOST_FLOWS {
        return over_time("Queues", QUEUE, queue_lines(results, measure, &ports));
    }
    let mut samples: BTreeMap<Time, Vec<u64>> = BTreeMap::new();
    for point in &results.queues {
        samples.entry(point.time).or_default().push(point.bytes);
    }
    for lengths in samples.values_mut() {
        lengths.sort_unstable();
    }
    // Ports without a sample had an empty queue.
    let at = |lengths: &Vec<u64>, share: f64| {
        let place = ((count - 1) as f64 * share).round() as usize + lengths.len();
        place.checked_sub(count).and_then(|place| lengths.get(place)).copied().unwrap_or(0)
    };
    let known = known_queues(results, measure);
    let series = |share: f64| {
        let lengths = samples.iter().map(|(time, lengths)| (*time, at(lengths, share)));
        let points = with_zeros(lengths, known, measure.interval);
        points.into_iter().map(|(time, bytes)| (ms(time), bytes as f64 / 1e3)).collect::<Vec<_>>()
    };
    // Each series has a sample at every time, so zeros are inserted at the same times in all of them.
    let (low, high) = (series(0.1), series(0.9));
    let band = low.into_iter().zip(high).map(|((time, low), (_, high))| (time, low, high)).collect();
    let mut lines = vec![
        Line { name: "median of them".to_owned(), points: series(0.5) },
        Line { name: "longest at each time".to_owned(), points: series(1.0) },
    ];
    lines.extend(queue_lines(results, measure, &ports[..1]));
    with_band(&format!("Queues: {count} ports"), QUEUE, lines, band)
}

/// The label of queues.
const QUEUE: &str = "queue, KB";

/// Returns the queues of some ports. Samples of empty queues are not stored; the line is zero there.
fn queue_lines(results: &Results, measure: &MeasureSettings, ports: &[usize]) -> Vec<Line> {
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

/// Returns the interval in which a queue without samples is known to be empty.
fn known_queues(results: &Results, measure: &MeasureSettings) -> (Time, Time) {
    let interval = measure.interval.as_ps().max(1);
    // This is the first sample. Without a warm-up, it is at the start, when all queues are empty.
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

/// Returns the samples of one queue, with zeros for samples that were not stored.
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

/// Returns when ports were paused: a row for each of those that were paused longest, with a step up for each
/// pause.
fn pauses(results: &Results) -> Chart {
    // The state after the last stored step is unknown.
    let last = results.pauses.last().map_or(Time::ZERO, |point| point.time);
    let end = if results.pauses_left_out > 0 { last } else { results.end.max(last) };
    let mut rows: BTreeMap<(u32, u8), Vec<(Time, Time)>> = BTreeMap::new();
    let mut since: BTreeMap<(u32, u8), Time> = BTreeMap::new();
    for point in &results.pauses {
        let key = (point.port, point.priority);
        match point.step {
            PauseStep::Begins => {
                since.insert(key, point.time);
            }
            PauseStep::Resumed | PauseStep::Expired => {
                let begin = since.remove(&key);
                rows.entry(key).or_default().extend(begin.map(|begin| (begin, point.time)));
            }
            PauseStep::Sent | PauseStep::ResumeSent | PauseStep::Watchdog | PauseStep::Restored => {}
        }
    }
    for (key, begin) in since {
        rows.entry(key).or_default().push((begin, end));
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    let length =
        |spans: &[(Time, Time)]| spans.iter().fold(Time::ZERO, |sum, (begin, end)| sum + end.since(*begin));
    rows.sort_by_key(|(_, spans)| std::cmp::Reverse(length(spans)));
    let shown = rows.len().min(MOST_LINES);
    let title = if rows.len() > shown {
        format!("Pauses: the {shown} of {} ports that were paused longest", rows.len())
    } else {
        "Pauses, by port".to_owned()
    };
    let one_priority = rows.windows(2).all(|pair| pair[0].0.1 == pair[1].0.1);
    let name = |(port, priority): (u32, u8)| {
        let name = results.ports.get(port as usize).map_or("", |port| &port.name).to_owned();
        if one_priority { name } else { format!("{name}, priority {priority}") }
    };
    // The first one is in the top row.
    rows.truncate(shown);
    rows.reverse();
    let bands = rows.iter().enumerate().map(|(row, (_, spans))| {
        let (low, high) = (row as f64, row as f64 + ROW);
        let area = |(begin, end): &(Time, Time)| {
            let (begin, end) = (ms(*begin), ms(*end));
            [(begin, low, high), (end, low, high), (end, f64::NAN, f64::NAN)]
        };
        Band { points: spans.iter().flat_map(area).collect(), ..Band::default() }
    });
    Chart {
        title,
        x_label: "time, ms; a port is paused where its row is filled".to_owned(),
        bands: bands.collect(),
        rows: rows.iter().map(|(key, _)| name(*key)).collect(),
        ..Chart::default()
    }
}

/// The height of a pause, relative to a row.
const ROW: f64 = 0.75;

fn ms(time: Time) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use roce_scenario::Scenario;

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
        let mut simulation = scenario.simulation().unwrap();
        simulation.run_to_end();
        (simulation.results(), measure)
    }

    /// Returns the line of the port that receives the bursts.
    fn longest_queue(measure: &str) -> (Vec<(f64, f64)>, Results) {
        let (results, measure) = run(&format!("{BURSTS}[measure]\n{measure}"));
        let line = queues(&results, &measure).lines.swap_remove(0);
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

    /// Checks the chart of eight ports with queues, one of which is the longest.
    #[test]
    fn many_queues_are_their_median_a_band_and_the_longest() {
        let mut text = String::from("name = \"many\"\n[topology]\nkind = \"star\"\nhosts = 24\n");
        for receiver in 0..8 {
            let bytes = 100 + 50 * receiver;
            for sender in [8 + receiver, 16 + receiver] {
                text += &format!(
                    "[[flows]]\nkind = \"pair\"\nfrom = \"h{sender}\"\nto = \"h{receiver}\"\nbytes = \"{bytes}KB\"\n"
                );
            }
        }
        let (results, measure) = run(&text);
        let chart = queues(&results, &measure);
        assert_eq!(chart.title, "Queues: 8 ports");
        let names: Vec<&str> = chart.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["median of them", "longest at each time", "s0->h7"]);
        let [median, longest, last] = [0, 1, 2].map(|line| &chart.lines[line].points);
        assert_eq!(median.len(), longest.len());
        assert_eq!(median.len(), chart.bands[0].points.len());
        for (place, (time, low, high)) in chart.bands[0].points.iter().enumerate() {
            let (middle, most) = (median[place], longest[place]);
            assert_eq!((*time, *time), (middle.0, most.0));
            assert!(
                *low <= middle.1 && middle.1 <= *high && *high <= most.1,
                "{time}: {low} {middle:?} {high} {most:?}"
            );
        }
        // At first, all queues grow alike. The longest flows still have a queue when the others have none.
        assert!(median[1].1 > 0.0 && (median[1].1 - longest[1].1).abs() < 0.1 * longest[1].1, "{median:?}");
        assert_eq!(median.last().unwrap().1, 0.0);
        let peak = |points: &[(f64, f64)]| points.iter().fold(0.0_f64, |most, (_, length)| most.max(*length));
        assert_eq!(peak(longest), peak(last));
    }

    /// The fourth flow would take 80 ms.
    #[test]
    fn incomplete_flows_keep_completion_below_100_percent() {
        let pair =
            |bytes| format!("[[flows]]\nkind = \"pair\"\nfrom = \"h0\"\nto = \"h1\"\nbytes = \"{bytes}\"\n");
        let flows = ["10KB", "20KB", "30KB", "1GB"].map(pair).concat();
        let head = "name = \"stuck\"\nstop = \"1ms\"\n[topology]\nkind = \"point-to-point\"\n";
        let (results, _) = run(&format!("{head}{flows}"));
        assert_eq!(results.incomplete(), 1);
        let chart = completion(&results);
        let shares: Vec<f64> = chart.lines[0].points.iter().map(|(_, share)| *share).collect();
        assert_eq!(shares, [25.0, 50.0, 75.0]);
    }
}
