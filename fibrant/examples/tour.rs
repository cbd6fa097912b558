//! A tour of what fibrant does today: `cargo run --release --example tour`.

use fibrant::fiber::{self, Coroutine, Fiber, State, Yielder};
use fibrant::io::Event;
use fibrant::runtime::Runtime;
use fibrant::sync::{Semaphore, channel};
use fibrant::{fiber_local, io, stats, timer};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

fn main() {
    fibrant::run(|| {
        crowd();
        messages();
        threads();
        pipeline();
        timers();
        descriptors();
        endings_from_outside();
        dump();
    });
    println!("\nSo much for fibers that a runtime schedules. Now by hand:");
    turns();
    nesting();
    generator();
    locals();
    failures();
    endings();
    costs();
}

fn title(text: &str) {
    println!("\n{text}\n{}", "-".repeat(text.len()));
}

/// Fibers are cheap enough to have very many.
fn crowd() {
    const COUNT: usize = 100_000;
    title("1. A crowd of 100,000 that sleeps");
    let before = resident();
    let start = Instant::now();
    let second = start + Duration::from_secs(1);
    let sleepers: Vec<_> = (0..COUNT)
        .map(|_| {
            let sleeper = move || fibrant::sleep(second.saturating_duration_since(Instant::now()));
            fibrant::Builder::new()
                .stack_size(64 << 10)
                .spawn(sleeper)
                .unwrap()
        })
        .collect();
    println!("  spawned in {:?}", start.elapsed());
    fibrant::sleep(Duration::from_millis(900).saturating_sub(start.elapsed()));
    println!(
        "  {} are alive, each with a guarded stack of its own: {} bytes each",
        fiber::live_count(),
        resident().saturating_sub(before) / COUNT
    );
    sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    println!(
        "  each slept until the second was over; all joined after {:?}",
        start.elapsed()
    );
}

/// Fibers wake each other by park and unpark, as threads do.
fn messages() {
    title("2. Messages by park and unpark");
    let letter = Arc::new(Mutex::new(None));
    let reader = fibrant::Builder::new().name("reader").spawn({
        let letter = Arc::clone(&letter);
        move || {
            for _ in 0..3 {
                let text: &str = loop {
                    if let Some(text) = letter.lock().unwrap().take() {
                        break text;
                    }
                    fiber::park();
                };
                println!("  {} got {text:?}", fiber::current().unwrap().name().unwrap());
            }
        }
    });
    let reader = reader.unwrap();
    for text in ["a", "b", "c"] {
        while letter.lock().unwrap().is_some() {
            fibrant::yield_now();
        }
        *letter.lock().unwrap() = Some(text);
        reader.fiber().unpark();
    }
    reader.join().unwrap();
}

/// To std a fiber is a thread: it has thread-locals of its own, and may hold a lock, or wait for a channel, across waits.
fn threads() {
    title("3. Thread-locals, locks and channels of std");
    thread_local! {
        static VISITOR: Cell<&'static str> = const { Cell::new("nobody") };
    }
    let guests = Arc::new(Mutex::new(Vec::new()));
    let (sender, receiver) = mpsc::sync_channel(0);
    let fibers = ["Ann", "Bob", "Cleo"].map(|name| {
        let (guests, sender) = (Arc::clone(&guests), sender.clone());
        fibrant::spawn(move || {
            VISITOR.set(name);
            let mut list = guests.lock().unwrap(); // the others wait for it, their workers do not
            thread::sleep(Duration::from_millis(5));
            list.push(name);
            drop(list);
            sender.send(thread::current().id()).unwrap(); // waits for whoever receives
            assert_eq!(VISITOR.get(), name);
        })
    });
    drop(sender);
    let mut ids: Vec<_> = receiver.iter().collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    ids.push(thread::current().id());
    println!("  the list: {:?}", guests.lock().unwrap());
    println!("  three fibers and the one that waits for them, as std sees them: {ids:?}");
    println!("  here, where nothing was set, the visitor is {}", VISITOR.get());
}

