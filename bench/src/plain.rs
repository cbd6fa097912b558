//! The servers in plain std, which know nothing of fibers: our program runs a connection in a fiber, and `std_thread` in a thread.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use httparse::{EMPTY_HEADER, Request, Status};

use crate::serve::{self, HELLO, LARGE, SMALL, Service};

/// The most bytes that a request may have.
const REQUEST: usize = 8 << 10;

/// The most headers that a request may have.
const HEADERS: usize = 32;

/// A client's connection.
pub struct Connection {
    stream: TcpStream,
    service: Service,
}

/// Listens, and has `spawn` start something that [serves](Connection::serve) each connection.
pub fn serve(service: Service, port: u16, spawn: impl Fn(Connection)) -> io::Result<()> {
    serve::allow_many_connections();
    let listener = TcpListener::bind(serve::address(port))?;
    serve::lengthen_queue(&listener);
    serve::ready(listener.local_addr());
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        spawn(Connection { stream, service });
    }
}

impl Connection {
    /// Serves the client until it ends the connection; if it cuts it off, that is an end, too.
    pub fn serve(mut self) {
        let _ = match self.service {
            Service::Echo => echo(&mut self.stream, &mut [0; SMALL]),
            Service::Stream => echo(&mut self.stream, &mut vec![0; LARGE]),
            Service::Http => http(&mut self.stream),
        };
    }
}

fn echo(stream: &mut (impl Read + Write), buffer: &mut [u8]) -> io::Result<()> {
    loop {
        match stream.read(buffer)? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}

/// Answers requests without bodies, all that have come at once.
fn http(stream: &mut (impl Read + Write)) -> io::Result<()> {
    let length = HELLO.len();
    let answer =
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n{HELLO}");
    let mut buffer = vec![0; REQUEST];
    let mut filled = 0;
    let mut answers = Vec::new();
    loop {
        // A request that fills the buffer leaves no room, and ends the connection.
        let count = stream.read(&mut buffer[filled..])?;
        if count == 0 {
            return Ok(());
        }
        filled += count;
        let mut parsed = 0;
        let mut keep_alive = true;
        while parsed < filled {
            let Some(head) = parse(&buffer[parsed..filled])? else {
                break;
            };
            answers.extend_from_slice(answer.as_bytes());
            parsed += head.length;
            keep_alive &= head.keep_alive;
        }
        stream.write_all(&answers)?;
        if !keep_alive {
            return Ok(());
        }
        answers.clear();
        buffer.copy_within(parsed..filled, 0);
        filled -= parsed;
    }
}

/// What is to be known of a request.
#[derive(PartialEq, Eq, Debug)]
struct Head {
    length: usize,
    keep_alive: bool,
}

/// The first request, if all of it is there.
fn parse(bytes: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut request = Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Complete(length)) => {
            let closes = |header: &httparse::Header| {
                header.name.eq_ignore_ascii_case("connection") && header.value.eq_ignore_ascii_case(b"close")
            };
            let keep_alive = !request.headers.iter().any(closes);
            Ok(Some(Head { length, keep_alive }))
        }
        Ok(Status::Partial) => Ok(None),
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that sends pieces, and keeps what it gets.
    struct Client {
        pieces: Vec<&'static str>,
        answers: Vec<u8>,
    }

    impl Read for Client {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.pieces.is_empty() {
                return Ok(0);
            }
            let piece = self.pieces.remove(0).as_bytes();
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    impl Write for Client {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.answers.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answers(pieces: &[&'static str]) -> usize {
        let mut client = Client {
            pieces: pieces.to_vec(),
            answers: Vec::new(),
        };
        http(&mut client).unwrap();
        String::from_utf8(client.answers).unwrap().matches(HELLO).count()
    }

    #[test]
    fn answers_requests_in_pieces_and_together() {
        assert_eq!(answers(&["GET / HTTP/1.1\r\nHo", "st: a\r\n", "\r\n"]), 1);
        assert_eq!(
            answers(&[
                "GET / HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\nGET",
                " /c HTTP/1.1\r\n\r\n"
            ]),
            3
        );
        assert_eq!(answers(&["GET / HTTP/1.1\r\n"]), 0);
    }

    #[test]
    fn ends_when_asked_to() {
        assert_eq!(
            answers(&[
                "GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
                "GET / HTTP/1.1\r\n\r\n"
            ]),
            1
        );
    }
}
