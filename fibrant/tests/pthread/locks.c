/* Locks as C programs use them: made by their initialisers, held across calls that block, and checked by those who hold them.
 *
 * The test compiles this as a shared library and loads it: so the names that it uses are looked up with their versions, as any library's
 * are. Every function is called by several fibers and threads at once, and returns how many things it found wrong. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* What a member of the crowd is told: its number, of how many, and how often to do it. */
struct member {
    int index, count, rounds;
};

/* One thing more that is wrong, unless the condition holds. */
#define wrong(condition) wrong_at(condition, #condition, __LINE__)
static long wrong_at(int holds, const char *condition, int line) {
    if (!holds)
        fprintf(stderr, "locks.c:%d: not true: %s\n", line, condition);
    return !holds;
}

/* Does something that may block, now and then. */
static void linger(int round) {
    switch (round % 7) {
    case 0:
        usleep(50);
        break;
    case 2:
        sched_yield();
        break;
    case 4: {
        int ends[2];
        char byte = 1;
        if (pipe2(ends, O_CLOEXEC) == 0) {
            if (write(ends[1], &byte, 1) != 1 || read(ends[0], &byte, 1) != 1) abort();
            close(ends[0]);
            close(ends[1]);
        }
        break;
    }
    case 5:
        usleep(300);
        break;
    }
}

static struct timespec after(clockid_t clock, long milliseconds) {
    struct timespec time;
    clock_gettime(clock, &time);
    time.tv_sec += milliseconds / 1000;
    time.tv_nsec += milliseconds % 1000 * 1000000;
    if (time.tv_nsec >= 1000000000) {
        time.tv_sec++;
        time.tv_nsec -= 1000000000;
    }
    return time;
}

/* What only one at a time may change. */
static int inside, total;

static long visit(int round) {
    long found = wrong(++inside == 1);
    int before = total;
    linger(round);
    total = before + 1;
    found += wrong(inside == 1);
    inside--;
    return found;
}

int take_total(void) {
    int result = total;
    total = 0;
    return result;
}

/* Mutexes. */

static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t checked = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
static pthread_mutex_t adaptive = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t robust, shared, robust_shared;
static mtx_t standard, standard_recursive;

static void make(pthread_mutex_t *mutex, int is_robust, int is_shared) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    if (is_robust) pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    if (is_shared) pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(mutex, &attributes);
}

__attribute__((constructor)) static void begin(void) {
    make(&robust, 1, 0);
    make(&shared, 0, 1);
    make(&robust_shared, 1, 1);
    mtx_init(&standard, mtx_timed);
    mtx_init(&standard_recursive, mtx_recursive | mtx_timed);
}

static long hammer(pthread_mutex_t *mutex, struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        found += wrong(pthread_mutex_lock(mutex) == 0);
        found += visit(round + member->index);
        found += wrong(pthread_mutex_unlock(mutex) == 0);
    }
    return found;
}

long hammer_plain(struct member *member) { return hammer(&plain, member); }
long hammer_adaptive(struct member *member) { return hammer(&adaptive, member); }
long hammer_robust(struct member *member) { return hammer(&robust, member); }
long hammer_shared(struct member *member) { return hammer(&shared, member); }
long hammer_checked(struct member *member) { return hammer(&checked, member); }

long hammer_recursive(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        found += wrong(pthread_mutex_lock(&recursive) == 0);
        found += wrong(pthread_mutex_lock(&recursive) == 0);
        found += visit(round + member->index);
        found += wrong(pthread_mutex_unlock(&recursive) == 0);
        found += wrong(inside == 0);
        found += wrong(pthread_mutex_unlock(&recursive) == 0);
    }
    return found;
}

/* Who has locked it may not lock it again, nobody else may unlock it, and others wait. */
long own_checked(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        found += wrong(pthread_mutex_unlock(&checked) == EPERM);
        found += wrong(pthread_mutex_lock(&checked) == 0);
        found += wrong(pthread_mutex_lock(&checked) == EDEADLK);
        found += visit(round + member->index);
        found += wrong(pthread_mutex_unlock(&checked) == 0);
    }
    return found;
}

