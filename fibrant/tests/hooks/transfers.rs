//! Transfers: points 11 to 15.

use crate::support::*;
use fibrant::hook::disabled;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

pub fn send(fd: RawFd, data: &[u8], flags: i32) -> (isize, i32) {
    // SAFETY: the data has that length.
    told(unsafe { libc::send(fd, data.as_ptr().cast(), data.len(), flags) })
}

/// Closes a connection so that the other side is told of an error.
pub fn reset(stream: TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    assert_eq!(
        set(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, linger),
        0
    );
}

/// Waits, outside any fiber's sight, until so much has arrived.
pub fn arrived(fd: RawFd, bytes: i32) {
    disabled(|| {
        let mut there = 0;
        // SAFETY: writes a number.
        while unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut there) } == 0 && there < bytes {
            thread::yield_now();
        }
    });
}

/// A named pipe, open at both ends.
fn named_pipe() -> File {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "fibrant-fifo-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    let text = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the path is a string of C's.
    assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

/// Several write blocks of one letter each, in so many parts, more than fits, and one reads: whether no block was torn.
fn writes_blocks(writer: File, mut reader: File, parts: usize) -> (Vec<usize>, bool) {
    const BLOCK: usize = libc::PIPE_BUF;
    let (fd, blocks) = (writer.as_raw_fd(), 20);
    let writers: Vec<_> = (0..4_u8)
        .map(|letter| {
            go(move || {
                let block = [letter; BLOCK];
                let write = || {
                    if parts == 1 {
                        // SAFETY: the block has that length.
                        return unsafe { libc::write(fd, block.as_ptr().cast(), BLOCK) };
                    }
                    let part = |part: &[u8]| libc::iovec {
                        iov_base: part.as_ptr().cast_mut().cast(),
                        iov_len: part.len(),
                    };
                    let list: Vec<_> = block.chunks(BLOCK.div_ceil(parts)).map(part).collect();
                    // SAFETY: the parts are the block's, and so many.
                    unsafe { libc::writev(fd, list.as_ptr(), list.len() as i32) }
                };
                (0..blocks).filter(|_| write() == BLOCK as isize).count()
            })
        })
        .collect();
    let reading = later(move || {
        // In pieces of another size, so that there is room for less than a block now and then.
        let (mut all, mut piece) = (Vec::new(), [0; 1000]);
        while all.len() < 4 * blocks * BLOCK {
            let count = reader.read(&mut piece).unwrap();
            all.extend_from_slice(&piece[..count]);
            thread::sleep(Duration::from_micros(20)); // so that there is never much room
        }
        all.chunks(BLOCK)
            .all(|block| block.iter().all(|letter| *letter == block[0]))
    });
    let written = writers.into_iter().map(Activity::join).collect();
    drop(writer);
    (written, reading.join().unwrap())
}

/// Counts the signals that say that nobody reads.
static SIGNALS: AtomicU32 = AtomicU32::new(0);

/// Counts them from now on, in this process. Gives how many there have been.
fn count_signals() -> u32 {
    extern "C" fn count(_: i32) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }
    let handler: extern "C" fn(i32) = count;
    // SAFETY: the handler only counts.
    unsafe { libc::signal(libc::SIGPIPE, handler as libc::sighandler_t) };
    SIGNALS.swap(0, Ordering::Relaxed)
}

/// What a `recvmsg` tells besides its result.
#[derive(Debug, PartialEq)]
struct Message {
    result: (isize, i32),
    data: Vec<u8>,
    name_length: u32,
    flags: i32,
    control_length: usize,
    is_unchanged: bool,
}

