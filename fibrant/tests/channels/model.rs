//! Random programs: one alone, compared step by step with a queue and two counts; and several at once, of which only some things are
//! certain.

use crate::channel::*;
use crate::harness::*;
use crate::patience::{Census, Counted, Watchdog};
use crate::select;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A message that one who is alone sends: its number, and a count of those that are there.
type Numbered = (usize, Counted);

/// What one alone does. Channels and ends are chosen by numbers, modulo how many there are.
#[derive(Clone, Copy, Debug)]
enum Step {
    TrySend(usize),
    /// With a limit that is over at once.
    SendTimeout(usize),
    SendDeadline(usize),
    /// Only done where it need not wait.
    Send(usize),
    TryReceive(usize),
    ReceiveTimeout(usize),
    ReceiveDeadline(usize),
    Receive(usize),
    TryIterate(usize),
    CloneSender(usize),
    CloneReceiver(usize),
    DropSender(usize),
    DropReceiver(usize),
    /// Looks at the figures.
    Look(usize),
    /// Chooses among receiving from one, sending to another, and doing nothing.
    Choose(usize, usize),
    /// The same with three arms, one of which has a limit that is over at once.
    ChooseOfThree(usize, usize, usize),
    /// Compares the ends of two.
    Compare(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any = || 0..100_usize;
    prop_oneof![
        6 => any().prop_map(Step::TrySend),
        2 => any().prop_map(Step::SendTimeout),
        1 => any().prop_map(Step::SendDeadline),
        3 => any().prop_map(Step::Send),
        4 => any().prop_map(Step::TryReceive),
        2 => any().prop_map(Step::ReceiveTimeout),
        1 => any().prop_map(Step::ReceiveDeadline),
        3 => any().prop_map(Step::Receive),
        1 => any().prop_map(Step::TryIterate),
        1 => any().prop_map(Step::CloneSender),
        1 => any().prop_map(Step::CloneReceiver),
        1 => any().prop_map(Step::DropSender),
        1 => any().prop_map(Step::DropReceiver),
        2 => any().prop_map(Step::Look),
        4 => (any(), any()).prop_map(|(one, other)| Step::Choose(one, other)),
        4 => (any(), any(), any()).prop_map(|(one, two, three)| Step::ChooseOfThree(one, two, three)),
        1 => (any(), any()).prop_map(|(one, other)| Step::Compare(one, other)),
    ]
}

fn flavour() -> impl Strategy<Value = Flavour> {
    prop_oneof![
        2 => Just(Flavour::Unbounded),
        2 => Just(RENDEZVOUS),
        4 => (1..6_usize).prop_map(Flavour::Bounded),
    ]
}

/// A channel, and what is expected of it.
struct Pair {
    flavour: Flavour,
    senders: Vec<Sender<Numbered>>,
    receivers: Vec<Receiver<Numbered>>,
    /// What is in it.
    queue: VecDeque<usize>,
}

/// What a send or a receive would do.
#[derive(PartialEq, Debug)]
enum Outcome<T> {
    Done(T),
    WouldWait,
    Disconnected,
}

impl Pair {
    fn new(flavour: Flavour) -> Pair {
        let (sender, receiver) = flavour.channel();
        Pair {
            flavour,
            senders: vec![sender],
            receivers: vec![receiver],
            queue: VecDeque::new(),
        }
    }

    fn send_outcome(&self) -> Outcome<()> {
        match self.receivers.is_empty() {
            true => Outcome::Disconnected,
            false if self.flavour.holds(self.queue.len() + 1) => Outcome::Done(()),
            false => Outcome::WouldWait,
        }
    }

    fn receive_outcome(&self) -> Outcome<usize> {
        match self.queue.front() {
            Some(&number) => Outcome::Done(number),
            None if self.senders.is_empty() => Outcome::Disconnected,
            None => Outcome::WouldWait,
        }
    }

    /// A sender, if there is one.
    fn sender(&self, index: usize) -> Option<&Sender<Numbered>> {
        self.senders.get(index % self.senders.len().max(1))
    }

    fn receiver(&self, index: usize) -> Option<&Receiver<Numbered>> {
        self.receivers.get(index % self.receivers.len().max(1))
    }

