//! Redis: the crate `redis`, and the C library hiredis.

use crate::patience::Watchdog;
use clients::{Client, Server, WAIT, command, crowd, runtime};
use redis::{Commands, Connection};

pub fn server() -> Server {
    Server::start("redis", command::redis)
}

/// The crate `redis`.
struct Crate(Connection);

impl Client for Crate {
    fn wait(&mut self, fiber: usize) {
        let none: Option<(String, String)> = self
            .0
            .blpop(format!("empty-{fiber}"), WAIT.as_secs_f64())
            .unwrap();
        assert_eq!(none, None);
    }

    fn query(&mut self, number: usize) {
        let (key, value) = (format!("key-{number}"), format!("value-{number}"));
        self.0.set::<_, _, ()>(&key, &value).unwrap();
        assert_eq!(self.0.get::<_, String>(&key).unwrap(), value);
    }
}

#[test]
fn the_crate_redis() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    let client = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port())).unwrap();
    crowd(&runtime, |_| Crate(client.get_connection().unwrap()));
}

#[test]
fn hiredis() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    crowd(&runtime, |_| Hiredis::connect(server.port()));
}

/// What is needed of hiredis. Its structures have changed over the years, but for how a reply begins.
mod ffi {
    use std::ffi::{c_char, c_int, c_longlong, c_void};

    #[repr(C)]
    pub struct Context {
        _private: [u8; 0],
    }

    #[repr(C)]
    pub struct Reply {
        pub kind: c_int,
        pub integer: c_longlong,
    }

    pub const INTEGER: c_int = 3;
    pub const NIL: c_int = 4;

    #[link(name = "hiredis")]
    unsafe extern "C" {
        pub fn redisConnect(ip: *const c_char, port: c_int) -> *mut Context;
        pub fn redisFree(context: *mut Context);
        pub fn redisCommandArgv(
            context: *mut Context,
            count: c_int,
            arguments: *mut *const c_char,
            lengths: *const usize,
        ) -> *mut Reply;
        pub fn freeReplyObject(reply: *mut c_void);
    }
}

/// The C library hiredis.
struct Hiredis(*mut ffi::Context);

// SAFETY: a context is bound to no thread; one fiber at a time uses it.
unsafe impl Send for Hiredis {}

impl Hiredis {
    fn connect(port: u16) -> Hiredis {
        // SAFETY: the address is a C string.
        let context = unsafe { ffi::redisConnect(c"127.0.0.1".as_ptr(), port.into()) };
        assert!(!context.is_null());
        Hiredis(context)
    }

    /// The integer with which a command is answered, or `None` if it is nothing.
    fn command(&mut self, words: &[&str]) -> Option<i64> {
        let mut starts: Vec<_> = words.iter().map(|word| word.as_ptr().cast()).collect();
        let lengths: Vec<_> = words.iter().map(|word| word.len()).collect();
        let count = words.len().try_into().unwrap();
        // SAFETY: the context is open, and both lists have that many elements.
        let reply = unsafe { ffi::redisCommandArgv(self.0, count, starts.as_mut_ptr(), lengths.as_ptr()) };
        assert!(!reply.is_null(), "no reply to {words:?}");
        // SAFETY: it is a reply, and only its beginning is looked at.
        let (kind, integer) = unsafe { ((*reply).kind, (*reply).integer) };
        // SAFETY: it is ours to free, once.
        unsafe { ffi::freeReplyObject(reply.cast()) };
        match kind {
            ffi::INTEGER => Some(integer),
            ffi::NIL => None,
            _ => panic!("{words:?} is answered by something of kind {kind}"),
        }
    }
}

impl Client for Hiredis {
    fn wait(&mut self, fiber: usize) {
        let seconds = WAIT.as_secs_f64().to_string();
        assert_eq!(
            self.command(&["BLPOP", &format!("empty-{fiber}"), &seconds]),
            None
        );
    }

    fn query(&mut self, number: usize) {
        let key = format!("number-{number}");
        let number = i64::try_from(number).unwrap();
        assert_eq!(self.command(&["INCRBY", &key, &number.to_string()]), Some(number));
        assert_eq!(self.command(&["DECR", &key]), Some(number - 1));
    }
}

impl Drop for Hiredis {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { ffi::redisFree(self.0) };
    }
}
