//! memcached: the crate `memcache`, which keeps its connections in a pool.

use crate::patience::Watchdog;
use clients::{FIBERS, Server, WAIT, crowd, runtime};
use memcache::{Client, ConnectionManager, Pool};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

fn server() -> Server {
    Server::start("memcached", |_, port| {
        let mut command = Command::new("memcached");
        command.args([
            "-l",
            "127.0.0.1",
            "-p",
            &port.to_string(),
            "-U",
            "0",
            "-c",
            "1000",
        ]);
        command
    })
}

/// A proxy on plain threads that holds back for [`WAIT`] whatever the server answers, which itself lets nobody wait. Its port.
fn slow(server: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).unwrap();
            let (requests, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(|| pass_on(requests, to_server, || ()));
            thread::spawn(|| pass_on(server, client, || thread::sleep(WAIT)));
        }
    });
    port
}

/// Passes on all that comes, each time after `pause`.
fn pass_on(mut from: TcpStream, mut to: TcpStream, pause: impl Fn()) -> io::Result<()> {
    let mut bytes = [0; 1024];
    loop {
        let count = from.read(&mut bytes)?;
        if count == 0 {
            return to.shutdown(Shutdown::Write);
        }
        pause();
        to.write_all(&bytes[..count])?;
    }
}

/// The crate `memcache`, straight and through the proxy. All fibers share both pools.
#[derive(Clone)]
struct Crate {
    fast: Client,
    slow: Client,
}

/// A client whose pool has a connection for each fiber, made by threads of the pool's. With fewer, some fibers would wait for a
/// connection that others use; the pool does that with a lock, which blocks the worker, and with it the others. The pool tries each
/// connection before it lends it out, if it `checks`.
fn client(port: u16, checks: bool) -> Client {
    let address = format!("memcache://127.0.0.1:{port}").parse().unwrap();
    let pool = Pool::builder()
        .max_size(FIBERS.try_into().unwrap())
        .test_on_check_out(checks)
        .build(ConnectionManager::new(address));
    Client::with_pool(pool.unwrap()).unwrap()
}

impl clients::Client for Crate {
    fn wait(&mut self, fiber: usize) {
        self.slow.set(&format!("slow-{fiber}"), fiber as u64, 0).unwrap();
        let value = self.fast.get(&format!("slow-{fiber}"));
        assert_eq!(value.unwrap(), Some(fiber as u64));
    }

    fn query(&mut self, number: usize) {
        let (key, value) = (format!("key-{number}"), format!("value-{number}"));
        self.fast.set(&key, &value, 0).unwrap();
        assert_eq!(self.fast.get(&key).unwrap(), Some(value));
    }
}

#[test]
fn the_crate_memcache() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    let port = server.port();
    let pools = Crate {
        fast: client(port, true),
        slow: client(slow(port), false),
    };
    crowd(&runtime, |_| pools.clone());
}
