//! Transfers: points 11 to 15.

use crate::support::*;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::thread;

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
    p14_a_broken_stream_is_an_error, false, || {
        let (mut ours, theirs) = streams();
        drop(theirs);
        (kind(ours.write(b"x")), kind(ours.read(&mut [0; 4])))
    };
}
