/*
 * Two coroutines that take turns on one shared stack, each with 512 bytes of its own in its frame: the frames of one are copied out and
 * those of the other in at every switch. The figure is for co_resume and the co_yield_ct that comes back.
 */

#include "figures.h"

#include <co_routine.h>
#include <string.h>

enum { TURNS = 1000000, ROUNDS = 3, BYTES = 512 };

static void *keep(void *argument) {
    volatile unsigned char bytes[BYTES];
    const unsigned char mine = *(unsigned char *)argument;
    memset((void *)bytes, mine, sizeof bytes);
    for (;;) {
        co_yield_ct();
        if (bytes[0] != mine || bytes[BYTES - 1] != mine) abort();
    }
    return NULL;
}

int main(void) {
    static unsigned char numbers[2] = {1, 2};
    stCoRoutine_t *coroutines[2];
    stCoRoutineAttr_t attributes = CO_ROUTINE_ATTR_INIT;
    attributes.share_stack = co_alloc_sharestack(1, 128 * 1024);
    for (int i = 0; i < 2; i++) require(co_create(&coroutines[i], &attributes, keep, &numbers[i]) == 0, "co_create");
    for (int round = 0; round < ROUNDS; round++) {
        const double start = nanoseconds();
        for (int turn = 0; turn < TURNS; turn++) {
            co_resume(coroutines[0]);
            co_resume(coroutines[1]);
        }
        figure("coroutines", "c_shared", "512 bytes", (nanoseconds() - start) / TURNS / 2, "ns");
    }
    for (int i = 0; i < 2; i++) co_release(coroutines[i]);
    co_free_sharestack(attributes.share_stack);
    return 0;
}