    /// What was received is what was expected, and is no longer there.
    fn note_received(&mut self, outcome: Outcome<usize>) -> Result<(), TestCaseError> {
        prop_assert_eq!(&outcome, &self.receive_outcome());
        if let Outcome::Done(_) = outcome {
            self.queue.pop_front();
        }
        Ok(())
    }

    fn note_sent(&mut self, number: usize, outcome: Outcome<usize>) -> Result<(), TestCaseError> {
        let expected = self.send_outcome();
        match outcome {
            Outcome::Done(back) => {
                prop_assert_eq!(back, number);
                prop_assert_eq!(expected, Outcome::Done(()));
                self.queue.push_back(number);
            }
            Outcome::WouldWait => prop_assert_eq!(expected, Outcome::WouldWait),
            Outcome::Disconnected => prop_assert_eq!(expected, Outcome::Disconnected),
        }
        Ok(())
    }

    fn look(&self) -> Result<(), TestCaseError> {
        let figures = |len, is_empty, is_full, capacity| (len, is_empty, is_full, capacity);
        let count = self.queue.len();
        let room = self.flavour.room();
        let expected = figures(count, count == 0, room == Some(count), room);
        for sender in &self.senders {
            let seen = figures(
                sender.len(),
                sender.is_empty(),
                sender.is_full(),
                sender.capacity(),
            );
            // What nobody can receive may be dropped before the senders go, or with them.
            if !self.receivers.is_empty() || count == 0 {
                prop_assert_eq!(seen, expected);
            }
        }
        for receiver in &self.receivers {
            let seen = figures(
                receiver.len(),
                receiver.is_empty(),
                receiver.is_full(),
                receiver.capacity(),
            );
            prop_assert_eq!(seen, expected);
        }
        Ok(())
    }
}

/// What one alone has.
struct Alone {
    pairs: Vec<Pair>,
    census: Census,
    next: usize,
}

/// What a send gave back must be what was sent.
fn given_back(number: usize, (back, _): Numbered) -> Result<(), TestCaseError> {
    prop_assert_eq!(back, number);
    Ok(())
}

impl Alone {
    fn pair(&mut self, index: usize) -> &mut Pair {
        let count = self.pairs.len();
        &mut self.pairs[index % count]
    }

    fn message(&mut self) -> Numbered {
        self.next += 1;
        (self.next, self.census.count())
    }

    fn send(
        &mut self,
        index: usize,
        f: impl FnOnce(&Sender<Numbered>, Numbered) -> Result<(), SendTimeoutError<Numbered>>,
    ) -> Result<(), TestCaseError> {
        let message = self.message();
        let number = message.0;
        let pair = self.pair(index);
        let Some(sender) = pair.sender(index) else {
            return Ok(());
        };
        let outcome = match f(sender, message) {
            Ok(()) => Outcome::Done(number),
            Err(SendTimeoutError::Timeout(back)) => {
                given_back(number, back)?;
                Outcome::WouldWait
            }
            Err(SendTimeoutError::Disconnected(back)) => {
                given_back(number, back)?;
                Outcome::Disconnected
            }
        };
        pair.note_sent(number, outcome)
    }

    fn receive(
        &mut self,
        index: usize,
        f: impl FnOnce(&Receiver<Numbered>) -> Result<Numbered, RecvTimeoutError>,
    ) -> Result<(), TestCaseError> {
        let pair = self.pair(index);
        let Some(receiver) = pair.receiver(index) else {
            return Ok(());
        };
        let outcome = match f(receiver) {
            Ok((number, _)) => Outcome::Done(number),
            Err(RecvTimeoutError::Timeout) => Outcome::WouldWait,
            Err(RecvTimeoutError::Disconnected) => Outcome::Disconnected,
        };
        pair.note_received(outcome)
    }

