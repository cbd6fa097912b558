//! Forks from fibers, and changes of the user while fibers run: the C library knows all its threads, and no fibers.

use crate::common;
use crate::patience::Watchdog;
use crate::support::*;
use fibrant::runtime::Builder;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::thread;

thread_local! {
    static VALUE: Cell<usize> = const { Cell::new(7) };
    static WORDS: RefCell<Vec<String>> = RefCell::new(vec!["initial".into()]);
}

/// Forks, runs `f` in the child, and gives the child's exit code.
#[track_caller]
fn in_child(f: impl FnOnce()) {
    // SAFETY: the child is to find out what it can do; it ends here.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(30);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            libc::_exit(if result.is_ok() { 42 } else { 101 });
        }
        assert!(child > 0);
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 42,
            "status {status:x}"
        );
    }
}

fn soil(number: usize) {
    VALUE.set(number);
    WORDS.with_borrow_mut(|words| words.push(number.to_string()));
}

/// The child of a fiber is that fiber, and can do everything.
#[test]
fn a_child_goes_on_with_the_fibers() {
    if is_emulated() {
        return;
    }
    alone("processes::a_child_goes_on_with_the_fibers", || {
        on_workers(|runtime| {
            for number in 0..5 {
                runtime.run_on(number % runtime.workers(), move || {
                    soil(number);
                    set_errno(libc::EDOM);
                    let own = pthread_self();
                    in_child(|| {
                        assert_eq!((VALUE.get(), pthread_self()), (number, own));
                        assert_eq!(WORDS.take().len(), 2);
                        let memory: Vec<_> = (0..1000).map(|size| vec![1_u8; size * 7]).collect();
                        drop(memory);
                        // SAFETY: prints to a buffer.
                        unsafe {
                            let mut text = [0; 32];
                            libc::snprintf(text.as_mut_ptr(), 32, c"%.2f".as_ptr(), 1.5);
                            assert_eq!(c_text(text.as_ptr()), "1.50");
                        }
                        assert!(std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(1))).is_err());
                        assert_eq!(thread::spawn(|| VALUE.get()).join().unwrap(), 7);
                    });
                    assert_eq!(VALUE.get(), number);
                });
            }
        });
    });
}

/// The thread that the fiber ran on is no more in the child: its stack is given to the next thread.
#[test]
fn a_childs_threads_and_libraries_do_not_mix() {
    if is_emulated() {
        return;
    }
    alone("processes::a_childs_threads_and_libraries_do_not_mix", || {
        let compiled = [DYNAMIC, STATIC].map(|options| Compiled::new("locals.c", options));
        let compiled = Arc::new(compiled);
        on_workers(|runtime| {
            // What the child uses is on the fiber's stack or allocated: those of the parent's threads are used again.
            let compiled = Arc::clone(&compiled);
            runtime.run_on(0, move || {
                soil(3);
                in_child(|| {
                    static GOT: AtomicI32 = AtomicI32::new(0);
                    extern "C" fn note(signal: i32) {
                        GOT.store(signal, SeqCst);
                    }
                    // SAFETY: a signal with a handler, to itself.
                    unsafe {
                        libc::signal(libc::SIGUSR1, note as *const () as usize);
                        assert_eq!(libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1), 0);
                        assert_eq!(GOT.load(SeqCst), libc::SIGUSR1, "pthread_kill");
                    }
                    let over = Arc::new(AtomicBool::new(false));
                    let threads: Vec<_> = (0..8)
                        .map(|number| {
                            let over = Arc::clone(&over);
                            thread::spawn(move || {
                                let own = pthread_self();
                                soil(number);
                                let mut kept = Vec::new();
                                while !over.load(SeqCst) {
                                    kept.push(vec![number as u8; kept.len() % 500]);
                                    kept.truncate(400);
                                    assert_eq!((VALUE.get(), pthread_self()), (number, own));
                                    thread::yield_now();
                                }
                            })
                        })
                        .collect();
                    for _ in 0..20 {
                        for compiled in compiled.iter() {
                            let library = compiled.load();
                            assert!(library.locals().are_initial());
                            library.locals().soil(1);
                            library.unload();
                        }
                        let missing = c"no-such-library.so";
                        // SAFETY: there is no such library.
                        assert!(unsafe { libc::dlopen(missing.as_ptr(), libc::RTLD_NOW) }.is_null());
                        assert!(loading_error().contains("no-such-library"));
                    }
                    over.store(true, SeqCst);
                    threads.into_iter().for_each(|thread| thread.join().unwrap());
                    assert_eq!(VALUE.get(), 3);
                });
            });
        });
    });
}

