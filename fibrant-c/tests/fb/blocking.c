/* Thousands of fibers that block in read, accept, connect and nanosleep on a few workers: the C library's calls are hooked. */
#include "check.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { PIPES = 2000, CONNECTIONS = 200 };

static int ends[PIPES][2];
static atomic_int reading;

static void *read_number(void *index) {
    int number;
    atomic_fetch_add(&reading, 1);
    IS(read(ends[NUMBER(index)][0], &number, sizeof number), sizeof number);
    return POINTER(number);
}

static void pipes(void) {
    static fb_fiber *fibers[PIPES];
    void *result;
    for (int i = 0; i < PIPES; i++) {
        CHECK(pipe(ends[i]) == 0);
        IS(fb_spawn(&fibers[i], read_number, POINTER(i)), 0);
    }
    EVENTUALLY(atomic_load(&reading) == PIPES);
    IS(fb_finished(fibers[0]), 0);
    for (int i = PIPES - 1; i >= 0; i--) {
        int number = i * 3;
        IS(write(ends[i][1], &number, sizeof number), sizeof number);
    }
    for (int i = 0; i < PIPES; i++) {
        IS(fb_join(fibers[i], &result), 0);
        IS(NUMBER(result), i * 3);
        close(ends[i][0]);
        close(ends[i][1]);
    }
}

static struct sockaddr_in address;

static void *echo(void *connection) {
    char buffer[100];
    int socket = (int)NUMBER(connection);
    ssize_t length;
    while ((length = read(socket, buffer, sizeof buffer)) > 0) IS(write(socket, buffer, (size_t)length), length);
    IS(length, 0);
    close(socket);
    return NULL;
}

static void *serve(void *listener) {
    for (int i = 0; i < CONNECTIONS; i++) {
        int connection = accept((int)NUMBER(listener), NULL, NULL);
        CHECK(connection >= 0);
        IS(fb_spawn(NULL, echo, POINTER(connection)), 0);
    }
    return NULL;
}

static void *ask(void *number) {
    char text[20], answer[20];
    int length = snprintf(text, sizeof text, "%lld", NUMBER(number));
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(connection, (struct sockaddr *)&address, sizeof address) == 0);
    for (int i = 0; i < 3; i++) {
        IS(send(connection, text, (size_t)length, 0), length);
        IS(recv(connection, answer, (size_t)length, MSG_WAITALL), length);
        CHECK(memcmp(text, answer, (size_t)length) == 0);
    }
    close(connection);
    return NULL;
}

static void sockets(void) {
    static fb_fiber *fibers[CONNECTIONS];
    fb_fiber *server;
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(listener, CONNECTIONS) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    IS(fb_spawn(&server, serve, POINTER(listener)), 0);
    for (int i = 0; i < CONNECTIONS; i++) IS(fb_spawn(&fibers[i], ask, POINTER(i)), 0);
    for (int i = 0; i < CONNECTIONS; i++) IS(fb_join(fibers[i], NULL), 0);
    IS(fb_join(server, NULL), 0);
    close(listener);
}

static void *nap(void *unused) {
    struct timespec time = {0, 50 * 1000 * 1000};
    (void)unused;
    CHECK(nanosleep(&time, NULL) == 0);
    return NULL;
}

/* One after the other it would take 100 seconds. */
static void sleeps(void) {
    static fb_fiber *fibers[PIPES];
    fb_duration start = now();
    for (int i = 0; i < PIPES; i++) IS(fb_spawn(&fibers[i], nap, NULL), 0);
    for (int i = 0; i < PIPES; i++) IS(fb_join(fibers[i], NULL), 0);
    CHECK(now() - start >= FB_MS(50));
    CHECK(now() - start < FB_S(40));
}

static int program(void *unused) {
    (void)unused;
    pipes();
    sockets();
    sleeps();
    return 0;
}

int main(int argc, char **argv) {
    fb_runtime_options options = named_options(argc, argv);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    return fb_run(program, NULL, &options);
}
