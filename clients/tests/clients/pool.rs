//! A pool of connections that is smaller than its crowd: the crate `r2d2`, with Redis.
//!
//! The fibers wait for connections with locks, and threads of the pool's make the connections. Each fiber is in a span of the crate
//! `tracing`, and picks keys by the random numbers of the crate `rand`, both of which know threads only.

use crate::patience::Watchdog;
use crate::redis_server::server;
use clients::{FIBERS, TIMEOUT, runtime};
use r2d2::Pool;
use redis::Commands;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tracing::{Dispatch, Span, dispatcher, info_span};
use tracing_subscriber::Registry;

/// How many connections there are for all fibers.
const CONNECTIONS: u32 = 20;

/// How long each fiber keeps one.
const HOLD: Duration = Duration::from_millis(50);

fn pool(port: u16) -> Pool<redis::Client> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
    Pool::builder().max_size(CONNECTIONS).build(client).unwrap()
}

#[test]
fn the_crate_r2d2() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    let spans = Dispatch::new(Registry::default());
    let (users, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let use_connection = |pool: &Pool<redis::Client>, n: usize| {
        let span = info_span!("fiber", n).entered();
        let mut connection = pool.get().unwrap();
        most.fetch_max(users.fetch_add(1, SeqCst) + 1, SeqCst);
        let none: Option<(String, String)> = connection
            .blpop(format!("empty-{n}"), HOLD.as_secs_f64())
            .unwrap();
        assert_eq!(none, None);
        let key: u128 = rand::random();
        connection.set::<_, _, ()>(key.to_string(), n).unwrap();
        assert_eq!(connection.get::<_, usize>(key.to_string()).unwrap(), n);
        users.fetch_sub(1, SeqCst);
        drop(connection);
        assert!(span.id().is_some());
        assert_eq!(Span::current().id(), span.id(), "fiber {n} is in another's span");
        key
    };
    let (use_connection, spans) = (&use_connection, &spans);
    runtime.run_on(0, || {
        let pool = &pool(server.port());
        let start = Instant::now();
        let keys: HashSet<u128> = fibrant::scope(|scope| {
            let fibers: Vec<_> = (0..FIBERS)
                .map(|n| scope.spawn(move || dispatcher::with_default(spans, || use_connection(pool, n))))
                .collect();
            fibers.into_iter().map(|fiber| fiber.join().unwrap()).collect()
        });
        let took = start.elapsed();
        let turns = u32::try_from(FIBERS).unwrap() / CONNECTIONS;
        // The server's clock may be a little early, in each turn.
        assert!(took >= HOLD * turns * 9 / 10, "they took only {took:?}");
        assert_eq!(keys.len(), FIBERS, "each fiber has random numbers of its own");
        println!("{FIBERS} fibers shared {CONNECTIONS} connections in {took:?}");
    });
    assert_eq!(
        most.load(SeqCst),
        CONNECTIONS as usize,
        "all connections are used at the same time"
    );
}

/// Who waits for a connection longer than he wants to gets an error; who waits longer still gets the connection.
#[test]
fn a_timeout_of_r2d2() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    runtime.run_on(0, || {
        let pool = &pool(server.port());
        let taken: Vec<_> = (0..CONNECTIONS).map(|_| pool.get().unwrap()).collect();
        fibrant::scope(|scope| {
            let patient = scope.spawn(|| pool.get().unwrap());
            let impatient: Vec<_> = (0..FIBERS)
                .map(|_| {
                    scope.spawn(|| {
                        let start = Instant::now();
                        assert!(pool.get_timeout(TIMEOUT).is_err());
                        assert!(start.elapsed() >= TIMEOUT);
                    })
                })
                .collect();
            for fiber in impatient {
                fiber.join().unwrap();
            }
            assert!(!patient.is_finished());
            drop(taken);
            let mut connection = patient.join().unwrap();
            connection.set::<_, _, ()>("key", 1).unwrap();
        });
    });
}