/// Channels of our own: stages that hand on what they have done, and one who waits for several things at once, but not for ever.
fn pipeline() {
    title("4. A pipeline over channels, select and a timeout");
    let (numbers, input) = channel::bounded(2);
    let (output, squares) = channel::bounded(2);
    let (give_up, given_up) = channel::bounded::<()>(0);
    fibrant::spawn(move || {
        for number in 1_u64.. {
            fibrant::select! {
                send(numbers, number) -> result => if result.is_err() { break },
                recv(given_up) -> _ => break, // nobody sends anything: its sender is gone
            }
        }
        println!("  the source has ended");
    });
    let stages = [0, 1].map(|_| {
        let (input, output) = (input.clone(), output.clone());
        fibrant::spawn(move || {
            for number in input {
                fibrant::sleep(Duration::from_millis(number)); // ever harder to square
                if output.send((number, number * number)).is_err() {
                    break;
                }
            }
        })
    });
    drop((input, output));
    let limit = channel::after(Duration::from_millis(100));
    let mut done = Vec::new();
    loop {
        fibrant::select! {
            recv(squares) -> pair => done.push(pair.unwrap()),
            recv(limit) -> _ => break,
            default(Duration::from_millis(12)) => {
                println!("  nothing for 12 ms: too hard by now");
                break;
            }
        }
    }
    println!("  {done:?}");
    drop((squares, give_up));
    stages.into_iter().for_each(|stage| stage.join().unwrap());

    let tickets = Semaphore::new(2);
    let late = tickets.acquire_many(2);
    println!(
        "  a semaphore with no permits left: {:?} in time",
        tickets.acquire_timeout(Duration::from_millis(5)).map(drop)
    );
    drop(late);
}

/// Timers run functions as fibers, once or again and again.
fn timers() {
    title("5. Timers");
    static TICKS: AtomicU32 = AtomicU32::new(0);
    let start = Instant::now();
    let ticker = timer::every(Duration::from_millis(10), || {
        TICKS.fetch_add(1, Ordering::Relaxed);
    });
    let late = timer::after(Duration::from_secs(3600), || unreachable!());
    timer::after(Duration::from_millis(55), move || {
        println!(
            "  after {:?} there were {} ticks",
            start.elapsed(),
            TICKS.load(Ordering::Relaxed)
        );
    });
    fibrant::sleep(Duration::from_millis(80));
    println!(
        "  cancelled: {} {}; again: {}",
        ticker.cancel(),
        late.cancel(),
        late.cancel()
    );
}

/// A fiber waits for a descriptor while others run.
fn descriptors() {
    title("6. Waiting for a descriptor");
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let reader = fibrant::spawn(move || {
        let ready = io::wait(ours.as_raw_fd(), Event::READ, Some(Duration::from_secs(10)));
        let mut buffer = [0; 16];
        let length = ours.read(&mut buffer).unwrap();
        println!(
            "  {:?} after a wait: {:?}",
            ready.unwrap(),
            String::from_utf8_lossy(&buffer[..length])
        );
    });
    fibrant::sleep(Duration::from_millis(5));
    theirs.write_all(b"hello").unwrap();
    reader.join().unwrap();
}

/// Cancelling unwinds a fiber; so does a timeout; a scope waits for its own.
fn endings_from_outside() {
    title("7. Cancel, timeout, scope");
    let sleeper = fibrant::spawn(|| fibrant::sleep(Duration::from_secs(3600)));
    fibrant::yield_now();
    sleeper.cancel();
    println!(
        "  cancelled: {}",
        sleeper.join().unwrap_err().is::<fibrant::Cancelled>()
    );
    let result = fibrant::timeout(Duration::from_millis(5), || {
        fibrant::sleep(Duration::from_secs(3600))
    });
    println!("  an hour's sleep with a timeout: {}", result.unwrap_err());
    let words = ["fibers", "may", "borrow"];
    fibrant::scope(|s| {
        let lengths: Vec<_> = words.iter().map(|word| s.spawn(|| word.len())).collect();
        let lengths: Vec<_> = lengths.into_iter().map(|length| length.join().unwrap()).collect();
        println!("  lengths of {words:?}: {lengths:?}");
    });
}

/// What everybody is doing, at any moment.
fn dump() {
    title("8. A dump");
    static TILL: fibrant::sync::Mutex<u32> = fibrant::sync::Mutex::named("till", 0);
    let count = TILL.lock().unwrap();
    let parked = fibrant::Builder::new().name("one").spawn(fiber::park).unwrap();
    let customer = fibrant::Builder::new()
        .name("two")
        .spawn(|| *TILL.lock().unwrap() += 1)
        .unwrap();
    fibrant::sleep(Duration::from_millis(5));
    print!("{}", Runtime::current().unwrap().dump());
    drop(count);
    parked.fiber().unpark();
    parked.join().unwrap();
    customer.join().unwrap();
}

