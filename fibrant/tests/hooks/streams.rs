//! TCP streams that are read again and again: what is remembered of one that is empty must never show. Points 2 to 23, wherever a
//! plain read is concerned; each body first makes its streams silent, by some messages to and fro.
//!
//! Each has a process of its own: options that others set, and low-water marks, would make the runtime ask and try where it should
//! remember. What cannot be compared with a thread is below.

use crate::patience::{Watchdog, eventually};
use crate::secret;
use crate::support::*;
use crate::transfers::{arrived, reset, send};
use crate::waiting::Numbers;
use fibrant::runtime::Runtime;
use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How long something takes at most that is to happen soon, also beside others that want the processor.
const SOON: Duration = Duration::from_secs(20);

/// How many messages go to and fro at first.
const ROUNDS: u8 = 4;

/// Two ends of a connection, both of which are silent.
fn silent() -> (TcpStream, TcpStream) {
    let (ours, theirs) = tcp();
    hush(ours, theirs)
}

/// Makes both ends of a connection silent: each waits for what the other sends, and takes it all at once.
fn hush(mut ours: TcpStream, mut theirs: TcpStream) -> (TcpStream, TcpStream) {
    let echo = go(move || {
        for _ in 0..ROUNDS {
            let mut buffer = [0; 64];
            let count = theirs.read(&mut buffer).unwrap();
            theirs.write_all(&buffer[..count]).unwrap();
        }
        theirs
    });
    for round in 0..ROUNDS {
        ping(&mut ours, round);
    }
    (ours, echo.join())
}

/// Sends a message, and waits for it to come back.
fn ping(stream: &mut TcpStream, round: u8) {
    let mut buffer = [0; 64];
    stream.write_all(&[round; 8]).unwrap();
    let mut count = kind(stream.read(&mut buffer));
    if count == Err(ErrorKind::WouldBlock) && stream.read_timeout().unwrap().is_some() {
        count = kind(patiently(|| stream.read(&mut buffer)));
    }
    assert_eq!(count, Ok(8));
    assert_eq!(buffer[..8], [round; 8]);
}

/// Tries something with a short limit, again and again: somebody else may need longer than that.
fn patiently<T>(mut f: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match f() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

/// Waits, outside any fiber's sight, until the other side has all that was sent.
fn all_arrived(peer: RawFd) {
    fibrant::hook::disabled(|| {
        let mut left = 1;
        // SAFETY: writes a number.
        while unsafe { libc::ioctl(peer, libc::TIOCOUTQ, &raw mut left) } == 0 && left > 0 {
            thread::yield_now();
        }
    });
}

/// What `f` comes to, and whether it did not wait.
fn at_once<T>(f: impl FnOnce() -> T) -> (T, bool) {
    let runtime = Runtime::current();
    let count = || runtime.as_ref().map_or(0, waits);
    let before = count();
    let result = f();
    (result, count() == before)
}

/// What a read into a buffer of 64 bytes comes to.
fn read(mut stream: &TcpStream) -> Result<Vec<u8>, ErrorKind> {
    let mut buffer = [0; 64];
    kind(stream.read(&mut buffer)).map(|count| buffer[..count].to_vec())
}

/// The same by number.
fn read_number(fd: RawFd) -> Result<Vec<u8>, i32> {
    let mut buffer = [0_u8; 64];
    // SAFETY: the buffer has that length.
    match told(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) }) {
        (-1, error) => Err(error),
        (count, _) => Ok(buffer[..count as usize].to_vec()),
    }
}

/// What is read when it has arrived.
fn read_arrived(stream: &TcpStream, bytes: i32) -> Result<Vec<u8>, ErrorKind> {
    arrived(stream.as_raw_fd(), bytes);
    read(stream)
}

/// Local streams, the first of which has a number that was just closed.
fn streams_with(number: RawFd) -> (UnixStream, UnixStream) {
    let mut others = Vec::new();
    loop {
        match streams() {
            (one, other) if one.as_raw_fd() == number => return (one, other),
            (one, other) if other.as_raw_fd() == number => return (other, one),
            pair => others.push(pair),
        }
        assert!(others.len() < 10, "{number} is not used again");
    }
}

/// What a read comes to that somebody answers while it waits.
fn read_answered(stream: &TcpStream, peer: &TcpStream, message: &'static [u8]) -> Result<Vec<u8>, ErrorKind> {
    let mut peer = peer.try_clone().unwrap();
    let answer = later(move || peer.write_all(message).unwrap());
    let result = read(stream);
    answer.join().unwrap();
    result
}

/// What a read comes to that nobody answers, and whether it took as long as it should, and not for ever.
fn read_in_vain(stream: &TcpStream, least: Duration) -> (Result<Vec<u8>, ErrorKind>, bool, bool) {
    let start = Instant::now();
    let result = read(stream);
    let time = start.elapsed();
    // For a thread the kernel counts its own ticks. When the machine stands still they come late, and then too many at once.
    let least = if Runtime::current().is_some() {
        least
    } else {
        least / 2
    };
    (result, time >= least, time < SOON)
}

