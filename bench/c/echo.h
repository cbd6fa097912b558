/*
 * What the echo servers share: a socket that listens on some port of the loopback, which is printed for the load generator, and the
 * limits of descriptors and connections.
 */

#ifndef ECHO_H
#define ECHO_H

#include "figures.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 1100, LARGEST = 4096 };

/* Small answers are sent at once. */
static inline void send_at_once(int fd) {
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static inline void allow_many_descriptors(void) {
    struct rlimit limit;
    require(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    limit.rlim_cur = limit.rlim_max;
    require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

/* A socket that listens; its port is printed. */
static inline int listen_and_tell(int flags) {
    allow_many_descriptors();
    struct sockaddr_in address = {0};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    require(fd >= 0, "socket");
    require(bind(fd, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    require(listen(fd, CONNECTIONS) == 0, "listen");
    require(getsockname(fd, (struct sockaddr *)&address, &length) == 0, "getsockname");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

#endif
