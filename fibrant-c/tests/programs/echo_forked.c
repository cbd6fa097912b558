/* Servers that share a listener, each a process with its own event loop after fork(); the clients are plain blocking sockets. */

#include "check.h"

#include <signal.h>
#include <sys/wait.h>

static int listener;
static struct sockaddr_in address;

static void *serve(void *arg) {
	int fd = (int)(intptr_t)arg;
	char buffer[256];
	ssize_t got;
	co_enable_hook_sys();
	for (;;) {
		struct pollfd readable;
		readable.fd = fd;
		readable.events = POLLIN;
		if (poll(&readable, 1, 1000) == 0) {
			continue;
		}
		got = read(fd, buffer, sizeof(buffer));
		if (got <= 0) {
			break;
		}
		CHECK(write(fd, buffer, (size_t)got) == got);
	}
	close(fd);
	return NULL;
}

static void *accept_them(void *arg) {
	(void)arg;
	co_enable_hook_sys();
	for (;;) {
		int fd = co_accept(listener, NULL, NULL);
		if (fd < 0) {
			struct pollfd connection;
			connection.fd = listener;
			connection.events = POLLIN;
			poll(&connection, 1, 1000);
			continue;
		}
		start(serve, (void *)(intptr_t)fd);
	}
	return NULL;
}

int main(void) {
	pid_t servers[2];
	int i;
	int client;
	listener = listen_on_loopback(&address);
	set_nonblocking(listener);
	for (i = 0; i < 2; i++) {
		servers[i] = fork();
		CHECK(servers[i] >= 0);
		if (servers[i] == 0) {
			alarm(30);
			start(accept_them, NULL);
			co_eventloop(co_get_epoll_ct(), NULL, NULL);
			_exit(1);
		}
	}
	for (client = 0; client < 20; client++) {
		char in[5] = "";
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
		CHECK(send(fd, "hello", 5, 0) == 5);
		CHECK(recv(fd, in, 5, MSG_WAITALL) == 5);
		CHECK(memcmp(in, "hello", 5) == 0);
		close(fd);
	}
	for (i = 0; i < 2; i++) {
		int status = 0;
		CHECK(kill(servers[i], SIGTERM) == 0);
		CHECK(waitpid(servers[i], &status, 0) == servers[i]);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	}
	return finish();
}
