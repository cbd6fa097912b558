//! How servers that several tests use are started: command lines for [`Server::start`](crate::Server::start).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Redis, which keeps nothing.
pub fn redis(folder: &Path, port: u16) -> Command {
    let mut command = Command::new("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"])
        .arg(folder)
        .args(["--save", "", "--maxclients", "1000"])
        // So often in a second it looks who has waited long enough.
        .args(["--hz", "200"]);
    command
}

/// PostgreSQL, which trusts everybody, and its database. It accepts connections before it is ready for them.
pub fn postgres(folder: &Path, port: u16) -> Command {
    let settings = [
        "listen_addresses=127.0.0.1",
        &format!("port={port}"),
        &format!("unix_socket_directories={}", folder.display()),
        "max_connections=250",
        "shared_buffers=16MB",
        "fsync=off",
        "autovacuum=off",
    ];
    let settings: String = settings.iter().map(|setting| format!(" -c {setting}")).collect();
    let mut command = Command::new("sh");
    // It takes two programs: one makes the database, the other, which the shell becomes, serves it.
    command
        .args(["-ec", "\"$1/initdb\" -D \"$2\" -U postgres -A trust --no-sync --no-instructions; exec \"$1/postgres\" -D \"$2\" $3"])
        .arg("sh")
        .arg(programs_of_postgres())
        .arg(folder.join("data"))
        .arg(settings);
    command
}

/// The folder with the server's programs: Debian has one for each version, elsewhere they are among the others.
fn programs_of_postgres() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let folders = versions.map(|version| version.path().join("bin"));
    let mut installed: Vec<_> = folders.filter(|folder| folder.join("initdb").exists()).collect();
    installed.sort();
    installed.pop().unwrap_or_else(|| PathBuf::from("/usr/bin"))
}
