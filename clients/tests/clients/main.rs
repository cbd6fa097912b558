//! Client libraries in fibers, against real servers: two hundred connections on one worker wait at the same time.
//!
//! One module for each server. A test starts the server that it needs, so tests may run at the same time; but the limits are about
//! how long fibers take, so the project's test command runs one after another.

#[path = "../../../fibrant/tests/common/patience.rs"]
mod patience;

mod mariadb_server;
mod memcached_server;
mod nginx_server;
mod openssl_server;
mod pool;
mod postgres_server;
mod redis_server;
mod tokio_inside;
