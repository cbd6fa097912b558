//! `fibrant.h`: the programs in `tests/fb`, built with the system's compilers, and the examples. Each program checks itself, and runs
//! with one worker and with three, with light and with isolated fibers, linked statically and dynamically.

#[path = "fb/support.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use support::{Linked, build, compile, here, run, run_well};

/// Runs a program of `tests/fb` in all ways.
fn everywhere(source: &str) {
    for linked in [Linked::Statically, Linked::Dynamically] {
        let program = build(&here("tests/fb").join(source), linked);
        for workers in ["1", "3"] {
            for kind in ["light", "isolated"] {
                run_well(&program, &[workers, kind]);
            }
        }
    }
}

#[test]
fn the_header_is_c_and_cpp_without_a_warning() {
    let source = here("tests/fb/header.c");
    let source = source.to_str().unwrap();
    for standard in ["c11", "c17"] {
        compile(standard, &["-fsyntax-only", source]);
    }
    for standard in ["c++11", "c++14", "c++17", "c++20"] {
        compile(standard, &["-fsyntax-only", "-x", "c++", source]);
    }
}

/// The names that are followed by a parenthesis in a text, and begin as ours do.
fn calls(text: &str) -> BTreeSet<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter: char| !is_part(letter) && letter != '(');
    let calls = words.flat_map(|word| word.split_inclusive('('));
    calls
        .filter_map(|word| word.strip_suffix('('))
        .filter(|name| name.starts_with("fb_"))
        .collect()
}

#[test]
fn every_function_is_declared_and_called_by_a_program() {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let files = |directory: &str, ending: &str| {
        let entries = fs::read_dir(here(directory)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let wanted = paths.filter(|path| path.to_str().unwrap().ends_with(ending));
        wanted.map(read).collect::<String>()
    };
    let header = read(here("include/fibrant.h"));
    let without_comments: String = header
        .split("/*")
        .map(|part| part.split_once("*/").map_or(part, |(_, code)| code))
        .collect();
    let declared = calls(&without_comments);
    let sources = files("src/fb", ".rs");
    let defined: BTreeSet<&str> = sources
        .match_indices("extern \"C\" fn fb_")
        .map(|(start, _)| &sources[start + "extern \"C\" fn ".len()..])
        .map(|rest| rest.split('(').next().unwrap())
        .collect();
    assert_eq!(declared, defined);
    assert!(declared.len() > 60, "{declared:?}");
    let programs = files("tests/fb", ".c");
    let called = calls(&programs);
    let uncalled: Vec<_> = declared.difference(&called).collect();
    assert!(uncalled.is_empty(), "no program calls {uncalled:?}");
}

#[test]
fn fibers_are_spawned_and_joined() {
    everywhere("fibers.c");
}

#[test]
fn runtimes_start_and_stop() {
    everywhere("runtimes.c");
}

#[test]
fn a_cancelled_fiber_hears_of_it_from_every_wait() {
    everywhere("cancelling.c");
}

#[test]
fn channels_pass_messages_and_close() {
    everywhere("channels.c");
}

#[test]
fn locks_exclude_and_wake() {
    everywhere("locks.c");
}

#[test]
fn locals_are_each_fibers_own() {
    everywhere("locals.c");
}

#[test]
fn blocking_calls_are_hooked() {
    everywhere("blocking.c");
}

#[test]
fn dumps_have_the_names() {
    everywhere("dumps.c");
}

#[test]
fn an_exception_that_leaves_a_function_ends_the_program() {
    for linked in [Linked::Statically, Linked::Dynamically] {
        let program = build(&here("tests/fb/exceptions.cc"), linked);
        run_well(&program, &["none"]);
        for way in ["fiber", "run", "run_on", "blocking", "local"] {
            let ended = run(&program, &[way]);
            assert_eq!(
                ended.status.signal(),
                Some(6),
                "{way} {linked:?}: {}",
                ended.output
            );
            assert!(ended.output.contains("now"), "{way} {linked:?}: {}", ended.output);
        }
    }
}

/// Rust that calls C that calls this.
#[test]
fn a_time_limit_of_rust_ends_waits_of_c() {
    use fibrant_c::fb::fiber::fb_sleep;
    use std::time::{Duration, Instant};
    fibrant::run(|| {
        let start = Instant::now();
        let result = fibrant::timeout(Duration::from_millis(5), || fb_sleep(1_000_000_000_000));
        assert_eq!(result, Ok(-libc::ETIMEDOUT));
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert_eq!(fb_sleep(1), 0);
    });
}

#[test]
fn examples_run_to_their_end() {
    for example in ["fb_echo.c", "fb_pipeline.c"] {
        for linked in [Linked::Statically, Linked::Dynamically] {
            let output = run_well(&build(&here("examples").join(example), linked), &[]);
            assert!(!output.is_empty(), "{example} says nothing");
        }
    }
}
