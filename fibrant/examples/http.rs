//! A small HTTP/1.1 server with a fiber for each connection, in plain std: `cargo run --release --example http [ADDRESS]`.
//!
//! It keeps connections open, answers requests that come in one piece in their order, and takes no bodies. `/slow` sleeps as any
//! thread would; the others do not wait for it.

mod ending;

use ending::{Connections, Signals, stop_accepting};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

/// The request line and the headers must fit in this.
const LONGEST_HEAD: u64 = 8 * 1024;

/// How long a client may be silent, or not read what it is sent.
const IDLE: Duration = Duration::from_secs(60);

fn main() -> io::Result<()> {
    let signals = Signals::block()?;
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = Arc::new(TcpListener::bind(address)?);
    let local = listener.local_addr()?;
    println!("http listens on {local}");
    println!("try: curl http://{local}/ http://{local}/hello/you http://{local}/slow    Ctrl-C ends it");

    fibrant::run(|| {
        let connections = Arc::new(Connections::default());
        let server = fibrant::spawn({
            let (listener, connections) = (Arc::clone(&listener), Arc::clone(&connections));
            move || serve(&listener, &connections)
        });
        let signal = signals.wait()?;
        stop_accepting(&listener);
        let served = server.join().expect("the server does not panic");
        let unfinished = connections.finish(Duration::from_secs(5));
        println!("{signal}: ends after {served} connections, {unfinished} of them cut off");
        Ok(())
    })
}

/// Gives each connection a fiber, until the listener is shut down. Returns how many there were.
fn serve(listener: &TcpListener, connections: &Arc<Connections>) -> usize {
    let mut served = 0;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let connection = connections.enter(stream);
                fibrant::spawn(move || {
                    if let Err(error) = converse(&connection) {
                        eprintln!("a connection failed: {error}");
                    }
                });
                served += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return served,
            Err(error) => {
                eprintln!("accept: {error}"); // too many are open, perhaps
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Answers one request after the other.
fn converse(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let mut reader = BufReader::new(stream);
    loop {
        let head = match read_head(&mut reader)? {
            Some(head) => head,
            None => return Ok(()), // the client has no more questions
        };
        let (response, keep_alive) = match parse(&head) {
            Ok(request) => (answer(&request), request.keep_alive),
            Err(status) => (Response::new(status, format!("{status}\n")), false),
        };
        let is_head = head.starts_with(b"HEAD ");
        response.write(stream, keep_alive, is_head)?;
        if !keep_alive {
            // To close while something is unread would take back the answer.
            let _ = stream.shutdown(Shutdown::Write); // it fails if the client has gone
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            let _ = io::copy(&mut reader.take(1 << 20), &mut io::sink());
            return Ok(());
        }
    }
}

/// Everything up to the empty line, or up to the limit; nothing if the client has closed or is silent for too long.
fn read_head(reader: &mut BufReader<&TcpStream>) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    loop {
        let rest = LONGEST_HEAD - head.len() as u64;
        let start = head.len();
        let count = match reader.take(rest).read_until(b'\n', &mut head) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None), // the timeout
            Err(error) => return Err(error),
        };
        match &head[start..] {
            b"\r\n" | b"\n" => return Ok(Some(head)),
            _ if rest == count as u64 => return Ok(Some(head)), // too long: it does not end as it should
            line if line.ends_with(b"\n") => {}
            _ => return Ok(None),
        }
    }
}

struct Request<'a> {
    method: &'a str,
    path: &'a str,
    keep_alive: bool,
}

/// Understands a head, or says with which status to refuse it.
fn parse(head: &[u8]) -> Result<Request<'_>, &'static str> {
    const NONSENSE: &str = "400 Bad Request";
    let text = str::from_utf8(head).map_err(|_| NONSENSE)?;
    if !text.ends_with("\n\r\n") && !text.ends_with("\n\n") {
        let is_long = head.len() as u64 == LONGEST_HEAD;
        return Err(if is_long {
            "431 Request Header Fields Too Large"
        } else {
            NONSENSE
        });
    }
    let mut lines = text.lines();
    let words: Vec<&str> = lines.next().ok_or(NONSENSE)?.split(' ').collect();
    let &[method, target, version] = words.as_slice() else {
        return Err(NONSENSE);
    };
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) || !target.starts_with('/')
    {
        return Err(NONSENSE);
    }
    let mut keep_alive = match version {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        _ if version.starts_with("HTTP/") => return Err("505 HTTP Version Not Supported"),
        _ => return Err(NONSENSE),
    };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(NONSENSE)?;
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(NONSENSE);
        }
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "connection" if lists(value, "close") => keep_alive = false,
            "connection" if lists(value, "keep-alive") => keep_alive = true,
            "content-length" if value == "0" => {}
            // What follows would be taken for the next request.
            "content-length" | "transfer-encoding" => return Err("413 Content Too Large"),
            _ => {}
        }
    }
    let path = target.split('?').next().unwrap_or(target);
    Ok(Request {
        method,
        path,
        keep_alive,
    })
}

/// Whether a header's value, a list, has that word.
fn lists(value: &str, word: &str) -> bool {
    value.split(',').any(|one| one.trim().eq_ignore_ascii_case(word))
}

/// What the server is there for.
fn answer(request: &Request<'_>) -> Response {
    if !matches!(request.method, "GET" | "HEAD") {
        return Response::new("405 Method Not Allowed", "only GET and HEAD\n".to_owned());
    }
    match request.path {
        "/" => Response::new("200 OK", "a fiber for each connection\n".to_owned()),
        "/slow" => {
            thread::sleep(Duration::from_millis(500));
            Response::new("200 OK", "half a second later\n".to_owned())
        }
        path => match path.strip_prefix("/hello/") {
            Some(name) if !name.is_empty() => Response::new("200 OK", format!("hello, {name}\n")),
            _ => Response::new("404 Not Found", "nothing here\n".to_owned()),
        },
    }
}

struct Response {
    status: &'static str,
    body: String,
}

impl Response {
    fn new(status: &'static str, body: String) -> Response {
        Response { status, body }
    }

    /// Writes it in one piece, without the body if only the head was asked for.
    fn write(&self, mut stream: &TcpStream, keep_alive: bool, is_head: bool) -> io::Result<()> {
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let body = if is_head { "" } else { &self.body };
        let text = format!(
            "HTTP/1.1 {}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n{body}",
            self.status,
            self.body.len(),
        );
        stream.write_all(text.as_bytes())
    }
}
