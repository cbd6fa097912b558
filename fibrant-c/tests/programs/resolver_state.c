/* The resolver's state, `_res`: each coroutine with hooks has its own; the main routine, and those without, have the thread's. */

#include "check.h"

#include <resolv.h>

/* The header says that it gives the same whenever it is called, so a compiler would call it once. This one is asked each time. */
static struct __res_state *(*volatile state)(void) = __res_state;

static int done;
static void *states[2];
static void *threads_own;

static void *routine(void *arg) {
	int id = *(const int *)arg;
	unsigned char wanted[sizeof(_res)];
	/* Until the hooks are on, it is the thread's. A reset leaves them on. */
	co_disable_hook_sys();
	CHECK(state() == threads_own);
	CHECK(state()->retrans == 77);
	co_enable_hook_sys();
	states[id] = state();
	CHECK(states[id] != NULL && states[id] != threads_own);
	/* A fresh one, and all of it is there. */
	memset(wanted, 0, sizeof(wanted));
	CHECK(memcmp(state(), wanted, sizeof(wanted)) == 0);
	memset(wanted, 'a' + id, sizeof(wanted));
	memset(state(), 'a' + id, sizeof(wanted));
	co_yield_ct();
	CHECK(state() == states[id]);
	CHECK(memcmp(state(), wanted, sizeof(wanted)) == 0);
	/* The same after a wait in the event loop. */
	poll(NULL, 0, 5);
	CHECK(state() == states[id]);
	CHECK(memcmp(state(), wanted, sizeof(wanted)) == 0);
	co_disable_hook_sys();
	CHECK(state() == threads_own);
	co_enable_hook_sys();
	CHECK(state() == states[id]);
	done++;
	return NULL;
}

static void *on_thread(void *arg) {
	CHECK(state() != threads_own);
	return arg;
}

int main(void) {
	static const int ids[2] = {0, 1};
	static struct stShareStack_t *volatile kept; /* libco cannot free them */
	struct stCoRoutine_t *co[2];
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	pthread_t thread;
	int i;
	threads_own = state();
	CHECK(threads_own != NULL);
	state()->retrans = 77;
	co[0] = start(routine, (void *)(uintptr_t)&ids[0]);
	attr.share_stack = kept = co_alloc_sharestack(1, 64 * 1024);
	CHECK(co_create(&co[1], &attr, routine, (void *)(uintptr_t)&ids[1]) == 0);
	co_resume(co[1]);
	CHECK(states[0] != states[1]);
	/* What begins anew has a fresh one. */
	co_reset(co[0]);
	co_resume(co[0]);
	CHECK(states[0] != states[1]);
	/* Hooks on the main routine change nothing. */
	co_enable_hook_sys();
	CHECK(state() == threads_own);
	co_disable_hook_sys();
	for (i = 0; i < 2; i++) {
		co_resume(co[i]);
	}
	loop_until(&done, 2);
	CHECK(state()->retrans == 77);
	for (i = 0; i < 2; i++) {
		co_release(co[i]);
	}
	CHECK(pthread_create(&thread, NULL, on_thread, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	return finish();
}
