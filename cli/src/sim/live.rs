//! `--live`: shows rates and queues on the terminal while a scenario runs.

mod series;
mod view;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use roce_scenario::Scenario;
use roce_sim::net::Simulation;

use self::series::Series;
use self::view::View;
use super::run::{Job, Next, Ran};
use super::shipped::Source;

/// Time between two drawings.
const FRAME: Duration = Duration::from_millis(50);
/// Simulated events between two checks of the clock.
const STRIDE: u64 = 2_000;
/// Samples per second at the initial pace.
const SAMPLES_PER_S: f64 = 100.0;

/// Runs a scenario and draws it. At the end, the last drawing stays until a key is pressed.
pub(super) fn run(job: &Job, source: &Source) -> anyhow::Result<Ran> {
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "--live needs a terminal as standard input and output; use --out DIR to write plots instead"
    );
    let terminal = ratatui::try_init().context("cannot initialize the terminal for --live")?;
    let mut live = Live::new(terminal);
    let ran = job.run(source, &mut |scenario, simulation| live.update(scenario, simulation));
    let result = if ran.is_ok() && !live.quit { live.wait_for_key() } else { Ok(()) };
    drop(live);
    result?;
    ran
}

struct Live {
    terminal: DefaultTerminal,
    series: Series,
    /// Simulated seconds per second; `None` means full speed.
    pace: Option<f64>,
    /// The initial pace.
    first_pace: f64,
    paused: bool,
    quit: bool,
    /// Simulated seconds that the pace currently allows.
    allowed_s: f64,
    updated: Instant,
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
            paused: false,
            quit: false,
            allowed_s: 0.0,
            updated: Instant::now(),
            drawn: None,
        }
    }

    /// Draws if a drawing is due, and waits while the simulation is ahead of its pace.
    fn update(&mut self, scenario: &Scenario, simulation: &Simulation) -> anyhow::Result<Next> {
        if self.drawn.is_none() {
            self.first_pace = scenario.settings.measure.interval.as_secs_f64() * SAMPLES_PER_S;
            self.pace = Some(self.first_pace);
        }
        loop {
            self.pass_time();
            if self.drawn.is_none_or(|drawn| drawn.elapsed() >= FRAME) {
                self.draw(scenario, simulation)?;
            }
            let is_ahead = self.pace.is_some() && simulation.now().as_secs_f64() > self.allowed_s;
            let wait = if self.paused || is_ahead { FRAME / 4 } else { Duration::ZERO };
            self.read_keys(wait)?;
            if self.quit {
                return Ok(Next::Stop);
            }
            if !self.paused && !is_ahead {
                return Ok(Next::Events(STRIDE));
            }
        }
    }

    fn pass_time(&mut self) {
        let passed = std::mem::replace(&mut self.updated, Instant::now()).elapsed().as_secs_f64();
        if let (false, Some(pace)) = (self.paused, self.pace) {
            self.allowed_s += passed * pace;
        }
    }

    fn draw(&mut self, scenario: &Scenario, simulation: &Simulation) -> anyhow::Result<()> {
        self.series.take(scenario, simulation);
        let view = View {
            title: &scenario.name,
            now_ms: simulation.now().as_secs_f64() * 1e3,
            flows: simulation.progress(),
            pace: self.pace,
            paused: self.paused,
            series: &self.series,
        };
        self.terminal.draw(|frame| view.draw(frame)).context("cannot draw")?;
        self.drawn = Some(Instant::now());
        Ok(())
    }

    fn read_keys(&mut self, wait: Duration) -> anyhow::Result<()> {
        let reading = "cannot read the keyboard";
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
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('+' | '=') => self.change_pace(2.0),
            KeyCode::Char('-') => self.change_pace(0.5),
            KeyCode::Char('f') => self.pace = None,
            _ => {}
        }
    }

    /// Multiplies the pace. After full speed, the initial pace applies from the current simulated time.
    fn change_pace(&mut self, factor: f64) {
        self.allowed_s = self.allowed_s.max(self.series.now_ms() / 1e3);
        self.pace = Some(self.pace.map_or(self.first_pace, |pace| pace * factor));
    }

    /// Waits until a key is pressed.
    fn wait_for_key(&mut self) -> anyhow::Result<()> {
        loop {
            if let Event::Key(key) = event::read().context("cannot read the keyboard")?
                && key.kind == KeyEventKind::Press
            {
                return Ok(());
            }
        }
    }
}
