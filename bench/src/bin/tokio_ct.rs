//! The micro-benchmarks on tokio's current-thread runtime.

use std::io;

use bench::micro::Args;
use bench::on_tokio::Tokio;
use tokio::runtime::Builder;

fn main() -> io::Result<()> {
    let args = Args::parse("tokio_ct");
    if args.workers != 1 {
        args.fail("this runtime has one worker");
        return Ok(());
    }
    let peer = Tokio::new(1, |_| Builder::new_current_thread().enable_time().build())?;
    args.run(&peer);
    Ok(())
}
