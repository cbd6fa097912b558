//! The servers on tokio: its own echo server, and hyper's HTTP server, as their guides have them.

use std::convert::Infallible;
use std::io;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task;

use crate::serve::{self, HELLO, LARGE, SMALL, Service};

/// Serves until the process is killed.
pub fn serve(runtime: Runtime, service: Service, port: u16) -> io::Result<()> {
    serve::allow_many_connections();
    runtime.block_on(async {
        let listener = TcpListener::bind(serve::address(port)).await?;
        serve::ready(listener.local_addr());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            match service {
                Service::Echo => drop(task::spawn(async { echo(stream, &mut [0; SMALL]).await })),
                Service::Stream => drop(task::spawn(async { echo(stream, &mut vec![0; LARGE]).await })),
                Service::Http => drop(task::spawn(http(stream))),
            }
        }
    })
}

async fn echo(mut stream: TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    loop {
        match stream.read(buffer).await? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}

async fn http(stream: TcpStream) -> hyper::Result<()> {
    http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service_fn(hello))
        .await
}

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from(HELLO))))
}
