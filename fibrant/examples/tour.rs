//! A tour of what fibrant does today: `cargo run --release --example tour`.

use fibrant::fiber::{self, Coroutine, Fiber, State, Yielder};
use fibrant::{fiber_local, stats};
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::time::Instant;

fn main() {
    turns();
    nesting();
    generator();
    locals();
    failures();
    endings();
    crowd();
    costs();
}

fn title(text: &str) {
    println!("\n{text}\n{}", "-".repeat(text.len()));
}

/// A fiber and its resumer run in turns, each on its own stack.
fn turns() {
    title("1. In turns");
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
    title("2. Fibers within fibers");
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
    title("3. A recursive generator");
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
    title("4. Fiber-locals");
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
    title("5. When things go wrong");
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
    title("6. Dropping a suspended fiber");
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

/// Fibers are cheap enough to have very many.
fn crowd() {
    const COUNT: u32 = 100_000;
    title("7. A crowd of 100,000");
    let before = resident();
    let start = Instant::now();
    let fibers: Vec<_> = (0..COUNT)
        .map(|_| {
            Fiber::with_stack_size(64 << 10, || {
                loop {
                    fiber::suspend()
                }
            })
            .sharing_float_control()
        })
        .collect();
    let resume_all = || {
        for fiber in &fibers {
            fiber.resume().unwrap();
        }
    };
    resume_all();
    println!(
        "  made and started in {:?}, each with a guarded stack of its own",
        start.elapsed()
    );
    println!("  memory: {} bytes each", (resident() - before) / COUNT as usize);
    let start = Instant::now();
    resume_all();
    println!(
        "  resumed once more, all of them: {:?} ({} are alive)",
        start.elapsed(),
        fiber::live_count()
    );
    let start = Instant::now();
    drop(fibers);
    println!("  unwound and dropped: {:?}", start.elapsed());
}

/// What a switch costs on this machine.
fn costs() {
    title("8. What it costs here");
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
