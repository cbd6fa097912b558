/* CO_ROUTINE_SPECIFIC in C, where the variable is a function that returns a pointer. */

#include "check.h"
#include "co_routine_specific.h"

struct data {
	int id;
	char text[16];
};

typedef struct data data;

CO_ROUTINE_SPECIFIC(data, mine);
CO_ROUTINE_SPECIFIC(int, number);

static int done;

static void *routine(void *arg) {
	int id = (int)(intptr_t)arg;
	co_enable_hook_sys();
	CHECK(mine()->id == 0 && *number() == 0);
	mine()->id = id;
	*number() = -id;
	poll(NULL, 0, 1);
	CHECK(mine()->id == id && *number() == -id);
	done++;
	return NULL;
}

int main(void) {
	struct stCoRoutine_t *co[5];
	int i;
	*number() = 100;
	for (i = 0; i < 5; i++) {
		co[i] = start(routine, (void *)(intptr_t)i);
	}
	loop_until(&done, 5);
	CHECK(*number() == 100 && mine()->id == 0);
	for (i = 0; i < 5; i++) {
		co_release(co[i]);
	}
	return finish();
}