    /// Chooses among arms whose channels may be the same. Whatever is chosen must be possible, and if nothing is, nothing must be.
    fn choose(&mut self, from: [usize; 2], to: usize, three: bool) -> Result<(), TestCaseError> {
        #[derive(PartialEq, Debug)]
        enum Chosen {
            Received(usize, Outcome<usize>),
            Sent(Outcome<usize>),
            Nothing,
        }
        let message = self.message();
        let number = message.0;
        let (from, to) = (from.map(|index| index % self.pairs.len()), to % self.pairs.len());
        let [one, two] = from.map(|index| self.pairs[index].receiver(index).cloned());
        let sender = self.pairs[to].sender(to).cloned();
        let (Some(one), Some(two), Some(sender)) = (one, two, sender) else {
            return Ok(());
        };
        let received = |index: usize, result: Result<Numbered, RecvError>| match result {
            Ok((number, _)) => Chosen::Received(index, Outcome::Done(number)),
            Err(RecvError) => Chosen::Received(index, Outcome::Disconnected),
        };
        let sent = |result: Result<(), SendError<Numbered>>| match result {
            Ok(()) => Chosen::Sent(Outcome::Done(number)),
            Err(SendError((back, _))) => {
                assert_eq!(back, number);
                Chosen::Sent(Outcome::Disconnected)
            }
        };
        let chosen = if three {
            select! {
                recv(one) -> result => received(from[0], result),
                send(sender, message) -> result => sent(result),
                recv(two) -> result => received(from[1], result),
                default(Duration::ZERO) => Chosen::Nothing,
            }
        } else {
            select! {
                recv(one) -> result => received(from[0], result),
                send(sender, message) -> result => sent(result),
                default => Chosen::Nothing,
            }
        };
        match chosen {
            Chosen::Received(index, outcome) => self.pairs[index].note_received(outcome),
            Chosen::Sent(outcome) => self.pairs[to].note_sent(number, outcome),
            Chosen::Nothing => {
                prop_assert_eq!(self.pairs[from[0]].receive_outcome(), Outcome::WouldWait);
                prop_assert_eq!(self.pairs[to].send_outcome(), Outcome::WouldWait);
                if three {
                    prop_assert_eq!(self.pairs[from[1]].receive_outcome(), Outcome::WouldWait);
                }
                Ok(())
            }
        }
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        let past = Instant::now();
        match step {
            Step::TrySend(index) => self.send(index, |sender, message| {
                sender.try_send(message).map_err(|error| match error {
                    TrySendError::Full(back) => SendTimeoutError::Timeout(back),
                    TrySendError::Disconnected(back) => SendTimeoutError::Disconnected(back),
                })
            }),
            Step::SendTimeout(index) => self.send(index, |sender, message| {
                sender.send_timeout(message, Duration::ZERO)
            }),
            Step::SendDeadline(index) => {
                self.send(index, |sender, message| sender.send_deadline(message, past))
            }
            Step::Send(index) if self.pair(index).send_outcome() == Outcome::WouldWait => Ok(()),
            Step::Send(index) => self.send(index, |sender, message| {
                sender.send(message).map_err(SendTimeoutError::from)
            }),
            Step::TryReceive(index) => self.receive(index, |receiver| {
                receiver.try_recv().map_err(|error| match error {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                })
            }),
            Step::ReceiveTimeout(index) => {
                self.receive(index, |receiver| receiver.recv_timeout(Duration::ZERO))
            }
            Step::ReceiveDeadline(index) => self.receive(index, |receiver| receiver.recv_deadline(past)),
            Step::Receive(index) if self.pair(index).receive_outcome() == Outcome::WouldWait => Ok(()),
            Step::Receive(index) => {
                self.receive(index, |receiver| receiver.recv().map_err(RecvTimeoutError::from))
            }
            Step::TryIterate(index) => {
                let pair = self.pair(index);
                if let Some(receiver) = pair.receiver(index) {
                    let all: Vec<_> = receiver.try_iter().map(|(number, _)| number).collect();
                    let expected: Vec<_> = pair.queue.drain(..).collect();
                    prop_assert_eq!(all, expected);
                }
                Ok(())
            }
            Step::CloneSender(index) => {
                let pair = self.pair(index);
                let clone = pair.sender(index).cloned();
                pair.senders.extend(clone);
                Ok(())
            }
            Step::CloneReceiver(index) => {
                let pair = self.pair(index);
                let clone = pair.receiver(index).cloned();
                pair.receivers.extend(clone);
                Ok(())
            }
            Step::DropSender(index) => {
                let pair = self.pair(index);
                if !pair.senders.is_empty() {
                    let place = index % pair.senders.len();
                    drop(pair.senders.swap_remove(place));
                }
                Ok(())
            }
            Step::DropReceiver(index) => {
                let pair = self.pair(index);
                if !pair.receivers.is_empty() {
                    let place = index % pair.receivers.len();
                    drop(pair.receivers.swap_remove(place));
                }
                Ok(())
            }
            Step::Look(index) => self.pair(index).look(),
            Step::Choose(from, to) => self.choose([from, from], to, false),
            Step::ChooseOfThree(one, to, two) => self.choose([one, two], to, true),
            Step::Compare(one, other) => {
                let count = self.pairs.len();
                let (one, other) = (one % count, other % count);
                let (first, second) = (&self.pairs[one], &self.pairs[other]);
                if let (Some(a), Some(b)) = (first.sender(0), second.sender(1)) {
                    prop_assert_eq!(a.same_channel(b), one == other);
                }
                if let (Some(a), Some(b)) = (first.receiver(0), second.receiver(1)) {
                    prop_assert_eq!(a.same_channel(b), one == other);
                }
                Ok(())
            }
        }
    }
}

/// Runs a program alone. Afterwards everything must have been dropped.
fn run_alone(flavours: Vec<Flavour>, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut alone = Alone {
        pairs: flavours.into_iter().map(Pair::new).collect(),
        census: Census::default(),
        next: 0,
    };
    for step in steps {
        alone.take(step)?;
        alone.pairs.iter().try_for_each(Pair::look)?;
        // Messages are where they can be received, or nowhere; those that nobody can receive may be somewhere still.
        let reachable = |pair: &&Pair| !pair.receivers.is_empty();
        let least: usize = alone
            .pairs
            .iter()
            .filter(reachable)
            .map(|pair| pair.queue.len())
            .sum();
        let most: usize = alone.pairs.iter().map(|pair| pair.queue.len()).sum();
        let there = alone.census.made() - alone.census.dropped();
        prop_assert!(
            (least..=most).contains(&there),
            "{} to {}, not {}",
            least,
            most,
            there
        );
        // Where both sides are gone there is nothing.
        for pair in &mut alone.pairs {
            if pair.senders.is_empty() && pair.receivers.is_empty() {
                pair.queue.clear();
            }
        }
    }
    let census = alone.census.clone();
    drop(alone);
    prop_assert_eq!(census.made(), census.dropped());
    Ok(())
}

#[test]
fn one_alone_sees_what_the_model_says() {
    alone(|| {
        let mut runner = TestRunner::new(Config {
            cases: 100,
            failure_persistence: None,
            ..Config::default()
        });
        let programs = (
            proptest::collection::vec(flavour(), 1..4),
            proptest::collection::vec(step(), 1..80),
        );
        runner
            .run(&programs, |(flavours, steps)| run_alone(flavours, steps))
            .unwrap();
    });
}

/// What one of several does with the channels that it has. Where it waits without a limit, it waits for all of them at once: so there is
/// always somebody who can go on.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Does something with one of them, without waiting.
    Try(usize),
    /// Waits for one of them, for so many microseconds.
    Limited(usize, u64),
    /// Waits for any of them, for so many microseconds.
    ChooseLimited(u64),
    /// Waits for any of them, for as long as it takes.
    Choose,
    /// Lets go of one of them.
    Leave(usize),
    Pause(u64),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Role {
    Sends,
    Receives,
    /// Has both ends, and always a limit: it could be the only one that it waits for.
    Both,
    /// Receives from one until there are no senders.
    Drains,
}

/// One of several: what it is, which channels it has, and what it does.
#[derive(Clone, Debug)]
struct Part {
    role: Role,
    channels: [bool; 3],
    acts: Vec<Act>,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..3_usize).prop_map(Act::Try),
        3 => (0..3_usize, 0..300_u64).prop_map(|(index, limit)| Act::Limited(index, limit)),
        3 => (0..300_u64).prop_map(Act::ChooseLimited),
        5 => Just(Act::Choose),
        1 => (0..3_usize).prop_map(Act::Leave),
        1 => (0..200_u64).prop_map(Act::Pause),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    let role = prop_oneof![
        4 => Just(Role::Sends),
        3 => Just(Role::Receives),
        1 => Just(Role::Both),
        1 => Just(Role::Drains),
    ];
    let acts = proptest::collection::vec(act(), 1..25);
    (role, any::<[bool; 3]>(), acts).prop_map(|(role, channels, acts)| Part { role, channels, acts })
}

