//! `cargo xtask test`: every check there is, in the order in which it fails soonest.
//!
//! `main` calls it. Its steps run cargo, git, valgrind and an emulator through `run`; the step `c` is in the file of
//! that name. What only some machines have comes from `tools`.

use crate::ahead::Ahead;
use crate::c;
use crate::dist;
use crate::run::{self, Outcome, TestProgram};
use crate::tools::{self, Supply, Tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where the deliberate breaks of `cargo xtask red` are.
pub const PATCHES: &str = "tests/red";

/// The tests that valgrind repeats, slowly: those that switch in every way there is.
const UNDER_VALGRIND: [&str; 4] = ["fiber", "local", "coroutine", "cancel"];

/// What valgrind is not to call lost, as seen from the crate's folder, in which the tests run.
const LOST_ON_PURPOSE: &str = "../tests/valgrind.supp";

/// Tests that valgrind cannot run, each with the reason.
const NOT_UNDER_VALGRIND: [&str; 1] = [
    // It needs thread-locals of a fiber's own, and valgrind cannot set the thread pointer.
    "one_fibers_panic_does_not_keep_others_from_being_cancelled",
];

/// The tests that are repeated with AddressSanitizer: fibers driven by hand, and the runtime. Fibers are light there, so this is also
/// where the hooks and std's locks are seen to work in light fibers.
const UNDER_ASAN: [&str; 14] = [
    "fiber",
    "local",
    "coroutine",
    "cancel",
    "scheduler",
    "timer",
    "programs",
    "io",
    "hooks",
    "stuck",
    "fork",
    "locks",
    "sync",
    "channels",
];

/// Tests that AddressSanitizer cannot run, each with the reason.
const NOT_UNDER_ASAN: [&str; 14] = [
    // It compares addresses of local variables, which ASan moves off the stack to notice their use after a return.
    "reset_runs_something_new_on_the_same_stack",
    // A worker is to watch for less time than an answer may take here.
    "workers_that_answer_each_other_do_not_fall_asleep_in_between",
    // Most fibers must be where they belong before anybody steals them back, which takes longer here than is waited for that.
    "fresh_fibers_go_where_the_fewest_started_ones_live",
    // These need thread-locals of a fiber's own.
    "p29_a_checked_mutex_belongs_to_one",
    "p29_a_writer_does_not_wait_for_itself",
    "channels::",
    "crossbeam::",
    "light::",
    "panics::",
    "parking_lot::",
    "scoped::",
    "one_fibers_panic_does_not_keep_others_from_being_cancelled",
    "one_may_wait_while_it_panics",
    "a_thread_local_may_wait_as_it_is_dropped",
];

/// The tests that are repeated on the other machine: what depends on its instructions, pages, unwinding or memory order.
const ON_AARCH64: [&str; 19] = [
    "fiber",
    "local",
    "coroutine",
    "registers",
    "stacks",
    "shared",
    "overflow",
    "backtrace",
    "cancel",
    "scheduler",
    "timer",
    "io",
    "runtime",
    "hooks",
    "stuck",
    "locks",
    "pthread",
    "isolation",
    "sync",
];

/// Tests that the other machine's emulator cannot run, each with the reason.
const NOT_ON_AARCH64: [&str; 13] = [
    // A worker is to watch for less time than an answer takes there.
    "workers_that_answer_each_other_do_not_fall_asleep_in_between",
    // A thousand starts take longer than a worker may take for a few without being called stuck.
    "fresh_fibers_go_where_the_fewest_started_ones_live",
    // Two thousand rounds of three hundred reads take it longer than the test waits.
    "a_flood_of_events_does_not_starve_a_fiber_that_yields",
    // It does not look at the time that recvmmsg is given, and does not know epoll_pwait2.
    "p15_a_wrong_time_is_an_error",
    "p15_the_time_is_looked_at_when_something_has_come",
    "p20_wrong_arguments_of_epoll",
    // A child that is forked in the emulator does not get along with its threads.
    "a_forked_child_wakes_nobody_of_its_parents",
    // It does not release the robust locks of a thread that ends.
    "p29_the_death_of_an_owner_is_told",
    "whoever_waits_for_a_robust_mutex_hears_that_its_owner_has_died",
    // It does not know futex_waitv.
    "p29_several_have_values_and_a_time",
    // It does not know the newer number of the option.
    "p16_an_option_by_its_other_name_counts",
    // It adds up lengths that are more than can be, and takes what remains for the sum.
    "p13_more_than_can_be_is_an_error",
    // It does not know preadv2.
    "p11_a_files_own_position_is_read_at",
];

/// The other machine, as rustc calls it.
pub const OTHER_MACHINE: &str = "aarch64-unknown-linux-gnu";

/// Runs programs for aarch64 here, with that machine's libraries.
const EMULATOR: &str = "qemu-aarch64 -L /usr/aarch64-linux-gnu";

/// One of the checks.
struct Step {
    name: &'static str,
    action: fn() -> Outcome,
    needs: fn() -> Outcome<Vec<Tool>>,
    /// Why this machine does not need it.
    pointless: Option<&'static str>,
    /// What it begins with: commands that only build, in a folder of its own. Most of it may have been built ahead.
    builds: fn() -> Outcome<Vec<Command>>,
    /// Whether its tests sleep most of the time, so that what later steps begin with can be built meanwhile.
    sleeps: bool,
}

impl Step {
    /// A step that needs nothing but what builds the workspace.
    const fn plain(name: &'static str, action: fn() -> Outcome) -> Step {
        Step {
            name,
            action,
            needs: || Ok(Vec::new()),
            pointless: None,
            builds: || Ok(Vec::new()),
            sleeps: false,
        }
    }
}

const STEPS: [Step; 15] = [
    Step::plain("format", format),
    Step {
        needs: || Ok(Vec::from(BUILD_LIBRARIES)),
        ..Step::plain("lint", lint)
    },
    Step::plain("docs", docs),
    Step {
        needs: || Ok([COMPILER_OF_CPP].into_iter().chain(PROGRAMS_TO_PRELOAD).collect()),
        builds: || Ok(vec![without_running(debug_command(""))]),
        sleeps: true,
        ..Step::plain("debug", debug_tests)
    },
    Step {
        needs: || Ok([COMPILER_OF_CPP].into_iter().chain(PROGRAMS_TO_PRELOAD).collect()),
        builds: || Ok(vec![without_running(release_command())]),
        sleeps: true,
        ..Step::plain("release", release_tests)
    },
    Step {
        builds: || Ok(vec![without_running(lto_command())]),
        sleeps: true,
        ..Step::plain("lto", lto_tests)
    },
    Step {
        needs: || Ok(vec![COMPILER_OF_CPP, PKG_CONFIG, MAKE, VALGRIND]),
        builds: || Ok(vec![dist::build_command(None)?]),
        sleeps: true,
        ..Step::plain("c", c::run)
    },
    Step {
        needs: || Ok(SERVERS_AND_LIBRARIES.into_iter().chain(BUILD_LIBRARIES).collect()),
        ..Step::plain("clients", clients)
    },
    Step::plain("examples", examples),
    Step::plain("package", package),
    Step::plain("patches", patches_apply),
    Step {
        needs: || Ok(vec![Tool::Toolchain(oldest_rust()?)]),
        ..Step::plain("msrv", msrv)
    },
    Step {
        needs: || Ok(vec![VALGRIND]),
        sleeps: true,
        ..Step::plain("valgrind", valgrind)
    },
    Step {
        needs: || Ok(vec![Tool::Toolchain("nightly".to_owned())]),
        pointless: if cfg!(target_arch = "x86_64") {
            None
        } else {
            Some("for x86_64 hosts")
        },
        builds: || Ok(vec![without_running(asan_command()?)]),
        sleeps: true,
        ..Step::plain("asan", asan)
    },
    Step {
        needs: || Ok(Vec::from(CROSS_TOOLS)),
        pointless: if cfg!(target_arch = "aarch64") {
            Some("this host is one")
        } else {
            None
        },
        builds: || {
            let library = dist::build_command(Some(OTHER_MACHINE))?;
            Ok(vec![without_running(aarch64_command()), library])
        },
        ..Step::plain("aarch64", aarch64)
    },
];

/// What the tests of exceptions in fibers need.
const COMPILER_OF_CPP: Tool = Tool::Package {
    name: "g++",
    shown_by: "c++",
};

const MAKE: Tool = Tool::Package {
    name: "make",
    shown_by: "make",
};

const PKG_CONFIG: Tool = Tool::Package {
    name: "pkg-config",
    shown_by: "pkg-config",
};

/// Programs in which fibrant-c must change nothing when it is preloaded, and the servers that they talk to.
const PROGRAMS_TO_PRELOAD: [Tool; 9] = [
    MAKE,
    Tool::Package {
        name: "curl",
        shown_by: "curl",
    },
    Tool::Package {
        name: "git",
        shown_by: "git",
    },
    Tool::Package {
        name: "python3",
        shown_by: "python3",
    },
    Tool::Package {
        name: "xz-utils",
        shown_by: "xz",
    },
    Tool::Package {
        name: "redis-server",
        shown_by: "redis-server",
    },
    Tool::Package {
        name: "redis-tools",
        shown_by: "redis-cli",
    },
    Tool::Package {
        name: "postgresql",
        shown_by: "pg_ctlcluster",
    },
    Tool::Package {
        name: "postgresql-client",
        shown_by: "psql",
    },
];

/// What the tests with real clients need: the servers, which the tests start themselves, and the clients that are written in C.
const SERVERS_AND_LIBRARIES: [Tool; 10] = [
    Tool::Package {
        name: "redis-server",
        shown_by: "redis-server",
    },
    Tool::Package {
        name: "memcached",
        shown_by: "memcached",
    },
    Tool::Package {
        name: "postgresql",
        shown_by: "pg_ctlcluster",
    },
    Tool::Package {
        name: "mariadb-server-core",
        shown_by: "/usr/sbin/mariadbd",
    },
    Tool::Package {
        name: "nginx",
        shown_by: "/usr/sbin/nginx",
    },
    Tool::Package {
        name: "libnginx-mod-http-echo",
        shown_by: "/usr/lib/nginx/modules/ngx_http_echo_module.so",
    },
    Tool::Package {
        name: "openssl",
        shown_by: "openssl",
    },
    Tool::Package {
        name: "libhiredis-dev",
        shown_by: "/usr/include/hiredis/hiredis.h",
    },
    Tool::Package {
        name: "libpq-dev",
        shown_by: "/usr/include/postgresql/libpq-fe.h",
    },
    Tool::Package {
        name: "libmariadb-dev",
        shown_by: "/usr/include/mariadb/mysql.h",
    },
];

/// What the crates around C libraries look for as soon as they are built, even if only to be looked at.
const BUILD_LIBRARIES: [Tool; 3] = [
    PKG_CONFIG,
    Tool::Package {
        name: "libssl-dev",
        shown_by: "/usr/include/openssl/ssl.h",
    },
    Tool::Package {
        name: "libcurl4-openssl-dev",
        shown_by: "curl-config",
    },
];

const VALGRIND: Tool = Tool::Package {
    name: "valgrind",
    shown_by: "valgrind",
};

const CROSS_TOOLS: [Tool; 5] = [
    Tool::Package {
        name: "gcc-aarch64-linux-gnu",
        shown_by: "aarch64-linux-gnu-gcc",
    },
    Tool::Package {
        name: "g++-aarch64-linux-gnu",
        shown_by: "aarch64-linux-gnu-g++",
    },
    Tool::Package {
        name: "libc6-dev-arm64-cross",
        shown_by: "/usr/aarch64-linux-gnu/lib/crt1.o",
    },
    Tool::Package {
        name: "qemu-user",
        shown_by: "qemu-aarch64",
    },
    Tool::Target(OTHER_MACHINE),
];

/// What became of a step.
enum Fate {
    Passed(Duration),
    /// Its tools are missing; the text says which.
    NotRun(String),
    LeftOut(&'static str),
}

/// Runs all steps but those named, up to the first that fails. What they need is installed first: then nobody waits for half an hour to
/// hear that something is missing, and later steps can be built while the tests of earlier ones sleep.
pub fn run(without: &[String]) -> Outcome {
    let failed = |step: &Step, problem| format!("step {} failed: {problem}", step.name);
    let mut fates = Vec::new();
    for step in &STEPS {
        fates.push(prepare(step, without).map_err(|problem| failed(step, problem))?);
    }
    for (index, step) in STEPS.iter().enumerate() {
        if fates[index].is_some() {
            continue;
        }
        let later = STEPS.iter().zip(&fates).skip(index + 1);
        let to_come = later.filter(|(_, fate)| fate.is_none()).map(|(step, _)| step);
        match run::step(step.name, || carry_out(step, to_come)) {
            Ok(took) => fates[index] = Some(Fate::Passed(took)),
            Err(problem) => {
                let passed = fates.into_iter().take(index).flatten().collect::<Vec<_>>();
                println!("{}", count(&passed, 1));
                return Err(failed(step, problem));
            }
        }
    }
    let fates = fates
        .into_iter()
        .map(|fate| fate.expect("all have run or will not"));
    report(&STEPS.iter().map(|step| step.name).zip(fates).collect::<Vec<_>>());
    Ok(())
}

/// Installs what a step needs. Returns what becomes of it, if it does not run.
fn prepare(step: &Step, without: &[String]) -> Outcome<Option<Fate>> {
    if without.iter().any(|name| name == step.name) {
        return Ok(Some(Fate::LeftOut("--without")));
    }
    if let Some(reason) = step.pointless {
        return Ok(Some(Fate::LeftOut(reason)));
    }
    match tools::provide(step.name, &(step.needs)()?)? {
        Supply::Complete => Ok(None),
        Supply::Lacks(needs) => Ok(Some(Fate::NotRun(needs))),
    }
}

/// Builds what a step needs, and runs it; meanwhile what the next ones begin with is built, if its tests sleep. That has ended before the
/// next one begins, which would otherwise wait for something that is built at its leisure.
fn carry_out<'a>(step: &Step, to_come: impl Iterator<Item = &'a Step>) -> Outcome {
    for command in (step.builds)()? {
        run::openly(command)?;
    }
    let mut builds = Vec::new();
    for next in to_come.filter(|_| step.sleeps) {
        builds.extend((next.builds)()?);
    }
    let _ahead = Ahead::start(builds);
    (step.action)()
}

/// The same command of cargo's, that only builds: what comes after `--` is for the tests.
fn without_running(command: Command) -> Command {
    let mut build = Command::new(command.get_program());
    let for_cargo = command.get_args().take_while(|word| *word != "--");
    build.args(for_cargo).arg("--no-run");
    for (name, value) in command.get_envs() {
        build.env(name, value.expect("no variable is taken away"));
    }
    build
}

/// The steps that the command line leaves out.
pub fn left_out(arguments: &[String]) -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument != "--without" {
            return Err(format!("'{argument}' is not --without"));
        }
        let list = arguments.next().ok_or("--without needs names of steps")?;
        names.extend(list.split(',').map(String::from));
    }
    let known = STEPS.map(|step| step.name);
    match names.iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(format!(
            "there is no step '{name}'; there are {}",
            known.join(", ")
        )),
        None => Ok(names),
    }
}

