//! The micro-benchmarks and the servers on may.

use std::array;
use std::io::{self, Read, Write};
use std::iter;
use std::net;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::blocking::{List, Tasks};
use bench::cases::{Bench, CROWDS, Case};
use bench::families::{MayMpmc, MayMpsc, MaySemaphore, MaySpsc, of_may};
use bench::micro::{self, Alarm, Args, Expired, Gauge, Outcome, Parked, Peer, Place};
use bench::serve::{self, Service};
use may::coroutine::{self, JoinHandle};
use may::go;
use may::net::{TcpListener, TcpStream};
use may::sync::mpsc;
use may_minihttp::{HttpServer, HttpService, Request, Response};

const UNBOUND: &str = "coroutines cannot be bound to workers";

/// may, whose one scheduler starts when it is first used.
struct May {
    workers: usize,
}

impl May {
    fn new(workers: usize) -> May {
        may::config().set_workers(workers);
        May { workers }
    }

    /// The result of `body`, run as a coroutine. The pool, made with the first one, gets a stack for it and `tasks` more: if
    /// it had more, each would be colder; if fewer, some would be mapped and unmapped all the time.
    fn inside<T: Send + 'static>(&self, tasks: usize, body: impl FnOnce() -> T + Send + 'static) -> T {
        may::config().set_pool_capacity(tasks + 1);
        go!(body).join().expect("a benchmark's coroutine")
    }
}

fn join_all(handles: impl IntoIterator<Item = JoinHandle<()>>) {
    for handle in handles {
        handle.join().expect("a coroutine");
    }
}

/// A node that sums `size` leaves from number `first` on.
fn node(first: u64, size: u64) -> JoinHandle<u64> {
    go!(move || {
        if size == 1 {
            return first;
        }
        let part = size / 10;
        let children: [_; 10] = array::from_fn(|index| node(first + index as u64 * part, part));
        children
            .into_iter()
            .map(|child| child.join().expect("a node"))
            .sum()
    })
}

/// Coroutines as tasks of the benchmarks of locks and channels.
#[derive(Clone, Copy)]
struct Coroutines {
    workers: usize,
}

impl Tasks for Coroutines {
    type Handle = JoinHandle<()>;

    fn spawn(self, _seat: Option<usize>, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        go!(body)
    }

    fn join(handle: JoinHandle<()>) {
        handle.join().expect("a coroutine");
    }

    fn yield_now() {
        coroutine::yield_now();
    }

    fn workers(self) -> usize {
        self.workers
    }

    fn seats(self) -> Outcome<()> {
        Err(UNBOUND.into())
    }

    fn has_locals(self) -> bool {
        false
    }
}

impl Peer for May {
    fn yields(&self, tasks: usize, n: usize) -> Outcome<Duration> {
        Ok(self.inside(tasks, move || {
            let yields = move || {
                for _ in 0..n {
                    coroutine::yield_now();
                }
            };
            let start = Instant::now();
            let handles: Vec<_> = iter::repeat_with(|| go!(yields)).take(tasks).collect();
            join_all(handles);
            start.elapsed()
        }))
    }

    fn spawn(&self, batch: usize, batches: usize) -> Outcome<Duration> {
        Ok(self.inside(batch, move || {
            let mut handles = Vec::with_capacity(batch);
            let start = Instant::now();
            for _ in 0..batches {
                handles.extend(iter::repeat_with(|| go!(|| ())).take(batch));
                join_all(handles.drain(..));
            }
            start.elapsed()
        }))
    }

    fn skynet(&self, leaves: u64) -> Outcome<(Duration, u64)> {
        Ok(self.inside((leaves + leaves / 9) as usize + 1, move || {
            let start = Instant::now();
            let sum = node(0, leaves).join().expect("the root");
            (start.elapsed(), sum)
        }))
    }

    fn pingpong(&self, place: Place, n: usize) -> Outcome<Duration> {
        if place == Place::Across || (place == Place::Same && self.workers > 1) {
            return Err(UNBOUND.into());
        }
        Ok(self.inside(1, move || {
            let (to_pong, from_ping) = mpsc::channel();
            let (to_ping, from_pong) = mpsc::channel();
            let pong = go!(move || {
                for token in from_ping.iter() {
                    to_ping.send(token).expect("ping");
                }
            });
            let start = Instant::now();
            for _ in 0..n {
                to_pong.send(()).expect("pong");
                from_pong.recv().expect("pong");
            }
            let time = start.elapsed();
            drop(to_pong);
            pong.join().expect("pong");
            time
        }))
    }

