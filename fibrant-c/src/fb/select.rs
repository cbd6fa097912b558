//! `fb_select`: what the macro `fibrant::select!` is made of, for a number of cases that is known at run time only.

use super::argument::{Pointer, behind, limit};
use super::channel::FbChannel;
use super::error::{Errno, INVALID, answer};
use fibrant::sync::channel::arms::{AnyArm, ReceiveArm, SendArm, select_among};
use libc::{c_int, c_void};

/// `fb_case`: see the header.
#[repr(C)]
#[derive(Debug)]
pub struct Case {
    operation: c_int,
    result: c_int,
    channel: *mut FbChannel,
    message: *mut c_void,
}

const RECV: c_int = 1;
const SEND: c_int = 2;

/// A case that can come about.
enum Arm<'a> {
    Receive(ReceiveArm<'a, Pointer>),
    Send(SendArm<'a, Pointer>),
}

impl Arm<'_> {
    fn arm(&mut self) -> AnyArm<'_> {
        match self {
            Arm::Receive(arm) => arm.arm(),
            Arm::Send(arm) => arm.arm(),
        }
    }
}

impl Case {
    /// What it is to the crate; nothing, if it has no channel.
    ///
    /// # Safety
    /// The channel is null, or is not freed while the arm is used.
    unsafe fn open<'a>(&self) -> Result<Option<Arm<'a>>, Errno> {
        // SAFETY: the caller's promise.
        let channel = unsafe { behind(self.channel) };
        let channel = channel.ok();
        match self.operation {
            RECV => Ok(channel.map(|channel| Arm::Receive(ReceiveArm::new(&channel.receiver)))),
            SEND => Ok(channel.map(|channel| Arm::Send(SendArm::late(&channel.sender)))),
            _ => Err(INVALID),
        }
    }

    /// Does what the arm, which was chosen, is there for.
    fn finish(&mut self, arm: &Arm<'_>) {
        let done = match arm {
            Arm::Receive(arm) => arm.finish().map(|message| self.message = message.0).is_ok(),
            Arm::Send(arm) => arm.finish(Pointer(self.message)).is_ok(),
        };
        self.result = if done { 0 } else { -libc::EPIPE };
    }
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_select(cases: *mut Case, count: usize, timeout: i64) -> c_int {
    answer(|| {
        let cases = match (cases.is_null(), count) {
            (_, 0) => &mut [],
            (true, _) => return Err(INVALID),
            // SAFETY: the program's promise.
            _ => unsafe { std::slice::from_raw_parts_mut(cases, count) },
        };
        c_int::try_from(count).map_err(|_| INVALID)?;
        // The arms of those that have a channel, and which they are.
        let (mut arms, mut indices) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (index, case) in cases.iter().enumerate() {
            // SAFETY: the program's promise.
            if let Some(arm) = unsafe { case.open()? } {
                arms.push(arm);
                indices.push(index);
            }
        }
        let chosen = {
            let any: Vec<_> = arms.iter_mut().map(Arm::arm).collect();
            select_among(&any, limit(timeout)).ok_or(Errno(libc::ETIMEDOUT))?
        };
        let index = indices[chosen];
        cases[index].finish(&arms[chosen]);
        Ok(c_int::try_from(index).unwrap_or(c_int::MAX))
    })
}
