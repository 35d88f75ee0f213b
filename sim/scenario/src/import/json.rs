//! JSON, as far as groups of ranks need it.

/// The maximum depth of lists and maps.
const MOST_LEVELS: usize = 8;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Text(String),
    Number(u64),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
    /// A value that groups do not have: another number, `true`, `false` or `null`.
    Other,
}

impl Json {
    /// Parses a text. The error is the number of the line.
    pub(super) fn parse(text: &str) -> Result<Self, usize> {
        let mut parser = Parser { text };
        let value = parser.value(0).filter(|_| parser.next().is_none());
        value.ok_or_else(|| {
            let read = text.len() - parser.text.len();
            text[..read].matches('\n').count() + 1
        })
    }

    /// Returns the value of a key of a map.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Returns the numbers of a list of numbers.
    pub(super) fn numbers(&self) -> Option<Vec<u64>> {
        let Self::List(values) = self else { return None };
        let number = |value: &Self| if let Self::Number(number) = value { Some(*number) } else { None };
        values.iter().map(number).collect()
    }
}

struct Parser<'a> {
    text: &'a str,
}

impl Parser<'_> {
    /// Returns the next sign that is not a blank.
    fn next(&mut self) -> Option<char> {
        self.text = self.text.trim_start();
        self.text.chars().next()
    }

    /// Skips a sign if it is the next one.
    fn take(&mut self, sign: char) -> Option<()> {
        let is_next = self.next() == Some(sign);
        self.text = if is_next { &self.text[sign.len_utf8()..] } else { self.text };
        is_next.then_some(())
    }

    fn value(&mut self, level: usize) -> Option<Json> {
        if level > MOST_LEVELS {
            return None;
        }
        match self.next()? {
            '"' => self.string().map(Json::Text),
            '[' => {
                let mut values = Vec::new();
                self.sequence('[', ']', |parser| {
                    values.push(parser.value(level + 1)?);
                    Some(())
                })?;
                Some(Json::List(values))
            }
            '{' => {
                let mut entries = Vec::new();
                self.sequence('{', '}', |parser| {
                    let name = parser.string()?;
                    parser.take(':')?;
                    entries.push((name, parser.value(level + 1)?));
                    Some(())
                })?;
                Some(Json::Map(entries))
            }
            _ => {
                let is_end = |sign: char| sign.is_whitespace() || ",:[]{}\"".contains(sign);
                let length = self.text.find(is_end).unwrap_or(self.text.len());
                let (word, rest) = self.text.split_at(length);
                self.text = rest;
                (!word.is_empty()).then(|| word.parse().map_or(Json::Other, Json::Number))
            }
        }
    }

    fn sequence(
        &mut self,
        first: char,
        last: char,
        mut item: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.take(first)?;
        if self.take(last).is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            if self.take(',').is_none() {
                return self.take(last);
            }
        }
    }

    /// Reads a text. An escape stands for the sign after the backslash.
    fn string(&mut self) -> Option<String> {
        self.take('"')?;
        let mut text = String::new();
        let mut is_escaped = false;
        for (at, sign) in self.text.char_indices() {
            match sign {
                '"' if !is_escaped => {
                    self.text = &self.text[at + 1..];
                    return Some(text);
                }
                '\\' if !is_escaped => is_escaped = true,
                _ => {
                    text.push(sign);
                    is_escaped = false;
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_the_line_of_an_error() {
        let json = Json::parse("{ \"1\": [0, 1],\n \"a\\\"b\": [{\"x\": -1}, true, []] }").unwrap();
        assert_eq!(json.get("1").unwrap().numbers(), Some(vec![0, 1]));
        let list =
            Json::List(vec![Json::Map(vec![("x".to_owned(), Json::Other)]), Json::Other, Json::List(vec![])]);
        assert_eq!(json.get("a\"b"), Some(&list));
        for (text, line) in
            [("", 1), ("[1,\n2", 2), ("[1]\n\n x", 3), ("{\"a\" 1}", 1), ("[,]", 1), ("\"a", 1)]
        {
            assert_eq!(Json::parse(text), Err(line), "{text}");
        }
        let deep = "[".repeat(1_000_000);
        assert_eq!(Json::parse(&deep), Err(1));
    }
}