/// Sets `O_NONBLOCK` with `fcntl`, or takes it back.
fn receive_by_batch(fd: RawFd, flags: i32) -> ((isize, i32), u32) {
    let mut byte = [0_u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: one message with one part, local variables; all zero is a value of it.
    unsafe {
        let mut message: libc::mmsghdr = std::mem::zeroed();
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (&mut part, 1);
        let result = libc::recvmmsg(fd, &mut message, 1, flags as _, std::ptr::null_mut());
        (told(result as isize), message.msg_len)
    }
}

fn set_flags(fd: RawFd, nonblocking: bool) -> i32 {
    let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
    // SAFETY: numbers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_RDWR | flags) }
}

/// What becomes of reads of `stream` when `change` makes it nonblocking, and blocking again.
fn toggled(stream: &TcpStream, peer: &TcpStream, change: impl Fn(bool)) -> String {
    change(true);
    let nothing = [0; 2].map(|_| at_once(|| read(stream)));
    (&*peer).write_all(b"data").unwrap();
    let something = at_once(|| read_arrived(stream, 4));
    let nothing_again = at_once(|| read(stream));
    change(false);
    let waited = [b"one" as &[u8], b"two"].map(|message| read_answered(stream, peer, message));
    format!("{:?}", (nothing, something, nothing_again, waited))
}

/// What becomes of reads of `stream` when `change` sets, changes and removes its timeout.
fn limited(stream: &TcpStream, peer: &TcpStream, change: impl Fn(Option<Duration>)) -> String {
    change(Some(ms(30)));
    let limited = [0; 2].map(|_| read_in_vain(stream, ms(30)));
    change(Some(SOON));
    let in_time = read_answered(stream, peer, b"in time");
    change(Some(ms(3)));
    let shorter = [0; 3].map(|_| read_in_vain(stream, ms(3)));
    change(Some(ms(60)));
    let longer = read_in_vain(stream, ms(60));
    change(None);
    let waited = [b"one" as &[u8], b"two"].map(|message| {
        let mut peer = peer.try_clone().unwrap();
        let answer = later(move || {
            thread::sleep(ms(80)); // longer than any limit there was
            peer.write_all(message).unwrap();
        });
        let result = read(stream);
        answer.join().unwrap();
        result
    });
    format!("{:?}", (limited, in_time, shorter, longer, waited))
}

bodies! {
    p09_ioctl_makes_a_silent_stream_nonblocking, true alone, || {
        let (ours, theirs) = silent();
        toggled(&ours, &theirs, |yes| ours.set_nonblocking(yes).unwrap())
    };
    p09_fcntl_makes_a_silent_stream_nonblocking, true alone, || {
        let (ours, theirs) = silent();
        toggled(&ours, &theirs, |yes| assert_eq!(set_flags(ours.as_raw_fd(), yes), 0))
    };
    p09_a_call_by_number_makes_a_silent_stream_nonblocking, true alone, || {
        let (ours, theirs) = silent();
        toggled(&ours, &theirs, |yes| {
            let flags = libc::O_RDWR | if yes { libc::O_NONBLOCK } else { 0 };
            // SAFETY: numbers.
            assert_eq!(unsafe { libc::syscall(libc::SYS_fcntl, ours.as_raw_fd(), libc::F_SETFL, flags) }, 0);
        })
    };
    p09_a_copy_of_a_silent_stream_is_made_nonblocking, true alone, || {
        let (ours, theirs) = silent();
        let copy = ours.try_clone().unwrap();
        let by_ioctl = toggled(&ours, &theirs, |yes| copy.set_nonblocking(yes).unwrap());
        (by_ioctl, toggled(&ours, &theirs, |yes| assert_eq!(set_flags(copy.as_raw_fd(), yes), 0)))
    };
    p09_somebody_elsewhere_makes_a_silent_stream_nonblocking, true alone, || {
        let (ours, theirs) = silent();
        let fd = ours.as_raw_fd();
        toggled(&ours, &theirs, move |yes| assert_eq!(thread::spawn(move || set_flags(fd, yes)).join().unwrap(), 0))
    };
    p09_dontwait_does_not_wait_for_a_silent_stream, true alone, || {
        let (ours, mut theirs) = silent();
        let fd = ours.as_raw_fd();
        let nothing = at_once(|| receive(fd, &mut [0; 8], libc::MSG_DONTWAIT));
        theirs.write_all(b"data").unwrap();
        arrived(fd, 4);
        (nothing, at_once(|| receive(fd, &mut [0; 8], libc::MSG_DONTWAIT)), read_answered(&ours, &theirs, b"more"))
    };
    p10_a_read_of_a_silent_stream_goes_on_waiting, true alone, || {
        let (ours, mut theirs) = silent();
        let fd = ours.as_raw_fd();
        [true, false].map(|by_fcntl| {
            let mut peer = theirs.try_clone().unwrap();
            let setter = later(move || {
                if by_fcntl {
                    set_flags(fd, true);
                } else {
                    // SAFETY: the value is a number.
                    unsafe { libc::ioctl(fd, libc::FIONBIO, &1) };
                }
                thread::sleep(ms(40)); // it has had its doubts
                peer.write_all(b"data").unwrap();
            });
            let first = read(&ours);
            setter.join().unwrap();
            let next = at_once(|| read(&ours));
            set_flags(fd, false);
            theirs.write_all(b"more").unwrap();
            (first, next, read_arrived(&ours, 4))
        })
    };
    p10_a_first_read_goes_on_waiting_when_somebody_unheard_changes_the_flags, true alone, || {
        // Not silent: it has just asked how long it may wait.
        let (ours, mut theirs) = tcp();
        let fd = ours.as_raw_fd();
        let setter = later(move || {
            secret::set_flags(fd, libc::O_RDWR | libc::O_NONBLOCK);
            thread::sleep(ms(80)); // it has had its doubts
            theirs.write_all(b"data").unwrap();
            theirs
        });
        let first = read(&ours);
        let _theirs = setter.join().unwrap();
        secret::set_flags(fd, libc::O_RDWR);
        first
    };
    p10_a_limit_that_is_set_meanwhile_is_for_the_next_read, true alone, || {
        let (ours, theirs) = silent();
        let (copy, mut peer) = (ours.try_clone().unwrap(), theirs.try_clone().unwrap());
        let setter = later(move || {
            copy.set_read_timeout(Some(ms(2))).unwrap();
            thread::sleep(ms(40));
            peer.write_all(b"data").unwrap();
        });
        let first = read(&ours);
        setter.join().unwrap();
        (first, read_in_vain(&ours, ms(2)))
    };

    p16_a_silent_streams_timeout_is_set_changed_and_removed, true alone, || {
        let (ours, theirs) = silent();
        limited(&ours, &theirs, |time| ours.set_read_timeout(time).unwrap())
    };
    p16_so_is_that_of_its_copy, true alone, || {
        let (ours, theirs) = silent();
        let copy = ours.try_clone().unwrap();
        limited(&ours, &theirs, |time| copy.set_read_timeout(time).unwrap())
    };
    p16_an_option_by_its_other_name_counts, true alone, || {
        const SO_RCVTIMEO_NEW: i32 = 66;
        let (ours, theirs) = silent();
        limited(&ours, &theirs, |time| {
            let time = time.unwrap_or_default();
            let time = libc::timeval { tv_sec: time.as_secs() as i64, tv_usec: i64::from(time.subsec_micros()) };
            assert_eq!(set(ours.as_raw_fd(), libc::SOL_SOCKET, SO_RCVTIMEO_NEW, time), 0);
        })
    };
    p16_a_negative_timeout_of_a_silent_stream_is_none_at_all, true alone, || {
        let (ours, mut theirs) = silent();
        let never = libc::timeval { tv_sec: -1, tv_usec: 0 };
        assert_eq!(set(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, never), 0);
        let nothing = [0; 2].map(|_| at_once(|| read(&ours)));
        theirs.write_all(b"data").unwrap();
        let something = at_once(|| read_arrived(&ours, 4));
        ours.set_read_timeout(None).unwrap();
        (nothing, something, read_answered(&ours, &theirs, b"more"))
    };
    p16_a_timeout_of_one_stream_is_not_anothers, true alone, || {
        let ((one, _one_peer), (other, other_peer)) = (silent(), silent());
        one.set_read_timeout(Some(ms(5))).unwrap();
        let mut peer = other_peer.try_clone().unwrap();
        let answer = later(move || {
            thread::sleep(ms(30));
            peer.write_all(b"late").unwrap();
        });
        let second = read(&other);
        answer.join().unwrap();
        (read_in_vain(&one, ms(5)), second)
    };
    p16_an_accepted_stream_has_its_listeners_timeout, true alone, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accept = |time| {
            assert_eq!(set_receive_timeout(listener.as_raw_fd(), time), 0);
            let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, ours) = hush(patiently(|| listener.accept()).unwrap().0, ours);
            (read_in_vain(&accepted, time), ours)
        };
        // The second has the numbers of the first.
        [ms(5), ms(25)].map(|time| accept(time).0)
    };
    p17_a_deadline_is_not_put_off_by_what_others_take, true alone, || {
        let (ours, theirs) = silent();
        ours.set_read_timeout(Some(ms(60))).unwrap();
        let (fd, peer) = (ours.as_raw_fd(), theirs.as_raw_fd());
        let start = Instant::now();
        // Takes what comes, if it can.
        let thief = later(move || {
            let mut taken = 0;
            for _ in 0..20 {
                send(peer, b"x", 0);
                taken += receive(fd, &mut [0; 8], libc::MSG_DONTWAIT).0.max(0);
                thread::sleep(ms(1));
            }
            taken
        });
        // Whoever gets the byte: it is not for ever.
        let is_known = matches!(read(&ours), Ok(_) | Err(ErrorKind::WouldBlock));
        thief.join().unwrap();
        (is_known, start.elapsed() < SOON)
    };

    p13_messages_larger_than_the_buffer, true alone, || {
        let (mut ours, mut theirs) = silent();
        let mut parts = Vec::new();
        for _ in 0..3 {
            let mut peer = theirs.try_clone().unwrap();
            let answer = later(move || peer.write_all(b"0123456789").unwrap());
            let mut buffer = [0; 4];
            for _ in 0..3 {
                let count = ours.read(&mut buffer).unwrap();
                parts.push(buffer[..count].to_vec());
            }
            answer.join().unwrap();
        }
        theirs.write_all(b"x").unwrap();
        (parts, read_arrived(&ours, 1))
    };
    p13_messages_as_large_as_the_buffer, true alone, || {
        let (mut ours, theirs) = silent();
        (0..4).map(|_| {
            let mut peer = theirs.try_clone().unwrap();
            let answer = later(move || peer.write_all(b"01234567").unwrap());
            let mut buffer = [0; 8];
            let count = kind(ours.read(&mut buffer));
            answer.join().unwrap();
            (count, buffer)
        }).collect::<Vec<_>>()
    };
    p13_reads_of_nothing, true alone, || {
        let (ours, mut theirs) = silent();
        let fd = ours.as_raw_fd();
        // SAFETY: nothing is written there.
        let nothing = || at_once(|| told(unsafe { libc::read(fd, std::ptr::null_mut(), 0) }));
        let of_nothing = nothing();
        theirs.write_all(b"data").unwrap();
        arrived(fd, 4);
        let of_something = nothing();
        let all = read(&ours);
        // This one does wait.
        let answer = later(move || {
            theirs.write_all(b"more").unwrap();
            theirs
        });
        let received = receive(fd, &mut [], 0);
        (of_nothing, of_something, all, received, read(&ours), answer.join().unwrap().peer_addr().is_ok())
    };
    p13_many_small_writes, true alone, || {
        let (mut ours, mut theirs) = silent();
        let writer = later(move || {
            for number in 0..100_u8 {
                theirs.write_all(&[number; 3]).unwrap();
            }
            theirs
        });
        let mut all = Vec::new();
        while all.len() < 300 {
            let mut buffer = [0; 64];
            let count = ours.read(&mut buffer).unwrap();
            all.extend_from_slice(&buffer[..count]);
        }
        (all, read_answered(&ours, &writer.join().unwrap(), b"more"))
    };

    p14_data_and_the_end_at_once, true alone, || {
        let (ours, mut theirs) = silent();
        let ending = go(move || {
            theirs.write_all(b"last").unwrap();
            theirs.shutdown(Shutdown::Write).unwrap();
            theirs
        });
        let all = [0; 3].map(|_| read(&ours));
        ending.join();
        all
    };
    p14_data_and_the_end_before_it_is_read, true alone, || {
        let (ours, mut theirs) = silent();
        theirs.write_all(b"last").unwrap();
        drop(theirs);
        arrived(ours.as_raw_fd(), 4);
        [0; 3].map(|_| read(&ours))
    };
    p14_the_end_later, true alone, || {
        let (ours, theirs) = silent();
        let data = read_answered(&ours, &theirs, b"data");
        let ending = later(move || drop(theirs));
        let end = read(&ours);
        ending.join().unwrap();
        (data, end, read(&ours))
    };
    p14_the_end_between_two_reads, true alone, || {
        let (ours, mut theirs) = silent();
        theirs.write_all(b"data").unwrap();
        let data = read_arrived(&ours, 4);
        drop(theirs);
        (data, read(&ours), read(&ours))
    };
    p14_a_reset_of_a_silent_stream, true alone, || {
        let waiting = {
            let (ours, theirs) = silent();
            let resetting = later(move || reset(theirs));
            let first = read(&ours);
            resetting.join().unwrap();
            (first, read(&ours))
        };
        let (ours, theirs) = silent();
        reset(theirs);
        (waiting, read(&ours), read(&ours))
    };
    p14_one_shuts_its_own_input, true alone, || {
        let waiting = {
            let (ours, theirs) = silent();
            let copy = ours.try_clone().unwrap();
            let shutting = later(move || copy.shutdown(Shutdown::Read).unwrap());
            let first = read(&ours);
            shutting.join().unwrap();
            (first, read(&ours), theirs.peer_addr().is_ok())
        };
        let (ours, _theirs) = silent();
        ours.shutdown(Shutdown::Read).unwrap();
        (waiting, read(&ours), read(&ours))
    };
    p14_half_closed, true alone, || {
        let (ours, theirs) = silent();
        ours.shutdown(Shutdown::Write).unwrap();
        let end = read(&theirs);
        let more = [b"one" as &[u8], b"two", b"three"].map(|message| read_answered(&ours, &theirs, message));
        drop(theirs);
        (end, more, read(&ours))
    };
    p14_urgent_data_divides_a_silent_stream, true alone, || {
        [0, 1].map(|inline| {
            let (ours, theirs) = silent();
            let (fd, peer) = (ours.as_raw_fd(), theirs.as_raw_fd());
            assert_eq!(set(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, inline), 0);
            let sending = go(move || [send(peer, b"abc", 0), send(peer, b"X", libc::MSG_OOB), send(peer, b"def", 0)]);
            let mut all = Vec::new();
            while all.len() < 6 + inline as usize {
                all.extend(read(&ours).unwrap());
            }
            sending.join();
            let urgent = receive(fd, &mut [0; 4], libc::MSG_OOB);
            let more = [b"one" as &[u8], b"two"].map(|message| read_answered(&ours, &theirs, message));
            (all, urgent, more)
        })
    };
    p14_urgent_data_that_is_there_divides_it_too, true alone, || {
        [0, 1].map(|inline| {
            let (ours, theirs) = silent();
            let (fd, peer) = (ours.as_raw_fd(), theirs.as_raw_fd());
            assert_eq!(set(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, inline), 0);
            send(peer, b"abc", 0);
            send(peer, b"X", libc::MSG_OOB);
            send(peer, b"def", 0);
            let poll = || {
                let mut asked = libc::pollfd { fd, events: libc::POLLPRI, revents: 0 };
                // SAFETY: one element, a local variable.
                unsafe { libc::poll(&mut asked, 1, -1) }
            };
            poll();
            arrived(fd, 3);
            let first = read(&ours);
            let mut rest = Vec::new();
            while rest.len() < 3 + inline as usize {
                rest.extend(read(&ours).unwrap());
            }
            (first, rest, read_answered(&ours, &theirs, b"more"))
        })
    };
    p14_urgent_data_that_was_taken_first_divides_it_too, true alone, || {
        [0, 1].map(|inline| {
            let (ours, theirs) = silent();
            let (fd, peer) = (ours.as_raw_fd(), theirs.as_raw_fd());
            assert_eq!(set(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, inline), 0);
            send(peer, b"abc", 0);
            send(peer, b"X", libc::MSG_OOB);
            send(peer, b"def", 0);
            all_arrived(peer);
            let urgent = receive(fd, &mut [0; 4], libc::MSG_OOB);
            let first = read(&ours);
            let (rest, is_quick) = at_once(|| {
                let mut rest = Vec::new();
                while rest.len() < 3 + inline as usize {
                    rest.extend(read(&ours).unwrap());
                }
                rest
            });
            // It is all there: nobody waits until somebody has a look at it.
            assert!(is_quick);
            (urgent, first, rest)
        })
    };
    p14_urgent_data_that_was_taken_by_a_batch_divides_it_too, true alone, || {
        [0, 1].map(|inline| {
            let (ours, theirs) = silent();
            let (fd, peer) = (ours.as_raw_fd(), theirs.as_raw_fd());
            assert_eq!(set(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, inline), 0);
            send(peer, b"abc", 0);
            send(peer, b"X", libc::MSG_OOB);
            send(peer, b"def", 0);
            all_arrived(peer);
            let urgent = receive_by_batch(fd, libc::MSG_OOB);
            let first = read(&ours);
            let (rest, is_quick) = at_once(|| {
                let mut rest = Vec::new();
                while rest.len() < 3 + inline as usize {
                    rest.extend(read(&ours).unwrap());
                }
                rest
            });
            // It is all there: nobody waits until somebody has a look at it.
            assert!(is_quick);
            (urgent, first, rest)
        })
    };
    p14_urgent_data_alone_ends_no_wait, true alone, || {
        let (ours, theirs) = silent();
        let peer = theirs.as_raw_fd();
        let sending = later(move || {
            send(peer, b"X", libc::MSG_OOB);
            thread::sleep(ms(20));
            send(peer, b"def", 0)
        });
        let data = read(&ours);
        (data, sending.join().unwrap(), read_answered(&ours, &theirs, b"more"))
    };
    p14_other_ways_to_receive_in_between, true alone, || {
        let (mut ours, mut theirs) = silent();
        let fd = ours.as_raw_fd();
        let mut seen = Vec::new();
        for _ in 0..3 {
            theirs.write_all(b"0123456789").unwrap();
            arrived(fd, 10);
            let mut buffer = [0; 8];
            seen.push((receive(fd, &mut buffer, libc::MSG_PEEK), buffer.to_vec()));
            let (mut one, mut two) = ([0; 2], [0; 2]);
            let count = ours.read_vectored(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)]).unwrap();
            seen.push(((count as isize, 0), [one, two].concat()));
            let mut buffer = [0; 3];
            seen.push((receive(fd, &mut buffer, libc::MSG_WAITALL), buffer.to_vec()));
            seen.push(((3, 0), read(&ours).unwrap()));
            // And with waits.
            let mut peer = theirs.try_clone().unwrap();
            let writer = later(move || peer.write_all(b"peeked").unwrap());
            let mut buffer = [0; 8];
            seen.push((receive(fd, &mut buffer, libc::MSG_PEEK), buffer.to_vec()));
            writer.join().unwrap();
            seen.push(((6, 0), read(&ours).unwrap()));
            let mut peer = theirs.try_clone().unwrap();
            let writer = later(move || {
                for part in [b"12", b"34", b"56"] {
                    peer.write_all(part).unwrap();
                    thread::sleep(ms(2));
                }
            });
            let mut buffer = [0; 6];
            seen.push((receive(fd, &mut buffer, libc::MSG_WAITALL), buffer.to_vec()));
            writer.join().unwrap();
            seen.push(((5, 0), read_answered(&ours, &theirs, b"plain").unwrap()));
        }
        seen
    };
    p14_a_low_water_mark_for_a_silent_stream, true alone, || {
        let (ours, theirs) = silent();
        assert_eq!(set(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, 8), 0);
        let in_parts = || {
            let mut peer = theirs.try_clone().unwrap();
            let writer = later(move || {
                for part in [b"0123", b"4567"] {
                    peer.write_all(part).unwrap();
                    thread::sleep(ms(25));
                }
            });
            let all = read(&ours);
            writer.join().unwrap();
            all
        };
        let whole = [0; 2].map(|_| in_parts());
        assert_eq!(set(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1), 0);
        (whole, read_answered(&ours, &theirs, b"x"))
    };

    p12_one_reads_and_another_writes, true alone, || {
        let (ours, mut theirs) = silent();
        let echo = go(move || {
            let mut buffer = [0; 1000];
            loop {
                match theirs.read(&mut buffer).unwrap() {
                    0 => break,
                    count => theirs.write_all(&buffer[..count]).unwrap(),
                }
            }
        });
        let mut copy = ours.try_clone().unwrap();
        let ours = Arc::new(ours);
        let reader = {
            let ours = Arc::clone(&ours);
            go(move || {
                let (mut all, mut buffer) = (Vec::new(), [0; 777]);
                while all.len() < 200_000 {
                    let count = (&*ours).read(&mut buffer).unwrap();
                    all.extend_from_slice(&buffer[..count]);
                }
                all.iter().enumerate().all(|(index, byte)| *byte == (index / 1000) as u8)
            })
        };
        // By the same number and by another one.
        for number in 0..200_u32 {
            let block = [number as u8; 1000];
            if number % 2 == 0 { copy.write_all(&block).unwrap() } else { (&*ours).write_all(&block).unwrap() }
        }
        let is_right = reader.join();
        ours.shutdown(Shutdown::Write).unwrap();
        echo.join();
        is_right
    };
    p04_of_version_6, true alone, || {
        let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else {
            // None there: then at least one of version 4 that is named as of version 6 cannot be, either.
            return (Vec::new(), silent().0.read(&mut []).is_ok());
        };
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, mut theirs) = hush(ours, listener.accept().unwrap().0);
        let mut seen = vec![read_answered(&ours, &theirs, b"one"), read_answered(&ours, &theirs, b"two")];
        theirs.write_all(b"last").unwrap();
        drop(theirs);
        seen.extend([read(&ours), read(&ours)]);
        (seen, true)
    };
    p04_accepted_elsewhere, true alone, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // Accepted by a thread, which has read from it, too.
        let (theirs, mut ours) = go_in_a_thread(move || hush(listener.accept().unwrap().0, ours)).join();
        let echo = go_in_a_thread(move || {
            for round in 0..4 {
                ping(&mut ours, round);
            }
            ours
        });
        let heard: Vec<_> = (0..4).map(|_| {
            let message = read(&theirs).unwrap();
            (&theirs).write_all(&message).unwrap();
            message
        }).collect();
        // And back: made silent here, and read by a thread.
        let (theirs, ours) = hush(theirs, echo.join());
        let reader = go_in_a_thread(move || (read(&theirs), theirs));
        (&ours).write_all(b"hello").unwrap();
        let (told, theirs) = reader.join();
        (heard, told, read_answered(&theirs, &ours, b"again"))
    };
    p11_a_copy_has_a_silence_of_its_own, true alone, || {
        let (ours, mut theirs) = silent();
        let copy = ours.try_clone().unwrap();
        let first = read_answered(&copy, &theirs, b"one");
        // Silent here: what the other takes and leaves is not.
        theirs.write_all(b"0123456789").unwrap();
        arrived(ours.as_raw_fd(), 10);
        let mut buffer = [0; 4];
        (&copy).read_exact(&mut buffer).unwrap();
        let rest = read(&ours);
        (first, buffer, rest, read_answered(&copy, &theirs, b"two"), read_answered(&ours, &theirs, b"three"))
    };

    p02_a_silent_stream_is_closed_by_another, true alone => (Err(libc::EBADF), true), || {
        let (ours, theirs) = silent();
        let fd = ours.into_raw_fd();
        let closer = later(move || close(fd));
        let start = Instant::now();
        let result = read_number(fd);
        closer.join().unwrap();
        drop(theirs);
        (result, start.elapsed() < SOON)
    };
    p02_another_file_is_put_over_a_silent_stream, true alone, || {
        let (ours, _theirs) = silent();
        let fd = ours.into_raw_fd();
        let (new, mut new_peer) = tcp();
        new_peer.write_all(b"hello").unwrap();
        arrived(new.as_raw_fd(), 5);
        put(new, fd);
        let first = at_once(|| read_number(fd));
        // SAFETY: it is nobody else's.
        let (new, peer) = hush(unsafe { TcpStream::from_raw_fd(fd) }, new_peer);
        (first, read_answered(&new, &peer, b"more"))
    };
    p03_the_number_of_a_silent_stream_is_used_again, true alone, || {
        let (ours, theirs) = silent();
        let number = ours.as_raw_fd();
        ours.set_read_timeout(Some(ms(1))).unwrap();
        drop(ours);
        let (new, mut new_peer) = streams_with(number);
        new_peer.write_all(b"hello").unwrap();
        drop(theirs);
        at_once(|| read_number(new.as_raw_fd()))
    };
    p26_a_handler_closes_a_silent_stream, true alone, || {
        static CLOSES: AtomicI32 = AtomicI32::new(-1);
        extern "C" fn close_it(_: i32) {
            // SAFETY: it is the body's, which has given it away.
            unsafe { libc::close(CLOSES.load(SeqCst)) };
        }
        let (ours, _theirs) = silent();
        ours.set_read_timeout(Some(ms(1))).unwrap();
        let in_vain = read_in_vain(&ours, ms(1));
        let number = ours.into_raw_fd();
        CLOSES.store(number, SeqCst);
        let handler: extern "C" fn(i32) = close_it;
        // SAFETY: the handler closes a descriptor, which it may.
        unsafe {
            libc::signal(libc::SIGUSR1, handler as libc::sighandler_t);
            libc::raise(libc::SIGUSR1);
        }
        let (new, mut new_peer) = streams_with(number);
        new_peer.write_all(b"hello").unwrap();
        (in_vain, at_once(|| read_number(new.as_raw_fd())))
    };
}

