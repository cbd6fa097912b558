// An echo server with an accept routine and a pool of workers that yield when they are idle; and its clients, several
// connections at a time, in the same event loop.

#include "check.h"

#include <stack>

static const int WORKERS = 4;
static const int CLIENTS = 10;
static const int ROUNDS = 20;

struct Worker {
	stCoRoutine_t *co;
	int fd;
};

static std::stack<Worker *> idle;
static int listener;
static sockaddr_in address;
static int served;
static int clients_done;
static int most_at_once;
static int at_once;

static void *serve(void *arg) {
	co_enable_hook_sys();
	Worker *worker = static_cast<Worker *>(arg);
	char buffer[1024];
	for (;;) {
		if (worker->fd == -1) {
			idle.push(worker);
			co_yield_ct();
			continue;
		}
		int fd = worker->fd;
		worker->fd = -1;
		at_once++;
		most_at_once = at_once > most_at_once ? at_once : most_at_once;
		for (;;) {
			pollfd readable = {fd, POLLIN | POLLERR | POLLHUP, 0};
			co_poll(co_get_epoll_ct(), &readable, 1, 1000);
			errno = 0;
			ssize_t got = read(fd, buffer, sizeof(buffer));
			if (got > 0) {
				CHECK(write(fd, buffer, static_cast<size_t>(got)) == got);
				continue;
			}
			if (got < 0 && errno == EAGAIN) {
				continue;
			}
			close(fd);
			served++;
			at_once--;
			break;
		}
	}
	return NULL;
}

static void *accept_them(void *) {
	co_enable_hook_sys();
	for (;;) {
		if (idle.empty()) {
			pollfd nothing = {-1, 0, 0};
			poll(&nothing, 1, 2);
			continue;
		}
		sockaddr_in peer;
		socklen_t length = sizeof(peer);
		int fd = co_accept(listener, reinterpret_cast<sockaddr *>(&peer), &length);
		if (fd < 0) {
			CHECK(errno == EAGAIN);
			pollfd connection = {listener, POLLIN | POLLERR | POLLHUP, 0};
			co_poll(co_get_epoll_ct(), &connection, 1, 1000);
			continue;
		}
		set_nonblocking(fd);
		Worker *worker = idle.top();
		idle.pop();
		worker->fd = fd;
		co_resume(worker->co);
	}
	return NULL;
}

static void *client(void *arg) {
	co_enable_hook_sys();
	const char name = *static_cast<const char *>(arg);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	CHECK(connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address)) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		char out[100];
		char in[100];
		memset(out, name + round % 3, sizeof(out));
		CHECK(write(fd, out, sizeof(out)) == static_cast<ssize_t>(sizeof(out)));
		size_t have = 0;
		while (have < sizeof(in)) {
			ssize_t got = read(fd, in + have, sizeof(in) - have);
			if (got < 0 && errno == EAGAIN) {
				continue; // All workers may be with others for longer than a read waits.
			}
			CHECK(got > 0);
			have += static_cast<size_t>(got);
		}
		CHECK(memcmp(out, in, sizeof(in)) == 0);
	}
	CHECK(close(fd) == 0);
	clients_done++;
	return NULL;
}

int main() {
	listener = listen_on_loopback(&address);
	set_nonblocking(listener);
	for (int i = 0; i < WORKERS; i++) {
		Worker *worker = new Worker;
		worker->fd = -1;
		CHECK(co_create(&worker->co, NULL, serve, worker) == 0);
		co_resume(worker->co);
	}
	CHECK(idle.size() == static_cast<size_t>(WORKERS));
	start(accept_them, NULL);

	static char names[CLIENTS];
	for (int i = 0; i < CLIENTS; i++) {
		names[i] = static_cast<char>('A' + i);
		start(client, &names[i]);
	}
	loop_until(&clients_done, CLIENTS);
	loop_until(&served, CLIENTS);
	CHECK(idle.size() == static_cast<size_t>(WORKERS));
	CHECK(most_at_once > 1);
	return finish();
}
