//! A server with a fiber for each connection, and its clients, written with nothing but std, on two workers.

mod common;
#[path = "common/patience.rs"]
mod patience;

use fibrant::runtime::Builder;
use patience::Watchdog;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

/// Both ends are here, so there are twice as many descriptors.
const CONNECTIONS: usize = 400;
const ROUNDS: usize = 20;

/// Says everything back until the other side has nothing more to say.
fn echo(mut stream: TcpStream) -> usize {
    let mut buffer = [0; 1024];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return total,
            count => stream.write_all(&buffer[..count]).unwrap(),
        }
        total += 1;
    }
}

/// Sends numbered words and wants them back, each once, and nobody else's.
fn talk(mut stream: TcpStream, client: usize) {
    for round in 0..ROUNDS {
        say(&mut stream, client, round);
        hear(&mut stream, client, round);
    }
}

fn word(client: usize, round: usize) -> String {
    format!("{client:08} {round:06}")
}

fn say(stream: &mut TcpStream, client: usize, round: usize) {
    stream.write_all(word(client, round).as_bytes()).unwrap();
}

fn hear(stream: &mut TcpStream, client: usize, round: usize) {
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(std::str::from_utf8(&answer), Ok(word(client, round).as_str()));
}

#[test]
fn a_server_of_plain_std_serves_hundreds_of_connections() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = Builder::new()
            .workers(workers)
            .stack_size(64 << 10)
            .build()
            .unwrap();
        watchdog.show(&runtime);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = runtime.spawn(move || {
            let handlers: Vec<_> = (0..CONNECTIONS)
                .map(|_| listener.accept().unwrap().0)
                .map(|stream| fibrant::spawn(move || echo(stream)))
                .collect();
            handlers
                .into_iter()
                .map(|handler| handler.join().unwrap())
                .sum::<usize>()
        });
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|client| runtime.spawn(move || talk(TcpStream::connect(address).unwrap(), client)))
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        assert!(server.join().unwrap() >= CONNECTIONS, "each was served");
        let stats = runtime.stats();
        assert!(
            stats.descriptor_waits > CONNECTIONS as u64,
            "they waited as fibers do"
        );
        runtime.stop().unwrap();
    }
}

