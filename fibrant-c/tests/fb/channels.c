/* Channels of all sizes, closing, references, select. */
#include "check.h"
#include <pthread.h>

enum { MESSAGES = 2000 };

static void *produce(void *channel) {
    for (int i = 1; i <= MESSAGES; i++) IS(fb_send((fb_channel *)channel, POINTER(i)), 0);
    fb_channel_unref((fb_channel *)channel);
    return NULL;
}

static void *consume(void *channel) {
    long long sum = 0;
    void *message;
    int error;
    while ((error = fb_recv((fb_channel *)channel, &message)) == 0) sum += NUMBER(message);
    IS(error, -EPIPE);
    fb_channel_unref((fb_channel *)channel);
    return POINTER(sum);
}

static void *send_one(void *channel) {
    return POINTER(fb_send((fb_channel *)channel, POINTER(1)));
}

static void *receive_one(void *channel) {
    return POINTER(fb_recv((fb_channel *)channel, NULL));
}

/* Two producers and two consumers, of which one each is a plain thread, if that is asked for. */
static void stream(size_t capacity, int with_threads) {
    fb_channel *channel;
    fb_fiber *fibers[4];
    pthread_t threads[2];
    long long sum = 0;
    void *result;
    IS(fb_channel_create(&channel, capacity, "stream"), 0);
    int first = with_threads ? 1 : 0;
    if (with_threads) {
        CHECK(pthread_create(&threads[0], NULL, produce, fb_channel_ref(channel)) == 0);
        CHECK(pthread_create(&threads[1], NULL, consume, fb_channel_ref(channel)) == 0);
    }
    for (int i = first; i < 2; i++) {
        IS(fb_spawn(&fibers[i], produce, fb_channel_ref(channel)), 0);
        IS(fb_spawn(&fibers[2 + i], consume, fb_channel_ref(channel)), 0);
    }
    for (int i = first; i < 2; i++) IS(fb_join(fibers[i], NULL), 0);
    /* pthread_join is hooked: the fiber waits, and its worker goes on. */
    if (with_threads) CHECK(pthread_join(threads[0], NULL) == 0);
    IS(fb_channel_close(channel), 0);
    for (int i = first; i < 2; i++) {
        IS(fb_join(fibers[2 + i], &result), 0);
        sum += NUMBER(result);
    }
    if (with_threads) {
        CHECK(pthread_join(threads[1], &result) == 0);
        sum += NUMBER(result);
    }
    IS(sum, 2LL * MESSAGES * (MESSAGES + 1) / 2);
    fb_channel_unref(channel);
}

static void errors(void) {
    fb_channel *channel;
    void *message = POINTER(-1);
    fb_duration start = now();
    IS(fb_channel_create(NULL, 1, NULL), -EINVAL);
    IS(fb_channel_create(&channel, 2, NULL), 0);
    IS(fb_try_recv(channel, &message), -EAGAIN);
    IS(fb_recv_timeout(channel, &message, FB_MS(10)), -ETIMEDOUT);
    CHECK(now() - start >= FB_MS(10));
    IS(fb_try_send(channel, POINTER(1)), 0);
    IS(fb_send_timeout(channel, POINTER(2), 0), 0);
    IS(fb_channel_length(channel), 2);
    IS(fb_try_send(channel, POINTER(3)), -EAGAIN);
    start = now();
    IS(fb_send_timeout(channel, POINTER(3), FB_MS(10)), -ETIMEDOUT);
    CHECK(now() - start >= FB_MS(10));
    CHECK(NUMBER(message) == -1);
    IS(fb_channel_close(channel), 0);
    IS(fb_channel_close(channel), 0);
    IS(fb_send(channel, NULL), -EPIPE);
    IS(fb_try_send(channel, NULL), -EPIPE);
    IS(fb_send_timeout(channel, NULL, FB_FOREVER), -EPIPE);
    /* What was sent before is there still. */
    IS(fb_recv(channel, &message), 0);
    IS(NUMBER(message), 1);
    IS(fb_recv_timeout(channel, &message, FB_FOREVER), 0);
    IS(NUMBER(message), 2);
    IS(fb_recv(channel, &message), -EPIPE);
    IS(fb_try_recv(channel, NULL), -EPIPE);
    IS(fb_recv_timeout(channel, NULL, FB_S(1000)), -EPIPE);
    CHECK(fb_channel_ref(channel) == channel);
    fb_channel_unref(channel);
    fb_channel_unref(channel);

    fb_channel_unref(NULL);
    CHECK(fb_channel_ref(NULL) == NULL);
    IS(fb_send(NULL, NULL), -EINVAL);
    IS(fb_try_send(NULL, NULL), -EINVAL);
    IS(fb_send_timeout(NULL, NULL, 0), -EINVAL);
    IS(fb_recv(NULL, NULL), -EINVAL);
    IS(fb_try_recv(NULL, NULL), -EINVAL);
    IS(fb_recv_timeout(NULL, NULL, 0), -EINVAL);
    IS(fb_channel_close(NULL), -EINVAL);
    IS(fb_channel_length(NULL), -EINVAL);

    /* Any number; and what is left is forgotten. */
    IS(fb_channel_create(&channel, FB_UNBOUNDED, NULL), 0);
    for (int i = 0; i < 10000; i++) IS(fb_try_send(channel, NULL), 0);
    IS(fb_channel_length(channel), 10000);
    fb_channel_unref(channel);
}

