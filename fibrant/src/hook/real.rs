//! The functions behind the hooks: what the C library would have done.
//!
//! A call that is not emulated goes there, arguments unchanged. The address is looked up once and kept; the lookup allocates
//! nothing and takes no lock of ours, so it may happen in a constructor, in a signal handler or inside an allocator. In a program
//! that is linked statically there is no next definition to find: then the kernel is called directly, where the function is no more
//! than a system call.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A function of the C library, by its name: `F` is its type.
pub(super) struct Real<F> {
    name: &'static CStr,
    /// The version to look for first, of a function of which the C library keeps an older one as well: see [`Real::versioned`].
    version: Option<&'static CStr>,
    address: AtomicPtr<libc::c_void>,
    function: PhantomData<F>,
}

/// The address of a function that cannot be found.
const ABSENT: *mut libc::c_void = std::ptr::dangling_mut();

impl<F: Copy> Real<F> {
    /// # Safety
    /// `F` is a pointer to functions, and the function of that name is one of them.
    pub(super) const unsafe fn new(name: &'static CStr) -> Real<F> {
        assert!(size_of::<F>() == size_of::<*mut libc::c_void>());
        Real {
            name,
            version: None,
            address: AtomicPtr::new(std::ptr::null_mut()),
            function: PhantomData,
        }
    }

    /// A function that old programs get another version of, which must not be mixed with the present one. This is the present one
    /// on x86_64; elsewhere there is only one.
    ///
    /// # Safety
    /// As [`new`](Real::new).
    pub(super) const unsafe fn versioned(name: &'static CStr, version: &'static CStr) -> Real<F> {
        // SAFETY: the caller's promise.
        let mut real = unsafe { Real::new(name) };
        real.version = Some(version);
        real
    }

    /// The function, if there is one.
    #[inline]
    pub(super) fn get(&self) -> Option<F> {
        let mut address = self.address.load(Relaxed);
        if address.is_null() {
            address = self.look_up();
        }
        // SAFETY: it is the address of the function of that name, which has this type: that was promised.
        (address != ABSENT).then(|| unsafe { std::mem::transmute_copy(&address) })
    }

    #[cold]
    fn look_up(&self) -> *mut libc::c_void {
        // Asked for only where it is there: a lookup in vain allocates its message.
        let version = self.version.filter(|_| cfg!(target_arch = "x86_64"));
        // SAFETY: the names are strings of C's. It finds the definition that the program would use if this library had none.
        let mut found = version.map_or(std::ptr::null_mut(), |version| unsafe {
            libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr())
        });
        if found.is_null() {
            // SAFETY: as above.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        }
        let address = if found.is_null() { ABSENT } else { found };
        self.address.store(address, Relaxed);
        // A look-up forgets the loader's last error, so the function that tells it must have been found before: std calls some
        // hook before `main`.
        super::thread::DLERROR.get();
        address
    }
}
