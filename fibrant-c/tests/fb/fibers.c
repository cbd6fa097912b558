/* Spawning, joining, detaching, names, numbers, sleeping, yielding; other workers, real threads. */
#include "check.h"
#include <sys/mman.h>
#include <sys/resource.h>

static void *square(void *number) {
    return POINTER(NUMBER(number) * NUMBER(number));
}

static void *wait_for_flag(void *flag) {
    EVENTUALLY(atomic_load((atomic_int *)flag));
    return flag;
}

static void *raise_flag(void *flag) {
    atomic_store((atomic_int *)flag, 1);
    return NULL;
}

static void *own_name(void *length) {
    char name[16];
    IS(fb_self_name(NULL, 16), -EINVAL);
    IS(fb_self_name(name, (size_t)NUMBER(length)), -ERANGE);
    IS(fb_self_name(name, sizeof name), NUMBER(length));
    CHECK(strcmp(name, "parser") == 0);
    return NULL;
}

static void *own_id(void *unused) {
    char name[1];
    (void)unused;
    IS(fb_self_name(name, sizeof name), 0); /* it has none */
    CHECK(name[0] == 0);
    return POINTER(fb_self_id());
}

static fb_fiber *self;

static void *join_itself(void *ready) {
    (void)wait_for_flag(ready);
    IS(fb_join(self, NULL), -EDEADLK);
    return POINTER(1);
}

static void *join_other(void *other) {
    int error;
    while ((error = fb_join((fb_fiber *)other, NULL)) == -EBUSY) fb_yield();
    IS(error, 0);
    return NULL;
}

static void *count_turns(void *turns) {
    for (int i = 0; i < 100; i++) {
        atomic_fetch_add((atomic_int *)turns, 1);
        IS(fb_yield(), 0);
    }
    return NULL;
}

static void *large_frame(void *unused) {
    volatile char room[700 * 1024];
    (void)unused;
    for (size_t i = 0; i < sizeof room; i += 1024) room[i] = 1;
    return POINTER(room[1024]);
}

static void *this_thread(void *unused) {
    (void)unused;
    return POINTER(thread_number());
}

static void *block_for_real(void *fd) {
    char byte;
    IS(read((int)NUMBER(fd), &byte, 1), 1);
    return POINTER(thread_number());
}

static void *write_byte(void *fd) {
    IS(write((int)NUMBER(fd), "x", 1), 1);
    return NULL;
}

static void results(void) {
    fb_fiber *fibers[1000];
    long long sum = 0;
    for (int i = 0; i < 1000; i++) IS(fb_spawn(&fibers[i], square, POINTER(i)), 0);
    for (int i = 0; i < 1000; i++) {
        void *result;
        IS(fb_join(fibers[i], &result), 0);
        sum += NUMBER(result);
    }
    IS(sum, 332833500);
    IS(fb_spawn(NULL, NULL, NULL), -EINVAL);
    IS(fb_spawn_in(NULL, NULL, NULL, NULL, NULL), -EINVAL);
}

static void joins(void) {
    atomic_int flag = 0, ready = 0;
    fb_fiber *fiber, *other;
    void *result = NULL;
    fb_duration start = now();
    IS(fb_spawn(&fiber, wait_for_flag, &flag), 0);
    IS(fb_finished(fiber), 0);
    IS(fb_join_timeout(fiber, &result, FB_MS(20)), -ETIMEDOUT);
    CHECK(now() - start >= FB_MS(20));
    IS(fb_join_timeout(fiber, &result, 0), -ETIMEDOUT);
    CHECK(result == NULL);
    /* Somebody else joins it: then this one cannot. */
    IS(fb_spawn(&other, join_other, fiber), 0);
    int error;
    EVENTUALLY((error = fb_join_timeout(fiber, NULL, FB_US(100))) != -ETIMEDOUT);
    IS(error, -EBUSY);
    IS(fb_detach(fiber), -EBUSY);
    atomic_store(&flag, 1);
    IS(fb_join(other, NULL), 0);

    IS(fb_spawn(&fiber, wait_for_flag, &flag), 0);
    EVENTUALLY(fb_finished(fiber));
    IS(fb_join_timeout(fiber, &result, FB_FOREVER), 0);
    CHECK(result == &flag);

    IS(fb_spawn(&self, join_itself, &ready), 0);
    atomic_store(&ready, 1);
    IS(fb_join(self, &result), 0);
    IS(NUMBER(result), 1);

    atomic_store(&flag, 0);
    IS(fb_spawn(NULL, raise_flag, &flag), 0);
    (void)wait_for_flag(&flag);
    atomic_store(&flag, 0);
    IS(fb_spawn(&fiber, raise_flag, &flag), 0);
    IS(fb_detach(fiber), 0);
    (void)wait_for_flag(&flag);

    IS(fb_join(NULL, NULL), -EINVAL);
    IS(fb_detach(NULL), -EINVAL);
    IS(fb_finished(NULL), -EINVAL);
    IS(fb_id(NULL), 0);
}

