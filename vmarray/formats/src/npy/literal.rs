//! Parser for the subset of Python literals in the headers of `.npy` files.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    Text(String),
    Number(u64),
    Bool(bool),
    /// A tuple or a list, with its items.
    Several(Vec<Self>),
    /// A dictionary with string keys.
    Named(Vec<(String, Self)>),
}

/// Maximum nesting of literals.
const DEPTH_MAX: u32 = 32;

impl Literal {
    /// Parses a text that consists of one literal.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut rest = Rest { text, at: 0 };
        let value = rest.value(0)?;
        match rest.next() {
            None => Ok(value),
            Some(other) => Err(rest.unexpected(other)),
        }
    }
}

struct Rest<'a> {
    text: &'a str,
    at: usize,
}

impl Rest<'_> {
    /// Returns the next non-blank character, without consuming it.
    fn next(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n', '\x0c']);
        self.at += rest.len() - trimmed.len();
        trimmed.chars().next()
    }

    fn unexpected(&self, what: char) -> String {
        format!("the header has an unexpected {what:?} at character {}", self.at)
    }

    /// Consumes a character if it is next.
    fn take(&mut self, wanted: char) -> bool {
        let is_there = self.next() == Some(wanted);
        if is_there {
            self.at += wanted.len_utf8();
        }
        is_there
    }

    fn need(&mut self, wanted: char) -> Result<(), String> {
        if self.take(wanted) {
            return Ok(());
        }
        Err(format!("the header lacks {wanted:?} at character {}", self.at))
    }

    fn value(&mut self, depth: u32) -> Result<Literal, String> {
        if depth > DEPTH_MAX {
            return Err(format!("the header nests values more than {DEPTH_MAX} levels deep"));
        }
        match self.next().ok_or("the header ends too early")? {
            '(' => self.several('(', ')', depth),
            '[' => self.several('[', ']', depth),
            '{' => self.named(depth),
            '\'' | '"' => self.text().map(Literal::Text),
            '0'..='9' => self.number(),
            other => {
                for (word, value) in [("True", true), ("False", false)] {
                    if self.text[self.at..].starts_with(word) {
                        self.at += word.len();
                        return Ok(Literal::Bool(value));
                    }
                }
                Err(self.unexpected(other))
            }
        }
    }

    fn several(&mut self, open: char, close: char, depth: u32) -> Result<Literal, String> {
        self.need(open)?;
        let (mut values, mut commas) = (Vec::new(), 0);
        while !self.take(close) {
            if commas < values.len() {
                self.need(',')?;
                commas += 1;
                continue;
            }
            values.push(self.value(depth + 1)?);
        }
        // In Python, parentheses around one value without a comma are no tuple.
        match &mut values[..] {
            [one] if open == '(' && commas == 0 => Ok(std::mem::replace(one, Literal::Bool(false))),
            _ => Ok(Literal::Several(values)),
        }
    }

    fn named(&mut self, depth: u32) -> Result<Literal, String> {
        self.need('{')?;
        let (mut values, mut commas) = (Vec::new(), 0);
        while !self.take('}') {
            if commas < values.len() {
                self.need(',')?;
                commas += 1;
                continue;
            }
            let name = match self.next() {
                Some('\'' | '"') => self.text()?,
                _ => return Err(format!("the header lacks a name at character {}", self.at)),
            };
            self.need(':')?;
            values.push((name, self.value(depth + 1)?));
        }
        Ok(Literal::Named(values))
    }

    fn text(&mut self) -> Result<String, String> {
        let rest = &self.text[self.at..];
        let mut chars = rest.char_indices();
        let quote = chars.next().map_or('\'', |(_, quote)| quote);
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.at += at + quote.len_utf8();
                    return Ok(text);
                }
                '\\' => text.push(escaped(&mut chars)?),
                _ => text.push(c),
            }
        }
        Err("a string in the header has no closing quote".into())
    }

    fn number(&mut self) -> Result<Literal, String> {
        let rest = &self.text[self.at..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        self.at += digits;
        // Skip the suffix `L`, by which Python 2 marks long integers.
        if rest[digits..].starts_with('L') {
            self.at += 1;
        }
        rest[..digits]
            .parse()
            .map(Literal::Number)
            .map_err(|_| "a number in the header has too many digits".into())
    }
}

/// Parses the escape sequence after a backslash.
fn escaped(chars: &mut std::str::CharIndices<'_>) -> Result<char, String> {
    let kind = chars.next().map(|(_, kind)| kind);
    let digits = match kind {
        Some(same @ ('\\' | '\'' | '"')) => return Ok(same),
        Some('n') => return Ok('\n'),
        Some('r') => return Ok('\r'),
        Some('t') => return Ok('\t'),
        Some('x') => 2,
        Some('u') => 4,
        Some('U') => 8,
        _ => 0,
    };
    let code: String = chars.take(digits).map(|(_, digit)| digit).collect();
    let character = u32::from_str_radix(&code, 16).ok().filter(|_| code.len() == digits);
    character.and_then(char::from_u32).ok_or_else(|| "a text of the header has an unknown escape".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_as_python_writes_them() {
        let several =
            |numbers: &[u64]| Literal::Several(numbers.iter().map(|n| Literal::Number(*n)).collect());
        for (text, value) in [
            (" 'a\\'\\u00e4b' ", Literal::Text("a'äb".into())),
            ("\"it's\"", Literal::Text("it's".into())),
            ("(3L, 4)", several(&[3, 4])),
            ("(3,)", several(&[3])),
            ("(3)", Literal::Number(3)),
            ("[3]", several(&[3])),
            ("()", several(&[])),
            ("{'a': True, }", Literal::Named(vec![("a".into(), Literal::Bool(true))])),
        ] {
            assert_eq!(Literal::parse(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let deep = "(".repeat(1_000_000);
        for text in [
            "",
            "(",
            "(1",
            "(,)",
            "(1,,)",
            "{1: 2}",
            "{'a' 1}",
            "'a",
            "'\\q'",
            "'\\x1'",
            "1 2",
            "-1",
            "None",
            "Truely",
            "99999999999999999999",
            &deep,
        ] {
            assert!(Literal::parse(text).is_err(), "{text}");
        }
    }
}
