//! The benchmarks of locks and channels on tokio: what `blocking` does for others, in the way of futures.

use std::array;
use std::future;
use std::hint::black_box;
use std::iter;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender};
use tokio::sync::{Barrier, Mutex, Notify, RwLock, Semaphore, mpsc};
use tokio::task;

use super::{Tokio, join_all};
use crate::blocking::work;
use crate::cases::{Bench, CAPACITY, Case, Hold, PARTY};
use crate::micro::Outcome;

/// The cases of a benchmark.
pub(super) fn cases(tokio: &Tokio, bench: Bench) -> Vec<Case<'_>> {
    match bench {
        Bench::Lock => locks(tokio),
        Bench::Channel => vec![
            Case::new("tokio bounded(1)", |n| {
                let ends = [mpsc::channel(1), mpsc::channel(1)];
                tokio.round_trips(round_trips(ends, n))
            }),
            Case::new("tokio unbounded", |n| {
                let ends = [mpsc::unbounded_channel(), mpsc::unbounded_channel()];
                tokio.round_trips(round_trips(ends, n))
            }),
        ],
        Bench::Throughput => vec![Case::new("tokio 1:1", |n| Ok(tokio.inside(stream(n))))],
        Bench::Contend => Hold::crowds()
            .map(|(crowd, hold)| {
                let name = format!("tokio mutex, {crowd} {}", hold.name());
                Case::new(name, move |n| Ok(tokio.inside(contend(crowd, hold, n))))
            })
            .collect(),
        Bench::Select => vec![
            Case::new("tokio ready", |n| Ok(tokio.inside(select_ready(n)))),
            Case::new("tokio waiting", |n| Ok(tokio.inside(select_waiting(n)))),
        ],
        Bench::Meet => vec![
            Case::new("tokio notify, there and back", |n| {
                tokio.round_trips(take_turns(n))
            }),
            Case::new(format!("tokio barrier, {PARTY} tasks"), |n| {
                Ok(tokio.inside(meet(n)))
            }),
            Case::new(format!("joins wait group, {PARTY} tasks"), |n| {
                Ok(tokio.inside(await_joins(n)))
            }),
        ],
        Bench::Moment => Vec::new(),
        Bench::Resume | Bench::Create | Bench::Fresh | Bench::Switch => Vec::new(),
    }
}

fn locks(tokio: &Tokio) -> Vec<Case<'_>> {
    vec![
        Case::new("tokio mutex", |n| {
            Ok(tokio.inside(async move {
                let lock = Mutex::new(0_u64);
                let start = Instant::now();
                for _ in 0..n {
                    *black_box(&lock).lock().await += 1;
                }
                start.elapsed()
            }))
        }),
        Case::new("tokio read", |n| {
            Ok(tokio.inside(async move {
                let lock = RwLock::new(0_u64);
                let start = Instant::now();
                for _ in 0..n {
                    black_box(*black_box(&lock).read().await);
                }
                start.elapsed()
            }))
        }),
        Case::new("tokio write", |n| {
            Ok(tokio.inside(async move {
                let lock = RwLock::new(0_u64);
                let start = Instant::now();
                for _ in 0..n {
                    *black_box(&lock).write().await += 1;
                }
                start.elapsed()
            }))
        }),
        Case::new("tokio semaphore", |n| {
            Ok(tokio.inside(async move {
                let semaphore = Semaphore::new(1);
                let start = Instant::now();
                for _ in 0..n {
                    drop(black_box(&semaphore).acquire().await.expect("open"));
                }
                start.elapsed()
            }))
        }),
    ]
}

/// The two kinds of channels that tokio has for this.
trait Ends: Send + Sync + 'static {
    type Receiver: Send + 'static;

    fn send(&self, value: u64) -> impl Future<Output = ()> + Send;
    fn recv(receiver: &mut Self::Receiver) -> impl Future<Output = Option<u64>> + Send;
}

impl Ends for Sender<u64> {
    type Receiver = Receiver<u64>;

    async fn send(&self, value: u64) {
        Sender::send(self, value).await.expect("a receiver");
    }

    async fn recv(receiver: &mut Receiver<u64>) -> Option<u64> {
        receiver.recv().await
    }
}

impl Ends for UnboundedSender<u64> {
    type Receiver = UnboundedReceiver<u64>;

    async fn send(&self, value: u64) {
        UnboundedSender::send(self, value).expect("a receiver");
    }

    async fn recv(receiver: &mut UnboundedReceiver<u64>) -> Option<u64> {
        receiver.recv().await
    }
}

async fn round_trips<S: Ends>(ends: [(S, S::Receiver); 2], n: usize) -> Duration {
    let [(to_pong, mut from_ping), (to_ping, mut from_pong)] = ends;
    let pong = task::spawn(async move {
        while let Some(value) = S::recv(&mut from_ping).await {
            to_ping.send(value + 1).await;
        }
    });
    let start = Instant::now();
    for value in 0..n as u64 {
        to_pong.send(value).await;
        assert_eq!(S::recv(&mut from_pong).await, Some(value + 1));
    }
    let time = start.elapsed();
    drop(to_pong);
    pong.await.expect("pong");
    time
}