static void attributes(void) {
    fb_attr attr = FB_ATTR_INIT;
    fb_fiber *fiber;
    void *result;
    attr.name = "parser";
    IS(fb_spawn_in(NULL, &fiber, &attr, own_name, POINTER(6)), 0);
    IS(fb_join(fiber, NULL), 0);

    IS(fb_spawn_in(NULL, &fiber, NULL, own_id, NULL), 0);
    uint64_t id = fb_id(fiber);
    CHECK(id != 0 && id != fb_self_id());
    IS(fb_join(fiber, &result), 0);
    IS(NUMBER(result), id);

    attr.stack_size = 1024 * 1024;
    IS(fb_spawn_in(NULL, &fiber, &attr, large_frame, NULL), 0);
    IS(fb_join(fiber, &result), 0);
    IS(NUMBER(result), 1);

    attr.light = 1;
    IS(fb_spawn_in(NULL, &fiber, &attr, square, POINTER(5)), 0);
    IS(fb_join(fiber, &result), 0);
    IS(NUMBER(result), 25);

    /* Each worker is one thread, and a fiber that is bound to it runs there. */
    int workers = fb_workers(NULL);
    long threads[16];
    CHECK(workers <= 16);
    for (int i = 0; i < workers; i++) {
        attr.worker = i;
        IS(fb_spawn_in(NULL, &fiber, &attr, this_thread, NULL), 0);
        IS(fb_join(fiber, &result), 0);
        threads[i] = (long)NUMBER(result);
        for (int j = 0; j < i; j++) CHECK(threads[j] != threads[i]);
        IS(fb_run_on(NULL, (size_t)i, this_thread, NULL, &result), 0);
        IS(NUMBER(result), threads[i]);
    }
    IS(fb_run_on(NULL, (size_t)workers, this_thread, NULL, &result), -EINVAL);
    IS(fb_run_on(NULL, 0, NULL, NULL, NULL), -EINVAL);
    IS(fb_run_on(NULL, 0, square, POINTER(2), NULL), 0);
    attr.worker = workers;
    IS(fb_spawn_in(NULL, &fiber, &attr, this_thread, NULL), -EINVAL);
    attr.worker = -2;
    IS(fb_spawn_in(NULL, &fiber, &attr, this_thread, NULL), -EINVAL);

    /* A program that knows less, or more, than the library. */
    fb_attr small = FB_ATTR_INIT;
    small.size = offsetof(fb_attr, stack_size);
    small.stack_size = (size_t)1 << 60; /* not looked at */
    IS(fb_spawn_in(NULL, &fiber, &small, square, POINTER(3)), 0);
    IS(fb_join(fiber, &result), 0);
    IS(NUMBER(result), 9);
    small.size = 0;
    IS(fb_spawn_in(NULL, &fiber, &small, square, POINTER(3)), -EINVAL);
    struct {
        fb_attr known;
        long long unknown;
    } large = {FB_ATTR_INIT, 0};
    large.known.size = sizeof large;
    IS(fb_spawn_in(NULL, &fiber, &large.known, square, POINTER(3)), 0);
    IS(fb_join(fiber, NULL), 0);
    large.unknown = 1;
    IS(fb_spawn_in(NULL, &fiber, &large.known, square, POINTER(3)), -E2BIG);
}

