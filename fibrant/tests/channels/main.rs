//! Channels and `select!`, among fibers of one worker, of several, among plain threads, and among all of them. `basics` has what one
//! alone can see, `delivery` what arrives and in which order, `limits` timeouts and deadlines, `disconnect` what happens when a side
//! goes; `syntax`, `choices`, `fairness` and `races` are about `select!`; `moments` has timer channels; `model` compares random
//! programs with a simple model.

#[path = "../common/patience.rs"]
mod patience;

// The tests were written against crossbeam-channel, whose semantics ours has. What they test is named here only.
mod channel {
    pub use crossbeam_channel::*;
}
pub(crate) use crossbeam_channel::select;

mod basics;
mod choices;
mod delivery;
mod disconnect;
mod fairness;
mod harness;
mod limits;
mod moments;
mod races;
mod syntax;
