/*
 * A coroutine's life: co_create, one co_resume to its end, co_release. On a stack of its own, which comes back from the thread's cache,
 * and on a shared one.
 */

#include "figures.h"

#include <co_routine.h>

enum { LIVES = 1000000, ROUNDS = 3 };

static long ended;

static void *nothing(void *argument) {
    ended++;
    return argument;
}

static double life(const stCoRoutineAttr_t *attributes) {
    const double start = nanoseconds();
    for (int i = 0; i < LIVES; i++) {
        stCoRoutine_t *coroutine;
        require(co_create(&coroutine, attributes, nothing, NULL) == 0, "co_create");
        co_resume(coroutine);
        co_release(coroutine);
    }
    return (nanoseconds() - start) / LIVES;
}

int main(void) {
    stCoRoutineAttr_t shared = CO_ROUTINE_ATTR_INIT;
    shared.share_stack = co_alloc_sharestack(1, 128 * 1024);
    for (int round = 0; round < ROUNDS; round++) {
        figure("coroutines", "c_create", "own stack", life(NULL), "ns");
        figure("coroutines", "c_create", "shared stack", life(&shared), "ns");
    }
    require(ended == 2L * ROUNDS * LIVES, "every coroutine has run");
    co_free_sharestack(shared.share_stack);
    return 0;
}
