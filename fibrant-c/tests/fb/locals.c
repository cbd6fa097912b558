/* Fiber-locals, and thread-locals that isolated fibers have as well. */
#include "check.h"
#include <pthread.h>

enum { FIBERS = 100 };

static fb_key number, text, again;
static atomic_int destroyed, rounds;
static _Thread_local int thread_local_number;

static void destroy_number(void *value) {
    atomic_fetch_add(&destroyed, (int)NUMBER(value));
    /* It is gone, and the others are there. */
    CHECK(fb_get(number) == NULL);
    CHECK(strcmp((char *)fb_get(text), "text") == 0);
    IS(fb_sleep(FB_US(10)), 0); /* a destructor may wait */
    IS(fb_self_id() == 0, fb_get(again) == NULL);
}

/* Comes again and again, but not for ever. */
static void set_again(void *value) {
    atomic_fetch_add(&rounds, 1);
    IS(fb_set(again, value), 0);
}

static void *use(void *mine) {
    CHECK(fb_get(number) == NULL);
    IS(fb_set(number, mine), 0);
    IS(fb_set(text, "text"), 0);
    IS(fb_set(again, mine), 0);
    for (int i = 0; i < 5; i++) {
        IS(fb_yield(), 0);
        CHECK(fb_get(number) == mine);
    }
    return NULL;
}

static void *use_in_thread(void *mine) {
    CHECK(fb_get(number) == NULL);
    IS(fb_set(number, mine), 0);
    IS(fb_set(text, "text"), 0);
    CHECK(fb_get(number) == mine);
    return NULL;
}

static void *isolated(void *mine) {
    CHECK(thread_local_number == 0);
    thread_local_number = (int)NUMBER(mine);
    errno = (int)NUMBER(mine);
    for (int i = 0; i < 5; i++) IS(fb_yield(), 0);
    IS(thread_local_number, NUMBER(mine));
    IS(errno, NUMBER(mine));
    return NULL;
}

static int program(void *light) {
    fb_fiber *fibers[FIBERS];
    pthread_t thread;
    fb_key reused;
    IS(fb_key_create(NULL, NULL), -EINVAL);
    IS(fb_key_create(&number, destroy_number), 0);
    IS(fb_key_create(&text, NULL), 0);
    IS(fb_key_create(&again, set_again), 0);
    CHECK(number != text && text != again);
    CHECK(fb_get(number) == NULL);
    IS(fb_set(number, POINTER(-1)), 0);

    for (int i = 0; i < FIBERS; i++) IS(fb_spawn(&fibers[i], use, POINTER(i + 1)), 0);
    for (int i = 0; i < FIBERS; i++) IS(fb_join(fibers[i], NULL), 0);
    /* Whoever joins comes after the destructors. */
    IS(atomic_load(&destroyed), FIBERS * (FIBERS + 1) / 2);
    IS(atomic_load(&rounds), 4 * FIBERS);
    IS(NUMBER(fb_get(number)), -1);
    IS(fb_set(number, NULL), 0);

    CHECK(pthread_create(&thread, NULL, use_in_thread, POINTER(7)) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    IS(atomic_load(&destroyed), FIBERS * (FIBERS + 1) / 2 + 7);

    /* A key that has another's place does not find its values. */
    IS(fb_set(text, "old"), 0);
    IS(fb_key_delete(text), 0);
    IS(fb_key_delete(text), -EINVAL);
    IS(fb_set(text, "older"), -EINVAL);
    IS(fb_key_create(&reused, NULL), 0);
    CHECK(reused != text);
    CHECK(fb_get(reused) == NULL);
    IS(fb_key_delete(12345678), -EINVAL);
    CHECK(fb_get(12345678) == NULL);

    if (!NUMBER(light)) {
        for (int i = 0; i < FIBERS; i++) IS(fb_spawn(&fibers[i], isolated, POINTER(i + 1)), 0);
        for (int i = 0; i < FIBERS; i++) IS(fb_join(fibers[i], NULL), 0);
        IS(thread_local_number, 0);
    }
    return 0;
}

int main(int argc, char **argv) {
    fb_runtime_options options = named_options(argc, argv);
    return fb_run(program, POINTER(options.light), &options);
}