long hammer_timed(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        struct timespec time;
        int result;
        if (round % 2) {
            time = after(CLOCK_REALTIME, 20000);
            result = pthread_mutex_timedlock(&plain, &time);
        } else {
            time = after(CLOCK_MONOTONIC, 20000);
            result = pthread_mutex_clocklock(&plain, CLOCK_MONOTONIC, &time);
        }
        found += wrong(result == 0);
        found += visit(round + member->index);
        found += wrong(pthread_mutex_unlock(&plain) == 0);
    }
    return found;
}

/* Most of these give up. Those who do not are alone inside. */
long hammer_impatient(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds;) {
        struct timespec time = after(CLOCK_REALTIME, 1);
        switch (pthread_mutex_timedlock(&plain, &time)) {
        case 0:
            found += visit(round + member->index);
            found += wrong(pthread_mutex_unlock(&plain) == 0);
            round++;
            break;
        case ETIMEDOUT:
            break;
        default:
            return found + 1;
        }
    }
    return found;
}

long hammer_standard(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        struct timespec time = after(CLOCK_REALTIME, 20000);
        found += wrong((round % 2 ? mtx_lock(&standard) : mtx_timedlock(&standard, &time)) == thrd_success);
        found += visit(round + member->index);
        found += wrong(mtx_unlock(&standard) == thrd_success);
    }
    return found;
}

/* For those who hold and those who want: one lock of each kind. */
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static pthread_rwlock_t writers_first = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static sem_t semaphore;
static _Atomic int readers;

static long hammer_rwlock(pthread_rwlock_t *lock, struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        struct timespec time = after(CLOCK_REALTIME, 20000), other = after(CLOCK_MONOTONIC, 20000);
        int way = (round + member->index) % 6, result;
        switch (way) {
        case 0:
            result = pthread_rwlock_wrlock(lock);
            break;
        case 1:
            result = pthread_rwlock_timedwrlock(lock, &time);
            break;
        case 2:
            result = pthread_rwlock_clockwrlock(lock, CLOCK_MONOTONIC, &other);
            break;
        case 3:
            result = pthread_rwlock_rdlock(lock);
            break;
        case 4:
            result = pthread_rwlock_timedrdlock(lock, &time);
            break;
        default:
            result = pthread_rwlock_clockrdlock(lock, CLOCK_MONOTONIC, &other);
            break;
        }
        found += wrong(result == 0);
        if (way < 3) {
            found += wrong(readers == 0);
            found += visit(round / 6 + member->index);
            found += wrong(readers == 0);
        } else {
            readers++;
            found += wrong(inside == 0);
            int before = total;
            linger(round / 6 + member->index);
            found += wrong(inside == 0 && total == before);
            readers--;
        }
        found += wrong(pthread_rwlock_unlock(lock) == 0);
    }
    return found;
}

long hammer_rw(struct member *member) { return hammer_rwlock(&rw, member); }
long hammer_writers_first(struct member *member) { return hammer_rwlock(&writers_first, member); }

/* A semaphore with one to give is a lock. */
int begin_semaphore(int is_shared) { return sem_init(&semaphore, is_shared, 1); }

long hammer_semaphore(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        struct timespec time = after(CLOCK_REALTIME, 20000), other = after(CLOCK_MONOTONIC, 20000);
        int result = round % 3 == 0 ? sem_wait(&semaphore)
                     : round % 3 == 1 ? sem_timedwait(&semaphore, &time)
                                      : sem_clockwait(&semaphore, CLOCK_MONOTONIC, &other);
        found += wrong(result == 0);
        found += visit(round + member->index);
        found += wrong(sem_post(&semaphore) == 0);
    }
    return found;
}

/* A queue with room for two: those with even numbers fill it, the others empty it. */

