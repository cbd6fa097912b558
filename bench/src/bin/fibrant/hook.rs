//! What a hooked call costs when it is ready: the C library's own function, next to ours outside fibers and in one.
//!
//! `main` calls it. All three variants run on one thread, in short rounds that take turns: so what the machine does meanwhile hits all
//! of them.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use bench::micro::Args;
use fibrant::runtime::Runtime;

/// How many calls a round makes. What is sent in one has to fit into the kernel's buffers.
const CALLS: usize = 200;

/// How many calls there are of each kind, unless the command line says so.
const ALL_CALLS: usize = 30_000;

/// The bytes that a call moves.
const LENGTH: usize = 64;

type Bytes = [u8; LENGTH];

type PlainFunction = unsafe extern "C" fn(RawFd, *mut libc::c_void, usize) -> isize;
type FunctionWithFlags = unsafe extern "C" fn(RawFd, *mut libc::c_void, usize, i32) -> isize;

/// A call that moves bytes, as the C library has it.
#[derive(Clone, Copy)]
enum Function {
    /// `read` and `write`.
    Plain(PlainFunction),
    /// `recv` and `send`.
    WithFlags(FunctionWithFlags),
}

impl Function {
    /// Makes it many times. Returns the nanoseconds for each.
    fn time(self, fd: RawFd) -> f64 {
        let mut bytes: Bytes = [7; LENGTH];
        let place = bytes.as_mut_ptr().cast();
        let start = Instant::now();
        for _ in 0..CALLS {
            // SAFETY: it is a function of this type, and the bytes are as many as it says.
            let moved = unsafe {
                match self {
                    Function::Plain(function) => function(fd, place, LENGTH),
                    Function::WithFlags(function) => function(fd, place, LENGTH, 0),
                }
            };
            assert_eq!(moved, LENGTH as isize, "{}", io::Error::last_os_error());
        }
        start.elapsed().as_nanos() as f64 / CALLS as f64
    }
}

/// The C library's function of a name, which ours stands in front of.
fn next_definition(name: &CStr) -> *const () {
    // SAFETY: the name is a string of C's.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!address.is_null(), "the C library has {name:?}");
    address.cast_const().cast()
}

/// The two definitions of `read` or `write`: the C library's, and ours, which everybody finds.
fn plain(name: &CStr, ours: *const ()) -> [Function; 2] {
    [next_definition(name), ours].map(|address| {
        // SAFETY: the function of that name has this type; whether it may write to its buffer makes no difference to a call.
        Function::Plain(unsafe { std::mem::transmute::<*const (), PlainFunction>(address) })
    })
}

/// The same for `recv` or `send`.
fn with_flags(name: &CStr, ours: *const ()) -> [Function; 2] {
    [next_definition(name), ours].map(|address| {
        // SAFETY: as above.
        Function::WithFlags(unsafe { std::mem::transmute::<*const (), FunctionWithFlags>(address) })
    })
}

/// Something to measure.
struct Case {
    name: &'static str,
    functions: [Function; 2],
    is_input: bool,
    is_pipe: bool,
}

/// Who makes the calls, in the order of what [`Case::measure`] gives.
const PLACES: [&str; 3] = ["C library", "outside fibers", "in a fiber"];

impl Case {
    /// Measures it: for the C library's function, ours outside fibers and ours in one, the rounds' times.
    fn measure(&self, runtime: &Runtime, rounds: usize) -> [Vec<f64>; 3] {
        let (input, output) = self.ends();
        let (input, output) = (input.as_raw_fd(), output.as_raw_fd());
        let mut times = [const { Vec::new() }; 3];
        let [theirs, ours] = self.functions;
        let warm_up = rounds.div_ceil(10);
        for round in 0..warm_up + rounds {
            for turn in 0..3 {
                let which = (turn + round) % 3;
                // What is read was written before, and what is written is read afterwards.
                if self.is_input {
                    fill(output);
                }
                let fd = if self.is_input { input } else { output };
                let time = match which {
                    0 => theirs.time(fd),
                    1 => ours.time(fd),
                    _ => runtime.run(|| ours.time(fd)),
                };
                if !self.is_input {
                    empty(input);
                }
                // The first rounds warm up.
                if round >= warm_up {
                    times[which].push(time);
                }
            }
        }
        times
    }

    /// The end that is read and the one that is written.
    fn ends(&self) -> (OwnedFd, OwnedFd) {
        if self.is_pipe {
            let (reader, writer) = io::pipe().expect("a pipe");
            (reader.into(), writer.into())
        } else {
            let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
            (ours.into(), theirs.into())
        }
    }
}

/// Writes what a round reads.
fn fill(fd: RawFd) {
    let bytes = [7; CALLS * LENGTH];
    // SAFETY: the bytes are as many as it says.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(written, bytes.len() as isize);
}

/// Reads what a round has written.
fn empty(fd: RawFd) {
    let mut bytes = [0; CALLS * LENGTH];
    let mut rest = bytes.len();
    while rest > 0 {
        // SAFETY: the bytes are as many as it says, or more.
        let count = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), rest) };
        assert!(count > 0, "{}", io::Error::last_os_error());
        rest -= count as usize;
    }
}

/// The time of the round that one in ten was faster than: what the machine does meanwhile only makes rounds slower.
fn undisturbed(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// Measures all and prints it.
pub fn run(args: &Args, light: bool) -> io::Result<()> {
    let recv = with_flags(c"recv", libc::recv as *const ());
    let send = with_flags(c"send", libc::send as *const ());
    let read = plain(c"read", libc::read as *const ());
    let write = plain(c"write", libc::write as *const ());
    let case = |name, functions, is_input, is_pipe| Case {
        name,
        functions,
        is_input,
        is_pipe,
    };
    let cases = [
        case("recv socket", recv, true, false),
        case("send socket", send, false, false),
        case("read socket", read, true, false),
        case("write socket", write, false, false),
        case("read pipe", read, true, true),
        case("write pipe", write, false, true),
    ];
    let runtime = super::runtime(1, light).build()?;
    let rounds = args.n(ALL_CALLS).div_ceil(CALLS);
    for case in &cases {
        let times = case.measure(&runtime, rounds).map(undisturbed);
        for (place, time) in PLACES.into_iter().zip(times) {
            args.line("hook", format!("{}, {place}", case.name), Ok(time), "ns");
        }
    }
    Ok(())
}
