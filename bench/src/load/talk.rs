//! What is said on a connection, and how an answer is checked; [`super::client`] sends and receives it.

use super::Outcome;
use super::options::Service;
use crate::serve::HELLO;

/// In how many places of the pattern a message may begin.
const PLACES: usize = 4096;

/// What is said on all connections to a server.
pub enum Talk {
    /// A message of so many bytes comes back as it is.
    Echo {
        /// Bytes without an order; each message is another part of them.
        pattern: Vec<u8>,
        /// The bytes of a message.
        size: usize,
    },
    /// A page is asked for.
    Http {
        /// The request.
        request: Vec<u8>,
    },
}

impl Talk {
    /// What is said to a server at this port.
    pub fn new(service: Service, size: usize, port: u16) -> Self {
        match service {
            Service::Echo => Self::Echo {
                pattern: pattern(PLACES + size),
                size,
            },
            // What wrk sends.
            Service::Http => Self::Http {
                request: format!("GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").into_bytes(),
            },
        }
    }

    /// The request of some number. Requests that follow each other differ, on a connection and across them: a server that
    /// mixes them up is seen.
    pub fn request(&self, number: usize) -> &[u8] {
        match self {
            Self::Echo { pattern, size } => &pattern[number % PLACES..][..*size],
            Self::Http { request } => request,
        }
    }
}

/// Bytes without an order, the same each time.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Whether these bytes are an answer to be glad about: all of it, or the beginning of one.
pub fn is_complete_answer(bytes: &[u8]) -> Outcome<bool> {
    const LENGTH: &[u8] = b"content-length:";
    let mut rest = bytes;
    let mut length = None;
    for number in 0.. {
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            return Ok(false);
        };
        let line = rest[..end].trim_ascii_end();
        rest = &rest[end + 1..];
        if number == 0 {
            if !line.starts_with(b"HTTP/1.1 200") {
                return Err(format!("answered {}", String::from_utf8_lossy(line)));
            }
        } else if line.is_empty() {
            break;
        } else if line.len() > LENGTH.len() && line[..LENGTH.len()].eq_ignore_ascii_case(LENGTH) {
            let digits = str::from_utf8(line[LENGTH.len()..].trim_ascii()).unwrap_or_default();
            length = digits.parse::<usize>().ok();
        }
    }
    match length {
        None => Err("answered without a length".into()),
        Some(length) if rest.len() < length => Ok(false),
        Some(length) if rest.len() > length => Err("answered more than it was asked for".into()),
        Some(_) if rest != HELLO.as_bytes() => Err(format!(
            "answered something else: {}",
            String::from_utf8_lossy(rest)
        )),
        Some(_) => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_differ() {
        let talk = Talk::new(Service::Echo, 64, 80);
        assert_eq!(talk.request(1).len(), 64);
        assert_ne!(talk.request(1), talk.request(2));
        assert_eq!(talk.request(1), talk.request(1 + PLACES));
    }

    #[test]
    fn an_answer_ends_where_its_head_says() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-Length: 13\r\nDate: now\r\n\r\nHello, World!";
        assert_eq!(is_complete_answer(answer), Ok(true));
        for length in 0..answer.len() {
            assert_eq!(is_complete_answer(&answer[..length]), Ok(false), "{length}");
        }
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        for answer in [
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World?",
            "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!H",
        ] {
            assert!(is_complete_answer(answer.as_bytes()).is_err(), "{answer}");
        }
    }
}