/// Makes a test of what a fiber does that runs in a process of its own, with one worker and with two.
macro_rules! alone {
    ($($name:ident, $body:expr;)*) => {
        $(
            #[test]
            fn $name() {
                if alone(concat!(module_path!(), "::", stringify!($name))) {
                    for workers in [1, 2] {
                        let watchdog = Watchdog::new();
                        let runtime = watchdog.runtime(workers);
                        runtime.spawn(move || ($body)(workers)).join().unwrap();
                        runtime.stop().unwrap();
                    }
                }
            }
        )*
    };
}

/// A fiber of this worker's.
fn on<T: Send + 'static>(worker: usize, f: impl FnOnce() -> T + Send + 'static) -> fibrant::JoinHandle<T> {
    fibrant::Builder::new().worker(worker).spawn(f).unwrap()
}

/// A thread that answers every message with itself, until the other side is done.
fn echo(mut stream: TcpStream) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
    })
}

/// Several fibers read one stream, each with its own size of buffer. A thread sends, and waits now and then until all has been read,
/// so that they wait. Every byte arrives once.
fn shared_by(readers: usize, workers: usize) {
    const TOTAL: usize = 30_000;
    let (ours, mut theirs) = silent();
    let ours = Arc::new(ours);
    let received = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&received);
    let writer = thread::spawn(move || {
        let mut numbers = Numbers(readers as u64);
        let mut sent = 0;
        while sent < TOTAL {
            let size = (1 + numbers.below(600) as usize).min(TOTAL - sent);
            let block: Vec<u8> = (sent..sent + size).map(|index| (index % 251) as u8).collect();
            theirs.write_all(&block).unwrap();
            sent += size;
            if numbers.below(2) == 0 {
                eventually("all that was sent is read", || counting.load(SeqCst) == sent);
            }
        }
        theirs.shutdown(Shutdown::Write).unwrap();
        theirs
    });
    let readers: Vec<_> = (0..readers)
        .map(|index| {
            let (ours, received) = (Arc::clone(&ours), Arc::clone(&received));
            on(index % workers, move || {
                let mut counts = [0_usize; 251];
                let mut buffer = vec![0; [5, 64, 333, 1000][index % 4]];
                loop {
                    let count = (&*ours).read(&mut buffer).unwrap();
                    if count == 0 {
                        return counts;
                    }
                    buffer[..count]
                        .iter()
                        .for_each(|byte| counts[*byte as usize] += 1);
                    received.fetch_add(count, SeqCst);
                }
            })
        })
        .collect();
    let mut sums = [0; 251];
    for reader in readers {
        let counts = reader.join().unwrap();
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    writer.join().unwrap();
    for (byte, sum) in sums.into_iter().enumerate() {
        assert_eq!(sum, (TOTAL - byte).div_ceil(251), "of byte {byte}");
    }
}

