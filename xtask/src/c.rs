//! The step `c` of `cargo xtask test`: what `cargo xtask dist` packs can be linked in every way there is, and its examples run, under
//! valgrind too.
//!
//! `test` calls it; it calls `dist`, and compilers, make, nm and valgrind through `run`. Programs are built in the scratch folder `target/c`.

use crate::dist;
use crate::run::{self, Outcome};
use crate::tools;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Programs that are linked in every way.
const PROGRAMS: &str = "fibrant-c/tests/link";

/// Programs for libco's API that are repeated under valgrind, and on aarch64 if they are C's: those that switch in every way.
const SWITCHING: [&str; 8] = [
    "conditions.c",
    "event_loop.c",
    "exceptions.cpp",
    "reset.c",
    "share_stack.c",
    "specific.cpp",
    "switching.c",
    "threads.c",
];

/// Where they are.
const TESTS: &str = "fibrant-c/tests/programs";

/// Where everything is built.
const SCRATCH: &str = "target/c";

/// How long a program may take. Only one that hangs needs it.
const LIMIT: Duration = Duration::from_secs(120);

/// How programs are linked; `DIST` stands for the packed folder.
const WAYS: [&str; 5] = [
    "-LDIST/lib -l:libfibrant.a -lpthread -ldl -lm",
    // As programs for libco name it; and nothing happens twice if it is named twice.
    "-LDIST/lib -lcolib -l:libfibrant.a -lpthread -ldl -lm",
    "-O2 -Wl,--gc-sections -LDIST/lib -lcolib -lpthread -ldl -lm",
    "-no-pie -LDIST/lib -lcolib -lpthread -ldl -lm",
    "-LDIST/lib -lfibrant -Wl,-rpath,DIST/lib",
];

/// What links them, each with the program that shows whether it is there. The first must be.
const LINKERS: [(&str, &str); 3] = [("cc", "cc"), ("clang", "clang"), ("cc -fuse-ld=lld", "ld.lld")];

/// Packs the library and uses it.
pub fn run() -> Outcome {
    dist::run(None)?;
    fs::create_dir_all(SCRATCH).map_err(|error| format!("{SCRATCH}: {error}"))?;
    for (linker, shown_by) in LINKERS {
        if linker == LINKERS[0].0 || tools::is_program(shown_by) {
            for way in WAYS {
                link(linker, way)?;
            }
        }
    }
    ask_pkg_config()?;
    live_with_neighbours()?;
    run_examples()?;
    run_under_valgrind()
}

/// Packs the library for aarch64, and runs a program and the examples in C with it under an emulator.
pub fn run_on_aarch64(emulator: &str) -> Outcome {
    dist::run(Some("aarch64-unknown-linux-gnu"))?;
    fs::create_dir_all(SCRATCH).map_err(|error| format!("{SCRATCH}: {error}"))?;
    let folder = format!("{}-aarch64", dist::FOLDER);
    let mut sources = vec![Path::new(PROGRAMS).join("hooks.c")];
    sources.extend(examples(&Path::new(&folder).join("examples"))?);
    sources.extend(switching()?);
    // It would take another compiler for C++.
    for source in sources.iter().filter(|source| !is_cpp(source)) {
        let program = Path::new(SCRATCH).join("aarch64");
        let mut command = run::line(&format!("aarch64-linux-gnu-gcc -O2 -I{folder}/include -o"));
        command
            .args([&program, source])
            .arg(format!("{folder}/lib/libfibrant.a"))
            .args(dist::SYSTEM_LIBRARIES.split_whitespace());
        run::openly(command)?;
        let mut command = run::line(emulator);
        command.arg(&program);
        succeed(command)?;
        println!("    {} runs on aarch64", source.display());
    }
    Ok(())
}

/// The packed folder, wherever a command runs.
fn packed() -> Outcome<PathBuf> {
    fs::canonicalize(dist::FOLDER).map_err(|error| format!("{}: {error}", dist::FOLDER))
}

/// Links a program, runs it, and looks whether it or the shared library has the hooks.
fn link(linker: &str, way: &str) -> Outcome {
    let program = Path::new(SCRATCH).join("hooks");
    let libraries = way.replace("DIST", &packed()?.display().to_string());
    let mut command = run::line(linker);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &Path::new(PROGRAMS).join("hooks.c")])
        .args(libraries.split_whitespace());
    run::openly(command)?;
    expect(Command::new(&program), "late\n")?;
    let is_static = !way.contains("-lfibrant");
    let own = defined(&program)?;
    let libraries_see = exported(&program)?;
    // One that is called, and one that nobody calls: they come together.
    for hook in ["read", "poll", "splice"] {
        let has = |names: &[String]| names.iter().any(|name| name == hook);
        if has(&own) != is_static || has(&libraries_see) != is_static {
            return Err(format!(
                "{linker} {way}: the program's {hook} is not where it belongs"
            ));
        }
    }
    println!("    linked: {linker} {way}");
    Ok(())
}

fn defined(program: &Path) -> Outcome<Vec<String>> {
    names(program, "nm --defined-only --extern-only --format=posix")
}

fn exported(program: &Path) -> Outcome<Vec<String>> {
    names(program, "nm --defined-only --dynamic --format=posix")
}

