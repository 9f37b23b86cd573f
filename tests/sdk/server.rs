//! The least server in front of the library that official SDKs accept: HTTP/1.1 on loopback, a thread a connection,
//! events as they come, errors with their status. It keeps a record of every request, and holds a stream still when a
//! test asks for that by a header.
//!
//! | header | meaning |
//! |---|---|
//! | `x-test-hold: N` | nothing is read behind the first N events until the client goes away |
//! | `x-test-deadline: MS` | the request has this long; with a hold, which then ends with it |

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fathom::capi::queue::FATHOM_FINISH_ERROR;
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use crate::host::{Done, Failure, Kind, Queue, Wishes, host};

const MAX_HEAD: u64 = 64 << 10;
const MAX_BODY: usize = 8 << 20;
/// How long anybody waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a server that waits for tokens looks whether its client is still there.
const LOOK_MS: i64 = 20;

/// Requests that have ended, in the order of their ends.
#[derive(Debug, Default)]
struct Record {
    ended: Mutex<Vec<Value>>,
    arrived: Condvar,
}

/// A server; it stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    stops: Arc<AtomicBool>,
    accepts: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = listener.local_addr().expect("it is bound");
        let (stops, record) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Record::default()),
        );
        let stopping = Arc::clone(&stops);
        let accepts = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if stopping.load(SeqCst) {
                    return;
                }
                let record = Arc::clone(&record);
                // A connection that breaks is its client's matter; what became of its request is in the record.
                std::thread::spawn(move || connection.and_then(|c| serve(&c, &record)));
            }
        });
        Self {
            address,
            stops,
            accepts: Some(accepts),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stops.store(true, SeqCst);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        if let Some(accepts) = self.accepts.take() {
            accepts.join().expect("it does not panic");
        }
    }
}

/// A request as it came.
struct Request {
    method: String,
    /// Without what follows a question mark.
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find_map(|(found, value)| (found == name).then_some(value.as_str()))
    }

    fn number(&self, header: &str) -> Option<u64> {
        self.header(header)
            .map(|text| text.parse().expect("tests write numbers"))
    }
}

/// Answers one request after another until the client closes.
fn serve(connection: &TcpStream, record: &Record) -> Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection);
    while let Some(request) = read(&mut reader)? {
        let closes = request
            .header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let protocol = match (request.method.as_str(), request.path.as_str()) {
            ("POST", "/v1/chat/completions") => 1,
            ("POST", "/v1/responses") => 2,
            ("POST", "/v1/messages") => 3,
            ("GET", path) if path.starts_with("/test/ended") => {
                reply(connection, 200, &ended(record, path))?;
                continue;
            }
            (method, path) => {
                let message = format!("there is no {method} {path}");
                reply(
                    connection,
                    404,
                    &json!({"error": {"message": message, "type": "not_found_error"}}),
                )?;
                continue;
            }
        };
        let mut told = Told {
            connection,
            streaming: request_streams(&request.body),
            begun: false,
            gone: false,
            lines: Vec::new(),
        };
        let done = answer(&request, protocol, &mut told);
        let entry = told.entry(&request, &done);
        let gone = told.gone;
        // Counted before the last byte is out: a client that has read it finds the record.
        record.ended.lock().push(entry);
        record.arrived.notify_all();
        if gone {
            return Ok(());
        }
        told.end(protocol, done)?;
        if closes {
            return Ok(());
        }
    }
    Ok(())
}

fn request_streams(body: &str) -> bool {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    body["stream"] == true
}

/// `None` once the client has closed.
fn read(reader: &mut BufReader<&TcpStream>) -> Result<Option<Request>> {
    let odd = |what| Error::new(ErrorKind::InvalidData, what);
    let mut head = String::new();
    let mut limited = reader.take(MAX_HEAD);
    loop {
        let before = head.len();
        if limited.read_line(&mut head)? == 0 {
            return if head.is_empty() {
                Ok(None)
            } else {
                Err(odd("a request without an end"))
            };
        }
        if head[before..].trim_end().is_empty() {
            break;
        }
    }
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(odd("no request line"));
    };
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers: Vec<(String, String)> = headers
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut request = Request {
        method: method.to_owned(),
        path: target.split('?').next().unwrap_or_default().to_owned(),
        headers,
        body: String::new(),
    };
    let length = request.number("content-length").unwrap_or(0);
    let length = usize::try_from(length).ok().filter(|n| *n <= MAX_BODY);
    let mut body = vec![0; length.ok_or_else(|| odd("a body too long"))?];
    reader.read_exact(&mut body)?;
    request.body = String::from_utf8(body).map_err(|_| odd("a body that is no text"))?;
    Ok(Some(request))
}

/// What a client is told, and what of it is kept for the record.
struct Told<'c> {
    connection: &'c TcpStream,
    streaming: bool,
    /// The status line is out.
    begun: bool,
    /// The client is not there any more.
    gone: bool,
    lines: Vec<Value>,
}

