//! A reader of the JSON that `rdma statistic -j` and `roce stat --json` print.

/// A value. Only whole numbers, texts, lists and objects matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Text(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
    /// Anything else, such as a fraction or null.
    Other,
}

impl Value {
    /// Returns the field with this name, if this is an object.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(super) const fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Maximum number of objects and lists inside each other.
const DEEPEST: usize = 16;

/// Parses a document. Returns `None` if it is not JSON.
pub(super) fn parse(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text.trim() };
    let value = reader.value(DEEPEST)?;
    reader.rest.trim().is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    /// Takes this character, and the spaces before it.
    fn take(&mut self, expected: char) -> bool {
        match self.rest.trim_start().strip_prefix(expected) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        match self.rest.trim_start().chars().next()? {
            '{' => self.object(depth),
            '[' => self.list(depth),
            '"' => self.string().map(Value::Text),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        let mut fields = Vec::new();
        self.take('{');
        if self.take('}') {
            return Some(Value::Object(fields));
        }
        loop {
            let name = self.string()?;
            if !self.take(':') {
                return None;
            }
            fields.push((name, self.value(depth)?));
            if self.take('}') {
                return Some(Value::Object(fields));
            }
            if !self.take(',') {
                return None;
            }
        }
    }

    fn list(&mut self, depth: usize) -> Option<Value> {
        let mut items = Vec::new();
        self.take('[');
        if self.take(']') {
            return Some(Value::List(items));
        }
        loop {
            items.push(self.value(depth)?);
            if self.take(']') {
                return Some(Value::List(items));
            }
            if !self.take(',') {
                return None;
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        if !self.take('"') {
            return None;
        }
        let mut text = String::new();
        let mut signs = self.rest.char_indices();
        while let Some((at, sign)) = signs.next() {
            match sign {
                '"' => {
                    self.rest = self.rest.get(at + 1..)?;
                    return Some(text);
                }
                // Names of counters and devices have no escapes; those of other texts do not matter.
                '\\' => text.push(signs.next()?.1),
                sign => text.push(sign),
            }
        }
        None
    }

    /// A number, or true, false and null.
    fn word(&mut self) -> Option<Value> {
        let rest = self.rest.trim_start();
        let end = rest.find([',', ']', '}']).unwrap_or(rest.len());
        let (word, rest) = rest.split_at_checked(end)?;
        self.rest = rest;
        let word = word.trim();
        match word.parse() {
            Ok(number) => Some(Value::Number(number)),
            Err(_) if word.is_empty() || word.contains(char::is_whitespace) => None,
            Err(_) => Some(Value::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read_and_others_refused() {
        let value = parse(r#" [ {"a":1, "b" : [true, -2, 3.5, "x\"y"]}, {} ] "#).unwrap();
        let Value::List(items) = value else { panic!() };
        assert_eq!(items[0].get("a").and_then(Value::number), Some(1));
        let Some(Value::List(list)) = items[0].get("b") else { panic!() };
        assert_eq!(list[..3], [Value::Other, Value::Other, Value::Other]);
        assert_eq!(list[3].text(), Some("x\"y"));
        assert_eq!(items[1], Value::Object(Vec::new()));
        for broken in ["", "[", "{\"a\"}", "[1 2]", "[1,]", "{\"a\":1}}", "\"", "[\"\\"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
        assert_eq!(parse(&"[".repeat(100_000)), None);
    }
}