/// What may get the number of a silent stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Successor {
    Tcp,
    Unix,
    Udp,
    Pipe,
}

const SUCCESSORS: [Successor; 4] = [Successor::Tcp, Successor::Unix, Successor::Udp, Successor::Pipe];

/// How a silent stream loses its number.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    Closed,
    Replaced,
    ClosedSecretly,
    ReplacedSecretly,
}

const LOSSES: [Loss; 4] = [
    Loss::Closed,
    Loss::Replaced,
    Loss::ClosedSecretly,
    Loss::ReplacedSecretly,
];

impl Successor {
    /// One with something to read, and what sends it more.
    fn make(self) -> (OwnedFd, Box<dyn Fn() + Send>) {
        match self {
            Successor::Tcp => {
                let (ours, theirs) = tcp();
                (
                    ours.into(),
                    Box::new(move || (&theirs).write_all(b"hello").unwrap()),
                )
            }
            Successor::Unix => {
                let (ours, theirs) = UnixStream::pair().unwrap();
                (
                    ours.into(),
                    Box::new(move || (&theirs).write_all(b"hello").unwrap()),
                )
            }
            Successor::Udp => {
                let [ours, theirs] = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
                theirs.connect(ours.local_addr().unwrap()).unwrap();
                (
                    ours.into(),
                    Box::new(move || assert_eq!(theirs.send(b"hello").unwrap(), 5)),
                )
            }
            Successor::Pipe => {
                let (reader, writer) = pipe();
                let writer = File::from(writer);
                (reader, Box::new(move || (&writer).write_all(b"hello").unwrap()))
            }
        }
    }

