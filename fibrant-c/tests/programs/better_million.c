/* Where fibrant is better than libco: a million coroutines wait on one shared stack, in a few hundred bytes each, and each finds its
   own when it goes on. */

#include "check.h"

#define MANY 1000000

/* How many bytes each may take: itself, and a copy of what it has in use. The library's own frames are larger if it is not optimised. */
#ifdef LIBRARY_IS_DEBUG
#define EACH 1200
#else
#define EACH 450
#endif

static struct stCoRoutine_t *co[MANY];
static long sum;

static void *waits(void *arg) {
	volatile intptr_t mine = (intptr_t)arg;
	volatile intptr_t other = ~(intptr_t)arg;
	co_yield_ct();
	CHECK(mine == (intptr_t)arg && other == ~(intptr_t)arg);
	sum += mine;
	return NULL;
}

/* The process's memory in bytes. */
static long resident(void) {
	char line[256];
	long kilobytes = -1;
	FILE *status = fopen("/proc/self/status", "r");
	CHECK(status != NULL);
	while (fgets(line, sizeof(line), status) != NULL) {
		if (sscanf(line, "VmRSS: %ld", &kilobytes) == 1) {
			break;
		}
	}
	fclose(status);
	CHECK(kilobytes > 0);
	return kilobytes * 1024;
}

int main(void) {
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	long used;
	intptr_t i;
	attr.share_stack = co_alloc_sharestack(1, 64 * 1024);
	CHECK(attr.share_stack != NULL);
	for (i = 0; i < MANY; i++) {
		CHECK(co_create(&co[i], &attr, waits, (void *)i) == 0);
		co_resume(co[i]);
	}
	used = resident();
	printf("%d suspended: %ld MB, %ld bytes each\n", MANY, used / 1000000, used / MANY);
	CHECK(sum == 0);
	CHECK(used < (long)MANY * EACH);
	for (i = 0; i < MANY; i++) {
		co_resume(co[i]);
	}
	CHECK(sum == (long)MANY * (MANY - 1) / 2);
	for (i = 0; i < MANY; i++) {
		co_release(co[i]);
	}
	co_free_sharestack(attr.share_stack);
	return finish();
}
