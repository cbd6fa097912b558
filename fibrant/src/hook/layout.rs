//! What the C library's locks look like inside: found out, not assumed.
//!
//! A hook must know of a lock whether other processes use it, of which kind it is, and who has it; the C library has no functions for
//! that. So objects are made with these and those attributes, through its public functions, and compared: the word that is different
//! is the one. If there is no such word, hooks pass everything of that kind to the C library. `lock`, `condition` and `barrier` ask.

use super::real::Real;
use libc::{c_int, pthread_mutex_t};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// The place of a word in an object, once it was looked for.
pub(super) struct Word {
    /// 0 before it was looked for, [`NOWHERE`] if it was not found, one more than its index otherwise.
    place: AtomicUsize,
    find: fn() -> Option<usize>,
}

const NOWHERE: usize = usize::MAX;

impl Word {
    const fn new(find: fn() -> Option<usize>) -> Word {
        Word {
            place: AtomicUsize::new(0),
            find,
        }
    }

    /// The word's value in an object; nothing, if nobody knows where it is.
    ///
    /// # Safety
    /// It is an object of the kind that the word is for, in use.
    pub(super) unsafe fn of<T>(&self, object: *const T) -> Option<u32> {
        let mut place = self.place.load(Relaxed);
        if place == 0 {
            // Whoever looks for it finds the same.
            place = (self.find)().map_or(NOWHERE, |index| index + 1);
            self.place.store(place, Relaxed);
        }
        // SAFETY: the caller's promise; the word lies inside. Others change it, so it is read as an atomic.
        (place != NOWHERE).then(|| unsafe { read(object, place - 1) })
    }
}

/// Reads a word of an object.
///
/// # Safety
/// It is in use, and has so many words.
unsafe fn read<T>(object: *const T, index: usize) -> u32 {
    // SAFETY: the caller's promise. The C library's objects are aligned at least like this.
    unsafe { AtomicU32::from_ptr(object.cast_mut().cast::<u32>().add(index)) }.load(Relaxed)
}

/// Makes an object, all zero before `make` sees it, and copies its words.
fn words<T>(make: impl FnOnce(*mut T)) -> Vec<u32> {
    let mut object = MaybeUninit::<T>::zeroed();
    make(object.as_mut_ptr());
    // SAFETY: they are inside, and written, at least with zeros.
    (0..size_of::<T>() / 4)
        .map(|index| unsafe { read(object.as_ptr(), index) })
        .collect()
}

/// The index at which the objects have values that are as they should be, if it is the only one.
fn only(objects: &[Vec<u32>], is_right: impl Fn(&[u32]) -> bool) -> Option<usize> {
    let values = |index: usize| -> Vec<u32> { objects.iter().map(|words| words[index]).collect() };
    let mut right = (0..objects[0].len()).filter(|&index| is_right(&values(index)));
    right.next().filter(|_| right.next().is_none())
}

/// The index of a mutex's owner and of its kind: both are part of the interface, because programs contain mutexes that were
/// initialised when they were compiled.
const MUTEX_OWNER: usize = 2;
const MUTEX_KIND: usize = 4;

/// Bits of a mutex's kind.
pub(super) const ROBUST: u32 = 16;
pub(super) const INHERITS_PRIORITY: u32 = 32;
pub(super) const PROTECTS_PRIORITY: u32 = 64;
pub(super) const SHARED: u32 = 128;
/// The bits that say how it is locked twice, and what for.
const TYPE: u32 = 3;
pub(super) const RECURSIVE: u32 = 1;
pub(super) const CHECKED: u32 = 2;

/// The kind of a mutex.
///
/// # Safety
/// It is a mutex.
#[inline]
pub(super) unsafe fn kind(mutex: *const pthread_mutex_t) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { read(mutex, MUTEX_KIND) }
}

/// What a kind says of locking twice.
pub(super) fn type_of(kind: u32) -> u32 {
    kind & TYPE
}

/// The number of who has locked a mutex.
///
/// # Safety
/// It is a mutex.
pub(super) unsafe fn owner(mutex: *const pthread_mutex_t) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { read(mutex, MUTEX_OWNER) }
}

type OfMutex = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;

