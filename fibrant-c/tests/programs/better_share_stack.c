/* Where fibrant is better than libco: shared stacks can be freed, and a great many coroutines wait in little memory. */

#include "check.h"

#define MANY 100000

static int done;

static void *waits(void *arg) {
	volatile intptr_t mine = (intptr_t)arg;
	co_yield_ct();
	CHECK(mine == (intptr_t)arg);
	done++;
	return NULL;
}

/* The process's memory in kilobytes. */
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
	return kilobytes;
}

int main(void) {
	static struct stCoRoutine_t *co[MANY];
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	long before;
	long each;
	intptr_t i;

	/* Given and taken: no trace after many rounds. */
	for (i = 0; i < 2000; i++) {
		attr.share_stack = co_alloc_sharestack(4, 1024 * 1024);
		CHECK(attr.share_stack != NULL);
		CHECK(co_create(&co[0], &attr, waits, (void *)i) == 0);
		co_resume(co[0]);
		co_resume(co[0]);
		co_release(co[0]);
		co_free_sharestack(attr.share_stack);
	}
	CHECK(done == 2000);

	attr.share_stack = co_alloc_sharestack(16, 256 * 1024);
	before = resident();
	for (i = 0; i < MANY; i++) {
		CHECK(co_create(&co[i], &attr, waits, (void *)i) == 0);
		co_resume(co[i]);
	}
	each = (resident() - before) * 1024 / MANY;
	CHECK(each < 2048);
	done = 0;
	for (i = 0; i < MANY; i++) {
		co_resume(co[i]);
		co_release(co[i]);
	}
	CHECK(done == MANY);
	co_free_sharestack(attr.share_stack);
	return finish();
}
