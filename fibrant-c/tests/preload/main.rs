//! The library, preloaded into programs that know nothing of it, changes nothing: the same command gives the same output and the same
//! exit status with and without it.
//!
//! Programs are run as they are installed; what python does is in the scripts beside this file. Servers come from the crate `clients`.

use clients::{PATIENCE, Server, command};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The variable that preloads a library.
const PRELOAD: &str = "LD_PRELOAD";

/// No command takes so long, in seconds; only one that hangs.
const LIMIT: &str = "120";

/// The shared library that cargo has built beside this program.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program is a file");
    let library = program.with_file_name("libfibrant_c.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// What came of a command.
#[derive(Debug, PartialEq)]
struct Ending {
    output: String,
    status: Option<i32>,
}

/// A command that is run in an empty folder, and what is expected of it.
struct Trial<'a> {
    /// The Debian package that has the program.
    package: &'a str,
    words: Vec<String>,
    input: &'a str,
    /// A part of its output.
    expected: &'a str,
    status: i32,
}

impl<'a> Trial<'a> {
    fn of(package: &'a str, words: &[&str]) -> Trial<'a> {
        Trial {
            package,
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            input: "",
            expected: "",
            status: 0,
        }
    }

    fn reads(mut self, text: &'a str) -> Trial<'a> {
        self.input = text;
        self
    }

    /// That both runs give the same is not enough: both might have failed.
    fn says(mut self, expected: &'a str) -> Trial<'a> {
        self.expected = expected;
        self
    }

    fn ends_with(mut self, status: i32) -> Trial<'a> {
        self.status = status;
        self
    }

    /// Runs it without and with the library.
    #[track_caller]
    fn is_unchanged(&self) {
        let plain = self.run(None);
        assert!(
            plain.output.contains(self.expected) && plain.status == Some(self.status),
            "even without the library {:?} gives {plain:?}",
            self.words
        );
        let preloaded = self.run(Some(&library()));
        assert!(
            preloaded == plain,
            "the library changes {:?}\nfrom {plain:?}\nto {preloaded:?}",
            self.words
        );
    }

    fn run(&self, library: Option<&Path>) -> Ending {
        let folder = Folder::new();
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT, "env"]);
        if let Some(library) = library {
            command.arg(format!("{PRELOAD}={}", library.display()));
        }
        command
            .args(&self.words)
            .current_dir(&folder.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("coreutils are there");
        let mut input = child.stdin.take().expect("it is piped");
        let output = thread::scope(|scope| {
            // A program that does not read to the end is judged by what it prints.
            scope.spawn(move || drop(input.write_all(self.input.as_bytes())));
            child.wait_with_output().expect("a child can be waited for")
        });
        // Shown if the test fails.
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        let status = output.status.code();
        assert_ne!(
            status,
            Some(127),
            "{} is needed: install the package {}",
            self.words[0],
            self.package
        );
        Ending {
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            status,
        }
    }
}

/// A folder for one run, removed with what is in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("fibrant-preload-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A script of the shell's.
fn shell(script: &str) -> Trial<'_> {
    Trial::of("bash", &["bash", "-c", script])
}

/// A script beside this file.
fn python(script: &str) -> Trial<'static> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/preload")
        .join(script);
    Trial::of("python3", &["python3", path.to_str().expect("paths are text")])
}

/// Whatever else is compared here would be the same without a library, too.
#[test]
fn the_library_is_in_effect() {
    let (plain, preloaded) = (
        python("hooked.py").run(None),
        python("hooked.py").run(Some(&library())),
    );
    assert_eq!(plain.status, Some(0));
    assert!(!plain.output.contains("fibrant"), "{}", plain.output);
    for name in ["read", "poll", "pthread_mutex_lock", "getaddrinfo"] {
        let line = format!("{name} libfibrant_c.so\n");
        assert!(preloaded.output.contains(&line), "{}", preloaded.output);
    }
    assert!(
        preloaded.output.contains("malloc libc.so"),
        "{}",
        preloaded.output
    );
}

