//! A proxy between S3 client and server that injects faults on command, such as lost connections.

use std::io::{self, BufReader, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::http::Message;

/// Kind of a failure that the proxy causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The proxy does not forward the request, and responds with this status.
    Status(u16),
    /// The connection ends before the server receives the request.
    Lost,
    /// The server handles the request, and the connection ends before the response.
    Unanswered,
    /// The connection ends within the body of the response, or within its head if it has no body or reports
    /// an error.
    Cut,
    /// The response has half of its body, with a matching length.
    Short,
}

/// A request that the proxy received, and the failure that the proxy caused for it, if any.
#[derive(Clone, Debug)]
pub struct Request {
    /// Number of requests that the proxy received before this one.
    pub number: usize,
    pub method: String,
    /// The path and the query of the request's URL.
    pub path: String,
    pub fault: Option<Fault>,
}

/// Function that returns the failure of a request, if it is to fail.
type Decide = dyn FnMut(&Request) -> Option<Fault> + Send;

/// State that all connections of a proxy share.
struct Shared {
    to: u16,
    decide: Mutex<Box<Decide>>,
    seen: Mutex<Vec<Request>>,
}

/// A proxy in front of a local server. A closure selects the requests that fail. The proxy runs until the
/// program ends, because clients keep their connections open.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy that forwards requests to the local port `to`. `decide` returns a request's failure.
    pub fn new(to: u16, decide: impl FnMut(&Request) -> Option<Fault> + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the system has a free port");
        let port = listener.local_addr().expect("a bound socket has a port").port();
        let shared =
            Arc::new(Shared { to, decide: Mutex::new(Box::new(decide)), seen: Mutex::new(Vec::new()) });
        let of_all = Arc::clone(&shared);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = Arc::clone(&of_all);
                // Ignore errors of `serve`, because the client sees that the connection ends.
                thread::spawn(move || drop(serve(&shared, &connection)));
            }
        });
        Self { port, shared }
    }

    /// Local port on which the proxy listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Replaces the closure that selects the requests that fail.
    pub fn decide(&self, decide: impl FnMut(&Request) -> Option<Fault> + Send + 'static) {
        *self.shared.decide.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(decide);
    }

    /// Returns the requests that the proxy received since the last call.
    pub fn take_seen(&self) -> Vec<Request> {
        std::mem::take(&mut *self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Forwards the requests of a client's connection in order, each over a new connection to the server.
fn serve(shared: &Shared, client: &TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (mut from, mut to) = (BufReader::new(client), client);
    loop {
        let Some(asked) = Message::read(&mut from, |_| true)? else { return Ok(()) };
        let fault = shared.fault(&asked);
        match fault {
            Some(Fault::Status(status)) => {
                let body = format!("<Error><Code>{}</Code></Error>", code_of(status));
                let len = body.len();
                write!(to, "HTTP/1.1 {status} failed\r\ncontent-length: {len}\r\n\r\n")?;
                if asked.first().next() != Some("HEAD") {
                    to.write_all(body.as_bytes())?;
                }
                continue;
            }
            Some(Fault::Lost) => return client.shutdown(Shutdown::Both),
            _ => {}
        }
        let answer = pass_on(shared.to, &asked)?;
        let half = answer.body.len() / 2;
        match fault {
            Some(Fault::Unanswered) => return client.shutdown(Shutdown::Both),
            Some(Fault::Cut) => {
                if half == 0 || !answer.head.starts_with("HTTP/1.1 2") {
                    to.write_all(&answer.head.as_bytes()[..answer.head.len() / 2])?;
                } else {
                    to.write_all(answer.head.as_bytes())?;
                    to.write_all(&answer.body[..half])?;
                }
                return client.shutdown(Shutdown::Both);
            }
            Some(Fault::Short) if answer.field("content-length").is_some() && half > 0 => {
                to.write_all(answer.head_of(half).as_bytes())?;
                to.write_all(&answer.body[..half])?;
            }
            _ => {
                to.write_all(answer.head.as_bytes())?;
                to.write_all(&answer.body)?;
            }
        }
        if answer.field("connection").is_some_and(|how| how.eq_ignore_ascii_case("close")) {
            return client.shutdown(Shutdown::Both);
        }
    }
}

/// Sends a request to the server, and returns the response.
fn pass_on(port: u16, asked: &Message) -> io::Result<Message> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    server.set_nodelay(true)?;
    server.write_all(asked.head.as_bytes())?;
    server.write_all(&asked.body)?;
    let is_head = asked.first().next() == Some("HEAD");
    let has_body =
        |head: &str| !is_head && !head.starts_with("HTTP/1.1 204") && !head.starts_with("HTTP/1.1 304");
    let mut from = BufReader::new(&server);
    loop {
        let answer = Message::read(&mut from, |head| !head.starts_with("HTTP/1.1 100") && has_body(head))?;
        let answer = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
        if !answer.head.starts_with("HTTP/1.1 100") {
            return Ok(answer);
        }
    }
}

/// Returns S3's error code for an HTTP status.
fn code_of(status: u16) -> &'static str {
    match status {
        403 => "AccessDenied",
        429 | 503 => "SlowDown",
        _ => "InternalError",
    }
}

impl Shared {
    /// Records a request, and returns its failure.
    fn fault(&self, asked: &Message) -> Option<Fault> {
        let mut words = asked.first().map(str::to_owned);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut decide = self.decide.lock().unwrap_or_else(PoisonError::into_inner);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut request = Request { number: seen.len(), method, path, fault: None };
        request.fault = decide(&request);
        let fault = request.fault;
        seen.push(request);
        fault
    }
}
