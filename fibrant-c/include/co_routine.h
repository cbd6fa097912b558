/*
 * Coroutines for C and C++: the names of Tencent's libco, as fibrant has them.
 *
 * A coroutine runs from co_resume() to its next co_yield_ct(), on the thread that created it. After co_enable_hook_sys() a call
 * that would block (read, connect, poll, sleep, a lock, ...) goes back to whoever resumed the coroutine, and co_eventloop()
 * resumes it when the call can go on. Every thread has its own main routine, its own event loop and its own coroutines.
 *
 * Link with -lfibrant (the static library also needs -lpthread -ldl -lm). All functions have C linkage.
 */

#ifndef FIBRANT_CO_ROUTINE_H
#define FIBRANT_CO_ROUTINE_H

#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifndef __cplusplus
#include <stdbool.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Handles. What they hold is the library's own business. */
typedef struct stCoRoutine_t stCoRoutine_t;   /* a coroutine */
typedef struct stShareStack_t stShareStack_t; /* stacks that coroutines take turns on */
typedef struct stCoEpoll_t stCoEpoll_t;       /* the event loop of a thread */
typedef struct stCoCond_t stCoCond_t;         /* a condition that coroutines of one thread wait for */

typedef void *(*pfn_co_routine_t)(void *arg);
typedef int (*pfn_co_eventloop_t)(void *arg);

/*
 * How a coroutine is made. stack_size is in bytes: 0 or less means 128 KiB, more than 8 MiB means 8 MiB, and it is rounded up to
 * whole pages; with a share_stack, that one's size counts instead. There is no padding between the two.
 */
struct stCoRoutineAttr_t {
	int stack_size;
	struct stShareStack_t *share_stack;
#ifdef __cplusplus
	stCoRoutineAttr_t() : stack_size(128 * 1024), share_stack(NULL) {}
#endif
} __attribute__((packed));

typedef struct stCoRoutineAttr_t stCoRoutineAttr_t;

/* The default attributes: `stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;` In C++ the constructor does the same. */
#ifdef __cplusplus
#define CO_ROUTINE_ATTR_INIT stCoRoutineAttr_t()
#else
#define CO_ROUTINE_ATTR_INIT {128 * 1024, NULL}
#endif

/*
 * Coroutines.
 */

/* Makes a coroutine that will call routine(arg), and does not start it. attr may be NULL. 0, or an error number below 0. */
int co_create(struct stCoRoutine_t **co, const struct stCoRoutineAttr_t *attr, void *(*routine)(void *), void *arg);

/* Runs the coroutine until it yields, waits or ends. One that has ended, or is running, is left alone. */
void co_resume(struct stCoRoutine_t *co);

/* Goes back to whoever resumed the current coroutine. */
void co_yield_ct(void);

/*
 * The same; co is any coroutine of this thread. In C++20 the name is a keyword and cannot be a function's: write co_yield_ct()
 * there.
 */
#if !defined(__cpp_impl_coroutine) && !defined(__cpp_coroutines)
void co_yield(struct stCoRoutine_t *co);
#endif

/* Frees a coroutine that is not running. What is on the stack of one that has not ended is dropped, not unwound. */
void co_release(struct stCoRoutine_t *co);

/* Makes a coroutine that is not running start from its beginning at the next co_resume(), with the same routine and argument. */
void co_reset(struct stCoRoutine_t *co);

/* The coroutine that runs; outside every coroutine, the thread's main routine. Never NULL. */
struct stCoRoutine_t *co_self(void);

/* The same under its newer name. */
struct stCoRoutine_t *co_get_current(void);

/*
 * The event loop.
 */

/* The event loop of this thread. */
struct stCoEpoll_t *co_get_epoll_ct(void);

/*
 * poll() for a coroutine, whether or not its hooks are on: waits until one of fds is ready or timeout_ms milliseconds have
 * passed, and answers how many are ready. Less than 0 waits for ever, 0 does not wait. co_poll(ctx, NULL, 0, ms) sleeps.
 */
int co_poll(struct stCoEpoll_t *ctx, struct pollfd fds[], nfds_t nfds, int timeout_ms);

/*
 * Resumes what is ready, turn after turn. pfn(arg), if there is one, is called at the end of every turn, at least once a
 * millisecond, and ends the loop by answering -1; without it the loop never ends, and costs nothing while nothing happens.
 */
void co_eventloop(struct stCoEpoll_t *ctx, pfn_co_eventloop_t pfn, void *arg);

/*
 * Data of each coroutine, by a key of pthread_key_create(). On the main routine they are the thread's own. The key's destructor
 * is called for a value that is not NULL when its coroutine ends, or is released or reset.
 */
int co_setspecific(pthread_key_t key, const void *value);
void *co_getspecific(pthread_key_t key);

/*
 * A new key for these two. It is one of pthread_key_create(), of which a process can have 1024; when they are used up it is one that
 * only these two know, so there is always another. A key is never given back. (fibrant only.)
 */
pthread_key_t co_specific_key(void (*destructor)(void *));

/*
 * Hooks: whether the calls of the current coroutine that would block let others run meanwhile. Off at first.
 */
void co_enable_hook_sys(void);
void co_disable_hook_sys(void);
bool co_is_enable_sys_hook(void);

/* accept(), for programs that were written when a hooked accept() was not enough. */
int co_accept(int fd, struct sockaddr *addr, socklen_t *len);

/*
 * Conditions: coroutines of one thread wait in the order of arrival. A signal makes one of them ready, a broadcast all; the event
 * loop resumes them, so the caller goes on first. A signal that nobody waits for is forgotten.
 */
struct stCoCond_t *co_cond_alloc(void);
int co_cond_free(struct stCoCond_t *cond);
int co_cond_signal(struct stCoCond_t *cond);
int co_cond_broadcast(struct stCoCond_t *cond);

/* Waits for a signal, at most timeout_ms milliseconds; 0 or less waits for ever. Answers 0 in either case. */
int co_cond_timedwait(struct stCoCond_t *cond, int timeout_ms);

/* The same, but tells the two apart: 0 after a signal, ETIMEDOUT after the time. (fibrant only.) */
int co_cond_wait_result(struct stCoCond_t *cond, int timeout_ms);

/*
 * Shared stacks: count stacks of stack_size bytes, given to new coroutines in turn. A coroutine's frames are copied away when
 * another one needs its stack, so no pointer to a local variable may be used by others while the coroutine is not running.
 */
struct stShareStack_t *co_alloc_sharestack(int count, int stack_size);

/* Frees the stacks, after every coroutine on them has been released. (fibrant only.) */
void co_free_sharestack(struct stShareStack_t *share_stack);

/*
 * Names of environment variables that each coroutine with hooks has for itself: getenv(), setenv() and unsetenv() of one see
 * nothing of another's, nor of the process's. Called once, before the coroutines; a second list is ignored.
 */
void co_set_env_list(const char *name[], size_t cnt);

/* Accepted for the sake of programs that call it. */
void co_log_err(const char *fmt, ...);

#ifdef __cplusplus
}
#endif

#endif
