//! MariaDB: the crate `mysql`, and the C library libmariadb.

use crate::patience::Watchdog;
use clients::{Client, Server, WAIT, crowd, runtime};
use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder};
use std::ffi::{CStr, CString};
use std::process::Command;
use std::ptr::{null, null_mut};

/// A server that asks nobody who he is: so it needs no tables of its own, which would have to be made first.
fn server() -> Server {
    Server::start("mariadb", |folder, port| {
        let mut command = Command::new("mariadbd");
        command
            .args(["--no-defaults", "--skip-grant-tables", "--skip-name-resolve"])
            .args(["--bind-address=127.0.0.1", &format!("--port={port}")])
            .arg(format!("--socket={}", folder.join("socket").display()))
            .arg(format!("--datadir={}", folder.display()))
            .args(["--max-connections=250", "--back-log=250"])
            .args(["--innodb-buffer-pool-size=8M", "--innodb-log-file-size=4M"]);
        // Debian has it where only root looks for programs.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin"));
        command
    })
}

/// The crate `mysql`.
struct Crate(Conn);

impl Client for Crate {
    fn wait(&mut self, _fiber: usize) {
        let slept = self
            .0
            .query_first(format!("SELECT SLEEP({})", WAIT.as_secs_f64()));
        assert_eq!(slept.unwrap(), Some(0));
    }

    fn query(&mut self, number: usize) {
        // As text, and with a statement that the server prepares.
        let text = self.0.query_first(format!("SELECT CONCAT('number ', {number})"));
        assert_eq!(text.unwrap(), Some(format!("number {number}")));
        let sum = self.0.exec_first("SELECT ? + 1", (number,));
        assert_eq!(sum.unwrap(), Some(number + 1));
    }
}

#[test]
fn the_crate_mysql() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    crowd(&runtime, |_| {
        let options = OptsBuilder::new()
            .ip_or_hostname(Some("127.0.0.1"))
            .tcp_port(server.port());
        Crate(Conn::new(options).unwrap())
    });
}

#[test]
fn libmariadb() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    crowd(&runtime, |_| Libmariadb::connect(server.port()));
}

/// What is needed of libmariadb.
mod ffi {
    use std::ffi::{c_char, c_int, c_uint, c_ulong};

    #[repr(C)]
    pub struct Connection {
        _private: [u8; 0],
    }

    #[repr(C)]
    pub struct Answer {
        _private: [u8; 0],
    }

    #[link(name = "mariadb")]
    unsafe extern "C" {
        pub fn mysql_init(connection: *mut Connection) -> *mut Connection;
        pub fn mysql_real_connect(
            connection: *mut Connection,
            host: *const c_char,
            user: *const c_char,
            password: *const c_char,
            database: *const c_char,
            port: c_uint,
            socket: *const c_char,
            flags: c_ulong,
        ) -> *mut Connection;
        pub fn mysql_error(connection: *mut Connection) -> *const c_char;
        pub fn mysql_close(connection: *mut Connection);
        pub fn mysql_query(connection: *mut Connection, query: *const c_char) -> c_int;
        pub fn mysql_store_result(connection: *mut Connection) -> *mut Answer;
        pub fn mysql_fetch_row(answer: *mut Answer) -> *const *const c_char;
        pub fn mysql_free_result(answer: *mut Answer);
    }
}

/// The C library libmariadb.
struct Libmariadb(*mut ffi::Connection);

// SAFETY: a connection is bound to no thread; one fiber at a time uses it.
unsafe impl Send for Libmariadb {}

impl Libmariadb {
    fn connect(port: u16) -> Libmariadb {
        // SAFETY: it makes a new one.
        let connection = Libmariadb(unsafe { ffi::mysql_init(null_mut()) });
        assert!(!connection.0.is_null());
        let (host, user) = (c"127.0.0.1".as_ptr(), c"root".as_ptr());
        // SAFETY: the connection is new; all texts are C strings or missing, as they may be.
        let connected = unsafe {
            ffi::mysql_real_connect(connection.0, host, user, null(), null(), port.into(), null(), 0)
        };
        assert!(!connected.is_null(), "{}", connection.error());
        connection
    }

    fn error(&self) -> String {
        // SAFETY: the text is the connection's, and copied.
        unsafe { CStr::from_ptr(ffi::mysql_error(self.0)) }
            .to_string_lossy()
            .into_owned()
    }

    /// The one value that a query gives.
    fn ask(&mut self, query: &str) -> String {
        let text = CString::new(query).unwrap();
        // SAFETY: the connection is open and the text a C string.
        let failed = unsafe { ffi::mysql_query(self.0, text.as_ptr()) };
        assert_eq!(failed, 0, "{query}: {}", self.error());
        // SAFETY: a query has just succeeded.
        let answer = unsafe { ffi::mysql_store_result(self.0) };
        assert!(!answer.is_null(), "{query}: {}", self.error());
        // SAFETY: it is an answer.
        let row = unsafe { ffi::mysql_fetch_row(answer) };
        assert!(!row.is_null(), "{query} gives nothing");
        // SAFETY: a row has at least one value, here it is not NULL, and it is copied before the answer is freed.
        let value = unsafe { CStr::from_ptr(*row) }.to_owned();
        // SAFETY: it is ours to free, once.
        unsafe { ffi::mysql_free_result(answer) };
        value.into_string().unwrap()
    }
}

impl Client for Libmariadb {
    fn wait(&mut self, _fiber: usize) {
        assert_eq!(self.ask(&format!("SELECT SLEEP({})", WAIT.as_secs_f64())), "0");
    }

    fn query(&mut self, number: usize) {
        let query = format!("SELECT CONCAT('number ', {number})");
        assert_eq!(self.ask(&query), format!("number {number}"));
    }
}

impl Drop for Libmariadb {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { ffi::mysql_close(self.0) };
    }
}