    /// Reads what was sent so often. What divides it must not matter to a stream.
    fn read(self, fd: RawFd, times: usize) {
        let mut count = 0;
        while count < 5 * times {
            let some = read_number(fd).unwrap();
            assert!(self != Successor::Udp || some == *b"hello", "{some:?}");
            count += some.len();
        }
        assert_eq!(count, 5 * times, "{self:?}");
    }
}

impl Loss {
    /// Puts another file in the place of a silent stream.
    fn replace(self, old: TcpStream, new: OwnedFd) -> RawFd {
        let number = old.as_raw_fd();
        match self {
            Loss::Closed => {
                drop(old);
                secret::put(&new, number);
            }
            Loss::Replaced => {
                // SAFETY: it is the stream's, which is given away.
                assert_eq!(unsafe { libc::dup2(new.as_raw_fd(), old.into_raw_fd()) }, number);
            }
            Loss::ClosedSecretly => {
                secret::close(old);
                secret::put(&new, number);
            }
            Loss::ReplacedSecretly => secret::put(&new, old.into_raw_fd()),
        }
        number
    }
}

/// A silent stream at a number that is nobody else's, and is known as a socket's.
fn silent_at(number: RawFd) -> (TcpStream, TcpStream) {
    let (ours, theirs) = tcp();
    put(ours, number);
    let mut peer = theirs.try_clone().unwrap();
    let answer = later(move || peer.write_all(b"first").unwrap());
    assert_eq!(read_number(number).unwrap(), b"first");
    answer.join().unwrap();
    // SAFETY: it is nobody else's.
    hush(unsafe { TcpStream::from_raw_fd(number) }, theirs)
}