/* Closing wakes whoever waits, for both, and for a choice. */
static void *select_both(void *channels) {
    fb_channel **both = (fb_channel **)channels;
    fb_case cases[2] = {{FB_RECV, 1, both[0], NULL}, {FB_SEND, 1, both[1], POINTER(1)}};
    int index = fb_select(cases, 2, FB_FOREVER);
    CHECK(index == 0 || index == 1);
    return POINTER(cases[index].result);
}

static void closing(void) {
    fb_channel *channels[2];
    fb_fiber *fibers[30];
    void *result;
    IS(fb_channel_create(&channels[0], 3, NULL), 0);
    IS(fb_channel_create(&channels[1], 0, NULL), 0);
    for (int i = 0; i < 10; i++) {
        IS(fb_spawn(&fibers[3 * i], receive_one, channels[0]), 0);
        IS(fb_spawn(&fibers[3 * i + 1], send_one, channels[1]), 0);
        IS(fb_spawn(&fibers[3 * i + 2], select_both, channels), 0);
    }
    IS(fb_sleep(FB_MS(5)), 0);
    for (int i = 0; i < 30; i++) IS(fb_finished(fibers[i]), 0);
    IS(fb_channel_close(channels[0]), 0);
    IS(fb_channel_close(channels[1]), 0);
    for (int i = 0; i < 30; i++) {
        IS(fb_join(fibers[i], &result), 0);
        IS(NUMBER(result), -EPIPE);
    }
    fb_channel_unref(channels[0]);
    fb_channel_unref(channels[1]);
}

static void selects(void) {
    fb_channel *in, *out, *never;
    fb_fiber *fiber;
    IS(fb_channel_create(&in, 1, NULL), 0);
    IS(fb_channel_create(&out, 1, NULL), 0);
    IS(fb_channel_create(&never, 0, NULL), 0);
    fb_case cases[4] = {
        {FB_RECV, 7, never, NULL},
        {FB_RECV, 7, NULL, NULL},
        {FB_RECV, 7, in, NULL},
        {FB_SEND, 7, out, POINTER(5)},
    };
    fb_duration start = now();
    IS(fb_select(cases, 3, FB_MS(10)), -ETIMEDOUT);
    CHECK(now() - start >= FB_MS(10));
    IS(fb_select(cases, 3, 0), -ETIMEDOUT);
    IS(fb_select(NULL, 0, FB_MS(1)), -ETIMEDOUT);
    IS(fb_select(NULL, 1, 0), -EINVAL);
    CHECK(cases[0].result == 7 && cases[2].result == 7);

    /* What can be sent is sent, and what can be received is received: exactly one of them. */
    IS(fb_select(cases, 4, FB_FOREVER), 3);
    IS(cases[3].result, 0);
    IS(fb_channel_length(out), 1);
    IS(fb_select(cases, 4, 0), -ETIMEDOUT);
    IS(fb_send(in, POINTER(9)), 0);
    IS(fb_select(cases, 4, FB_FOREVER), 2);
    IS(cases[2].result, 0);
    IS(NUMBER(cases[2].message), 9);
    void *message;
    IS(fb_recv(out, &message), 0);
    IS(NUMBER(message), 5);

    /* One that waits is served. */
    IS(fb_spawn(&fiber, send_one, never), 0);
    IS(fb_select(cases, 3, FB_S(100)), 0);
    IS(NUMBER(cases[0].message), 1);
    IS(fb_join(fiber, &message), 0);
    IS(NUMBER(message), 0);

    /* Each that can be chosen is, now and then. */
    int chosen[2] = {0, 0};
    for (int i = 0; i < 200; i++) {
        fb_case either[2] = {{FB_SEND, 0, in, POINTER(1)}, {FB_SEND, 0, out, POINTER(2)}};
        int index = fb_select(either, 2, FB_FOREVER);
        CHECK(index == 0 || index == 1);
        chosen[index]++;
        IS(fb_try_recv(index ? out : in, NULL), 0);
        IS(fb_try_recv(index ? in : out, NULL), -EAGAIN);
    }
    CHECK(chosen[0] > 20 && chosen[1] > 20);

    IS(fb_channel_close(in), 0);
    IS(fb_select(&cases[2], 1, FB_FOREVER), 0);
    IS(cases[2].result, -EPIPE);
    cases[0].operation = 3;
    IS(fb_select(cases, 4, 0), -EINVAL);

    /* Many. */
    fb_case many[40];
    for (int i = 0; i < 40; i++) many[i] = (fb_case){FB_RECV, 0, never, NULL};
    many[33].channel = out;
    IS(fb_send(out, POINTER(33)), 0);
    IS(fb_select(many, 40, FB_FOREVER), 33);
    IS(NUMBER(many[33].message), 33);
    fb_channel_unref(in);
    fb_channel_unref(out);
    fb_channel_unref(never);
}

static int program(void *unused) {
    (void)unused;
    for (int with_threads = 0; with_threads < 2; with_threads++) {
        stream(0, with_threads);
        stream(1, with_threads);
        stream(100, with_threads);
        stream(FB_UNBOUNDED, with_threads);
    }
    errors();
    closing();
    selects();
    return 0;
}

int main(int argc, char **argv) {
    fb_runtime_options options = named_options(argc, argv);
    IS(fb_run(program, NULL, &options), 0);
    /* And in a plain thread alone. */
    errors();
    return 0;
}