#[test]
fn python_has_sockets() {
    python("sockets.py").says("HELLO 2").is_unchanged();
}

#[test]
fn python_has_threads() {
    python("threads.py")
        .says("1999000 2664667000 True 1")
        .is_unchanged();
}

#[test]
fn python_has_processes() {
    python("processes.py").says("from python, from C").is_unchanged();
}

#[test]
fn python_has_signals() {
    python("signals.py").says("a handler may raise").is_unchanged();
}

#[test]
fn python_has_an_event_loop() {
    python("loop.py").says("told").is_unchanged();
}

#[test]
fn python_loads_libraries() {
    Trial::of(
        "python3",
        &[
            "python3",
            "-c",
            "import ssl, sqlite3, ctypes, hashlib, zlib, lzma, curses
database = sqlite3.connect('file')
database.execute('create table t (n integer)')
database.executemany('insert into t values (?)', ((n,) for n in range(1000)))
database.commit()
print(database.execute('select sum(n) from t').fetchone(), ssl.create_default_context().verify_mode, hashlib.sha256(b'x').hexdigest())
try:
    ctypes.CDLL('libnothing.so')
except OSError as error:
    print(error)",
        ],
    )
    .says("(499500,)")
    .is_unchanged();
}

#[test]
fn the_shell_has_pipes_and_jobs() {
    shell("seq 20000 | grep 7 | sort -rn | head -n 3 | tr '\\n' ' '; echo ${PIPESTATUS[@]:0:1} done")
        .says("19997 19987 19979")
        .is_unchanged();
    shell("for n in 1 2 3; do (sleep 0.0$n; exit $n) & jobs[n]=$!; done; for n in 3 2 1; do wait ${jobs[n]}; echo $?; done; jobs | wc -l")
        .says("3\n2\n1\n")
        .is_unchanged();
    shell("sleep 600 & kill $!; wait $!; echo $?; trap 'echo trapped' USR1; kill -USR1 $$; exit 12")
        .says("143\ntrapped")
        .ends_with(12)
        .is_unchanged();
    shell("mkfifo pipe; (echo through; echo a; echo fifo) > pipe & cat pipe; exec 5<> pipe; read -t 0.1 -u 5 line; echo $?; coproc cat; echo hello >&${COPROC[1]}; read -u ${COPROC[0]} word; echo $word")
        .says("through\na\nfifo\n142\nhello")
        .is_unchanged();
    shell("exec 3<>/dev/tcp/127.0.0.1/1 || echo refused; exit 6")
        .says("refused")
        .ends_with(6)
        .is_unchanged();
}

