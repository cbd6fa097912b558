//! connect and accept: points 21 and 22.

use crate::support::*;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

fn socket(family: i32, kind: i32) -> OwnedFd {
    // SAFETY: makes a descriptor.
    unsafe { OwnedFd::from_raw_fd(libc::socket(family, kind | libc::SOCK_CLOEXEC, 0)) }
}

/// A listener whose queue is full: who connects now is neither refused nor connected. The second is what fills it.
fn full_listener() -> (TcpListener, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: sets the length of its queue anew.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let first = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener, first)
}

fn set_send_timeout(fd: RawFd, time: Duration) {
    let time = libc::timeval {
        tv_sec: time.as_secs() as i64,
        tv_usec: time.subsec_micros().into(),
    };
    assert_eq!(set(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, time), 0);
}

/// A path for a local socket, that is nobody else's.
fn fresh_path() -> PathBuf {
    // SAFETY: asks for a number.
    let thread = unsafe { libc::gettid() };
    let now = Instant::now();
    let name = format!("fibrant-{}-{thread}-{now:?}", std::process::id());
    std::env::temp_dir().join(name.replace([' ', '{', '}', ':', ','], ""))
}

/// An accept, raw: what it gives, the length of the address as told, and the address itself as far as there was room.
fn accept(fd: RawFd, room: u32) -> ((bool, i32), u32, [u8; 4]) {
    let (mut place, mut length) = ([0_u8; 128], room);
    // SAFETY: there is that much room; what is accepted is closed at once.
    unsafe {
        let accepted = told(libc::accept(fd, place.as_mut_ptr().cast(), &mut length) as isize);
        if accepted.0 >= 0 {
            libc::close(accepted.0 as RawFd);
        }
        // The family, and the address after the port, which is another one each time.
        (
            (accepted.0 >= 0, accepted.1),
            length,
            [place[0], place[1], place[4], place[5]],
        )
    }
}

/// Sends data with the call that connects, by `sendto` or as a message of two parts.
fn send_and_connect(fd: RawFd, address: SocketAddr, data: &[u8], as_message: bool) -> (isize, i32) {
    let SocketAddr::V4(address) = address else {
        panic!("{address} is not of version 4")
    };
    let mut name = libc::sockaddr_in {
        sin_family: libc::AF_INET as _,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: address.ip().to_bits().to_be(),
        },
        sin_zero: [0; 8],
    };
    let (name_size, flags) = (size_of_val(&name) as u32, libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL);
    if !as_message {
        let (place, length) = (data.as_ptr().cast(), data.len());
        // SAFETY: the data and the name are that long.
        return told(unsafe { libc::sendto(fd, place, length, flags, (&raw const name).cast(), name_size) });
    }
    let (first, second) = data.split_at(data.len() / 3);
    let mut list = [first, second].map(|part| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    });
    // SAFETY: all zero is a message without anything; its parts are local variables.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_name, message.msg_namelen) = ((&raw mut name).cast(), name_size);
        (message.msg_iov, message.msg_iovlen) = (list.as_mut_ptr(), 2);
        told(libc::sendmsg(fd, &message, flags))
    }
}

