/*
 * Where fibrant is better than libco, whose timers end after a minute: waits of 75 and of 90 s are exact. All of them at once, in two event
 * loops: one that calls a function every millisecond, and one that sleeps until the next deadline.
 */

#include "check.h"

#include <sys/epoll.h>

#define LONG_MS 90000L
#define LATE_MS 10000L

/* In this thread's loop. */
static __thread int wanted;
static __thread int done;
static __thread struct stCoCond_t *cond;
static __thread int silent[2];

/* Where each thread tells that it is done. */
static int told[2];

/* Not early, and late by no more than a busy machine makes it. */
static void must_be_exact(const char *what, long begin, long time) {
	long took = now_ms() - begin;
	printf("%s of %ld ms: %ld ms\n", what, time, took);
	CHECK(took >= time);
	CHECK(took < time + LATE_MS);
	if (++done == wanted) {
		CHECK(write(told[1], "d", 1) == 1);
	}
}

static void *polls_nothing(void *arg) {
	long time = *(const long *)arg;
	long begin = now_ms();
	co_enable_hook_sys();
	CHECK(poll(NULL, 0, (int)time) == 0);
	must_be_exact("poll for nothing", begin, time);
	return NULL;
}

/* Without hooks. */
static void *polls_by_name(void *arg) {
	struct pollfd fds;
	long begin = now_ms();
	(void)arg;
	fds.fd = silent[0];
	fds.events = POLLIN;
	CHECK(co_poll(co_get_epoll_ct(), &fds, 1, LONG_MS) == 0);
	must_be_exact("co_poll", begin, LONG_MS);
	return NULL;
}

static void *waits_for_events(void *arg) {
	struct epoll_event event;
	long begin;
	int epoll = epoll_create1(0);
	(void)arg;
	CHECK(epoll >= 0);
	memset(&event, 0, sizeof(event));
	event.events = EPOLLIN;
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, silent[0], &event) == 0);
	co_enable_hook_sys();
	begin = now_ms();
	CHECK(epoll_wait(epoll, &event, 1, LONG_MS) == 0);
	must_be_exact("epoll_wait", begin, LONG_MS);
	close(epoll);
	return NULL;
}

static void *reads(void *arg) {
	struct timeval limit;
	char byte;
	long begin;
	(void)arg;
	limit.tv_sec = LONG_MS / 1000;
	limit.tv_usec = 0;
	CHECK(setsockopt(silent[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	co_enable_hook_sys();
	begin = now_ms();
	CHECK(recv(silent[0], &byte, 1, 0) == -1);
	CHECK(errno == EAGAIN);
	must_be_exact("recv", begin, LONG_MS);
	return NULL;
}

static void *sleeps(void *arg) {
	long begin = now_ms();
	(void)arg;
	co_enable_hook_sys();
	CHECK(sleep(LONG_MS / 1000) == 0);
	must_be_exact("sleep", begin, LONG_MS);
	return NULL;
}

static void *waits_for_signal(void *arg) {
	long begin = now_ms();
	(void)arg;
	CHECK(co_cond_wait_result(cond, LONG_MS) == ETIMEDOUT);
	must_be_exact("co_cond_wait_result", begin, LONG_MS);
	return NULL;
}

/* Starts all of them; says how many they are. */
static int start_all(void) {
	static const long times[] = {LONG_MS, LONG_MS - 15000};
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	struct stCoRoutine_t *co;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, silent) == 0);
	cond = co_cond_alloc();
	start(polls_nothing, (void *)(uintptr_t)&times[0]);
	start(polls_nothing, (void *)(uintptr_t)&times[1]);
	start(polls_by_name, NULL);
	start(waits_for_events, NULL);
	start(reads, NULL);
	start(sleeps, NULL);
	start(waits_for_signal, NULL);
	/* On a shared stack deadlines are kept elsewhere. */
	attr.share_stack = co_alloc_sharestack(1, 128 * 1024);
	CHECK(co_create(&co, &attr, polls_nothing, (void *)(uintptr_t)&times[0]) == 0);
	co_resume(co);
	CHECK(co_create(&co, &attr, polls_by_name, NULL) == 0);
	co_resume(co);
	CHECK(done == 0);
	return 9;
}

/* This thread's loop has nothing to call, and does not end: whoever comes last tells. */
static void *idle(void *arg) {
	wanted = start_all();
	co_eventloop(co_get_epoll_ct(), NULL, NULL);
	return arg;
}

static int all_done(void *arg) {
	(void)arg;
	return done == wanted ? -1 : 0;
}

int main(void) {
	pthread_t thread;
	char byte;
	CHECK(pipe(told) == 0);
	CHECK(pthread_create(&thread, NULL, idle, NULL) == 0);
	wanted = start_all();
	co_eventloop(co_get_epoll_ct(), all_done, NULL);
	CHECK(read(told[0], &byte, 1) == 1);
	CHECK(read(told[0], &byte, 1) == 1);
	return finish();
}
