/*
 * A pipeline: one fiber makes numbers, four test whether they are prime, and main adds up what they
 * have found.
 *
 *     cc fb_pipeline.c -lfibrant -o fb_pipeline && ./fb_pipeline
 *
 * With the argument "light" its fibers share the thread-locals of their workers: so it runs under
 * valgrind, too.
 *
 * A channel carries pointers. Closing it tells the receivers that no more will come: fb_recv gives
 * what is left, and then -EPIPE.
 */
#include <errno.h>
#include <fibrant.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { LIMIT = 20000, TESTERS = 4 };

static fb_channel *numbers, *primes;
static fb_group *testers;

static void *make_numbers(void *unused) {
    (void)unused;
    for (intptr_t number = 2; number < LIMIT; number++) {
        fb_send(numbers, (void *)number); /* waits while there is no room */
    }
    fb_channel_close(numbers);
    return NULL;
}

static int is_prime(intptr_t number) {
    for (intptr_t divisor = 2; divisor * divisor <= number; divisor++) {
        if (number % divisor == 0) return 0;
    }
    return 1;
}

static void *test_numbers(void *unused) {
    void *number;
    (void)unused;
    while (fb_recv(numbers, &number) == 0) {
        if (is_prime((intptr_t)number)) fb_send(primes, number);
    }
    fb_group_done(testers);
    return NULL;
}

/* When all testers are done, no more primes will come. */
static void *close_primes(void *unused) {
    (void)unused;
    fb_group_wait(testers);
    fb_channel_close(primes);
    return NULL;
}

static int program(void *unused) {
    fb_fiber *closer;
    void *prime;
    long count = 0, sum = 0;
    (void)unused;
    fb_channel_create(&numbers, 100, "numbers");
    fb_channel_create(&primes, FB_UNBOUNDED, "primes");
    fb_group_create(&testers, "testers");

    fb_group_add(testers, TESTERS);
    for (int i = 0; i < TESTERS; i++) fb_spawn(NULL, test_numbers, NULL);
    fb_spawn(NULL, make_numbers, NULL);
    fb_spawn(&closer, close_primes, NULL);

    /*
     * A time limit, so that a mistake shows: nothing for ten seconds, and the dump says who waits
     * for what.
     */
    int error;
    while ((error = fb_recv_timeout(primes, &prime, FB_S(10))) == 0) {
        count++;
        sum += (long)(intptr_t)prime;
    }
    if (error != -EPIPE) fb_dump(NULL, stderr);
    printf("%ld primes below %d, which are %ld together\n", count, LIMIT, sum);

    fb_join(closer, NULL);
    fb_channel_unref(numbers);
    fb_channel_unref(primes);
    fb_group_destroy(testers);
    return count == 2262 ? 0 : 1;
}

/* The options say nothing of workers: so there is one for each processor. */
int main(int argc, char *argv[]) {
    fb_runtime_options options = FB_RUNTIME_OPTIONS_INIT;
    options.light = argc > 1 && strcmp(argv[1], "light") == 0;
    return fb_run(program, NULL, &options);
}
