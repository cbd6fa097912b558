//! The locks and channels of std among 10,000 fibers: `cargo run --release --example chain`. It is the README's second program.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

fn main() {
    let visits = Arc::new(Mutex::new(0));
    let (first, mut inbox) = mpsc::channel();
    for number in 1..=10_000 {
        let (outbox, next) = mpsc::channel();
        let visits = Arc::clone(&visits);
        fibrant::spawn(move || {
            // Waits for its neighbour.
            for word in inbox {
                // Waits for whoever has it.
                let mut visits = visits.lock().unwrap();
                *visits += 1;
                if number % 2_500 == 0 {
                    thread::sleep(Duration::from_millis(1)); // and still has the lock
                    println!("{word:?} is at fiber {number} after {visits} visits");
                }
                outbox.send(word).unwrap();
            }
        });
        inbox = next;
    }
    for word in ["locks", "and", "channels"] {
        first.send(word).unwrap();
    }
    drop(first);
    let words: Vec<_> = inbox.iter().collect();
    println!("{words:?} after {} visits", visits.lock().unwrap());
}
