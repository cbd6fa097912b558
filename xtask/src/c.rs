//! The step `c` of `cargo xtask test`: what `cargo xtask dist` packs can be linked in every way there is, and its examples run, under
//! valgrind too.
//!
//! `test` calls it; it calls `dist`, and compilers, make, nm and valgrind through `run`. Programs are built in the scratch folder `target/c`.

use crate::dist;
use crate::run::{self, Outcome};
use crate::test::OTHER_MACHINE;
use crate::tools;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// The crate that is packed.
const CRATE: &str = "fibrant-c";

/// Programs that are linked in every way.
const PROGRAMS: &str = "fibrant-c/tests/link";

/// The tests' programs that are repeated under valgrind and on aarch64, with their arguments: those that switch in every way.
const SWITCHING: [(&str, &str); 16] = [
    ("tests/programs/better_keys.cpp", ""),
    ("tests/programs/better_specific.cpp", ""),
    ("tests/programs/conditions.c", ""),
    ("tests/programs/event_loop.c", ""),
    ("tests/programs/exceptions.cpp", ""),
    ("tests/programs/reset.c", ""),
    ("tests/programs/resolver_state.c", ""),
    ("tests/programs/share_stack.c", ""),
    ("tests/programs/specific.cpp", ""),
    ("tests/programs/switching.c", ""),
    ("tests/programs/threads.c", ""),
    ("tests/fb/cancelling.c", LIGHT),
    ("tests/fb/channels.c", LIGHT),
    ("tests/fb/fibers.c", LIGHT),
    ("tests/fb/locals.c", LIGHT),
    ("tests/fb/locks.c", LIGHT),
];

/// Three workers, and fibers that share their thread-locals: valgrind cannot set the thread pointer.
const LIGHT: &str = "3 light";

/// Examples that are not run alone: they need each other.
const SERVER: &str = "echo_server.c";
const CLIENT: &str = "echo_client.c";

/// How many connections the client makes, and how many messages it sends on each. The server has fewer coroutines than that.
const CONNECTIONS: &str = "20";
const MESSAGES: &str = "10";

/// Examples whose fibers have thread-locals of their own unless they are asked for others.
const OF_FIBERS: [&str; 2] = ["fb_echo.c", "fb_pipeline.c"];

/// Memory that nobody can free any more is an error, too. What is still known when a program ends is not: that is the program's choice.
pub const VALGRIND: &str = "valgrind --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite";

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

