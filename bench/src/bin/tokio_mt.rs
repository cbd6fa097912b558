//! The micro-benchmarks on tokio's multi-threaded runtime.

use std::io;

use bench::micro::Args;
use bench::on_tokio::Tokio;
use tokio::runtime::Builder;

fn main() -> io::Result<()> {
    let args = Args::parse("tokio_mt");
    let peer = Tokio::new(args.workers, |workers| {
        Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_time()
            .build()
    })?;
    args.run(&peer);
    Ok(())
}
