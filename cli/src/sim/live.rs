//! `--live`: rates and queues on the terminal while a scenario runs.

mod series;
mod view;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use roce_sim::net::Simulation;
use roce_sim::scenario::Scenario;

use self::series::Series;
use self::view::View;
use super::run::{Done, Job, Next};
use super::shipped::Source;

/// Between two pictures.
const FRAME: Duration = Duration::from_millis(50);
/// Events between two looks at the clock.
const STRIDE: u64 = 2_000;
/// Samples a second at the first pace.
const SAMPLES_PER_S: f64 = 100.0;

/// Runs a scenario and draws it; when it has ended, the last picture stays until a key is pressed.
pub(super) fn run(job: &Job, source: &Source) -> anyhow::Result<Done> {
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "--live draws on a terminal, and standard input or output is none; --out DIR writes plots instead"
    );
    let terminal = ratatui::try_init().context("preparing the terminal for --live")?;
    let mut live = Live::new(terminal);
    let done = job.run(source, &mut |scenario, simulation| live.look(scenario, simulation));
    let stay = if done.is_ok() && !live.quit { live.stay() } else { Ok(()) };
    drop(live);
    stay?;
    done
}

struct Live {
    terminal: DefaultTerminal,
    series: Series,
    /// Simulated seconds for each second; `None` is as fast as it goes.
    pace: Option<f64>,
    /// The pace that it begins with.
    first_pace: f64,
    stands: bool,
    quit: bool,
    /// Simulated seconds that may have passed by now.
    allowed: f64,
    looked: Instant,
    drawn: Option<Instant>,
}

impl Drop for Live {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

impl Live {
    fn new(terminal: DefaultTerminal) -> Self {
        Self {
            terminal,
            series: Series::default(),
            pace: None,
            first_pace: 0.0,
            stands: false,
            quit: false,
            allowed: 0.0,
            looked: Instant::now(),
            drawn: None,
        }
    }

    /// Draws if it is time to, and waits as long as the simulation is ahead of its pace.
    fn look(&mut self, scenario: &Scenario, simulation: &Simulation) -> anyhow::Result<Next> {
        if self.drawn.is_none() {
            self.first_pace = scenario.settings.measure.interval.as_secs_f64() * SAMPLES_PER_S;
            self.pace = Some(self.first_pace);
        }
        loop {
            self.pass_time();
            if self.drawn.is_none_or(|drawn| drawn.elapsed() >= FRAME) {
                self.draw(scenario, simulation)?;
            }
            let is_ahead = self.pace.is_some() && simulation.now().as_secs_f64() > self.allowed;
            let wait = if self.stands || is_ahead { FRAME / 4 } else { Duration::ZERO };
            self.read_keys(wait)?;
            if self.quit {
                return Ok(Next::Stop);
            }
            if !self.stands && !is_ahead {
                return Ok(Next::Events(STRIDE));
            }
        }
    }

    fn pass_time(&mut self) {
        let passed = std::mem::replace(&mut self.looked, Instant::now()).elapsed().as_secs_f64();
        if let (false, Some(pace)) = (self.stands, self.pace) {
            self.allowed += passed * pace;
        }
    }

    fn draw(&mut self, scenario: &Scenario, simulation: &Simulation) -> anyhow::Result<()> {
        self.series.take(scenario, simulation);
        let view = View {
            title: &scenario.name,
            now_ms: simulation.now().as_secs_f64() * 1e3,
            flows: simulation.progress(),
            pace: self.pace,
            stands: self.stands,
            series: &self.series,
        };
        self.terminal.draw(|frame| view.draw(frame)).context("drawing")?;
        self.drawn = Some(Instant::now());
        Ok(())
    }

    fn read_keys(&mut self, wait: Duration) -> anyhow::Result<()> {
        let reading = "reading the keyboard";
        let mut wait = wait;
        while event::poll(wait).context(reading)? {
            wait = Duration::ZERO;
            if let Event::Key(key) = event::read().context(reading)?
                && key.kind == KeyEventKind::Press
            {
                self.press(key.code, key.modifiers.contains(KeyModifiers::CONTROL));
            }
        }
        Ok(())
    }

    fn press(&mut self, key: KeyCode, control: bool) {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => self.quit = true,
            KeyCode::Char('c') if control => self.quit = true,
            KeyCode::Char(' ') => self.stands = !self.stands,
            KeyCode::Char('+' | '=') => self.change_pace(2.0),
            KeyCode::Char('-') => self.change_pace(0.5),
            KeyCode::Char('f') => self.pace = None,
            _ => {}
        }
    }

    /// From as fast as it goes, a new pace begins where the simulation is.
    fn change_pace(&mut self, factor: f64) {
        self.allowed = self.allowed.max(self.series.now_ms() / 1e3);
        self.pace = Some(self.pace.map_or(self.first_pace, |pace| pace * factor));
    }

    /// After the end, until a key is pressed.
    fn stay(&mut self) -> anyhow::Result<()> {
        loop {
            if let Event::Key(key) = event::read().context("reading the keyboard")?
                && key.kind == KeyEventKind::Press
            {
                return Ok(());
            }
        }
    }
}