async fn stream(n: usize) -> Duration {
    let n = n as u64;
    let (sender, mut receiver) = mpsc::channel::<u64>(CAPACITY);
    let start = Instant::now();
    let receive = task::spawn(async move {
        let mut sum = 0;
        while let Some(value) = receiver.recv().await {
            sum += value;
        }
        assert_eq!(sum, n * (n - 1) / 2);
    });
    let send = task::spawn(async move {
        for value in 0..n {
            sender.send(value).await.expect("a receiver");
        }
    });
    join_all([send, receive]).await;
    start.elapsed()
}

async fn contend(crowd: usize, hold: Hold, n: usize) -> Duration {
    let lock = Arc::new(Mutex::new(0_u64));
    let start = Instant::now();
    let rival = || {
        let lock = lock.clone();
        task::spawn(async move {
            for _ in 0..n / crowd {
                let mut guard = lock.lock().await;
                *guard += 1;
                match hold {
                    Hold::Short => work(),
                    Hold::Yield => task::yield_now().await,
                }
                drop(guard);
                work();
            }
        })
    };
    let handles: Vec<_> = iter::repeat_with(rival).take(crowd).collect();
    join_all(handles).await;
    let time = start.elapsed();
    assert_eq!(*lock.lock().await, n as u64);
    time
}

/// What `tokio::select!` does for two receivers, except that it starts with them in turn, not at random.
async fn select(receivers: &mut [Receiver<u64>; 2], turn: usize) -> Option<u64> {
    future::poll_fn(|context| {
        for index in [turn % 2, (turn + 1) % 2] {
            if let Poll::Ready(value) = receivers[index].poll_recv(context) {
                return Poll::Ready(value);
            }
        }
        Poll::Pending
    })
    .await
}

async fn select_ready(n: usize) -> Duration {
    let (to_first, first) = mpsc::channel(1);
    let (to_second, second) = mpsc::channel(1);
    let mut receivers = [first, second];
    let start = Instant::now();
    for value in 0..n {
        let sender = if value % 2 == 0 { &to_first } else { &to_second };
        sender.send(value as u64).await.expect("a receiver");
        // Half the time the first one asked has it.
        assert_eq!(select(&mut receivers, value / 2).await, Some(value as u64));
    }
    start.elapsed()
}

async fn select_waiting(n: usize) -> Duration {
    let share = (n / 2) as u64;
    let (to_first, first) = mpsc::channel(1);
    let (to_second, second) = mpsc::channel(1);
    let mut receivers = [first, second];
    let kept = [to_first, to_second];
    let start = Instant::now();
    let senders = kept.clone().map(|sender| {
        task::spawn(async move {
            for value in 0..share {
                sender.send(value).await.expect("a receiver");
            }
        })
    });
    let mut sum = 0;
    for turn in 0..n {
        sum += select(&mut receivers, turn).await.expect("senders");
    }
    join_all(senders).await;
    let time = start.elapsed();
    assert_eq!(sum, share * (share - 1));
    time
}

/// tokio has no condition. This is what is taken in its place: it keeps a notification for whoever waits next.
async fn take_turns(n: usize) -> Duration {
    let [to_pong, to_ping] = [(); 2].map(|()| Arc::new(Notify::new()));
    let [from_ping, from_pong] = [to_pong.clone(), to_ping.clone()];
    let start = Instant::now();
    let pong = task::spawn(async move {
        for _ in 0..n {
            from_ping.notified().await;
            to_ping.notify_one();
        }
    });
    for _ in 0..n {
        to_pong.notify_one();
        from_pong.notified().await;
    }
    join_all([pong]).await;
    start.elapsed()
}

async fn meet(n: usize) -> Duration {
    let barrier = Arc::new(Barrier::new(PARTY));
    let start = Instant::now();
    let one = || {
        let barrier = barrier.clone();
        task::spawn(async move {
            for _ in 0..n {
                barrier.wait().await;
            }
        })
    };
    join_all(iter::repeat_with(one).take(PARTY).collect::<Vec<_>>()).await;
    start.elapsed()
}

async fn await_joins(n: usize) -> Duration {
    let start = Instant::now();
    for _ in 0..n {
        let tasks: [_; PARTY] = array::from_fn(|_| task::spawn(async {}));
        join_all(tasks).await;
    }
    start.elapsed()
}

impl Tokio {
    /// Where [`Bench::Channel`] wants the two tasks: see `pingpong`.
    fn round_trips(&self, both: impl Future<Output = Duration> + Send + 'static) -> Outcome<Duration> {
        if self.runtime.metrics().num_workers() == 1 {
            return Ok(self.inside(both));
        }
        Ok(self.one_worker()?.block_on(both))
    }
}
