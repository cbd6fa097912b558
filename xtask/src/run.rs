//! Running other programs: each failure names the command line that can be repeated by hand.
//!
//! Every other module of this crate calls it; it calls nothing but the programs it is given.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A result, or what went wrong in words for whoever started this program.
pub type Outcome<T = ()> = Result<T, String>;

/// The command that a line of words stands for. No word can contain a space.
pub fn line(text: &str) -> Command {
    let mut words = text.split_whitespace();
    let mut command = Command::new(words.next().expect("a command line is not empty"));
    command.args(words);
    command
}

/// A command as one would type it.
pub fn typed(command: &Command) -> String {
    let environment = command
        .get_envs()
        .filter_map(|(key, value)| Some(format!("{}='{}'", key.display(), value?.display())));
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| word.display().to_string());
    environment.chain(words).collect::<Vec<_>>().join(" ")
}

/// Prints a step's name, runs it and prints how long it took.
pub fn step(name: &str, action: impl FnOnce() -> Outcome) -> Outcome<Duration> {
    println!("==> {name}");
    let start = Instant::now();
    action()?;
    let took = start.elapsed();
    println!("    {name}: {:.1} s", took.as_secs_f64());
    Ok(took)
}

/// Runs a command that prints for itself and must succeed.
pub fn openly(mut command: Command) -> Outcome {
    let status = command.status().map_err(|error| not_started(&command, &error))?;
    succeeded(&command, status)
}

/// What a command that must succeed prints to its standard output.
pub fn answer(mut command: Command) -> Outcome<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| not_started(&command, &error))?;
    succeeded(&command, output.status)?;
    String::from_utf8(output.stdout).map_err(|error| format!("{}: {error}", typed(&command)))
}

/// How a command ended that was allowed to fail.
pub struct Ending {
    /// Whether it ended by itself with exit code 0.
    pub success: bool,
    /// The exit code or signal in words, or that it took too long.
    pub how: String,
    /// All that it printed.
    pub output: String,
}

