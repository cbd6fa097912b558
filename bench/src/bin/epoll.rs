//! The yardstick of the servers: bare epoll, level-triggered, one thread for each worker, no library but the system's.
//!
//! `epoll echo <workers> <port>` reads once and writes once for each event; `epoll http <workers> <port>` does the least that HTTP/1.1
//! asks for: it finds the ends of the requests' heads and answers each. It takes no bodies, and never hangs up first.
//!
//! The load generator (src/bin/load.rs) starts it. The first worker accepts, and deals the connections out in turn. SO_REUSEPORT
//! would leave that to a hash, which gives one of two workers 60 of 100 connections now and then; and with one worker the two are the
//! same.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::{env, mem, ptr};

use bench::serve::{self, HELLO, LARGE};

/// How many events are taken at once, at most.
const EVENTS: usize = 1024;

/// What ends the head of a request.
const END: &[u8] = b"\r\n\r\n";

/// What to do with what has been read.
#[derive(Clone, Copy)]
enum Service {
    Echo,
    Http,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let service = match arguments.first().map(String::as_str) {
        Some("echo" | "stream") => Service::Echo,
        Some("http") => Service::Http,
        _ => return usage(),
    };
    let (Some(workers @ 1..), Some(port)) = (number(&arguments, 1), number(&arguments, 2)) else {
        return usage();
    };
    match serve(service, workers.into(), port) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("epoll: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("epoll <echo|stream|http> <workers> <port>");
    ExitCode::from(2)
}

fn number(arguments: &[String], place: usize) -> Option<u16> {
    arguments.get(place)?.parse().ok()
}

/// Serves until the process is killed.
fn serve(service: Service, workers: usize, port: u16) -> io::Result<()> {
    serve::allow_many_connections();
    let listener = listen(port)?;
    let epolls = (0..workers)
        .map(|_| Epoll::new())
        .collect::<io::Result<Vec<_>>>()?;
    let epolls = Arc::new(epolls);
    epolls[0].add(listener.as_raw_fd())?;
    for worker in 1..workers {
        let epolls = Arc::clone(&epolls);
        thread::Builder::new().spawn(move || Worker::new(service).run(&epolls[worker], None))?;
    }
    serve::ready(listener.local_addr());
    let acceptor = Acceptor {
        listener,
        epolls: &epolls,
        next: 0,
    };
    Worker::new(service).run(&epolls[0], Some(acceptor))
}

/// Listens on the loopback, with room for all who connect at the same time.
fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    listener.set_nonblocking(true)?;
    // SAFETY: a socket that is ours; to listen again sets the length of its queue.
    check(unsafe { libc::listen(listener.as_raw_fd(), libc::SOMAXCONN) })?;
    Ok(listener)
}

/// The result of a system call, or its error.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// How many bytes a call moved; none if it would have had to wait.
fn moved(result: isize) -> io::Result<usize> {
    if result >= 0 {
        return Ok(result as usize);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        error => Err(error),
    }
}

/// An epoll instance.
struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> io::Result<Self> {
        // SAFETY: the call takes no memory, and the descriptor that it returns is nobody else's.
        unsafe {
            Ok(Self(OwnedFd::from_raw_fd(check(libc::epoll_create1(
                libc::EPOLL_CLOEXEC,
            ))?)))
        }
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, events: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: fd as u64,
        };
        // SAFETY: `event` is there to be read.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd, &mut event) }).map(drop)
    }

    fn add(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN)
    }

    /// Waits for events: how many there are.
    fn wait(&self, events: &mut [libc::epoll_event]) -> io::Result<usize> {
        loop {
            // SAFETY: `events` has room for as many as it is long.
            let count = check(unsafe {
                libc::epoll_wait(
                    self.0.as_raw_fd(),
                    events.as_mut_ptr(),
                    events.len() as libc::c_int,
                    -1,
                )
            });
            match count {
                // The load generator stops and continues its servers.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                count => return count.map(|count| count as usize),
            }
        }
    }
}

/// Accepts connections and gives them to the workers in turn.
struct Acceptor<'a> {
    listener: TcpListener,
    epolls: &'a [Epoll],
    next: usize,
}

impl Acceptor<'_> {
    fn accept(&mut self) -> io::Result<()> {
        // SAFETY: the addresses of peers are not asked for; a new descriptor is nobody else's.
        while let Ok(fd) = check(unsafe {
            libc::accept4(
                self.listener.as_raw_fd(),
                ptr::null_mut(),
                ptr::null_mut(),
                libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            )
        }) {
            send_at_once(fd)?;
            self.epolls[self.next].add(fd)?;
            self.next = (self.next + 1) % self.epolls.len();
        }
        Ok(())
    }
}

/// Small answers do not wait for others.
fn send_at_once(fd: RawFd) -> io::Result<()> {
    let yes: libc::c_int = 1;
    // SAFETY: `yes` is there to be read, and as long as said.
    check(unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            ptr::from_ref(&yes).cast(),
            size_of_val(&yes) as libc::socklen_t,
        )
    })
    .map(drop)
}

/// What a connection has left over from its last event; seldom anything.
#[derive(Default)]
struct Rest {
    /// The beginning of a request.
    unread: Vec<u8>,
    /// What did not fit into the socket's buffer; nothing is read until it does.
    unsent: Vec<u8>,
    /// How much of that has been sent since.
    sent: usize,
}

/// One thread's connections.
struct Worker {
    service: Service,
    buffer: Vec<u8>,
    /// Answers to requests that came together.
    answers: Vec<u8>,
    answer: Vec<u8>,
    /// By descriptor.
    rests: Vec<Option<Box<Rest>>>,
}

