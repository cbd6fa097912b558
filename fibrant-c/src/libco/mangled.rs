//! libco's functions under the names that C++ gives them: libco's own headers once declared them without `extern "C"`, and objects
//! that were compiled against those ask for these names.

use super::condition::{self, CoMutex, Condition};
use super::coroutine::{self, Attributes, jump_to};
use super::{event_loop, specific};
use fibrant::routine::{self, Function, Routine, SharedStacks};
use libc::{c_char, c_int, c_void, nfds_t, pollfd, pthread_key_t, size_t, sockaddr, socklen_t};

/// Defines a function that calls another, under a name of C++'s.
macro_rules! mangled {
    ($($name:literal $own:ident ($($argument:ident: $type:ty),*) $(-> $result:ty)? => $function:path;)+) => {
        $(
            /// Another name for the function.
            ///
            /// # Safety
            /// As the function that it calls.
            #[unsafe(export_name = $name)]
            #[allow(unused_unsafe, reason = "some of them are safe")]
            pub unsafe extern "C" fn $own($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller's promise.
                unsafe { $function($($argument),*) }
            }
        )+
    };
}

mangled! {
    "_Z9co_createPP13stCoRoutine_tPK17stCoRoutineAttr_tPFPvS5_ES5_" create (co: *mut *mut Routine, attributes: *const Attributes, function: Option<Function>, argument: *mut c_void) -> c_int => coroutine::co_create;
    "_Z10co_releaseP13stCoRoutine_t" release (co: *mut Routine) => coroutine::co_release;
    "_Z7co_freeP13stCoRoutine_t" free (co: *mut Routine) => coroutine::co_free;
    "_Z8co_resetP13stCoRoutine_t" reset (co: *mut Routine) => coroutine::co_reset;
    "_Z7co_selfv" itself () -> *mut Routine => coroutine::co_self;
    "_Z14co_get_currentv" current () -> *mut Routine => coroutine::co_get_current;
    "_Z15GetCurrThreadCov" current_of_thread () -> *mut Routine => coroutine::GetCurrThreadCo;
    "_Z22co_get_curr_thread_envv" environment () -> *mut c_void => coroutine::co_get_curr_thread_env;
    "_Z23co_init_curr_thread_envv" make_environment () => coroutine::co_init_curr_thread_env;
    "_Z19co_alloc_sharestackii" alloc_sharestack (count: c_int, size: c_int) -> *mut SharedStacks => coroutine::co_alloc_sharestack;
    "_Z18co_free_sharestackP14stShareStack_t" free_sharestack (stacks: *mut SharedStacks) => coroutine::co_free_sharestack;
    "_Z10co_log_errPKcz" log_err (format: *const c_char) => coroutine::co_log_err;
    "_Z15co_get_epoll_ctv" epoll () -> *mut c_void => event_loop::co_get_epoll_ct;
    "_Z12co_eventloopP11stCoEpoll_tPFiPvES1_" run (epoll: *mut c_void, after: Option<unsafe extern "C" fn(*mut c_void) -> c_int>, argument: *mut c_void) => event_loop::co_eventloop;
    "_Z7co_pollP11stCoEpoll_tP6pollfdmi" poll (epoll: *mut c_void, descriptors: *mut pollfd, count: nfds_t, milliseconds: c_int) -> c_int => event_loop::co_poll;
    "_Z9co_acceptiP8sockaddrPj" accept (fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int => event_loop::co_accept;
    "_Z18co_enable_hook_sysv" enable () => event_loop::co_enable_hook_sys;
    "_Z19co_disable_hook_sysv" disable () => event_loop::co_disable_hook_sys;
    "_Z21co_is_enable_sys_hookv" is_enabled () -> bool => event_loop::co_is_enable_sys_hook;
    "_Z14co_setspecificjPKv" set_specific (key: pthread_key_t, value: *const c_void) -> c_int => specific::co_setspecific;
    "_Z14co_getspecificj" get_specific (key: pthread_key_t) -> *mut c_void => specific::co_getspecific;
    "_Z15co_specific_keyPFvPvE" specific_key (destructor: Option<unsafe extern "C" fn(*mut c_void)>) -> pthread_key_t => specific::co_specific_key;
    "_Z15co_set_env_listPPKcm" set_env_list (names: *const *const c_char, count: size_t) => super::environment::co_set_env_list;
    "_Z13co_cond_allocv" cond_alloc () -> *mut Condition => condition::co_cond_alloc;
    "_Z12co_cond_freeP10stCoCond_t" cond_free (cond: *mut Condition) -> c_int => condition::co_cond_free;
    "_Z14co_cond_signalP10stCoCond_t" cond_signal (cond: *mut Condition) -> c_int => condition::co_cond_signal;
    "_Z17co_cond_broadcastP10stCoCond_t" cond_broadcast (cond: *mut Condition) -> c_int => condition::co_cond_broadcast;
    "_Z17co_cond_timedwaitP10stCoCond_ti" cond_timedwait (cond: *mut Condition, milliseconds: c_int) -> c_int => condition::co_cond_timedwait;
    "_Z19co_cond_wait_resultP10stCoCond_ti" cond_wait_result (cond: *mut Condition, milliseconds: c_int) -> c_int => condition::co_cond_wait_result;
    "_ZN10clsCoMutexC1Ev" mutex_made (place: *mut CoMutex) => CoMutex::construct;
    "_ZN10clsCoMutexC2Ev" mutex_base_made (place: *mut CoMutex) => CoMutex::construct;
    "_ZN10clsCoMutexD1Ev" mutex_destroyed (place: *mut CoMutex) => CoMutex::destroy;
    "_ZN10clsCoMutexD2Ev" mutex_base_destroyed (place: *mut CoMutex) => CoMutex::destroy;
    "_ZN10clsCoMutex6CoLockEv" mutex_lock (place: *mut CoMutex) => CoMutex::lock;
    "_ZN10clsCoMutex8CoUnLockEv" mutex_unlock (place: *mut CoMutex) => CoMutex::unlock;
}

/// Defines a function that switches, under a name of C++'s.
macro_rules! mangled_switch {
    ($($name:literal $own:ident ($($argument:ident: $type:ty)?) => $function:path;)+) => {
        $(
            /// Another name for the function.
            ///
            /// # Safety
            /// As the function that it is.
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            pub unsafe extern "C" fn $own($($argument: $type)?) {
                jump_to!($function)
            }
        )+
    };
}

mangled_switch! {
    "_Z9co_resumeP13stCoRoutine_t" resume (co: *mut Routine) => routine::resume;
    "_Z8co_yieldP13stCoRoutine_t" yield_it (co: *mut Routine) => routine::suspend;
    "_Z11co_yield_ctv" yield_now () => routine::suspend;
    "_Z12co_yield_envP16stCoRoutineEnv_t" yield_env (environment: *mut c_void) => routine::suspend;
}
