/*
 * An echo server: one coroutine accepts, a pool of others serves, and the idle ones yield until there is work.
 *
 *     ./echo_server [port [connections]]
 *
 * Port 0, the default, is any free one; the server prints it. With a number of connections it ends after so many.
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "co_routine.h"

#define WORKERS 16

struct worker {
	struct stCoRoutine_t *co;
	int fd; /* the connection it serves, or -1 */
	struct worker *next_idle;
};

static struct worker workers[WORKERS];
static struct worker *idle;
static int listener;
static int served;
static int wanted;

static void *serve(void *arg) {
	struct worker *self = (struct worker *)arg;
	char buffer[16 * 1024];
	ssize_t got;

	/* From here on, read() and write() let the others run while they wait. */
	co_enable_hook_sys();
	for (;;) {
		if (self->fd == -1) {
			self->next_idle = idle;
			idle = self;
			co_yield_ct(); /* until the accepting coroutine has a connection for us */
			continue;
		}
		while ((got = read(self->fd, buffer, sizeof(buffer))) > 0) {
			if (write(self->fd, buffer, (size_t)got) != got) {
				break;
			}
		}
		close(self->fd);
		self->fd = -1;
		served++;
	}
	return NULL;
}

static void *accept_connections(void *arg) {
	(void)arg;
	co_enable_hook_sys();
	for (;;) {
		struct worker *worker;
		int fd;
		if (idle == NULL) {
			poll(NULL, 0, 10); /* everybody is busy: sleep for a moment */
			continue;
		}
		fd = co_accept(listener, NULL, NULL);
		if (fd < 0) {
			perror("accept");
			poll(NULL, 0, 10); /* too many open files, maybe: it may be better soon */
			continue;
		}
		worker = idle;
		idle = worker->next_idle;
		worker->fd = fd;
		co_resume(worker->co); /* runs it until it first waits */
	}
	return NULL;
}

static int enough(void *arg) {
	(void)arg;
	return served >= wanted ? -1 : 0;
}

int main(int argc, char *argv[]) {
	struct stCoRoutine_t *acceptor;
	struct sockaddr_in address = {0};
	socklen_t length = sizeof(address);
	int reuse = 1;
	int i;

	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address.sin_port = htons((unsigned short)(argc > 1 ? atoi(argv[1]) : 0));
	wanted = argc > 2 ? atoi(argv[2]) : 0;

	listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(listener, 128) != 0) {
		perror("echo_server");
		return 1;
	}
	getsockname(listener, (struct sockaddr *)&address, &length);
	printf("port %d\n", ntohs(address.sin_port));
	fflush(stdout);

	for (i = 0; i < WORKERS; i++) {
		workers[i].fd = -1;
		co_create(&workers[i].co, NULL, serve, &workers[i]);
		co_resume(workers[i].co);
	}
	co_create(&acceptor, NULL, accept_connections, NULL);
	co_resume(acceptor);

	/* Without a function to ask, the loop never ends, and sleeps while nothing happens. */
	co_eventloop(co_get_epoll_ct(), wanted > 0 ? enough : NULL, NULL);

	co_release(acceptor);
	for (i = 0; i < WORKERS; i++) {
		co_release(workers[i].co);
	}
	close(listener);
	printf("served %d\n", served);
	return 0;
}