static pthread_cond_t has_room = PTHREAD_COND_INITIALIZER, has_something = PTHREAD_COND_INITIALIZER;
static cnd_t standard_room, standard_something;
static int length, sent, received;

static long pass_on(struct member *member, pthread_mutex_t *mutex, pthread_cond_t *room, pthread_cond_t *something) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        found += wrong(pthread_mutex_lock(mutex) == 0);
        int fills = member->index % 2 == 0;
        while (fills ? length == 2 : length == 0) {
            struct timespec time = after(CLOCK_REALTIME, 20000), other = after(CLOCK_MONOTONIC, 20000);
            pthread_cond_t *condition = fills ? room : something;
            int result = round % 3 == 0 ? pthread_cond_wait(condition, mutex)
                         : round % 3 == 1 ? pthread_cond_timedwait(condition, mutex, &time)
                                          : pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &other);
            found += wrong(result == 0);
        }
        if (fills) {
            length++, sent++;
        } else {
            length--, received++;
        }
        found += visit(round + member->index);
        if (round % 2) {
            found += wrong(pthread_cond_signal(fills ? something : room) == 0);
            found += wrong(pthread_mutex_unlock(mutex) == 0);
        } else {
            found += wrong(pthread_mutex_unlock(mutex) == 0);
            found += wrong(pthread_cond_signal(fills ? something : room) == 0);
        }
    }
    return found;
}

long hammer_queue(struct member *member) { return pass_on(member, &plain, &has_room, &has_something); }

static pthread_cond_t shared_room, shared_something;

int begin_shared_queue(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    return pthread_cond_init(&shared_room, &attributes) + pthread_cond_init(&shared_something, &attributes);
}

long hammer_shared_queue(struct member *member) {
    return pass_on(member, &shared, &shared_room, &shared_something);
}

int begin_standard_queue(void) { return cnd_init(&standard_room) + cnd_init(&standard_something); }

long hammer_standard_queue(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        found += wrong(mtx_lock(&standard) == thrd_success);
        int fills = member->index % 2 == 0;
        while (fills ? length == 2 : length == 0) {
            struct timespec time = after(CLOCK_REALTIME, 20000);
            cnd_t *condition = fills ? &standard_room : &standard_something;
            int result = round % 2 ? cnd_wait(condition, &standard) : cnd_timedwait(condition, &standard, &time);
            found += wrong(result == thrd_success);
        }
        length += fills ? 1 : -1;
        found += visit(round + member->index);
        cnd_t *others = fills ? &standard_something : &standard_room;
        found += wrong((round % 2 ? cnd_signal(others) : cnd_broadcast(others)) == thrd_success);
        found += wrong(mtx_unlock(&standard) == thrd_success);
    }
    return found;
}

/* Who waits, for as long as it takes: each is counted when it is in line, and when it was woken. */

static int waiting, woken;

long wait_to_be_woken(struct member *member) {
    (void)member;
    pthread_mutex_lock(&plain);
    waiting++;
    int result = pthread_cond_wait(&has_something, &plain);
    woken++;
    pthread_mutex_unlock(&plain);
    return wrong(result == 0);
}

void read_waiting(int *of_them, int *of_these) {
    pthread_mutex_lock(&plain);
    *of_them = waiting;
    *of_these = woken;
    pthread_mutex_unlock(&plain);
}

void forget_waiting(void) { waiting = woken = 0; }
void signal_one(void) { pthread_cond_signal(&has_something); }
void signal_all(void) { pthread_cond_broadcast(&has_something); }

/* Meetings. The last one of the last round destroys the barrier, and spoils what it was. */

static pthread_barrier_t *barrier;
static _Atomic int serials, met;

void begin_barrier(int count, int is_shared) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    if (is_shared) pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    barrier = malloc(sizeof *barrier);
    pthread_barrier_init(barrier, &attributes, count);
    serials = met = 0;
}

int take_serials(void) { return serials; }

