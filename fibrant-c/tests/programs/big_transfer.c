/* A write of more than the socket takes: all of it is written, while the reader runs. */

#include "check.h"

#define SIZE ((size_t)(8 * 1024 * 1024))

static int listener;
static struct sockaddr_in address;
static int done;

static unsigned char at(size_t i) {
	return (unsigned char)(i * 31 + i / 4093);
}

static void *writer(void *arg) {
	unsigned char *data = (unsigned char *)malloc(SIZE);
	size_t i;
	int fd;
	(void)arg;
	co_enable_hook_sys();
	CHECK(data != NULL);
	for (i = 0; i < SIZE; i++) {
		data[i] = at(i);
	}
	fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(write(fd, data, SIZE / 2) == (ssize_t)(SIZE / 2));
	CHECK(send(fd, data + SIZE / 2, SIZE / 2, 0) == (ssize_t)(SIZE / 2));
	CHECK(shutdown(fd, SHUT_WR) == 0);
	{
		char end;
		CHECK(recv(fd, &end, 1, 0) == 1);
		CHECK(end == '.');
	}
	close(fd);
	free(data);
	done++;
	return NULL;
}

static void *reader(void *arg) {
	unsigned char buffer[10000];
	size_t have = 0;
	int fd;
	(void)arg;
	co_enable_hook_sys();
	while ((fd = co_accept(listener, NULL, NULL)) < 0) {
		struct pollfd connection;
		connection.fd = listener;
		connection.events = POLLIN;
		poll(&connection, 1, 1000);
	}
	for (;;) {
		struct pollfd readable;
		ssize_t got;
		ssize_t i;
		readable.fd = fd;
		readable.events = POLLIN;
		CHECK(poll(&readable, 1, 10000) == 1);
		got = read(fd, buffer, sizeof(buffer));
		CHECK(got >= 0);
		if (got == 0) {
			break;
		}
		for (i = 0; i < got; i++) {
			CHECK(buffer[i] == at(have + (size_t)i));
		}
		have += (size_t)got;
	}
	CHECK(have == SIZE);
	CHECK(write(fd, ".", 1) == 1);
	close(fd);
	done++;
	return NULL;
}

int main(void) {
	struct stCoRoutine_t *co[2];
	listener = listen_on_loopback(&address);
	set_nonblocking(listener);
	co[0] = start(reader, NULL);
	co[1] = start(writer, NULL);
	loop_until(&done, 2);
	co_release(co[0]);
	co_release(co[1]);
	return finish();
}