/// The number of a silent stream becomes another file's, which has something to read, and then more, one and two at a time.
fn number_used_again(loss: Loss, successor: Successor) {
    let (old, _old_peer) = silent_at(numbers(1));
    let (new, more) = successor.make();
    more();
    let fd = loss.replace(old, new);
    let start = Instant::now();
    successor.read(fd, 1);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    // It goes on at full speed, not from doubt to doubt.
    let start = Instant::now();
    let (asked, next) = mpsc::channel();
    let sender = thread::spawn(move || {
        for times in next {
            (0..times).for_each(|_| more());
        }
    });
    for round in 0..100 {
        let times = 1 + round % 2;
        asked.send(times).unwrap();
        successor.read(fd, times);
    }
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    drop(asked);
    sender.join().unwrap();
    close(fd);
}

/// The number of a silent stream is another's without our knowledge, and none of its reads lasts long.
fn found_by_short_reads(short: impl Fn(RawFd) -> Option<Vec<u8>>) {
    let (old, _old_peer) = silent_at(numbers(1));
    // Waits that last a while, and are trusted more and more.
    assert_eq!(short(old.as_raw_fd()), None);
    let (new, more) = Successor::Udp.make();
    let fd = Loss::ClosedSecretly.replace(old, new);
    for _ in 0..3 {
        more();
        more();
        for _ in 0..2 {
            let start = Instant::now();
            let found = loop {
                if let Some(found) = short(fd) {
                    break found;
                }
                assert!(start.elapsed() < SOON, "it is never found");
            };
            assert_eq!(found, b"hello");
        }
    }
    close(fd);
}

