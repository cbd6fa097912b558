//! What fibrant's channels can and others cannot: `cancel` has waits that are cancelled or run out of time, `kinds` fibers of all kinds
//! and odd places to wait in, `dump` what the dump says of those who wait, `late` messages that take their time or are not
//! made after all, `strict` where more is promised than crossbeam does.

mod cancel;
mod dump;
mod kinds;
mod late;
mod strict;
