//! The S3 test server moto, a Python program that runs as a child process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::keys::Keys;

/// The S3 server moto in a Python child process. The child ends when its standard input is closed, at the
/// latest when this process ends.
pub struct Moto {
    pub(crate) port: u16,
    pub(crate) keys: Keys,
    peer: Mutex<Peer>,
}

struct Peer {
    _process: Child,
    asked: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Moto {
    /// Starts the server with the Python of the environment; `None` if the environment names no Python.
    pub(crate) fn start() -> Option<Self> {
        let python = std::env::var_os("VMARRAY_FORMATS_PYTHON")?;
        let mut process = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/moto_server.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python must start");
        let (asked, answers) = (process.stdin.take(), process.stdout.take());
        let mut peer = Peer {
            _process: process,
            asked: asked.expect("the stream of the child process is a pipe"),
            answers: BufReader::new(answers.expect("the stream of the child process is a pipe")),
        };
        let first = peer.answer();
        let [port, id, secret] = first.split(' ').collect::<Vec<_>>()[..] else {
            panic!("moto printed {first} instead of its port and keys")
        };
        let port = port.parse().expect("moto must print its port as a number");
        Some(Self { port, keys: Keys { id: id.into(), secret: secret.into() }, peer: Mutex::new(peer) })
    }

    /// Sends the command `what` with the arguments `of` to the Python process, which runs it with Python's
    /// own S3 clients. Returns the printed result.
    ///
    /// # Panics
    /// If the command fails; Python has then printed the error.
    pub fn ask(&self, what: &str, of: &[&str]) -> String {
        let mut peer = self.peer.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(peer.asked, "{}", [&[what], of].concat().join(" ")).expect("Python must read it");
        let answer = peer.answer();
        let answer = answer.strip_prefix("ok");
        answer.unwrap_or_else(|| panic!("{what} {of:?} failed; see the output of Python")).trim().to_owned()
    }
}

impl Peer {
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the Python process must write lines");
        line.trim_end().to_owned()
    }
}
