//! A whole tokio runtime, server and clients and timers, inside one fiber, while the other fibers of the same worker go on.
//!
//! The fibers around it are its peers: blocking clients of the server in there, and a blocking server for a client in there. Neither
//! side gets anywhere unless the one worker runs both.

use crate::patience::Watchdog;
use clients::runtime;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Fibers that are clients of tokio's server; and as many tasks.
const CLIENTS: usize = 20;

/// What each client asks, one after another.
const ROUNDS: u32 = 50;

/// How long tokio sleeps between two rounds of its own.
const PAUSE: Duration = Duration::from_millis(2);

/// What a server answers: not just the same, so that nobody talks to himself unnoticed.
fn answer(question: u32) -> u32 {
    question.wrapping_mul(3).wrapping_add(1)
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Blocking: asks all the questions.
fn ask(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).unwrap();
    for question in 0..ROUNDS {
        stream.write_all(&question.to_be_bytes()).unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(u32::from_be_bytes(bytes), answer(question));
    }
}

/// Blocking: answers all the questions of one client.
fn serve_one(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    for _ in 0..ROUNDS {
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).unwrap();
        let question = u32::from_be_bytes(bytes);
        stream.write_all(&answer(question).to_be_bytes()).unwrap();
    }
}

/// In tokio: asks all the questions, with pauses.
async fn ask_with_pauses(server: SocketAddr) {
    let mut stream = tokio::net::TcpStream::connect(server).await.unwrap();
    for question in 0..ROUNDS {
        stream.write_u32(question).await.unwrap();
        assert_eq!(stream.read_u32().await.unwrap(), answer(question));
        let start = Instant::now();
        tokio::time::sleep(PAUSE).await;
        assert!(start.elapsed() >= PAUSE);
    }
}

/// In tokio: a server for so many clients, a task for each.
async fn serve(listener: TcpListener, clients: usize) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (mut stream, _) = listener.accept().await.unwrap();
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let question = stream.read_u32().await.unwrap();
                stream.write_u32(answer(question)).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// All that tokio does: it serves the fibers and tasks of its own, and one of its tasks is a client of a fiber.
async fn inside(listener: TcpListener, outside: SocketAddr) {
    let here = listener.local_addr().unwrap();
    let mut tasks = vec![tokio::spawn(serve(listener, 2 * CLIENTS))];
    tasks.push(tokio::spawn(ask_with_pauses(outside)));
    for _ in 0..CLIENTS {
        tasks.push(tokio::spawn(ask_with_pauses(here)));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// One worker: a fiber with tokio in it, and its peers.
fn beside_fibers(tokio: impl FnOnce(TcpListener, SocketAddr) + Send) {
    let watchdog = Watchdog::new();
    let runtime = runtime();
    watchdog.show(&runtime);
    let (inner, here) = listener();
    let (outer, there) = listener();
    runtime.run_on(0, || {
        fibrant::scope(|scope| {
            scope.spawn(move || tokio(inner, there));
            scope.spawn(move || serve_one(&outer));
            for _ in 0..CLIENTS {
                scope.spawn(move || ask(here));
            }
        });
    });
}

#[test]
fn a_current_thread_runtime() {
    beside_fibers(|listener, outside| {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
        tokio.unwrap().block_on(inside(listener, outside));
    });
}

/// The runtime's threads are no fibers, and `block_on` waits for them with a lock: the fiber waits, not its worker.
#[test]
fn a_multi_thread_runtime() {
    beside_fibers(|listener, outside| {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        tokio.unwrap().block_on(inside(listener, outside));
    });
}