/// A child of a fiber's makes a runtime of its own, as worker and with others.
#[test]
fn a_child_makes_a_runtime() {
    if is_emulated() {
        return;
    }
    alone("processes::a_child_makes_a_runtime", || {
        on_workers(|runtime| {
            runtime.run_on(0, || {
                soil(3);
                for caller in [false, true] {
                    in_child(|| {
                        let runtime = Builder::new().workers(2).use_caller(caller).build().unwrap();
                        let body = || {
                            let fibers: Vec<_> = (0..20)
                                .map(|number| {
                                    fibrant::spawn(move || {
                                        assert_eq!(VALUE.get(), 7);
                                        soil(number);
                                        wait(number);
                                        assert_eq!(VALUE.get(), number);
                                    })
                                })
                                .collect();
                            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
                        };
                        if caller {
                            runtime.run(|| {
                                assert_eq!(VALUE.get(), 3);
                                body();
                            });
                        } else {
                            runtime.run_on(1, body);
                        }
                        runtime.stop().unwrap();
                        assert_eq!(VALUE.get(), 3);
                    });
                }
            });
        });
    });
}

/// A child that returns from `main`, or calls exit, runs what was left for that.
#[test]
fn a_child_exits_as_usual() {
    alone("processes::a_child_exits_as_usual", || {
        on_workers(|runtime| {
            runtime.run_on(0, || {
                soil(1);
                // SAFETY: the child exits at once.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        libc::alarm(30);
                        libc::exit(9);
                    }
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    assert!(
                        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 9,
                        "{status:x}"
                    );
                }
            });
        });
    });
}

/// The users and groups of all threads of this process, as the kernel shows them: real, effective, saved and the file system's.
fn users_of_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    statuses
        .map(|status| {
            let lines = status
                .lines()
                .filter(|line| line.starts_with("Uid:") || line.starts_with("Gid:"));
            lines.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// Changes the user: to what it is, and then, if it is root, to nobody.
fn change_user() {
    const NOBODY: u32 = 65534;
    // SAFETY: asks for numbers and changes who this process is, which is a child made for that.
    unsafe {
        let (user, group) = (libc::geteuid(), libc::getegid());
        for _ in 0..20 {
            assert_eq!(libc::setgid(group), 0);
            assert_eq!(libc::setegid(group), 0);
            assert_eq!(libc::seteuid(user), 0);
            assert_eq!(libc::setuid(user), 0);
            assert_eq!(libc::setresuid(user, user, user), 0);
        }
        if user == 0 {
            assert_eq!(libc::seteuid(NOBODY), 0);
            assert!(
                users_of_threads()
                    .iter()
                    .all(|users| users.contains("Uid:\t0\t65534\t0\t65534"))
            );
            assert_eq!(libc::seteuid(0), 0);
            assert_eq!(libc::setgid(NOBODY), 0);
            assert_eq!(libc::setuid(NOBODY), 0);
            let users = users_of_threads();
            assert!(users.len() > 2, "{users:?}");
            let nobody = "Uid:\t65534\t65534\t65534\t65534 Gid:\t65534\t65534\t65534\t65534";
            assert!(users.iter().all(|users| users == nobody), "{users:?}");
            assert_eq!(libc::setuid(0), -1);
            assert_eq!(errno(), libc::EPERM);
        }
    }
}

/// The C library asks each thread to change its user, and waits for the answers.
#[test]
fn the_user_changes_for_all() {
    if is_emulated() {
        return;
    }
    const TEST: &str = "processes::the_user_changes_for_all";
    let Some(case) = common::case() else {
        let _watchdog = Watchdog::new();
        for who in ["thread", "fiber", "root"] {
            for workers in ["1", "2"] {
                common::child(TEST, &format!("{who} {workers}"), &[]).succeeded();
            }
        }
        return;
    };
    let _watchdog = Watchdog::new();
    let (who, workers) = case.split_once(' ').unwrap();
    let workers: usize = workers.parse().unwrap();
    let builder = Builder::new().workers(workers).use_caller(who == "root");
    let runtime = builder.build().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    // Each worker has two that run all the time.
    let busy: Vec<_> = (0..workers)
        .flat_map(|worker| [worker, worker])
        .map(|worker| {
            let over = Arc::clone(&over);
            runtime.spawn_on(worker, move || {
                soil(worker);
                while !over.load(SeqCst) {
                    // With a change of thread-locals between any two.
                    fibrant::yield_now();
                    assert_eq!(VALUE.get(), worker);
                }
            })
        })
        .collect();
    match who {
        "thread" => change_user(),
        "fiber" => runtime.run_on(0, change_user),
        _ => runtime.run(change_user),
    }
    over.store(true, SeqCst);
    let join = || busy.into_iter().for_each(|fiber| fiber.join().unwrap());
    if who == "root" {
        runtime.run(join);
    } else {
        join();
    }
    runtime.stop().unwrap();
}
