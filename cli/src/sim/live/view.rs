//! Draws the live view: two charts and two tables.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Row, Table};

use super::series::{FlowLine, PortLine, Series, ms};

/// Maximum number of lines in a chart; more are hard to distinguish.
const MAX_LINES: usize = 6;
const COLORS: [Color; MAX_LINES] =
    [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green, Color::Blue, Color::Red];

pub(super) struct View<'a> {
    pub(super) title: &'a str,
    pub(super) now_ms: f64,
    /// Number of ended flows and of all flows.
    pub(super) flows: (usize, usize),
    /// Simulated seconds per second.
    pub(super) pace: Option<f64>,
    pub(super) paused: bool,
    pub(super) series: &'a Series,
}

impl View<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let flows: Vec<&FlowLine> = self.series.flows.values().collect();
        // Running flows come first.
        let (mut shown, mut ended): (Vec<&FlowLine>, Vec<&FlowLine>) =
            flows.iter().partition(|flow| flow.is_running(self.series));
        shown.append(&mut ended);
        shown.truncate(MAX_LINES);
        let ports = self.series.longest_queues(MAX_LINES);
        let rows = shown.len().max(ports.len()).max(1) as u16 + 3;
        let [head, charts, tables, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(6),
            Constraint::Length(rows),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let halves = |area| Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas::<2>(area);
        let ([left, right], [lower_left, lower_right]) = (halves(charts), halves(tables));
        frame.render_widget(self.head(), head);
        let lines = shown.iter().map(|flow| flow.goodput.all());
        self.draw_chart(frame, left, " goodput, Gb/s ", lines.collect());
        let lines = ports.iter().map(|port| port.queue.all());
        self.draw_chart(frame, right, " queues, KB ", lines.collect());
        frame.render_widget(self.flow_table(&shown), lower_left);
        frame.render_widget(port_table(&ports), lower_right);
        frame.render_widget(Line::from(" space: pause   + -: pace   f: full speed   q: quit ").dim(), foot);
    }

    fn head(&self) -> Line<'_> {
        let (ended, all) = self.flows;
        let pace = match (self.paused, self.pace) {
            (true, _) => "paused".to_owned(),
            (false, None) => "full speed".to_owned(),
            (false, Some(pace)) => format!("{} ms/s", pretty(pace * 1e3)),
        };
        let rest = format!("  {:.3} ms   {ended} of {all} flows ended   {pace}", self.now_ms);
        Line::from(vec![Span::from(format!(" {}", self.title)).bold(), Span::from(rest)])
    }

    fn draw_chart(&self, frame: &mut Frame<'_>, area: Rect, title: &'static str, lines: Vec<&[(f64, f64)]>) {
        let most = lines.iter().flat_map(|line| line.iter()).fold(0.0_f64, |most, (_, y)| most.max(*y));
        let (right, top) = (self.series.now_ms().max(1e-6), nice_top(most));
        let sets = lines.iter().zip(COLORS).map(|(line, color)| {
            Dataset::default()
                .marker(Marker::Braille)
                .graph_type(GraphType::Line)
                .style(Style::new().fg(color))
                .data(line)
        });
        let axis = |end: f64, unit: &str| {
            let labels = [0.0, end / 2.0, end].map(|at| format!("{}{unit}", pretty(at)));
            Axis::default().bounds([0.0, end]).labels(labels).style(Style::new().dim())
        };
        let chart = Chart::new(sets.collect())
            .block(Block::bordered().title(title))
            .x_axis(axis(right, " ms"))
            .y_axis(axis(top, ""))
            .legend_position(None);
        frame.render_widget(chart, area);
    }

    fn flow_table(&self, flows: &[&FlowLine]) -> Table<'static> {
        let cells = |flow: &&FlowLine| {
            let number = format!("{} ({})", flow.last.flow, flow.ends);
            if !flow.is_running(self.series) {
                return [number, "ended".to_owned(), String::new(), String::new(), String::new()];
            }
            let point = &flow.last;
            let gigabits = |bps: f64| if bps.is_finite() { pretty(bps / 1e9) } else { "-".to_owned() };
            [
                number,
                gigabits(point.goodput_bps),
                gigabits(point.rate_bps),
                point.target_bps.map_or_else(|| "-".to_owned(), gigabits),
                point.alpha.map_or_else(|| "-".to_owned(), |alpha| format!("{alpha:.4}")),
            ]
        };
        let rest = self.series.flows.len() - flows.len();
        let title = if rest > 0 { format!(" flows, and {rest} more ") } else { " flows ".to_owned() };
        table(title, ["flow", "goodput", "rate", "target", "alpha"], flows.iter().map(cells))
    }
}

