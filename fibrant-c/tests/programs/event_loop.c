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
	note(&story, (char)('0' + ms / 10));
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

int main(void) {
	static int times[] = {60, 20, 40};
	struct stCoRoutine_t *co[3];
	struct ticks ticks;
	int i;

	/* Only -1 ends it. */
	co_eventloop(co_get_epoll_ct(), answer, &asked);
	CHECK(asked == 5);
	asked = 4;
	co_eventloop(co_get_epoll_ct(), answer, &asked);
	CHECK(asked == 5);

	/* Called again and again while nothing happens: about a hundred times here, fewer on a busy machine. */
	ticks.count = 0;
	ticks.deadline = now_ms() + 100;
	co_eventloop(co_get_epoll_ct(), tick, &ticks);
	CHECK(ticks.count >= 5);

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
