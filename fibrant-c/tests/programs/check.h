/* What the programs share: a check that ends the program, a clock, and the event loop until something has happened. */

#ifndef CHECK_H
#define CHECK_H

/* Strict C hides POSIX otherwise. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "co_routine.h"

#define CHECK(condition)                                                                           \
	do {                                                                                           \
		if (!(condition)) {                                                                        \
			fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			exit(1);                                                                               \
		}                                                                                          \
	} while (0)

/* The last line that the harness looks for. */
static inline int finish(void) {
	puts("ok");
	return 0;
}

static inline long now_ms(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline struct stCoRoutine_t *start(void *(*routine)(void *), void *arg) {
	struct stCoRoutine_t *co = NULL;
	CHECK(co_create(&co, NULL, routine, arg) == 0);
	CHECK(co != NULL);
	co_resume(co);
	return co;
}

/* What the loop waits for: a counter that reaches a number, or a time. */
struct goal {
	const int *counter;
	int wanted;
	long deadline;
};

static inline int goal_reached(void *arg) {
	const struct goal *goal = (const struct goal *)arg;
	if (goal->counter != NULL && *goal->counter >= goal->wanted) {
		return -1;
	}
	return now_ms() >= goal->deadline ? -1 : 0;
}

/* Runs the event loop until the counter has reached the number; it must within half a minute. */
static inline void loop_until(const int *counter, int wanted) {
	struct goal goal;
	goal.counter = counter;
	goal.wanted = wanted;
	goal.deadline = now_ms() + 30000;
	co_eventloop(co_get_epoll_ct(), goal_reached, &goal);
	CHECK(*counter >= wanted);
}

/* Runs the event loop for some milliseconds. */
static inline void loop_for(long ms) {
	struct goal goal;
	goal.counter = NULL;
	goal.wanted = 0;
	goal.deadline = now_ms() + ms;
	co_eventloop(co_get_epoll_ct(), goal_reached, &goal);
}

/* A listener on a free port of the loopback interface, and its address. */
static inline int bind_to_loopback(struct sockaddr_in *address) {
	socklen_t length = sizeof(*address);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	memset(address, 0, sizeof(*address));
	address->sin_family = AF_INET;
	address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(fd, (struct sockaddr *)address, sizeof(*address)) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)address, &length) == 0);
	return fd;
}

static inline int listen_on_loopback(struct sockaddr_in *address) {
	int fd = bind_to_loopback(address);
	CHECK(listen(fd, 128) == 0);
	return fd;
}

static inline void set_nonblocking(int fd) {
	int flags = fcntl(fd, F_GETFL, 0);
	CHECK(flags >= 0);
	CHECK(fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
}

/* A line of letters in which a program notes what happened when. */
struct story {
	char text[256];
	size_t length;
};

static inline void note(struct story *story, char letter) {
	CHECK(story->length + 1 < sizeof(story->text));
	story->text[story->length++] = letter;
	story->text[story->length] = '\0';
}

#define CHECK_STORY(story, wanted)                                                                 \
	do {                                                                                           \
		if (strcmp((story).text, wanted) != 0) {                                                   \
			fprintf(stderr, "%s:%d: \"%s\" instead of \"%s\"\n", __FILE__, __LINE__, (story).text, wanted); \
			exit(1);                                                                               \
		}                                                                                          \
	} while (0)

#endif