/// A fiber and its resumer run in turns, each on its own stack.
fn turns() {
    title("9. In turns");
    let fiber = Fiber::new(|| {
        for step in ["washes", "rinses", "dries"] {
            println!("  fiber '{}' {step}", fiber::current().unwrap().name().unwrap());
            fiber::suspend();
        }
    })
    .named("dishes");
    while fiber.resume().unwrap() == State::Ready {
        println!(
            "  main has a look: it is {:?}, waiting because {:?}",
            fiber.state(),
            fiber.wait_reason().unwrap()
        );
    }
    println!(
        "  main: now it is {:?}; resuming it again says: {}",
        fiber.state(),
        fiber.resume().unwrap_err()
    );
}

/// A fiber may resume others; suspending always goes back to whoever resumed.
fn nesting() {
    title("10. Fibers within fibers");
    let outer = Fiber::new(|| {
        let inner = Fiber::new(|| {
            println!("    inner: suspends to outer, not to main");
            fiber::suspend();
            println!("    inner: ends");
        });
        inner.resume().unwrap();
        println!("  outer: suspends to main");
        fiber::suspend();
        inner.resume().unwrap();
        println!("  outer: ends");
    });
    outer.resume().unwrap();
    println!("main: has the word");
    outer.resume().unwrap();
}

/// A coroutine passes values, from any depth of calls; one that takes nothing is an iterator.
fn generator() {
    title("11. A recursive generator");
    fn moves(yielder: &Yielder<(), (char, char)>, disks: u32, from: char, to: char, via: char) {
        if disks > 0 {
            moves(yielder, disks - 1, from, via, to);
            yielder.suspend((from, to));
            moves(yielder, disks - 1, via, to, from);
        }
    }
    let hanoi = Coroutine::new(|yielder, ()| moves(yielder, 3, 'A', 'C', 'B'));
    let text: Vec<_> = hanoi.map(|(from, to)| format!("{from}->{to}")).collect();
    println!("  three disks of Hanoi: {}", text.join(" "));
}

/// Each fiber has its own fiber-locals.
fn locals() {
    title("12. Fiber-locals");
    fiber_local! {
        static REQUEST: Cell<u32> = const { Cell::new(0) };
    }
    let handlers: Vec<_> = (1..=3)
        .map(|number| {
            Fiber::new(move || {
                REQUEST.set(number);
                fiber::suspend();
                println!("  this fiber still handles request {}", REQUEST.get());
            })
        })
        .collect();
    for _ in 0..2 {
        for handler in &handlers {
            handler.resume().unwrap();
        }
    }
    println!("  outside, nothing was set: {}", REQUEST.get());
}

/// A panic goes on in the resumer; a stack that cannot be had is an error.
fn failures() {
    title("13. When things go wrong");
    let usual_hook = panic::take_hook();
    panic::set_hook(Box::new(|info| {
        println!("  (the panic hook saw a panic at {})", info.location().unwrap())
    }));
    let fiber = Fiber::new(|| panic!("out of milk"));
    let payload = panic::catch_unwind(AssertUnwindSafe(|| fiber.resume())).unwrap_err();
    panic::set_hook(usual_hook);
    println!(
        "  the panic reached the resumer: {:?}",
        payload.downcast_ref::<&str>().unwrap()
    );
    let greedy = Fiber::with_stack_size(1 << 60, || {});
    println!("  a stack too large: {}", greedy.resume().unwrap_err());
}

/// Dropping a suspended fiber runs the destructors of all it holds.
fn endings() {
    title("14. Dropping a suspended fiber");
    struct Connection;
    impl Drop for Connection {
        fn drop(&mut self) {
            println!("  its connection was closed");
        }
    }
    let fiber = Fiber::new(|| {
        let _connection = Connection;
        fiber::suspend();
        unreachable!("it is never resumed");
    });
    fiber.resume().unwrap();
    println!("  main drops the fiber");
    drop(fiber);
}

/// What a switch costs on this machine.
fn costs() {
    title("15. What it costs here");
    const ROUNDS: u32 = 1_000_000;
    let time = |name: &str, fiber: Fiber| {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            fiber.resume().unwrap();
        }
        println!(
            "  {name}: {:.1} ns there and back",
            start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS)
        );
    };
    time(
        "resume and suspend",
        Fiber::new(|| {
            loop {
                fiber::suspend()
            }
        }),
    );
    time(
        "the same, sharing float control",
        Fiber::new(|| {
            loop {
                fiber::suspend()
            }
        })
        .sharing_float_control(),
    );
    let stats = stats::process();
    println!(
        "  in all: {} switches, {} fibers, {} fresh stacks, {} used again",
        stats.switches, stats.fibers_created, stats.stacks_fresh, stats.stacks_reused
    );
}

/// The memory that this process uses, page tables included.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| -> usize {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
            .unwrap_or(0)
    };
    (kib("VmRSS") + kib("VmPTE")) << 10
}
