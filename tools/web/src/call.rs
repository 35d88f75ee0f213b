//! One function for everything that the page asks: a name, arguments as JSON, and bytes.
//!
//! JavaScript has no types that both sides could share, so a call is text. Objects that live longer than a
//! call, such as an open capture, have numbers.

use serde::Deserialize;
use serde_json::Value;

use crate::capture::Capture;
use crate::congestion::{self, Run};
use crate::hosts::Hosts;
use crate::{frame, lessons, program};

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Text, which is JSON for most functions.
    Text(String),
    /// The contents of a file.
    Bytes(Vec<u8>),
}

impl From<String> for Answer {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// A call: the name of the function, and its arguments in their order.
#[derive(Debug, Deserialize)]
struct Call {
    function: String,
    #[serde(default)]
    arguments: Vec<Value>,
}

/// The objects of a page.
#[derive(Default)]
pub struct Page {
    captures: Objects<Capture>,
    hosts: Objects<Hosts>,
    runs: Objects<Run>,
}

impl Page {
    /// Calls a function. `call` is a JSON object with the keys `function` and `arguments`; `bytes` are the
    /// contents of the file that `capture.open` reads, and empty otherwise.
    ///
    /// # Errors
    ///
    /// Returns a sentence for the person who uses the page.
    pub fn call(&mut self, call: &str, bytes: &[u8]) -> Result<Answer, String> {
        let call: Call =
            serde_json::from_str(call).map_err(|error| format!("the page sent a wrong call: {error}"))?;
        let arguments = Arguments { function: &call.function, values: &call.arguments };
        match call.function.split_once('.') {
            Some(("capture", method)) => self.capture(method, &arguments, bytes),
            Some(("hosts", method)) => self.hosts(method, &arguments),
            Some(("run", method)) => self.run(method, &arguments),
            _ => function(&call.function, &arguments),
        }
    }

    fn capture(&mut self, method: &str, arguments: &Arguments<'_>, bytes: &[u8]) -> Result<Answer, String> {
        if method == "open" {
            let capture = Capture::open(arguments.text(0)?, bytes)?;
            return Ok(self.captures.add(capture));
        }
        let number = arguments.number(0)?;
        if method == "free" {
            return Ok(self.captures.remove(number));
        }
        let capture = self.captures.get(number)?;
        match method {
            "summary" => Ok(capture.summary().into()),
            "rows" => {
                let (from, count) = (arguments.number(2)?, arguments.number(3)?);
                capture.rows(arguments.text(1)?, from, count).map(Answer::from)
            }
            "packet" => capture.packet(arguments.number(1)?).map(Answer::from),
            "analysis" => Ok(capture.analysis().into()),
            "ladder" => capture.ladder(arguments.number(1)?, arguments.number(2)?).map(Answer::from),
            "series" => capture.series(arguments.number(1)?, arguments.number(2)?).map(Answer::from),
            _ => Err(arguments.unknown()),
        }
    }

    fn hosts(&mut self, method: &str, arguments: &Arguments<'_>) -> Result<Answer, String> {
        if method == "new" {
            let hosts = Hosts::new(arguments.text(0)?)?;
            return Ok(self.hosts.add(hosts));
        }
        let number = arguments.number(0)?;
        if method == "free" {
            return Ok(self.hosts.remove(number));
        }
        let hosts = self.hosts.get(number)?;
        match method {
            "post" => hosts.post(arguments.text(1)?).map(done),
            "postRecv" => hosts.post_recv(arguments.number(1)?, arguments.number(2)?).map(done),
            "step" => Ok(hosts.step().to_string().into()),
            "run" => {
                hosts.run();
                Ok(done(()))
            }
            "state" => Ok(hosts.state().into()),
            "act" => {
                let (id, value) = (arguments.number(1)?, arguments.decimal(3)?);
                hosts.act(id, arguments.text(2)?, value).map(done)
            }
            "frame" => hosts.frame(arguments.number(1)?).map(Answer::from),
            "ladder" => Ok(hosts.ladder(arguments.number(1)?).into()),
            "pcap" => Ok(hosts.pcap().into()),
            _ => Err(arguments.unknown()),
        }
    }