fn report(fates: &[(&str, Fate)]) {
    println!("\n{:<10} {:<30} {:>8}", "step", "result", "seconds");
    for (name, fate) in fates {
        let (result, seconds) = match fate {
            Fate::Passed(took) => ("ok".to_owned(), format!("{:.1}", took.as_secs_f64())),
            Fate::NotRun(_) => ("NOT RUN".to_owned(), String::new()),
            Fate::LeftOut(reason) => (format!("left out ({reason})"), String::new()),
        };
        println!("{name:<10} {result:<30} {seconds:>8}");
    }
    warn_of_gaps(fates);
    if fates.iter().all(|(_, fate)| matches!(fate, Fate::Passed(_))) {
        println!("\nall steps passed");
    }
    println!("{}", count(fates.iter().map(|(_, fate)| fate), 0));
}

/// A box that cannot be overlooked, if a step could not run.
fn warn_of_gaps(fates: &[(&str, Fate)]) {
    let gaps: Vec<String> = fates
        .iter()
        .filter_map(|(name, fate)| match fate {
            Fate::NotRun(needs) => Some(format!("NOT RUN: {name} ({needs})")),
            _ => None,
        })
        .collect();
    let Some(width) = gaps.iter().map(|gap| gap.chars().count()).max() else {
        return;
    };
    let edge = "#".repeat(width + 4);
    println!("\n{edge}");
    for gap in gaps {
        println!("# {gap:<width$} #");
    }
    println!("{edge}");
}