/// The number by which the C library notes that whoever calls this has locked something.
pub(super) fn own_number() -> u32 {
    // SAFETY: both are of this type.
    static TRY: Real<OfMutex> = unsafe { Real::new(c"pthread_mutex_trylock") };
    // SAFETY: as above.
    static UNLOCK: Real<OfMutex> = unsafe { Real::new(c"pthread_mutex_unlock") };
    let (Some(lock), Some(unlock)) = (TRY.get(), UNLOCK.get()) else {
        return 0;
    };
    let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    // SAFETY: it is a local variable, which is nobody else's, so that it is free.
    unsafe {
        lock(&mut mutex);
        let number = owner(&mutex);
        unlock(&mut mutex);
        number
    }
}

/// Whether mutexes look as they should.
pub(super) fn knows_mutexes() -> bool {
    /// 0 before it is known, 1 for yes, 2 for no.
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    if KNOWN.load(Relaxed) == 0 {
        let made = |kind, shared| {
            words(|mutex: *mut pthread_mutex_t| {
                // SAFETY: local variables, made by the functions for that.
                unsafe {
                    let mut attributes = MaybeUninit::uninit();
                    libc::pthread_mutexattr_init(attributes.as_mut_ptr());
                    libc::pthread_mutexattr_settype(attributes.as_mut_ptr(), kind);
                    libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), shared);
                    libc::pthread_mutex_init(mutex, attributes.as_ptr());
                }
            })
        };
        let kinds = [
            made(libc::PTHREAD_MUTEX_NORMAL, libc::PTHREAD_PROCESS_PRIVATE),
            made(libc::PTHREAD_MUTEX_RECURSIVE, libc::PTHREAD_PROCESS_PRIVATE),
            made(libc::PTHREAD_MUTEX_ERRORCHECK, libc::PTHREAD_PROCESS_PRIVATE),
            made(libc::PTHREAD_MUTEX_RECURSIVE, libc::PTHREAD_PROCESS_SHARED),
        ];
        // A bit above says that nothing is to be elided.
        let place = only(&kinds, |values| {
            let values: Vec<u32> = values.iter().map(|value| value & 0xFF).collect();
            values == [0, RECURSIVE, CHECKED, RECURSIVE | SHARED]
        });
        let is_right = place == Some(MUTEX_KIND) && own_number() != 0;
        KNOWN.store(if is_right { 1 } else { 2 }, Relaxed);
    }
    KNOWN.load(Relaxed) == 1
}

/// Bits of a condition's word.
pub(super) const CONDITION_SHARED: u32 = 1;
pub(super) const CONDITION_MONOTONIC: u32 = 2;

/// A condition's attributes; above them, the number of those who wait for it inside the C library.
pub(super) static CONDITION: Word = Word::new(|| {
    let made = |clock, shared| {
        words(|condition: *mut libc::pthread_cond_t| {
            // SAFETY: local variables, made by the functions for that.
            unsafe {
                let mut attributes = MaybeUninit::uninit();
                libc::pthread_condattr_init(attributes.as_mut_ptr());
                libc::pthread_condattr_setclock(attributes.as_mut_ptr(), clock);
                libc::pthread_condattr_setpshared(attributes.as_mut_ptr(), shared);
                libc::pthread_cond_init(condition, attributes.as_ptr());
            }
        })
    };
    let (private, shared) = (libc::PTHREAD_PROCESS_PRIVATE, libc::PTHREAD_PROCESS_SHARED);
    let conditions = [
        made(libc::CLOCK_REALTIME, private),
        made(libc::CLOCK_MONOTONIC, private),
        made(libc::CLOCK_REALTIME, shared),
        made(libc::CLOCK_MONOTONIC, shared),
    ];
    only(&conditions, |values| {
        values
            == [
                0,
                CONDITION_MONOTONIC,
                CONDITION_SHARED,
                CONDITION_MONOTONIC | CONDITION_SHARED,
            ]
    })
});

/// What a condition's word says of those who wait inside the C library.
pub(super) fn waiters_inside(word: u32) -> u32 {
    word >> 3
}

unsafe extern "C" {
    fn pthread_rwlockattr_setkind_np(attributes: *mut libc::pthread_rwlockattr_t, kind: c_int) -> c_int;
}

/// The kind of a lock for readers and writers that lets writers go first.
pub(super) const WRITERS_FIRST: u32 = 2;

