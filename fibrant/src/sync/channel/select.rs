//! The macro `select!`: arms in the syntax of crossbeam-channel's, made into arms of a wait.
//!
//! It reads one arm after the other (`@read`), each of which gets a name of its own, by the hygiene of macros, and an index; then it opens
//! them (`@open`): one nested `match` each, so that what the channels' expressions have made lives until one was chosen. That one is
//! finished, and all are closed: when the body runs, no channel is borrowed any more, and a message that was not sent was not moved.

/// Waits for one of several channels, and does one thing: receives from one, or sends to one.
///
/// The syntax is that of crossbeam-channel:
///
/// - `recv(receiver) -> result => ..` receives a message; the result is that of [`recv`](crate::sync::channel::Receiver::recv).
/// - `send(sender, message) -> result => ..` sends a message; the result is that of [`send`](crate::sync::channel::Sender::send). The
///   message is evaluated when this arm was chosen, and only then.
/// - `default => ..` is taken if nothing else can be done at once, `default(timeout) => ..` if nothing else could be done in that time.
///
/// If several can be done, each is equally likely. A channel that is disconnected can be chosen, and gives its error. The macro has the
/// value of the body that was run; `break`, `continue`, `return` and `?` in it mean what they mean around it. In Go, this is `select`.
///
/// ```
/// use fibrant::sync::channel;
/// use std::time::Duration;
///
/// fibrant::run(|| {
///     let (sender, receiver) = channel::bounded(1);
///     let (stop, stopped) = channel::bounded::<()>(0);
///     fibrant::spawn(move || {
///         for number in 0.. {
///             fibrant::select! {
///                 send(sender, number) -> result => result.unwrap(),
///                 recv(stopped) -> _ => break, // its sender is gone
///             }
///         }
///     });
///     let first: Vec<i32> = receiver.iter().take(3).collect();
///     assert_eq!(first, [0, 1, 2]);
///     drop(stop);
///
///     let rest = fibrant::select! {
///         recv(channel::never::<i32>()) -> number => number.unwrap(),
///         default(Duration::from_millis(1)) => -1,
///     };
///     assert_eq!(rest, -1);
/// });
/// ```
#[macro_export]
macro_rules! select {
    ($($tokens:tt)*) => {
        $crate::__select!(@read [] [] (0) $($tokens)*)
    };
}

