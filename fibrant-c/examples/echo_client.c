/*
 * Clients of the echo server: each a coroutine with its own connection, all at the same time on one thread.
 *
 *     ./echo_client port [clients [rounds]]
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "co_routine.h"

static struct sockaddr_in address;
static int clients = 10;
static int rounds = 100;
static int ended;
static long echoes;

static void *client(void *arg) {
	char out[64];
	char in[64];
	int round;
	int fd;

	co_enable_hook_sys();
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		perror("connect");
	} else {
		for (round = 0; round < rounds; round++) {
			size_t length = (size_t)snprintf(out, sizeof(out), "client %d, round %d", (int)(intptr_t)arg, round);
			if (write(fd, out, length) != (ssize_t)length || recv(fd, in, length, MSG_WAITALL) != (ssize_t)length) {
				perror("echo");
				break;
			}
			echoes += memcmp(out, in, length) == 0;
		}
	}
	close(fd);
	ended++;
	return NULL;
}

static int all_ended(void *arg) {
	(void)arg;
	return ended == clients ? -1 : 0;
}

int main(int argc, char *argv[]) {
	struct stCoRoutine_t **co;
	int i;

	if (argc < 2) {
		fprintf(stderr, "usage: echo_client port [clients [rounds]]\n");
		return 2;
	}
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address.sin_port = htons((unsigned short)atoi(argv[1]));
	clients = argc > 2 ? atoi(argv[2]) : clients;
	rounds = argc > 3 ? atoi(argv[3]) : rounds;

	co = (struct stCoRoutine_t **)calloc((size_t)clients, sizeof(*co));
	for (i = 0; i < clients; i++) {
		co_create(&co[i], NULL, client, (void *)(intptr_t)i);
		co_resume(co[i]);
	}
	co_eventloop(co_get_epoll_ct(), all_ended, NULL);
	for (i = 0; i < clients; i++) {
		co_release(co[i]);
	}
	free(co);
	printf("%ld echoes\n", echoes);
	return echoes == (long)clients * rounds ? 0 : 1;
}