/// Packs the library for aarch64, and runs programs with it under an emulator.
pub fn run_on_aarch64(emulator: &str) -> Outcome {
    dist::run(Some(OTHER_MACHINE))?;
    fs::create_dir_all(SCRATCH).map_err(|error| format!("{SCRATCH}: {error}"))?;
    let folder = PathBuf::from(format!("{}-aarch64", dist::FOLDER));
    let mut programs = vec![Program::of(Path::new(PROGRAMS).join("hooks.c"))];
    programs.extend(examples(&folder.join("examples"))?);
    programs.extend(switching()?);
    for program in programs {
        let file = program.build("aarch64-linux-gnu-", &folder)?;
        let mut command = run::line(emulator);
        command.arg(file).args(program.arguments.split_whitespace());
        succeed(command)?;
        println!("    {} runs on aarch64", program.name());
    }
    let pair = build_pair("aarch64-linux-gnu-", &folder)?;
    run_pair(emulator, &pair)?;
    println!("    {SERVER} and {CLIENT} run on aarch64");
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

/// Examples are built as users would build them, and each shows by itself what it is about.
fn run_examples() -> Outcome {
    let folder = packed()?.join("examples");
    let make = |arguments: &str| {
        let mut command = run::line(&format!("make --silent {arguments}"));
        command.current_dir(&folder);
        run::openly(command)
    };
    for library in ["", "LIBRARY=shared"] {
        make(library)?;
        for example in examples(&folder)? {
            succeed(Command::new(example.source.with_extension("")))?;
        }
        let built = |name: &str| folder.join(name).with_extension("");
        run_pair("", &[built(SERVER), built(CLIENT)])?;
        make("clean")?;
    }
    Ok(())
}

/// The examples, and programs that switch in every way; two at a time, for they mostly wait.
fn run_under_valgrind() -> Outcome {
    let mut programs = examples(&packed()?.join("examples"))?;
    for example in &mut programs {
        if OF_FIBERS.contains(&example.name().as_str()) {
            example.arguments = "light"; // valgrind cannot set the thread pointer
        }
    }
    programs.extend(switching()?);
    let (left, right) = programs.split_at(programs.len() / 2);
    let run_all = |programs: &[Program]| programs.iter().try_for_each(run_one_under_valgrind);
    thread::scope(|scope| {
        let other = scope.spawn(|| run_all(left));
        run_all(right).and(other.join().expect("it does not panic"))
    })?;
    run_pair_under_valgrind()
}

fn run_one_under_valgrind(program: &Program) -> Outcome {
    let file = program.build("", &packed()?)?;
    let mut command = run::line(VALGRIND);
    command.arg(file).args(program.arguments.split_whitespace());
    is_content(&program.name(), &succeed(command)?)
}

fn run_pair_under_valgrind() -> Outcome {
    let pair = build_pair("", &packed()?)?;
    let [server, client] = run_pair(VALGRIND, &pair)?;
    is_content(SERVER, &server)?;
    is_content(CLIENT, &client)
}

/// Valgrind does not count a switch that it takes for a strange jump as an error, but says so.
fn is_content(program: &str, output: &str) -> Outcome {
    if output.contains("client switching stacks") {
        return Err(format!("{program}: {output}"));
    }
    println!("    {program}: valgrind has nothing to say");
    Ok(())
}

/// The server of the examples, and its client, linked with the archive in a packed folder.
fn build_pair(prefix: &str, packed: &Path) -> Outcome<[PathBuf; 2]> {
    let build = |name: &str| Program::of(packed.join("examples").join(name)).build(prefix, packed);
    Ok([build(SERVER)?, build(CLIENT)?])
}

/// Runs the server and the client of the examples, each by the words of `runner`, if it has some. The server ends when it has served all
/// connections. What the two have printed, except what the server says to the client.
fn run_pair(runner: &str, [server, client]: &[PathBuf; 2]) -> Outcome<[String; 2]> {
    let words = |program: &Path, arguments: &[&str]| {
        let runner = runner.split_whitespace().map(String::from);
        let program = program.display().to_string();
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        runner.chain([program]).chain(arguments).collect::<Vec<_>>()
    };
    let said = Path::new(SCRATCH).join("echo_server.said");
    fs::write(&said, "").map_err(|error| format!("{}: {error}", said.display()))?;
    // The shell leads what the server says into a file, and is replaced by it.
    let mut serve = Command::new("sh");
    serve
        .args(["-c", "exec \"$@\" >\"$0\""])
        .arg(&said)
        .args(words(server, &["0", CONNECTIONS]));
    thread::scope(|scope| {
        let serving = scope.spawn(|| succeed(serve));
        let port = loop {
            let text = fs::read_to_string(&said).unwrap_or_default();
            if let Some((line, _)) = text.split_once('\n') {
                break line.trim_start_matches("port ").to_owned();
            }
            if serving.is_finished() {
                let end = serving.join().expect("it does not panic");
                return Err(format!("the server names no port: {}", end?));
            }
            thread::sleep(Duration::from_millis(10));
        };
        let words = words(client, &[&port, CONNECTIONS, MESSAGES]);
        let mut ask = Command::new(&words[0]);
        ask.args(&words[1..]);
        // If the client has failed, the server waits for more, up to its limit.
        let asked = succeed(ask);
        let served = serving.join().expect("it does not panic");
        let asked = asked?;
        Ok([served?, asked])
    })
}

/// A program of one file.
struct Program {
    source: PathBuf,
    arguments: &'static str,
}

impl Program {
    fn of(source: PathBuf) -> Program {
        Program {
            source,
            arguments: "",
        }
    }

    fn name(&self) -> String {
        let name = self.source.file_name().unwrap_or_default();
        name.display().to_string()
    }

    fn is_cpp(&self) -> bool {
        self.source
            .extension()
            .is_some_and(|extension| extension == "cpp")
    }

    /// Links it with the archive in a packed folder. The names of the compilers for another machine begin with the prefix.
    fn build(&self, prefix: &str, packed: &Path) -> Outcome<PathBuf> {
        let compiler = match (prefix, self.is_cpp()) {
            ("", true) => "c++".to_owned(),
            ("", false) => "cc".to_owned(),
            (prefix, true) => format!("{prefix}g++"),
            (prefix, false) => format!("{prefix}gcc"),
        };
        // Two programs may have the same name.
        let folder = self.source.parent().and_then(Path::file_name).unwrap_or_default();
        let file = Path::new(SCRATCH).join(format!("{compiler}-{}-{}", folder.display(), self.name()));
        // The compiler of C++ defines it by itself.
        let language = if self.is_cpp() {
            "-std=c++11"
        } else {
            "-std=gnu11 -D_GNU_SOURCE="
        };
        let mut command = run::line(&format!("{compiler} {language}"));
        command
            .args(["-g", "-O1", "-I"])
            .args([&packed.join("include"), Path::new("-o"), &file, &self.source])
            .arg(packed.join("lib/libfibrant.a"))
            .args(dist::SYSTEM_LIBRARIES.split_whitespace());
        run::openly(command)?;
        Ok(file)
    }
}

/// The programs that switch in every way.
fn switching() -> Outcome<Vec<Program>> {
    let programs = SWITCHING.map(|(source, arguments)| Program {
        source: Path::new(CRATE).join(source),
        arguments,
    });
    match programs.iter().find(|program| !program.source.exists()) {
        Some(missing) => Err(format!(
            "{} is to be run, but is not there",
            missing.source.display()
        )),
        None => Ok(programs.into()),
    }
}

/// The examples that can be run alone, in order of their names.
fn examples(folder: &Path) -> Outcome<Vec<Program>> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let sources = files.into_iter().filter(|file| {
        file.extension()
            .is_some_and(|extension| extension == "c" || extension == "cpp")
    });
    let examples = sources.map(Program::of);
    Ok(examples
        .filter(|example| ![SERVER, CLIENT].contains(&example.name().as_str()))
        .collect())
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
