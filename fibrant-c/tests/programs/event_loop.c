/* The event loop: what its function's answers mean, how often it is called, and that it can be entered again. */

#include "check.h"

static struct story story;
static int done;

static const int answers[] = {0, 1, -2, 7, -1};
static int asked;

static int answer(void *arg) {
	CHECK(arg == &asked);
	return answers[asked++];
}

static void *sleeper(void *arg) {
	int ms = *(const int *)arg;
	co_enable_hook_sys();
	poll(NULL, 0, ms);
	note(&story, (char)('0' + ms / 100));
	done++;
	return NULL;
}

/* A loop in a coroutine: what it resumes comes back to that coroutine. */
static void *looper(void *arg) {
	(void)arg;
	done = 0;
	loop_until(&done, 1);
	note(&story, 'l');
	return NULL;
}

struct ticks {
	int count;
	long deadline;
};

static int tick(void *arg) {
	struct ticks *ticks = (struct ticks *)arg;
	ticks->count++;
	return now_ms() >= ticks->deadline ? -1 : 0;
}

/*
 * While nothing happens the loop calls its function at least every millisecond: so a window of 100 ms has a hundred calls, less what each
 * sleep takes longer than was asked for: where others are busy, it may end with the next tick of the kernel, four milliseconds later.
 */
static void must_tick(int wanted) {
	long give_up = now_ms() + 15000;
	int best = 0;
	do {
		struct ticks ticks;
		ticks.count = 0;
		ticks.deadline = now_ms() + 100;
		co_eventloop(co_get_epoll_ct(), tick, &ticks);
		best = ticks.count > best ? ticks.count : best;
	} while (best < wanted && now_ms() < give_up);
	printf("%d calls in 100 ms\n", best);
	CHECK(best >= wanted);
}

/* Waits for what does not come. */
static int silent[2];

static void *waits_long(void *arg) {
	struct pollfd fds;
	co_enable_hook_sys();
	fds.fd = silent[0];
	fds.events = POLLIN;
	poll(arg == NULL ? NULL : &fds, arg == NULL ? 0 : 1, 600000);
	CHECK(0);
	return NULL;
}

int main(void) {
	static int times[] = {600, 200, 400}; /* far apart: they are not started at the same moment */
	int calls = 15; /* in 100 ms: one that sleeps until something happens has one */
	struct stCoRoutine_t *co[3];
	int i;

	/* Only -1 ends it. */
	co_eventloop(co_get_epoll_ct(), answer, &asked);
	CHECK(asked == 5);
	asked = 4;
	co_eventloop(co_get_epoll_ct(), answer, &asked);
	CHECK(asked == 5);

	/* With nobody there; while some wait for ten minutes; and while one waits for a descriptor that stays silent, for as long. */
	must_tick(calls);
	for (i = 0; i < 3; i++) {
		co[i] = start(waits_long, NULL);
	}
	must_tick(calls);
	CHECK(pipe(silent) == 0);
	co_release(co[0]);
	co[0] = start(waits_long, &silent);
	must_tick(calls);
	for (i = 0; i < 3; i++) {
		co_release(co[i]);
	}

	/* Timers in the order of their times. */
	for (i = 0; i < 3; i++) {
		co[i] = start(sleeper, &times[i]);
	}
	loop_until(&done, 3);
	CHECK_STORY(story, "246");
	for (i = 0; i < 3; i++) {
		co_release(co[i]);
	}

	memset(&story, 0, sizeof(story));
	co[0] = start(sleeper, &times[1]);
	co[1] = start(looper, NULL);
	CHECK_STORY(story, "2l");
	co_release(co[0]);
	co_release(co[1]);
	return finish();
}
