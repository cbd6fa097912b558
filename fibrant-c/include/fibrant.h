/*
 * fibrant.h: fibers for C and C++.
 *
 * A fiber is a thread as far as your code can tell, and costs a hundredth of one. A runtime has a
 * few workers, which are threads, and any number of fibers, which take turns on them: where a
 * thread would block (read, accept, connect, poll, sleep, pthread_mutex_lock, waitpid, ...), the
 * fiber waits, and its worker runs another one. Such calls of the C library are the same calls as
 * ever: the library stands in front of them, in fibers only.
 *
 *     static void *serve(void *connection) { ... read(), write(), close() as in a thread ... }
 *
 *     static int program(void *unused) {
 *         ...
 *         for (;;) fb_spawn(NULL, serve, (void *)(intptr_t)accept(listener, NULL, NULL));
 *     }
 *
 *     int main(void) { return fb_run(program, NULL, NULL); }
 *
 * Link with -lfibrant, or with libfibrant.a -lpthread -ldl -lm.
 *
 * Errors. A function that returns an int returns 0, or something positive, on success, and a
 *   negated errno value on failure: -EINVAL, -ETIMEDOUT, ... errno itself is not changed on
 *   purpose. Handles that are NULL, and places for a result that must be there and are not, give
 *   -EINVAL. A handle that was destroyed or joined must not be used any more, and nothing notices
 *   if it is.
 *
 * Memory. If there is none for a handle or the like, the program ends. For stacks there are errors.
 *
 * Who may call. Fibers and plain threads alike, unless it says otherwise; both may use the same
 *   channel, mutex, and so on at the same time. A plain thread that waits blocks. No function may
 *   be called from a signal handler.
 *
 * A fiber never changes its thread once it has started, except that fb_run_on has others run a
 *   function for it. Fibers are not preempted: one that computes for long should call fb_yield now
 *   and then.
 *
 * Cancelling. fb_cancel asks a fiber to end. Nothing is unwound, and nothing of the fiber is taken
 *   away: from then on, functions of this header that wait return -ECANCELED (each says so), and
 *   the hooked call that the fiber waits in, or the next one that would wait, gives -1 with
 *   ECANCELED, once. It is the fiber's part to clean up and return. fb_set_cancel puts it off.
 *
 * Exceptions of C++ must not leave a function that is given to this library: the program is ended
 *   (by abort, with a message). Nor may longjmp or pthread_exit.
 *
 * A bug. Should the library find one in itself (a Rust panic), it prints what it was and calls
 *   abort: an error code would let the program go on with a state that nobody knows.
 */
#ifndef FIBRANT_H
#define FIBRANT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A runtime: workers, and the fibers that they run. */
typedef struct fb_runtime fb_runtime;
/* A fiber that somebody may join. */
typedef struct fb_fiber fb_fiber;
/* A channel: pointers from many senders to many receivers, first in, first out. */
typedef struct fb_channel fb_channel;
/* A mutex. */
typedef struct fb_mutex fb_mutex;
/* A condition variable. */
typedef struct fb_cond fb_cond;
/* A semaphore. */
typedef struct fb_sem fb_sem;
/* A count of what is still to be done, for those who wait until it is 0. */
typedef struct fb_group fb_group;
/* Names a fiber-local. */
typedef uint64_t fb_key;

/* What a fiber runs. */
typedef void *(*fb_function)(void *argument);
/* The result of a fiber whose function did not return. */
#define FB_CANCELED ((void *)-1)

/* A span of time in nanoseconds, by the monotonic clock. Negative is for ever. */
typedef int64_t fb_duration;
#define FB_FOREVER ((fb_duration)-1)
#define FB_NS(n) ((fb_duration)(n))
#define FB_US(n) ((fb_duration)(n) * 1000)
#define FB_MS(n) ((fb_duration)(n) * 1000000)
#define FB_S(n) ((fb_duration)(n) * 1000000000)


/* ---- Runtimes -------------------------------------------------------------------------------- */

/*
 * How a runtime is made. Begin with the initialiser, and change what you want:
 *
 *     fb_runtime_options options = FB_RUNTIME_OPTIONS_INIT;
 *     options.workers = 4;
 *
 * What is left alone comes from the environment variable FIBRANT (FIBRANT=workers=4,stack=64k), or
 * is the default. More fields may follow in later versions: programs need not be compiled again.
 */