fn count<'a>(fates: impl IntoIterator<Item = &'a Fate>, failed: usize) -> String {
    let (passed, others): (Vec<_>, Vec<_>) = fates
        .into_iter()
        .partition(|fate| matches!(fate, Fate::Passed(_)));
    let passed = passed.len();
    match others.len() {
        0 => format!("{passed} passed, {failed} failed"),
        skipped => format!("{passed} passed, {failed} failed, {skipped} skipped"),
    }
}

fn openly(line: &str) -> Outcome {
    run::openly(run::line(line))
}

fn format() -> Outcome {
    openly("cargo fmt --all -- --check")
}

fn lint() -> Outcome {
    openly("cargo clippy --workspace --all-targets --all-features -- -D warnings")
}

/// What users read, then what we read: links in private modules must lead somewhere, too.
fn docs() -> Outcome {
    for packages in ["--workspace", "-p fibrant --document-private-items"] {
        let mut command = run::line(&format!("cargo doc --no-deps --all-features {packages}"));
        command.env("RUSTDOCFLAGS", "-D warnings");
        run::openly(command)?;
    }
    Ok(())
}

/// The benchmarks themselves are only built: they take minutes, and what they measure here is of no use. Both commands name the same
/// packages, so that dependencies are built once.
fn debug_tests() -> Outcome {
    run::openly(debug_command(""))?;
    run::openly(debug_command("--features fibrant/tracing --test stuck"))
}

