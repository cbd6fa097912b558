//! Hooks, differentially: each body runs in a thread, where nothing is hooked, and in a fiber, and must come to the same. Each
//! names the point of the contract that it is about, and says whether the fiber has to wait in it.
//!
//! There is a file for each part of the contract; `other` has what cannot be compared with a thread.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/secret.rs"]
mod secret;
#[path = "../common/waiting.rs"]
mod waiting;
#[macro_use]
mod support;

mod batches;
mod blocking;
mod calls;
mod connections;
mod futexes;
mod handlers;
mod identity;
mod locks;
mod other;
mod signals;
mod streams;
mod time;
mod transfers;
mod waits;

/// The points of the contract.
const POINTS: std::ops::RangeInclusive<u32> = 1..=29;

/// How many bodies a point needs.
const ENOUGH: usize = 3;

/// How many bodies there are at least.
const LEAST: usize = 200;

/// The files, each with its points and its bodies.
const PARTS: [(std::ops::RangeInclusive<u32>, &[&str]); 13] = [
    (1..=7, identity::BODIES),
    (8..=10, blocking::BODIES),
    (11..=15, transfers::BODIES),
    (16..=20, time::BODIES),
    (21..=22, connections::BODIES),
    (23..=25, waits::BODIES),
    (9..=21, batches::BODIES),
    (2..=28, calls::BODIES),
    (2..=26, streams::BODIES),
    (26..=26, handlers::BODIES),
    (26..=28, signals::BODIES),
    (29..=29, locks::BODIES),
    (29..=29, futexes::BODIES),
];

/// The point that a body's name begins with.
fn point(name: &str) -> Option<u32> {
    name.strip_prefix('p')?.get(..2)?.parse().ok()
}

#[test]
fn every_body_names_a_point_of_its_part() {
    for (points, bodies) in &PARTS {
        for name in bodies.iter().filter(|name| !name.is_empty()) {
            assert!(point(name).is_some_and(|point| points.contains(&point)), "{name}");
        }
    }
}

#[test]
fn every_point_has_enough_bodies() {
    let all: Vec<u32> = PARTS
        .iter()
        .flat_map(|(_, bodies)| bodies.iter().filter_map(|name| point(name)))
        .collect();
    assert!(all.len() >= LEAST, "{} bodies", all.len());
    let missing: Vec<u32> = POINTS
        .filter(|point| all.iter().filter(|&other| other == point).count() < ENOUGH)
        .collect();
    assert!(missing.is_empty(), "points with too few bodies: {missing:?}");
}
