//! The lessons: their texts as HTML, and the judgement of answers.
//!
//! The texts are the Markdown files of `docs/lessons`, so that page and print agree. A module for each lesson
//! judges the answers. It computes the right answer with the parser, the ICRC, the engine or the simulator,
//! and computes the typical wrong answers, each of which has a hint.

mod answer;
mod scene;
mod text;

pub mod connections;
pub mod dcqcn;
pub mod framing;
pub mod icrc;
pub mod keys;
pub mod pfc;
pub mod psn;
pub mod read;
pub mod rnr;
pub mod timeouts;

use serde::Serialize;

pub use answer::{AnswerKey, Expected, Outcome};

/// A lesson: its texts, and the function that judges answers.
struct Lesson {
    /// Name in addresses and calls.
    id: &'static str,
    page: &'static str,
    solution: &'static str,
    teacher: &'static str,
    /// Judges an answer to a task. Tasks count from 1. Returns `None` if the lesson has no such task.
    check: fn(usize, &str) -> Option<Outcome>,
}

/// Returns the row of a lesson: its module and the name of its files without `.md`.
macro_rules! lesson {
    ($module:ident, $file:literal) => {
        Lesson {
            id: stringify!($module),
            page: include_str!(concat!("../../../docs/lessons/", $file, ".md")),
            solution: include_str!(concat!("../../../docs/lessons/solutions/", $file, ".md")),
            teacher: include_str!(concat!("../../../docs/lessons/teachers/", $file, ".md")),
            check: $module::check,
        }
    };
}

const LESSONS: &[Lesson] = &[
    lesson!(framing, "01-framing"),
    lesson!(icrc, "02-icrc"),
    lesson!(psn, "03-psn"),
    lesson!(timeouts, "04-timeouts"),
    lesson!(rnr, "05-rnr"),
    lesson!(read, "06-read"),
    lesson!(keys, "07-keys"),
    lesson!(connections, "08-connections"),
    lesson!(dcqcn, "09-dcqcn"),
    lesson!(pfc, "10-pfc"),
];

/// A lesson as the page shows it.
#[derive(Serialize)]
struct Shown {
    id: &'static str,
    title: String,
    minutes: u32,
    html: String,
    tasks: Vec<text::Task>,
}

/// Returns all lessons as JSON, in their order.
pub fn all() -> String {
    let shown = LESSONS.iter().map(|lesson| Shown {
        id: lesson.id,
        title: text::title(lesson.page),
        minutes: text::minutes(lesson.page),
        html: text::lesson_html(lesson.page),
        tasks: text::tasks(lesson.page),
    });
    to_json(&shown.collect::<Vec<_>>())
}

/// Judges an answer to a task of a lesson. Tasks count from 1. Returns an [`Outcome`] as JSON.
///
/// # Errors
///
/// Returns a sentence if the lesson or the task does not exist.
pub fn check(lesson: &str, task: usize, answer: &str) -> Result<String, String> {
    let outcome = (find(lesson)?.check)(task, answer);
    outcome
        .map(|outcome| to_json(&outcome))
        .ok_or_else(|| format!("the lesson `{lesson}` does not have a task {task}"))
}

/// Returns the solution of a lesson as HTML.
///
/// # Errors
///
/// Returns a sentence if the lesson does not exist.
pub fn solution(lesson: &str) -> Result<String, String> {
    find(lesson).map(|lesson| text::html(text::body(lesson.solution)))
}

/// Returns the notes for teachers of a lesson as HTML.
///
/// # Errors
///
/// Returns a sentence if the lesson does not exist.
pub fn teacher(lesson: &str) -> Result<String, String> {
    find(lesson).map(|lesson| text::html(text::body(lesson.teacher)))
}

fn find(id: &str) -> Result<&'static Lesson, String> {
    LESSONS.iter().find(|lesson| lesson.id == id).ok_or_else(|| {
        let known: Vec<&str> = LESSONS.iter().map(|lesson| lesson.id).collect();
        format!("`{id}` is not a lesson; the lessons are {}", known.join(", "))
    })
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}
