//! What can go wrong with a fiber.

use super::State;
use std::error::Error;
use std::fmt;
use std::io;

/// Why a fiber could not be resumed.
///
/// ```
/// use fibrant::fiber::{Fiber, ResumeError, State};
///
/// let fiber = Fiber::new(|| {});
/// fiber.resume().unwrap();
/// let error = fiber.resume().unwrap_err();
/// assert!(matches!(error, ResumeError::State(State::Term)));
/// assert_eq!(error.to_string(), "cannot resume a fiber in state Term: it has ended; reset gives it something new to run");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ResumeError {
    /// It is in a state that cannot be resumed: it runs already, or it has ended.
    State(State),
    /// There is no stack for it: none to start on, or it shares one on which another waits. The fiber is as it was and can be resumed
    /// later.
    Stack(io::Error),
}

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResumeError::State(state) => {
                let reason = match state {
                    State::Running => "it runs already, or waits for a fiber that it has resumed",
                    State::Term => "it has ended; reset gives it something new to run",
                    State::Init | State::Ready => "it is being resumed",
                };
                write!(f, "cannot resume a fiber in state {state:?}: {reason}")
            }
            ResumeError::Stack(error) => write!(f, "no stack for the fiber: {error}"),
        }
    }
}

impl Error for ResumeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ResumeError::State(_) => None,
            ResumeError::Stack(error) => Some(error),
        }
    }
}

impl From<ResumeError> for io::Error {
    /// So that `?` works in functions that return [`io::Result`].
    fn from(error: ResumeError) -> io::Error {
        match error {
            ResumeError::Stack(error) => error,
            state => io::Error::other(state),
        }
    }
}

/// Why a fiber could not be reset: it has started and not ended.
///
/// ```
/// use fibrant::fiber::{self, Fiber, State};
///
/// let fiber = Fiber::new(fiber::suspend);
/// fiber.resume().unwrap();
/// let error = fiber.reset(|| {}).unwrap_err();
/// assert_eq!(error.state(), State::Ready);
/// ```
#[derive(Debug)]
pub struct ResetError(pub(super) State);

impl ResetError {
    /// The state that the fiber is in: [`Ready`](State::Ready) or [`Running`](State::Running).
    ///
    /// ```
    /// # use fibrant::fiber::{self, Fiber, State};
    /// # let fiber = Fiber::new(fiber::suspend);
    /// # fiber.resume().unwrap();
    /// assert_eq!(fiber.reset(|| {}).unwrap_err().state(), State::Ready);
    /// ```
    pub fn state(&self) -> State {
        self.0
    }
}

impl fmt::Display for ResetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot reset a fiber in state {:?}: only one that has not started (Init) or has ended (Term) can be",
            self.0
        )
    }
}

impl Error for ResetError {}
