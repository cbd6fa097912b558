// An exception that leaves a function which was given to the library ends the program; one that is caught inside does not matter. The
// argument says which function it leaves.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fibrant.h>
#include <stdexcept>

static void check(bool condition) {
    if (!condition) {
        std::fprintf(stderr, "a check has failed\n");
        std::_Exit(1);
    }
}

struct Noted {
    ~Noted() { fb_yield(); }
};

static void *throws(void *) {
    Noted noted;
    throw std::runtime_error("it left the fiber");
}

static void *catches(void *channel) {
    try {
        throws(nullptr);
    } catch (const std::runtime_error &) {
        fb_send(static_cast<fb_channel *>(channel), nullptr);
    }
    return channel;
}

static void destructor_throws(void *value) {
    throws(value);
}

static void *sets_local(void *) {
    fb_key key;
    check(fb_key_create(&key, destructor_throws) == 0);
    check(fb_set(key, &key) == 0);
    return nullptr;
}

static int program(void *way) {
    fb_fiber *fibers[10];
    fb_channel *channel;
    check(fb_channel_create(&channel, 0, nullptr) == 0);
    for (auto &fiber : fibers) check(fb_spawn(&fiber, catches, channel) == 0);
    for (auto &fiber : fibers) {
        (void)fiber;
        check(fb_recv(channel, nullptr) == 0);
    }
    for (auto &fiber : fibers) check(fb_join(fiber, nullptr) == 0);
    fb_channel_unref(channel);
    std::fprintf(stderr, "now\n");
    const char *name = static_cast<const char *>(way);
    if (!std::strcmp(name, "fiber")) {
        fb_fiber *fiber;
        check(fb_spawn(&fiber, throws, nullptr) == 0);
        fb_join(fiber, nullptr);
    } else if (!std::strcmp(name, "run")) {
        throws(nullptr);
    } else if (!std::strcmp(name, "run_on")) {
        fb_run_on(nullptr, 0, throws, nullptr, nullptr);
    } else if (!std::strcmp(name, "blocking")) {
        fb_blocking(throws, nullptr, nullptr);
    } else if (!std::strcmp(name, "local")) {
        fb_fiber *fiber;
        check(fb_spawn(&fiber, sets_local, nullptr) == 0);
        fb_join(fiber, nullptr);
    }
    return 0;
}

int main(int argc, char **argv) {
    check(argc == 2);
    return fb_run(program, argv[1], nullptr);
}