/// Runs a command without showing what it prints. If it is not done within the limit, it is killed.
pub fn quietly(mut command: Command, limit: Duration) -> Outcome<Ending> {
    let cannot = |error: io::Error| format!("the output of a command cannot be kept: {error}");
    let mut output = nameless_file().map_err(cannot)?;
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_err(cannot)?)
        .stderr(output.try_clone().map_err(cannot)?)
        // A group of its own, so that it can be killed together with the processes that it starts.
        .process_group(0);
    let mut child = command.spawn().map_err(|error| not_started(&command, &error))?;
    let status = wait(&mut child, limit).map_err(|error| format!("{}: {error}", typed(&command)))?;
    let mut bytes = Vec::new();
    output.rewind().map_err(cannot)?;
    output.read_to_end(&mut bytes).map_err(cannot)?;
    Ok(Ending {
        success: status.is_some_and(|status| status.success()),
        how: status.map_or_else(
            || format!("killed after {} s", limit.as_secs()),
            |status| status.to_string(),
        ),
        output: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

/// A file that goes away by itself. Not a pipe: what a test has started and forgotten would keep a pipe open.
fn nameless_file() -> io::Result<File> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let unique = (std::process::id(), COUNT.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(format!("xtask-{}-{}", unique.0, unique.1));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// The child's exit status; none if it had to be killed.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    const PAUSE: Duration = Duration::from_millis(5);
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(PAUSE);
    }
    end(child)?;
    Ok(None)
}

/// Ends a child that leads a group of its own, and has not been waited for, with all that it has started.
pub fn end(child: &mut Child) -> io::Result<()> {
    // Its number, which is its group's too, is still its own. The shell has this command built in; a program of that name may not be
    // installed.
    let group = format!("kill -s KILL -- -{}", child.id());
    Command::new("sh").args(["-c", &group]).status()?;
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn not_started(command: &Command, error: &io::Error) -> String {
    format!("cannot run {}: {error}", typed(command))
}

fn succeeded(command: &Command, status: ExitStatus) -> Outcome {
    if status.success() {
        Ok(())
    } else {
        Err(format!("{status}: {}", typed(command)))
    }
}

/// A program with tests, as cargo has built it.
#[derive(Debug, PartialEq)]
pub struct TestProgram {
    /// The name of the file in `tests/`, or of the crate for its unit tests.
    pub name: String,
    path: PathBuf,
    /// Where cargo would run it: the package's folder.
    folder: PathBuf,
}

impl TestProgram {
    /// The command that runs it as cargo does, under another program (such as valgrind) if one is named.
    pub fn command(&self, under: &str) -> Command {
        let mut command = match under {
            "" => Command::new(&self.path),
            _ => {
                let mut command = line(under);
                command.arg(&self.path);
                command
            }
        };
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Builds tests and says where they are; `arguments` are those of `cargo test`.
pub fn test_programs(arguments: &str) -> Outcome<Vec<TestProgram>> {
    let messages = answer(line(&format!(
        "cargo test --no-run --message-format=json-render-diagnostics {arguments}"
    )))?;
    Ok(messages.lines().filter_map(test_program).collect())
}

/// The program that one of cargo's messages tells of, if it is one with tests.
fn test_program(message: &str) -> Option<TestProgram> {
    let target = &message[message.find("\"target\":")?..];
    let profile = &message[message.find("\"profile\":")?..];
    if !profile.split('}').next()?.contains("\"test\":true") {
        return None;
    }
    let manifest = PathBuf::from(text_field(message, "manifest_path")?);
    Some(TestProgram {
        name: text_field(target, "name")?,
        path: text_field(message, "executable")?.into(),
        folder: manifest.parent().map(Path::to_owned)?,
    })
}

/// The text that the first field of this name holds; none if it holds something else. Enough JSON for names and paths,
/// in which nothing but quotes and backslashes is escaped.
fn text_field(json: &str, name: &str) -> Option<String> {
    let label = format!("\"{name}\":\"");
    let start = json.find(&label)? + label.len();
    let mut text = String::new();
    let mut letters = json[start..].chars();
    loop {
        match letters.next()? {
            '"' => return Some(text),
            '\\' => text.push(letters.next()?),
            letter => text.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///home/me/fibrant#0.1.0","manifest_path":"/home/me/fibrant/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"local","src_path":"/home/me/fibrant/tests/local.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"0","debuginfo":2,"debug_assertions":true,"overflow_checks":true,"test":true},"features":["valgrind"],"filenames":["/home/me/target/debug/deps/local-e4"],"executable":"/home/me/target/debug/deps/local-e4","fresh":false}"#;

    #[test]
    fn finds_a_test_program_in_a_message() {
        let program = test_program(MESSAGE).unwrap();
        assert_eq!(program.name, "local");
        assert_eq!(program.path, Path::new("/home/me/target/debug/deps/local-e4"));
        assert_eq!(program.folder, Path::new("/home/me/fibrant"));
    }

    #[test]
    fn other_messages_tell_of_none() {
        let library = MESSAGE.replace(
            "\"executable\":\"/home/me/target/debug/deps/local-e4\"",
            "\"executable\":null",
        );
        assert_eq!(test_program(&library), None);
        let example = MESSAGE.replace(
            "\"overflow_checks\":true,\"test\":true",
            "\"overflow_checks\":true,\"test\":false",
        );
        assert_eq!(test_program(&example), None);
        assert_eq!(
            test_program(r#"{"reason":"build-finished","success":true}"#),
            None
        );
    }

    #[test]
    fn understands_escapes() {
        assert_eq!(
            text_field(r#"{"name":"a \"b\" c\\d"}"#, "name").as_deref(),
            Some(r#"a "b" c\d"#)
        );
        assert_eq!(text_field(r#"{"name":null,"other":"x"}"#, "name"), None);
    }

    #[test]
    fn shows_a_command_as_it_is_typed() {
        let mut command = line("cargo test  -p fibrant");
        command.env("RUSTFLAGS", "-D warnings");
        assert_eq!(typed(&command), "RUSTFLAGS='-D warnings' cargo test -p fibrant");
    }

    #[test]
    fn a_quiet_command_keeps_its_output_and_its_exit_code() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let ending = quietly(command, Duration::from_secs(60)).unwrap();
        assert!(!ending.success);
        assert_eq!(ending.how, "exit status: 3");
        assert_eq!(ending.output, "out\nerr\n");
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed_with_what_it_has_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let ending = quietly(command, Duration::from_secs(1)).unwrap();
        assert!(!ending.success);
        assert_eq!(ending.how, "killed after 1 s");
        let status = format!("/proc/{}/status", ending.output.trim());
        // It is not our child, so nothing says when the signal has reached it.
        let deadline = Instant::now() + Duration::from_secs(60);
        while is_alive(&status) {
            assert!(Instant::now() < deadline, "it is still running");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A process that has ended may wait for its new parent to notice.
    fn is_alive(status: &str) -> bool {
        fs::read_to_string(status).is_ok_and(|status| !status.contains("State:\tZ"))
    }
}