#[test]
fn tools_do_their_work() {
    shell("mkdir -p a/b; seq 300 > a/b/numbers; ln -s b/numbers a/link; ls -l --time-style=+ a | wc -l; tar -cz a | tar -tz; tar -c a | (mkdir c; tar -x -C c); diff -r a c/a && find c -type f | xargs -n1 -P4 md5sum")
        .says("a/b/numbers")
        .is_unchanged();
    shell("seq 1 400000 | sort -R --random-source=/bin/sh | sort -n --parallel=2 -S 2M | md5sum")
        .says("  -")
        .is_unchanged();
    Trial::of("xz-utils", &["sh", "-ec", "seq 1 500000 > numbers; xz -k -T2 --block-size=256KiB numbers; xz -dc -T2 numbers.xz | cmp - numbers; echo same; stat -c %s numbers.xz"])
        .says("same")
        .is_unchanged();
    Trial::of("make", &["sh", "-ec", "printf 'all: a b c d\\na b c d:\\n\\t@sleep 0.05; echo $@ > $@\\n' > Makefile; make -s -j3; cat a b c d"])
        .says("a\nb\nc\nd")
        .is_unchanged();
    Trial::of("git", &["sh", "-ec", "
        export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@x HOME=$PWD
        export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
        git init -q -b main one; cd one; seq 1000 > file; git add file; git commit -q -m first; seq 999 > file; git commit -qam second
        git gc -q; git clone -q . ../two; cd ../two; git log --format='%H %s'; git diff --stat HEAD~1; git fsck"])
        .says(" second")
        .is_unchanged();
}

/// What is linked statically has no dynamic linker that would preload anything.
#[test]
fn a_static_program_does_not_notice() {
    const PROGRAM: &str = "#include <poll.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
        int main(void) { poll(0, 0, 10); puts(getenv(\"HOME\") ? \"static\" : \"?\"); return 3; }\n";
    let folder = Folder::new();
    let (source, program) = (folder.0.join("program.c"), folder.0.join("program"));
    fs::write(&source, PROGRAM).expect("the folder takes a file");
    let built = Command::new("cc")
        .arg("-static")
        .args([&source, Path::new("-o"), &program])
        .status();
    assert!(
        built.expect("install the package gcc").success(),
        "install the package libc6-dev"
    );
    Trial::of(
        "gcc",
        &["env", "HOME=/", program.to_str().expect("paths are text")],
    )
    .says("static")
    .ends_with(3)
    .is_unchanged();
}

#[test]
fn curl_fetches() {
    let server = Files::serve();
    let address = format!("http://{}", server.address);
    let curl = |words: &[&str]| {
        let words: Vec<&str> = ["curl", "--silent", "--show-error"]
            .iter()
            .chain(words)
            .copied()
            .collect();
        Trial::of("curl", &words)
    };
    let scripts = format!("file://{}/tests/preload/main.rs", env!("CARGO_MANIFEST_DIR"));
    curl(&[&scripts]).says("curl_fetches").is_unchanged();
    curl(&[&format!("{address}/some/path")])
        .says("GET /some/path")
        .is_unchanged();
    let name = address.replace("127.0.0.1", "localhost");
    curl(&["--ipv4", &name]).says("GET /").is_unchanged();
    curl(&["--include", "--data-binary", "@-", &address])
        .reads(&"posted ".repeat(20_000))
        .says("POST / 140000")
        .is_unchanged();
    // Large enough to fill every buffer on its way.
    curl(&[&format!("{address}/large")]).says("9999\n").is_unchanged();
    curl(&[
        "--parallel",
        "--fail",
        &format!("{address}/[1-30]"),
        "--output",
        "#1",
    ])
    .is_unchanged();
    // It has its own exit status for each of these.
    curl(&["http://127.0.0.1:1"]).ends_with(7).is_unchanged();
    curl(&["--max-time", "0.3", &format!("{address}/never")])
        .ends_with(28)
        .is_unchanged();
}

/// A server of HTTP that tells clients what they have asked for. It lives as long as the tests.
struct Files {
    address: String,
}

impl Files {
    fn serve() -> Files {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has free ports");
        let address = listener.local_addr().expect("it is bound").to_string();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away early has its reasons.
                thread::spawn(move || drop(answer(stream)));
            }
        });
        Files { address }
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        let header = line.trim().to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if header == "expect: 100-continue" {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        line.clear();
    }
    let received = io::copy(&mut reader.by_ref().take(length), &mut io::sink())?;
    let path = request.split(' ').nth(1).unwrap_or_default();
    let body = match path {
        // It waits until the client gives up.
        "/never" => return reader.read_line(&mut line).map(drop),
        "/large" => (0..500_000)
            .map(|number| format!("{}\n", number % 10_000))
            .collect(),
        _ => format!("{} {received}\n", request.trim_end_matches(" HTTP/1.1\r\n")),
    };
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// A copy of the library in a server's folder: servers run as somebody who may not be allowed to read it here.
fn copy_for(folder: &Path) -> PathBuf {
    let copy = folder.join("libfibrant_c.so");
    fs::copy(library(), &copy).expect("the folder takes a file");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("it is ours");
    copy
}

/// A server into which the library is preloaded, too: its clients without it find nothing strange.
fn preloaded(command: fn(&Path, u16) -> Command) -> impl Fn(&Path, u16) -> Command {
    move |folder, port| {
        let mut command = command(folder, port);
        command.env(PRELOAD, copy_for(folder));
        command
    }
}

#[test]
fn redis_serves_and_answers() {
    let server = Server::start("redis", preloaded(command::redis));
    let port = server.port().to_string();
    let redis = |words: &[&str]| {
        let words: Vec<&str> = ["redis-cli", "-p", &port].iter().chain(words).copied().collect();
        Trial::of("redis-tools", &words)
    };
    redis(&["PING"]).says("PONG").is_unchanged();
    redis(&["SET", "key", "value"]).says("OK").is_unchanged();
    redis(&["GET", "key"]).says("value").is_unchanged();
    redis(&["-r", "5", "-i", "0.01", "GET", "key"])
        .says("value")
        .is_unchanged();
    redis(&["NONSENSE"]).says("ERR").is_unchanged();
    let commands: String = (0..3000)
        .map(|number| format!("SET key-{number} {number}\r\n"))
        .collect();
    redis(&["--pipe"])
        .reads(&commands)
        .says("replies: 3000")
        .is_unchanged();
    redis(&[])
        .reads("GET key-2999\nMULTI\nSET n 1\nINCR n\nEXEC\nCLIENT NO-SUCH\n")
        .says("2999\nOK\nQUEUED")
        .is_unchanged();
    redis(&["BLPOP", "empty", "0.2"]).says("\n").is_unchanged();
    let pushing = format!(
        "redis-cli -p {port} BLPOP list 60 & sleep 0.1; redis-cli -p {port} RPUSH list pushed > pushed; wait; cat pushed"
    );
    shell(&pushing).says("pushed").is_unchanged();
}

/// Waits until PostgreSQL takes queries, which it does some time after it accepts connections.
fn ready(server: Server) -> Server {
    let start = Instant::now();
    loop {
        let ending = psql(&server, &["--command", "SELECT 1"]).run(None);
        if ending.status == Some(0) {
            return server;
        }
        assert!(start.elapsed() < PATIENCE, "PostgreSQL is not ready: {ending:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn psql<'a>(server: &Server, words: &[&str]) -> Trial<'a> {
    let port = server.port().to_string();
    let fixed = [
        "psql",
        "--no-psqlrc",
        "--host=127.0.0.1",
        "--username=postgres",
        "--port",
        &port,
    ];
    let words: Vec<&str> = fixed.iter().chain(words).copied().collect();
    Trial::of("postgresql-client", &words)
}

#[test]
fn postgres_serves_and_answers() {
    let server = ready(Server::start("postgres", preloaded(command::postgres)));
    let psql = |words: &[&str]| psql(&server, words);
    psql(&["--command", "SELECT 6 * 7 AS answer"])
        .says("42")
        .is_unchanged();
    psql(&["--tuples-only", "--command", "SELECT pg_sleep(0.1), 'slept'"])
        .says("slept")
        .is_unchanged();
    psql(&["--command", "SET statement_timeout = 50; SELECT pg_sleep(60)"])
        .ends_with(1)
        .is_unchanged();
    psql(&["--set=ON_ERROR_STOP=1"])
        .reads(
            "CREATE TEMPORARY TABLE t (n integer, words text);
            INSERT INTO t SELECT n, repeat('words ', n % 50) FROM generate_series(1, 20000) n;
            \\copy t TO 'copy'\n\\copy t FROM 'copy'
            SELECT count(*), sum(n), sum(length(words)) FROM t;
            SELECT n, words FROM t ORDER BY n, words LIMIT 10000;
            \\! wc -l < copy\nSELECT 1 / 0;\n",
        )
        .says("400020000")
        .ends_with(3)
        .is_unchanged();
}
