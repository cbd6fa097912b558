/* Where fibrant is better than libco: results that tell, waits that end, a main routine on which calls pass through. */

#include "check.h"

#include <sys/resource.h>

static int done;
static int pair[2];
static int answers[2];

static void *cond_result(void *arg) {
	struct stCoCond_t *cond = (struct stCoCond_t *)arg;
	long begin = now_ms();
	CHECK(co_cond_wait_result(cond, 20) == ETIMEDOUT);
	CHECK(now_ms() - begin >= 19);
	done++;
	CHECK(co_cond_wait_result(cond, 20000) == 0);
	done++;
	CHECK(co_cond_wait_result(cond, 0) == 0);
	done++;
	CHECK(co_cond_wait_result(cond, -1) == 0);
	done++;
	return NULL;
}

/* Two may poll one descriptor; both are told. */
static void *same_descriptor(void *arg) {
	struct pollfd fds;
	co_enable_hook_sys();
	fds.fd = pair[0];
	fds.events = POLLIN;
	answers[(intptr_t)arg] = poll(&fds, 1, 20000);
	CHECK(fds.revents == POLLIN);
	done++;
	return NULL;
}

static void *at_once(void *arg) {
	struct pollfd fds[2];
	(void)arg;
	/* Not a wait at all, with or without hooks. */
	fds[0].fd = pair[0];
	fds[0].events = POLLIN;
	CHECK(co_poll(co_get_epoll_ct(), fds, 1, 0) == 1);
	CHECK(fds[0].revents == POLLIN);
	CHECK(co_poll(co_get_epoll_ct(), NULL, 0, 0) == 0);
	co_enable_hook_sys();
	/* What is no descriptor is told at once. */
	fds[0].fd = 9999;
	CHECK(poll(fds, 1, 20000) == 1);
	CHECK(fds[0].revents == POLLNVAL);
	/* One descriptor in two entries. */
	fds[0].fd = pair[0];
	fds[0].events = POLLIN;
	fds[1].fd = pair[0];
	fds[1].events = POLLOUT;
	CHECK(poll(fds, 2, 20000) == 2);
	CHECK(fds[0].revents == POLLIN);
	CHECK(fds[1].revents == POLLOUT);
	done++;
	return NULL;
}

/* A socket that was made before the hooks were on, and a pipe: both let others run. */
static int pipes[2];

static void *reads_both(void *arg) {
	char byte = 0;
	(void)arg;
	co_enable_hook_sys();
	CHECK(read(pair[0], &byte, 1) == 1);
	CHECK(byte == 's');
	CHECK(read(pipes[0], &byte, 1) == 1);
	CHECK(byte == 'p');
	done++;
	return NULL;
}

/* accept() on a listener that blocks. */
static int listener;
static struct sockaddr_in address;

static void *accepts(void *arg) {
	int fd;
	(void)arg;
	co_enable_hook_sys();
	fd = accept(listener, NULL, NULL);
	CHECK(fd >= 0);
	close(fd);
	fd = co_accept(listener, NULL, NULL);
	CHECK(fd >= 0);
	close(fd);
	done++;
	return NULL;
}

static void *connects(void *arg) {
	int i;
	(void)arg;
	co_enable_hook_sys();
	for (i = 0; i < 2; i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		char byte;
		CHECK(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
		CHECK(recv(fd, &byte, 1, 0) == 0);
		close(fd);
	}
	done++;
	return NULL;
}

static void *idle(void *arg) {
	(void)arg;
	co_eventloop(co_get_epoll_ct(), NULL, NULL);
	return NULL;
}

static long cpu_ms(void) {
	struct rusage used;
	CHECK(getrusage(RUSAGE_SELF, &used) == 0);
	return (long)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

int main(void) {
	struct stCoCond_t *cond = co_cond_alloc();
	struct stCoRoutine_t *co[2];
	struct pollfd fds;
	pthread_t thread;
	long begin;
	int i;

	co[0] = start(cond_result, cond);
	loop_until(&done, 1);
	for (i = 2; i <= 4; i++) {
		co_cond_signal(cond);
		loop_until(&done, i);
	}
	co_release(co[0]);
	co_cond_free(cond);

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(pipe(pipes) == 0);
	done = 0;
	co[0] = start(same_descriptor, (void *)0);
	co[1] = start(same_descriptor, (void *)1);
	CHECK(write(pair[1], "s", 1) == 1);
	loop_until(&done, 2);
	CHECK(answers[0] == 1 && answers[1] == 1);
	co_release(co[0]);
	co_release(co[1]);

	done = 0;
	co[0] = start(at_once, NULL);
	loop_until(&done, 1);
	co_release(co[0]);

	{
		char byte;
		CHECK(read(pair[0], &byte, 1) == 1);
	}
	done = 0;
	co[0] = start(reads_both, NULL);
	CHECK(done == 0);
	CHECK(write(pair[1], "s", 1) == 1);
	loop_for(10);
	CHECK(done == 0);
	CHECK(write(pipes[1], "p", 1) == 1);
	loop_until(&done, 1);
	co_release(co[0]);

	listener = listen_on_loopback(&address);
	done = 0;
	co[0] = start(accepts, NULL);
	co[1] = start(connects, NULL);
	loop_until(&done, 2);
	co_release(co[0]);
	co_release(co[1]);

	/* With hooks on the main routine, which has nobody to go back to: the calls are the system's own. */
	co_enable_hook_sys();
	begin = now_ms();
	fds.fd = pair[0];
	fds.events = POLLIN;
	CHECK(poll(&fds, 1, 20) == 0);
	CHECK(now_ms() - begin >= 19);
	CHECK(co_poll(co_get_epoll_ct(), &fds, 1, 20) == 0);
	co_disable_hook_sys();

	/* A loop with nothing to do uses no processor. */
	CHECK(pthread_create(&thread, NULL, idle, NULL) == 0);
	usleep(50000);
	begin = cpu_ms();
	usleep(500000);
	CHECK(cpu_ms() - begin < 50);
	return finish();
}