fn debug_command(more: &str) -> Command {
    run::line(&format!(
        "cargo test -p fibrant -p fibrant-c -p bench -p xtask {more}"
    ))
}

fn release_tests() -> Outcome {
    run::openly(release_command())
}

fn release_command() -> Command {
    run::line("cargo test --release -p fibrant -p fibrant-c")
}

/// The hooks must win when the whole program is optimised at once, too.
fn lto_tests() -> Outcome {
    run::openly(lto_command())
}

fn lto_command() -> Command {
    run::line("cargo test --profile fat-lto -p fibrant --test hooks --test symbols")
}

/// Client libraries against real servers. How long they take counts, so they do not run at the same time.
fn clients() -> Outcome {
    openly("cargo test -p clients --test clients -- --test-threads=1")
}

fn examples() -> Outcome {
    openly("cargo run -p fibrant --example tour")?;
    openly("cargo run -p fibrant --release --example tour")?;
    openly("cargo run -p fibrant --example doctor")?;
    openly("cargo run -p fibrant --release --example doctor")?;
    openly("cargo run -p fibrant --profile panic-abort --example panic_abort")
}

/// The package is built as its users would get it.
fn package() -> Outcome {
    let list = "cargo package -p fibrant --allow-dirty --no-verify --quiet --list";
    if !run::answer(run::line(list))?
        .lines()
        .any(|file| file == "README.md")
    {
        return Err("the package lacks README.md".to_owned());
    }
    openly("cargo package -p fibrant --allow-dirty")
}