impl Told<'_> {
    /// Tells one event, as it comes or at the end.
    fn event(&mut self, name: Option<&str>, data: &str) {
        let parsed: Value = serde_json::from_str(data).expect("events are JSON");
        self.lines.push(json!({"event": name, "data": parsed}));
        if self.gone || !self.streaming {
            return;
        }
        let mut text = name.map_or(String::new(), |name| format!("event: {name}\n"));
        text += &format!("data: {data}\n\n");
        self.gone = self.chunk(&text).is_err();
    }

    fn chunk(&mut self, text: &str) -> Result<()> {
        let mut out = String::new();
        if !std::mem::replace(&mut self.begun, true) {
            out += "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        }
        out += &format!("{:x}\r\n{text}\r\n", text.len());
        self.connection.write_all(out.as_bytes())
    }

    /// Sees whether the client is still there.
    fn look(&mut self) {
        // Nobody else reads or writes meanwhile.
        let looked = self
            .connection
            .set_nonblocking(true)
            .and_then(|()| self.connection.peek(&mut [0]));
        let blocks = self.connection.set_nonblocking(false);
        self.gone |= blocks.is_err()
            || match looked {
                Ok(read) => read == 0,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            };
    }

    /// The end of the answer.
    fn end(self, protocol: i32, done: std::result::Result<Done, Box<Failure>>) -> Result<()> {
        let failure = match done {
            Ok(done) => done.error,
            Err(failure) => Some(*failure),
        };
        if self.begun {
            // What broke off was told by its last event.
            let failed = self
                .lines
                .last()
                .is_some_and(|line| line["data"].get("error").is_some());
            let mut last = "0\r\n\r\n".to_owned();
            if protocol == 1 && !failed {
                let text = "data: [DONE]\n\n";
                last = format!("{:x}\r\n{text}\r\n{last}", text.len());
            }
            let mut connection = self.connection;
            return connection.write_all(last.as_bytes());
        }
        match failure {
            Some(failure) => {
                let status = u16::try_from(failure.http).expect("a status");
                reply(self.connection, status, &failure.body)
            }
            None => reply(self.connection, 200, &self.lines[0]["data"]),
        }
    }

    fn entry(&self, request: &Request, done: &std::result::Result<Done, Box<Failure>>) -> Value {
        let (finish, usage, failure) = match done {
            Ok(done) => (done.finish, done.usage, done.error.as_ref()),
            Err(failure) => (FATHOM_FINISH_ERROR, None, Some(&**failure)),
        };
        json!({
            "path": request.path,
            "lines": self.lines,
            "gone": self.gone,
            "finish": finish,
            "status": failure.map(|failure| failure.status),
            "completion_tokens": usage.map(|usage| usage.completion),
        })
    }
}

/// Lets the library answer, and tells the client as it goes.
fn answer(
    request: &Request,
    protocol: i32,
    told: &mut Told<'_>,
) -> std::result::Result<Done, Box<Failure>> {
    let hold = request.number("x-test-hold");
    let deadline_ms = request.number("x-test-deadline").unwrap_or(0);
    let wishes = Wishes {
        deadline_ms,
        max_unread_tokens: u32::from(hold.is_some()),
        options_json: Some(r#"{"error_param": true}"#.to_owned()),
        ..Wishes::default()
    };
    let mut queue = Queue::new(protocol);
    let began = Instant::now();
    let id = host().call(&queue, protocol, &request.body, &wishes)?;
    let (mut held, mut cancelled) = (false, false);
    loop {
        for event in queue.poll(LOOK_MS) {
            match event.kind {
                Kind::Data { name, data, .. } => told.event(name.as_deref(), &data),
                Kind::Done(done) => return Ok(done),
                Kind::Tokens(_) => panic!("tokens of a call"),
            }
            if !held && hold == Some(told.lines.len() as u64) {
                held = true;
                while !told.gone && began.elapsed() < PATIENCE {
                    // A deadline needs no client to go away.
                    if deadline_ms > 0 && began.elapsed() > Duration::from_millis(deadline_ms + 100)
                    {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                    told.look();
                }
            }
        }
        told.look();
        if told.gone && !std::mem::replace(&mut cancelled, true) {
            host().cancel(id);
        }
    }
}

fn reply(mut connection: &TcpStream, status: u16, body: &Value) -> Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} .\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all((head + &body).as_bytes())
}

/// `/test/ended` is how many requests have ended; `/test/ended/N` waits for the Nth, counted from 0. Both also say what
/// the engine has in hand, which is nothing of this server's once its requests have ended.
fn ended(record: &Record, path: &str) -> Value {
    let wanted: Option<usize> = path
        .strip_prefix("/test/ended/")
        .and_then(|n| n.parse().ok());
    let until = Instant::now() + PATIENCE;
    let mut ended = record.ended.lock();
    while wanted.is_some_and(|wanted| wanted >= ended.len()) {
        if record.arrived.wait_until(&mut ended, until).timed_out() {
            break;
        }
    }
    let request = wanted.and_then(|wanted| ended.get(wanted));
    json!({"count": ended.len(), "request": request})
}