alone! {
    two_fibers_read_one_stream, |workers| shared_by(2, workers);
    eight_fibers_read_one_stream, |workers| shared_by(8, workers);

    a_stream_goes_from_worker_to_worker, |workers| {
        let (ours, theirs) = silent();
        let echo = echo(theirs);
        let mut ours = Some(ours);
        for turn in 0..12 {
            let mut stream = ours.take().unwrap();
            let rounds = 1 + turn % 3;
            ours = Some(on(turn % workers, move || {
                (0..rounds).for_each(|round| ping(&mut stream, round as u8));
                stream
            }).join().unwrap());
        }
        drop(ours);
        echo.join().unwrap();
    };

    a_stream_is_read_here_and_there_in_turn, |workers| {
        // Each has its copy of the number, and its turn: what one is told of must not be lost for the other.
        let (ours, theirs) = silent();
        let (ours, echo) = (Arc::new(ours), echo(theirs));
        let turn = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..2).map(|index| {
            let (ours, turn) = (Arc::clone(&ours), Arc::clone(&turn));
            on(index % workers, move || {
                for round in 0..50_u8 {
                    eventually("it is one's turn", || turn.load(SeqCst) % 2 == index);
                    let mut buffer = [0; 64];
                    (&*ours).write_all(&[round; 8]).unwrap();
                    assert_eq!((&*ours).read(&mut buffer).unwrap(), 8);
                    turn.fetch_add(1, SeqCst);
                }
            })
        }).collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        ours.shutdown(Shutdown::Both).unwrap();
        echo.join().unwrap();
    };

    the_number_of_a_silent_stream_becomes_another_files, |_| {
        for loss in LOSSES {
            for successor in SUCCESSORS {
                number_used_again(loss, successor);
            }
        }
    };

    what_was_trusted_for_long_is_doubted_in_the_end, |_| {
        let (old, old_peer) = silent_at(numbers(1));
        // Each of these waits outlasts the one before, and finds that all is well.
        for doublings in 0..7 {
            let mut peer = old_peer.try_clone().unwrap();
            let answer = later(move || {
                thread::sleep(ms(12 << doublings));
                peer.write_all(b"x").unwrap();
            });
            assert_eq!(read(&old).unwrap(), b"x");
            answer.join().unwrap();
        }
        let (new, more) = Successor::Tcp.make();
        more();
        let start = Instant::now();
        let fd = Loss::ClosedSecretly.replace(old, new);
        Successor::Tcp.read(fd, 1);
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        close(fd);
    };

    a_file_on_a_disk_gets_the_number_of_a_silent_stream, |_| {
        for loss in LOSSES {
            let (old, _old_peer) = silent_at(numbers(1));
            let new = File::open("/proc/self/exe").unwrap();
            let fd = loss.replace(old, new.into());
            let start = Instant::now();
            assert_eq!(read_number(fd).unwrap()[..4], *b"\x7fELF", "{loss:?}");
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            close(fd);
        }
    };

    nothing_gets_the_number_of_a_silent_stream, |_| {
        let (old, _old_peer) = silent_at(numbers(1));
        let fd = old.as_raw_fd();
        secret::close(old);
        let start = Instant::now();
        assert_eq!(read_number(fd), Err(libc::EBADF));
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    };

    timeouts_that_were_set_before_find_a_new_file, |_| {
        let (old, _old_peer) = silent_at(numbers(1));
        // None of these outlasts the trust that they gain together.
        old.set_read_timeout(Some(ms(15))).unwrap();
        for _ in 0..6 {
            assert_eq!(read(&old), Err(ErrorKind::WouldBlock));
        }
        let (new, more) = Successor::Tcp.make();
        more();
        let fd = Loss::ClosedSecretly.replace(old, new);
        let found = (0..3).find_map(|_| read_number(fd).ok());
        assert_eq!(found.as_deref(), Some(b"hello" as &[u8]));
        close(fd);
    };

    interrupted_reads_find_a_new_file, |_| found_by_short_reads(|fd| {
        match fibrant::timeout(ms(5), || read_number(fd)) {
            Ok(Ok(found)) => Some(found),
            _ => None,
        }
    });

    another_process_makes_a_silent_stream_nonblocking, |_| {
        let (ours, mut theirs) = silent();
        let fd = ours.as_raw_fd();
        let set = |nonblocking: bool| {
            let mut command = std::process::Command::new("true");
            // SAFETY: sets a flag, which a child may; it also makes std fork.
            unsafe {
                command.pre_exec(move || match set_flags(fd, nonblocking) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                })
            };
            assert!(command.status().unwrap().success());
        };
        set(true);
        let start = Instant::now();
        assert_eq!(read(&ours), Err(ErrorKind::WouldBlock));
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        // From then on it is known.
        for _ in 0..3 {
            assert_eq!(at_once(|| read(&ours)), (Err(ErrorKind::WouldBlock), true));
        }
        theirs.write_all(b"data").unwrap();
        assert_eq!(at_once(|| read_arrived(&ours, 4)), (Ok(b"data".to_vec()), true));
        assert_eq!(at_once(|| read(&ours)), (Err(ErrorKind::WouldBlock), true));
        set(false);
        assert_eq!(read_answered(&ours, &theirs, b"more").unwrap(), b"more");
        assert_eq!(read_answered(&ours, &theirs, b"last").unwrap(), b"last");
    };

    a_timeout_around_a_read_of_a_silent_stream, |_| {
        let (mut ours, theirs) = silent();
        for time in [1, 5, 30] {
            let start = Instant::now();
            let told = fibrant::timeout(ms(time), || receive(ours.as_raw_fd(), &mut [0; 8], 0));
            assert_eq!(told.unwrap(), (-1, libc::ECANCELED));
            assert!((ms(time)..SOON).contains(&start.elapsed()), "{:?}", start.elapsed());
        }
        let echo = echo(theirs);
        (0..20).for_each(|round| ping(&mut ours, round));
        drop(ours);
        echo.join().unwrap();
    };

    what_is_there_is_read_however_late_it_is, |_| {
        let (ours, theirs) = silent();
        // The time is up, but nothing has waited since.
        let late = fibrant::timeout(ms(20), || {
            send(theirs.as_raw_fd(), b"one", 0);
            arrived(ours.as_raw_fd(), 3);
            let end = Instant::now() + ms(25);
            while Instant::now() < end {}
            read(&ours)
        });
        assert_eq!(late.unwrap(), Ok(b"one".to_vec()));
        let (reader, peer) = (ours, theirs.try_clone().unwrap());
        // By flags, as nothing else may wait here, and light fibers cannot wait for each other by std's channels.
        let flags: std::sync::Arc<[std::sync::atomic::AtomicBool; 2]> = Default::default();
        let [begun, goes_on] = [0, 1].map(|index| {
            let flags = flags.clone();
            move || {
                while !flags[index].load(std::sync::atomic::Ordering::SeqCst) {
                    thread::yield_now();
                }
            }
        });
        let raise = |index: usize| flags[index].store(true, std::sync::atomic::Ordering::SeqCst);
        let begins = flags.clone();
        let cancelled = fibrant::spawn(move || {
            begins[0].store(true, std::sync::atomic::Ordering::SeqCst);
            goes_on();
            send(peer.as_raw_fd(), b"two", 0);
            arrived(reader.as_raw_fd(), 3);
            (read(&reader), receive(reader.as_raw_fd(), &mut [0; 8], 0))
        });
        begun();
        cancelled.cancel();
        raise(1);
        // Once it would wait it hears of it.
        assert_eq!(cancelled.join().unwrap(), (Ok(b"two".to_vec()), (-1, libc::ECANCELED)));
        drop(theirs);
    };

    a_worker_that_falls_asleep_forgets_nobody_who_was_reminded, |workers| {
        for _ in 0..20 {
            let (ours, theirs) = silent();
            let runtime = Runtime::current().unwrap();
            let reader = on(workers - 1, move || receive(ours.as_raw_fd(), &mut [0; 8], 0));
            eventually("it waits", || waits_for_input(&runtime, reader.id()));
            // Its worker is busy when it has lasted so long that it is to be reminded.
            on(workers - 1, || {
                fibrant::sleep(ms(12));
                let end = Instant::now() + ms(30);
                while Instant::now() < end {}
            })
            .join()
            .unwrap();
            reader.cancel();
            let told = reader.join_timeout(SOON).map_err(|_| "it never goes on").unwrap();
            assert_eq!(told.unwrap(), (-1, libc::ECANCELED));
            drop(theirs);
        }
    };

    a_fiber_that_is_cancelled_in_a_read_of_a_silent_stream, |workers| {
        let (ours, theirs) = silent();
        let runtime = Runtime::current().unwrap();
        let has_heard = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let heard = has_heard.clone();
        let reader = on(workers - 1, move || {
            let first = receive(ours.as_raw_fd(), &mut [0; 8], 0);
            heard.store(true, std::sync::atomic::Ordering::SeqCst);
            (first, read(&ours), ours)
        });
        eventually("it waits", || waits_for_input(&runtime, reader.id()));
        reader.cancel();
        eventually("it waits again", || {
            has_heard.load(std::sync::atomic::Ordering::SeqCst) && waits_for_input(&runtime, reader.id())
        });
        (&theirs).write_all(b"data").unwrap();
        let (first, second, mut ours) = reader.join().unwrap();
        assert_eq!((first, second), ((-1, libc::ECANCELED), Ok(b"data".to_vec())));
        let echo = echo(theirs);
        (0..20).for_each(|round| ping(&mut ours, round));
        drop(ours);
        echo.join().unwrap();
    };

    random_messages_arrive_as_they_were_sent, |_| {
        let connections: Vec<_> = (0..6).map(one_connection).collect();
        connections.into_iter().for_each(|fiber| fiber.join().unwrap());
    };
}