typedef struct fb_runtime_options {
    /* The size of this structure, by which the library knows which fields there are. */
    size_t size;
    /* How many workers; 0: as many as there are processors for this process. */
    size_t workers;
    /*
     * The stack size of fibers for which none is named, in bytes; 0: 256 KiB. It is committed by
     * use.
     */
    size_t stack_size;
    /* The runtime's name, for dumps and the names of its threads; NULL: "fibrant". It is copied. */
    const char *name;
    /*
     * 1: fibers share the thread-locals of their worker (_Thread_local, errno, pthread_getspecific)
     * instead of having their own. They are smaller and faster, and work where those cannot be had
     * (see -ENOTSUP below). With it you promise: nothing that a fiber runs keeps state in
     * thread-locals across a wait, for in the meantime other fibers use the same ones. (A hooked
     * call that fails sets errno last, so it may be looked at until the next wait.)
     */
    int light;
    /* 1: the C library's calls are not hooked in this runtime's fibers, and block their worker. */
    int no_hooks;
    /* 1: worker 0 is the thread that calls fb_runtime_run. fb_run sets it by itself. */
    int use_caller;
    /*
     * Prints a dump to standard error, once, if nothing could run for so many milliseconds; 0:
     * never.
     */
    int deadlock_ms;
} fb_runtime_options;

#define FB_RUNTIME_OPTIONS_INIT { sizeof(fb_runtime_options), 0, 0, NULL, 0, 0, 0, 0 }

/*
 * Makes a runtime, runs function(argument) in it, as a fiber on the calling thread, and returns
 * what that returns. Fibers that are left then are cancelled; those that have not ended a second
 * later never run again. options may be NULL.
 *
 * It is what main calls. For errors see fb_runtime_start; the function was not called then, so one
 * that is not to be mistaken returns 0 or something positive. -EBUSY: a fiber called this.
 * From plain threads.
 */
int fb_run(int (*function)(void *argument), void *argument, const fb_runtime_options *options);

/*
 * Starts a runtime whose workers are threads of its own. options may be NULL.
 *
 * -EINVAL: an option, or the environment variable FIBRANT, makes no sense. -E2BIG: an option is set
 * that this version of the library does not know. -ENOTSUP: fibers cannot have thread-locals of
 * their own here (it takes glibc 2.34, linked dynamically, and Linux 5.9 on x86_64), and light was
 * not set. -EAGAIN, -EMFILE, -ENOMEM: the system refuses a thread, a descriptor, memory.
 */
int fb_runtime_start(fb_runtime **runtime, const fb_runtime_options *options);

/*
 * Runs function(argument) as a fiber of the runtime, on the calling thread, which is a worker
 * meanwhile, and puts what it returns into *result, unless that is NULL. Returns when the fibers
 * that have started on this thread have ended.
 *
 * With use_caller the thread becomes worker 0 for good. -EPERM: that is another thread. -EBUSY: a
 * fiber called this. From plain threads.
 */
int fb_runtime_run(fb_runtime *runtime, fb_function function, void *argument, void **result);

/*
 * Waits until all fibers of the runtime have ended, ends its threads, and frees it. From outside it
 * takes no more work meanwhile; fibers may still spawn others. It waits for ever if a fiber does
 * not end.
 *
 * -EDEADLK: a fiber called this; -EPERM: the runtime is that of the process from which this one was
 * forked; in both cases it still is what it was. From plain threads.
 */
int fb_runtime_stop(fb_runtime *runtime);

/*
 * The same, but waits for at most that long, then cancels the fibers that are left, and a second
 * later gives up those that have not ended: they never run again. The runtime is freed in any case.
 * Returns how many were given up, so 0 if all have ended.
 *
 * -EDEADLK, as above. From plain threads.
 */
int fb_runtime_shutdown(fb_runtime *runtime, fb_duration patience);

/*
 * How many workers the runtime has. NULL is the runtime of the calling fiber; outside fibers it is
 * the global runtime, which is started when it is first needed and never ends. Errors of its start
 * are those of fb_runtime_start.
 */
int fb_workers(const fb_runtime *runtime);


/* ---- Fibers ---------------------------------------------------------------------------------- */

/* How a fiber is made. Begin with the initialiser. */
typedef struct fb_attr {
    /* The size of this structure, as in fb_runtime_options. */
    size_t size;
    /* Its name, for dumps and messages; NULL: none. It is copied. */
    const char *name;
    /* Its stack size in bytes; 0: that of its runtime. A stack that overflows ends the program. */
    size_t stack_size;
    /* The worker that it runs on, counted from 0; -1: any. */
    int worker;
    /*
     * 1: it shares the thread-locals of its worker. See fb_runtime_options.light for what you
     * promise.
     */
    int light;
} fb_attr;

