/* What poll() answers in a coroutine: several descriptors, those that are not asked for, hang-ups, times. */

#include "check.h"

static int done;
static int a[2];
static int b[2];

static void *several(void *arg) {
	struct pollfd fds[4];
	long begin;
	(void)arg;
	co_enable_hook_sys();

	/* Two are ready, one is not, one is skipped; what was in revents is overwritten. */
	memset(fds, 0x55, sizeof(fds));
	fds[0].fd = a[0];
	fds[0].events = POLLIN;
	fds[1].fd = -1;
	fds[1].events = POLLIN;
	fds[2].fd = b[0];
	fds[2].events = POLLIN | POLLOUT;
	fds[3].fd = a[1];
	fds[3].events = POLLIN;
	CHECK(poll(fds, 4, 5000) == 2);
	CHECK(fds[0].revents == POLLIN);
	CHECK(fds[1].revents == 0);
	CHECK(fds[2].revents == (POLLIN | POLLOUT));
	CHECK(fds[3].revents == 0);

	/* Nothing happens: 0, and not early. */
	fds[0].fd = a[1];
	fds[0].revents = 0x55;
	begin = now_ms();
	CHECK(poll(fds, 1, 30) == 0);
	CHECK(fds[0].revents == 0);
	CHECK(now_ms() - begin >= 29);
	begin = now_ms();
	CHECK(poll(NULL, 0, 30) == 0);
	CHECK(now_ms() - begin >= 29);
	fds[0].fd = -1;
	CHECK(poll(fds, 1, 10) == 0);

	/* At once. */
	CHECK(poll(NULL, 0, 0) == 0);
	fds[0].fd = a[0];
	CHECK(poll(fds, 1, 0) == 1);
	CHECK(fds[0].revents == POLLIN);
	done++;
	return NULL;
}

/* A peer that goes is told to whoever asks for nothing, and to whoever asks for input. */
static void *hung_up(void *arg) {
	struct pollfd fds;
	(void)arg;
	co_enable_hook_sys();
	fds.fd = a[0];
	fds.events = 0;
	CHECK(poll(&fds, 1, 5000) == 1);
	CHECK(fds.revents == POLLHUP);
	fds.events = POLLIN;
	CHECK(poll(&fds, 1, 5000) == 1);
	CHECK(fds.revents == (POLLIN | POLLHUP));
	done++;
	return NULL;
}

/* A refused connection is ready for output, with an error. */
static void *refused(void *arg) {
	struct sockaddr_in *address = (struct sockaddr_in *)arg;
	struct pollfd fds;
	int fd;
	int error = 0;
	socklen_t length = sizeof(error);
	co_enable_hook_sys();
	fd = socket(AF_INET, SOCK_STREAM, 0);
	set_nonblocking(fd);
	CHECK(connect(fd, (struct sockaddr *)address, sizeof(*address)) == -1);
	if (errno == EINPROGRESS) {
		fds.fd = fd;
		fds.events = POLLOUT;
		CHECK(poll(&fds, 1, 5000) == 1);
		CHECK(fds.revents & POLLERR);
		CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
		CHECK(error == ECONNREFUSED);
	} else {
		CHECK(errno == ECONNREFUSED);
	}
	close(fd);
	done++;
	return NULL;
}

/* Resumed by hand: nothing was ready. */
static void *resumed(void *arg) {
	struct pollfd fds;
	(void)arg;
	co_enable_hook_sys();
	fds.fd = b[1];
	fds.events = POLLIN;
	fds.revents = 0x55;
	CHECK(poll(&fds, 1, 20000) == 0);
	CHECK(fds.revents == 0);
	done++;
	co_yield_ct();
	return NULL;
}

/* co_poll() does not need the hooks. */
static void *without_hooks(void *arg) {
	struct pollfd fds;
	(void)arg;
	CHECK(!co_is_enable_sys_hook());
	fds.fd = b[1];
	fds.events = POLLIN;
	CHECK(co_poll(co_get_epoll_ct(), &fds, 1, 5000) == 1);
	CHECK(fds.revents == POLLIN);
	done++;
	return NULL;
}

int main(void) {
	struct sockaddr_in address;
	struct stCoRoutine_t *co;
	int listener;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, a) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, b) == 0);
	CHECK(write(a[1], "x", 1) == 1);
	CHECK(write(b[1], "x", 1) == 1);
	co = start(several, NULL);
	loop_until(&done, 1);
	co_release(co);

	close(a[0]);
	close(a[1]);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, a) == 0);
	done = 0;
	co = start(hung_up, NULL);
	CHECK(done == 0);
	close(a[1]);
	loop_until(&done, 1);
	co_release(co);
	close(a[0]);

	/* Whoever has the port does not listen. */
	done = 0;
	listener = bind_to_loopback(&address);
	co = start(refused, &address);
	loop_until(&done, 1);
	co_release(co);
	close(listener);

	done = 0;
	co = start(resumed, NULL);
	CHECK(done == 0);
	co_resume(co);
	CHECK(done == 1);
	/* Its old wait is over: what comes now does not resume it. */
	CHECK(write(b[0], "x", 1) == 1);
	loop_for(20);
	co_release(co);

	done = 0;
	{
		char byte;
		CHECK(read(b[1], &byte, 1) == 1);
	}
	co = start(without_hooks, NULL);
	CHECK(done == 0);
	CHECK(write(b[0], "x", 1) == 1);
	loop_until(&done, 1);
	co_release(co);
	return finish();
}
