/* What the test programs have in common: checks, and the options that the test names: workers, and "light" or "isolated". */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fibrant.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The program ends at the first check that fails, with the line. */
#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);         \
            fflush(stderr);                                                                 \
            _exit(1);                                                                       \
        }                                                                                   \
    } while (0)

/* What a call returned, against what it should have. */
#define IS(call, expected)                                                                               \
    do {                                                                                                 \
        long long is_ = (long long)(call), should_ = (long long)(expected);                              \
        if (is_ != should_) {                                                                            \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #call, is_, should_);   \
            fflush(stderr);                                                                              \
            _exit(1);                                                                                    \
        }                                                                                                \
    } while (0)

/* Waits until something is so. It may take its time, but not for ever: the test has a limit. */
#define EVENTUALLY(condition)           \
    do {                                \
        while (!(condition)) {          \
            fb_sleep(FB_US(200));       \
        }                               \
    } while (0)

#define POINTER(number) ((void *)(intptr_t)(number))
#define NUMBER(pointer) ((long long)(intptr_t)(pointer))

/* The options that the test has named. */
static inline fb_runtime_options named_options(int argc, char **argv) {
    fb_runtime_options options = FB_RUNTIME_OPTIONS_INIT;
    CHECK(argc == 3);
    options.workers = (size_t)atoi(argv[1]);
    options.light = strcmp(argv[2], "light") == 0;
    options.name = "test";
    return options;
}

/* The system's number of the thread, which is the worker's in a fiber. */
static inline long thread_number(void) {
    return syscall(SYS_gettid);
}

static inline fb_duration now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return FB_S(time.tv_sec) + time.tv_nsec;
}

#endif
