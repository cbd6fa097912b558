//! The micro-benchmarks and the servers on tokio's multi-threaded runtime.

use std::io;

use bench::micro::Args;
use bench::on_tokio::{self, Tokio};
use tokio::runtime::Builder;

fn main() -> io::Result<()> {
    let args = Args::parse("tokio_mt");
    if let Some((service, port)) = args.server() {
        let runtime = Builder::new_multi_thread()
            .worker_threads(args.workers)
            .enable_all()
            .build()?;
        return on_tokio::serve(runtime, service, port);
    }
    let peer = Tokio::new(args.workers, |workers| {
        Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_time()
            .build()
    })?;
    args.run(&peer);
    Ok(())
}