    fn start(&self) -> Duration {
        Duration::from_micros(60)
    }

    fn expire(&self, alarm: Alarm) -> Outcome<Expired> {
        self.inside(alarm.tasks(), move || {
            let alarm = Arc::new(alarm);
            let sleeper = |index| {
                let alarm = alarm.clone();
                go!(move || {
                    micro::arrive();
                    coroutine::sleep(alarm.remaining(index));
                })
            };
            let handles: Vec<_> = (0..alarm.tasks()).map(sleeper).collect();
            coroutine::sleep(alarm.eve() - Instant::now());
            let begun = alarm.begin();
            join_all(handles);
            begun.map(|()| alarm.end())
        })
    }

    fn parked(&self, n: usize, hold: Duration) -> Outcome<Parked> {
        // A pool would be there before the tasks, and their memory go uncounted.
        Ok(self.inside(0, move || {
            let mut handles = Vec::with_capacity(n);
            let mut gauge = Gauge::new();
            for _ in 0..n {
                handles.push(go!(|| {
                    micro::arrive();
                    coroutine::park();
                }));
            }
            while micro::arrived() < n {
                // Not a yield: a worker with a coroutine at hand does not look for newly spawned ones.
                coroutine::sleep(Duration::from_millis(1));
            }
            gauge.arrived();
            coroutine::sleep(Gauge::SETTLE);
            gauge.settled();
            coroutine::sleep(hold);
            gauge.waking();
            for handle in &handles {
                handle.coroutine().unpark();
            }
            join_all(handles);
            gauge.ended()
        }))
    }

    fn cases(&self, bench: Bench) -> Vec<Case<'_>> {
        may::config().set_pool_capacity(CROWDS[1] + 1);
        let coroutines = Coroutines {
            workers: self.workers,
        };
        List::new(bench, coroutines)
            .mutex::<of_may::Mutex>()
            .lock::<of_may::Read>()
            .lock::<of_may::Write>()
            .lock::<MaySemaphore>()
            .channel::<MaySpsc>()
            .channel::<MayMpsc>()
            .shared::<MayMpmc>()
            .condition::<of_may::Condition>()
            .barrier::<of_may::Barrier>()
            .group::<of_may::Group>()
            .joins()
            .cases()
    }

    /// A stack and its guard are two mappings, and the kernel limits those. A coroutine has its stack from its spawning on.
    fn room(&self) -> (usize, &'static str) {
        let others = 1_000;
        (
            (micro::system_limit("vm/max_map_count") / 2).saturating_sub(others),
            "vm.max_map_count",
        )
    }
}

/// Sends back what comes.
fn echo(mut stream: TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    loop {
        match stream.read(buffer)? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}

fn serve_echo(service: Service, port: u16) -> io::Result<()> {
    let listener = TcpListener::bind(serve::address(port))?;
    serve::lengthen_queue(&listener);
    serve::ready(listener.local_addr());
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        if service == Service::Stream {
            go!(move || echo(stream, &mut vec![0; serve::LARGE]));
        } else {
            go!(move || echo(stream, &mut [0; serve::SMALL]));
        }
    }
}

/// Says hello to everybody.
#[derive(Clone)]
struct Hello;

impl HttpService for Hello {
    fn call(&mut self, _request: Request, response: &mut Response) -> io::Result<()> {
        response.body(serve::HELLO);
        Ok(())
    }
}

/// The server does not say at which port it listens, so one that is free is looked for first. Nor does it let one set `TCP_NODELAY`, but it
/// writes an answer in one piece, which nothing delays.
fn serve_http(port: u16) -> io::Result<()> {
    let address = net::TcpListener::bind(serve::address(port))?.local_addr()?;
    let server = HttpServer(Hello).start(address)?;
    serve::ready(Ok(address));
    server.join().expect("a server");
    Ok(())
}

fn main() -> io::Result<()> {
    let args = Args::parse("may");
    let may = May::new(args.workers);
    let Some((service, port)) = args.server() else {
        args.run(&may);
        return Ok(());
    };
    serve::allow_many_connections();
    match service {
        Service::Http => serve_http(port),
        _ => go!(move || serve_echo(service, port)).join().expect("a server"),
    }
}
