//! A server with a fiber for each connection, and its clients, written with nothing but std, on two workers.

#[path = "common/patience.rs"]
mod patience;

use fibrant::runtime::Builder;
use patience::Watchdog;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread;

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
        let word = format!("{client:08} {round:06}");
        stream.write_all(word.as_bytes()).unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(std::str::from_utf8(&answer), Ok(word.as_str()));
    }
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
