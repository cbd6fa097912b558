//! Thread-locals of C libraries: linked, or loaded before and while fibers live, in both models; and what the loader itself does.

use crate::common;
use crate::patience::{Watchdog, eventually};
use crate::support::*;
use fibrant::fiber;
use fibrant::runtime::{Builder, Runtime};
use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// Fibers that live while something happens, and then do what they were made for.
struct Witnesses {
    go: Arc<OnceLock<NativeLocals>>,
    fibers: Vec<fibrant::JoinHandle<()>>,
}

impl Witnesses {
    fn new(runtime: &Runtime, count: usize) -> Witnesses {
        let (go, ready) = (Arc::new(OnceLock::new()), Arc::new(AtomicUsize::new(0)));
        let fibers = (0..count)
            .map(|number| {
                let (go, ready) = (Arc::clone(&go), Arc::clone(&ready));
                runtime.spawn_on(number % runtime.workers(), move || {
                    ready.fetch_add(1, SeqCst);
                    let mut locals: Option<&NativeLocals> = None;
                    while locals.is_none() {
                        fiber::park_timeout(Duration::from_millis(1));
                        locals = go.get();
                    }
                    locals.unwrap().check(number);
                })
            })
            .collect();
        eventually("all have begun", || ready.load(SeqCst) == count);
        Witnesses { go, fibers }
    }

    fn look_at(self, locals: NativeLocals) {
        assert!(self.go.set(locals).is_ok());
        self.fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    }
}

/// All that is to be seen of one library in a runtime: by those that lived when it was loaded, and by later ones.
fn witness(runtime: &Runtime, compiled: &Compiled, load: impl FnOnce(&Compiled) -> Loaded) -> Loaded {
    // Blocks that are idle when it is loaded.
    together(runtime, 30, wait);
    let witnesses = Witnesses::new(runtime, 10);
    let library = load(compiled);
    let locals = library.locals();
    witnesses.look_at(locals);
    for _ in 0..3 {
        together(runtime, 40, move |number| locals.check(number));
    }
    library
}

fn in_a_fiber(runtime: &Runtime, compiled: &Compiled) -> Loaded {
    runtime.run_on(runtime.workers() - 1, || compiled.load())
}

fn in_a_thread(compiled: &Compiled) -> Loaded {
    thread::scope(|scope| scope.spawn(|| compiled.load()).join().unwrap())
}

/// Loads, unloads, and loads others in the same place, with other initial values.
fn come_and_go(options: &'static [&'static str]) {
    let versions: Vec<_> = ["-DSTART=1", "-DSTART=22", "-DSTART=333"]
        .map(|start| Compiled::new("locals.c", &[options, &[start]].concat()))
        .into_iter()
        .collect();
    on_workers(|runtime| {
        for compiled in &versions {
            witness(runtime, compiled, |compiled| in_a_fiber(runtime, compiled)).unload();
            let library = witness(runtime, compiled, in_a_thread);
            runtime.run_on(0, || library.unload());
        }
        // Two at once, and the older one goes first.
        let older = witness(runtime, &versions[0], in_a_thread);
        let newer = witness(runtime, &versions[1], |compiled| in_a_fiber(runtime, compiled));
        older.unload();
        let locals = newer.locals();
        together(runtime, 20, move |number| locals.check(number));
        newer.unload();
    });
}

#[test]
fn dynamic_ones_come_and_go() {
    come_and_go(DYNAMIC);
}

#[test]
fn static_ones_come_and_go() {
    come_and_go(STATIC);
}

/// The third way to reach them, which is the usual one on aarch64.
#[cfg(target_arch = "x86_64")]
#[test]
fn described_ones_come_and_go() {
    come_and_go(&["-mtls-dialect=gnu2"]);
}

/// Libraries that are loaded before there is a runtime.
#[test]
fn early_ones_are_initial() {
    let _watchdog = Watchdog::new();
    for options in [DYNAMIC, STATIC] {
        let compiled = Compiled::new("locals.c", options);
        let library = compiled.load();
        let locals = library.locals();
        locals.soil(5);
        let runtime = fibrant::runtime::Builder::new().workers(2).build().unwrap();
        together(&runtime, 50, move |number| locals.check(number));
        fibrant::run(|| assert!(locals.are_soiled(5), "the thread's own"));
        assert!(locals.are_soiled(5));
        runtime.stop().unwrap();
        library.unload();
    }
}

