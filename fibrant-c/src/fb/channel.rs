//! Channels: the section of that name in `fibrant.h`, but for `fb_select`.

use super::argument::{Pointer, behind, limit, name, place, put};
use super::error::{Answer, Errno, answer};
use fibrant::sync::channel::{
    Receiver, RecvTimeoutError, SendTimeoutError, Sender, TryRecvError, TrySendError, bounded, unbounded,
};
use libc::{c_char, c_int, c_void};
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};

/// `fb_channel`: both ends of one, and how many use them. The ends are not cloned: a channel ends when the program closes it.
pub struct FbChannel {
    pub(super) sender: Sender<Pointer>,
    pub(super) receiver: Receiver<Pointer>,
    users: AtomicUsize,
}

const AGAIN: Errno = Errno(libc::EAGAIN);
const CLOSED: Errno = Errno(libc::EPIPE);
const TIMED_OUT: Errno = Errno(libc::ETIMEDOUT);

/// Gives a message that was received to the program.
///
/// # Safety
/// The place is null, or may be written to.
unsafe fn received(place: *mut *mut c_void, message: Pointer) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { put(place, message.0) };
    Ok(0)
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_channel_create(
    channel: *mut *mut FbChannel,
    capacity: usize,
    text: *const c_char,
) -> c_int {
    answer(|| {
        let place = place(channel)?;
        let (sender, receiver) = match capacity {
            usize::MAX => unbounded(),
            _ => bounded(capacity),
        };
        // SAFETY: the program's promise.
        if let Some(name) = unsafe { name(text) } {
            sender.set_name(name);
        }
        let users = AtomicUsize::new(1);
        let new = FbChannel {
            sender,
            receiver,
            users,
        };
        // SAFETY: the program's promise.
        unsafe { place.write(Box::into_raw(Box::new(new))) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_channel_ref(channel: *mut FbChannel) -> *mut FbChannel {
    // SAFETY: the program's promise.
    if let Ok(shared) = unsafe { behind(channel) } {
        shared.users.fetch_add(1, Relaxed);
    }
    channel
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_channel_unref(channel: *mut FbChannel) {
    answer(|| {
        // SAFETY: the program's promise.
        if unsafe { behind(channel)? }.users.fetch_sub(1, AcqRel) == 1 {
            // SAFETY: it was made by `fb_channel_create`, and nobody else uses it any more.
            drop(unsafe { Box::from_raw(channel) });
        }
        Ok(0)
    });
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_channel_close(channel: *mut FbChannel) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        unsafe { behind(channel)? }.sender.close();
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_channel_length(channel: *const FbChannel) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let length = unsafe { behind(channel)? }.receiver.len();
        Ok(c_int::try_from(length).unwrap_or(c_int::MAX))
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_send(channel: *mut FbChannel, message: *mut c_void) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let sent = unsafe { behind(channel)? }.sender.send(Pointer(message));
        sent.map(|()| 0).map_err(|_| CLOSED)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_try_send(channel: *mut FbChannel, message: *mut c_void) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let sent = unsafe { behind(channel)? }.sender.try_send(Pointer(message));
        sent.map(|()| 0).map_err(|error| match error {
            TrySendError::Full(_) => AGAIN,
            TrySendError::Disconnected(_) => CLOSED,
        })
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_send_timeout(
    channel: *mut FbChannel,
    message: *mut c_void,
    timeout: i64,
) -> c_int {
    let Some(time) = limit(timeout) else {
        // SAFETY: the program's promise.
        return unsafe { fb_send(channel, message) };
    };
    answer(|| {
        // SAFETY: the program's promise.
        let sender = unsafe { &behind(channel)?.sender };
        let sent = sender.send_timeout(Pointer(message), time);
        sent.map(|()| 0).map_err(|error| match error {
            SendTimeoutError::Timeout(_) => TIMED_OUT,
            SendTimeoutError::Disconnected(_) => CLOSED,
        })
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_recv(channel: *mut FbChannel, message: *mut *mut c_void) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let next = unsafe { behind(channel)? }.receiver.recv();
        // SAFETY: the program's promise.
        unsafe { received(message, next.map_err(|_| CLOSED)?) }
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_try_recv(channel: *mut FbChannel, message: *mut *mut c_void) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let next = unsafe { behind(channel)? }.receiver.try_recv();
        let next = next.map_err(|error| match error {
            TryRecvError::Empty => AGAIN,
            TryRecvError::Disconnected => CLOSED,
        })?;
        // SAFETY: the program's promise.
        unsafe { received(message, next) }
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_recv_timeout(
    channel: *mut FbChannel,
    message: *mut *mut c_void,
    timeout: i64,
) -> c_int {
    let Some(time) = limit(timeout) else {
        // SAFETY: the program's promise.
        return unsafe { fb_recv(channel, message) };
    };
    answer(|| {
        // SAFETY: the program's promise.
        let next = unsafe { behind(channel)? }.receiver.recv_timeout(time);
        let next = next.map_err(|error| match error {
            RecvTimeoutError::Timeout => TIMED_OUT,
            RecvTimeoutError::Disconnected => CLOSED,
        })?;
        // SAFETY: the program's promise.
        unsafe { received(message, next) }
    })
}
