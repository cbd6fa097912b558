/* Where fibrant is better than libco: a coroutine may be released or reset while it waits. Nothing of it is left where it waited, and
   what it would have got goes to the next. */

#include "check.h"

static int pair[2];
static struct stCoCond_t *cond;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct story story;
static int done;

static void *waits(void *arg) {
	char kind = *(const char *)arg;
	char byte;
	struct pollfd fds;
	co_enable_hook_sys();
	switch (kind) {
	case 'p':
		fds.fd = pair[0];
		fds.events = POLLIN;
		CHECK(poll(&fds, 1, -1) == 1);
		break;
	case 't':
		fds.fd = pair[0];
		fds.events = POLLIN;
		CHECK(poll(&fds, 1, 10) == 0);
		break;
	case 'r':
		CHECK(read(pair[0], &byte, 1) == 1);
		break;
	case 's':
		CHECK(poll(NULL, 0, 10) == 0);
		break;
	case 'c':
		CHECK(co_cond_wait_result(cond, -1) == 0);
		break;
	case 'd':
		CHECK(co_cond_wait_result(cond, 10) == ETIMEDOUT);
		break;
	case 'm':
		CHECK(pthread_mutex_lock(&mutex) == 0);
		CHECK(pthread_mutex_unlock(&mutex) == 0);
		break;
	}
	note(&story, kind);
	done++;
	return NULL;
}

/* Takes the stack that has become free, and leaves nothing of what was there. */
static void *overwrites(void *arg) {
	volatile char noise[64 * 1024];
	size_t i;
	(void)arg;
	for (i = 0; i < sizeof(noise); i++) {
		noise[i] = 0x5a;
	}
	co_yield_ct();
	for (i = 0; i < sizeof(noise); i++) {
		CHECK(noise[i] == 0x5a);
	}
	return NULL;
}

/* Makes what they wait for happen, once. */
static void happen(char kind) {
	switch (kind) {
	case 'p':
	case 'r':
		CHECK(write(pair[1], "x", 1) == 1);
		break;
	case 'c':
		CHECK(co_cond_signal(cond) == 0);
		break;
	case 'm':
		CHECK(pthread_mutex_unlock(&mutex) == 0);
		break;
	}
}

static void one_kind(char kind, struct stShareStack_t *shared, int is_reset) {
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	struct stCoRoutine_t *first;
	struct stCoRoutine_t *next;
	struct stCoRoutine_t *another = NULL;
	char byte;
	char wanted[3] = {0, 0, 0};

	attr.share_stack = shared;
	memset(&story, 0, sizeof(story));
	done = 0;
	if (kind == 'm') {
		CHECK(pthread_mutex_lock(&mutex) == 0);
	}
	/* It is before the other in every line. */
	CHECK(co_create(&first, &attr, waits, &kind) == 0);
	co_resume(first);
	next = start(waits, &kind);
	CHECK(done == 0);
	if (is_reset) {
		co_reset(first);
	} else {
		co_release(first);
		CHECK(co_create(&another, &attr, overwrites, NULL) == 0);
		co_resume(another);
	}
	happen(kind);
	loop_until(&done, 1);
	loop_for(15);
	wanted[0] = kind;
	CHECK_STORY(story, wanted);
	if (kind == 'p') {
		CHECK(read(pair[0], &byte, 1) == 1);
	}
	co_release(next);
	if (!is_reset) {
		co_resume(another);
		co_release(another);
		return;
	}
	/* It begins anew, and waits anew. */
	if (kind == 'm') {
		CHECK(pthread_mutex_lock(&mutex) == 0);
	}
	co_resume(first);
	CHECK(done == 1);
	happen(kind);
	loop_until(&done, 2);
	wanted[1] = kind;
	CHECK_STORY(story, wanted);
	if (kind == 'p') {
		CHECK(read(pair[0], &byte, 1) == 1);
	}
	co_release(first);
}

static void *sleeps_long(void *arg) {
	(void)arg;
	co_enable_hook_sys();
	poll(NULL, 0, 600000);
	done++;
	return NULL;
}

/* The time that one wanted to sleep does not end the sleep of the next, which has the memory that has become free. */
static void one_after_the_other(char kind) {
	struct stCoRoutine_t *first = start(waits, &kind);
	struct stCoRoutine_t *next;
	memset(&story, 0, sizeof(story));
	done = 0;
	co_release(first);
	next = start(sleeps_long, NULL);
	loop_for(30);
	CHECK(done == 0);
	co_release(next);
}

/* The process's memory in kilobytes. */
static long resident(void) {
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file != NULL);
	CHECK(fscanf(file, "%*d %ld", &pages) == 1);
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Neither is anything left of the stacks on which they waited. */
static void many(char kind, struct stShareStack_t *shared) {
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	struct stCoRoutine_t *co;
	long before = 0;
	int i;
	attr.share_stack = shared;
	CHECK(pthread_mutex_lock(&mutex) == 0);
	for (i = 0; i < 6000; i++) {
		if (i == 1000) {
			before = resident();
		}
		CHECK(co_create(&co, &attr, waits, &kind) == 0);
		co_resume(co);
		if (i % 2 == 0) {
			co_reset(co);
			co_resume(co);
		}
		co_release(co);
	}
	CHECK(resident() - before < 5000);
	CHECK(pthread_mutex_unlock(&mutex) == 0);
}

int main(void) {
	static const char kinds[] = "ptrscdm";
	struct stShareStack_t *shared = co_alloc_sharestack(1, 128 * 1024);
	size_t i;
	cond = co_cond_alloc();
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	for (i = 0; kinds[i] != '\0'; i++) {
		one_kind(kinds[i], NULL, 0);
		one_kind(kinds[i], NULL, 1);
		one_kind(kinds[i], shared, 0);
		one_kind(kinds[i], shared, 1);
		one_after_the_other(kinds[i]);
		many(kinds[i], NULL);
		many(kinds[i], shared);
	}
	co_cond_free(cond);
	co_free_sharestack(shared);
	return finish();
}
