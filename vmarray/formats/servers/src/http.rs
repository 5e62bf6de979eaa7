//! Parser for HTTP 1.1 messages, for the faulty proxy of the tests.

use std::io::{self, BufRead, Read};

/// A complete HTTP request or response.
pub struct Message {
    /// The first line and the headers, unchanged, with the empty line.
    pub head: String,
    /// The body. If the sender used chunked encoding, the body includes the lengths of the chunks.
    pub body: Vec<u8>,
}

impl Message {
    /// Reads a message; returns `None` at the end of the connection. `has_body` receives the head, and
    /// returns true if the message can have a body. The caller must decide this, because the response to a
    /// `HEAD` request has a length but no body.
    pub fn read(from: &mut impl BufRead, has_body: impl FnOnce(&str) -> bool) -> io::Result<Option<Self>> {
        let mut head = String::new();
        loop {
            let before = head.len();
            if from.read_line(&mut head)? == 0 {
                return if before == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            if head[before..] == *"\r\n" {
                break;
            }
        }
        let mut message = Self { head, body: Vec::new() };
        if !has_body(&message.head) {
            return Ok(Some(message));
        }
        if message.field("transfer-encoding").is_some_and(|how| how.contains("chunked")) {
            read_pieces(from, &mut message.body)?;
        } else if let Some(len) = message.field("content-length") {
            let len = len.parse().map_err(|_| io::ErrorKind::InvalidData)?;
            message.body.resize(len, 0);
            from.read_exact(&mut message.body)?;
        } else if message.head.starts_with("HTTP/") {
            from.read_to_end(&mut message.body)?;
        }
        Ok(Some(message))
    }

    /// Returns the words of the message's first line.
    pub fn first(&self) -> impl Iterator<Item = &str> {
        self.head.lines().next().unwrap_or_default().split(' ')
    }

    /// Returns the value of the header `name`.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.find(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// Returns the head with its `Content-Length` replaced by `len`. The head must have this header.
    pub fn head_of(&self, len: usize) -> String {
        let is_length = |line: &str| line.to_ascii_lowercase().starts_with("content-length:");
        let with =
            |line| if is_length(line) { format!("content-length: {len}\r\n") } else { format!("{line}\r\n") };
        self.head.lines().map(with).collect()
    }
}

/// Reads the chunks of a body, each after its length in hexadecimal digits, and appends them unchanged.
fn read_pieces(from: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let len = u64::from_str_radix(digits, 16).map_err(|_| io::ErrorKind::InvalidData)?;
        body.extend(line.as_bytes());
        if len == 0 {
            break;
        }
        from.take(len + 2).read_to_end(body)?;
    }
    // Read the trailer fields, up to an empty line.
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        body.extend(line.as_bytes());
        if line.trim().is_empty() {
            return Ok(());
        }
    }
}
