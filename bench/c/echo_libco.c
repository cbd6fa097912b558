/*
 * An echo server as programs for libco have it: one coroutine accepts, and hands each connection to a worker from a pool; a worker that has
 * none yields. Non-blocking sockets, hooks on.
 *
 * echo_libco poll: a worker polls its connection, for a second at most, before it reads, as libco's own example does;
 * echo_libco read: it just reads.
 */

#define _GNU_SOURCE
#include "echo.h"

#include <co_routine.h>
#include <fcntl.h>
#include <string.h>

struct worker {
    stCoRoutine_t *coroutine;
    struct worker *next_idle;
    int fd;
};

static struct worker *idle;
static int polls;
static int listener;

static void serve(int fd) {
    char buffer[LARGEST];
    for (;;) {
        if (polls) {
            struct pollfd one = {.fd = fd, .events = POLLIN | POLLERR | POLLHUP};
            co_poll(co_get_epoll_ct(), &one, 1, 1000);
        }
        const ssize_t got = read(fd, buffer, sizeof buffer);
        if (got > 0 ? write(fd, buffer, (size_t)got) == got : got < 0 && errno == EAGAIN) continue;
        return;
    }
}

static void *work(void *argument) {
    struct worker *const self = argument;
    co_enable_hook_sys();
    for (;;) {
        self->next_idle = idle;
        idle = self;
        co_yield_ct();
        serve(self->fd);
        close(self->fd);
    }
    return NULL;
}

static void *accept_all(void *argument) {
    co_enable_hook_sys();
    for (;;) {
        if (!idle) {
            poll(NULL, 0, 1000);
            continue;
        }
        const int fd = co_accept(listener, NULL, NULL);
        if (fd < 0) {
            struct pollfd one = {.fd = listener, .events = POLLIN | POLLERR | POLLHUP};
            co_poll(co_get_epoll_ct(), &one, 1, 1000);
            continue;
        }
        /* To a worker that just reads, sockets are what they are: blocking. */
        if (polls) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        send_at_once(fd);
        struct worker *const chosen = idle;
        idle = chosen->next_idle;
        chosen->fd = fd;
        co_resume(chosen->coroutine);
    }
    return argument;
}

int main(int count, char **arguments) {
    static struct worker workers[CONNECTIONS];
    stCoRoutine_t *acceptor;
    polls = count > 1 && strcmp(arguments[1], "poll") == 0;
    listener = listen_and_tell(polls ? SOCK_NONBLOCK : 0);
    for (int i = 0; i < CONNECTIONS; i++) {
        require(co_create(&workers[i].coroutine, NULL, work, &workers[i]) == 0, "co_create");
        co_resume(workers[i].coroutine);
    }
    require(co_create(&acceptor, NULL, accept_all, NULL) == 0, "co_create");
    co_resume(acceptor);
    co_eventloop(co_get_epoll_ct(), NULL, NULL);
    return 0;
}
