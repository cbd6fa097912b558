/* Mutexes, condition variables, semaphores, groups; by fibers, and by fibers and plain threads together. */
#include "check.h"
#include <pthread.h>

enum { FIBERS = 50, THREADS = 2, ROUNDS = 200 };

static fb_mutex *mutex;
static fb_cond *cond;
static fb_sem *sem;
static fb_group *group;
static long long counter;
static int waiting, tickets;

/* Adds one at a time, with a wait in the middle now and then: nobody else comes in between. */
static void *add(void *is_fiber) {
    for (int i = 0; i < ROUNDS; i++) {
        IS(fb_mutex_lock(mutex), 0);
        long long before = counter;
        if (is_fiber && i % 50 == 0) IS(fb_yield(), 0);
        counter = before + 1;
        IS(fb_mutex_unlock(mutex), 0);
    }
    return NULL;
}

static void *not_the_holder(void *unused) {
    (void)unused;
    IS(fb_mutex_unlock(mutex), -EPERM);
    IS(fb_mutex_trylock(mutex), -EBUSY);
    IS(fb_cond_wait(cond, mutex), -EPERM);
    IS(fb_mutex_destroy(mutex), -EBUSY);
    return NULL;
}

static void *lock_once(void *unused) {
    (void)unused;
    IS(fb_mutex_lock(mutex), 0);
    IS(fb_mutex_unlock(mutex), 0);
    return NULL;
}