impl Worker {
    fn new(service: Service) -> Self {
        let length = HELLO.len();
        Self {
            service,
            buffer: vec![0; LARGE],
            answers: Vec::new(),
            answer: format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{HELLO}").into_bytes(),
            rests: Vec::new(),
        }
    }

    fn run(&mut self, epoll: &Epoll, mut acceptor: Option<Acceptor>) -> io::Result<()> {
        // SAFETY: an event is a number and bits; all may be zero.
        let mut events: Vec<libc::epoll_event> = vec![unsafe { mem::zeroed() }; EVENTS];
        loop {
            let count = epoll.wait(&mut events)?;
            for event in &events[..count] {
                let (fd, writable) = (event.u64 as RawFd, event.events & libc::EPOLLOUT as u32 != 0);
                match &mut acceptor {
                    Some(acceptor) if acceptor.listener.as_raw_fd() == fd => acceptor.accept()?,
                    _ => {
                        let goes_on = match writable {
                            true => self.send_rest(epoll, fd),
                            false => self.receive(epoll, fd),
                        };
                        if !matches!(goes_on, Ok(true)) {
                            self.close(fd);
                        }
                    }
                }
            }
        }
    }

    /// Reads once, and answers: whether the connection goes on.
    fn receive(&mut self, epoll: &Epoll, fd: RawFd) -> io::Result<bool> {
        // SAFETY: the buffer is there to be written to, and as long as said.
        let result = unsafe { libc::read(fd, self.buffer.as_mut_ptr().cast(), self.buffer.len()) };
        if result <= 0 {
            // What was ready and is not any more: no reason to end. The end is 0.
            return moved(result).map(|_| result < 0);
        }
        let got = result as usize;
        match self.service {
            Service::Echo => {
                let sent = write(fd, &self.buffer[..got])?;
                if sent < got {
                    let unsent = self.buffer[sent..got].to_vec();
                    self.send_later(epoll, fd, unsent)?;
                }
            }
            Service::Http => {
                let requests = self.requests(fd, got);
                self.answers.clear();
                for _ in 0..requests {
                    self.answers.extend_from_slice(&self.answer);
                }
                if requests > 0 {
                    let sent = write(fd, &self.answers)?;
                    if sent < self.answers.len() {
                        let unsent = self.answers[sent..].to_vec();
                        self.send_later(epoll, fd, unsent)?;
                    }
                }
            }
        }
        Ok(true)
    }

    /// How many requests are complete with so many bytes in the buffer; the beginning of one more is kept.
    fn requests(&mut self, fd: RawFd, got: usize) -> usize {
        let rest = self.rests.get_mut(fd as usize).and_then(Option::as_mut);
        if let Some(rest) = rest.filter(|rest| !rest.unread.is_empty()) {
            rest.unread.extend_from_slice(&self.buffer[..got]);
            let (requests, length) = complete(&rest.unread);
            rest.unread.drain(..length);
            return requests;
        }
        let (requests, length) = complete(&self.buffer[..got]);
        if length < got {
            let unread = self.buffer[length..got].to_vec();
            self.rest(fd).unread = unread;
        }
        requests
    }

    /// What is left over of a connection, to put something there.
    fn rest(&mut self, fd: RawFd) -> &mut Rest {
        let place = fd as usize;
        if place >= self.rests.len() {
            self.rests.resize_with(place + 1, || None);
        }
        self.rests[place].get_or_insert_default()
    }

    /// Keeps what could not be sent until it can.
    fn send_later(&mut self, epoll: &Epoll, fd: RawFd, unsent: Vec<u8>) -> io::Result<()> {
        let rest = self.rest(fd);
        rest.unsent = unsent;
        rest.sent = 0;
        epoll.control(libc::EPOLL_CTL_MOD, fd, libc::EPOLLOUT)
    }

    /// Sends of what is left what there is room for; reads again if that was all.
    fn send_rest(&mut self, epoll: &Epoll, fd: RawFd) -> io::Result<bool> {
        let rest = self.rest(fd);
        rest.sent += write(fd, &rest.unsent[rest.sent..])?;
        if rest.sent == rest.unsent.len() {
            rest.unsent.clear();
            epoll.control(libc::EPOLL_CTL_MOD, fd, libc::EPOLLIN)?;
        }
        Ok(true)
    }

    fn close(&mut self, fd: RawFd) {
        if let Some(rest) = self.rests.get_mut(fd as usize) {
            *rest = None;
        }
        // SAFETY: the connection is this worker's; nobody else uses the descriptor.
        unsafe { libc::close(fd) };
    }
}

/// Writes once: how much was sent.
fn write(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the bytes are there to be read.
    moved(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) })
}

/// How many requests end within these bytes, and where the last one does.
fn complete(bytes: &[u8]) -> (usize, usize) {
    let (mut requests, mut length) = (0, 0);
    while let Some(end) = find_end(&bytes[length..]) {
        requests += 1;
        length += end;
    }
    (requests, length)
}

/// Where the first head ends.
fn find_end(bytes: &[u8]) -> Option<usize> {
    // SAFETY: both are there to be read, and as long as said.
    let found = unsafe { libc::memmem(bytes.as_ptr().cast(), bytes.len(), END.as_ptr().cast(), END.len()) };
    (!found.is_null()).then(|| found.addr() - bytes.as_ptr().addr() + END.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_requests_that_are_complete() {
        assert_eq!(complete(b""), (0, 0));
        assert_eq!(complete(b"GET / HTTP/1.1\r\nHost: a\r\n\r"), (0, 0));
        assert_eq!(complete(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), (1, 27));
        assert_eq!(complete(b"a\r\n\r\nb\r\n\r\nc\r\n"), (2, 10));
    }
}
