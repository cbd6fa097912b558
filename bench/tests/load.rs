//! The load generator and the yardstick of the servers, as programs: figures that make sense, and servers that fail.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

const LOAD: &str = env!("CARGO_BIN_EXE_load");
const EPOLL: &str = env!("CARGO_BIN_EXE_epoll");

/// What a line says: label, variant and value.
type Line = (String, String, String);

/// Runs the load generator: its lines. It has a minute.
fn load(arguments: &[&str]) -> Vec<Line> {
    let output = Command::new("timeout")
        .args(["60", LOAD])
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .expect("the load generator");
    let text = String::from_utf8(output.stdout).expect("text");
    println!("{text}");
    assert!(output.status.success(), "{}", output.status);
    text.lines()
        .map(|line| {
            let [label, bench, variant, value, _unit] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("not five fields: {line}");
            };
            assert_eq!(bench, arguments[0]);
            (label.into(), variant.into(), value.into())
        })
        .collect()
}

/// The values of a server's lines of one kind.
fn values(lines: &[Line], label: &str, variant: &str) -> Vec<f64> {
    lines
        .iter()
        .filter(|line| line.0 == label && line.1 == variant)
        .map(|line| line.2.parse().expect("a number"))
        .collect()
}

/// Why a server failed.
fn failure<'a>(lines: &'a [Line], label: &str) -> Option<&'a str> {
    lines
        .iter()
        .filter(|line| line.0 == label)
        .find_map(|line| line.2.strip_prefix("FAIL: "))
}

/// A server has its figures for each of so many rounds, and they fit together.
fn check(lines: &[Line], label: &str, rounds: usize) {
    let values = |variant| {
        let values = values(lines, label, variant);
        assert_eq!(values.len(), rounds, "{label}: {variant}");
        values
    };
    values("cpu")
        .iter()
        .for_each(|&time| assert!(time > 0.0 && time < 1e6));
    values("rate").iter().for_each(|&rate| assert!(rate > 0.0));
    values("client idle")
        .iter()
        .for_each(|&idle| assert!((0.0..=100.0).contains(&idle)));
    let percentiles = ["p50", "p90", "p99", "p99.9", "p99.99", "max"].map(values);
    for round in 0..rounds {
        assert!(percentiles[0][round] > 0.0);
        assert!(percentiles.is_sorted_by(|one, other| one[round] <= other[round]));
    }
}

/// The command of a server that this process is itself.
fn here(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream.expect("a connection")));
        }
    });
    format!("sh -c 'echo READY {port}; exec sleep 60'")
}

/// Sends the message of some number back as `change` makes it.
fn echo(mut stream: TcpStream, mut change: impl FnMut(usize, &mut Vec<u8>)) {
    let mut message = vec![0; 64];
    for number in 0.. {
        message.resize(64, 0);
        if stream.read_exact(&mut message).is_err() {
            return;
        }
        change(number, &mut message);
        if stream.write_all(&message).is_err() {
            return;
        }
    }
}

#[test]
fn echo_servers_take_turns() {
    let server = format!("{EPOLL} echo 1 0");
    let (one, other) = (format!("one={server}"), format!("other={server}"));
    let line = "echo --connections 70 --rounds 2 --turn 0.5 --syscalls";
    let lines = load(&[&line.split(' ').collect::<Vec<_>>(), &[&*one, &other][..]].concat());
    for label in ["one", "other"] {
        check(&lines, label, 2);
        match failure(&lines, label) {
            // One read and one write, and of epoll_wait less than one.
            None => {
                let all = values(&lines, label, "syscalls all");
                assert!(all.len() == 1 && (2.0..4.0).contains(&all[0]), "{all:?}");
                assert_eq!(values(&lines, label, "syscalls read"), [1.0]);
            }
            // There is none, or it may not.
            Some(reason) => assert!(reason.starts_with("strace"), "{reason}"),
        }
    }
}

#[test]
fn http_is_spoken() {
    let server = format!("many={EPOLL} http 2 0");
    let line = "http --connections 10 --rounds 2 --turn 0.5 --workers 2";
    let lines = load(&[&line.split(' ').collect::<Vec<_>>(), &[&*server][..]].concat());
    assert_eq!(failure(&lines, "many"), None);
    check(&lines, "many", 2);
}