long meet(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        linger(round + member->index);
        met++;
        int result = pthread_barrier_wait(barrier);
        /* All of this round have come, and none of the one after the next. */
        found += wrong(met >= (round + 1) * member->count && met <= (round + 2) * member->count);
        if (result == PTHREAD_BARRIER_SERIAL_THREAD) {
            serials++;
            if (round == member->rounds - 1) {
                pthread_barrier_destroy(barrier);
                memset(barrier, 0xAA, sizeof *barrier);
                free(barrier);
            }
        } else {
            found += wrong(result == 0);
        }
    }
    return found;
}

/* Once. The initialiser takes its time. */

enum { ONCES = 64 };
static pthread_once_t onces[ONCES];
static once_flag flags[ONCES];
static int done;
static pthread_once_t first = PTHREAD_ONCE_INIT;
static once_flag second = ONCE_FLAG_INIT;

static void initialise(void) {
    int before = done;
    usleep(500);
    done = before + 1;
}

long initialise_once(struct member *member) {
    long found = wrong(pthread_once(&first, initialise) == 0);
    found += wrong(done >= 1);
    call_once(&second, initialise);
    found += wrong(done >= 2);
    for (int round = 0; round < member->rounds && round < ONCES; round++) {
        found += wrong(pthread_once(&onces[round], initialise) == 0);
        found += wrong(done >= 2 * round + 3);
        call_once(&flags[round], initialise);
        found += wrong(done >= 2 * round + 4);
    }
    return found;
}

/* How many were run since; and they may be run again. */
int take_done(void) {
    int result = done;
    done = 0;
    memset(onces, 0, sizeof onces);
    memset(flags, 0, sizeof flags);
    memset(&first, 0, sizeof first);
    memset(&second, 0, sizeof second);
    return result;
}

/* Who holds everything while others time out. */

static pthread_rwlock_t held_rw = PTHREAD_RWLOCK_INITIALIZER;
static sem_t empty;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER, free_one = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static mtx_t held_standard, free_standard;
static cnd_t never_standard;

void hold_all(void) {
    sem_init(&empty, 0, 0);
    mtx_init(&held_standard, mtx_timed);
    mtx_init(&free_standard, mtx_plain);
    cnd_init(&never_standard);
    pthread_mutex_lock(&held);
    pthread_rwlock_wrlock(&held_rw);
    mtx_lock(&held_standard);
}

void release_all(void) {
    pthread_mutex_unlock(&held);
    pthread_rwlock_unlock(&held_rw);
    mtx_unlock(&held_standard);
}

static int is_past(clockid_t clock, const struct timespec *time) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec > time->tv_sec || (now.tv_sec == time->tv_sec && now.tv_nsec >= time->tv_nsec);
}

