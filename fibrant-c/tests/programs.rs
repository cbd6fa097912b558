//! Programs for libco's API, compiled against our headers, linked with our library, and run. They are in the folder `programs`;
//! those named `better_*` rely on what libco does not do, the others on what it does.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use support::{
    BOTH, Linking, Running, build, build_as, compile, compiler, crate_folder, must_say_ok, scratch, standard,
};

/// A test for each program, with the newer standards that it is also compiled for.
macro_rules! programs {
    ($($name:ident $extension:literal $(, $newer:literal)*;)*) => {
        $(
            #[test]
            fn $name() {
                let source = programs_folder().join(concat!(stringify!($name), ".", $extension));
                must_say_ok(&source, &standard(&source));
                $(must_say_ok(&source, $newer);)*
            }
        )*

        const LISTED: &[&str] = &[$(concat!(stringify!($name), ".", $extension)),*];
    };
}

programs! {
    better_exceptions "cpp", "c++20";
    better_faults "c";
    better_fork "c";
    better_hooks "c";
    better_idle "c";
    better_keys "cpp", "c++20";
    better_locks "c";
    better_million "c";
    better_overflow "c";
    better_release "c";
    better_share_stack "c";
    better_specific "cpp", "c++20";
    better_switching "c";
    better_together "c";
    better_waiting "c";
    big_transfer "c";
    closure "cpp", "c++17", "c++20";
    conditions "c";
    cxx20 "cpp";
    cxx_linkage "cpp", "c++17";
    dispatcher "cpp", "c++20";
    echo_forked "c";
    echo_pool "cpp";
    environment "c";
    event_loop "c";
    exceptions "cpp", "c++20";
    hooks "c";
    mutex "cpp", "c++20";
    poll_connects "cpp";
    poll_results "c";
    producer_consumer "cpp", "c++20";
    reset "c";
    resolver "c";
    resolver_state "c";
    share_stack "c";
    sleepers "c";
    specific "cpp", "c++20";
    specific_in_c "c";
    switching "c";
    threads "c";
}

/// The program that takes longer than a minute: it has a test of its own.
const LONG: &str = "better_minute.c";

/// Waits beyond a minute are exact. Tests begin in the order of their names, so that this one mostly waits beside the others; and both ways
/// to link it run at once.
#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "it takes a minute and a half: once is enough, in a release build"
)]
fn a_wait_beyond_a_minute_is_exact() {
    let source = programs_folder().join(LONG);
    let started = BOTH.map(|linking| {
        let program = build(&source, &standard(&source), linking);
        (linking, Running::start(&program, &[]))
    });
    for (linking, running) in started {
        let outcome = running.finish_within(Duration::from_secs(150));
        outcome.must_be_ok(&format!("{LONG}, linked as {linking:?}"));
    }
}

fn programs_folder() -> PathBuf {
    crate_folder().join("tests/programs")
}

fn files(folder: &Path, extensions: &[&str]) -> BTreeSet<String> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| extensions.iter().any(|extension| name.ends_with(extension)))
        .collect()
}

#[test]
fn every_program_is_run() {
    let there = files(&programs_folder(), &[".c", ".cpp"]);
    let listed = LISTED
        .iter()
        .chain(&[LONG])
        .map(|&name| name.to_owned())
        .collect();
    assert_eq!(there, listed);
}

/// Each header alone, twice, in each standard that it promises.
#[test]
fn headers_are_clean() {
    let headers: Vec<String> = files(&crate_folder().join("include"), &[".h"])
        .into_iter()
        .filter(|name| name.starts_with("co"))
        .collect();
    assert!(headers.len() >= 5, "{headers:?}");
    for header in headers {
        let text = format!("#include \"{header}\"\n#include \"{header}\"\nint main(void) {{ return 0; }}\n");
        for (extension, standards) in [
            ("c", &["c11", "c17", "gnu11"][..]),
            ("cpp", &["c++11", "c++14", "c++17", "c++20", "gnu++20"][..]),
        ] {
            let source = scratch(&format!("header-{header}.{extension}"));
            fs::write(&source, &text).unwrap();
            for standard in standards {
                let mut command = compiler(&source, standard);
                command.arg("-fsyntax-only").arg(&source);
                compile(command);
            }
        }
    }
}

