/*
 * Several connections made at the same time and waited for with one poll(), in each of several coroutines.
 *
 *     ./poll_connects [port ...]
 *
 * The ports are of this machine. Without any, the program opens some of its own, and one at which nobody listens.
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "co_routine.h"

#define MOST 16
#define COROUTINES 3

static unsigned short ports[MOST];
static int count;
static int ended;

static void *connect_all(void *arg) {
	struct pollfd fds[MOST];
	int waiting = count;
	int i;

	co_enable_hook_sys();
	for (i = 0; i < count; i++) {
		struct sockaddr_in address = {0};
		address.sin_family = AF_INET;
		address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		address.sin_port = htons(ports[i]);
		fds[i].fd = socket(AF_INET, SOCK_STREAM, 0);
		fds[i].events = POLLOUT;
		/* A socket that the program itself makes non-blocking stays so: connect() answers at once. */
		fcntl(fds[i].fd, F_SETFL, fcntl(fds[i].fd, F_GETFL) | O_NONBLOCK);
		connect(fds[i].fd, (struct sockaddr *)&address, sizeof(address));
	}
	while (waiting > 0 && poll(fds, (nfds_t)count, 10000) > 0) {
		for (i = 0; i < count; i++) {
			if (fds[i].fd >= 0 && fds[i].revents != 0) {
				int error = 0;
				socklen_t length = sizeof(error);
				getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &error, &length);
				printf("coroutine %d, connection %d: %s\n", (int)(intptr_t)arg, i, (fds[i].revents & POLLERR) ? "refused" : strerror(error));
				close(fds[i].fd);
				fds[i].fd = -1; /* poll() skips it from now on */
				waiting--;
			}
		}
	}
	ended++;
	return NULL;
}

static int all_ended(void *arg) {
	(void)arg;
	return ended == COROUTINES ? -1 : 0;
}

/* Some ports: nobody listens at the last, which is kept, so that nobody else gets it. */
static void open_ports(void) {
	int i;
	for (i = 0; i < 3; i++) {
		struct sockaddr_in address = {0};
		socklen_t length = sizeof(address);
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		address.sin_family = AF_INET;
		address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || (i < 2 && listen(fd, 16) != 0)) {
			perror("listen");
			exit(1);
		}
		getsockname(fd, (struct sockaddr *)&address, &length);
		ports[count++] = ntohs(address.sin_port);
	}
}

int main(int argc, char *argv[]) {
	struct stCoRoutine_t *co[COROUTINES];
	int i;

	for (i = 1; i < argc && count < MOST; i++) {
		ports[count++] = (unsigned short)atoi(argv[i]);
	}
	if (count == 0) {
		open_ports();
	}
	for (i = 0; i < COROUTINES; i++) {
		co_create(&co[i], NULL, connect_all, (void *)(intptr_t)i);
		co_resume(co[i]);
	}
	co_eventloop(co_get_epoll_ct(), all_ended, NULL);
	for (i = 0; i < COROUTINES; i++) {
		co_release(co[i]);
	}
	return 0;
}