#define FB_ATTR_INIT { sizeof(fb_attr), NULL, 0, -1, 0 }

/*
 * Spawns a fiber that runs function(argument), in the runtime of the calling fiber; outside fibers,
 * in the global runtime. *fiber is for fb_join or fb_detach, one of which must follow. If fiber is
 * NULL it is detached from the beginning.
 *
 * Outside fibers: the errors of fb_runtime_start. That a fiber finds no stack when it starts is
 * told to whoever joins it.
 */
int fb_spawn(fb_fiber **fiber, fb_function function, void *argument);

/*
 * The same in that runtime (NULL: as fb_spawn), with attributes (NULL: none).
 *
 * -EINVAL: there is no such worker, or an attribute makes no sense. -E2BIG: one that this version
 * of the library does not know. -ESHUTDOWN: the runtime is being stopped, and the caller is not one
 * of its fibers.
 */
int fb_spawn_in(fb_runtime *runtime, fb_fiber **fiber, const fb_attr *attr, fb_function function,
                void *argument);

/*
 * Waits for the fiber to end, puts what its function returned into *result, unless that is NULL,
 * and frees the handle. If the fiber was cancelled before it had started, or was given up by
 * fb_runtime_shutdown, its function did not return, and the result is FB_CANCELED.
 *
 * -ENOMEM: there was no stack for the fiber, and its function was not called.
 *
 * With these the handle stays: -ECANCELED: the caller was cancelled. -EDEADLK: the fiber is the
 * caller itself. -EBUSY: somebody else is joining it.
 */
int fb_join(fb_fiber *fiber, void **result);

/* The same, for at most that long. -ETIMEDOUT: it has not ended, and the handle stays. */
int fb_join_timeout(fb_fiber *fiber, void **result, fb_duration timeout);

/*
 * Lets the fiber go on by itself, and frees the handle. -EBUSY: somebody is joining it. Does not
 * wait.
 */
int fb_detach(fb_fiber *fiber);

/* 1 if the fiber has ended, so that joining it does not wait; 0 if it has not. */
int fb_finished(const fb_fiber *fiber);

/*
 * Asks the fiber to end: see above. One that has not started never does. A fiber that does not
 * wait, or does not look at what waiting returns, goes on. It cannot be taken back. Does not wait.
 */
int fb_cancel(fb_fiber *fiber);

/*
 * 1 if the calling fiber was cancelled, whether or not that is put off; 0 if not, and outside
 * fibers.
 */
int fb_cancelled(void);

/*
 * 0: waits of the calling fiber do not end because it is cancelled, until this is called with 1.
 * Returns what it was before; it begins with 1. In plain threads it changes nothing.
 */
int fb_set_cancel(int enabled);

/* The fiber's number, which no other fiber of this process has or had; 0 if the handle is NULL. */
uint64_t fb_id(const fb_fiber *fiber);

/* The number of the calling fiber; 0 outside fibers. */
uint64_t fb_self_id(void);

/*
 * Puts the name of the calling fiber into the buffer, as a string, and returns its length. A fiber
 * without a name has an empty one. -ERANGE: the buffer is too small. -ESRCH: a plain thread called
 * this.
 */
int fb_self_name(char *buffer, size_t size);

/* Sleeps at least that long. sleep, usleep and nanosleep do as well. -ECANCELED. */
int fb_sleep(fb_duration time);

/* Lets the other fibers of this worker have a turn. Returns 0, also if the caller was cancelled. */
int fb_yield(void);

/*
 * Has function(argument) run by a new fiber on that worker of the runtime (NULL: as fb_workers),
 * waits for its end, and puts what it returned into *result, unless that is NULL.
 *
 * -EINVAL: there is no such worker. -ESHUTDOWN: as fb_spawn_in. -ECANCELED: it was cancelled, by
 * fb_runtime_shutdown, before it had started, or was given up. -ENOMEM: there was no stack for it.
 * That the caller is cancelled does not end the wait: the function may use what is on its stack.
 */
int fb_run_on(fb_runtime *runtime, size_t worker, fb_function function, void *argument,
              void **result);

/*
 * Has function(argument) run by a real thread while the calling fiber waits, and puts what it
 * returned into *result, unless that is NULL: for what blocks or computes without the library
 * seeing it. In a plain thread it is a call.
 *
 * -EAGAIN: there is no thread. Being cancelled does not end the wait, as above.
 */
