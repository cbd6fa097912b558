/* Every wait of a cancelled fiber returns -ECANCELED, and the fiber goes on from there; no frame of C's is unwound. */
#include "check.h"

static atomic_int state;
static fb_channel *empty, *full;
static fb_mutex *mutex;
static fb_cond *cond;
static fb_sem *sem;
static fb_group *group;
static fb_fiber *sleeper;
static int ends[2];

static void *sleep_for_ever(void *unused) {
    (void)unused;
    IS(fb_sleep(FB_FOREVER), -ECANCELED);
    return POINTER(3);
}

/* Waits in one way; the others are tried after that, when the fiber is known to be cancelled. */
static int wait_by(long long way) {
    fb_case cases[2] = {{FB_RECV, 0, empty, NULL}, {FB_SEND, 0, full, NULL}};
    int result;
    switch (way) {
    case 0: return fb_sleep(FB_FOREVER);
    case 1: return fb_recv(empty, NULL);
    case 2: return fb_recv_timeout(empty, NULL, FB_S(1000));
    case 3: return fb_send(full, NULL);
    case 4: return fb_send_timeout(full, NULL, FB_S(1000));
    case 5: return fb_select(cases, 2, FB_FOREVER);
    case 6: return fb_sem_wait(sem);
    case 7: return fb_sem_wait_timeout(sem, FB_S(1000));
    case 8: return fb_group_wait(group);
    case 9: return fb_group_wait_timeout(group, FB_S(1000));
    case 10: return fb_join(sleeper, NULL);
    case 11: return fb_join_timeout(sleeper, NULL, FB_S(1000));
    case 12:
    case 13:
        IS(fb_mutex_lock(mutex), 0);
        result = way == 12 ? fb_cond_wait(cond, mutex) : fb_cond_wait_timeout(cond, mutex, FB_S(1000));
        IS(fb_mutex_unlock(mutex), 0); /* it has it again */
        return result;
    default: return 1;
    }
}

static void *wait_and_clean_up(void *way) {
    atomic_store(&state, 1);
    IS(wait_by(NUMBER(way)), -ECANCELED);
    IS(fb_cancelled(), 1);
    /* It stays so; */
    for (long long other = 0; other <= 13; other++) IS(wait_by(other), -ECANCELED);
    /* but what need not wait works, */
    IS(fb_yield(), 0);
    IS(fb_send(empty, POINTER(1)), 0);
    void *message;
    IS(fb_recv(empty, &message), 0);
    IS(NUMBER(message), 1);
    IS(fb_mutex_lock(mutex), 0);
    IS(fb_mutex_unlock(mutex), 0);
    /* and it can be put off, to clean up. */
    IS(fb_set_cancel(0), 1);
    IS(fb_cancelled(), 1);
    IS(fb_sleep(FB_MS(1)), 0);
    IS(fb_recv_timeout(empty, NULL, FB_MS(1)), -ETIMEDOUT);
    IS(fb_set_cancel(1), 0);
    IS(fb_sleep(FB_MS(1)), -ECANCELED);
    return POINTER(100 + NUMBER(way));
}

static void *hooked(void *unused) {
    char byte;
    (void)unused;
    atomic_store(&state, 1);
    IS(read(ends[0], &byte, 1), -1);
    IS(errno, ECANCELED);
    /* Once: whoever insists, waits. */
    atomic_store(&state, 2);
    IS(read(ends[0], &byte, 1), 1);
    return NULL;
}

static void *lock_and_hold(void *unused) {
    (void)unused;
    IS(fb_mutex_lock(mutex), 0);
    atomic_store(&state, 1);
    EVENTUALLY(atomic_load(&state) == 3);
    IS(fb_mutex_unlock(mutex), 0);
    return NULL;
}

static void *lock(void *unused) {
    (void)unused;
    atomic_fetch_add(&state, 1);
    IS(fb_mutex_lock(mutex), 0); /* not a wait that is cancelled */
    IS(fb_cancelled(), 1);
    IS(fb_mutex_unlock(mutex), 0);
    return NULL;
}

static void *never(void *unused) {
    (void)unused;
    CHECK(!"it was cancelled before it could start");
    return NULL;
}

static int program(void *unused) {
    fb_fiber *fiber, *holder;
    void *result;
    (void)unused;
    IS(fb_channel_create(&empty, 1, NULL), 0);
    IS(fb_channel_create(&full, 0, NULL), 0);
    IS(fb_mutex_create(&mutex, NULL), 0);
    IS(fb_cond_create(&cond, NULL), 0);
    IS(fb_sem_create(&sem, 0, NULL), 0);
    IS(fb_group_create(&group, NULL), 0);
    IS(fb_group_add(group, 1), 0);
    IS(fb_spawn(&sleeper, sleep_for_ever, NULL), 0);
    CHECK(pipe(ends) == 0);

    IS(fb_cancelled(), 0);
    IS(fb_cancel(NULL), -EINVAL);
    for (int way = 0; way <= 13; way++) {
        atomic_store(&state, 0);
        IS(fb_spawn(&fiber, wait_and_clean_up, POINTER(way)), 0);
        EVENTUALLY(atomic_load(&state));
        if (way % 2) IS(fb_sleep(FB_MS(2)), 0); /* it waits by now, mostly */
        IS(fb_cancel(fiber), 0);
        IS(fb_join(fiber, &result), 0);
        IS(NUMBER(result), 100 + way);
    }
    /* Who has waited in vain has left nothing behind. */
    IS(fb_try_send(full, NULL), -EAGAIN);
    IS(fb_cond_destroy(cond), 0);
    IS(fb_group_destroy(group), 0);

    atomic_store(&state, 0);
    IS(fb_spawn(&fiber, hooked, NULL), 0);
    EVENTUALLY(atomic_load(&state));
    IS(fb_cancel(fiber), 0);
    EVENTUALLY(atomic_load(&state) == 2);
    IS(fb_join_timeout(fiber, NULL, FB_MS(5)), -ETIMEDOUT);
    IS(write(ends[1], "x", 1), 1);
    IS(fb_join(fiber, NULL), 0);

    atomic_store(&state, 0);
    IS(fb_spawn(&holder, lock_and_hold, NULL), 0);
    EVENTUALLY(atomic_load(&state) == 1);
    IS(fb_spawn(&fiber, lock, NULL), 0);
    EVENTUALLY(atomic_load(&state) == 2);
    IS(fb_cancel(fiber), 0);
    atomic_store(&state, 3);
    IS(fb_join(fiber, NULL), 0);
    IS(fb_join(holder, NULL), 0);

    /* One that has not started never does. It is bound to this worker, which is busy. */
    fb_attr attr = FB_ATTR_INIT;
    attr.worker = 0;
    IS(fb_spawn_in(NULL, &fiber, &attr, never, NULL), 0);
    IS(fb_cancel(fiber), 0);
    IS(fb_join(fiber, &result), 0);
    CHECK(result == FB_CANCELED);

    IS(fb_cancel(sleeper), 0);
    IS(fb_join(sleeper, &result), 0);
    IS(NUMBER(result), 3);
    fb_channel_unref(empty);
    fb_channel_unref(full);
    IS(fb_mutex_destroy(mutex), 0);
    IS(fb_sem_destroy(sem), 0);
    close(ends[0]);
    close(ends[1]);
    return 0;
}

int main(int argc, char **argv) {
    fb_runtime_options options = named_options(argc, argv);
    return fb_run(program, NULL, &options);
}