/* Each times out, and not early. */
long time_out(struct member *member) {
    long found = 0;
    (void)member;
    struct timespec time;
#define EACH(clock, expected, call)                                                                                                    \
    time = after(clock, 3);                                                                                                            \
    found += wrong((call) == expected);                                                                                                \
    found += wrong(is_past(clock, &time));
    EACH(CLOCK_REALTIME, ETIMEDOUT, pthread_mutex_timedlock(&held, &time));
    EACH(CLOCK_MONOTONIC, ETIMEDOUT, pthread_mutex_clocklock(&held, CLOCK_MONOTONIC, &time));
    EACH(CLOCK_REALTIME, ETIMEDOUT, pthread_mutex_clocklock(&held, CLOCK_REALTIME, &time));
    EACH(CLOCK_REALTIME, ETIMEDOUT, pthread_rwlock_timedrdlock(&held_rw, &time));
    EACH(CLOCK_REALTIME, ETIMEDOUT, pthread_rwlock_timedwrlock(&held_rw, &time));
    EACH(CLOCK_MONOTONIC, ETIMEDOUT, pthread_rwlock_clockrdlock(&held_rw, CLOCK_MONOTONIC, &time));
    EACH(CLOCK_MONOTONIC, ETIMEDOUT, pthread_rwlock_clockwrlock(&held_rw, CLOCK_MONOTONIC, &time));
    EACH(CLOCK_REALTIME, thrd_timedout, mtx_timedlock(&held_standard, &time));
    errno = 0;
    EACH(CLOCK_REALTIME, -1, sem_timedwait(&empty, &time));
    found += wrong(errno == ETIMEDOUT);
    errno = 0;
    EACH(CLOCK_MONOTONIC, -1, sem_clockwait(&empty, CLOCK_MONOTONIC, &time));
    found += wrong(errno == ETIMEDOUT);

    pthread_mutex_lock(&free_one);
    EACH(CLOCK_REALTIME, ETIMEDOUT, pthread_cond_timedwait(&never, &free_one, &time));
    EACH(CLOCK_MONOTONIC, ETIMEDOUT, pthread_cond_clockwait(&never, &free_one, CLOCK_MONOTONIC, &time));
    /* It has the mutex again. */
    found += wrong(pthread_mutex_trylock(&free_one) == EBUSY);
    pthread_mutex_unlock(&free_one);

    pthread_condattr_t attributes;
    pthread_cond_t monotonic;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&monotonic, &attributes);
    pthread_mutex_lock(&free_one);
    EACH(CLOCK_MONOTONIC, ETIMEDOUT, pthread_cond_timedwait(&monotonic, &free_one, &time));
    pthread_mutex_unlock(&free_one);

    mtx_lock(&free_standard);
    EACH(CLOCK_REALTIME, thrd_timedout, cnd_timedwait(&never_standard, &free_standard, &time));
    found += wrong(mtx_trylock(&free_standard) == thrd_busy);
    mtx_unlock(&free_standard);

    /* Times that are none, and clocks that do not tell the time. */
    struct timespec odd = {.tv_sec = 1, .tv_nsec = 1000000000};
    found += wrong(pthread_mutex_timedlock(&held, &odd) == EINVAL);
    found += wrong(pthread_rwlock_timedrdlock(&held_rw, &odd) == EINVAL);
    found += wrong(sem_timedwait(&empty, &odd) == -1 && errno == EINVAL);
    pthread_mutex_lock(&free_one);
    found += wrong(pthread_cond_timedwait(&never, &free_one, &odd) == EINVAL);
    pthread_mutex_unlock(&free_one);
    time = after(CLOCK_MONOTONIC, 1);
    found += wrong(pthread_mutex_clocklock(&free_one, CLOCK_PROCESS_CPUTIME_ID, &time) == EINVAL);
    found += wrong(pthread_rwlock_clockrdlock(&rw, CLOCK_PROCESS_CPUTIME_ID, &time) == EINVAL);
    /* Long ago. */
    struct timespec past = {.tv_sec = -1, .tv_nsec = 0};
    found += wrong(pthread_mutex_timedlock(&held, &past) == ETIMEDOUT);
    /* What nobody else wants is had all the same. */
    pthread_mutex_t mine = PTHREAD_MUTEX_INITIALIZER;
    found += wrong(pthread_mutex_timedlock(&mine, &past) == 0);
    found += wrong(pthread_mutex_unlock(&mine) == 0);
    pthread_mutex_lock(&free_one);
    found += wrong(pthread_cond_timedwait(&never, &free_one, &past) == ETIMEDOUT);
    pthread_mutex_unlock(&free_one);
    return found;
}

/* A thread that dies with a robust mutex: whoever waits for it is told. */

static pthread_mutex_t orphan;
static _Atomic int may_die;

static void *die_with_it(void *argument) {
    (void)argument;
    pthread_mutex_lock(&orphan);
    while (!may_die) usleep(200);
    return NULL;
}

static pthread_t holder;

int begin_orphan(void) {
    make(&orphan, 1, 0);
    may_die = 0;
    int result = pthread_create(&holder, NULL, die_with_it, NULL);
    while (pthread_mutex_trylock(&orphan) == 0) {
        pthread_mutex_unlock(&orphan);
        usleep(100);
    }
    return result;
}

