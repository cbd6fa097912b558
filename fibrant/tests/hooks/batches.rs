//! Several messages in one call, and bytes from one descriptor to another: points 12 and 15.

use crate::support::*;
use fibrant::hook::disabled;
use std::io::{Read, Seek, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::thread;
use std::time::{Duration, Instant};

/// Buffers for some messages.
struct Batch {
    buffers: Vec<Vec<u8>>,
    lists: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

impl Batch {
    fn new(buffers: Vec<Vec<u8>>) -> Box<Batch> {
        let mut batch = Box::new(Batch {
            buffers,
            lists: Vec::new(),
            headers: Vec::new(),
        });
        for buffer in &mut batch.buffers {
            batch.lists.push(libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            });
        }
        for list in &mut batch.lists {
            // SAFETY: all zero is a value of it.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (list, 1);
            batch.headers.push(header);
        }
        batch
    }

    fn receive(&mut self, fd: RawFd, flags: i32, time: Option<&mut libc::timespec>) -> (isize, i32) {
        let time = time.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: the messages are as many as it says, and their buffers stay in place.
        told(unsafe {
            libc::recvmmsg(
                fd,
                self.headers.as_mut_ptr(),
                self.headers.len() as u32,
                flags as _,
                time,
            )
        } as isize)
    }

    fn send(&mut self, fd: RawFd, flags: i32) -> (isize, i32) {
        // SAFETY: as above.
        told(unsafe {
            libc::sendmmsg(
                fd,
                self.headers.as_mut_ptr(),
                self.headers.len() as u32,
                flags as _,
            )
        } as isize)
    }

    /// What has come, message by message.
    fn texts(&self, count: isize) -> Vec<String> {
        let texts = self.headers.iter().zip(&self.buffers).take(count.max(0) as usize);
        texts
            .map(|(header, buffer)| String::from_utf8_lossy(&buffer[..header.msg_len as usize]).into_owned())
            .collect()
    }

    fn lengths(&self, count: isize) -> Vec<u32> {
        self.headers
            .iter()
            .take(count.max(0) as usize)
            .map(|header| header.msg_len)
            .collect()
    }
}

fn room(count: usize) -> Box<Batch> {
    Batch::new(vec![vec![0; 32]; count])
}

fn datagrams() -> (UnixDatagram, UnixDatagram) {
    UnixDatagram::pair().unwrap()
}

fn time(milliseconds: i64) -> libc::timespec {
    libc::timespec {
        tv_sec: 0,
        tv_nsec: milliseconds * 1_000_000,
    }
}

/// A file with so many bytes, each told by its place, that has no name any more.
fn file(length: usize) -> std::fs::File {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!(
        "fibrant-copy-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(&pattern(length)).unwrap();
    file.rewind().unwrap();
    file
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

/// Reads everything when the fiber waits.
fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    later(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).unwrap();
        all
    })
}

/// A call of `splice` without offsets.
fn splice(from: &impl AsRawFd, to: &impl AsRawFd, length: usize, flags: u32) -> (isize, i32) {
    let none = std::ptr::null_mut();
    // SAFETY: no offsets.
    told(unsafe { libc::splice(from.as_raw_fd(), none, to.as_raw_fd(), none, length, flags) })
}

/// A pipe that holds so many bytes, and no more are to come.
fn full_pipe(length: usize) -> OwnedFd {
    let (out, input) = pipe();
    // SAFETY: numbers.
    let size = unsafe { libc::fcntl(input.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 18) };
    assert!(size as usize >= length);
    std::fs::File::from(input).write_all(&pattern(length)).unwrap();
    out
}

/// All that there is, outside any fiber's sight.
fn rest_of(from: impl Into<OwnedFd>) -> Vec<u8> {
    let mut all = Vec::new();
    disabled(|| std::fs::File::from(from.into()).read_to_end(&mut all)).unwrap();
    all
}

