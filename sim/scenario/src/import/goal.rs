//! Schedules of LogGOPSim (GOAL) as text: computations, sends and receives of ranks, and their order.

use std::collections::HashMap;

use super::graph::{Action, Graph, NodeId, Wrong as GraphError};
use super::lines::{at, number};
use crate::Wrong;
use roce_sim::net::Time;

/// The operations of a schedule.
#[derive(Debug)]
pub(super) struct Goal {
    pub(super) ranks: usize,
    pub(super) graph: Graph,
    pub(super) warnings: Vec<String>,
}

/// The largest tag, computation in nanoseconds, and message in bytes.
const MOST: u64 = 1 << 48;
const MOST_TAG: u64 = u32::MAX as u64;

/// Parses a schedule of at most this number of ranks.
pub(super) fn parse(text: &str, most_ranks: usize) -> Result<Goal, Wrong> {
    let mut parser = Parser {
        tokens: Tokens { text, line: 1 },
        ranks: None,
        most_ranks,
        rank: None,
        labels: HashMap::new(),
        described: vec![false; most_ranks],
        graph: Graph::default(),
        has_nics: false,
    };
    while parser.statement()? {}
    if let Some(rank) = parser.rank {
        return Err(at(parser.tokens.line, format!("the file ends, but the }} of rank {rank} is missing")));
    }
    let ranks = parser.ranks.ok_or_else(|| at(1, "num_ranks is missing; begin the file with num_ranks N"))?;
    let mut warnings = Vec::new();
    if parser.has_nics {
        warnings.push("nic: each rank has one NIC".to_owned());
    }
    Ok(Goal { ranks, graph: parser.graph, warnings })
}

/// The words and signs of a text that are not in comments. A statement ends at the end of its line, at a
/// semicolon or before a brace.
struct Tokens<'a> {
    text: &'a str,
    line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Sign(char),
    /// The end of a line, or a semicolon.
    End,
}

impl<'a> Tokens<'a> {
    fn peek(&mut self) -> Result<Option<Token<'a>>, Wrong> {
        self.skip()?;
        let Some(first) = self.text.chars().next() else { return Ok(None) };
        Ok(Some(match first {
            '\n' | ';' => Token::End,
            ':' | '{' | '}' => Token::Sign(first),
            _ => {
                let is_end = |sign: char| sign.is_whitespace() || ":{};/".contains(sign);
                // A single slash is a word of its own, and no statement accepts it.
                let length = self.text.find(is_end).unwrap_or(self.text.len()).max(first.len_utf8());
                Token::Word(&self.text[..length])
            }
        }))
    }

    fn next(&mut self) -> Result<Option<Token<'a>>, Wrong> {
        let token = self.peek()?;
        let length = match token {
            None => 0,
            Some(Token::Word(word)) => word.len(),
            Some(Token::Sign(_) | Token::End) => 1,
        };
        self.line += usize::from(self.text.starts_with('\n'));
        self.text = &self.text[length..];
        Ok(token)
    }

    /// Skips blanks and comments, but not the end of a line.
    fn skip(&mut self) -> Result<(), Wrong> {
        loop {
            self.text = self.text.trim_start_matches(|sign: char| sign.is_whitespace() && sign != '\n');
            if self.text.starts_with("//") {
                let end = self.text.find('\n').unwrap_or(self.text.len());
                self.text = &self.text[end..];
            } else if self.text.starts_with("/*") {
                let end = self.text.find("*/").ok_or_else(|| at(self.line, "a comment has no end"))?;
                self.line += self.text[..end].matches('\n').count();
                self.text = &self.text[end + 2..];
            } else {
                return Ok(());
            }
        }
    }

    /// Returns the next word of a statement.
    fn word(&mut self, what: &str) -> Result<&'a str, Wrong> {
        match self.peek()? {
            Some(Token::Word(word)) => {
                self.next()?;
                Ok(word)
            }
            _ => Err(at(self.line, format!("{what} is missing"))),
        }
    }

    fn number(&mut self, what: &str, most: u64) -> Result<u64, Wrong> {
        let word = self.word(what)?;
        number(word, most).map_err(|reason| at(self.line, format!("{what}: {reason}")))
    }

    /// Skips an expected word.
    fn expect(&mut self, expected: &str) -> Result<(), Wrong> {
        let word = self.word(expected)?;
        if word == expected {
            return Ok(());
        }
        Err(at(self.line, format!("\"{word}\" is not \"{expected}\"")))
    }
}

