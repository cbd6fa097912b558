//! The examples, as a user runs them: the servers are started as programs, talked to by fifty clients, and ended by a signal; the
//! doctor examines the hooks; ten thousand fibers hand on words.

#[path = "common/patience.rs"]
mod patience;

use patience::{PATIENCE, Watchdog, eventually};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: usize = 50;
const ROUNDS: usize = 5;

/// An example that runs.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    address: SocketAddr,
}

/// The program of an example, which cargo has built next to this one.
fn program(example: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(|deps| deps.parent()).unwrap();
    let path = path.join("examples").join(example);
    assert!(
        path.exists(),
        "{} is not there: `cargo test` builds it, with --test it takes `cargo build --examples` first",
        path.display()
    );
    path
}

impl Server {
    /// Starts an example, or says that it could not be.
    fn try_start(example: &str, workers: usize, address: &str) -> Option<Server> {
        let mut child = Command::new(program(example))
            .arg(address)
            .env("FIBRANT", format!("workers={workers}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let Some((_, address)) = line.trim_end().split_once(" listens on ") else {
            child.wait().unwrap();
            return None;
        };
        Some(Server {
            address: address.parse().unwrap(),
            child,
            output,
        })
    }

    /// Starts an example; again, for a while, if somebody else has its port.
    fn start(example: &str, workers: usize, address: &str) -> Server {
        let start = Instant::now();
        loop {
            if let Some(server) = Server::try_start(example, workers, address) {
                return server;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{example} does not start on {address}"
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn send(&self, signal: i32) {
        // SAFETY: it is a child that has not been waited for, so the number is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    /// Waits until it has ended by itself. Returns how, and the last line that it printed.
    fn ended(mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(5));
        };
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (status, rest.lines().last().unwrap_or_default().to_owned())
    }
}

impl Drop for Server {
    /// If the test has failed, nothing is left behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets fifty clients talk at the same time. Returns their connections, which are open still.
fn clients(server: &Server, talk: fn(&mut TcpStream, usize)) -> Vec<TcpStream> {
    let together = Arc::new(Barrier::new(CLIENTS));
    let threads: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (mut stream, together) = (server.connect(), Arc::clone(&together));
            thread::spawn(move || {
                together.wait();
                talk(&mut stream, number);
                stream
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Runs an example twice for each number of workers, on the same port, ended by one signal and then by the other. `last` begins
/// something before the signal, and gives what has to be true after it.
fn serves_and_ends(example: &str, talk: fn(&mut TcpStream, usize), last: fn(&Server) -> Box<dyn FnOnce()>) {
    let _watchdog = Watchdog::new();
    for workers in [1, 2] {
        let mut address = "127.0.0.1:0".to_owned();
        for (signal, name) in [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT")] {
            let server = Server::start(example, workers, &address);
            address = server.address.to_string();
            let mut idle = clients(&server, talk);
            let check = last(&server);
            server.send(signal);
            check();
            for stream in &mut idle {
                assert_eq!(
                    stream.read(&mut [0]).unwrap(),
                    0,
                    "it is closed, without an error"
                );
            }
            let (status, line) = server.ended();
            assert_eq!(
                status.code(),
                Some(0),
                "{example}, {workers} workers, {name}: {line}"
            );
            let expected = format!(
                "{name}: ends after {} connections, 0 of them cut off",
                CLIENTS + 1
            );
            assert_eq!(line, expected, "{workers} workers");
        }
    }
}

/// How much of what was written the other side's kernel does not have yet.
fn unacknowledged(stream: &TcpStream) -> i32 {
    let mut count = 0;
    // SAFETY: writes to a local variable.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &mut count) };
    assert_eq!(result, 0);
    count
}

#[test]
fn echo_says_everything_back_and_ends_when_told() {
    fn say(stream: &mut TcpStream, text: &[u8]) {
        stream.write_all(text).unwrap();
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer == text, "{} bytes", text.len());
    }
    serves_and_ends(
        "echo",
        |stream, number| (0..ROUNDS).for_each(|round| say(stream, format!("{number} {round}").as_bytes())),
        |server| {
            let mut stream = server.connect();
            say(&mut stream, &[b'x'; 50_000]);
            // What it has received, it says back.
            stream.write_all(b"last words").unwrap();
            eventually("the words have arrived", || unacknowledged(&stream) == 0);
            Box::new(move || {
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, "last words");
            })
        },
    );
}

/// Reads a response: its status and its body.
fn response(reader: &mut BufReader<TcpStream>) -> (u32, String) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .unwrap_or_else(|| panic!("not a status line: {line:?}"));
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            Some(("Content-Length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (status, String::from_utf8(body).unwrap())
}

fn ask(reader: &mut BufReader<TcpStream>, request: &str) -> (u32, String) {
    reader.get_mut().write_all(request.as_bytes()).unwrap();
    response(reader)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")
}

#[test]
fn http_answers_and_ends_when_told() {
    serves_and_ends(
        "http",
        |stream, number| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            for round in 0..ROUNDS {
                let body = format!("hello, {number}-{round}\n");
                let hello = get(&format!("/hello/{number}-{round}"));
                assert_eq!(ask(&mut reader, &hello), (200, body.clone()));
                // Several at once are answered in their order.
                stream
                    .write_all(format!("{}{hello}{}", get("/"), get("/nothing")).as_bytes())
                    .unwrap();
                assert_eq!(response(&mut reader).0, 200);
                assert_eq!(response(&mut reader), (200, body));
                assert_eq!(response(&mut reader).0, 404);
            }
        },
        |server| {
            let mut reader = BufReader::new(server.connect());
            // When the first answer is there, so is the second request.
            assert_eq!(ask(&mut reader, &format!("{}{}", get("/"), get("/slow"))).0, 200);
            Box::new(move || {
                assert_eq!(response(&mut reader), (200, "half a second later\n".to_owned()));
                let mut rest = String::new();
                reader.read_to_string(&mut rest).unwrap();
                assert_eq!(rest, "");
            })
        },
    );
}

#[test]
fn http_lets_nobody_wait_for_the_slow_ones() {
    let _watchdog = Watchdog::new();
    let server = Server::start("http", 1, "127.0.0.1:0");
    let start = Instant::now();
    clients(&server, |stream, number| {
        let path = if number % 2 == 0 { "/slow" } else { "/" };
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        assert_eq!(ask(&mut reader, &get(path)).0, 200);
    });
    // One after the other, on its only worker, they would take 12.5 s.
    assert!(
        start.elapsed() >= Duration::from_millis(500),
        "{:?}",
        start.elapsed()
    );
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn http_refuses_nonsense_and_closes() {
    let _watchdog = Watchdog::new();
    let server = Server::start("http", 1, "127.0.0.1:0");
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let cases = [
        ("nonsense\r\n\r\n", 400),
        ("\r\n\r\n", 400),
        ("GET  / HTTP/1.1\r\n\r\n", 400),
        ("get / HTTP/1.1\r\n\r\n", 400),
        ("GET nowhere HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nname : value\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\n\r\n", 505),
        (
            "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            413,
        ),
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            413,
        ),
        (&long, 431),
        ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
        ("GET / HTTP/1.0\r\n\r\n", 200),
    ];
    for (request, status) in cases {
        let mut reader = BufReader::new(server.connect());
        let shown = &request[..request.len().min(60)];
        assert_eq!(ask(&mut reader, request).0, status, "{shown:?}");
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"", "one answer only: {shown:?}");
    }
    // A method that it does not know, and a head, leave the connection open.
    let mut reader = BufReader::new(server.connect());
    assert_eq!(ask(&mut reader, "DELETE / HTTP/1.1\r\n\r\n").0, 405);
    assert_eq!(ask(&mut reader, &get("/")).0, 200);
}

#[test]
fn ten_thousand_fibers_hand_on_words() {
    let _watchdog = Watchdog::new();
    for workers in [1, 2] {
        let mut command = Command::new(program("chain"));
        let output = command.env("FIBRANT", format!("workers={workers}")).output();
        let output = output.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{workers} workers: {text}");
        let last = text.lines().last();
        let expected = r#"["locks", "and", "channels"] after 30000 visits"#;
        assert_eq!(last, Some(expected), "{workers} workers: {text}");
        // Three words pass by four fibers that say so.
        assert_eq!(text.lines().count(), 13, "{workers} workers: {text}");
    }
}

#[test]
fn the_readme_shows_the_example_as_it_is() {
    let (_, code) = include_str!("../examples/chain.rs").split_once("\n\n").unwrap();
    let shown = format!("```rust\n{code}```\n");
    assert!(
        include_str!("../README.md").contains(&shown),
        "README.md and examples/chain.rs differ"
    );
}

/// Lets the doctor examine the hooks. Returns how it ended, and what it said.
fn doctor(setting: &str) -> (Option<i32>, String) {
    let mut command = Command::new(program("doctor"));
    let output = command.env("FIBRANT", setting).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), text)
}

#[test]
fn the_doctor_finds_nothing_wrong() {
    let _watchdog = Watchdog::new();
    let (status, text) = doctor("");
    assert_eq!(status, Some(0), "{text}");
    // Most of what waits is tried.
    let tried = text
        .lines()
        .filter(|line| line.split_whitespace().nth(2) == Some("yes"));
    assert!(tried.count() >= 60, "{text}");
    assert!(text.contains("All is well here"), "{text}");
}

#[test]
fn the_doctor_notices_that_the_hooks_are_off() {
    let _watchdog = Watchdog::new();
    let (status, text) = doctor("hooks=off");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("The hooks are off"), "{text}");
}