/// A break that no longer applies proves nothing; `cargo xtask red` itself takes too long to be run each time.
fn patches_apply() -> Outcome {
    for patch in patches()? {
        let mut command = run::line("git apply --check");
        command.arg(&patch);
        run::openly(command)
            .map_err(|problem| format!("{} does not apply any more: {problem}", patch.display()))?;
    }
    Ok(())
}

/// The files of deliberate breaks, in order of their names.
pub fn patches() -> Outcome<Vec<PathBuf>> {
    let entries = fs::read_dir(PATCHES).map_err(|error| format!("{PATCHES}: {error}"))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut patches: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .collect();
    patches.sort();
    Ok(patches)
}

/// Builds with the oldest Rust that the manifest promises, in a folder of its own to keep both builds.
fn msrv() -> Outcome {
    let rust = oldest_rust()?;
    openly(&format!(
        "rustup run {rust} cargo check -p fibrant -p fibrant-c --all-features --target-dir target/msrv"
    ))
}

fn oldest_rust() -> Outcome<String> {
    let manifest = fs::read_to_string("Cargo.toml").map_err(|error| format!("Cargo.toml: {error}"))?;
    rust_version(&manifest).ok_or_else(|| "Cargo.toml has no rust-version".to_owned())
}

/// The manifest's `rust-version` as rustup names it: with three numbers.
fn rust_version(manifest: &str) -> Option<String> {
    let (_, value) = manifest
        .lines()
        .filter_map(|line| line.split_once('='))
        .find(|(key, _)| key.trim() == "rust-version")?;
    let version = value.trim().trim_matches('"');
    Some(match version.matches('.').count() {
        1 => format!("{version}.0"),
        _ => version.to_owned(),
    })
}

/// Each switch must look to valgrind like what it is. It warns of the ones that it takes for a strange jump, but not with
/// --quiet, and exits as if nothing were wrong: so its output is searched.
fn valgrind() -> Outcome {
    const LIMIT: Duration = Duration::from_secs(300);
    let valgrind = format!("{} --suppressions={LOST_ON_PURPOSE}", c::VALGRIND);
    for program in switching_programs()? {
        let mut command = program.command(&valgrind);
        command
            .arg("--test-threads=1")
            .args(skipping(&NOT_UNDER_VALGRIND));
        let line = run::typed(&command);
        let ending = run::quietly(command, LIMIT)?;
        if !ending.success || ending.output.contains("client switching stacks") {
            return Err(format!("{}: {line}\n{}", ending.how, ending.output));
        }
        println!("    {}: valgrind has nothing to say", program.name);
    }
    Ok(())
}