    fn run(&mut self, method: &str, arguments: &Arguments<'_>) -> Result<Answer, String> {
        if method == "new" {
            let run = Run::new(arguments.text(0)?, arguments.text(1)?)?;
            return Ok(self.runs.add(run));
        }
        let number = arguments.number(0)?;
        if method == "free" {
            return Ok(self.runs.remove(number));
        }
        let run = self.runs.get(number)?;
        match method {
            "run" => Ok(run.run(arguments.number(1)? as u64).to_string().into()),
            "progress" => Ok(run.progress().into()),
            "take" => Ok(run.take().into()),
            "names" => Ok(run.names().into()),
            "results" => Ok(run.results().into()),
            _ => Err(arguments.unknown()),
        }
    }
}

/// Calls a function that needs no object.
fn function(name: &str, arguments: &Arguments<'_>) -> Result<Answer, String> {
    let text = |at| arguments.text(at);
    match name {
        "version" => Ok(program::version().into()),
        "frame" => frame::frame(text(0)?, text(1)?).map(Answer::from),
        "setField" => {
            let repair = arguments.flag(4)?;
            frame::set_field(text(0)?, text(1)?, text(2)?, text(3)?, repair).map(Answer::from)
        }
        "setBit" => frame::set_bit(text(0)?, arguments.number(1)?).map(Answer::from),
        "opcodes" => Ok(frame::opcodes().into()),
        "build" => frame::build(text(0)?).map(Answer::from),
        "exportFrame" => frame::export(text(0)?, text(1)?, text(2)?).map(Answer::from),
        "framePcap" => frame::pcap(&arguments.texts(0)?).map(Answer::from),
        "examples" => Ok(frame::examples().into()),
        "scenarios" => Ok(congestion::scenarios().into()),
        "algorithms" => Ok(congestion::algorithms().into()),
        "lessons" => Ok(lessons::all().into()),
        "check" => lessons::check(text(0)?, arguments.number(1)?, text(2)?).map(Answer::from),
        "solution" => lessons::solution(text(0)?).map(Answer::from),
        "teacher" => lessons::teacher(text(0)?).map(Answer::from),
        _ => Err(arguments.unknown()),
    }
}

/// The answer of a function that returns nothing.
fn done((): ()) -> Answer {
    Answer::Text("null".to_owned())
}

/// The arguments of a call.
struct Arguments<'a> {
    function: &'a str,
    values: &'a [Value],
}

impl<'a> Arguments<'a> {
    fn text(&self, at: usize) -> Result<&'a str, String> {
        self.values.get(at).and_then(Value::as_str).ok_or_else(|| self.wrong(at, "a text"))
    }

    fn texts(&self, at: usize) -> Result<Vec<String>, String> {
        let texts = self.values.get(at).and_then(Value::as_array).map(|texts| {
            texts.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        });
        texts.flatten().ok_or_else(|| self.wrong(at, "a list of texts"))
    }

    fn number(&self, at: usize) -> Result<usize, String> {
        let number = self.values.get(at).and_then(Value::as_u64);
        number.and_then(|number| usize::try_from(number).ok()).ok_or_else(|| self.wrong(at, "a whole number"))
    }

    fn decimal(&self, at: usize) -> Result<f64, String> {
        self.values.get(at).and_then(Value::as_f64).ok_or_else(|| self.wrong(at, "a number"))
    }

    fn flag(&self, at: usize) -> Result<bool, String> {
        self.values.get(at).and_then(Value::as_bool).ok_or_else(|| self.wrong(at, "true or false"))
    }

    fn wrong(&self, at: usize, kind: &str) -> String {
        format!("the page sent a wrong call: argument {} of {} is not {kind}", at + 1, self.function)
    }

    fn unknown(&self) -> String {
        format!("the page sent a wrong call: there is no function {}", self.function)
    }
}

/// Objects with numbers, which are used again.
struct Objects<T>(Vec<Option<T>>);

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Objects<T> {
    /// Returns the number of the object.
    fn add(&mut self, object: T) -> Answer {
        let free = self.0.iter().position(Option::is_none).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        if let Some(place) = self.0.get_mut(free) {
            *place = Some(object);
        }
        free.to_string().into()
    }

    fn get(&mut self, number: usize) -> Result<&mut T, String> {
        let object = self.0.get_mut(number).and_then(Option::as_mut);
        object.ok_or_else(|| "the page sent a wrong call: its object was freed".to_owned())
    }

    fn remove(&mut self, number: usize) -> Answer {
        if let Some(place) = self.0.get_mut(number) {
            *place = None;
        }
        done(())
    }
}
