/*
 * The echo server with fibrant.h: a fiber for each connection, light ones, on one worker; blocking sockets, plain reads and writes.
 */

#define _GNU_SOURCE
#include "echo.h"

#include <fibrant.h>

static void *serve(void *argument) {
    char buffer[LARGEST];
    const int fd = (int)(intptr_t)argument;
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) > 0 && write(fd, buffer, (size_t)got) == got) continue;
    close(fd);
    return NULL;
}

static int accept_all(void *argument) {
    (void)argument;
    const int listener = listen_and_tell(0);
    for (;;) {
        const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        require(fd >= 0, "accept4");
        send_at_once(fd);
        require(fb_spawn(NULL, serve, (void *)(intptr_t)fd) == 0, "fb_spawn");
    }
    return 0;
}

int main(void) {
    fb_runtime_options options = FB_RUNTIME_OPTIONS_INIT;
    options.workers = 1;
    options.light = 1;
    options.stack_size = 128 * 1024;
    return fb_run(accept_all, NULL, &options);
}
