//! The echo server on monoio: io_uring, and a thread with a runtime and a listener of its own for each worker.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;

use bench::micro::Args;
use bench::serve::{self, LARGE, SMALL, Service};
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};

fn main() -> io::Result<()> {
    let args = Args::parse("monoio");
    let Some((service, port)) = args.server() else {
        args.fail("there is an echo server only");
        return Ok(());
    };
    let buffer = match service {
        Service::Echo => SMALL,
        Service::Stream => LARGE,
        Service::Http => args.refuse("there is an echo server only"),
    };
    if !monoio::utils::detect_uring() {
        args.refuse("the kernel has no io_uring for us");
    }
    serve::allow_many_connections();
    let workers = args.workers;
    run(serve::address(port), buffer, move |address| {
        // The others listen where the first one does; once they do, the kernel shares the connections out.
        let all = Arc::new(Barrier::new(workers));
        for _ in 1..workers {
            let all = all.clone();
            let listening = move |_| {
                all.wait();
            };
            thread::spawn(move || run(address, buffer, listening).expect("a worker"));
        }
        all.wait();
        serve::ready(Ok(address));
    })
}

/// A worker, which serves until the process is killed; `listening` is told where.
fn run(address: SocketAddr, buffer: usize, listening: impl FnOnce(SocketAddr)) -> io::Result<()> {
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address)?;
        listening(listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            monoio::spawn(echo(stream, buffer));
        }
    })
}

async fn echo(mut stream: TcpStream, buffer: usize) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(buffer);
    let mut result;
    loop {
        (result, buffer) = stream.read(buffer).await;
        if result? == 0 {
            return Ok(());
        }
        (result, buffer) = stream.write_all(buffer).await;
        result?;
        buffer.clear();
    }
}