/// A message that no socket's buffer holds needs several writes on both sides.
#[test]
fn messages_may_be_larger_than_buffers() {
    let server = format!("large={EPOLL} echo 1 0");
    let size = (16 << 20).to_string();
    let lines = load(&[
        "echo",
        "--connections",
        "2",
        "--rounds",
        "1",
        "--size",
        &size,
        &server,
    ]);
    assert_eq!(failure(&lines, "large"), None);
    check(&lines, "large", 1);
}

#[test]
fn a_server_that_fails_is_named_and_the_others_go_on() {
    let servers = [
        ("good", here(|stream| echo(stream, |_, _| {}))),
        (
            "mangles",
            here(|stream| echo(stream, |number, message| message[63] ^= u8::from(number == 1))),
        ),
        (
            "repeats",
            here(|stream| {
                echo(stream, |number, message| {
                    if number == 1 {
                        message.extend_from_within(..);
                    }
                });
            }),
        ),
        (
            "stale",
            here(|stream| {
                let mut before = vec![0; 64];
                echo(stream, move |number, message| {
                    let now = message.clone();
                    if number == 1 {
                        message.copy_from_slice(&before);
                    }
                    before = now;
                });
            }),
        ),
        (
            "closes",
            here(|stream| {
                let other = stream.try_clone().expect("a descriptor");
                echo(stream, |number, _| {
                    if number == 1 {
                        let _ = other.shutdown(Shutdown::Both);
                    }
                });
            }),
        ),
        ("cannot", "printf 'x\\techo\\t-\\tFAIL: no luck\\t-\\n'".into()),
        ("absent", "/nowhere/at/all 2>/dev/null".into()),
    ]
    .map(|(label, command)| format!("{label}={command}"));
    let line = "echo --connections 3 --rounds 2 --turn 0.5".split(' ');
    let lines = load(&line.chain(servers.iter().map(String::as_str)).collect::<Vec<_>>());
    assert_eq!(failure(&lines, "good"), None);
    check_rates(&lines, "good", 2);
    for (label, reason) in [
        ("mangles", "something else"),
        ("stale", "something else"),
        ("repeats", "sent"),
        ("closes", "hung up"),
        ("cannot", "no luck"),
        ("absent", "ended before"),
    ] {
        let found = failure(&lines, label).unwrap_or("no failure");
        assert!(found.contains(reason), "{label}: {found}");
    }
}

/// The server is not the process that sleeps, so only its answers can be judged.
fn check_rates(lines: &[Line], label: &str, rounds: usize) {
    let rates = values(lines, label, "rate");
    assert_eq!(rates.len(), rounds);
    rates.iter().for_each(|&rate| assert!(rate > 0.0));
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let server = here(|stream| {
        echo(stream, |number, _| {
            if number == 1 {
                thread::sleep(Duration::from_secs(60));
            }
        });
    });
    let server = format!("silent={server}");
    let lines = load(&["echo", "--connections", "3", "--rounds", "2", &server]);
    assert_eq!(failure(&lines, "silent"), Some("no answer for 5 s"));
}

/// One connection that starves is not hidden by the others.
#[test]
fn a_connection_that_does_not_answer_is_not_forgotten() {
    let first = Arc::new(AtomicBool::new(true));
    let server = here(move |stream| {
        let starves = first.swap(false, SeqCst);
        echo(stream, |number, _| {
            if starves && number == 1 {
                thread::sleep(Duration::from_secs(60));
            }
        });
    });
    let server = format!("unfair={server}");
    let lines = load(&["echo", "--connections", "3", "--rounds", "2", &server]);
    let reason = failure(&lines, "unfair").expect("a failure");
    assert!(reason.ends_with("for 5 s"), "{reason}");
}