bodies! {
    p21_a_refused_connection_is_an_error, true, || {
        let (_held, address) = nobody_listens();
        kind(TcpStream::connect(address).map(drop))
    };
    p21_a_local_connection_waits_for_room, true, || {
        let directory = std::env::temp_dir().join(format!("fibrant-{}-{:?}", std::process::id(), thread::current().id()));
        drop(std::fs::create_dir(&directory));
        let path = directory.join(format!("{:?}", Instant::now()).replace(' ', ""));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // SAFETY: sets the length of its queue anew.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let first = UnixStream::connect(&path).map(drop);
        later(move || (0..2).for_each(|_| drop(listener.accept().unwrap())));
        let second = UnixStream::connect(&path).map(drop);
        drop(std::fs::remove_dir_all(directory));
        (kind(first), kind(second))
    };
    p21_the_verdict_is_waited_for, true, || {
        // It can only connect when the queue has room again and the kernel tries once more: after about a second.
        let (listener, _first) = full_listener();
        let address = listener.local_addr().unwrap();
        let accepted = later(move || [0; 2].map(|_| kind(listener.accept().map(drop))));
        let connected = kind(TcpStream::connect(address).map(drop));
        (connected, accepted.join().unwrap())
    };
    p21_a_second_connect_is_told_so, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
        let results = [0; 2].map(|_| connect_to(socket.as_raw_fd(), address));
        (results, kind(listener.accept().map(drop)))
    };
    p21_a_connect_that_times_out_is_in_progress, true, || {
        let (listener, _first) = full_listener();
        let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
        set_send_timeout(socket.as_raw_fd(), ms(30));
        let start = Instant::now();
        let first = connect_to(socket.as_raw_fd(), listener.local_addr().unwrap());
        let second = connect_to(socket.as_raw_fd(), listener.local_addr().unwrap());
        (first, second, start.elapsed() >= ms(40))
    };
    p21_what_is_sent_first_connects, true, || {
        [false, true].map(|as_message| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let reader = later(move || {
                let mut all = Vec::new();
                listener.accept().unwrap().0.read_to_end(&mut all).unwrap();
                all
            });
            let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
            let data: Vec<u8> = (0..9_000_000_u32).map(|index| (index % 251) as u8).collect();
            let sent = send_and_connect(socket.as_raw_fd(), address, &data, as_message);
            let again = send_and_connect(socket.as_raw_fd(), address, &data, as_message);
            drop(socket);
            (sent, again, reader.join().unwrap() == data)
        })
    };
    p21_what_is_sent_first_is_refused_or_in_progress_when_its_time_is_up, true, || {
        [false, true].map(|as_message| {
            let (_held, nobody) = nobody_listens();
            let refused = send_and_connect(socket(libc::AF_INET, libc::SOCK_STREAM).as_raw_fd(), nobody, b"lost", as_message);
            let (listener, _first) = full_listener();
            let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
            set_send_timeout(socket.as_raw_fd(), ms(30));
            let start = Instant::now();
            let sent = send_and_connect(socket.as_raw_fd(), listener.local_addr().unwrap(), b"late", as_message);
            (refused, sent, start.elapsed() >= ms(25))
        })
    };
    p21_what_is_sent_first_does_not_wait_if_it_must_not, false, || {
        let (listener, _first) = fibrant::hook::disabled(full_listener);
        let socket = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
        let stream = send_and_connect(socket.as_raw_fd(), listener.local_addr().unwrap(), b"late", false);
        // Datagrams do not connect.
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let datagrams = [false, true].map(|as_message| send_and_connect(sender.as_raw_fd(), receiver.local_addr().unwrap(), b"one", as_message));
        (stream, datagrams, sender.peer_addr().is_err())
    };
    p21_std_connects_within_a_time, true, || {
        let (listener, _first) = full_listener();
        let address = listener.local_addr().unwrap();
        let start = Instant::now();
        let failed = kind(TcpStream::connect_timeout(&address, ms(30)).map(drop));
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        (failed, start.elapsed() >= ms(30), kind(TcpStream::connect_timeout(&other.local_addr().unwrap(), Duration::from_secs(60)).map(drop)))
    };
    p21_datagrams_are_connected_at_once, true, || {
        let (_held, nobody) = nobody_receives();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // The refusal comes with a later call.
        let connected = kind(socket.connect(nobody));
        let sent = kind(socket.send(b"x"));
        let refused = kind(socket.recv(&mut [0; 4]));
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let again = kind(socket.connect(other.local_addr().unwrap()));
        let address = socket.local_addr().unwrap();
        later(move || other.send_to(b"data", address).unwrap());
        (connected, sent, refused, again, kind(socket.recv(&mut [0; 8])))
    };
    p21_a_connection_can_be_dissolved, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
        let fd = socket.as_raw_fd();
        let first = connect_to(fd, address);
        let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as _, sa_data: [0; 14] };
        // SAFETY: the name is a local variable.
        let dissolved = told(unsafe { libc::connect(fd, &nowhere, size_of_val(&nowhere) as u32) } as isize);
        (first, dissolved, connect_to(fd, address), [0; 2].map(|_| kind(listener.accept().map(drop))))
    };
    p21_wrong_addresses_are_errors, false, || {
        let path = fresh_path();
        let absent = kind(UnixStream::connect(&path).map(drop));
        let listener = UnixListener::bind(&path).unwrap();
        drop(listener);
        let refused = kind(UnixStream::connect(&path).map(drop));
        let _datagram = (std::fs::remove_file(&path), UnixDatagram::bind(&path).unwrap());
        // SAFETY: asks for a number.
        let wrong_kind = UnixStream::connect(&path).map(drop).map_err(|error| error.raw_os_error());
        drop(std::fs::remove_file(&path));
        let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
        // SAFETY: nothing is read at that address but what it says.
        let short = unsafe {
            [
                told(libc::connect(socket.as_raw_fd(), [0_u8; 16].as_ptr().cast(), 1) as isize),
                told(libc::connect(socket.as_raw_fd(), std::ptr::null(), 16) as isize),
                told(libc::connect(0, [0_u8; 16].as_ptr().cast(), 16) as isize),
            ]
        };
        (absent, refused, wrong_kind, short)
    };
    p21_a_local_connect_times_out, true, || {
        let path = fresh_path();
        let listener = UnixListener::bind(&path).unwrap();
        // SAFETY: sets the length of its queue anew.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let _first = UnixStream::connect(&path).unwrap();
        let socket = socket(libc::AF_UNIX, libc::SOCK_STREAM);
        set_send_timeout(socket.as_raw_fd(), ms(30));
        // SAFETY: all zero is a value of it.
        let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        name.sun_family = libc::AF_UNIX as _;
        for (place, &byte) in name.sun_path.iter_mut().zip(path.as_os_str().as_encoded_bytes()) {
            *place = byte as _;
        }
        let start = Instant::now();
        // SAFETY: the name is a local variable.
        let result = told(unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), size_of_val(&name) as u32) } as isize);
        drop(std::fs::remove_file(&path));
        (result, start.elapsed() >= ms(20))
    };
    p21_a_datagram_waits_for_room_at_a_peer_it_is_not_connected_to, true, || {
        let path = fresh_path();
        let receiver = UnixDatagram::bind(&path).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while sender.send_to(&[1; 100], &path).is_ok() {
            sent += 1;
        }
        sender.set_nonblocking(false).unwrap();
        let all = later(move || {
            receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            (0..=sent).map(|_| receiver.recv(&mut [0; 200]).unwrap()).sum::<usize>()
        });
        let last = kind(sender.send_to(&[2; 50], &path));
        drop(std::fs::remove_file(&path));
        (last, sent > 0, all.join().unwrap())
    };
    p21_a_limit_for_all_connects, true alone => (Err(std::io::ErrorKind::TimedOut), true, Ok(()), (-1, libc::EINPROGRESS)), || {
        let (listener, _first) = full_listener();
        let address = listener.local_addr().unwrap();
        let start = Instant::now();
        fibrant::hook::set_connect_timeout(Some(ms(50)));
        let failed = kind(TcpStream::connect(address).map(drop));
        let elapsed = start.elapsed() >= ms(50) && start.elapsed() < Duration::from_secs(30);
        // A socket's own counts if it is shorter.
        let own = socket(libc::AF_INET, libc::SOCK_STREAM);
        set_send_timeout(own.as_raw_fd(), ms(10));
        let own = connect_to(own.as_raw_fd(), address);
        fibrant::hook::set_connect_timeout(None);
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        (failed, elapsed, kind(TcpStream::connect(other.local_addr().unwrap()).map(drop)), own)
    };

    p21_a_refused_socket_may_try_again, true, || {
        let (_held, nobody) = nobody_listens();
        let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
        let refused = [0; 2].map(|_| connect_to(socket.as_raw_fd(), nobody));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let results = [0; 3].map(|_| connect_to(socket.as_raw_fd(), listener.local_addr().unwrap()));
        (refused, results)
    };

    p22_accept_waits, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        later(move || drop(TcpStream::connect(address).unwrap().write_all(b"hello")));
        let (mut accepted, peer) = listener.accept().unwrap();
        let mut all = String::new();
        (kind(accepted.read_to_string(&mut all)), all, peer.ip())
    };
    p22_accept_times_out, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let time = libc::timeval { tv_sec: 0, tv_usec: 30_000 };
        // SAFETY: the option is a time.
        let set = unsafe {
            libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), 16)
        };
        (set, kind(listener.accept().map(drop)))
    };
    p22_shutdown_of_the_listener_ends_it, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        // SAFETY: a number.
        let shut = later(move || told(unsafe { libc::shutdown(fd, libc::SHUT_RD) } as isize));
        (accept(fd, 16).0, shut.join().unwrap(), accept(fd, 16).0)
    };
    p22_shutdown_of_a_local_listener_ends_it, true, || {
        let path = fresh_path();
        let listener = UnixListener::bind(&path).unwrap();
        let fd = listener.as_raw_fd();
        // SAFETY: a number.
        later(move || unsafe { libc::shutdown(fd, libc::SHUT_RDWR) });
        drop(std::fs::remove_file(&path));
        [0; 2].map(|_| accept(fd, 100).0)
    };
    p22_several_share_a_listener, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (fd, address) = (listener.as_raw_fd(), listener.local_addr().unwrap());
        let acceptors: Vec<_> = (0..8).map(|_| go_anywhere(move || accept(fd, 16))).collect();
        let acceptors: Vec<_> = acceptors.into_iter().map(Activity::waiting).collect();
        let streams: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
        let results: Vec<_> = acceptors.into_iter().map(Activity::join).collect();
        drop(streams);
        results
    };
    p22_fibers_and_threads_share_a_listener, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (fd, address) = (listener.as_raw_fd(), listener.local_addr().unwrap());
        let fibers: Vec<_> = (0..4).map(|_| go(move || accept(fd, 16)).waiting()).collect();
        let threads: Vec<_> = (0..4).map(|_| go_in_a_thread(move || accept(fd, 16)).waiting()).collect();
        // One after the other, on the fibers' worker.
        let streams: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
        let results: Vec<_> = fibers.into_iter().chain(threads).map(Activity::join).collect();
        drop(streams);
        results
    };
    p22_a_lost_race_leaves_the_length_alone, true, || {
        // Others take connections from under it; the one it gets in the end has its address in full.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (fd, address) = (listener.as_raw_fd(), listener.local_addr().unwrap());
        let other = listener.try_clone().unwrap();
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = std::sync::Arc::clone(&done);
        let clients = later(move || {
            let rival = thread::spawn(move || other.accept().map(drop).is_ok());
            let mut streams = Vec::new();
            while !seen.load(std::sync::atomic::Ordering::Relaxed) || !rival.is_finished() {
                streams.push(TcpStream::connect(address).unwrap());
                thread::sleep(ms(1));
            }
            rival.join().unwrap()
        });
        let accepted = accept(fd, 28);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        (accepted, clients.join().unwrap())
    };
    p22_an_address_is_cut_to_the_room_there_is, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (fd, address) = (listener.as_raw_fd(), listener.local_addr().unwrap());
        let connected = later(move || [0; 3].map(|_| TcpStream::connect(address).unwrap()));
        let results = [accept(fd, 2), accept(fd, 128), accept(fd, 0)];
        drop(connected.join());
        results
    };
    p22_accept_on_what_does_not_listen_fails, false, || {
        let (ours, _theirs) = streams();
        let (reader, _writer) = pipe();
        let datagram = UdpSocket::bind("127.0.0.1:0").unwrap();
        let unused = socket(libc::AF_INET, libc::SOCK_STREAM);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        [ours.as_raw_fd(), reader.as_raw_fd(), datagram.as_raw_fd(), unused.as_raw_fd(), file.as_raw_fd(), -1].map(|fd| accept(fd, 16).0)
    };
    p22_what_has_been_reset_is_accepted, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        later(move || {
            let stream = TcpStream::connect(address).unwrap();
            set(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 });
        });
        let (mut accepted, _) = listener.accept().unwrap();
        [0; 2].map(|_| kind(accepted.read(&mut [0; 4])))
    };
    p22_all_of_many_connections_are_accepted, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients = later(move || {
            let streams: Vec<_> = (0..60_u8)
                .map(|number| {
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.write_all(&[number]).unwrap();
                    stream
                })
                .collect();
            streams.len()
        });
        let mut seen = BTreeSet::new();
        for _ in 0..60 {
            let mut byte = [0];
            listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
            seen.insert(byte[0]);
        }
        (seen.len(), clients.join().unwrap())
    };
}
