/*
 * Many coroutines that are all suspended on one shared stack: the memory that the process takes, from what the kernel says of it. Then
 * each is resumed, which must find what it left. How far it is, is shown on standard error, if that is a terminal.
 *
 * many [COUNT]: 10,000,000, or 1,000,000 if BENCH_LIGHT is set.
 */

#include "figures.h"

#include <co_routine.h>
#include <string.h>
#include <unistd.h>

static long sum;

static void *remember(void *argument) {
    const long mine = (long)argument;
    co_yield_ct();
    sum += mine;
    return NULL;
}

/* Kilobytes that the process has of this kind: `VmRSS:`, resident memory, or `VmPTE:`, page tables. */
static long kilobytes(const char *kind) {
    char line[256];
    long value = 0;
    FILE *status = fopen("/proc/self/status", "r");
    require(status != NULL, "/proc/self/status");
    while (fgets(line, sizeof line, status))
        if (strncmp(line, kind, strlen(kind)) == 0) value = strtol(line + strlen(kind), NULL, 10);
    fclose(status);
    return value;
}

static void progress(const char *what, long done, long all) {
    enum { WIDTH = 40 };
    static int terminal = -1;
    if (terminal < 0) terminal = isatty(STDERR_FILENO);
    if (!terminal || done % (all / 100 + 1) != 0) return;
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) bar[i] = i < done * WIDTH / all ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r%-9s [%s] %3ld %%", what, bar, done * 100 / all);
}

int main(int count, char **arguments) {
    const long wanted = count > 1 ? strtol(arguments[1], NULL, 10) : getenv("BENCH_LIGHT") ? 1000000 : 10000000;
    require(wanted > 0, "how many?");
    stCoRoutine_t **coroutines = calloc((size_t)wanted, sizeof *coroutines);
    require(coroutines != NULL, "calloc");
    stCoRoutineAttr_t attributes = CO_ROUTINE_ATTR_INIT;
    attributes.share_stack = co_alloc_sharestack(1, 64 * 1024);
    const double start = nanoseconds();
    for (long i = 0; i < wanted; i++) {
        progress("suspended", i, wanted);
        require(co_create(&coroutines[i], &attributes, remember, (void *)i) == 0, "co_create");
        co_resume(coroutines[i]);
    }
    const double suspended = nanoseconds();
    const long all = kilobytes("VmRSS:") + kilobytes("VmPTE:");
    const long handles = wanted * (long)sizeof *coroutines / 1024;
    for (long i = 0; i < wanted; i++) {
        progress("resumed", i, wanted);
        co_resume(coroutines[i]);
    }
    const double resumed = nanoseconds();
    require(sum == wanted * (wanted - 1) / 2, "each has remembered its number");
    for (long i = 0; i < wanted; i++) {
        progress("released", i, wanted);
        co_release(coroutines[i]);
    }
    const double released = nanoseconds();
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%60s\r", "");
    const double each = (double)wanted;
    figure("coroutines", "c_many", "coroutines", each, "");
    figure("coroutines", "c_many", "whole process", (double)all / 1024 / 1024, "GiB");
    figure("coroutines", "c_many", "each", (double)(all - handles) * 1024 / each, "B");
    figure("coroutines", "c_many", "created and suspended", (suspended - start) / each, "ns");
    figure("coroutines", "c_many", "resumed to the end", (resumed - suspended) / each, "ns");
    figure("coroutines", "c_many", "released", (released - resumed) / each, "ns");
    free(coroutines);
    co_free_sharestack(attributes.share_stack);
    return 0;
}