/// The environment of a process that has a library from the start: the process itself, not an emulator that may run it.
fn preloading(compiled: &Compiled) -> (&'static str, String) {
    let path = compiled.path().to_str().unwrap();
    if is_emulated() {
        ("QEMU_SET_ENV", format!("LD_PRELOAD={path}"))
    } else {
        ("LD_PRELOAD", path.to_owned())
    }
}

/// Where fibers cannot have thread-locals of their own, that is an error with the reason, and light ones are the way out.
#[test]
fn what_does_not_fit_is_said() {
    const TEST: &str = "libraries::what_does_not_fit_is_said";
    let _watchdog = Watchdog::new();
    if common::case().is_none() {
        let compiled = Compiled::new("locals.c", &["-DALIGNED=512"]);
        let (name, value) = preloading(&compiled);
        common::child(TEST, "aligned", &[(name, &value)]).succeeded();
        return;
    }
    let builder = || fibrant::runtime::Builder::new().workers(1);
    let error = builder().build().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    for part in ["aligned to 512 bytes", "Builder::light"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // SAFETY: it uses no thread-locals.
    let light = unsafe { builder().light() }.build().unwrap();
    assert_eq!(light.spawn(|| 5).join().unwrap(), 5);
    light.stop().unwrap();
}

/// A library that the program was linked with: one that is preloaded is found in the same way.
#[test]
fn linked_ones_are_initial() {
    const TEST: &str = "libraries::linked_ones_are_initial";
    if common::case().is_some() {
        let locals = Loaded::program().locals();
        locals.soil(5);
        on_workers(|runtime| {
            for _ in 0..3 {
                together(runtime, 50, move |number| locals.check(number));
            }
        });
        assert!(locals.are_soiled(5), "the thread's own");
        return;
    }
    let _watchdog = Watchdog::new();
    for options in [DYNAMIC, STATIC] {
        let compiled = Compiled::new("locals.c", options);
        let (name, value) = preloading(&compiled);
        common::child(TEST, "linked", &[(name, &value)]).succeeded();
    }
}

/// Whoever loads a library that another one is just loading finds it complete, thread-locals included.
#[test]
fn many_load_the_same_one() {
    let versions = [DYNAMIC, STATIC].map(|options| Compiled::new("locals.c", options));
    let versions = Arc::new(versions);
    on_workers(|runtime| {
        for round in 0..20 {
            let versions = Arc::clone(&versions);
            let loaded = together(runtime, 8, move |number| {
                if number % 2 == 0 {
                    fibrant::yield_now();
                }
                let library = versions[round % 2].load();
                library.locals().check(number);
                library
            });
            loaded.into_iter().for_each(Loaded::unload);
        }
    });
}

/// A library that takes the place of one that another thread has just unloaded is new all the same.
#[test]
fn one_takes_the_place_of_another() {
    // Alone, as it may use up what there is for such thread-locals: the C library uses only the last ones again.
    const ROUNDS: usize = 1000;
    alone("libraries::one_takes_the_place_of_another", || {
        let watchdog = Watchdog::new();
        let runtime = watchdog.runtime(2);
        let versions = Arc::new([0, 1].map(|_| Compiled::new("locals.c", STATIC)));
        let present = Arc::new((Barrier::new(2), AtomicBool::new(false), Mutex::new(None)));
        let rounds = together(&runtime, 2, move |number| {
            let (barrier, is_begun, locals) = &*present;
            let mut own = None;
            for round in 0..ROUNDS {
                is_begun.store(round == 0, SeqCst);
                barrier.wait();
                // One unloads what both have used, while the other one loads, a little later.
                if round % 2 == number {
                    while !is_begun.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                    (0..round * 50).for_each(|_| std::hint::spin_loop());
                    let library = versions[number].try_load();
                    *locals.lock().unwrap() = library.as_ref().ok().map(|library| library.locals());
                    own = library.ok();
                } else {
                    is_begun.store(true, SeqCst);
                    own.take().into_iter().for_each(Loaded::unload);
                }
                barrier.wait();
                let Some(locals) = *locals.lock().unwrap() else {
                    return round;
                };
                assert!(locals.are_initial(), "they are those of a new thread");
                locals.soil(round);
            }
            barrier.wait();
            own.into_iter().for_each(Loaded::unload);
            ROUNDS
        });
        assert!(rounds[0] == rounds[1] && rounds[0] > 0, "{rounds:?}");
        runtime.stop().unwrap();
    });
}

/// A constructor that sleeps keeps its worker: nobody else comes into the loader meanwhile.
#[test]
fn a_constructor_may_sleep() {
    let compiled = Arc::new(Compiled::new("sleeper.c", STATIC));
    let failing = CString::new("no-such-library.so").unwrap();
    on_workers(|runtime| {
        let (compiled, failing) = (Arc::clone(&compiled), failing.clone());
        let libraries = together(runtime, 4, move |number| {
            if number == 3 {
                // SAFETY: there is no such library.
                let none = unsafe { libc::dlopen(failing.as_ptr(), libc::RTLD_NOW) };
                assert!(none.is_null());
                return None;
            }
            let library = compiled.load();
            // SAFETY: it is of this type.
            let is_constructed: extern "C" fn() -> c_int =
                unsafe { std::mem::transmute(library.symbol(c"is_constructed")) };
            assert_eq!(is_constructed(), 1);
            Some(library)
        });
        libraries.into_iter().flatten().for_each(Loaded::unload);
    });
}

#[test]
fn the_loaders_error_is_told() {
    on_workers(|runtime| {
        together(runtime, 10, |number| {
            for round in 0..5 {
                let name = CString::new(format!("no-such-library-{number}-{round}.so")).unwrap();
                // SAFETY: there is no such library.
                assert!(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null());
                let error = loading_error();
                assert!(error.contains(name.to_str().unwrap()), "{error}");
                assert_eq!(loading_error(), "no error");
                // SAFETY: looks for what is not there.
                assert!(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"no_such_symbol".as_ptr()) }.is_null());
                wait(round + 1);
                let error = loading_error();
                assert!(error.contains("no_such_symbol"), "{error}");
            }
        });
    });
}