/// A request that takes longer than the turn is the slowest one, not none at all.
#[test]
fn a_slow_answer_is_not_forgotten() {
    let first = Arc::new(AtomicBool::new(true));
    let server = here(move |stream| {
        let is_slow = first.swap(false, SeqCst);
        echo(stream, |_, _| {
            if is_slow {
                thread::sleep(Duration::from_millis(500));
            }
        });
    });
    let server = format!("uneven={server}");
    let line = "echo --connections 3 --rounds 2 --turn 0.5".split(' ');
    let lines = load(&line.chain([&*server]).collect::<Vec<_>>());
    assert_eq!(failure(&lines, "uneven"), None);
    let slowest = values(&lines, "uneven", "max");
    assert_eq!(slowest.len(), 2);
    // Three digits of it are kept.
    slowest.iter().for_each(|&time| assert!(time > 499_000.0));
}

#[test]
fn an_answer_may_come_in_parts() {
    let server = here(|stream| {
        let mut lines = BufReader::new(stream.try_clone().expect("a descriptor")).lines();
        stream.set_nodelay(true).expect("an option");
        while let Some(Ok(line)) = lines.next() {
            if line.is_empty() {
                for part in [
                    "HTTP/1.1 200 OK\r\nContent-",
                    "Length: 13\r\n\r\nHello,",
                    " World!",
                ] {
                    if (&stream).write_all(part.as_bytes()).is_err() {
                        return;
                    }
                    thread::yield_now();
                }
            }
        }
    });
    let server = format!("slow={server}");
    let line = "http --connections 3 --rounds 2 --turn 0.5".split(' ');
    let lines = load(&line.chain([&*server]).collect::<Vec<_>>());
    assert_eq!(failure(&lines, "slow"), None);
    check_rates(&lines, "slow", 2);
}

#[test]
fn servers_end_with_the_generator() {
    let file = std::env::temp_dir().join(format!("bench-load-{}", std::process::id()));
    let server = format!("one=sh -c 'echo $$ > {}; exec {EPOLL} echo 1 0'", file.display());
    let mut load = Command::new(LOAD)
        .args(["echo", "--rounds", "1000", "--turn", "0.05", &server])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the load generator");
    let mut line = String::new();
    let mut output = BufReader::new(load.stdout.take().expect("it is piped"));
    output.read_line(&mut line).expect("the first figure");
    let id = fs::read_to_string(&file).expect("the server's number");
    fs::remove_file(&file).expect("the file");
    load.kill().expect("it runs");
    load.wait().expect("it ends");
    // Who takes in the children of others may be slow to bury them.
    let is_gone = || match fs::read_to_string(format!("/proc/{}/stat", id.trim())) {
        Ok(stat) => stat.contains(") Z "),
        Err(_) => true,
    };
    let start = Instant::now();
    while !is_gone() && start.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(5));
    }
    let was_gone = is_gone();
    if !was_gone {
        let _ = Command::new("kill").args(["-KILL", id.trim()]).status();
    }
    assert!(was_gone, "process {id} goes on");
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Requests may come in parts, and several together.
#[test]
fn the_yardstick_answers_each_request_once() {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";
    let mut server = Killed(
        Command::new(EPOLL)
            .args(["http", "1", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server"),
    );
    let mut line = String::new();
    let mut output = BufReader::new(server.0.stdout.take().expect("it is piped"));
    output.read_line(&mut line).expect("a line");
    let port: u16 = line
        .trim()
        .strip_prefix("READY ")
        .expect("ready")
        .parse()
        .expect("a port");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("an option");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let three = request.repeat(3);
    let mut say = |words: &[u8], answers: usize| {
        stream.write_all(words).expect("it listens");
        let mut bytes = vec![0; answers * ANSWER.len()];
        stream.read_exact(&mut bytes).expect("answers");
        assert_eq!(bytes, ANSWER.repeat(answers));
    };
    say(request, 1);
    say(&three, 3);
    // In two parts, at each place; the first part is on its way before the second one.
    for place in 1..three.len() {
        say(&three[..place], place / request.len());
        say(&three[place..], 3 - place / request.len());
    }
    // More than the socket's buffers hold: answers have to wait for those who read them, as requests do.
    let many = 200_000;
    let mut writer = stream.try_clone().expect("a descriptor");
    let writes = thread::spawn(move || writer.write_all(&request.repeat(many)).expect("it listens"));
    let mut bytes = vec![0; many * ANSWER.len()];
    stream.read_exact(&mut bytes).expect("answers");
    assert!(bytes == ANSWER.repeat(many));
    writes.join().expect("it was all written");
}