/// The examples that end by themselves, and what they print.
#[test]
fn examples_do_what_they_show() {
    let produced: String = (0..5).map(|i| format!("produced {i}\nconsumed {i}\n")).collect();
    let connected: String = (0..3)
        .map(|i| {
            format!(
                "coroutine {i}, connection 0: Success\ncoroutine {i}, connection 1: Success\ncoroutine {i}, connection 2: refused\n"
            )
        })
        .collect();
    for (name, wanted) in [
        (
            "closure.cpp",
            "task 0\ntask 1\ntask 2\nresult 0\nresult 1\nresult 4\n",
        ),
        (
            "environment.c",
            "query: id=0\nquery: id=1\nquery: id=2\nthe process's own: unset\n",
        ),
        ("poll_connects.c", &connected),
        ("producer_consumer.cpp", &produced),
        (
            "specific.cpp",
            "request 0 of anna: begins\nrequest 1 of bert: begins\nrequest 2 of cleo: begins\n\
             request 0 of anna: ends\nrequest 1 of bert: ends\nrequest 2 of cleo: ends\n",
        ),
        (
            "threads.c",
            "thread 0: 100 coroutines\nthread 1: 100 coroutines\nthread 2: 100 coroutines\n",
        ),
    ] {
        for linking in BOTH {
            let printed = run_example(name, linking);
            // Which of several connections is told first is the kernel's choice.
            let same = if name == "poll_connects.c" {
                sorted(&printed) == sorted(wanted)
            } else {
                printed == wanted
            };
            assert!(same, "{name}, linked as {linking:?}:\n{printed}");
        }
    }

    // The same address in every line.
    let printed = run_example("shared_stacks.c", Linking::Static);
    assert_eq!(printed.lines().count(), 9, "{printed}");
    let places: BTreeSet<&str> = printed
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(places.len(), 1, "{printed}");
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn run_example(name: &str, linking: Linking) -> String {
    let program = build_example(name, linking);
    let outcome = Running::start(&program, &[]).finish();
    assert!(
        outcome.status.success(),
        "{name}: {}\n{}",
        outcome.status,
        outcome.stderr
    );
    outcome.stdout
}

fn build_example(name: &str, linking: Linking) -> PathBuf {
    let source = crate_folder().join("examples").join(name);
    let stem = format!("example-{}", source.file_stem().unwrap().to_str().unwrap());
    build_as(&stem, &source, &standard(&source), linking)
}

/// The server of the examples serves their client.
#[test]
fn example_server_and_client() {
    for linking in BOTH {
        let server = build_example("echo_server.c", linking);
        let client = build_example("echo_client.c", linking);
        let server = Running::start(&server, &["0", "40"]);
        let begin = Instant::now();
        let port = loop {
            let printed = server.printed();
            if let Some(port) = printed
                .strip_prefix("port ")
                .and_then(|line| line.strip_suffix('\n'))
            {
                break port.to_owned();
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "no port: {printed:?}");
            thread::sleep(Duration::from_millis(5));
        };
        // More clients than there are workers.
        let outcome = Running::start(&client, &[&port, "40", "50"]).finish();
        assert!(
            outcome.status.success(),
            "client: {}\n{}{}",
            outcome.status,
            outcome.stdout,
            outcome.stderr
        );
        assert_eq!(outcome.stdout, "2000 echoes\n");
        let outcome = server.finish();
        assert!(
            outcome.status.success(),
            "server: {}\n{}",
            outcome.status,
            outcome.stderr
        );
        assert!(outcome.stdout.ends_with("served 40\n"), "{}", outcome.stdout);
    }
}
