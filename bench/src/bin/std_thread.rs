//! The micro-benchmarks and the servers on threads of the operating system; a worker is a processor.

use std::array;
use std::fs::File;
use std::io::{self, Read, Write};
use std::iter;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use bench::bare;
use bench::blocking::List;
use bench::cases::{Bench, Case};
use bench::families::{Crossbeam, StdBounded, StdUnbounded, of_parking_lot, of_std};
use bench::micro::{self, Alarm, Args, Expired, Gauge, Outcome, Parked, Peer, Place, Token};
use bench::plain;
use bench::threads::{self, STACK};

/// Threads.
struct Threads {
    workers: usize,
}

fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new()
        .stack_size(STACK)
        .spawn(body)
        .expect("a thread")
}

fn join_all(handles: impl IntoIterator<Item = JoinHandle<()>>) {
    for handle in handles {
        handle.join().expect("a thread");
    }
}

/// Binds the calling thread to a processor.
fn bind(processor: usize) {
    threads::bind(&[processor]);
}

/// Binds the calling thread as `place` says, if it does: ping to the first processor, pong to the first or second.
fn bind_to(place: Place, pong: bool) {
    match place {
        Place::Same => bind(0),
        Place::Free => (),
        Place::Across => bind(pong.into()),
    }
}

/// The time that two threads take, each of which gets the other one's handle.
fn duel(
    place: Place,
    ping: impl FnOnce(&Thread) + Send + 'static,
    pong: impl FnOnce(&Thread) + Send + 'static,
) -> Duration {
    let both = spawn(move || {
        bind_to(place, false);
        let first = thread::current();
        let start = Instant::now();
        let second = spawn(move || {
            bind_to(place, true);
            pong(&first);
        });
        ping(second.thread());
        second.join().expect("pong");
        start.elapsed()
    });
    both.join().expect("ping")
}

/// A node that sums `size` leaves from number `first` on.
fn node(first: u64, size: u64) -> JoinHandle<u64> {
    spawn(move || {
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

/// A blocking eventfd.
fn eventfd() -> Arc<File> {
    // SAFETY: no pointers; the result is checked, and nobody else has the descriptor.
    let file = unsafe {
        let descriptor = libc::eventfd(0, libc::EFD_CLOEXEC);
        assert_ne!(descriptor, -1, "{}", io::Error::last_os_error());
        File::from_raw_fd(descriptor)
    };
    Arc::new(file)
}

fn signal(mut eventfd: &File) {
    eventfd.write_all(&1_u64.to_ne_bytes()).expect("an eventfd");
}

fn wait(mut eventfd: &File) {
    eventfd.read_exact(&mut [0; 8]).expect("an eventfd");
}

/// An epoll that tells of each signal of one eventfd, which need not be read.
struct Epoll {
    file: File,
    _eventfd: Arc<File>,
}

impl Epoll {
    fn of(eventfd: &Arc<File>) -> Epoll {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLET) as u32,
            u64: 0,
        };
        // SAFETY: the event is a local variable; the results are checked, and nobody else has the descriptor.
        let file = unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            assert_ne!(epoll, -1, "{}", io::Error::last_os_error());
            let result = libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, eventfd.as_raw_fd(), &mut event);
            assert_ne!(result, -1, "{}", io::Error::last_os_error());
            File::from_raw_fd(epoll)
        };
        Epoll {
            file,
            _eventfd: eventfd.clone(),
        }
    }

    fn wait(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for one event.
        let count = unsafe { libc::epoll_wait(self.file.as_raw_fd(), &mut event, 1, -1) };
        assert_eq!(count, 1, "{}", io::Error::last_os_error());
    }
}

impl Peer for Threads {
    fn yields(&self, tasks: usize, n: usize) -> Outcome<Duration> {
        let workers = self.workers;
        let barrier = Arc::new(Barrier::new(tasks + 1));
        let yielder = || {
            let barrier = barrier.clone();
            spawn(move || {
                if workers == 1 {
                    bind(0);
                }
                barrier.wait();
                for _ in 0..n {
                    thread::yield_now();
                }
            })
        };
        let handles: Vec<_> = iter::repeat_with(yielder).take(tasks).collect();
        barrier.wait();
        let start = Instant::now();
        join_all(handles);
        Ok(start.elapsed())
    }

    fn spawn(&self, batch: usize, batches: usize) -> Outcome<Duration> {
        let mut handles = Vec::with_capacity(batch);
        let start = Instant::now();
        for _ in 0..batches {
            handles.extend(iter::repeat_with(|| spawn(|| ())).take(batch));
            join_all(handles.drain(..));
        }
        Ok(start.elapsed())
    }