struct Parser<'a> {
    tokens: Tokens<'a>,
    ranks: Option<usize>,
    most_ranks: usize,
    /// The rank whose operations are being read, and its labels.
    rank: Option<u32>,
    labels: HashMap<&'a str, NodeId>,
    described: Vec<bool>,
    graph: Graph,
    has_nics: bool,
}

impl<'a> Parser<'a> {
    /// Parses one statement. Returns whether there was one.
    fn statement(&mut self) -> Result<bool, Wrong> {
        let line = self.tokens.line;
        let Some(token) = self.tokens.next()? else { return Ok(false) };
        match token {
            Token::End => return Ok(true),
            Token::Sign('}') if self.rank.take().is_some() => return Ok(true),
            Token::Sign(sign) => return Err(at(line, format!("\"{sign}\" is not expected here"))),
            Token::Word("num_ranks") if self.rank.is_none() => self.num_ranks()?,
            Token::Word("rank") if self.rank.is_none() => return self.begin_rank().map(|()| true),
            Token::Word(word) => match self.rank {
                Some(rank) => self.in_rank(rank, word)?,
                None => return Err(at(line, format!("\"{word}\" is not \"num_ranks\" or \"rank\""))),
            },
        }
        match self.tokens.peek()? {
            None | Some(Token::End | Token::Sign('}')) => Ok(true),
            Some(Token::Word(word)) => Err(at(
                self.tokens.line,
                format!("\"{word}\" is not expected here; each statement has its own line"),
            )),
            Some(Token::Sign(sign)) => Err(at(self.tokens.line, format!("\"{sign}\" is not expected here"))),
        }
    }

    fn num_ranks(&mut self) -> Result<(), Wrong> {
        let line = self.tokens.line;
        let ranks = self.tokens.number("the number of ranks", MOST)? as usize;
        if self.ranks.is_some() {
            return Err(at(line, "num_ranks is in the file twice"));
        }
        if ranks == 0 || ranks > self.most_ranks {
            return Err(at(
                line,
                format!(
                    "{ranks} ranks need as many hosts, and there are {}; use a larger topology",
                    self.most_ranks
                ),
            ));
        }
        self.ranks = Some(ranks);
        Ok(())
    }

    fn begin_rank(&mut self) -> Result<(), Wrong> {
        let line = self.tokens.line;
        let Some(ranks) = self.ranks else {
            return Err(at(line, "num_ranks is missing; begin the file with num_ranks N"));
        };
        let rank = self.tokens.number("the number of a rank", ranks as u64 - 1)?;
        if std::mem::replace(&mut self.described[rank as usize], true) {
            return Err(at(line, format!("rank {rank} is in the file twice")));
        }
        self.rank = Some(rank as u32);
        self.labels.clear();
        // The brace may be on the next line.
        while self.tokens.peek()? == Some(Token::End) {
            self.tokens.next()?;
        }
        match self.tokens.next()? {
            Some(Token::Sign('{')) => Ok(()),
            _ => Err(at(line, "{ is missing after the number of a rank")),
        }
    }

