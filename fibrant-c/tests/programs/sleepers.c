/* Many coroutines, and stacks of all sizes. */

#include "check.h"

#define MANY 2000

static int done;

static void *sleeper(void *arg) {
	int ms = 1 + (int)((intptr_t)arg % 40);
	int round;
	co_enable_hook_sys();
	for (round = 0; round < 3; round++) {
		long begin = now_ms();
		CHECK(poll(NULL, 0, ms) == 0);
		CHECK(now_ms() - begin >= ms - 1);
	}
	done++;
	return NULL;
}

static int recurse(int depth) {
	volatile char frame[1000];
	frame[0] = (char)depth;
	frame[sizeof(frame) - 1] = (char)depth;
	if (depth == 0) {
		co_yield_ct();
		return 0;
	}
	return recurse(depth - 1) + (frame[0] == frame[sizeof(frame) - 1]);
}

static void *deep(void *arg) {
	int depth = (int)(intptr_t)arg;
	CHECK(recurse(depth) == depth);
	done++;
	return NULL;
}

/* The process's address space in megabytes. */
static long address_space(void) {
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file != NULL);
	CHECK(fscanf(file, "%ld", &pages) == 1);
	fclose(file);
	return pages / (1024 * 1024 / sysconf(_SC_PAGESIZE));
}

int main(void) {
	static struct stCoRoutine_t *co[MANY];
	/* A size and how many frames of about a kilobyte fit in. */
	static const int sizes[][2] = {{0, 60}, {-5, 60}, {1, 0}, {100000, 60}, {1024 * 1024, 800}, {8 * 1024 * 1024, 6000}, {0x7fffffff, 6000}};
	size_t i;
	for (i = 0; i < MANY; i++) {
		co[i] = start(sleeper, (void *)(intptr_t)i);
	}
	loop_until(&done, MANY);
	for (i = 0; i < MANY; i++) {
		co_release(co[i]);
	}
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
		attr.stack_size = sizes[i][0];
		done = 0;
		CHECK(co_create(&co[0], &attr, deep, (void *)(intptr_t)sizes[i][1]) == 0);
		co_resume(co[0]);
		CHECK(done == 0);
		co_resume(co[0]);
		CHECK(done == 1);
		co_release(co[0]);
	}
	/* However much is asked for, a stack has 8 MiB at most. */
	{
		struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
		long before = address_space();
		attr.stack_size = 0x7fffffff;
		for (i = 0; i < 100; i++) {
			CHECK(co_create(&co[i], &attr, deep, NULL) == 0);
		}
		CHECK(address_space() - before < 100 * 20);
		for (i = 0; i < 100; i++) {
			co_release(co[i]);
		}
	}
	/* Used again and again, one at a time. */
	for (i = 0; i < 50000; i++) {
		struct stCoRoutine_t *one = NULL;
		done = 0;
		CHECK(co_create(&one, NULL, deep, NULL) == 0);
		co_resume(one);
		co_resume(one);
		CHECK(done == 1);
		co_release(one);
	}
	return finish();
}