#[test]
fn fibers_serve_threads() {
    let watchdog = Watchdog::new();
    let runtime = Builder::new().workers(2).build().unwrap();
    watchdog.show(&runtime);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    const THREADS: usize = 8;
    // Two fibers share the listener.
    let acceptors: Vec<_> = (0..2)
        .map(|_| listener.try_clone().unwrap())
        .map(|listener| {
            runtime.spawn(move || {
                for _ in 0..THREADS / 2 {
                    let stream = listener.accept().unwrap().0;
                    fibrant::spawn(move || echo(stream));
                }
            })
        })
        .collect();
    let together = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|client| {
            let together = Arc::clone(&together);
            thread::spawn(move || {
                let stream = TcpStream::connect(address).unwrap();
                together.wait();
                talk(stream, client);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    acceptors.into_iter().for_each(|fiber| fiber.join().unwrap());
    runtime.stop().unwrap();
}

/// How many connections a server of nothing but std holds at once, with a fiber for each.
const MANY: usize = 9_000;

/// How often each connection says something, the first time when it is made, then while all are open.
const MANY_ROUNDS: usize = 5;

/// How many threads of the client share them. std's listeners let 128 connections wait to be accepted; to be one too many
/// costs a second.
const CLIENT_THREADS: usize = 32;

/// The stack of a fiber that serves one.
const STACK: usize = 64 << 10;

/// Lets this process have so many descriptors.
fn allow_descriptors(count: usize) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads and sets a limit of this process, which is a local variable.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    assert!(
        limit.rlim_max >= count as libc::rlim_t,
        "this test needs {count} open files, and {} are allowed: raise the hard limit, with `ulimit -Hn {count}` as root \
         before the test or with LimitNOFILE= or limits.conf",
        limit.rlim_max
    );
}

/// The resident memory of this process, in bytes: of itself, and of its page tables.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let figure = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    };
    figure("VmRSS:") + figure("VmPTE:")
}

/// The server, in a process of its own: prints its address, serves until the last client has left, and prints what it took.
fn serve_many() {
    allow_descriptors(MANY + 100);
    let runtime = Builder::new().workers(2).stack_size(STACK).build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("ADDRESS {}", listener.local_addr().unwrap());
    let before = resident();
    let open = Arc::new(AtomicUsize::new(0));
    let most = Arc::clone(&open);
    let echoes = runtime.spawn(move || {
        let handlers: Vec<_> = (0..MANY)
            .map(|_| listener.accept().unwrap().0)
            .map(|stream| {
                open.fetch_add(1, Relaxed);
                fibrant::spawn(move || echo(stream))
            })
            .collect();
        let echoes = handlers.into_iter().map(|handler| handler.join().unwrap());
        echoes.sum::<usize>()
    });
    // The client says when all have spoken and all are still open.
    io::stdin().read_exact(&mut [0]).unwrap();
    let during = resident();
    println!("OPEN {}", most.load(Relaxed));
    println!("WAITING {}", runtime.dump().fibers.len());
    println!("MEMORY {}", (during - before) / MANY);
    println!("ECHOES {}", echoes.join().unwrap());
    runtime.stop().unwrap();
}

/// The clients: plain threads, each with its part of the connections. When all have spoken, and all are open, `look` is called.
fn talk_to_many<T>(address: SocketAddr, look: impl FnOnce() -> T) -> T {
    let (opened, spoken) = (&Barrier::new(CLIENT_THREADS), &Barrier::new(CLIENT_THREADS + 1));
    thread::scope(|scope| {
        for thread in 0..CLIENT_THREADS {
            scope.spawn(move || {
                let clients = (thread..MANY).step_by(CLIENT_THREADS);
                // Each is served before the next one comes, so that not many wait to be accepted.
                let mut streams: Vec<_> = clients
                    .map(|client| {
                        let mut stream = TcpStream::connect(address).unwrap();
                        say(&mut stream, client, 0);
                        hear(&mut stream, client, 0);
                        (client, stream)
                    })
                    .collect();
                opened.wait();
                for round in 1..MANY_ROUNDS {
                    streams
                        .iter_mut()
                        .for_each(|(client, stream)| say(stream, *client, round));
                    streams
                        .iter_mut()
                        .for_each(|(client, stream)| hear(stream, *client, round));
                }
                spoken.wait();
                spoken.wait(); // looked at
            });
        }
        spoken.wait();
        let seen = look();
        spoken.wait();
        seen
    })
}

#[test]
fn a_server_of_plain_std_holds_nine_thousand_connections() {
    const TEST: &str = "a_server_of_plain_std_holds_nine_thousand_connections";
    if common::case().is_some() {
        return serve_many();
    }
    let _watchdog = Watchdog::new();
    allow_descriptors(MANY + 100);
    // The server is a process of its own, so that its memory is its own.
    let mut server = Server(
        common::command(TEST, "serve", &[])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut input = server.0.stdin.take().unwrap();
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let mut report = |name: &str| {
        let line = lines
            .by_ref()
            .map(|line| line.unwrap())
            .find_map(|line| Some(line.split_once(name)?.1.trim().to_owned()));
        line.unwrap_or_else(|| panic!("the server ended without saying {name}"))
    };
    let address: SocketAddr = report("ADDRESS").parse().unwrap();
    let start = Instant::now();
    let mut number = |name: &str| report(name).parse::<usize>().unwrap();
    let (took, [open, waiting, memory]) = talk_to_many(address, || {
        let took = start.elapsed();
        input.write_all(b"!").unwrap();
        (took, ["OPEN", "WAITING", "MEMORY"].map(&mut number))
    });
    assert_eq!(open, MANY, "all were open at once");
    assert_eq!(waiting, MANY + 1, "a fiber for each, and one that joins them");
    assert!(
        number("ECHOES") >= MANY * MANY_ROUNDS,
        "each was served each time"
    );
    assert!(server.0.wait().unwrap().success());
    println!(
        "{MANY} connections, {MANY_ROUNDS} rounds in {took:.1?}: {memory} bytes of the server's memory for each, on stacks of {} KiB",
        STACK >> 10
    );
    // The thread-locals take one page and a part of the next, and the frames of a read end on that one or the one below; without
    // optimisation they take two more. A little for the rest.
    let most = if cfg!(debug_assertions) {
        24 << 10
    } else {
        13 << 10
    };
    assert!(memory < most, "{memory} bytes for each");
}

/// The server's process, which does not outlive the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}