/// The rules of [`select!`](crate::select), out of sight.
#[doc(hidden)]
#[macro_export]
macro_rules! __select {
    // All arms were read: [arms] [default] (count).
    (@read [$($arm:tt)*] [$($default:tt)*] ($($index:tt)*)) => {
        $crate::__select!(@open [$($arm)*] [$($arm)*] [$($default)*] [])
    };

    // An arm that receives: its body ends with a comma, is a block, or is the last.
    (@read [$($arm:tt)*] $default:tt ($($index:tt)*)
        recv($channel:expr $(,)?) -> $result:pat => $body:expr, $($rest:tt)*) => {
        $crate::__select!(@read
            [$($arm)* (recv ($($index)*) arm ($channel) ($result) ($body))] $default ($($index)* + 1) $($rest)*)
    };
    (@read [$($arm:tt)*] $default:tt ($($index:tt)*)
        recv($channel:expr $(,)?) -> $result:pat => $body:block $($rest:tt)*) => {
        $crate::__select!(@read
            [$($arm)* (recv ($($index)*) arm ($channel) ($result) ($body))] $default ($($index)* + 1) $($rest)*)
    };
    (@read [$($arm:tt)*] $default:tt ($($index:tt)*)
        recv($channel:expr $(,)?) -> $result:pat => $body:expr) => {
        $crate::__select!(@read
            [$($arm)* (recv ($($index)*) arm ($channel) ($result) ($body))] $default ($($index)* + 1))
    };

    // An arm that sends.
    (@read [$($arm:tt)*] $default:tt ($($index:tt)*)
        send($channel:expr, $message:expr $(,)?) -> $result:pat => $body:expr, $($rest:tt)*) => {
        $crate::__select!(@read
            [$($arm)* (send ($($index)*) arm ($channel, $message) ($result) ($body))] $default ($($index)* + 1) $($rest)*)
    };
    (@read [$($arm:tt)*] $default:tt ($($index:tt)*)
        send($channel:expr, $message:expr $(,)?) -> $result:pat => $body:block $($rest:tt)*) => {
        $crate::__select!(@read
            [$($arm)* (send ($($index)*) arm ($channel, $message) ($result) ($body))] $default ($($index)* + 1) $($rest)*)
    };
    (@read [$($arm:tt)*] $default:tt ($($index:tt)*)
        send($channel:expr, $message:expr $(,)?) -> $result:pat => $body:expr) => {
        $crate::__select!(@read
            [$($arm)* (send ($($index)*) arm ($channel, $message) ($result) ($body))] $default ($($index)* + 1))
    };

    // What is done otherwise: at most one.
    (@read $arms:tt [] $index:tt default => $($rest:tt)*) => {
        $crate::__select!(@read $arms [] $index default() => $($rest)*)
    };
    (@read $arms:tt [] $index:tt default($($timeout:expr)? $(,)?) => $body:expr, $($rest:tt)*) => {
        $crate::__select!(@read $arms [($($timeout)?) ($body)] $index $($rest)*)
    };
    (@read $arms:tt [] $index:tt default($($timeout:expr)? $(,)?) => $body:block $($rest:tt)*) => {
        $crate::__select!(@read $arms [($($timeout)?) ($body)] $index $($rest)*)
    };
    (@read $arms:tt [] $index:tt default($($timeout:expr)? $(,)?) => $body:expr) => {
        $crate::__select!(@read $arms [($($timeout)?) ($body)] $index)
    };

    (@read $arms:tt [$($default:tt)+] $index:tt default $($rest:tt)*) => {
        compile_error!("select! can have one `default` only")
    };
    (@read $arms:tt $default:tt $index:tt $($rest:tt)*) => {
        compile_error!(concat!(
            "select! expects `recv(receiver) -> result => body`, `send(sender, message) -> result => body`, `default => body` ",
            "or `default(timeout) => body`, with commas between them, but found `", stringify!($($rest)*), "`"
        ))
    };

    // The arms are opened: [those that are left] [all] [default] [the names of those that are open].
    (@open [(recv $index:tt $arm:ident ($channel:expr) $pattern:tt $body:tt) $($left:tt)*] $all:tt $default:tt [$($open:ident)*]) => {
        match $channel {
            ref channel => {
                let mut $arm = $crate::sync::channel::arms::ReceiveArm::new(channel);
                $crate::__select!(@open [$($left)*] $all $default [$($open)* $arm])
            }
        }
    };
    (@open [(send $index:tt $arm:ident ($channel:expr, $message:expr) $pattern:tt $body:tt) $($left:tt)*]
        $all:tt $default:tt [$($open:ident)*]) => {
        match $channel {
            ref channel => {
                let mut $arm = $crate::sync::channel::arms::SendArm::late(channel);
                $crate::__select!(@open [$($left)*] $all $default [$($open)* $arm])
            }
        }
    };
    (@open [] [$(($kind:tt $index:tt $arm:ident $what:tt ($pattern:pat) ($body:expr)))*] $default:tt $open:tt) => {{
        let chosen = $crate::__select!(@choose $default $open);
        match chosen {
            $(
                ::core::option::Option::Some(index) if index == $index => {
                    let result = $crate::__select!(@finish $kind $arm $what);
                    $crate::__select!(@close $open);
                    let $pattern = result;
                    $body
                }
            )*
            _ => {
                $crate::__select!(@close $open);
                $crate::__select!(@otherwise $default)
            }
        }
    }};
    (@close [$($open:ident)*]) => { $($open.close();)* };

    (@choose [] [$($open:ident)*]) => { $crate::sync::channel::arms::select([$($open.arm()),*]) };
    (@choose [() $body:tt] [$($open:ident)*]) => { $crate::sync::channel::arms::try_select([$($open.arm()),*]) };
    (@choose [($timeout:expr) $body:tt] [$($open:ident)*]) => {
        $crate::sync::channel::arms::select_timeout([$($open.arm()),*], $timeout)
    };

    (@finish recv $arm:ident ($channel:expr)) => { $arm.finish() };
    (@finish send $arm:ident ($channel:expr, $message:expr)) => { $arm.finish($message) };

    (@otherwise []) => { ::core::unreachable!("it waits for ever") };
    (@otherwise [$timeout:tt ($body:expr)]) => { $body };
}