/// A `recvmsg` into two buffers, with room for an address and for something else.
fn receive_message(fd: RawFd, sizes: [usize; 2], flags: i32) -> Message {
    let mut buffers = sizes.map(|size| vec![0_u8; size]);
    let mut list = buffers.each_mut().map(|buffer| libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    });
    let before = list.map(|part| (part.iov_base, part.iov_len));
    let (mut name, mut control) = ([0_u64; 16], [0_u64; 8]);
    // SAFETY: all zero is a value of it.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_name, message.msg_namelen) = (name.as_mut_ptr().cast(), size_of_val(&name) as u32);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
    (message.msg_iov, message.msg_iovlen) = (list.as_mut_ptr(), 2);
    // SAFETY: the message's parts are local variables.
    let result = told(unsafe { libc::recvmsg(fd, &mut message, flags) });
    let is_unchanged =
        before == list.map(|part| (part.iov_base, part.iov_len)) && message.msg_iov == list.as_mut_ptr();
    let [mut data, second] = buffers;
    data.extend(second);
    Message {
        result,
        data,
        name_length: message.msg_namelen,
        flags: message.msg_flags,
        control_length: message.msg_controllen as usize,
        is_unchanged,
    }
}

bodies! {
    p11_a_ready_read_does_not_wait, false, || {
        let (mut ours, mut theirs) = streams();
        theirs.write_all(b"hello").unwrap();
        let mut buffer = [0; 8];
        (kind(ours.read(&mut buffer)), buffer)
    };
    p11_a_read_waits_for_data, true, || {
        let (mut ours, mut theirs) = streams();
        later(move || theirs.write_all(b"hello").unwrap());
        let mut buffer = [0; 8];
        (kind(ours.read(&mut buffer)), buffer)
    };
    p11_a_read_of_a_pipe_waits_for_data, true, || {
        let (reader, writer) = pipe();
        later(move || drop(std::fs::File::from(writer).write_all(b"hello")));
        let mut all = Vec::new();
        (kind(std::fs::File::from(reader).read_to_end(&mut all)), all)
    };
    p11_a_read_sees_the_end, true, || {
        let (mut ours, theirs) = tcp();
        later(move || drop(theirs));
        kind(ours.read(&mut [0; 4]))
    };
    p11_a_ready_write_does_not_wait, false, || {
        let (mut ours, mut theirs) = streams();
        let (reader, writer) = pipe();
        let written = (kind(ours.write(b"hello")), kind(File::from(writer).write(b"hello")));
        let mut buffers = [[0; 8]; 2];
        let read = (kind(theirs.read(&mut buffers[0])), kind(File::from(reader).read(&mut buffers[1])));
        (written, read, buffers)
    };
    p11_a_named_pipe_is_waited_for, true, || {
        let mut fifo = named_pipe();
        let other = fifo.try_clone().unwrap();
        later(move || (&other).write_all(b"hello").unwrap());
        let mut buffer = [0; 8];
        (kind(fifo.read(&mut buffer)), buffer)
    };

    p12_a_stream_is_written_to_the_end, true, || {
        let (mut ours, mut theirs) = streams();
        let gate = gate();
        let reader = thread::spawn(move || {
            gate();
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
            all.iter().enumerate().all(|(index, &byte)| byte == index as u8).then_some(all.len())
        });
        let data: Vec<u8> = (0..3_000_000_u32).map(|index| index as u8).collect();
        // One call.
        let written = kind(ours.write(&data));
        drop(ours);
        (written, reader.join().unwrap())
    };
    p12_a_pipe_is_written_to_the_end, true, || {
        let (reader, writer) = pipe();
        let gate = gate();
        let reading = thread::spawn(move || {
            gate();
            let mut all = Vec::new();
            std::fs::File::from(reader).read_to_end(&mut all).unwrap();
            all.len()
        });
        let written = kind(std::fs::File::from(writer).write(&vec![7; 300_000]));
        (written, reading.join().unwrap())
    };
    p12_vectors_are_written_to_the_end, true, || {
        let (mut ours, mut theirs) = tcp();
        let gate = gate();
        let reader = thread::spawn(move || {
            gate();
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
            let changes = all.windows(2).filter(|pair| pair[0] != pair[1]).count();
            (all.len(), changes)
        });
        let (a, b, c) = (vec![1; 3_000_000], vec![2; 5_000_000], vec![3; 4_000_000]);
        let list = [IoSlice::new(&a), IoSlice::new(&[]), IoSlice::new(&b), IoSlice::new(&c)];
        let before = list.map(|slice| (slice.as_ptr() as usize, slice.len()));
        let written = kind(ours.write_vectored(&list));
        let same = before == list.map(|slice| (slice.as_ptr() as usize, slice.len()));
        drop(ours);
        (written, same, reader.join().unwrap())
    };
    p12_a_timeout_gives_the_partial_count, true, || {
        let (mut ours, _theirs) = streams();
        ours.set_write_timeout(Some(ms(30))).unwrap();
        let first = ours.write(&vec![7; 10_000_000]).map(|written| written > 0 && written < 10_000_000);
        (kind(first), kind(ours.write(&[7; 4096])))
    };
    p12_a_peer_that_goes_leaves_the_partial_count, true, || {
        let (mut ours, mut theirs) = streams();
        let reader = later(move || theirs.read_exact(&mut [0; 1000]).is_ok());
        let data = vec![1; 3_000_000];
        let written = ours.write(&data).map(|written| written > 0 && written < data.len());
        (kind(written), reader.join().unwrap(), kind(ours.write(b"x")))
    };
    p12_an_error_after_some_bytes_comes_next_time, true, || {
        let (mut ours, theirs) = tcp();
        later(move || reset(theirs));
        let data = vec![1; 20_000_000];
        let written = ours.write(&data).map(|written| written > 0 && written < data.len());
        (kind(written), kind(ours.write(b"x")), kind(ours.write(b"x")))
    };
    p12_a_named_pipe_is_written_to_the_end, true, || {
        let mut fifo = named_pipe();
        let mut other = fifo.try_clone().unwrap();
        let reader = later(move || {
            let mut all = vec![0; 300_000];
            other.read_exact(&mut all).unwrap();
            all.iter().enumerate().all(|(index, &byte)| byte == index as u8)
        });
        let data: Vec<u8> = (0..300_000_u32).map(|index| index as u8).collect();
        (kind(fifo.write(&data)), reader.join().unwrap())
    };
    p12_what_is_passed_with_a_long_message_comes_once, true, || {
        let (ours, theirs) = streams();
        let (_reader, writer) = pipe();
        let fd = theirs.as_raw_fd();
        let receiver = later(move || {
            // With the first bytes, and never again.
            let received = passed(fd);
            let mut all = 0;
            while let Message { result: (count @ 1.., _), control_length: 0, .. } = receive_message(fd, [5000, 5000], 0) {
                all += count;
            }
            drop((received, theirs));
            all
        });
        let data = vec![7_u8; 2_000_000];
        let mut part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
        let mut control = [0_u64; 4];
        // SAFETY: the message's parts are local variables, and the control data has room for one descriptor.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
            (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), libc::CMSG_SPACE(4) as _);
            let header = libc::CMSG_FIRSTHDR(&message);
            ((*header).cmsg_level, (*header).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*header).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(writer.as_raw_fd());
            told(libc::sendmsg(ours.as_raw_fd(), &message, 0))
        };
        drop(ours);
        (sent, receiver.join().unwrap())
    };

    p13_datagrams_keep_their_bounds, true, || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        later(move || ["one", "", "three"].iter().for_each(|word| assert!(theirs.send(word.as_bytes()).is_ok())));
        let mut buffer = [0; 3];
        [0; 3].map(|_| (kind(ours.recv(&mut buffer)), buffer))
    };
    p13_nothing_is_read_without_waiting, false, || {
        let (ours, mut theirs) = streams();
        let (fd, place) = (ours.as_raw_fd(), std::ptr::dangling_mut());
        // SAFETY: nothing is read or written.
        let (read, write) = unsafe { (told(libc::read(fd, place, 0)), told(libc::write(fd, place, 0))) };
        theirs.write_all(b"x").unwrap();
        // SAFETY: as above.
        (read, write, told(unsafe { libc::read(fd, place, 0) }))
    };
    p13_vectors_are_read_in_order, true, || {
        let (mut ours, mut theirs) = tcp();
        later(move || theirs.write_all(b"onetwothree").unwrap());
        let (mut a, mut b) = ([0; 3], [0; 5]);
        let read = kind(ours.read_vectored(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)]));
        (read, a, b)
    };
    p13_blocks_in_a_pipe_are_not_torn, true, || {
        let (reader, writer) = pipe();
        writes_blocks(File::from(writer), File::from(reader), 1)
    };
    p13_blocks_in_a_named_pipe_are_not_torn, true, || {
        let fifo = named_pipe();
        writes_blocks(fifo.try_clone().unwrap(), fifo, 1)
    };
    p13_blocks_of_several_parts_are_not_torn, true, || {
        let ((reader, writer), fifo) = (pipe(), named_pipe());
        [(File::from(writer), File::from(reader)), (fifo.try_clone().unwrap(), fifo)].map(|(writer, reader)| writes_blocks(writer, reader, 3))
    };
    p13_a_named_pipe_takes_more_than_a_block_in_parts, true, || {
        let (writer, mut reader) = {
            let fifo = named_pipe();
            (fifo.try_clone().unwrap(), fifo)
        };
        let reader = later(move || {
            let mut all = vec![0; 200_010];
            reader.read_exact(&mut all).unwrap();
            all
        });
        let parts = [vec![], vec![1; 10], vec![], vec![2; 150_000], vec![3; 50_000]];
        let written = kind((&writer).write_vectored(&parts.each_ref().map(|part| IoSlice::new(part))));
        (written, reader.join().unwrap() == parts.concat())
    };
    p13_more_than_can_be_is_an_error, false, || {
        let ((ours, _theirs), (reader, writer), fifo) = (streams(), pipe(), named_pipe());
        let list = [usize::MAX, 2, usize::MAX].map(|iov_len| libc::iovec { iov_base: std::ptr::dangling_mut(), iov_len });
        // SAFETY: all zero is a message without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (list.as_ptr().cast_mut(), 3);
        let [socket, reader, writer, fifo] = [ours.as_raw_fd(), reader.as_raw_fd(), writer.as_raw_fd(), fifo.as_raw_fd()];
        // SAFETY: the kernel looks at the lengths first, and none of them can be.
        unsafe {
            let read = [socket, reader, fifo].map(|fd| [told(libc::readv(fd, list.as_ptr(), 3)), told(libc::preadv2(fd, list.as_ptr(), 3, -1, libc::RWF_HIPRI))]);
            let written = [socket, writer, fifo].map(|fd| told(libc::writev(fd, list.as_ptr(), 3)));
            (read, written, told(libc::sendmsg(socket, &message, 0)), told(libc::recvmsg(socket, &mut message, 0)))
        }
    };
    p13_nothing_is_read_of_a_datagram_but_received_it_is, false, || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ["one", "two", "three"].iter().for_each(|word| assert!(theirs.send(word.as_bytes()).is_ok()));
        let fd = ours.as_raw_fd();
        // SAFETY: nothing is read or written.
        let read = told(unsafe { libc::read(fd, std::ptr::dangling_mut(), 0) });
        let mut buffer = [0; 8];
        let first = (receive(fd, &mut buffer, 0), buffer);
        let nothing = receive(fd, &mut [], 0);
        (read, first, nothing, receive(fd, &mut buffer, 0), buffer)
    };
    p13_an_empty_write_is_a_datagram, false, || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let fd = ours.as_raw_fd();
        let list = libc::iovec { iov_base: std::ptr::dangling_mut(), iov_len: 0 };
        // SAFETY: nothing is read.
        let written = unsafe { (told(libc::write(fd, list.iov_base, 0)), told(libc::writev(fd, &list, 1))) };
        // A list of nothing is none.
        (written, [0; 2].map(|_| receive(theirs.as_raw_fd(), &mut [0; 4], libc::MSG_DONTWAIT)))
    };
    p13_to_receive_nothing_waits_for_something, true, || {
        let (ours, mut theirs) = tcp();
        later(move || theirs.write_all(b"data").map(|()| theirs));
        let nothing = receive(ours.as_raw_fd(), &mut [], 0);
        let mut buffer = [0; 8];
        (nothing, receive(ours.as_raw_fd(), &mut buffer, 0), buffer)
    };
    p13_a_message_tells_all_that_it_should, true, || {
        let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = ours.local_addr().unwrap();
        later(move || {
            let theirs = UdpSocket::bind("127.0.0.1:0").unwrap();
            ["datagram", "longer than there is room for", ""].iter().for_each(|word| assert!(theirs.send_to(word.as_bytes(), address).is_ok()));
        });
        [0; 3].map(|_| receive_message(ours.as_raw_fd(), [3, 7], 0))
    };
    p13_packets_keep_their_bounds, true, || {
        let mut ends = [0; 2];
        // SAFETY: writes two numbers, which are descriptors of ours from then on.
        let [ours, theirs] = unsafe {
            libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr());
            ends.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        later(move || {
            send(theirs.as_raw_fd(), b"a long packet", libc::MSG_EOR);
            send(theirs.as_raw_fd(), b"short", 0);
        });
        [0; 3].map(|_| receive_message(ours.as_raw_fd(), [3, 7], libc::MSG_WAITALL))
    };
    p13_a_datagram_waits_for_room_and_goes_whole, true, || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while ours.send(&[1; 3000]).is_ok() {
            sent += 1;
        }
        ours.set_nonblocking(false).unwrap();
        let sizes = later(move || {
            let mut buffer = [0; 5000];
            let sizes: Vec<_> = (0..sent + 2).map(|_| theirs.recv(&mut buffer).unwrap()).collect();
            sizes[sent..].to_vec()
        });
        let too_long = kind(ours.send(&vec![1; 10_000_000]).map(drop)).is_err();
        (kind(ours.send(&[2; 4000])), kind(ours.send(&[])), sizes.join().unwrap(), too_long)
    };

    p14_peek_leaves_the_data, true, || {
        let (ours, mut theirs) = tcp();
        later(move || theirs.write_all(b"data").unwrap());
        let mut buffer = [0; 4];
        let peeked = (kind(ours.peek(&mut buffer)), buffer);
        (peeked, kind((&ours).read(&mut buffer)), buffer)
    };
    p14_waitall_waits_for_all, true, || {
        let (ours, mut theirs) = tcp();
        later(move || {
            theirs.write_all(b"first ").unwrap();
            thread::sleep(ms(20));
            theirs.write_all(b"second").unwrap();
        });
        let mut buffer = [0; 12];
        (receive(ours.as_raw_fd(), &mut buffer, libc::MSG_WAITALL), buffer)
    };
    p14_waitall_gives_what_came_before_the_end, true, || {
        let (ours, mut theirs) = tcp();
        later(move || theirs.write_all(b"first ").unwrap());
        let mut buffer = [0; 12];
        (receive(ours.as_raw_fd(), &mut buffer, libc::MSG_WAITALL), buffer)
    };
    p14_a_low_water_mark_is_waited_for, true, || {
        let (mut ours, mut theirs) = tcp();
        let mark: libc::c_int = 8;
        // SAFETY: the option is a number.
        let set = unsafe {
            libc::setsockopt(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const mark).cast(), 4)
        };
        theirs.write_all(b"1234").unwrap();
        later(move || theirs.write_all(b"567890").unwrap());
        let mut buffer = [0; 8];
        (set, kind(ours.read(&mut buffer)), buffer)
    };
    p14_a_broken_stream_is_an_error, false alone, || {
        let (mut ours, theirs) = streams();
        drop(theirs);
        (kind(ours.write(b"x")), kind(ours.read(&mut [0; 4])))
    };
    p14_a_peek_for_all_ends_with_the_stream, true, || {
        let (ours, mut theirs) = tcp();
        let fd = ours.as_raw_fd();
        later(move || theirs.write_all(b"some").unwrap());
        let mut buffer = [0; 8];
        let flags = libc::MSG_PEEK | libc::MSG_WAITALL;
        ([0; 2].map(|_| (receive(fd, &mut buffer, flags), buffer)), receive(fd, &mut buffer, 0), receive(fd, &mut buffer, flags))
    };
    p14_a_peek_for_all_waits_for_all, true, || {
        let (ours, mut theirs) = tcp();
        later(move || {
            theirs.write_all(b"some").unwrap();
            thread::sleep(ms(20));
            theirs.write_all(b"more and more").map(|()| theirs)
        });
        let mut buffer = [0; 8];
        (receive(ours.as_raw_fd(), &mut buffer, libc::MSG_PEEK | libc::MSG_WAITALL), buffer)
    };
    p14_a_peek_of_a_local_stream_takes_what_there_is, true, || {
        let (ours, mut theirs) = streams();
        let _peer = later(move || theirs.write_all(b"some").map(|()| theirs));
        let mut buffer = [0; 8];
        (receive(ours.as_raw_fd(), &mut buffer, libc::MSG_PEEK | libc::MSG_WAITALL), buffer)
    };
    p14_urgent_data_is_received_apart, true, || {
        let (ours, theirs) = tcp();
        let fd = ours.as_raw_fd();
        let peer = later(move || (send(theirs.as_raw_fd(), b"ab", 0), send(theirs.as_raw_fd(), b"cU", libc::MSG_OOB), theirs));
        let mut one = libc::pollfd { fd, events: libc::POLLPRI, revents: 0 };
        // SAFETY: there is one.
        let polled = unsafe { libc::poll(&mut one, 1, -1) };
        drop(peer.join());
        arrived(fd, 3);
        let (mut urgent, mut buffer) = ([0; 4], [0; 8]);
        let first = receive(fd, &mut urgent, libc::MSG_OOB);
        let again = receive(fd, &mut [0; 4], libc::MSG_OOB);
        (polled, first, urgent, again, receive(fd, &mut buffer, libc::MSG_WAITALL), buffer)
    };
    p14_no_urgent_data_is_an_error_at_once, false, || {
        let (ours, theirs) = disabled(tcp);
        let (local, _peer) = streams();
        let results = [ours.as_raw_fd(), local.as_raw_fd()].map(|fd| receive(fd, &mut [0; 4], libc::MSG_OOB));
        drop(theirs);
        results
    };
    p14_to_wait_for_all_stops_at_urgent_data, true, || {
        let (ours, theirs) = tcp();
        let fd = ours.as_raw_fd();
        later(move || {
            send(theirs.as_raw_fd(), b"abcU", libc::MSG_OOB);
            thread::sleep(ms(20));
            send(theirs.as_raw_fd(), b"def", 0);
        });
        let (mut first, mut second) = ([0; 8], [0; 8]);
        (receive(fd, &mut first, libc::MSG_WAITALL), first, receive(fd, &mut second, libc::MSG_WAITALL), second)
    };
    p14_the_queue_of_errors_is_not_waited_for, false, || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        let set_it = set(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1);
        let nothing = receive_message(fd, [4, 4], libc::MSG_ERRQUEUE);
        let (_held, nobody) = nobody_receives();
        let sent = kind(socket.send_to(b"lost", nobody));
        // The refusal comes at once on this machine, or very soon.
        let refused = disabled(|| loop {
            let found = receive_message(fd, [4, 4], libc::MSG_ERRQUEUE);
            if found.result.0 >= 0 {
                break found;
            }
            thread::yield_now();
        });
        (set_it, nothing, sent, refused, receive_message(fd, [4, 4], libc::MSG_ERRQUEUE))
    };
    p14_the_whole_length_is_told_if_asked, true, || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        later(move || ["longer than there is room for", "x"].iter().for_each(|word| assert!(theirs.send(word.as_bytes()).is_ok())));
        let fd = ours.as_raw_fd();
        let mut buffer = [0; 4];
        let results = [libc::MSG_TRUNC | libc::MSG_PEEK, libc::MSG_TRUNC, libc::MSG_TRUNC].map(|flags| receive(fd, &mut buffer, flags));
        // A stream's bytes are thrown away.
        let (ours, mut theirs) = tcp();
        theirs.write_all(b"discarded, kept").unwrap();
        let mut kept = [0; 16];
        arrived(ours.as_raw_fd(), 15);
        (results, buffer, receive(ours.as_raw_fd(), &mut [0; 11], libc::MSG_TRUNC), receive(ours.as_raw_fd(), &mut kept, 0), kept)
    };
    p14_to_wait_for_all_stops_at_what_is_passed, true, || {
        let (ours, mut theirs) = streams();
        let (reader, _writer) = pipe();
        later(move || {
            theirs.write_all(b"abc").unwrap();
            pass(theirs.as_raw_fd(), reader.as_raw_fd());
            theirs.write_all(b"def").unwrap();
            thread::sleep(ms(20));
            theirs.write_all(b"ghi").unwrap();
        });
        // What is passed is not lost, nor mixed up with other bytes.
        [0; 3].map(|_| receive_message(ours.as_raw_fd(), [5, 15], libc::MSG_WAITALL | libc::MSG_CMSG_CLOEXEC))
    };
    p14_what_a_message_tells_outlasts_a_try_in_vain, true, || {
        let (ours, mut theirs) = tcp();
        later(move || {
            theirs.write_all(b"abc").unwrap();
            thread::sleep(ms(10));
        });
        receive_message(ours.as_raw_fd(), [5, 15], libc::MSG_WAITALL)
    };
    p14_a_low_water_mark_ends_with_the_stream, true, || {
        let (mut ours, mut theirs) = tcp();
        set(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, 8);
        later(move || {
            theirs.write_all(b"1234").unwrap();
            thread::sleep(ms(10));
        });
        let mut buffer = [0; 8];
        [0; 2].map(|_| (kind(ours.read(&mut buffer)), buffer))
    };
    p14_an_error_after_some_bytes_comes_next_time, true, || {
        let (ours, theirs) = tcp();
        let fd = ours.as_raw_fd();
        later(move || {
            send(theirs.as_raw_fd(), b"some", 0);
            thread::sleep(ms(20));
            reset(theirs);
        });
        let mut buffer = [0; 8];
        (receive(fd, &mut buffer, libc::MSG_WAITALL), buffer, [0; 2].map(|_| receive(fd, &mut buffer, 0)))
    };
    p14_nobody_reads_and_a_signal_says_so, true alone, || {
        count_signals();
        let broken = || {
            let (ours, theirs) = streams();
            drop(theirs);
            ours
        };
        let sent = [0, libc::MSG_NOSIGNAL, libc::MSG_DONTWAIT].map(|flags| (send(broken().as_raw_fd(), b"x", flags), count_signals()));
        // SAFETY: one byte.
        let written = (told(unsafe { libc::write(broken().as_raw_fd(), b"x".as_ptr().cast(), 1) }), count_signals());
        let (reader, writer) = pipe();
        drop(reader);
        // SAFETY: as above.
        let to_pipe = (told(unsafe { libc::write(writer.as_raw_fd(), b"x".as_ptr().cast(), 1) }), count_signals());
        // Those who wait when it happens.
        let waiting = [0, libc::MSG_NOSIGNAL].map(|flags| {
            let (ours, theirs) = streams();
            fill(ours.as_raw_fd());
            later(move || drop(theirs));
            (send(ours.as_raw_fd(), b"x", flags), count_signals())
        });
        (sent, written, to_pipe, waiting)
    };
    p14_some_bytes_went_so_no_signal_says_so, true alone, || {
        count_signals();
        let results = [true, false].map(|by_write| {
            let (ours, theirs) = streams();
            later(move || drop(theirs));
            let data = vec![1_u8; 3_000_000];
            // SAFETY: the data has that length.
            let written = if by_write { unsafe { libc::write(ours.as_raw_fd(), data.as_ptr().cast(), data.len()) } } else { send(ours.as_raw_fd(), &data, 0).0 };
            (written > 0, count_signals(), send(ours.as_raw_fd(), b"x", 0), count_signals())
        });
        let (ours, theirs) = tcp();
        later(move || reset(theirs));
        let written = send(ours.as_raw_fd(), &vec![1; 20_000_000], 0).0 > 0;
        (results, written, count_signals())
    };
}