/// What `nm` lists.
fn names(program: &Path, line: &str) -> Outcome<Vec<String>> {
    let mut command = run::line(line);
    command.arg(program);
    let lines = run::answer(command)?;
    let names = lines.lines().filter_map(|line| line.split([' ', '@']).next());
    Ok(names.map(String::from).collect())
}

/// What pkg-config says builds a program, too.
fn ask_pkg_config() -> Outcome {
    let mut question = run::line("pkg-config --static --cflags --libs fibrant");
    question.env("PKG_CONFIG_PATH", packed()?.join("lib/pkgconfig"));
    let answer = run::answer(question)?;
    let private = dist::SYSTEM_LIBRARIES;
    if !answer.contains("/include") || !answer.contains(private) {
        return Err(format!("pkg-config says {answer}"));
    }
    let program = Path::new(SCRATCH).join("hooks");
    let mut command = run::line("cc -o");
    command
        .args([&program, &Path::new(PROGRAMS).join("hooks.c")])
        .args(answer.split_whitespace());
    run::openly(command)?;
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", packed()?.join("lib"));
    expect(command, "late\n")
}

/// A program of C++ that throws, with another library that has Rust's std in it.
fn live_with_neighbours() -> Outcome {
    let scratch = Path::new(SCRATCH);
    let (neighbour, program) = (scratch.join("libneighbour.a"), scratch.join("neighbours"));
    let mut command = run::line("rustc --edition 2024 -O --crate-type staticlib -o");
    command.args([&neighbour, &Path::new(PROGRAMS).join("neighbour.rs")]);
    run::openly(command)?;
    for first in [true, false] {
        let fibrant = packed()?.join("lib/libfibrant.a");
        let mut libraries = [&neighbour, &fibrant];
        if first {
            libraries.reverse();
        }
        let mut command = run::line("c++ -std=c++11 -Wall -Wextra -Werror -o");
        command
            .args([&program, &Path::new(PROGRAMS).join("neighbours.cpp")])
            .args(libraries)
            .args(dist::SYSTEM_LIBRARIES.split_whitespace());
        run::openly(command)?;
        expect(
            Command::new(&program),
            "destroyed\nnothing to read\ncaught in a thread\n10 40\n",
        )?;
    }
    println!("    linked with another library of Rust's");
    Ok(())
}

/// Examples are built where users would build them, and each shows by itself what it is about.
fn run_examples() -> Outcome {
    let folder = packed()?.join("examples");
    let make = |arguments: &str| {
        let mut command = run::line(&format!("make --silent --no-print-directory {arguments}"));
        command.current_dir(&folder);
        run::openly(command)
    };
    for library in ["shared", "static"] {
        make(&format!("LIBRARY={library}"))?;
        for source in examples(&folder)? {
            succeed(Command::new(source.with_extension("")))?;
        }
        make("clean")?;
    }
    Ok(())
}

/// The examples, and programs that switch in every way; two at a time, for they mostly wait.
fn run_under_valgrind() -> Outcome {
    let sources = [examples(&packed()?.join("examples"))?, switching()?].concat();
    let (left, right) = sources.split_at(sources.len() / 2);
    let run_all = |sources: &[PathBuf]| {
        sources
            .iter()
            .try_for_each(|source| run_one_under_valgrind(source))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run_all(left));
        run_all(right).and(other.join().expect("it does not panic"))
    })
}

/// Valgrind does not count a switch that it takes for a strange jump as an error, but says so.
fn run_one_under_valgrind(source: &Path) -> Outcome {
    let name = source.file_name().expect("it is a file").display();
    let program = Path::new(SCRATCH).join(format!("{name}.program"));
    let mut command = run::line(if is_cpp(source) {
        "c++ -std=c++11"
    } else {
        "cc -std=c11"
    });
    command
        .args(["-g", "-O1", "-I"])
        .args([&packed()?.join("include"), Path::new("-o"), &program, source])
        .arg(packed()?.join("lib/libfibrant.a"))
        .args(dist::SYSTEM_LIBRARIES.split_whitespace());
    run::openly(command)?;
    let mut command = run::line("valgrind --error-exitcode=9");
    command.arg(&program);
    let output = succeed(command)?;
    if output.contains("client switching stacks") {
        return Err(format!("{name}: {output}"));
    }
    println!("    {name}: valgrind has nothing to say");
    Ok(())
}

/// The programs that switch in every way.
fn switching() -> Outcome<Vec<PathBuf>> {
    let sources = SWITCHING.map(|name| Path::new(TESTS).join(name));
    match sources.iter().find(|source| !source.exists()) {
        Some(missing) => Err(format!("{} is to be run, but is not there", missing.display())),
        None => Ok(sources.into()),
    }
}

/// The examples' sources, in order of their names.
fn examples(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut sources: Vec<PathBuf> = files
        .filter(|file| is_cpp(file) || file.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    Ok(sources)
}

fn is_cpp(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "cpp")
}

/// Runs a command that must succeed in good time; what it has printed.
fn succeed(command: Command) -> Outcome<String> {
    let line = run::typed(&command);
    let ending = run::quietly(command, LIMIT)?;
    if ending.success {
        Ok(ending.output)
    } else {
        Err(format!("{}: {line}\n{}", ending.how, ending.output))
    }
}

/// The same, if this is what it must print.
fn expect(command: Command, text: &str) -> Outcome {
    let line = run::typed(&command);
    let output = succeed(command)?;
    if output == text {
        Ok(())
    } else {
        Err(format!("{line} prints {output}instead of {text}"))
    }
}
