//! Fibers that share the thread-locals of one of them.
//!
//! An isolated fiber has a block of thread-locals of its own, at the top of its stack. What it spawns by `spawn_local` need not be
//! `Send`, so it may point into that block, and shares it: then they are a group. The block's destructors are run by the last
//! of them to end, and until then the stack that it stands on is kept. All of them are with one worker, so a group is counted
//! without locks.

use super::scheduled::Scheduled;
use crate::context::stack::Stack;
use std::cell::Cell;
use std::ptr::NonNull;

/// Whose thread-locals a fiber uses.
#[derive(Clone, Copy)]
pub(crate) enum Locals {
    /// Its own: it is isolated.
    Own,
    /// Its worker's: it is light, or the root.
    Workers,
    /// Those of a group, in which it is counted.
    Groups(NonNull<Group>),
}

/// Fibers that share a block of thread-locals.
pub(crate) struct Group {
    /// The block's thread pointer.
    pub(super) pointer: *mut u8,
    members: Cell<usize>,
    /// The stack that the block stands on, once the fiber that it belonged to has ended.
    stack: Cell<Option<Stack>>,
}

impl Group {
    /// Whose thread-locals a fiber uses that this one, which runs, is about to spawn by `spawn_local`.
    pub(crate) fn join(fiber: &Scheduled) -> Locals {
        let group = match (fiber.group.get(), fiber.is_isolated) {
            (Some(group), _) => group,
            (None, false) => return Locals::Workers,
            (None, true) => {
                let group = NonNull::from(Box::leak(Box::new(Group {
                    pointer: fiber.thread_pointer.get(),
                    members: Cell::new(1),
                    stack: Cell::new(None),
                })));
                fiber.group.set(Some(group));
                group
            }
        };
        // SAFETY: the fiber is a member, so it has not been freed.
        let members = unsafe { &group.as_ref().members };
        members.set(members.get() + 1);
        Locals::Groups(group)
    }

    /// Whether there is but one member left.
    pub(super) fn has_one_member(&self) -> bool {
        self.members.get() == 1
    }

    /// Takes a member out; if it was the last, the group is freed. Says what becomes of its block.
    ///
    /// # Safety
    /// The group lives, and the caller is a member that will not use it again.
    pub(super) unsafe fn leave(group: NonNull<Group>) -> Left {
        // SAFETY: by the caller's promise.
        let left = unsafe { group.as_ref() };
        left.members.set(left.members.get() - 1);
        if left.members.get() > 0 {
            return Left::Others(group);
        }
        let stack = left.stack.take();
        // SAFETY: it was leaked from a box, and nobody knows it any more.
        drop(unsafe { Box::from_raw(group.as_ptr()) });
        Left::Nobody(stack)
    }

    /// Keeps the stack that the block stands on.
    pub(super) fn keep(&self, stack: Stack) {
        self.stack.set(Some(stack));
    }
}

/// What is left of a group that a fiber has left.
pub(super) enum Left {
    /// Others go on using its block.
    Others(NonNull<Group>),
    /// Nobody does. If the fiber whose block it was had ended before, this is the stack that the block stands on.
    Nobody(Option<Stack>),
}
