/*
 * Coroutines that take turns on one stack. Only what each has on it while it waits is kept for it, so a great many can wait in
 * little memory; the price is a copy whenever another one needs the stack.
 */

#define _GNU_SOURCE

#include <stdio.h>

#include "co_routine.h"

#define COROUTINES 3
#define ROUNDS 3

static int ended;

static void *routine(void *arg) {
	char text[64]; /* at the same address in every coroutine */
	int round;

	co_enable_hook_sys();
	for (round = 0; round < ROUNDS; round++) {
		snprintf(text, sizeof(text), "coroutine %d, round %d, at %p", (int)(intptr_t)arg, round, (void *)text);
		poll(NULL, 0, 10); /* the others write their own texts here meanwhile */
		puts(text);
	}
	ended++;
	return NULL;
}

static int all_ended(void *arg) {
	(void)arg;
	return ended == COROUTINES ? -1 : 0;
}

int main(void) {
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	struct stCoRoutine_t *co[COROUTINES];
	int i;

	attr.share_stack = co_alloc_sharestack(1, 128 * 1024);
	for (i = 0; i < COROUTINES; i++) {
		co_create(&co[i], &attr, routine, (void *)(intptr_t)i);
		co_resume(co[i]);
	}
	co_eventloop(co_get_epoll_ct(), all_ended, NULL);
	for (i = 0; i < COROUTINES; i++) {
		co_release(co[i]);
	}
	co_free_sharestack(attr.share_stack);
	return 0;
}