    fn in_rank(&mut self, rank: u32, word: &'a str) -> Result<(), Wrong> {
        let line = self.tokens.line;
        let is_label = self.tokens.peek()? == Some(Token::Sign(':'));
        if is_label {
            self.tokens.next()?;
            let operation = self.tokens.word("an operation")?;
            let node = self.operation(rank, line, operation)?;
            return match self.labels.insert(word, node) {
                None => Ok(()),
                Some(_) => Err(at(line, format!("the label {word} exists above"))),
            };
        }
        if ["send", "recv", "calc"].contains(&word) {
            return self.operation(rank, line, word).map(|_| ());
        }
        let relation = self.tokens.word("\":\", requires or irequires")?;
        let before = self.tokens.word("a label")?;
        let find = |label: &str| {
            let known = self.labels.get(label).copied();
            known.ok_or_else(|| at(line, format!("rank {rank} has no label {label} above this line")))
        };
        let (node, before) = (find(word)?, find(before)?);
        let added = match relation {
            "requires" => self.graph.after(before, node),
            "irequires" => self.graph.after_begin(before, node),
            other => {
                return Err(at(line, format!("\"{other}\" is not \":\", \"requires\" or \"irequires\"")));
            }
        };
        added.map_err(|error| at(line, error.reason))
    }

    fn operation(&mut self, rank: u32, line: usize, operation: &str) -> Result<NodeId, Wrong> {
        let action = match operation {
            "calc" => {
                let time = Time::from_ns(self.tokens.number("the time of calc", MOST)?);
                let [_, lane] = self.attributes(&["cpu"])?;
                Action::Compute { time, lane: Some(lane as u32) }
            }
            "send" => {
                let (to, bytes) = self.message("to", rank)?;
                let [tag, _] = self.attributes(&["tag", "cpu", "nic"])?;
                Action::Send { to, tag, bytes }
            }
            "recv" => {
                let (from, bytes) = self.message("from", rank)?;
                let [tag, _] = self.attributes(&["tag", "cpu", "nic"])?;
                Action::Receive { from, tag, bytes }
            }
            other => return Err(at(line, format!("\"{other}\" is not one of calc, send and recv"))),
        };
        self.graph.add(rank, line as u64, action).map_err(|error: GraphError| at(line, error.reason))
    }

    /// Parses the size of a message and the rank at its other end.
    fn message(&mut self, direction: &str, own: u32) -> Result<(u32, u64), Wrong> {
        let line = self.tokens.line;
        let size = self.tokens.word("the size of a message")?;
        let digits = match size.strip_suffix('b') {
            Some(digits) => digits,
            None => {
                self.tokens.expect("b")?;
                size
            }
        };
        let bytes =
            number(digits, MOST).map_err(|reason| at(line, format!("the size of a message: {reason}")))?;
        self.tokens.expect(direction)?;
        if self.tokens.peek()? == Some(Token::Word("-1")) {
            return Err(at(
                line,
                "a receive from any rank (-1) is not simulated, because messages are matched before the run; write \
                 the rank",
            ));
        }
        let last = self.ranks.unwrap_or_default().saturating_sub(1) as u64;
        let rank = self.tokens.number("a rank", last)? as u32;
        if rank == own {
            return Err(at(
                line,
                format!("rank {own} cannot exchange messages with itself; write calc instead"),
            ));
        }
        Ok((rank, bytes))
    }

    /// Parses the attributes at the end of an operation. Returns tag and CPU.
    fn attributes(&mut self, known: &[&str]) -> Result<[u64; 2], Wrong> {
        let (mut tag, mut cpu) = (0, 0);
        while let Some(Token::Word(name)) = self.tokens.peek()? {
            let line = self.tokens.line;
            if !known.contains(&name) {
                return Err(at(line, format!("\"{name}\" is not one of {}", known.join(", "))));
            }
            self.tokens.next()?;
            if name == "tag" && self.tokens.peek()? == Some(Token::Word("-1")) {
                return Err(at(
                    line,
                    "a receive with any tag (-1) is not simulated, because messages are matched before the run; \
                     write the tag",
                ));
            }
            let value = self.tokens.number(name, MOST_TAG)?;
            match name {
                "tag" => tag = value,
                "cpu" => cpu = value,
                _ => self.has_nics |= value > 0,
            }
        }
        Ok([tag, cpu])
    }
}
