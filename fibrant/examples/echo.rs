//! An echo server with a fiber for each connection, in plain std: `cargo run --release --example echo [ADDRESS]`.
//!
//! Write `thread::spawn` for `fibrant::spawn`, and it is the server that one writes first and is then told not to.

mod ending;

use ending::{Connections, Signals, stop_accepting};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

fn main() -> io::Result<()> {
    let signals = Signals::block()?;
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".to_owned());
    let listener = Arc::new(TcpListener::bind(address)?);
    let local = listener.local_addr()?;
    println!("echo listens on {local}");
    println!("try: nc {} {}    Ctrl-C ends it", local.ip(), local.port());

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
                    if let Err(error) = echo(&connection) {
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

/// Says everything back until there is nothing more.
fn echo(mut stream: &TcpStream) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}
