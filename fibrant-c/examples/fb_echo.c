/*
 * An echo server with a fiber for each connection, and its clients, which are fibers, too. It ends
 * by itself.
 *
 *     cc fb_echo.c -lfibrant -o fb_echo && ./fb_echo
 *
 * With the argument "light" its fibers share the thread-locals of their workers: so it runs under
 * valgrind, too.
 *
 * accept, connect, read and write are the C library's: in a fiber they let others run instead of
 * blocking.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fibrant.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS = 100, MESSAGES = 10 };

static struct sockaddr_in address;

static void fail(const char *what, int error) {
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(1);
}

/* One connection of the server: sends back what comes, until the client closes. */
static void *echo(void *argument) {
    int connection = (int)(intptr_t)argument;
    char buffer[512];
    ssize_t length;
    while ((length = read(connection, buffer, sizeof buffer)) > 0) {
        if (write(connection, buffer, (size_t)length) != length) break;
    }
    close(connection);
    return NULL;
}

/*
 * The server: a fiber for each connection, until it is cancelled, of which accept tells by
 * ECANCELED.
 */
static void *serve(void *argument) {
    int listener = (int)(intptr_t)argument;
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection < 0 && errno == ECANCELED) break;
        if (connection < 0) fail("accept", errno);
        int error = fb_spawn(NULL, echo, (void *)(intptr_t)connection); /* nobody joins it */
        if (error < 0) fail("fb_spawn", -error);
    }
    close(listener);
    return NULL;
}

/* A client: returns how many bytes came back. */
static void *ask(void *argument) {
    char text[64], answer[64];
    intptr_t count = 0;
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connection < 0) fail("socket", errno);
    if (connect(connection, (struct sockaddr *)&address, sizeof address)) fail("connect", errno);
    for (int i = 0; i < MESSAGES; i++) {
        int length = snprintf(text, sizeof text, "message %d of %d", i, (int)(intptr_t)argument);
        if (write(connection, text, (size_t)length) != length) fail("write", errno);
        if (recv(connection, answer, (size_t)length, MSG_WAITALL) != length) fail("recv", errno);
        if (memcmp(text, answer, (size_t)length) != 0) fail("another answer", EPROTO);
        count += length;
    }
    close(connection);
    return (void *)count;
}

/* What main would be: it runs as a fiber. */
static int program(void *unused) {
    fb_fiber *server, *clients[CLIENTS];
    socklen_t size = sizeof address;
    long bytes = 0;
    (void)unused;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 128) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0) {
        fail("listen", errno);
    }

    fb_spawn(&server, serve, (void *)(intptr_t)listener);
    for (int i = 0; i < CLIENTS; i++) fb_spawn(&clients[i], ask, (void *)(intptr_t)i);
    for (int i = 0; i < CLIENTS; i++) {
        void *count;
        fb_join(clients[i], &count);
        bytes += (long)(intptr_t)count;
    }
    fb_cancel(server);
    fb_join(server, NULL);
    printf("%d clients, %ld bytes there and back, %d workers\n", CLIENTS, bytes, fb_workers(NULL));
    return 0;
}

/* The options say nothing of workers: so there is one for each processor. */
int main(int argc, char *argv[]) {
    fb_runtime_options options = FB_RUNTIME_OPTIONS_INIT;
    options.light = argc > 1 && strcmp(argv[1], "light") == 0;
    int result = fb_run(program, NULL, &options);
    if (result < 0) fail("fb_run", -result);
    return result;
}