fn port_table(ports: &[&PortLine]) -> Table<'static> {
    let cells = |port: &&PortLine| {
        [
            port.name.clone(),
            pretty(port.queue.last()),
            pretty(port.max_kb),
            port.marked.to_string(),
            pretty(ms(port.paused)),
        ]
    };
    let title = " longest queues ".to_owned();
    table(title, ["port", "KB", "max", "marked", "paused ms"], ports.iter().map(cells))
}

/// Returns a table whose rows have the colors of the lines of a chart.
fn table(title: String, head: [&'static str; 5], rows: impl Iterator<Item = [String; 5]>) -> Table<'static> {
    let number = Constraint::Max(9);
    let rows = rows.zip(COLORS).map(|(cells, color)| Row::new(cells).style(Style::new().fg(color)));
    Table::new(rows, [Constraint::Min(12), number, number, number, number])
        .header(Row::new(head).bold())
        .block(Block::bordered().title(title))
}

/// Returns the smallest of 1, 2, 5, 10, … that is at least `most`.
fn nice_top(most: f64) -> f64 {
    if most <= 0.0 || !most.is_finite() {
        return 1.0;
    }
    let unit = 10.0_f64.powf(most.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * unit).find(|top| *top >= most).unwrap_or(most)
}

/// Formats a value with three significant digits.
fn pretty(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value.abs() >= 100.0 => format!("{value:.0}"),
        value if value.abs() >= 10.0 => format!("{value:.1}"),
        value if value.abs() >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use roce_scenario::{Scenario, shipped};

    use super::*;

    fn picture(width: u16, height: u16, events: u64) -> String {
        let scenario = Scenario::parse(shipped("two-to-one").unwrap(), &|_| Err(String::new())).unwrap();
        let mut simulation = scenario.simulation().unwrap();
        simulation.run(events);
        let mut series = Series::default();
        series.take(&scenario, &simulation);
        let view = View {
            title: &scenario.name,
            now_ms: ms(simulation.now()),
            flows: simulation.progress(),
            pace: Some(0.01),
            paused: false,
            series: &series,
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_view_shows_flows_and_queues() {
        let picture = picture(110, 30, 400_000);
        println!("{picture}");
        for part in ["two to one with a late joiner", "0 of 2 flows ended", "10.0 ms/s", "0 (0 to 2)"] {
            assert!(picture.contains(part), "{part}");
        }
        for part in ["1 (1 to 2)", "goodput, Gb/s", "queues, KB", "s0->h2", "q: quit"] {
            assert!(picture.contains(part), "{part}");
        }
    }

    #[test]
    fn small_terminals_and_empty_series_are_drawn() {
        for (width, height) in [(1, 1), (2, 9), (9, 2), (20, 8), (400, 200)] {
            picture(width, height, 0);
            picture(width, height, 30_000);
        }
    }

    #[test]
    fn axes_end_at_a_round_number() {
        let tops = [0.0, 0.7, 1.0, 3.0, 37.2, 600.0].map(nice_top);
        assert_eq!(tops, [1.0, 1.0, 1.0, 5.0, 50.0, 1000.0]);
    }
}
