//! Channels and `select!`, among fibers of one worker, of several, among plain threads, and among all of them. `basics` has what one
//! alone can see, `delivery` what arrives and in which order, `limits` timeouts and deadlines, `disconnect` what happens when a side
//! goes; `syntax`, `choices`, `fairness` and `races` are about `select!`; `moments` has timer channels; `model` compares random
//! programs with a simple model; `own` has what crossbeam-channel's cannot: cancelling, light fibers, dumps.

#[path = "../common/patience.rs"]
mod patience;

// What is tested is named here only: the same tests pass with crossbeam-channel's in their place, whose semantics ours are; `own` aside.
pub(crate) use fibrant::select;
mod channel {
    pub use fibrant::sync::channel::*;
}

mod basics;
mod choices;
mod delivery;
mod disconnect;
mod fairness;
mod harness;
mod limits;
mod model;
mod moments;
mod own;
mod races;
mod syntax;
