//! The micro-benchmarks and the servers on tokio's current-thread runtime.

use std::io;

use bench::micro::Args;
use bench::on_tokio::{self, Tokio};
use tokio::runtime::Builder;

const ONE: &str = "this runtime has one worker";

fn main() -> io::Result<()> {
    let args = Args::parse("tokio_ct");
    if let Some((service, port)) = args.server() {
        if args.workers != 1 {
            args.refuse(ONE);
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        return on_tokio::serve(runtime, service, port);
    }
    if args.workers != 1 {
        args.fail(ONE);
        return Ok(());
    }
    let peer = Tokio::new(1, |_| Builder::new_current_thread().enable_time().build())?;
    args.run(&peer);
    Ok(())
}