int fb_blocking(fb_function function, void *argument, void **result);

/*
 * 0: the C library's calls block in the calling fiber, which keeps its worker from running others;
 * 1: they wait as fibers do. Returns what it was before. In plain threads it is noted, and changes
 * nothing.
 */
int fb_set_hooks(int enabled);


/* ---- Channels -------------------------------------------------------------------------------- */

/* The capacity of a channel that holds any number of messages. */
#define FB_UNBOUNDED ((size_t)-1)

/*
 * Makes a channel that holds up to so many messages. 0: none, so that a sender waits until its
 * message is received. FB_UNBOUNDED: any number, so that senders never wait. A message is a
 * pointer; what it points to is the program's own. The name, for dumps, may be NULL, and is copied.
 *
 * Those who wait are served in the order in which they came.
 */
int fb_channel_create(fb_channel **channel, size_t capacity, const char *name);

/* One more who uses the channel, and calls fb_channel_unref in the end. Returns the channel. */
fb_channel *fb_channel_ref(fb_channel *channel);

/*
 * One who uses the channel less: whoever has made it, or called fb_channel_ref. The last frees it;
 * messages that are in it then are forgotten. Nobody may be using it meanwhile without a reference.
 * NULL does nothing.
 */
void fb_channel_unref(fb_channel *channel);

/*
 * Closes the channel: nothing can be sent any more, receivers get what is left, and then -EPIPE.
 * Whoever waits there is woken, a sender with its message unsent. Closing it again does nothing.
 */
int fb_channel_close(fb_channel *channel);

/* How many messages are in the channel, at most INT_MAX. */
int fb_channel_length(const fb_channel *channel);

/*
 * Sends a message, and waits until there is room for it. -EPIPE: the channel is closed. -ECANCELED.
 */
int fb_send(fb_channel *channel, void *message);
/*
 * The same without waiting. -EAGAIN: there is no room, or, if the capacity is 0, nobody to receive
 * it. -EPIPE.
 */
int fb_try_send(fb_channel *channel, void *message);
/* The same, waiting for at most that long. -ETIMEDOUT, -EPIPE, -ECANCELED. */
int fb_send_timeout(fb_channel *channel, void *message, fb_duration timeout);

/*
 * Waits for a message, and puts it into *message, or forgets it, if message is NULL. -EPIPE: the
 * channel is closed, and all has been received. -ECANCELED. After an error *message is what it was.
 */
int fb_recv(fb_channel *channel, void **message);
/* The same without waiting. -EAGAIN: there is none. -EPIPE. */
int fb_try_recv(fb_channel *channel, void **message);
/* The same, waiting for at most that long. -ETIMEDOUT, -EPIPE, -ECANCELED. */
int fb_recv_timeout(fb_channel *channel, void **message, fb_duration timeout);

/* One of the things that fb_select can do. */
typedef struct fb_case {
    /* FB_RECV or FB_SEND. */
    int operation;
    /* What it did, if it was the one: 0, or -EPIPE if the channel is closed. */
    int result;
    /* Where; NULL: nowhere, so that it is never done. */
    fb_channel *channel;
    /* What is sent, or what was received. */
    void *message;
} fb_case;

#define FB_RECV 1
#define FB_SEND 2

/*
 * Waits, for at most that long, until one of the cases can be done, does that one and no other, and
 * returns its index. If several can, each is equally likely. A closed channel is one that can: see
 * result.
 *
 *     fb_case cases[] = {{FB_RECV, 0, jobs, NULL}, {FB_SEND, 0, results, next}};
 *     switch (fb_select(cases, 2, FB_S(5))) { case 0: ... cases[0].message ...
 *
 * -ETIMEDOUT: none could, also if the time is 0. -EINVAL: an operation is neither. -ECANCELED.
 */
int fb_select(fb_case *cases, size_t count, fb_duration timeout);


/* ---- Locks ----------------------------------------------------------------------------------- */

/*
 * pthread's and C11's locks work in fibers, as they are. These can be seen in dumps, with who holds
 * and wants them, are for light fibers, too, and their waits can be cancelled, except for that of a
 * mutex. Names may be NULL, and are copied.
 */

/* Makes a mutex. */
int fb_mutex_create(fb_mutex **mutex, const char *name);
/* Frees it. -EBUSY: it is locked. */
int fb_mutex_destroy(fb_mutex *mutex);
/*
 * Locks it, and waits for that. -EDEADLK: the caller has locked it already. Cancelling does not end
 * the wait.
 */
