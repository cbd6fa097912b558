/* Conditions: who is woken, when, and in which order. */

#include "check.h"

static struct stCoCond_t *cond;
static struct stCoCond_t *back;
static struct story story;
static int done;

static void *waiter(void *arg) {
	CHECK(co_cond_timedwait(cond, -1) == 0);
	note(&story, *(const char *)arg);
	done++;
	return NULL;
}

/* One signal wakes one, a broadcast the rest; neither switches. */
static void *signaller(void *arg) {
	(void)arg;
	co_enable_hook_sys();
	CHECK(co_cond_signal(cond) == 0);
	note(&story, '1');
	poll(NULL, 0, 5);
	CHECK(co_cond_broadcast(cond) == 0);
	note(&story, '*');
	return NULL;
}

static void *timed(void *arg) {
	long begin = now_ms();
	int ms = *(const int *)arg;
	CHECK(co_cond_timedwait(cond, ms) == 0);
	if (ms > 0) {
		CHECK(now_ms() - begin >= ms - 1);
	}
	done++;
	return NULL;
}

/* Two coroutines that wake each other in turn need no descriptor and no timer. */
static void *ping(void *arg) {
	int round;
	(void)arg;
	for (round = 0; round < 1000; round++) {
		co_cond_signal(back);
		co_cond_timedwait(cond, -1);
	}
	done++;
	return NULL;
}

static void *pong(void *arg) {
	int round;
	(void)arg;
	for (round = 0; round < 1000; round++) {
		co_cond_timedwait(back, 1000);
		co_cond_signal(cond);
	}
	done++;
	return NULL;
}

int main(void) {
	static char names[] = "abcd";
	static int never = 0;
	static int soon = 20;
	struct stCoRoutine_t *co[4];
	struct stCoRoutine_t *signals;
	struct stCoRoutine_t *waits;
	int i;

	cond = co_cond_alloc();
	back = co_cond_alloc();
	CHECK(cond != NULL && back != NULL && cond != back);

	for (i = 0; i < 4; i++) {
		co[i] = start(waiter, &names[i]);
	}
	signals = start(signaller, NULL);
	CHECK_STORY(story, "1");
	loop_until(&done, 4);
	CHECK_STORY(story, "1a*bcd");
	for (i = 0; i < 4; i++) {
		co_release(co[i]);
	}
	co_release(signals);

	/* A signal that nobody waits for is forgotten. */
	done = 0;
	memset(&story, 0, sizeof(story));
	CHECK(co_cond_signal(cond) == 0);
	CHECK(co_cond_broadcast(cond) == 0);
	waits = start(waiter, &names[0]);
	loop_for(20);
	CHECK(done == 0);
	co_cond_signal(cond);
	CHECK(done == 0);
	loop_until(&done, 1);
	co_release(waits);

	/* The time is kept, and 0 is for ever. */
	done = 0;
	waits = start(timed, &soon);
	loop_until(&done, 1);
	co_release(waits);
	waits = start(timed, &never);
	loop_for(30);
	CHECK(done == 1);
	co_cond_signal(cond);
	loop_until(&done, 2);
	co_release(waits);

	/* A waiter whose time has passed is not in the queue any more. */
	done = 0;
	waits = start(timed, &soon);
	loop_until(&done, 1);
	co_release(waits);
	waits = start(waiter, &names[1]);
	co_cond_signal(cond);
	loop_until(&done, 2);
	co_release(waits);

	/* A coroutine that waits can be resumed by hand; it leaves the queue. */
	done = 0;
	memset(&story, 0, sizeof(story));
	waits = start(waiter, &names[0]);
	co[1] = start(waiter, &names[1]);
	co_resume(waits);
	CHECK_STORY(story, "a");
	co_cond_signal(cond);
	loop_until(&done, 2);
	CHECK_STORY(story, "ab");
	co_release(waits);
	co_release(co[1]);

	done = 0;
	co[0] = start(pong, NULL);
	co[1] = start(ping, NULL);
	loop_until(&done, 2);
	co_release(co[0]);
	co_release(co[1]);

	CHECK(co_cond_free(cond) == 0);
	CHECK(co_cond_free(back) == 0);
	return finish();
}