bodies! {
    p15_a_batch_that_is_there_is_taken, false, || {
        let (ours, theirs) = datagrams();
        ["one", "", "three"].iter().for_each(|word| assert!(theirs.send(word.as_bytes()).is_ok()));
        let mut batch = room(3);
        let told = batch.receive(ours.as_raw_fd(), 0, None);
        (told, batch.texts(told.0))
    };
    p15_a_batch_is_waited_for_to_the_last, true, || {
        let (ours, theirs) = datagrams();
        theirs.send(b"early").unwrap();
        let sender = later(move || {
            for word in ["b", "cc", "ddd"] {
                theirs.send(word.as_bytes()).unwrap();
                thread::sleep(ms(5));
            }
        });
        let mut batch = room(4);
        let told = batch.receive(ours.as_raw_fd(), 0, None);
        sender.join().unwrap();
        (told, batch.texts(told.0))
    };
    p15_one_is_enough_if_it_says_so, true, || {
        let (ours, theirs) = datagrams();
        let sender = later(move || {
            theirs.send(b"first").unwrap();
            theirs
        });
        let mut batch = room(4);
        let told = batch.receive(ours.as_raw_fd(), libc::MSG_WAITFORONE, None);
        drop(sender.join().unwrap());
        (told, batch.texts(told.0))
    };
    p15_several_that_are_there_come_at_once, false, || {
        let (ours, theirs) = datagrams();
        // If it waits for more, it does not wait for ever.
        ours.set_read_timeout(Some(ms(20))).unwrap();
        ["one", "two"].iter().for_each(|word| assert!(theirs.send(word.as_bytes()).is_ok()));
        let mut batch = room(4);
        let told = batch.receive(ours.as_raw_fd(), libc::MSG_WAITFORONE, None);
        (told, batch.texts(told.0))
    };
    p15_dontwait_gives_what_is_there, false, || {
        let (ours, theirs) = datagrams();
        let empty = room(2).receive(ours.as_raw_fd(), libc::MSG_DONTWAIT, None);
        theirs.send(b"one").unwrap();
        let mut batch = room(2);
        let told = batch.receive(ours.as_raw_fd(), libc::MSG_DONTWAIT, None);
        ours.set_nonblocking(true).unwrap();
        (empty, told, batch.texts(told.0), room(2).receive(ours.as_raw_fd(), 0, None))
    };
    p15_the_time_is_looked_at_when_something_has_come, true, || {
        let (ours, theirs) = datagrams();
        let sender = later(move || {
            for _ in 0..200 {
                theirs.send(b"tick").ok();
                thread::sleep(ms(5));
            }
        });
        let (mut batch, mut limit, start) = (room(1000), time(60), Instant::now());
        let (count, error) = batch.receive(ours.as_raw_fd(), 0, Some(&mut limit));
        drop(ours);
        drop(sender);
        (count > 0 && count < 200, error, start.elapsed() >= ms(60), limit.tv_sec, limit.tv_nsec)
    };
    p15_a_wrong_time_is_an_error, false, || {
        let (ours, _theirs) = datagrams();
        room(2).receive(ours.as_raw_fd(), 0, Some(&mut time(1000)))
    };
    p15_a_timeout_of_the_socket_counts, true, || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(ms(30))).unwrap();
        socket.send_to(b"one", socket.local_addr().unwrap()).unwrap();
        let mut batch = room(3);
        let told = batch.receive(socket.as_raw_fd(), 0, None);
        (told, batch.texts(told.0), room(3).receive(socket.as_raw_fd(), 0, None))
    };
    p15_a_batch_is_sent, true, || {
        let (ours, theirs) = datagrams();
        let words: Vec<Vec<u8>> = (0..600).map(|index| vec![b'x'; 1 + index % 7]).collect();
        let reader = later(move || {
            let mut buffer = [0; 32];
            (0..600).map(|_| theirs.recv(&mut buffer).unwrap()).collect::<Vec<_>>()
        });
        let mut batch = Batch::new(words);
        let told = batch.send(ours.as_raw_fd(), 0);
        let lengths: Vec<usize> = reader.join().unwrap();
        (told, batch.lengths(told.0).len(), lengths.iter().enumerate().all(|(index, &length)| length == 1 + index % 7))
    };
    p15_a_batch_to_a_stream_is_sent_to_the_end, true, || {
        let (ours, theirs) = tcp();
        let reader = collect(theirs);
        let mut batch = Batch::new(vec![vec![1; 4_000_000], vec![2; 6_000_000], vec![3; 5]]);
        let told = batch.send(ours.as_raw_fd(), 0);
        drop(ours);
        let all = reader.join().unwrap();
        (told, batch.lengths(told.0), all.len(), all.windows(2).filter(|pair| pair[0] != pair[1]).count())
    };
    p15_dontwait_sends_what_fits, false, || {
        let (ours, _theirs) = datagrams();
        let mut batch = Batch::new(vec![vec![b'x'; 4]; 1024]);
        let (count, _) = batch.send(ours.as_raw_fd(), libc::MSG_DONTWAIT);
        (count > 0, count < 1024, batch.send(ours.as_raw_fd(), libc::MSG_DONTWAIT))
    };
    p12_sendfile_sends_all_of_it, true, || {
        let (ours, theirs) = tcp();
        let mut file = file(9_000_000);
        let reader = collect(theirs);
        // SAFETY: no offset: the file's own.
        let sent = told(unsafe { libc::sendfile(ours.as_raw_fd(), file.as_raw_fd(), std::ptr::null_mut(), 8_999_000) });
        let position = file.stream_position().unwrap();
        drop(ours);
        (sent, position, reader.join().unwrap() == pattern(8_999_000))
    };
    p12_sendfile_begins_at_an_offset, false alone, || {
        let (ours, mut theirs) = streams();
        let mut file = file(5000);
        let mut offset: libc::off_t = 4000;
        // SAFETY: the offset is a local variable.
        let sent = told(unsafe { libc::sendfile(ours.as_raw_fd(), file.as_raw_fd(), &mut offset, 10_000) });
        // SAFETY: as above.
        let end = told(unsafe { libc::sendfile(ours.as_raw_fd(), file.as_raw_fd(), &mut offset, 10_000) });
        drop(ours);
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).unwrap();
        (sent, end, offset, file.stream_position().unwrap(), all == pattern(5000)[4000..])
    };
    p12_sendfile_to_a_broken_pipe_fails, false alone, || {
        let (reader, writer) = pipe();
        drop(reader);
        let file = file(100);
        // SAFETY: no offset: the file's own.
        told(unsafe { libc::sendfile(writer.as_raw_fd(), file.as_raw_fd(), std::ptr::null_mut(), 100) })
    };
    p12_sendfile_fills_a_pipe_once, true, || {
        let (reader, writer) = pipe();
        let (mut file, mut offset) = (file(300_000), 1000);
        // SAFETY: no offset, or a local variable.
        let send = |offset: Option<&mut libc::off_t>| told(unsafe { libc::sendfile(writer.as_raw_fd(), file.as_raw_fd(), offset.map_or(std::ptr::null_mut(), std::ptr::from_mut), 300_000) });
        let first = send(None);
        let mut reader = std::fs::File::from(reader);
        let later = later(move || {
            let mut all = vec![0; 1 << 16];
            reader.read_exact(&mut all).unwrap();
            (reader, all == pattern(1 << 16))
        });
        let second = send(Some(&mut offset));
        let (reader, is_right) = later.join().unwrap();
        drop(writer);
        (first, second, offset, is_right, rest_of(reader) == pattern(300_000)[1000..offset as usize], file.stream_position().unwrap())
    };
    p12_splice_waits_for_both_sides, true, || {
        let ((first_out, first_in), (second_out, second_in)) = (pipe(), pipe());
        let writer = later(move || std::fs::File::from(first_in).write_all(&pattern(500_000)).unwrap());
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            std::fs::File::from(second_out).read_to_end(&mut all).unwrap();
            all
        });
        let (from, to, mut total) = (first_out.as_raw_fd(), second_in.as_raw_fd(), 0);
        let last = loop {
            // SAFETY: no offsets: pipes have none.
            match told(unsafe { libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), 1 << 20, 0) }) {
                (moved @ 1.., _) => total += moved,
                last => break last,
            }
        };
        drop(second_in);
        writer.join().unwrap();
        (total, last, reader.join().unwrap() == pattern(500_000))
    };
    p12_splice_to_a_socket_waits, true, || {
        let ((out, input), (ours, theirs)) = (pipe(), tcp());
        let writer = later(move || std::fs::File::from(input).write_all(&pattern(300_000)).unwrap());
        let reader = collect(theirs);
        let mut total = 0;
        loop {
            // SAFETY: no offsets.
            let moved = unsafe {
                libc::splice(out.as_raw_fd(), std::ptr::null_mut(), ours.as_raw_fd(), std::ptr::null_mut(), 1 << 20, 0)
            };
            if moved <= 0 {
                break;
            }
            total += moved;
        }
        writer.join().unwrap();
        drop(ours);
        (total, reader.join().unwrap() == pattern(300_000))
    };
    p12_splice_to_a_socket_with_little_room_waits, true, || {
        // There is room at first, so that it begins, but not for all of it.
        let ((out, input), (ours, theirs)) = (pipe(), streams());
        set(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 4096);
        // SAFETY: numbers.
        let size = unsafe { libc::fcntl(input.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 18) };
        std::fs::File::from(input).write_all(&pattern(200_000)).unwrap();
        let reader = collect(theirs);
        let mut total = 0;
        while total < 200_000 {
            // SAFETY: no offsets.
            match unsafe { libc::splice(out.as_raw_fd(), std::ptr::null_mut(), ours.as_raw_fd(), std::ptr::null_mut(), 200_000, 0) } {
                moved @ 1.. => total += moved,
                _ => break,
            }
        }
        drop(ours);
        (size, total, reader.join().unwrap() == pattern(200_000))
    };
    p12_splice_from_a_socket_waits, true, || {
        let ((mut ours, theirs), (out, input)) = (tcp(), pipe());
        let sender = later(move || ours.write_all(b"to a pipe").unwrap());
        // SAFETY: no offsets.
        let moved = told(unsafe {
            libc::splice(theirs.as_raw_fd(), std::ptr::null_mut(), input.as_raw_fd(), std::ptr::null_mut(), 9, 0)
        });
        sender.join().unwrap();
        drop(input);
        let mut all = String::new();
        std::fs::File::from(out).read_to_string(&mut all).unwrap();
        (moved, all)
    };
    p09_splice_that_must_not_wait_does_not, false, || {
        let ((out, _input), (_second_out, second_in)) = (pipe(), pipe());
        // SAFETY: no offsets.
        told(unsafe {
            libc::splice(out.as_raw_fd(), std::ptr::null_mut(), second_in.as_raw_fd(), std::ptr::null_mut(), 9, libc::SPLICE_F_NONBLOCK)
        })
    };
    p12_what_splice_does_not_send_stays_in_the_pipe, false, || {
        let (out, (ours, theirs)) = (full_pipe(200_000), streams());
        set(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 4096);
        ours.set_nonblocking(true).unwrap();
        let mut moved = 0;
        let last = loop {
            match splice(&out, &ours, 200_000, 0) {
                (more @ 1.., _) => moved += more as usize,
                last => break last,
            }
        };
        drop(ours);
        let (sent, left) = (rest_of(theirs), rest_of(out));
        (last, sent.len() == moved, moved < 200_000, [sent, left].concat() == pattern(200_000))
    };
    p12_what_splice_does_not_send_in_time_stays_in_the_pipe, true, || {
        let (out, (ours, theirs)) = (full_pipe(200_000), streams());
        set(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 4096);
        ours.set_write_timeout(Some(ms(30))).unwrap();
        let (moved, _) = splice(&out, &ours, 200_000, 0);
        let start = Instant::now();
        let again = splice(&out, &ours, 200_000, 0);
        let waited = start.elapsed() >= ms(25);
        drop(ours);
        let (sent, left) = (rest_of(theirs), rest_of(out));
        (again, waited, sent.len() == moved as usize, [sent, left].concat() == pattern(200_000))
    };
    p12_what_a_cancelled_splice_does_not_send_stays_in_the_pipe, true => ((-1, libc::ECANCELED), true), || {
        let (out, (ours, _theirs)) = (full_pipe(100_000), streams());
        fill(ours.as_raw_fd());
        let splicing = go(move || (splice(&out, &ours, 100_000, 0), out)).waiting();
        let Activity::Fiber(fiber) = splicing else {
            unreachable!("it is called in a fiber");
        };
        fiber.cancel();
        let (moved, out) = fiber.join().unwrap();
        (moved, rest_of(out) == pattern(100_000))
    };
    p12_splice_to_a_broken_socket_takes_nothing, false alone, || {
        // SAFETY: it is ignored, in this process.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let (out, (ours, theirs)) = (full_pipe(1000), streams());
        drop(theirs);
        (splice(&out, &ours, 1000, 0), rest_of(out) == pattern(1000))
    };
    p12_splice_to_a_socket_moves_all_there_is, false alone, || {
        let (out, (ours, theirs)) = (full_pipe(150_000), streams());
        set(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 20);
        let moved = [100_000, 100_000, 1].map(|length| splice(&out, &ours, length, 0));
        drop(ours);
        (moved, rest_of(theirs) == pattern(150_000))
    };
    p12_splice_waits_for_a_pipe_though_its_socket_does_not, true, || {
        let ((out, input), (ours, theirs)) = (pipe(), streams());
        ours.set_nonblocking(true).unwrap();
        let writer = later(move || std::fs::File::from(input).write_all(b"late").unwrap());
        let moved = splice(&out, &ours, 100, 0);
        writer.join().unwrap();
        drop(ours);
        (moved, rest_of(theirs))
    };
    p16_splice_from_a_socket_times_out, true, || {
        let ((ours, _theirs), (_out, input)) = (tcp(), pipe());
        ours.set_read_timeout(Some(ms(30))).unwrap();
        let start = Instant::now();
        (splice(&ours, &input, 100, 0), start.elapsed() >= ms(25))
    };
    p12_what_is_wrong_with_splice_and_tee_is_told_at_once, false, || {
        let ((out, input), (second_out, second_in), (ours, theirs)) = (pipe(), pipe(), streams());
        let mut offset = 0;
        let (none, offset) = (std::ptr::null_mut(), &raw mut offset);
        let (out, input, second_out, second_in) = (out.as_raw_fd(), input.as_raw_fd(), second_out.as_raw_fd(), second_in.as_raw_fd());
        let (ours, theirs) = (ours.as_raw_fd(), theirs.as_raw_fd());
        let spliced = [
            (out, none, second_in, none, 0, 0),
            (ours, none, input, none, 0, 0),
            (ours, none, theirs, none, 10, 0),
            (out, offset, second_in, none, 10, 0),
            (out, none, second_in, offset, 10, 0),
            (ours, none, second_in, offset, 10, 0),
            (out, offset, ours, none, 10, 0),
            (out, none, ours, offset, 10, 0),
            (ours, offset, input, none, 10, 0),
            (out, none, input, none, 10, 0),
            (input, none, second_in, none, 10, 0),
            (out, none, second_out, none, 10, 0),
            (input, none, ours, none, 10, 0),
            (ours, none, out, none, 10, 0),
            (out, none, second_in, none, 10, 1 << 20),
            (-1, none, second_in, none, 10, 0),
            (out, none, -1, none, 10, 0),
        ]
        // SAFETY: the offset is a local variable.
        .map(|(from, at, to, there, length, flags)| told(unsafe { libc::splice(from, at, to, there, length, flags) }));
        let copied = [(out, second_in, 0), (out, ours, 10), (ours, input, 10), (out, input, 10), (input, second_in, 10), (out, -1, 10)]
            // SAFETY: numbers.
            .map(|(from, to, length)| told(unsafe { libc::tee(from, to, length, 0) }));
        (spliced, copied)
    };
    p12_splice_takes_nothing_of_the_next_file, true => ((-1, libc::EBADF), b"new".to_vec()), || {
        let number = numbers(1);
        let ((new_out, new_in), (to_out, to_in)) = (pipe(), pipe());
        let copy = new_out.try_clone().unwrap();
        put(full_pipe(100), number);
        std::fs::File::from(new_in).write_all(b"new").unwrap();
        std::fs::File::from(to_in.try_clone().unwrap()).write_all(&pattern(1 << 16)).unwrap();
        let reader = later(move || {
            put(copy, number);
            std::fs::File::from(to_out).read_exact(&mut [0; 1 << 16]).unwrap();
        });
        let moved = splice(&number, &to_in, 100, 0);
        reader.join().unwrap();
        close(number);
        (moved, rest_of(new_out))
    };
    p12_sendfile_sends_nothing_of_the_next_file, true => ((1 << 16, 0), true, 0), || {
        let number = numbers(1);
        let (ours, mut theirs) = streams();
        let filled = fill(ours.as_raw_fd());
        put(file(200_000), number);
        let (mut new, copy) = {
            let new = file(200_000);
            (new.try_clone().unwrap(), new)
        };
        let reader = later(move || {
            put(copy, number);
            let mut all = vec![0; filled + (1 << 16)];
            theirs.read_exact(&mut all).unwrap();
            all[filled..] == pattern(1 << 16)
        });
        // SAFETY: no offset: the file's own.
        let sent = told(unsafe { libc::sendfile(ours.as_raw_fd(), number, std::ptr::null_mut(), 200_000) });
        let result = (sent, reader.join().unwrap(), new.stream_position().unwrap());
        close(number);
        result
    };
    p09_splice_does_not_wait_for_a_pipe_that_must_not_be_waited_for, false, || {
        let ((out, _input), (ours, _theirs), file) = (pipe(), streams(), file(100));
        // SAFETY: numbers.
        let flagged = unsafe { libc::fcntl(out.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let blocking = [splice(&out, &ours, 100, 0), splice(&out, &file, 100, 0)];
        ours.set_nonblocking(true).unwrap();
        (flagged, blocking, splice(&out, &ours, 100, 0))
    };
    p12_tee_waits_and_leaves_the_bytes, true, || {
        let ((out, input), (second_out, second_in)) = (pipe(), pipe());
        let writer = later(move || std::fs::File::from(input).write_all(b"twice").unwrap());
        // SAFETY: numbers.
        let copied = told(unsafe { libc::tee(out.as_raw_fd(), second_in.as_raw_fd(), 100, 0) });
        writer.join().unwrap();
        drop(second_in);
        let (mut first, mut second) = (String::new(), String::new());
        std::fs::File::from(out).read_to_string(&mut first).unwrap();
        std::fs::File::from(second_out).read_to_string(&mut second).unwrap();
        (copied, first, second)
    };
    p21_a_datagram_to_a_full_peer_waits, true, || {
        let path = std::env::temp_dir().join(format!("fibrant-full-{}-{:?}", std::process::id(), thread::current().id()));
        std::fs::remove_file(&path).ok();
        let receiver = UnixDatagram::bind(&path).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.set_nonblocking(true).unwrap();
        let mut full = 0;
        while sender.send_to(b"fill", &path).is_ok() {
            full += 1;
        }
        sender.set_nonblocking(false).unwrap();
        let reader = later(move || {
            let mut buffer = [0; 8];
            (0..=full).map(|_| receiver.recv(&mut buffer).unwrap()).sum::<usize>()
        });
        let sent = kind(sender.send_to(b"last one", &path));
        let sum = reader.join().unwrap();
        std::fs::remove_file(&path).ok();
        (sent, sum == 4 * full + 8)
    };
    p16_a_datagram_to_a_full_peer_times_out, true, || {
        let path = std::env::temp_dir().join(format!("fibrant-slow-{}-{:?}", std::process::id(), thread::current().id()));
        std::fs::remove_file(&path).ok();
        let _receiver = UnixDatagram::bind(&path).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.set_write_timeout(Some(ms(40))).unwrap();
        let start = Instant::now();
        let error = loop {
            if let Err(error) = kind(sender.send_to(b"fill", &path)) {
                break error;
            }
        };
        std::fs::remove_file(&path).ok();
        (error, start.elapsed() >= ms(30), start.elapsed() < Duration::from_secs(10))
    };
}