int fb_mutex_lock(fb_mutex *mutex);
/* Locks it, if it is free. -EBUSY: it is not. */
int fb_mutex_trylock(fb_mutex *mutex);
/* Unlocks it. -EPERM: the caller has not locked it. */
int fb_mutex_unlock(fb_mutex *mutex);

/* Makes a condition variable. */
int fb_cond_create(fb_cond **cond, const char *name);
/* Frees it. -EBUSY: somebody waits, or is about to return from waiting. */
int fb_cond_destroy(fb_cond *cond);
/*
 * Unlocks the mutex, waits to be told by fb_cond_signal or fb_cond_broadcast, and locks the mutex
 * again. As ever, call it in a loop that looks whether there is a reason to wait.
 *
 * -EPERM: the caller has not locked the mutex. -EINVAL: others wait there with another mutex.
 * -ECANCELED. The mutex is locked afterwards, in any case but the first.
 */
int fb_cond_wait(fb_cond *cond, fb_mutex *mutex);
/* The same, for at most that long (a span, not a moment). -ETIMEDOUT. */
int fb_cond_wait_timeout(fb_cond *cond, fb_mutex *mutex, fb_duration timeout);
/* Tells the one that has waited longest, if there is one. */
int fb_cond_signal(fb_cond *cond);
/* Tells all who wait. */
int fb_cond_broadcast(fb_cond *cond);

/* Makes a semaphore with so many permits. -EINVAL: more than INT_MAX. */
int fb_sem_create(fb_sem **sem, size_t permits, const char *name);
/* Frees it. Nobody may wait for it. */
int fb_sem_destroy(fb_sem *sem);
/* Takes a permit, and waits for one. -ECANCELED. */
int fb_sem_wait(fb_sem *sem);
/* Takes a permit, if there is one. -EAGAIN: there is none. */
int fb_sem_trywait(fb_sem *sem);
/* Takes a permit, and waits for at most that long. -ETIMEDOUT, -ECANCELED. */
int fb_sem_wait_timeout(fb_sem *sem, fb_duration timeout);
/* Adds a permit. -EOVERFLOW: there are INT_MAX. */
int fb_sem_post(fb_sem *sem);
/* How many permits there are. */
int fb_sem_value(const fb_sem *sem);

/* Makes a group with a count of 0. */
int fb_group_create(fb_group **group, const char *name);
/* Frees it. -EBUSY: somebody waits for it. */
int fb_group_destroy(fb_group *group);
/* Adds to the count: so much more is to be done. -EOVERFLOW. */
int fb_group_add(fb_group *group, size_t count);
/* Takes one from the count. -EINVAL: it is 0. */
int fb_group_done(fb_group *group);
/* Waits until the count is 0. -ECANCELED. */
int fb_group_wait(fb_group *group);
/* The same, for at most that long. -ETIMEDOUT, -ECANCELED. */
int fb_group_wait_timeout(fb_group *group, fb_duration timeout);


/* ---- Fiber-locals ---------------------------------------------------------------------------- */

/*
 * What pthread_key_create is for threads: one value for each fiber, and for each plain thread. The
 * destructor, if it is not NULL, is called with the value of a fiber that ends, if that is not
 * NULL, on that fiber, before whoever joins it goes on; it may wait. As with pthread's, a
 * destructor may set values, and up to four rounds are made. What runs in fb_run or fb_runtime_run
 * has the values of its thread; those of the main thread are not destroyed.
 */
int fb_key_create(fb_key *key, void (*destructor)(void *value));
/*
 * Deletes the key. Destructors are not called for what it still stands for. -EINVAL: there is no
 * such key.
 */
int fb_key_delete(fb_key key);
/* Sets the caller's value. -EINVAL: there is no such key, or the caller's locals have ended. */
int fb_set(fb_key key, void *value);
/* The caller's value; NULL if it has none. What a deleted key gives is not defined, but safe. */
void *fb_get(fb_key key);


/* ---- Dumps ----------------------------------------------------------------------------------- */

/*
 * Writes what each worker and each fiber of the runtime is doing: its name, what it waits for, for
 * how long, and who holds that. NULL: as fb_workers. From anywhere; what is looked at goes on
 * meanwhile. Or the error of writing.
 */
int fb_dump(const fb_runtime *runtime, FILE *file);
/* The same to a descriptor. */
int fb_dump_fd(const fb_runtime *runtime, int fd);

#ifdef __cplusplus
}
#endif

#endif