void let_it_die(void) {
    may_die = 1;
    pthread_join(holder, NULL);
}

long inherit(struct member *member) {
    (void)member;
    long found = wrong(pthread_mutex_lock(&orphan) == EOWNERDEAD);
    found += wrong(pthread_mutex_consistent(&orphan) == 0);
    found += wrong(pthread_mutex_unlock(&orphan) == 0);
    return found;
}

/* Semaphores that a signal handler adds to. */

static sem_t from_handler;

static void on_signal(int number) {
    (void)number;
    sem_post(&from_handler);
}

int begin_handler(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    return sem_init(&from_handler, 0, 0) + sigaction(SIGUSR1, &action, NULL);
}

long wait_for_handler(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        errno = 77;
        found += wrong(sem_wait(&from_handler) == 0);
        found += wrong(errno == 77);
    }
    return found;
}

/* C11's threads. */

static int give(void *argument) {
    usleep(2000);
    if (argument) thrd_exit(43);
    return 42;
}

long join_standard(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        thrd_t thread;
        int result = 0;
        found += wrong(thrd_create(&thread, give, round % 2 ? member : NULL) == thrd_success);
        found += wrong(thrd_join(thread, &result) == thrd_success);
        found += wrong(result == (round % 2 ? 43 : 42));
    }
    struct timespec time = {.tv_nsec = 1000000};
    found += wrong(thrd_sleep(&time, NULL) == 0);
    thrd_yield();
    return found;
}

/* Who takes turns with whom: each adds to its own number as often as it gets the lock, and holds it for a while. */

long take_turns(_Atomic int *turns, _Atomic int *is_over, int microseconds) {
    long found = 0;
    while (!*is_over) {
        found += wrong(pthread_mutex_lock(&plain) == 0);
        found += wrong(++inside == 1);
        if (microseconds) usleep(microseconds);
        inside--;
        ++*turns;
        found += wrong(pthread_mutex_unlock(&plain) == 0);
    }
    return found;
}

/* A thread that waits for a condition may be told to end. Its handler has the mutex. */

static _Atomic int handled;
static int is_in_line;
static pthread_mutex_t handlers_own = PTHREAD_MUTEX_INITIALIZER;

static void handle(void *argument) {
    (void)argument;
    if (pthread_mutex_trylock(&handlers_own) == EBUSY) handled++;
    pthread_mutex_unlock(&handlers_own);
}

static void *wait_to_be_ended(void *is_limited) {
    pthread_mutex_lock(&handlers_own);
    pthread_cleanup_push(handle, NULL);
    is_in_line = 1;
    struct timespec time = after(CLOCK_REALTIME, 100000);
    for (;;) {
        if (is_limited)
            pthread_cond_timedwait(&never, &handlers_own, &time);
        else
            pthread_cond_wait(&never, &handlers_own);
    }
    pthread_cleanup_pop(1);
    return NULL;
}

long end_waiting(struct member *member) {
    long found = 0;
    for (int round = 0; round < member->rounds; round++) {
        pthread_t thread;
        void *result = NULL;
        is_in_line = handled = 0;
        found += wrong(pthread_create(&thread, NULL, wait_to_be_ended, round % 2 ? member : NULL) == 0);
        /* Some are ended before they wait, some while they do. */
        if (round % 4 < 2) {
            int is_there = 0;
            while (!is_there) {
                usleep(100);
                pthread_mutex_lock(&handlers_own);
                is_there = is_in_line;
                pthread_mutex_unlock(&handlers_own);
            }
        } else {
            usleep(round % 8 * 10);
        }
        found += wrong(pthread_cancel(thread) == 0);
        found += wrong(pthread_join(thread, &result) == 0);
        found += wrong(result == PTHREAD_CANCELED && handled == 1);
    }
    return found;
}
