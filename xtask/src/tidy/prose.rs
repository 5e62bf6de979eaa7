//! Extracts the prose of a source file: comments and documentation, line by line, without code.
//!
//! Text between backticks is code. So are code blocks in documentation, except for their comments. Blank
//! lines and lines without a letter are left out.

use regex::Regex;
use std::sync::LazyLock;

/// Code within a line of prose.
static CODE: LazyLock<Regex> = LazyLock::new(|| Regex::new("`[^`]*`").expect("the pattern is valid"));

/// Returns the lines of prose of a file with their line numbers, counted from 1. Returns an empty list for
/// languages other than Rust, Python and Markdown.
pub fn lines(name: &str, text: &str) -> Vec<(usize, String)> {
    let found = match name.rsplit('.').next() {
        Some("rs") => rust(text),
        Some("py" | "pyi") => python(text),
        Some("md") => blocks((1..).zip(text.lines())),
        _ => Vec::new(),
    };
    let plain = found.into_iter().map(|(number, line)| (number, CODE.replace_all(line, "").into_owned()));
    plain.filter(|(_, line)| line.contains(char::is_alphabetic)).collect()
}

/// Returns the prose of Rust: all comments, and documentation without its code blocks.
fn rust(text: &str) -> Vec<(usize, &str)> {
    let mut prose = Vec::new();
    let mut documentation: Vec<(usize, &str)> = Vec::new();
    for (number, comment) in rust_comments(text) {
        let body = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!"));
        let continues = documentation.last().is_some_and(|(last, _)| last + 1 == number);
        if !continues || body.is_none() {
            prose.extend(blocks(documentation.drain(..)));
        }
        match body {
            Some(body) => documentation.push((number, body)),
            None => prose.push((number, comment.trim_start_matches('/'))),
        }
    }
    prose.extend(blocks(documentation.into_iter()));
    prose
}

/// Returns the lines of Markdown outside of code blocks, and the comments within code blocks.
fn blocks<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, &'a str)> {
    let mut prose = Vec::new();
    let mut comment_mark = None;
    for (number, line) in lines {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            comment_mark = match comment_mark {
                Some(_) => None,
                None if language.starts_with("py") || language == "sh" => Some("# "),
                None => Some("// "),
            };
            continue;
        }
        match comment_mark {
            None => prose.push((number, line)),
            Some(mark) => prose.extend(line.split_once(mark).map(|(_, comment)| (number, comment))),
        }
    }
    prose
}

/// Returns the comments of Rust with their line numbers. Slashes in strings and characters are no comments.
fn rust_comments(text: &str) -> Vec<(usize, &str)> {
    let bytes = text.as_bytes();
    let starts = |at: usize, what: &str| bytes[at.min(bytes.len())..].starts_with(what.as_bytes());
    // Returns the end of the text that begins at index `at` and ends with the pattern `end`.
    let end_of = |at: usize, end: &str| {
        text.get(at..).and_then(|rest| rest.find(end)).map_or(text.len(), |found| at + found + end.len())
    };
    let mut comments = Vec::new();
    let (mut at, mut number) = (0, 1);
    while at < bytes.len() {
        let begin = at;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
        if starts(at, "//") {
            at = end_of(at, "\n").saturating_sub(1).max(at + 2);
            comments.push((number, text[begin..at].trim_end()));
        } else if starts(at, "/*") {
            at = block_comment_end(bytes, at);
            comments.extend((number..).zip(text[begin..at].lines()));
        } else if bytes[at] == b'"' {
            at = quoted_end(bytes, at + 1);
        } else if bytes[at] == b'\'' {
            at = if starts(at + 1, "\\") {
                end_of(at + 3, "'")
            } else {
                let width = text[at + 1..].chars().next().map_or(0, char::len_utf8);
                if starts(at + 1 + width, "'") { at + width + 2 } else { at + 1 }
            };
        } else if is_word(bytes[at]) {
            at += bytes[at..].iter().take_while(|&&byte| is_word(byte)).count();
            let hashes = bytes[at..].iter().take_while(|&&byte| byte == b'#').count();
            let is_raw = ["r", "br", "cr"].contains(&&text[begin..at]);
            if is_raw && starts(at + hashes, "\"") {
                at = end_of(at + hashes + 1, &format!("\"{}", "#".repeat(hashes)));
            }
        } else {
            at += 1;
        }
        number += bytes[begin..at].iter().filter(|&&byte| byte == b'\n').count();
    }
    comments
}

