/* Dumps to a stream and to a descriptor tell the names of fibers and of what they wait for. */
#include "check.h"

static fb_mutex *mutex;
static fb_channel *channel;
static atomic_int ready;

static void *wait_for_mutex(void *unused) {
    (void)unused;
    atomic_fetch_add(&ready, 1);
    IS(fb_mutex_lock(mutex), 0);
    IS(fb_mutex_unlock(mutex), 0);
    return NULL;
}

static void *wait_for_message(void *unused) {
    (void)unused;
    atomic_fetch_add(&ready, 1);
    IS(fb_recv(channel, NULL), 0);
    return NULL;
}

/* Whether a dump, by either way, has all of this. */
static int dump_has(const fb_runtime *runtime, int by_descriptor, const char **words, int count) {
    char text[20000];
    FILE *file = tmpfile();
    CHECK(file != NULL);
    if (by_descriptor) {
        IS(fb_dump_fd(runtime, fileno(file)), 0);
    } else {
        IS(fb_dump(runtime, file), 0);
    }
    rewind(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    text[length] = 0;
    fclose(file);
    int has_all = 1;
    for (int i = 0; i < count; i++) has_all = has_all && strstr(text, words[i]) != NULL;
    return has_all;
}

static int program(void *unused) {
    static const char *words[] = {"'test'", "'teller'", "'till'", "'clerk'", "'jobs'"};
    fb_attr attr = FB_ATTR_INIT;
    fb_fiber *teller, *clerk;
    (void)unused;
    IS(fb_mutex_create(&mutex, "till"), 0);
    IS(fb_channel_create(&channel, 0, "jobs"), 0);
    IS(fb_mutex_lock(mutex), 0);
    attr.name = "teller";
    IS(fb_spawn_in(NULL, &teller, &attr, wait_for_mutex, NULL), 0);
    attr.name = "clerk";
    IS(fb_spawn_in(NULL, &clerk, &attr, wait_for_message, NULL), 0);
    EVENTUALLY(atomic_load(&ready) == 2);
    EVENTUALLY(dump_has(NULL, 0, words, 5));
    EVENTUALLY(dump_has(NULL, 1, words, 5));
    IS(fb_mutex_unlock(mutex), 0);
    IS(fb_send(channel, NULL), 0);
    IS(fb_join(teller, NULL), 0);
    IS(fb_join(clerk, NULL), 0);
    IS(fb_dump(NULL, NULL), -EINVAL);
    IS(fb_dump_fd(NULL, -1), -EBADF);
    fb_channel_unref(channel);
    IS(fb_mutex_destroy(mutex), 0);
    return 0;
}

int main(int argc, char **argv) {
    fb_runtime_options options = named_options(argc, argv);
    IS(fb_run(program, NULL, &options), 0);
    /* From outside, of a runtime that is named, and of the global one. */
    static const char *name[] = {"'elsewhere'"}, *global[] = {"'fibrant-global'"};
    fb_runtime *runtime;
    options.name = "elsewhere";
    IS(fb_runtime_start(&runtime, &options), 0);
    CHECK(dump_has(runtime, 0, name, 1));
    CHECK(dump_has(runtime, 1, name, 1));
    IS(fb_runtime_stop(runtime), 0);
    if (!options.light) CHECK(dump_has(NULL, 1, global, 1));
    return 0;
}
