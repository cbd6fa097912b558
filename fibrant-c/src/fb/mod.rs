//! `fibrant.h`: the runtime for C programs.
