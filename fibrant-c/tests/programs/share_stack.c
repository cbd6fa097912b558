/* Coroutines that take turns on shared stacks: at the same addresses, each with its own contents. */

#include "check.h"

#include <stdint.h>

#define MANY 200

static int done;
static int pair[2];
static uintptr_t places[3];

struct job {
	int id;
	struct stCoRoutine_t *co;
};

/* Fills its stack, waits, and finds it as it was. Deeper for some than for others. */
static void work(int id, int depth) {
	volatile unsigned char mine[200];
	size_t i;
	for (i = 0; i < sizeof(mine); i++) {
		mine[i] = (unsigned char)(id * 7 + depth);
	}
	if (depth > 0) {
		work(id, depth - 1);
	} else {
		poll(NULL, 0, 1 + id % 5);
	}
	for (i = 0; i < sizeof(mine); i++) {
		CHECK(mine[i] == (unsigned char)(id * 7 + depth));
	}
}

static void *worker(void *arg) {
	struct job *job = (struct job *)arg;
	int round;
	co_enable_hook_sys();
	for (round = 0; round < 3; round++) {
		work(job->id, job->id % 8);
	}
	done++;
	return NULL;
}

static void *place(void *arg) {
	char here[64];
	int id = *(const int *)arg;
	co_enable_hook_sys();
	places[id] = (uintptr_t)here;
	snprintf(here, sizeof(here), "from %d", id);
	poll(NULL, 0, 5);
	{
		char wanted[64];
		snprintf(wanted, sizeof(wanted), "from %d", id);
		CHECK(strcmp(here, wanted) == 0);
	}
	done++;
	return NULL;
}

/* What poll() and recv() fill is on the stack that somebody else has meanwhile. */
static void *waiter(void *arg) {
	struct pollfd fds[2];
	char byte = 0;
	(void)arg;
	co_enable_hook_sys();
	fds[0].fd = pair[0];
	fds[0].events = POLLIN;
	fds[1].fd = -1;
	fds[1].events = 0;
	CHECK(poll(fds, 2, 10000) == 1);
	CHECK(fds[0].revents == POLLIN);
	CHECK(fds[1].revents == 0);
	CHECK(recv(pair[0], &byte, 1, 0) == 1);
	CHECK(byte == 'x');
	done++;
	return NULL;
}

static void *writer(void *arg) {
	volatile char noise[512];
	size_t i;
	(void)arg;
	co_enable_hook_sys();
	for (i = 0; i < sizeof(noise); i++) {
		noise[i] = 0x5a;
	}
	poll(NULL, 0, 5);
	CHECK(send(pair[1], "x", 1, 0) == 1);
	for (i = 0; i < sizeof(noise); i++) {
		noise[i] = (char)(noise[i] ^ 0xff);
	}
	done++;
	return NULL;
}

/* One on a stack resumes another on the same stack. */
static void *nested_inner(void *arg) {
	volatile int mine = 2;
	(void)arg;
	co_yield_ct();
	CHECK(mine == 2);
	done++;
	return NULL;
}

static void *nested_outer(void *arg) {
	volatile int mine = 1;
	struct stCoRoutine_t *inner = (struct stCoRoutine_t *)arg;
	co_resume(inner);
	CHECK(mine == 1);
	mine = 3;
	co_resume(inner);
	CHECK(mine == 3);
	done++;
	return NULL;
}

/* libco cannot free them, so they are kept; volatile, or the compiler would see that nobody asks for them. */
static struct stShareStack_t *volatile kept[3];

int main(void) {
	static const int ids[3] = {0, 1, 2};
	static struct job jobs[MANY];
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	struct stCoRoutine_t *co[3];
	int i;

	CHECK(sizeof(attr) == sizeof(int) + sizeof(void *));
	CHECK(attr.stack_size == 128 * 1024 && attr.share_stack == NULL);

	/* Three on two stacks: the first and the third are at one place. */
	attr.stack_size = 0;
	attr.share_stack = kept[0] = co_alloc_sharestack(2, 128 * 1024);
	CHECK(attr.share_stack != NULL);
	for (i = 0; i < 3; i++) {
		CHECK(co_create(&co[i], &attr, place, (void *)(uintptr_t)&ids[i]) == 0);
		co_resume(co[i]);
	}
	loop_until(&done, 3);
	CHECK(places[0] == places[2]);
	CHECK(places[0] != places[1]);
	for (i = 0; i < 3; i++) {
		co_release(co[i]);
	}

	done = 0;
	attr.share_stack = kept[1] = co_alloc_sharestack(1, 64 * 1024);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(co_create(&co[0], &attr, waiter, NULL) == 0);
	co_resume(co[0]);
	CHECK(co_create(&co[1], &attr, writer, NULL) == 0);
	co_resume(co[1]);
	loop_until(&done, 2);
	co_release(co[0]);
	co_release(co[1]);

	done = 0;
	CHECK(co_create(&co[0], &attr, nested_inner, NULL) == 0);
	CHECK(co_create(&co[1], &attr, nested_outer, co[0]) == 0);
	co_resume(co[1]);
	CHECK(done == 2);
	co_release(co[0]);
	co_release(co[1]);

	done = 0;
	attr.share_stack = kept[2] = co_alloc_sharestack(4, 128 * 1024);
	for (i = 0; i < MANY; i++) {
		jobs[i].id = i;
		CHECK(co_create(&jobs[i].co, &attr, worker, &jobs[i]) == 0);
		co_resume(jobs[i].co);
	}
	loop_until(&done, MANY);
	for (i = 0; i < MANY; i++) {
		co_release(jobs[i].co);
	}
	return finish();
}
