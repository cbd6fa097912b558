/*
 * What the benchmarks in C share: the clock, and the line for each figure that `cargo xtask bench` reads: program, bench, variant,
 * value and unit, separated by tabs.
 */

#ifndef FIGURES_H
#define FIGURES_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Nanoseconds since some moment. */
static inline double nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static inline void figure(const char *program, const char *bench, const char *variant, double value, const char *unit) {
    printf("%s\t%s\t%s\t%.2f\t%s\n", program, bench, variant, value, unit);
    fflush(stdout);
}

/* Ends the program if something that is taken for granted is not so. */
static inline void require(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

#endif