fn switching_programs() -> Outcome<Vec<TestProgram>> {
    run::test_programs(&format!(
        "-p fibrant --features valgrind {}",
        chosen(&UNDER_VALGRIND)
    ))
}

fn asan() -> Outcome {
    run::openly(asan_command()?)
}

/// AddressSanitizer. Not for leaks: some tests abandon fibers on purpose.
fn asan_command() -> Outcome<Command> {
    let mut command = run::line(&format!(
        "rustup run nightly cargo test -p fibrant --target {} --target-dir target/asan {} --",
        host()?,
        chosen(&UNDER_ASAN)
    ));
    command
        .args(skipping(&NOT_UNDER_ASAN))
        .env("RUSTFLAGS", "-Zsanitizer=address --cfg fibrant_asan")
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1");
    Ok(command)
}

/// The machine that rustc builds for. RUSTFLAGS spare build scripts only if it is named.
pub fn host() -> Outcome<String> {
    let version = run::answer(run::line("rustc -vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from)
        .ok_or_else(|| "rustc -vV names no host".to_owned())
}

fn aarch64() -> Outcome {
    for name in ON_AARCH64 {
        let files = [
            format!("fibrant/tests/{name}.rs"),
            format!("fibrant/tests/{name}/main.rs"),
        ];
        if !files.iter().any(|file| Path::new(file).exists()) {
            return Err(format!("{} is to be run, but is not there", files[0]));
        }
    }
    run::openly(aarch64_command())?;
    c::run_on_aarch64(EMULATOR)
}

fn aarch64_command() -> Command {
    let mut command = run::line(&format!(
        "cargo test -p fibrant --target {OTHER_MACHINE} --lib {} --",
        chosen(&ON_AARCH64)
    ));
    command
        .args(skipping(&NOT_ON_AARCH64))
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
            "aarch64-linux-gnu-gcc",
        )
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", EMULATOR)
        // Tests that run themselves once more in a child process need it, too.
        .env("FIBRANT_TEST_RUNNER", EMULATOR);
    command
}

/// Arguments for cargo: these files of tests only.
fn chosen(tests: &[&str]) -> String {
    tests.iter().map(|name| format!("--test {name} ")).collect()
}

/// Arguments for a test program: all tests but these.
fn skipping(tests: &[&'static str]) -> Vec<&'static str> {
    tests.iter().flat_map(|name| ["--skip", name]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Outcome<Vec<String>> {
        left_out(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn reads_the_steps_to_leave_out() {
        assert_eq!(parsed("").unwrap(), [""; 0]);
        assert_eq!(parsed("--without asan").unwrap(), ["asan"]);
        assert_eq!(
            parsed("--without asan,msrv --without docs").unwrap(),
            ["asan", "msrv", "docs"]
        );
    }

    #[test]
    fn names_all_steps_when_one_is_unknown() {
        let problem = parsed("--without asan,nothing").unwrap_err();
        assert!(problem.contains("'nothing'"), "{problem}");
        assert!(problem.contains("msrv, valgrind, asan, aarch64"), "{problem}");
        assert!(parsed("--without").is_err());
        assert!(parsed("asan").is_err());
    }

    #[test]
    fn reads_the_oldest_rust() {
        let manifest = "[workspace.package]\nedition = \"2024\"\nrust-version = \"1.88\"\n";
        assert_eq!(rust_version(manifest).as_deref(), Some("1.88.0"));
        assert_eq!(rust_version("rust-version=\"1.90.1\"").as_deref(), Some("1.90.1"));
        assert_eq!(rust_version("# rust-version\nversion = \"1\"\n"), None);
    }

    #[test]
    fn counts_what_ran_and_what_did_not() {
        let passed = || Fate::Passed(Duration::ZERO);
        assert_eq!(count(&[passed(), passed()], 0), "2 passed, 0 failed");
        let gaps = [passed(), Fate::NotRun(String::new()), Fate::LeftOut("")];
        assert_eq!(count(&gaps, 1), "1 passed, 1 failed, 2 skipped");
    }
}