/// A thread, too, is told: the first time that a process asks.
#[test]
fn the_loaders_error_is_told_to_threads() {
    alone("libraries::the_loaders_error_is_told_to_threads", || {
        // SAFETY: there is no such library.
        assert!(unsafe { libc::dlopen(c"no-such-library.so".as_ptr(), libc::RTLD_NOW) }.is_null());
        let error = loading_error();
        assert!(error.contains("no-such-library.so"), "{error}");
    });
}

extern "C" fn wait_from_c(round: c_int) {
    wait(round as usize);
}

/// Which exception is being handled belongs to the fiber.
#[test]
fn exceptions_do_not_mix() {
    let compiled = Compiled::new("exceptions.cpp", &["-std=c++17"]);
    let library = compiled.load();
    type Handle = extern "C" fn(extern "C" fn(c_int), c_int) -> c_int;
    // SAFETY: it is of this type.
    let handle = unsafe { std::mem::transmute::<*mut c_void, Handle>(library.symbol(c"handle")) };
    let all_are_right = |runtime: &Runtime| {
        let right = together(runtime, 20, move |number| handle(wait_from_c, number as c_int));
        assert_eq!(right, [30; 20]);
    };
    on_workers(all_are_right);
    // SAFETY: what they run keeps nothing else in thread-locals across waits.
    let light = unsafe { Builder::new().workers(1).light() }.build().unwrap();
    all_are_right(&light);
    // Nor those of a fiber and of what it has spawned locally.
    light.stop().unwrap();
    on_workers(|runtime| {
        let right = runtime.spawn(move || {
            let fibers: Vec<_> = (0..20)
                .map(|number| fibrant::spawn_local(move || handle(wait_from_c, number)))
                .collect();
            let own = handle(wait_from_c, 20);
            let theirs = fibers.into_iter().map(|fiber| fiber.join().unwrap());
            theirs.chain([own]).collect::<Vec<_>>()
        });
        assert_eq!(right.join().unwrap(), [30; 21]);
    });
}
