/*
 * The yardstick: an echo server on bare epoll, level-triggered, one thread. For each event one read and one write, and as many events as
 * there are for each epoll_wait.
 */

#define _GNU_SOURCE
#include "echo.h"

#include <sys/epoll.h>

static void watch(int epoll, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    require(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

int main(void) {
    static struct epoll_event events[CONNECTIONS];
    char buffer[LARGEST];
    const int listener = listen_and_tell(SOCK_NONBLOCK);
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    require(epoll >= 0, "epoll_create1");
    watch(epoll, listener);
    for (;;) {
        const int count = epoll_wait(epoll, events, CONNECTIONS, -1);
        for (int i = 0; i < count; i++) {
            const int fd = events[i].data.fd;
            if (fd == listener) {
                int accepted;
                while ((accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
                    send_at_once(accepted);
                    watch(epoll, accepted);
                }
                continue;
            }
            const ssize_t got = read(fd, buffer, sizeof buffer);
            /* What does not fit into the socket's buffer is another benchmark's business. */
            if (got > 0 ? write(fd, buffer, (size_t)got) != got : got == 0 || errno != EAGAIN) close(fd);
        }
    }
}