fn rwlocks() -> [Vec<u32>; 3] {
    let made = |kind, shared| {
        words(|lock: *mut libc::pthread_rwlock_t| {
            // SAFETY: local variables, made by the functions for that.
            unsafe {
                let mut attributes = MaybeUninit::uninit();
                libc::pthread_rwlockattr_init(attributes.as_mut_ptr());
                pthread_rwlockattr_setkind_np(attributes.as_mut_ptr(), kind);
                libc::pthread_rwlockattr_setpshared(attributes.as_mut_ptr(), shared);
                libc::pthread_rwlock_init(lock, attributes.as_ptr());
            }
        })
    };
    [
        made(0, libc::PTHREAD_PROCESS_PRIVATE),
        made(0, libc::PTHREAD_PROCESS_SHARED),
        made(WRITERS_FIRST as c_int, libc::PTHREAD_PROCESS_PRIVATE),
    ]
}

/// Whether other processes use a lock for readers and writers.
pub(super) static RWLOCK_SHARED: Word = Word::new(|| {
    only(
        &rwlocks(),
        |values| matches!(values, [0, shared, 0] if *shared != 0),
    )
});

/// Which of the two it lets go first.
pub(super) static RWLOCK_KIND: Word =
    Word::new(|| only(&rwlocks(), |values| matches!(values, [0, 0, WRITERS_FIRST])));

/// The number of the writer that has locked it.
pub(super) static RWLOCK_WRITER: Word = Word::new(|| {
    type OfLock = unsafe extern "C" fn(*mut libc::pthread_rwlock_t) -> c_int;
    // SAFETY: it is of this type.
    static TRY: Real<OfLock> = unsafe { Real::new(c"pthread_rwlock_trywrlock") };
    let lock = TRY.get()?;
    // SAFETY: local variables. It is left locked, as nobody has use for it.
    let locked = words(|object: *mut libc::pthread_rwlock_t| unsafe {
        object.write(libc::PTHREAD_RWLOCK_INITIALIZER);
        lock(object);
    });
    let number = own_number();
    only(&[locked], |values| values == [number])
});

/// Whether other processes use a semaphore.
pub(super) static SEMAPHORE_SHARED: Word = Word::new(|| {
    let made = |shared, value| {
        // SAFETY: a local variable, made by the function for that.
        words(|semaphore: *mut libc::sem_t| unsafe {
            libc::sem_init(semaphore, shared, value);
        })
    };
    let semaphores = [made(0, 0), made(0, 3), made(1, 0)];
    only(
        &semaphores,
        |values| matches!(values, [0, 0, shared] if *shared != 0),
    )
});

fn barriers() -> [Vec<u32>; 3] {
    let made = |shared, count| {
        words(|barrier: *mut libc::pthread_barrier_t| {
            // SAFETY: local variables, made by the functions for that.
            unsafe {
                let mut attributes = MaybeUninit::uninit();
                libc::pthread_barrierattr_init(attributes.as_mut_ptr());
                libc::pthread_barrierattr_setpshared(attributes.as_mut_ptr(), shared);
                libc::pthread_barrier_init(barrier, attributes.as_ptr(), count);
            }
        })
    };
    [
        made(libc::PTHREAD_PROCESS_PRIVATE, 5),
        made(libc::PTHREAD_PROCESS_PRIVATE, 7),
        made(libc::PTHREAD_PROCESS_SHARED, 7),
    ]
}

/// How many meet at a barrier.
pub(super) static BARRIER_COUNT: Word = Word::new(|| only(&barriers(), |values| values == [5, 7, 7]));

/// Whether other processes use it.
pub(super) static BARRIER_SHARED: Word = Word::new(|| {
    only(
        &barriers(),
        |values| matches!(values, [0, 0, shared] if *shared != 0),
    )
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_present_c_library_is_understood() {
        assert!(knows_mutexes());
        for word in [
            &CONDITION,
            &RWLOCK_SHARED,
            &RWLOCK_KIND,
            &RWLOCK_WRITER,
            &SEMAPHORE_SHARED,
            &BARRIER_COUNT,
            &BARRIER_SHARED,
        ] {
            assert!((word.find)().is_some());
        }
    }

    #[test]
    fn a_word_that_is_not_the_only_one_is_not_trusted() {
        assert_eq!(
            only(&[vec![0, 1, 1], vec![0, 2, 2]], |values| values == [1, 2]),
            None
        );
        assert_eq!(
            only(&[vec![0, 1], vec![0, 2]], |values| values == [1, 2]),
            Some(1)
        );
        assert_eq!(only(&[vec![0], vec![0]], |values| values == [1, 2]), None);
    }
}