/* Whether so much address space cannot be had now. QEMU's emulation of a process sets no such limit. */
static int limit_is_kept(size_t size) {
    void *memory = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return 1;
    }
    CHECK(munmap(memory, size) == 0);
    return 0;
}

/* Whoever joins a fiber hears that there was no stack for it. */
static void no_stack(void) {
    fb_attr attr = FB_ATTR_INIT;
    fb_fiber *fiber;
    struct rlimit before, low;
    unsigned long long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%llu", &pages) == 1);
    fclose(file);
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    low = before;
    low.rlim_cur = pages * (unsigned long long)sysconf(_SC_PAGESIZE) + (1ULL << 30);
    CHECK(setrlimit(RLIMIT_AS, &low) == 0);
    attr.stack_size = (size_t)8 << 30;
    IS(fb_spawn_in(NULL, &fiber, &attr, square, NULL), 0);
    IS(fb_join(fiber, NULL), limit_is_kept(attr.stack_size) ? -ENOMEM : 0);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    attr.stack_size = (size_t)1 << 60;
    IS(fb_spawn_in(NULL, &fiber, &attr, square, NULL), -EINVAL);
}

static void turns(void) {
    atomic_int turns = 0;
    fb_fiber *fibers[4];
    fb_duration start = now();
    for (int i = 0; i < 4; i++) IS(fb_spawn(&fibers[i], count_turns, &turns), 0);
    for (int i = 0; i < 4; i++) IS(fb_join(fibers[i], NULL), 0);
    IS(atomic_load(&turns), 400);
    IS(fb_sleep(FB_MS(10)), 0);
    CHECK(now() - start >= FB_MS(10));
}

/* A call that the library does not see blocks a thread of its own, and the fiber that ends it runs meanwhile, on the only worker. */
static void blocking(void) {
    int ends[2];
    void *result;
    fb_fiber *writer;
    CHECK(pipe(ends) == 0);
    IS(fb_spawn(&writer, write_byte, POINTER(ends[1])), 0);
    IS(fb_blocking(block_for_real, POINTER(ends[0]), &result), 0);
    CHECK(NUMBER(result) != thread_number());
    IS(fb_join(writer, NULL), 0);
    IS(fb_blocking(NULL, NULL, NULL), -EINVAL);
    close(ends[0]);
    close(ends[1]);

    IS(fb_set_hooks(0), 1);
    IS(fb_set_hooks(1), 0);
}

static int program(void *options) {
    CHECK(fb_self_id() != 0);
    IS(fb_workers(NULL), ((fb_runtime_options *)options)->workers);
    results();
    joins();
    attributes();
    no_stack();
    turns();
    blocking();
    return 42;
}

/* What a plain thread may do: much the same, in the global runtime. */
static void outside(void) {
    fb_fiber *fiber;
    void *result;
    char name[8];
    IS(fb_self_id(), 0);
    IS(fb_self_name(name, sizeof name), -ESRCH);
    IS(fb_cancelled(), 0);
    IS(fb_spawn(&fiber, square, POINTER(9)), 0);
    IS(fb_join(fiber, &result), 0);
    IS(NUMBER(result), 81);
    CHECK(fb_workers(NULL) >= 1);
    IS(fb_run_on(NULL, 0, square, POINTER(4), &result), 0);
    IS(NUMBER(result), 16);
    IS(fb_blocking(this_thread, NULL, &result), 0);
    IS(NUMBER(result), thread_number());
    IS(fb_sleep(FB_MS(1)), 0);
    IS(fb_yield(), 0);
}

int main(int argc, char **argv) {
    fb_runtime_options options = named_options(argc, argv);
    IS(fb_run(program, &options, &options), 42);
    if (!options.light) outside();
    return 0;
}
