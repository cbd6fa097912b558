//! libco's functions.
