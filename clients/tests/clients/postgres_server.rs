//! PostgreSQL: the crate `postgres`, which has a tokio runtime for each connection, and the C library libpq.

use crate::patience::Watchdog;
use clients::{Client, PATIENCE, Server, WAIT, command, crowd, runtime};
use postgres::NoTls;
use std::ffi::{CStr, CString};
use std::thread;
use std::time::{Duration, Instant};

/// A server that trusts everybody, and its database.
fn server() -> Server {
    let server = Server::start("postgres", command::postgres);
    // It accepts connections before it is ready for them.
    let start = Instant::now();
    while Libpq::try_connect(server.port()).is_err() && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(5));
    }
    server
}

/// The crate `postgres`.
struct Crate(postgres::Client);

impl Client for Crate {
    fn wait(&mut self, _fiber: usize) {
        let slept = self.0.execute("SELECT pg_sleep($1)", &[&WAIT.as_secs_f64()]);
        assert_eq!(slept.unwrap(), 1);
    }

    fn query(&mut self, number: usize) {
        let number = i64::try_from(number).unwrap();
        let row = self.0.query_one("SELECT $1 + 1::bigint", &[&number]);
        assert_eq!(row.unwrap().get::<_, i64>(0), number + 1);
    }
}

#[test]
fn the_crate_postgres() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    let settings = format!("host=127.0.0.1 port={} user=postgres", server.port());
    crowd(&runtime, |_| {
        Crate(postgres::Client::connect(&settings, NoTls).unwrap())
    });
}

#[test]
fn libpq() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    crowd(&runtime, |_| Libpq::try_connect(server.port()).unwrap());
}

/// What is needed of libpq.
mod ffi {
    use std::ffi::{c_char, c_int};

    #[repr(C)]
    pub struct Connection {
        _private: [u8; 0],
    }

    #[repr(C)]
    pub struct Answer {
        _private: [u8; 0],
    }

    pub const CONNECTION_OK: c_int = 0;
    pub const TUPLES_OK: c_int = 2;

    #[link(name = "pq")]
    unsafe extern "C" {
        pub fn PQconnectdb(settings: *const c_char) -> *mut Connection;
        pub fn PQstatus(connection: *const Connection) -> c_int;
        pub fn PQerrorMessage(connection: *const Connection) -> *const c_char;
        pub fn PQfinish(connection: *mut Connection);
        pub fn PQexec(connection: *mut Connection, query: *const c_char) -> *mut Answer;
        pub fn PQresultStatus(answer: *const Answer) -> c_int;
        pub fn PQntuples(answer: *const Answer) -> c_int;
        pub fn PQgetvalue(answer: *const Answer, row: c_int, column: c_int) -> *const c_char;
        pub fn PQclear(answer: *mut Answer);
    }
}

/// The C library libpq.
struct Libpq(*mut ffi::Connection);

// SAFETY: a connection is bound to no thread; one fiber at a time uses it.
unsafe impl Send for Libpq {}

impl Libpq {
    fn try_connect(port: u16) -> Result<Libpq, String> {
        let settings = CString::new(format!("host=127.0.0.1 port={port} user=postgres")).unwrap();
        // SAFETY: the settings are a C string.
        let connection = Libpq(unsafe { ffi::PQconnectdb(settings.as_ptr()) });
        // SAFETY: it is a connection, open or not.
        match unsafe { ffi::PQstatus(connection.0) } {
            ffi::CONNECTION_OK => Ok(connection),
            _ => Err(connection.error()),
        }
    }

    fn error(&self) -> String {
        // SAFETY: the text is the connection's, and copied.
        unsafe { CStr::from_ptr(ffi::PQerrorMessage(self.0)) }
            .to_string_lossy()
            .into_owned()
    }

    /// The one value that a query gives.
    fn ask(&mut self, query: &str) -> String {
        let text = CString::new(query).unwrap();
        // SAFETY: the connection is open and the text a C string.
        let answer = unsafe { ffi::PQexec(self.0, text.as_ptr()) };
        // SAFETY: an answer may be asked for its status and size, even if there is none.
        let (status, rows) = unsafe { (ffi::PQresultStatus(answer), ffi::PQntuples(answer)) };
        assert_eq!((status, rows), (ffi::TUPLES_OK, 1), "{query}: {}", self.error());
        // SAFETY: there is a row; the value is copied before the answer is freed.
        let value = unsafe { CStr::from_ptr(ffi::PQgetvalue(answer, 0, 0)) }.to_owned();
        // SAFETY: it is ours to free, once.
        unsafe { ffi::PQclear(answer) };
        value.into_string().unwrap()
    }
}

impl Client for Libpq {
    fn wait(&mut self, _fiber: usize) {
        assert_eq!(self.ask(&format!("SELECT pg_sleep({})", WAIT.as_secs_f64())), "");
    }

    fn query(&mut self, number: usize) {
        assert_eq!(
            self.ask(&format!("SELECT 'number ' || {number}")),
            format!("number {number}")
        );
    }
}

impl Drop for Libpq {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { ffi::PQfinish(self.0) };
    }
}
