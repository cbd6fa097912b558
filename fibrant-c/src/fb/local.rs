//! Fiber-locals: the section of that name in `fibrant.h`.
//!
//! A key is a place in a list that all fibers have, and a number that says which key it is that has the place now: places are used
//! again. A value is stored with that number, so looking one up needs nothing but the fiber's own list, and finds nothing
//! of an earlier key. What destructors there are is in one table.

use super::argument::Pointer;
use super::error::{Errno, INVALID, answer, guard};
use fibrant::fiber_local;
use libc::{c_int, c_void};
use std::cell::{Cell, RefCell};
use std::ptr::{self, NonNull};
use std::sync::{PoisonError, RwLock};

/// What is called with a value at the fiber's end.
pub type Destructor = unsafe extern "C-unwind" fn(*mut c_void);

/// How often the values of a fiber that ends are looked through, as destructors may set new ones. As `PTHREAD_DESTRUCTOR_ITERATIONS`.
const ROUNDS: usize = 4;

/// `fb_key`, taken apart. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    place: usize,
    /// Which key this is, of those that have had the place: counted from 1.
    number: u32,
}

impl Key {
    fn from_c(key: u64) -> Key {
        Key {
            place: (key & u64::from(u32::MAX)) as usize,
            number: (key >> 32) as u32,
        }
    }

    fn to_c(self) -> u64 {
        u64::from(self.number) << 32 | self.place as u64
    }
}

/// A place: the key that has it, or has had it, and what is to be called for that.
struct Place {
    number: u32,
    is_used: bool,
    destructor: Option<Destructor>,
}

static PLACES: RwLock<Vec<Place>> = RwLock::new(Vec::new());

/// The destructor of a key; an error if there is no such key.
fn look_up(key: Key) -> Result<Option<Destructor>, Errno> {
    let places = PLACES.read().unwrap_or_else(PoisonError::into_inner);
    let place = places.get(key.place);
    let place = place.filter(|place| place.is_used && place.number == key.number);
    place.map(|place| place.destructor).ok_or(INVALID)
}

/// A value, and the number of its key.
#[derive(Clone, Copy)]
struct Value {
    number: u32,
    value: Pointer,
}

const NOTHING: Value = Value {
    number: 0,
    value: Pointer(ptr::null_mut()),
};

/// The values of one fiber or thread, by place. They end with it.
#[derive(Default)]
struct Values(RefCell<Vec<Value>>);

fiber_local! {
    static VALUES: Values = Values::default();
    /// The same while their destructors run: then they cannot be found as above.
    static ENDING: Cell<Option<NonNull<Values>>> = const { Cell::new(None) };
}

/// Calls `f` with the caller's values, unless they have ended.
fn with_values<T>(f: impl FnOnce(&Values) -> T) -> Option<T> {
    let mut f = Some(f);
    let mut call = |values: &Values| f.take().map(|f| f(values));
    if let Ok(result) = VALUES.try_with(&mut call) {
        return result;
    }
    // SAFETY: it is there while the destructors run, on this fiber, and is shared by all who use it.
    let ending = ENDING.try_with(|ending| ending.get().map(|values| call(unsafe { values.as_ref() })));
    ending.ok()??
}

impl Values {
    fn get(&self, key: Key) -> Pointer {
        let values = self.0.borrow();
        let value = values.get(key.place).filter(|value| value.number == key.number);
        value.map_or(NOTHING.value, |value| value.value)
    }

    fn set(&self, key: Key, value: Pointer) {
        let mut values = self.0.borrow_mut();
        if values.len() <= key.place {
            values.resize(key.place + 1, NOTHING);
        }
        values[key.place] = Value {
            number: key.number,
            value,
        };
    }

    /// Calls the destructors of what there is, and says whether there was something.
    fn destroy(&self) -> bool {
        let count = self.0.borrow().len();
        let mut any = false;
        for place in 0..count {
            let Value { number, value } = self.0.borrow()[place];
            if value.0.is_null() {
                continue;
            }
            // As with pthread's, a destructor finds that the value is gone. And nothing is borrowed while it runs.
            self.0.borrow_mut()[place] = NOTHING;
            if let Ok(Some(destructor)) = look_up(Key { place, number }) {
                any = true;
                call(destructor, value.0);
            }
        }
        any
    }
}

/// Calls a destructor. Nothing unwinds from here: see `argument::call`.
pub(crate) extern "C" fn call(destructor: Destructor, value: *mut c_void) {
    // SAFETY: the program has given both, for each other.
    unsafe { destructor(value) }
}

impl Drop for Values {
    fn drop(&mut self) {
        let values: &Values = self;
        // If there is no place for it any more, destructors find no values.
        let _ = ENDING.try_with(|ending| ending.set(Some(NonNull::from(values))));
        (0..ROUNDS).all(|_| values.destroy());
        let _ = ENDING.try_with(|ending| ending.set(None));
    }
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_key_create(key: *mut u64, destructor: Option<Destructor>) -> c_int {
    answer(|| {
        let result = NonNull::new(key).ok_or(INVALID)?;
        // SAFETY: the program's promise.
        unsafe { result.write(new_key(destructor)) };
        Ok(0)
    })
}

/// A new key, as C has it.
pub(crate) fn new_key(destructor: Option<Destructor>) -> u64 {
    let mut places = PLACES.write().unwrap_or_else(PoisonError::into_inner);
    let place = match places.iter().position(|place| !place.is_used) {
        Some(free) => free,
        None => {
            places.push(Place {
                number: 0,
                is_used: false,
                destructor: None,
            });
            places.len() - 1
        }
    };
    // 0 stands for nothing.
    let number = places[place].number.wrapping_add(1).max(1);
    places[place] = Place {
        number,
        is_used: true,
        destructor,
    };
    Key { place, number }.to_c()
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn fb_key_delete(key: u64) -> c_int {
    answer(|| {
        let key = Key::from_c(key);
        let mut places = PLACES.write().unwrap_or_else(PoisonError::into_inner);
        let place = places.get_mut(key.place);
        let place = place.filter(|place| place.is_used && place.number == key.number);
        place.ok_or(INVALID)?.is_used = false;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn fb_set(key: u64, value: *mut c_void) -> c_int {
    answer(|| {
        let key = Key::from_c(key);
        look_up(key)?;
        with_values(|values| values.set(key, Pointer(value))).ok_or(INVALID)?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn fb_get(key: u64) -> *mut c_void {
    let value = guard(|| Ok(with_values(|values| values.get(Key::from_c(key))).unwrap_or(NOTHING.value)));
    value.map_or(ptr::null_mut(), |value| value.0)
}