static void mutexes(void) {
    fb_fiber *fibers[FIBERS], *fiber;
    pthread_t threads[THREADS], thread;
    IS(fb_mutex_create(NULL, NULL), -EINVAL);
    IS(fb_mutex_lock(mutex), 0);
    IS(fb_mutex_lock(mutex), -EDEADLK);
    IS(fb_mutex_trylock(mutex), -EBUSY);
    IS(fb_mutex_destroy(mutex), -EBUSY);
    IS(fb_spawn(&fiber, not_the_holder, NULL), 0);
    IS(fb_join(fiber, NULL), 0);
    CHECK(pthread_create(&thread, NULL, not_the_holder, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    IS(fb_spawn(&fiber, lock_once, NULL), 0);
    IS(fb_join_timeout(fiber, NULL, FB_MS(5)), -ETIMEDOUT);
    IS(fb_mutex_unlock(mutex), 0);
    IS(fb_join(fiber, NULL), 0);
    IS(fb_mutex_unlock(mutex), -EPERM);
    IS(fb_mutex_trylock(mutex), 0);
    IS(fb_mutex_unlock(mutex), 0);

    for (int i = 0; i < FIBERS; i++) IS(fb_spawn(&fibers[i], add, POINTER(1)), 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, add, NULL) == 0);
    for (int i = 0; i < FIBERS; i++) IS(fb_join(fibers[i], NULL), 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    IS(counter, (FIBERS + THREADS) * ROUNDS);
}

static void *take_ticket(void *unused) {
    (void)unused;
    IS(fb_mutex_lock(mutex), 0);
    waiting++;
    while (tickets == 0) IS(fb_cond_wait(cond, mutex), 0);
    tickets--;
    waiting--;
    IS(fb_mutex_unlock(mutex), 0);
    return NULL;
}

static int looked_at(int *number) {
    IS(fb_mutex_lock(mutex), 0);
    int value = *number;
    IS(fb_mutex_unlock(mutex), 0);
    return value;
}

static void conditions(void) {
    fb_fiber *fibers[FIBERS];
    pthread_t threads[THREADS];
    fb_mutex *other;
    IS(fb_cond_create(NULL, NULL), -EINVAL);
    IS(fb_cond_signal(cond), 0); /* nobody is there */
    IS(fb_mutex_lock(mutex), 0);
    fb_duration start = now();
    IS(fb_cond_wait_timeout(cond, mutex, FB_MS(10)), -ETIMEDOUT);
    CHECK(now() - start >= FB_MS(10));
    IS(fb_mutex_unlock(mutex), 0);

    for (int i = 0; i < FIBERS; i++) IS(fb_spawn(&fibers[i], take_ticket, NULL), 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, take_ticket, NULL) == 0);
    EVENTUALLY(looked_at(&waiting) == FIBERS + THREADS);
    IS(fb_cond_destroy(cond), -EBUSY);

    /* Others wait with another mutex. */
    IS(fb_mutex_create(&other, NULL), 0);
    IS(fb_mutex_lock(other), 0);
    IS(fb_cond_wait(cond, other), -EINVAL);
    IS(fb_mutex_unlock(other), 0);
    IS(fb_mutex_destroy(other), 0);

    /* A signal is for one. */
    IS(fb_mutex_lock(mutex), 0);
    tickets = 1;
    IS(fb_cond_signal(cond), 0);
    IS(fb_mutex_unlock(mutex), 0);
    EVENTUALLY(looked_at(&waiting) == FIBERS + THREADS - 1);
    IS(looked_at(&tickets), 0);

    IS(fb_mutex_lock(mutex), 0);
    tickets = FIBERS + THREADS;
    IS(fb_mutex_unlock(mutex), 0);
    IS(fb_cond_broadcast(cond), 0);
    for (int i = 0; i < FIBERS; i++) IS(fb_join(fibers[i], NULL), 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    IS(tickets, 1);
    IS(waiting, 0);
    IS(fb_cond_wait_timeout(cond, mutex, 0), -EPERM);
    IS(fb_cond_wait(NULL, mutex), -EINVAL);
    IS(fb_cond_wait(cond, NULL), -EINVAL);
}

static atomic_int inside;

/* At most three are inside. */
static void *enter(void *unused) {
    (void)unused;
    for (int i = 0; i < 10; i++) {
        IS(fb_sem_wait(sem), 0);
        int others = atomic_fetch_add(&inside, 1);
        CHECK(others < 3);
        IS(fb_yield(), 0);
        atomic_fetch_sub(&inside, 1);
        IS(fb_sem_post(sem), 0);
    }
    return NULL;
}

static void *post(void *unused) {
    (void)unused;
    IS(fb_sem_post(sem), 0);
    return NULL;
}

/* Frees the semaphore at once, when it was posted. */
static void *post_and_forget(void *own) {
    IS(fb_sem_post((fb_sem *)own), 0);
    return NULL;
}

static void semaphores(void) {
    fb_fiber *fibers[FIBERS], *fiber;
    pthread_t threads[THREADS];
    IS(fb_sem_create(NULL, 1, NULL), -EINVAL);
    IS(fb_sem_create(&sem, (size_t)-1, NULL), -EINVAL);
    IS(fb_sem_create(&sem, 3, "three"), 0);
    IS(fb_sem_value(sem), 3);
    for (int i = 0; i < FIBERS; i++) IS(fb_spawn(&fibers[i], enter, NULL), 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, enter, NULL) == 0);
    for (int i = 0; i < FIBERS; i++) IS(fb_join(fibers[i], NULL), 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    IS(fb_sem_value(sem), 3);
    for (int i = 0; i < 3; i++) IS(fb_sem_trywait(sem), 0);
    IS(fb_sem_trywait(sem), -EAGAIN);
    fb_duration start = now();
    IS(fb_sem_wait_timeout(sem, FB_MS(10)), -ETIMEDOUT);
    CHECK(now() - start >= FB_MS(10));
    IS(fb_spawn(&fiber, post, NULL), 0);
    IS(fb_sem_wait_timeout(sem, FB_FOREVER), 0);
    IS(fb_join(fiber, NULL), 0);
    IS(fb_sem_destroy(sem), 0);
    IS(fb_sem_destroy(NULL), -EINVAL);
    IS(fb_sem_wait(NULL), -EINVAL);
    IS(fb_sem_trywait(NULL), -EINVAL);
    IS(fb_sem_wait_timeout(NULL, 0), -EINVAL);
    IS(fb_sem_post(NULL), -EINVAL);
    IS(fb_sem_value(NULL), -EINVAL);

    IS(fb_sem_create(&sem, 2147483647, NULL), 0);
    IS(fb_sem_post(sem), -EOVERFLOW);
    IS(fb_sem_destroy(sem), 0);
    for (int i = 0; i < 200; i++) {
        fb_sem *own;
        IS(fb_sem_create(&own, 0, NULL), 0);
        IS(fb_spawn(NULL, post_and_forget, own), 0);
        IS(fb_sem_wait(own), 0);
        IS(fb_sem_destroy(own), 0);
    }
}

static atomic_int done;

static void *work(void *unused) {
    (void)unused;
    IS(fb_sleep(FB_US(100)), 0);
    atomic_fetch_add(&done, 1);
    IS(fb_group_done(group), 0);
    return NULL;
}

static void *wait_for_group(void *unused) {
    (void)unused;
    IS(fb_group_wait(group), 0);
    IS(atomic_load(&done), FIBERS + THREADS);
    return NULL;
}

static void groups(void) {
    pthread_t threads[THREADS];
    fb_fiber *waiter;
    IS(fb_group_create(NULL, NULL), -EINVAL);
    IS(fb_group_create(&group, "workers"), 0);
    IS(fb_group_wait(group), 0); /* there is nothing to be done */
    IS(fb_group_done(group), -EINVAL);
    IS(fb_group_add(group, FIBERS + THREADS), 0);
    IS(fb_group_add(group, (size_t)-1), -EOVERFLOW);
    fb_duration start = now();
    IS(fb_group_wait_timeout(group, FB_MS(10)), -ETIMEDOUT);
    CHECK(now() - start >= FB_MS(10));
    IS(fb_spawn(&waiter, wait_for_group, NULL), 0);
    IS(fb_join_timeout(waiter, NULL, FB_MS(5)), -ETIMEDOUT);
    IS(fb_group_destroy(group), -EBUSY);
    for (int i = 0; i < FIBERS; i++) IS(fb_spawn(NULL, work, NULL), 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    IS(fb_group_wait_timeout(group, FB_FOREVER), 0);
    IS(atomic_load(&done), FIBERS + THREADS);
    IS(fb_join(waiter, NULL), 0);
    IS(fb_group_destroy(group), 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    IS(fb_group_add(NULL, 1), -EINVAL);
    IS(fb_group_done(NULL), -EINVAL);
    IS(fb_group_wait(NULL), -EINVAL);
    IS(fb_group_wait_timeout(NULL, 0), -EINVAL);
    IS(fb_group_destroy(NULL), -EINVAL);
}

static int program(void *unused) {
    (void)unused;
    IS(fb_mutex_create(&mutex, "counter"), 0);
    IS(fb_cond_create(&cond, "tickets"), 0);
    mutexes();
    conditions();
    IS(fb_cond_destroy(cond), 0);
    IS(fb_mutex_destroy(mutex), 0);
    IS(fb_mutex_lock(NULL), -EINVAL);
    IS(fb_mutex_trylock(NULL), -EINVAL);
    IS(fb_mutex_unlock(NULL), -EINVAL);
    IS(fb_mutex_destroy(NULL), -EINVAL);
    IS(fb_cond_destroy(NULL), -EINVAL);
    IS(fb_cond_signal(NULL), -EINVAL);
    IS(fb_cond_broadcast(NULL), -EINVAL);
    semaphores();
    groups();
    return 0;
}

int main(int argc, char **argv) {
    fb_runtime_options options = named_options(argc, argv);
    return fb_run(program, NULL, &options);
}