    fn skynet(&self, leaves: u64) -> Outcome<(Duration, u64)> {
        let start = Instant::now();
        let sum = node(0, leaves).join().expect("the root");
        Ok((start.elapsed(), sum))
    }

    fn pingpong(&self, place: Place, n: usize) -> Outcome<Duration> {
        let token = Arc::new(Token::default());
        let same = token.clone();
        Ok(duel(
            place,
            move |pong| token.play(false, n, thread::park, || pong.unpark()),
            move |ping| same.play(true, n, thread::park, || ping.unpark()),
        ))
    }

    fn timers(&self, n: usize) -> Outcome<(Duration, Duration)> {
        Ok(bare::timers(n, micro::timer))
    }

    fn eventfd(&self, place: Place, n: usize) -> Outcome<Duration> {
        let (to_pong, to_ping) = (eventfd(), eventfd());
        let (from_ping, from_pong) = (to_pong.clone(), to_ping.clone());
        Ok(duel(
            place,
            move |_| {
                for _ in 0..n {
                    signal(&to_pong);
                    wait(&from_pong);
                }
            },
            move |_| {
                for _ in 0..n {
                    wait(&from_ping);
                    signal(&to_ping);
                }
            },
        ))
    }

    fn eventfd_epoll(&self, place: Place, n: usize) -> Outcome<Duration> {
        let (to_pong, to_ping) = (eventfd(), eventfd());
        let (at_pong, at_ping) = (Epoll::of(&to_pong), Epoll::of(&to_ping));
        let (for_pong, for_ping) = (to_pong.clone(), to_ping.clone());
        Ok(duel(
            place,
            move |_| {
                for _ in 0..n {
                    signal(&for_pong);
                    at_ping.wait();
                }
            },
            move |_| {
                for _ in 0..n {
                    at_pong.wait();
                    signal(&for_ping);
                }
            },
        ))
    }

    fn start(&self) -> Duration {
        Duration::from_micros(100)
    }

    fn expire(&self, alarm: Alarm) -> Outcome<Expired> {
        let alarm = Arc::new(alarm);
        let sleeper = |index| {
            let alarm = alarm.clone();
            spawn(move || {
                micro::arrive();
                thread::sleep(alarm.remaining(index));
            })
        };
        let handles: Vec<_> = (0..alarm.tasks()).map(sleeper).collect();
        thread::sleep(alarm.eve() - Instant::now());
        let begun = alarm.begin();
        join_all(handles);
        begun.map(|()| alarm.end())
    }

    /// The kernel's own memory for a thread is not counted: its kernel stack and the like.
    fn parked(&self, n: usize, hold: Duration) -> Outcome<Parked> {
        let mut handles = Vec::with_capacity(n);
        let mut gauge = Gauge::new();
        for _ in 0..n {
            handles.push(spawn(|| {
                micro::arrive();
                thread::park();
            }));
        }
        while micro::arrived() < n {
            thread::yield_now();
        }
        gauge.arrived();
        thread::sleep(Gauge::SETTLE);
        gauge.settled();
        thread::sleep(hold);
        gauge.waking();
        for handle in &handles {
            handle.thread().unpark();
        }
        join_all(handles);
        Ok(gauge.ended())
    }

    fn cases(&self, bench: Bench) -> Vec<Case<'_>> {
        let threads = threads::Threads {
            workers: self.workers,
        };
        List::new(bench, threads)
            .mutex::<of_std::Mutex>()
            .lock::<of_std::Read>()
            .lock::<of_std::Write>()
            .mutex::<of_parking_lot::Mutex>()
            .lock::<of_parking_lot::Read>()
            .lock::<of_parking_lot::Write>()
            .channel::<StdBounded>()
            .channel::<StdUnbounded>()
            .select::<Crossbeam>()
            .condition::<of_std::Condition>()
            .barrier::<of_std::Barrier>()
            .joins()
            .clock::<Crossbeam>()
            .cases()
    }

    /// A stack and its guard are two mappings; and a thread needs a number.
    fn room(&self) -> (usize, &'static str) {
        let others = 1_000;
        let limits = [
            (micro::system_limit("kernel/pid_max"), "kernel.pid_max"),
            (micro::system_limit("kernel/threads-max"), "kernel.threads-max"),
            (micro::system_limit("vm/max_map_count") / 2, "vm.max_map_count"),
        ];
        let (room, limit) = limits.into_iter().min().expect("limits");
        (room.saturating_sub(others), limit)
    }
}

fn main() -> io::Result<()> {
    let args = Args::parse("std_thread");
    if let Some((service, port)) = args.server() {
        return plain::serve(service, port, |connection| {
            spawn(|| connection.serve());
        });
    }
    args.run(&Threads {
        workers: args.workers,
    });
    Ok(())
}