/// Whether a fiber waits for a descriptor. By its number: others may, and one that looks after its registration does so twice.
fn waits_for_input(runtime: &fibrant::runtime::Handle, id: u64) -> bool {
    let fibers = runtime.dump().fibers;
    let mut of_this = fibers.iter().filter(|fiber| fiber.id == id);
    of_this.any(|fiber| matches!(fiber.wait, Some(fibrant::fiber::WaitReason::Descriptor { .. })))
}

/// What is sent at a place in a stream.
fn byte_at(place: usize) -> u8 {
    (place.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// A connection with messages and buffers of random sizes, and pauses of random lengths; options change now and then, and bytes are
/// received in every way there is. The stream must be what was sent.
fn one_connection(seed: u64) -> fibrant::JoinHandle<()> {
    const TOTAL: usize = 60_000;
    let (mut ours, mut theirs) = tcp();
    let copy = ours.try_clone().unwrap();
    let send = move || {
        let mut numbers = Numbers(1000 + seed);
        let mut sent = 0;
        while sent < TOTAL {
            let most = [3, 64, 1500, 9000][numbers.below(4) as usize];
            let size = (1 + numbers.below(most) as usize).min(TOTAL - sent);
            let block: Vec<u8> = (sent..sent + size).map(byte_at).collect();
            theirs.write_all(&block).unwrap();
            sent += size;
            match numbers.below(40) {
                0 => thread::sleep(Duration::from_micros(numbers.below(25_000))),
                1..10 => thread::sleep(Duration::from_micros(numbers.below(300))),
                10..15 => thread::yield_now(),
                _ => {}
            }
        }
    };
    // Half of the senders are threads, which do not take turns with the readers.
    let sender = if seed.is_multiple_of(2) {
        go_anywhere(send)
    } else {
        go_in_a_thread(send)
    };
    fibrant::spawn(move || {
        let mut numbers = Numbers(seed);
        let mut place = 0;
        loop {
            let most = [4, 100, 5000][numbers.below(3) as usize];
            let size = 1 + numbers.below(most) as usize;
            let mut buffer = vec![0; size];
            let fd = ours.as_raw_fd();
            let stream = if numbers.below(3) == 0 { &copy } else { &ours };
            let count = match numbers.below(30) {
                0 => {
                    stream
                        .set_read_timeout(Some(Duration::from_micros(1 + numbers.below(15_000))))
                        .unwrap();
                    continue;
                }
                1 => {
                    stream.set_read_timeout(None).unwrap();
                    continue;
                }
                2 => {
                    stream.set_nonblocking(true).unwrap();
                    let result = kind((&*stream).read(&mut buffer));
                    stream.set_nonblocking(false).unwrap();
                    result
                }
                3 => {
                    // It is still there.
                    let (count, _) = receive(fd, &mut buffer, libc::MSG_PEEK);
                    let seen = &buffer[..count.max(0) as usize];
                    assert!(
                        seen.iter()
                            .enumerate()
                            .all(|(index, byte)| *byte == byte_at(place + index))
                    );
                    continue;
                }
                4 => match receive(fd, &mut buffer, libc::MSG_WAITALL) {
                    (-1, libc::EAGAIN) => Err(ErrorKind::WouldBlock),
                    (count, error) => Ok(usize::try_from(count).map_err(|_| error).unwrap()),
                },
                5 => {
                    let (one, two) = buffer.split_at_mut(size / 2);
                    kind(ours.read_vectored(&mut [IoSliceMut::new(one), IoSliceMut::new(two)]))
                }
                6 => fibrant::timeout(Duration::from_micros(1 + numbers.below(3000)), || {
                    kind((&*stream).read(&mut buffer))
                })
                .unwrap_or(Err(ErrorKind::WouldBlock))
                .or(Err(ErrorKind::WouldBlock)),
                _ => kind((&*stream).read(&mut buffer)),
            };
            match count {
                Ok(0) => break,
                Ok(count) => {
                    for (index, byte) in buffer[..count].iter().enumerate() {
                        assert_eq!(*byte, byte_at(place + index), "at {}", place + index);
                    }
                    place += count;
                }
                Err(ErrorKind::WouldBlock) => {}
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(place, TOTAL);
        sender.join();
    })
}
