//! OpenSSL: the crate `native-tls`, whose other end is a server of our own, in fibers of the same worker.
//!
//! OpenSSL keeps its errors and its random numbers per thread, and it calls back into Rust to read and write: fibers wait in there.

use crate::patience::Watchdog;
use clients::{Client, FIBERS, TIMEOUT, WAIT, crowd, impatient, runtime};
use fibrant::runtime::Runtime;
use native_tls::{Certificate, HandshakeError, Identity, TlsAcceptor, TlsConnector, TlsStream};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// How many clients are left at the same time.
const LEFT: usize = 50;

/// Makes a key and a certificate that nobody has signed but itself, and prints them.
const CERTIFY: &str = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
    -keyout /dev/stdout -out /dev/stdout -subj /CN=localhost -addext subjectAltName=DNS:localhost";

/// Both sides of an encrypted connection.
struct Encryption {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Encryption {
    fn new() -> Encryption {
        let made = Command::new("sh")
            .args(["-ec", CERTIFY])
            .stderr(Stdio::null())
            .output()
            .unwrap();
        assert!(made.status.success(), "openssl made no certificate");
        let text = String::from_utf8(made.stdout).unwrap();
        let (key, certificate) = text.split_at(text.find("-----BEGIN CERTIFICATE").unwrap());
        let identity = Identity::from_pkcs8(certificate.as_bytes(), key.as_bytes()).unwrap();
        let certificate = Certificate::from_pem(certificate.as_bytes()).unwrap();
        let mut connector = TlsConnector::builder();
        connector.add_root_certificate(certificate);
        Encryption {
            acceptor: TlsAcceptor::new(identity).unwrap(),
            connector: connector.build().unwrap(),
        }
    }

    fn connect(&self, server: SocketAddr) -> Session {
        let stream = TcpStream::connect(server).unwrap();
        stream.set_nodelay(true).unwrap();
        Session(BufReader::new(
            self.connector.connect("localhost", stream).unwrap(),
        ))
    }
}

/// A client's end. Lines are requests, and so are the answers.
struct Session(BufReader<TlsStream<TcpStream>>);

impl Session {
    fn send(&mut self, request: &str) {
        self.0
            .get_mut()
            .write_all(format!("{request}\n").as_bytes())
            .unwrap();
    }

    fn ask(&mut self, request: &str) -> String {
        self.send(request);
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.0.get_ref().get_ref().set_read_timeout(timeout).unwrap();
    }

    /// How the server's stream ends, in words.
    fn end(&mut self) -> String {
        format!("{:?}", self.0.read(&mut [0]))
    }
}

impl Client for Session {
    fn wait(&mut self, fiber: usize) {
        assert_eq!(self.ask(&format!("wait {fiber}")), format!("answer to {fiber}\n"));
    }

    fn query(&mut self, number: usize) {
        assert_eq!(
            self.ask(&format!("query {number}")),
            format!("answer to {number}\n")
        );
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The server may have gone before.
        let _ = self.0.get_mut().shutdown();
    }
}

/// Serves one client until either of them leaves.
fn serve(acceptor: &TlsAcceptor, stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut stream = BufReader::new(acceptor.accept(stream).unwrap());
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let mut words = line.split_whitespace();
        match words.next() {
            Some("wait") => thread::sleep(WAIT),
            Some("query") => {}
            Some("silence") => continue,
            // Encryption has a farewell of its own; who just hangs up does not say it.
            Some("vanish") => return stream.get_ref().get_ref().shutdown(Shutdown::Both).unwrap(),
            _ => return stream.get_mut().shutdown().unwrap(),
        }
        let answer = format!("answer to {}\n", words.next().unwrap());
        stream.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}

/// Serves so many clients, a fiber for each, on the runtime's one worker.
fn server(
    runtime: &Runtime,
    acceptor: &TlsAcceptor,
    clients: usize,
) -> (SocketAddr, fibrant::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = acceptor.clone();
    let server = runtime.spawn(move || {
        fibrant::scope(|scope| {
            for _ in 0..clients {
                let (stream, _) = listener.accept().unwrap();
                let acceptor = &acceptor;
                scope.spawn(move || serve(acceptor, stream));
            }
        });
    });
    (address, server)
}

#[test]
fn the_crate_native_tls() {
    let watchdog = Watchdog::new();
    let encryption = Encryption::new();
    let runtime = runtime();
    watchdog.show(&runtime);
    let (address, server) = server(&runtime, &encryption.acceptor, FIBERS);
    crowd(&runtime, |_| encryption.connect(address));
    server.join().unwrap();
}

/// A timeout in the midst of OpenSSL is the reader's business alone, and does not end the session.
#[test]
fn a_timeout_of_native_tls() {
    let watchdog = Watchdog::new();
    let encryption = Encryption::new();
    let runtime = runtime();
    watchdog.show(&runtime);
    let (address, server) = server(&runtime, &encryption.acceptor, FIBERS);
    let connect = |_| encryption.connect(address);
    let lose_patience = |session: &mut Session| {
        session.send("silence");
        session.set_timeout(Some(TIMEOUT));
        let error = session.0.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    };
    impatient(&runtime, connect, lose_patience, |n, session| {
        session.set_timeout(None);
        session.query(n);
    });
    server.join().unwrap();
}

/// The connections are accepted, but the greeting is not answered.
#[test]
fn a_handshake_of_native_tls_times_out() {
    let watchdog = Watchdog::new();
    let encryption = Encryption::new();
    let runtime = runtime();
    watchdog.show(&runtime);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = |_| (TcpStream::connect(address).unwrap(), listener.accept().unwrap());
    let lose_patience = |(stream, _): &mut (TcpStream, _)| {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        match encryption.connector.connect("localhost", &*stream) {
            Err(HandshakeError::WouldBlock(_)) => {}
            other => panic!("not a timeout: {other:?}"),
        }
    };
    impatient(&runtime, connect, lose_patience, |_, _| {});
}

/// A server that says farewell, one that just hangs up, and one that speaks something else: a fiber hears of it what a thread hears,
/// while other fibers are in the midst of OpenSSL.
#[test]
fn a_server_that_leaves_native_tls() {
    let watchdog = Watchdog::new();
    let encryption = Encryption::new();
    let runtime = runtime();
    watchdog.show(&runtime);
    let (address, server) = server(&runtime, &encryption.acceptor, 2 * (LEFT + 1));
    let stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let elsewhere = stranger.local_addr().unwrap();
    let strangers = runtime.spawn(move || {
        for _ in 0..LEFT + 1 {
            let (mut stream, _) = stranger.accept().unwrap();
            stream.read_exact(&mut [0]).unwrap();
            stream.write_all(b"This is no handshake.\n").unwrap();
        }
    });
    let outcomes = || {
        let left = ["leave", "vanish"].map(|request| {
            let mut session = encryption.connect(address);
            session.query(1);
            session.send(request);
            session.end()
        });
        let stream = TcpStream::connect(elsewhere).unwrap();
        let refused = encryption.connector.connect("localhost", stream).unwrap_err();
        (left, refused.to_string())
    };
    let expected = outcomes();
    assert_eq!(expected.0[0], "Ok(0)");
    let (outcomes, expected) = (&outcomes, &expected);
    runtime.run_on(0, || {
        fibrant::scope(|scope| {
            for _ in 0..LEFT {
                scope.spawn(move || assert_eq!(&outcomes(), expected));
            }
        });
    });
    println!("{expected:?}");
    server.join().unwrap();
    strangers.join().unwrap();
}
