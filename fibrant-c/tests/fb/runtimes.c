/* Making runtimes and ending them. */
#include "check.h"
#include <pthread.h>

static void *identity(void *argument) {
    return argument;
}

static int nested(void *unused) {
    (void)unused;
    IS(fb_run(nested, NULL, NULL), -EBUSY);
    return 0;
}

/* Each runtime's own, although both are this thread. */
static int defer_cancel(void *unused) {
    (void)unused;
    IS(fb_set_cancel(0), 1);
    IS(fb_set_cancel(0), 0);
    return 0;
}

static atomic_int started, ended;

static void *nap(void *time) {
    IS(fb_sleep(NUMBER(time)), 0);
    atomic_fetch_add(&ended, 1);
    return NULL;
}

static void *sleep_for_ever(void *unused) {
    (void)unused;
    atomic_fetch_add(&started, 1);
    IS(fb_sleep(FB_FOREVER), -ECANCELED);
    atomic_fetch_add(&ended, 1);
    return POINTER(7);
}

static void *stubborn(void *unused) {
    (void)unused;
    IS(fb_set_cancel(0), 1);
    atomic_fetch_add(&started, 1);
    (void)fb_sleep(FB_FOREVER);
    return NULL;
}

static void *stop_own(void *runtime) {
    IS(fb_runtime_stop((fb_runtime *)runtime), -EDEADLK);
    IS(fb_runtime_shutdown((fb_runtime *)runtime, 0), -EDEADLK);
    IS(fb_runtime_run((fb_runtime *)runtime, identity, NULL, NULL), -EBUSY);
    return NULL;
}

static void *this_thread(void *unused) {
    (void)unused;
    return POINTER(thread_number());
}

static void *here_and_there(void *runtime) {
    fb_fiber *fiber;
    void *result;
    IS(fb_spawn(&fiber, this_thread, NULL), 0);
    IS(fb_join(fiber, &result), 0);
    if (fb_workers((fb_runtime *)runtime) == 1) IS(NUMBER(result), thread_number());
    return POINTER(5);
}

static void *run_from_elsewhere(void *runtime) {
    IS(fb_runtime_run((fb_runtime *)runtime, identity, NULL, NULL), -EPERM);
    return NULL;
}

static void *no_hooks(void *unused) {
    (void)unused;
    IS(fb_set_hooks(0), 0);
    return NULL;
}

static void options_that_make_no_sense(fb_runtime_options options) {
    fb_runtime *runtime;
    IS(fb_runtime_start(NULL, &options), -EINVAL);
    IS(fb_run(NULL, NULL, &options), -EINVAL);
    if (!options.light) IS(fb_workers(NULL) >= 1, 1); /* the global one, whose fibers are isolated */
    IS(fb_runtime_stop(NULL), -EINVAL);
    IS(fb_runtime_shutdown(NULL, 0), -EINVAL);
    IS(fb_runtime_run(NULL, identity, NULL, NULL), -EINVAL);
    fb_runtime_options wrong = options;
    wrong.size = 3;
    IS(fb_runtime_start(&runtime, &wrong), -EINVAL);
    wrong = options;
    wrong.deadlock_ms = -1;
    IS(fb_runtime_start(&runtime, &wrong), -EINVAL);
    wrong = options;
    wrong.stack_size = (size_t)1 << 62;
    CHECK(fb_runtime_start(&runtime, &wrong) < 0);
}

int main(int argc, char **argv) {
    fb_runtime_options options = named_options(argc, argv);
    fb_runtime *runtime;
    fb_fiber *fiber;
    void *result;
    options_that_make_no_sense(options);
    IS(fb_run(nested, NULL, &options), 0);
    IS(fb_run(defer_cancel, NULL, &options), 0);
    IS(fb_run(defer_cancel, NULL, &options), 0);
    IS(fb_set_cancel(1), 1);

    /* Stopping waits for all. */
    options.deadlock_ms = 60000;
    IS(fb_runtime_start(&runtime, &options), 0);
    IS(fb_workers(runtime), options.workers);
    for (int i = 0; i < 100; i++) IS(fb_spawn_in(runtime, NULL, NULL, nap, POINTER(FB_MS(5))), 0);
    IS(fb_spawn_in(runtime, &fiber, NULL, stop_own, runtime), 0);
    IS(fb_join(fiber, NULL), 0);
    /* A plain thread that is not one of its workers may run something in it, too. */
    IS(fb_runtime_run(runtime, identity, POINTER(3), &result), 0);
    IS(NUMBER(result), 3);
    IS(fb_runtime_stop(runtime), 0);
    IS(atomic_load(&ended), 100);

    /* Shutting down waits for so long, and cancels. */
    IS(fb_runtime_start(&runtime, &options), 0);
    IS(fb_spawn_in(runtime, &fiber, NULL, sleep_for_ever, NULL), 0);
    EVENTUALLY(atomic_load(&started) == 1);
    IS(fb_runtime_shutdown(runtime, FB_MS(30)), 0);
    IS(atomic_load(&ended), 101);
    IS(fb_join(fiber, &result), 0);
    IS(NUMBER(result), 7);

    /* Who does not end is given up. */
    IS(fb_runtime_start(&runtime, &options), 0);
    IS(fb_spawn_in(runtime, &fiber, NULL, stubborn, NULL), 0);
    EVENTUALLY(atomic_load(&started) == 2);
    IS(fb_runtime_shutdown(runtime, FB_MS(1)), 1);
    IS(fb_join(fiber, &result), 0);
    CHECK(result == FB_CANCELED);

    /* All the time that it takes. */
    IS(fb_runtime_start(&runtime, &options), 0);
    IS(fb_spawn_in(runtime, NULL, NULL, nap, POINTER(FB_MS(20))), 0);
    IS(fb_runtime_shutdown(runtime, FB_FOREVER), 0);
    IS(atomic_load(&ended), 102);

    /* The caller as worker 0. */
    options.use_caller = 1;
    IS(fb_runtime_start(&runtime, &options), 0);
    IS(fb_runtime_run(runtime, here_and_there, runtime, &result), 0);
    IS(NUMBER(result), 5);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_from_elsewhere, runtime) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    IS(fb_runtime_stop(runtime), 0);

    options.use_caller = 0;
    options.no_hooks = 1;
    IS(fb_runtime_start(&runtime, &options), 0);
    IS(fb_spawn_in(runtime, &fiber, NULL, no_hooks, NULL), 0);
    IS(fb_join(fiber, NULL), 0);
    IS(fb_runtime_stop(runtime), 0);
    return 0;
}
