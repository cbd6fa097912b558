//! A worker that is stuck in one fiber is noticed, and what waits there goes on elsewhere.

#[path = "common/patience.rs"]
mod patience;
#[path = "common/waiting.rs"]
mod waiting;

use fibrant::runtime::{Builder, Dump, FiberDump};
use patience::{Watchdog, eventually};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use waiting::undisturbed;

const LIMIT: Duration = Duration::from_millis(30);

/// Blocks the thread, not the fiber, until it is told to go on.
fn block_until(go_on: &AtomicBool) {
    fibrant::hook::disabled(|| {
        while !go_on.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_worker_that_is_stuck_is_shown_with_the_fibers_name() {
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).stuck_after(LIMIT).build().unwrap();
    let go_on = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&go_on);
    let stuck = runtime
        .run_on(0, || {
            fibrant::Builder::new()
                .name("culprit")
                .spawn(move || block_until(&flag))
        })
        .unwrap();
    // The machine may have stopped the worker in another fiber before, for so long that this was noticed.
    let mut dump = runtime.dump();
    eventually("it is noticed", || {
        dump = runtime.dump();
        let worker = &dump.workers[0];
        worker.stuck.is_some() && worker.current == Some(stuck.id())
    });
    assert!(dump.workers[0].stuck.unwrap() >= LIMIT, "{dump}");
    assert!(dump.to_string().contains("'culprit' for"), "{dump}");
    assert!(
        !dump.to_json().contains("\"stuck_ms\":null"),
        "{}",
        dump.to_json()
    );
    go_on.store(true, SeqCst);
    stuck.join().unwrap();
    eventually("it is forgotten", || runtime.dump().workers[0].stuck.is_none());
    runtime.stop().unwrap();
}

#[test]
fn fresh_fibers_of_a_stuck_worker_run_elsewhere() {
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(2).stuck_after(LIMIT).build().unwrap();
    let go_on = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&go_on);
    let (sender, receiver) = std::sync::mpsc::channel();
    runtime.spawn_on(0, move || {
        fibrant::spawn(move || sender.send(7).unwrap());
        block_until(&flag);
    });
    assert_eq!(receiver.recv(), Ok(7));
    assert!(!go_on.load(SeqCst));
    go_on.store(true, SeqCst);
    runtime.stop().unwrap();
}

#[test]
fn workers_that_are_busy_or_idle_are_not_stuck() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    undisturbed(|| {
        // An attempt that was disturbed may have left it so.
        eventually("it is forgotten", || runtime.dump().workers[0].stuck.is_none());
        let start = Instant::now();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        // Many turns, each short, though polls come further apart than the limit, and longer than that in all. They are
        // what the worker does, hardly anything else: whenever the monitor looks, it sees the fiber.
        let busy = runtime.spawn(move || {
            let mut turn = start;
            while !over.load(SeqCst) {
                while turn.elapsed() < Duration::from_millis(10) {
                    std::hint::spin_loop();
                }
                fibrant::yield_now();
                turn = Instant::now();
            }
        });
        let (mut looks, mut is_stuck) = (0, false);
        while looks <= 10 || start.elapsed() < Duration::from_millis(700) {
            is_stuck |= runtime.dump().workers[0].stuck.is_some();
            looks += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        is_over.store(true, SeqCst);
        busy.join().unwrap();
        // If the machine stops the worker from one look of the monitor to the next, it is rightly called stuck.
        (!is_stuck).then_some(())
    });
    let parked = runtime.spawn(fibrant::fiber::park);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(runtime.dump().workers[0].stuck, None);
    parked.fiber().unpark();
    parked.join().unwrap();
    runtime.stop().unwrap();
}

/// A fiber in a dump.
fn find(dump: &Dump, id: u64) -> &FiberDump {
    dump.fibers.iter().find(|fiber| fiber.id == id).unwrap()
}

#[test]
fn a_fiber_that_waits_in_a_hook_shows_the_call_and_the_peer() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, address) = listener.accept().unwrap();
    let peer = ours.peer_addr().unwrap().to_string();
    assert_ne!(peer, address.to_string());
    let reader = runtime.spawn(move || ours.read(&mut [0; 4]).unwrap());
    let (mut output, input) = std::io::pipe().unwrap();
    let piper = runtime.spawn(move || output.read(&mut [0; 4]).unwrap());
    // One that has waited for a while looks after its registration, and does not wait meanwhile: the next dump may show that.
    let mut dump = runtime.dump();
    eventually("both wait", || {
        dump = runtime.dump();
        [reader.id(), piper.id()].map(|id| find(&dump, id).wait.is_some()) == [true; 2]
    });
    let shown = find(&dump, reader.id());
    assert_eq!(
        (shown.call, shown.peer.as_deref()),
        (Some("recv"), Some(peer.as_str()))
    );
    let shown = find(&dump, piper.id());
    assert_eq!((shown.call, &shown.peer), (Some("read"), &None));
    let text = dump.to_string();
    assert!(
        text.contains("in recv, waiting for input on descriptor"),
        "{text}"
    );
    assert!(text.contains(&format!("(peer {peer})")), "{text}");
    assert!(dump.to_json().contains("\"call\":\"recv\""));
    drop((theirs, input));
    assert_eq!(piper.join().unwrap(), 0);
    assert_eq!(reader.join().unwrap(), 0);
    let of = |name: &str| {
        runtime
            .hook_stats()
            .into_iter()
            .find(|one| one.name == name)
            .unwrap()
    };
    assert_eq!((of("recv").calls, of("recv").would_block), (1, 1));
    assert!(of("recv").parks >= 1);
    assert!(text.contains("hook recv: 1 calls, 1 would block"), "{text}");
    assert!(
        fibrant::hook::stats()
            .iter()
            .any(|one| one.name == "recv" && one.calls >= 1)
    );
    runtime.stop().unwrap();
}

#[cfg(feature = "tracing")]
#[test]
fn whoever_listens_is_warned() {
    use std::fmt::Debug;
    use std::sync::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    /// Keeps warnings, as `name=value` words.
    struct Listener(Mutex<Vec<String>>);

    struct Words(String);

    impl Visit for Words {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0 += &format!("{}={value:?} ", field.name());
        }
    }

    impl Subscriber for &'static Listener {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "fibrant" && *metadata.level() == Level::WARN
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut words = Words(String::new());
            event.record(&mut words);
            self.0.lock().unwrap().push(words.0);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    static LISTENER: Listener = Listener(Mutex::new(Vec::new()));
    tracing::subscriber::set_global_default(&LISTENER).unwrap();
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).stuck_after(LIMIT).build().unwrap();
    let go_on = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&go_on);
    let stuck = runtime
        .run_on(0, || {
            fibrant::Builder::new()
                .name("heard of")
                .spawn(move || block_until(&flag))
        })
        .unwrap();
    let heard = || {
        LISTENER
            .0
            .lock()
            .unwrap()
            .iter()
            .find(|words| words.contains("heard of"))
            .cloned()
    };
    eventually("it is told", || heard().is_some());
    assert!(
        heard().unwrap().contains(&format!("fiber={} ", stuck.id())),
        "{:?}",
        heard()
    );
    go_on.store(true, SeqCst);
    stuck.join().unwrap();
    runtime.stop().unwrap();
}