/// A message of one of several: its channel, who has sent it, its number there.
struct Letter {
    channel: usize,
    message: Message,
    _counted: Counted,
}

/// What has become of letters.
#[derive(Default)]
struct Record {
    sent: HashSet<(usize, usize, usize)>,
    received: Vec<(usize, usize, usize)>,
}

/// One of several, as it goes on.
struct Actor {
    me: usize,
    senders: [Option<Sender<Letter>>; 3],
    receivers: [Option<Receiver<Letter>>; 3],
    /// The number of the next letter.
    next: usize,
    /// The last letter from each sender, in each channel.
    last: HashMap<(usize, usize), usize>,
    record: Record,
    census: Census,
}

impl Actor {
    fn letter(&self, channel: usize) -> Letter {
        Letter {
            channel,
            message: Message {
                sender: self.me,
                number: self.next,
            },
            _counted: self.census.count(),
        }
    }

    /// Notes that the next letter was sent, or that nobody receives there any more.
    fn note_sent(&mut self, channel: usize, result: Result<(), Letter>) {
        match result {
            Ok(()) => {
                self.record.sent.insert((channel, self.me, self.next));
                self.next += 1;
            }
            Err(back) => {
                let own = (self.me, self.next, channel);
                assert_eq!((back.message.sender, back.message.number, back.channel), own);
                self.senders[channel] = None;
            }
        }
    }

