//! A crowd of fibers on one worker, each with a connection of its own.

use fibrant::runtime::{Builder, Runtime};
use std::time::{Duration, Instant};

/// How many fibers there are, and connections.
pub const FIBERS: usize = 200;

/// How long the server lets each of them wait.
pub const WAIT: Duration = Duration::from_millis(500);

/// What a server may make of that: their clocks tick in milliseconds, and some look at them only now and then.
const AT_LEAST: Duration = Duration::from_millis(450);

/// Within what time all of them have waited. One after another would take them [`FIBERS`] times [`WAIT`], which is 100 s.
const LIMIT: Duration = Duration::from_secs(10);

/// How long a client has patience with a server that does not answer. One after another would take them 40 s to lose it.
pub const TIMEOUT: Duration = Duration::from_millis(200);

/// How many short queries each fiber makes.
const QUERIES: usize = 10;

/// A connection to a server, made by the library that is put to the proof. What is not as it should be panics.
pub trait Client: Send {
    /// Makes one request that the server answers after [`WAIT`], and checks the answer.
    fn wait(&mut self, fiber: usize);

    /// Makes one short request, and checks the answer. The number is another for each query of the crowd.
    fn query(&mut self, number: usize);
}

/// A runtime with one worker. Clients that encrypt need more than the usual stack in debug builds.
pub fn runtime() -> Runtime {
    let builder = Builder::new().workers(1).stack_size(512 << 10).name("clients");
    builder.build().expect("a runtime with one worker")
}

/// Connects [`FIBERS`] clients, all from fibers of the runtime's one worker. All wait at the same time, then all make their short
/// queries.
///
/// # Panics
///
/// If a client panics, waits for clearly less than [`WAIT`], or all together take much longer than one.
pub fn crowd<C: Client>(runtime: &Runtime, connect: impl Fn(usize) -> C + Sync) {
    assert_eq!(
        runtime.workers(),
        1,
        "one worker can only wait for many if none of them blocks it"
    );
    runtime.run_on(0, || {
        let start = Instant::now();
        let mut clients = connect_all(&connect);
        let connected = start.elapsed();

        let start = Instant::now();
        for_each(&mut clients, |n, client| {
            let start = Instant::now();
            client.wait(n);
            let waited = start.elapsed();
            assert!(
                waited >= AT_LEAST,
                "the server kept fiber {n} for only {waited:?}"
            );
        });
        let waited = start.elapsed();
        assert!(
            waited < LIMIT,
            "{FIBERS} fibers that wait for {WAIT:?} took {waited:?}"
        );

        let start = Instant::now();
        for_each(&mut clients, |n, client| {
            for query in 0..QUERIES {
                client.query(query * FIBERS + n);
            }
        });
        let queried = start.elapsed();
        println!(
            "{FIBERS} connected after {connected:?}, waited {waited:?}, made {} queries in {queried:?}",
            FIBERS * QUERIES
        );
    });
}

/// Connects [`FIBERS`] clients, all from fibers of the runtime's one worker, then lets all of them lose their patience, each after [`TIMEOUT`],
/// then go on.
///
/// # Panics
///
/// If a client panics, or all together take much longer than one.
pub fn impatient<C: Send>(
    runtime: &Runtime,
    connect: impl Fn(usize) -> C + Sync,
    lose_patience: impl Fn(&mut C) + Sync,
    go_on: impl Fn(usize, &mut C) + Sync,
) {
    assert_eq!(runtime.workers(), 1);
    runtime.run_on(0, || {
        let mut clients = connect_all(&connect);
        let start = Instant::now();
        for_each(&mut clients, |n, client| {
            let start = Instant::now();
            lose_patience(client);
            assert!(start.elapsed() >= TIMEOUT, "fiber {n} is too early");
        });
        let took = start.elapsed();
        assert!(
            took < LIMIT,
            "{FIBERS} fibers that wait for {TIMEOUT:?} took {took:?}"
        );
        for_each(&mut clients, &go_on);
        println!("{FIBERS} lost their patience after {took:?}");
    });
}

fn connect_all<C: Send>(connect: &(impl Fn(usize) -> C + Sync)) -> Vec<C> {
    fibrant::scope(|scope| {
        let fibers: Vec<_> = (0..FIBERS).map(|n| scope.spawn(move || connect(n))).collect();
        fibers
            .into_iter()
            .map(|fiber| fiber.join().expect("it connects"))
            .collect()
    })
}

/// Runs a fiber for each client, all at once.
fn for_each<C: Send>(clients: &mut [C], act: impl Fn(usize, &mut C) + Sync) {
    let act = &act;
    fibrant::scope(|scope| {
        for (n, client) in clients.iter_mut().enumerate() {
            scope.spawn(move || act(n, client));
        }
    });
}