/// Returns the end of a block comment, which may contain others.
fn block_comment_end(bytes: &[u8], begin: usize) -> usize {
    let (mut at, mut depth) = (begin, 0);
    while at < bytes.len() {
        match bytes.get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(bytes.len())
}

/// Returns the end of a string with escapes, after its closing quotation mark.
fn quoted_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Returns the prose of Python: comments and docstrings, without the code of doctests.
fn python(text: &str) -> Vec<(usize, &str)> {
    let mut prose = Vec::new();
    let mut quotes: Option<&str> = None;
    let mut in_example = false;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        let mut body = trimmed;
        if quotes.is_none() {
            let unprefixed = trimmed.trim_start_matches(['r', 'R']);
            quotes = ["\"\"\"", "'''"].into_iter().find(|mark| unprefixed.starts_with(mark));
            let Some(mark) = quotes else {
                prose.extend(python_comment(line).map(|comment| (number, comment)));
                continue;
            };
            body = &unprefixed[mark.len()..];
        }
        in_example = body.starts_with(">>>") || in_example && !body.trim().is_empty();
        let end = quotes.and_then(|mark| body.find(mark));
        if !in_example {
            prose.push((number, &body[..end.unwrap_or(body.len())]));
        }
        if end.is_some() {
            (quotes, in_example) = (None, false);
        }
    }
    prose
}

/// Returns the comment in a line of Python; ignores `#` in a string.
fn python_comment(line: &str) -> Option<&str> {
    let mut quote = None;
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '#') => return Some(&line[at + 1..]),
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), letter) if letter == open => quote = None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> Vec<(usize, String)> {
        lines(name, text).into_iter().map(|(number, line)| (number, line.trim().to_string())).collect()
    }

    fn some(lines: &[(usize, &str)]) -> Vec<(usize, String)> {
        lines.iter().map(|(number, line)| (*number, line.to_string())).collect()
    }

    #[test]
    fn prose_of_rust() {
        let text = "//! A module.\n\nlet s = \"// no\"; // yes\nlet c = '\"'; /* a\n/* b */ c */ let r = r#\"// \"no\"#;\n\
                    let quote = b'\\''; fn f<'a>(x: &'a str) {} // lifetime\n//\n";
        let prose = some(&[(1, "A module."), (3, "yes"), (4, "* a"), (5, "* b */ c */"), (6, "lifetime")]);
        assert_eq!(found("a.rs", text), prose);
        let text = "/// Adds `what`.\n///\n/// ```\n/// let x = 1; // One.\n/// let y = 2;\n/// ```\n/// End.\nfn f() {}\n";
        assert_eq!(found("a.rs", text), some(&[(1, "Adds ."), (4, "One."), (7, "End.")]));
        // An open block of one item does not reach into the next item.
        assert_eq!(found("a.rs", "/// ```\nfn f() {}\n/// G.\nfn g() {}\n"), some(&[(3, "G.")]));
    }

    #[test]
    fn prose_of_python_and_markdown() {
        let text = "x = 'a # b'  # c\ndef f():\n    \"\"\"Adds.\n\n    >>> f()\n    what\n\n    End.\"\"\"\n    return 1\n";
        assert_eq!(found("a.py", text), some(&[(1, "c"), (3, "Adds."), (8, "End.")]));
        let text = "# Title\n\n```rust\nlet x = 1; // One.\n```\n| a |\n```python\nx = 1  # Two.\n```\n";
        assert_eq!(found("a.md", text), some(&[(1, "# Title"), (4, "One."), (6, "| a |"), (8, "Two.")]));
        assert!(found("a.toml", "# A comment.\n").is_empty());
    }
}