    fn note_received(&mut self, channel: usize, result: Result<Letter, RecvError>) {
        match result {
            Ok(letter) => {
                let Message { sender, number } = letter.message;
                assert_eq!(letter.channel, channel, "it came out of another channel");
                self.record.received.push((channel, sender, number));
                let last = self.last.insert((channel, sender), number);
                assert!(last < Some(number), "{number} comes after {last:?}");
            }
            Err(RecvError) => self.receivers[channel] = None,
        }
    }

    fn is_done(&self) -> bool {
        self.senders.iter().all(Option::is_none) && self.receivers.iter().all(Option::is_none)
    }

    /// Does something with one of them, within so much time.
    fn one(&mut self, index: usize, limit: Option<Duration>) {
        if let Some(sender) = &self.senders[index] {
            let letter = self.letter(index);
            let result = match limit {
                None => sender.try_send(letter).map_err(|error| match error {
                    TrySendError::Full(back) => SendTimeoutError::Timeout(back),
                    TrySendError::Disconnected(back) => SendTimeoutError::Disconnected(back),
                }),
                Some(limit) => sender.send_timeout(letter, limit),
            };
            match result {
                Ok(()) => self.note_sent(index, Ok(())),
                Err(SendTimeoutError::Timeout(_)) => {}
                Err(SendTimeoutError::Disconnected(back)) => self.note_sent(index, Err(back)),
            }
        } else if let Some(receiver) = &self.receivers[index] {
            let result = match limit {
                None => receiver.try_recv().map_err(|error| match error {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                }),
                Some(limit) => receiver.recv_timeout(limit),
            };
            match result {
                Ok(letter) => self.note_received(index, Ok(letter)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.note_received(index, Err(RecvError)),
            }
        }
    }

    /// Does something with any of them, within so much time if there is a limit.
    fn any(&mut self, limit: Option<Duration>) {
        enum Chosen {
            Sent(usize, Result<(), SendError<Letter>>),
            Received(usize, Result<Letter, RecvError>),
            Late,
        }
        if self.is_done() {
            return;
        }
        let (nowhere, _keeps) = bounded(0);
        let nothing = never();
        let [a, b, c] = self
            .senders
            .each_ref()
            .map(|sender| sender.as_ref().unwrap_or(&nowhere));
        let [d, e, f] = self
            .receivers
            .each_ref()
            .map(|receiver| receiver.as_ref().unwrap_or(&nothing));
        let chosen = match limit {
            None => select! {
                send(a, self.letter(0)) -> result => Chosen::Sent(0, result),
                recv(d) -> result => Chosen::Received(0, result),
                send(b, self.letter(1)) -> result => Chosen::Sent(1, result),
                recv(e) -> result => Chosen::Received(1, result),
                send(c, self.letter(2)) -> result => Chosen::Sent(2, result),
                recv(f) -> result => Chosen::Received(2, result),
            },
            Some(limit) => select! {
                send(a, self.letter(0)) -> result => Chosen::Sent(0, result),
                recv(d) -> result => Chosen::Received(0, result),
                send(b, self.letter(1)) -> result => Chosen::Sent(1, result),
                recv(e) -> result => Chosen::Received(1, result),
                send(c, self.letter(2)) -> result => Chosen::Sent(2, result),
                recv(f) -> result => Chosen::Received(2, result),
                default(limit) => Chosen::Late,
            },
        };
        match chosen {
            Chosen::Sent(channel, result) => self.note_sent(channel, result.map_err(|error| error.0)),
            Chosen::Received(channel, result) => self.note_received(channel, result),
            Chosen::Late => {}
        }
    }

    fn act(&mut self, role: Role, act: Act) {
        match act {
            Act::Try(index) => self.one(index, None),
            Act::Limited(index, limit) => self.one(index, Some(us(limit))),
            Act::ChooseLimited(limit) => self.any(Some(us(limit))),
            Act::Choose => self.any((role == Role::Both).then_some(us(100))),
            Act::Leave(index) => {
                self.senders[index] = None;
                self.receivers[index] = None;
            }
            Act::Pause(time) => fibrant::sleep(us(time)),
        }
    }

    fn run(mut self, part: &Part) -> Record {
        if part.role == Role::Drains {
            while !self.is_done() {
                self.any(None);
            }
        }
        part.acts.iter().for_each(|&act| self.act(part.role, act));
        self.record
    }
}

/// Runs all parts in this place. All must end; every letter is received once, in its sender's order, or was left in a channel from which
/// nobody receives any more.
fn run_together(place: &Place, flavours: [Flavour; 3], parts: Vec<Part>) -> Result<(), TestCaseError> {
    let census = Census::default();
    let channels = flavours.map(Flavour::channel::<Letter>);
    let has = |part: &Part, index: usize, roles: &[Role]| part.channels[index] && roles.contains(&part.role);
    let (sends, receives) = (
        [Role::Sends, Role::Both].as_slice(),
        [Role::Receives, Role::Both, Role::Drains].as_slice(),
    );
    let actors: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(me, part)| {
            let actor = Actor {
                me,
                senders: std::array::from_fn(|index| {
                    has(part, index, sends).then(|| channels[index].0.clone())
                }),
                receivers: std::array::from_fn(|index| {
                    has(part, index, receives).then(|| channels[index].1.clone())
                }),
                next: 0,
                last: HashMap::new(),
                record: Record::default(),
                census: census.clone(),
            };
            (actor, part.clone())
        })
        .collect();
    drop(channels);
    let all = Arc::new(Mutex::new(Record::default()));
    let members: Vec<_> = actors
        .into_iter()
        .map(|(actor, part)| {
            let all = Arc::clone(&all);
            place.spawn(move || {
                let record = actor.run(&part);
                let mut all = all.lock().unwrap();
                all.sent.extend(record.sent);
                all.received.extend(record.received);
            })
        })
        .collect();
    join_all(members);
    prop_assert_eq!(census.made(), census.dropped());
    let all = all.lock().unwrap();
    let received: HashSet<_> = all.received.iter().copied().collect();
    prop_assert_eq!(received.len(), all.received.len(), "one came twice");
    prop_assert!(received.is_subset(&all.sent), "one came that was not sent");
    for (index, flavour) in flavours.into_iter().enumerate() {
        let left = all
            .sent
            .difference(&received)
            .filter(|letter| letter.0 == index)
            .count();
        let is_drained = parts.iter().any(|part| has(part, index, &[Role::Drains]));
        prop_assert!(left == 0 || !is_drained, "{} are lost", left);
        prop_assert!(flavour.holds(left), "{} are lost", left);
    }
    Ok(())
}

#[test]
fn several_at_once_lose_nothing_and_end() {
    let watchdog = Watchdog::new();
    let places = KINDS.map(|kind| Place::new(kind, &watchdog));
    let mut runner = TestRunner::new(Config {
        cases: 150,
        failure_persistence: None,
        // Another run may not show the same.
        max_shrink_iters: 200,
        ..Config::default()
    });
    let programs = (
        0..places.len(),
        [flavour(), flavour(), flavour()],
        proptest::collection::vec(part(), 2..7),
    );
    runner
        .run(&programs, |(place, flavours, parts)| {
            watchdog.note(format!("{:?} {flavours:?} {parts:?}", KINDS[place]));
            run_together(&places[place], flavours, parts)
        })
        .unwrap();
    places.into_iter().for_each(Place::stop);
}
