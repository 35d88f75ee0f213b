//! Files, includes and loops.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ast::{Action, Script, Statement};
use super::check;
use super::cursor::{Cursor, Parsed};
use super::error::{Place, ScriptError};
use super::lexer::tokens;
use super::parser;

/// Maximum depth of includes and of loops.
const MOST_DEPTH: usize = 8;
/// Maximum number of statements with includes.
const MOST_STATEMENTS: usize = 10_000;
/// Maximum number of words and signs of a line, which bounds the depth of its expressions.
const MOST_TOKENS: usize = 500;
/// Maximum number of bytes of a file.
const MOST_BYTES: u64 = 1 << 20;

/// The place where scripts and their includes are.
#[derive(Clone, Debug)]
pub enum Files {
    /// The file system.
    Disk,
    /// Texts by name.
    Given(BTreeMap<String, String>),
}

impl Files {
    /// Creates files from names and texts.
    #[must_use]
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self::Given(files.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect())
    }

    fn read(&self, name: &str) -> Parsed<String> {
        match self {
            Self::Disk => {
                let failed = |error| format!("cannot read {name}: {error}");
                let meta = std::fs::metadata(name).map_err(failed)?;
                // A device or a pipe may have no end.
                if !meta.is_file() {
                    return Err(format!("cannot read {name}: it is not a file"));
                }
                let len = meta.len();
                if len > MOST_BYTES {
                    return Err(format!("{name} has {len} bytes; a script has at most {MOST_BYTES}"));
                }
                std::fs::read_to_string(name).map_err(failed)
            }
            Self::Given(files) => {
                files.get(name).cloned().ok_or_else(|| format!("cannot read {name}: there is no such script"))
            }
        }
    }

    /// Returns the name of a file that another one includes: a path from the folder of that file.
    fn beside(file: &str, included: &str) -> String {
        let path: PathBuf = Path::new(file).parent().unwrap_or(Path::new("")).join(included);
        path.to_string_lossy().into_owned()
    }
}

impl Script {
    /// Reads a script with its includes, and checks its names.
    ///
    /// # Errors
    ///
    /// Returns the first error with its line.
    pub fn load(name: &str, files: &Files) -> Result<Self, ScriptError> {
        let place = Place { file: name.into(), line: 0 };
        let text = files.read(name).map_err(|what| ScriptError { place, what })?;
        let title = text.lines().next().and_then(|line| line.strip_prefix('#')).unwrap_or_default();
        let mut loader = Loader { files, statements: Vec::new(), open: Vec::new() };
        loader.file(name, &text, 0)?;
        let script =
            Self { name: name.to_owned(), title: title.trim().to_owned(), statements: loader.statements };
        check::names(&script)?;
        Ok(script)
    }
}

/// Collects the statements of a script and its includes.
struct Loader<'a> {
    files: &'a Files,
    statements: Vec<Statement>,
    /// The indices of the loops that have no end yet.
    open: Vec<usize>,
}

impl Loader<'_> {
    fn file(&mut self, name: &str, text: &str, depth: usize) -> Result<(), ScriptError> {
        let file: Arc<str> = name.into();
        let outside = self.open.len();
        let mut lines = text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            let place = Place { file: file.clone(), line: index + 1 };
            // A line that ends with a backslash continues in the next one.
            let mut whole = line.to_owned();
            while let Some(begin) = whole.trim_end().strip_suffix('\\') {
                let more = lines.next().map_or("", |(_, line)| line).trim();
                whole = format!("{begin} {more}");
            }
            let result = self.line(&place, &whole, depth);
            result.map_err(|problem| match problem {
                Problem::Here(what) => ScriptError { place, what },
                Problem::Included(error) => error,
            })?;
        }
        if self.open.len() > outside
            && let Some(begin) = self.open.last().and_then(|begin| self.statements.get(*begin))
        {
            let what = "the loop has no end; add a line with `}`".to_owned();
            return Err(ScriptError { place: begin.place.clone(), what });
        }
        Ok(())
    }

    fn line(&mut self, place: &Place, line: &str, depth: usize) -> Result<(), Problem> {
        let tokens = tokens(line)?;
        if tokens.is_empty() {
            return Ok(());
        }
        if tokens.len() > MOST_TOKENS {
            let count = tokens.len();
            return Err(Problem::Here(format!(
                "the line has {count} words and signs; at most {MOST_TOKENS} are allowed"
            )));
        }
        if self.statements.len() >= MOST_STATEMENTS {
            return Err(Problem::Here(format!("a script has at most {MOST_STATEMENTS} statements")));
        }
        let mut cursor = Cursor::new(tokens);
        if cursor.take_word("include") {
            let included = cursor.text("the name of a file")?;
            cursor.end()?;
            return self.include(place, &included, depth);
        }
        let action = if cursor.take("}") {
            cursor.end()?;
            let begin = self.open.pop().ok_or("there is no loop that could end here".to_owned())?;
            let end = self.statements.len();
            if let Some(Statement { action: Action::Repeat(_, _, of_end), .. }) =
                self.statements.get_mut(begin)
            {
                *of_end = end;
            }
            Action::End(begin)
        } else if cursor.take_word("repeat") {
            self.repeat(&mut cursor)?
        } else {
            parser::action(&mut cursor)?
        };
        let text = line.split_once(" #").map_or(line, |(text, _)| text);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.statements.push(Statement { place: place.clone(), text, action });
        Ok(())
    }

    fn repeat(&mut self, cursor: &mut Cursor) -> Parsed<Action> {
        let count = cursor.expression()?;
        let variable =
            if cursor.take_word("as") { Some(cursor.name("the name of a variable")?) } else { None };
        cursor.sign("{")?;
        cursor.end()?;
        if self.open.len() >= MOST_DEPTH {
            return Err(format!("loops are nested more than {MOST_DEPTH} deep"));
        }
        self.open.push(self.statements.len());
        Ok(Action::Repeat(count, variable, 0))
    }

    fn include(&mut self, place: &Place, included: &str, depth: usize) -> Result<(), Problem> {
        if depth >= MOST_DEPTH {
            let text =
                format!("includes are nested more than {MOST_DEPTH} deep; does {included} include itself?");
            return Err(Problem::Here(text));
        }
        let name = Files::beside(&place.file, included);
        let text = self.files.read(&name)?;
        self.file(&name, &text, depth + 1).map_err(Problem::Included)
    }
}

/// An error of a line, or of a line of a file that it includes.
enum Problem {
    Here(String),
    Included(ScriptError),
}

impl From<String> for Problem {
    fn from(what: String) -> Self {
        Self::Here(what)
    }
}
