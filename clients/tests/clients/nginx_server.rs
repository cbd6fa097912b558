//! nginx, with TLS: the crate `ureq` with rustls, and the C library libcurl with OpenSSL.

use crate::patience::Watchdog;
use clients::{Client, FIBERS, Server, TIMEOUT, WAIT, crowd, impatient, runtime};
use curl::easy::Easy;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Makes a certificate for the loopback that nobody has signed but itself, then becomes the server.
const START: &str = "
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout key.pem -out certificate.pem \
        -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE
    PATH=$PATH:/usr/sbin
    exec nginx -p . -e stderr -c nginx.conf";

fn server() -> Server {
    Server::start("nginx", |folder, port| {
        fs::write(folder.join("nginx.conf"), settings(folder, port)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-ec", START]);
        command
    })
}

fn settings(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|user| format!("{user}_temp_path {folder}/{user};\n"))
        .concat();
    let wait = WAIT.as_secs_f64();
    let late = 20. * TIMEOUT.as_secs_f64(); // later than anybody is ever held up
    format!(
        "load_module /usr/lib/nginx/modules/ngx_http_echo_module.so;
        daemon off;
        master_process off;
        pid {folder}/pid;
        events {{ worker_connections 1000; }}
        http {{
            access_log off;
            {temporary}
            server {{
                listen 127.0.0.1:{port} ssl backlog=500;
                ssl_certificate {folder}/certificate.pem;
                ssl_certificate_key {folder}/key.pem;
                location /wait {{ echo_sleep {wait}; echo -n \"waited $arg_n\"; }}
                location /late {{ echo_sleep {late}; echo -n \"late\"; }}
                location /query {{ echo -n \"number $arg_n\"; }}
            }}
        }}"
    )
}

/// The crate `ureq`. All fibers share one agent, which keeps idle connections.
struct Crate {
    agent: Agent,
    port: u16,
}

impl Crate {
    fn get(&self, path: &str, number: usize) -> String {
        let address = format!("https://127.0.0.1:{}/{path}?n={number}", self.port);
        let mut response = self.agent.get(address).call().unwrap();
        response.body_mut().read_to_string().unwrap()
    }
}

impl Client for Crate {
    fn wait(&mut self, fiber: usize) {
        assert_eq!(self.get("wait", fiber), format!("waited {fiber}"));
    }

    fn query(&mut self, number: usize) {
        assert_eq!(self.get("query", number), format!("number {number}"));
    }
}

#[test]
fn the_crate_ureq_with_rustls() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    let port = server.port();
    let certificate = fs::read(server.folder().join("certificate.pem")).unwrap();
    let certificate = Certificate::from_pem(&certificate).unwrap();
    let encryption = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[certificate]));
    let agent: Agent = Agent::config_builder()
        .tls_config(encryption.build())
        .max_idle_connections(FIBERS)
        .max_idle_connections_per_host(FIBERS)
        .build()
        .into();
    crowd(&runtime, |fiber| {
        let agent = agent.clone();
        let client = Crate { agent, port };
        client.get("query", fiber);
        client
    });
}

/// The C library libcurl, by its easy interface. Each fiber has a connection of its own.
struct Libcurl {
    easy: Easy,
    port: u16,
}

impl Libcurl {
    fn new(server: &Server) -> Libcurl {
        let mut easy = Easy::new();
        easy.cainfo(server.folder().join("certificate.pem")).unwrap();
        let port = server.port();
        Libcurl { easy, port }
    }

    /// The server goes by its name, which libcurl has a thread look up: the fiber waits for that, too.
    fn get(&mut self, path: &str, number: usize) -> Result<String, curl::Error> {
        let address = format!("https://localhost:{}/{path}?n={number}", self.port);
        self.easy.url(&address)?;
        let mut body = Vec::new();
        let mut transfer = self.easy.transfer();
        transfer.write_function(|part| {
            body.extend_from_slice(part);
            Ok(part.len())
        })?;
        transfer.perform()?;
        drop(transfer);
        Ok(String::from_utf8(body).expect("the server sends text"))
    }
}

impl Client for Libcurl {
    fn wait(&mut self, fiber: usize) {
        assert_eq!(self.get("wait", fiber).unwrap(), format!("waited {fiber}"));
    }

    fn query(&mut self, number: usize) {
        assert_eq!(self.get("query", number).unwrap(), format!("number {number}"));
    }
}

#[test]
fn libcurl() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    crowd(&runtime, |fiber| {
        let mut client = Libcurl::new(&server);
        client.query(fiber);
        client
    });
}

/// The server answers later than libcurl wants to wait; the next request is none the worse for it.
#[test]
fn a_timeout_of_libcurl() {
    let watchdog = Watchdog::new();
    let server = server();
    let runtime = runtime();
    watchdog.show(&runtime);
    let connect = |fiber| {
        let mut client = Libcurl::new(&server);
        client.query(fiber);
        client
    };
    let lose_patience = |client: &mut Libcurl| {
        client.easy.timeout(TIMEOUT).unwrap();
        let error = client.get("late", 0).unwrap_err();
        assert!(error.is_operation_timedout(), "{error}");
    };
    impatient(&runtime, connect, lose_patience, |fiber, client| {
        client.easy.timeout(Duration::ZERO).unwrap();
        client.query(fiber);
    });
}
