/* Where fibrant is more than libco: coroutines of a thread's event loop, some of them on one shared stack, and fibers of a runtime talk
 * over channels and take turns with a lock. While a coroutine waits, its frames may be anywhere. */

#include "check.h"

#include "fibrant.h"

#define COROUTINES 6
#define ROUNDS 50

static fb_channel *questions;
static fb_channel *answers[COROUTINES];
static fb_mutex *mutex;
static int inside;
static int done;

/* What a coroutine asks; on the heap, as a message must be. */
struct question {
	long number;
	long from;
};

static void *serve(void *arg) {
	void *message = NULL;
	while (fb_recv(questions, &message) == 0) {
		struct question *question = (struct question *)message;
		question->number *= 2;
		CHECK(fb_send(answers[question->from], question) == 0);
	}
	return arg;
}

static void *ask(void *arg) {
	long me = (long)arg;
	char frame[600];
	void *message = NULL;
	long i;
	co_enable_hook_sys();
	memset(frame, (int)me, sizeof(frame));
	for (i = 0; i < ROUNDS; i++) {
		struct question *question = (struct question *)malloc(sizeof(*question));
		CHECK(question != NULL);
		question->number = i;
		question->from = me;
		CHECK(fb_send(questions, question) == 0);
		CHECK(fb_recv(answers[me], &message) == 0);
		CHECK(message == question && question->number == 2 * i);
		free(question);

		CHECK(fb_mutex_lock(mutex) == 0);
		CHECK(inside++ == 0);
		poll(NULL, 0, i % 10 == 0 ? 1 : 0);
		CHECK(--inside == 0);
		CHECK(fb_mutex_unlock(mutex) == 0);
	}
	for (i = 0; i < (long)sizeof(frame); i++) {
		CHECK(frame[i] == (char)me);
	}
	CHECK(fb_run(NULL, NULL, NULL) < 0); /* a runtime is not run in here */
	done++;
	return NULL;
}

int main(void) {
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	struct stCoRoutine_t *co[COROUTINES];
	fb_runtime_options options = FB_RUNTIME_OPTIONS_INIT;
	fb_runtime *runtime = NULL;
	fb_fiber *servers[2];
	long i;
	options.workers = 2;
	options.light = 1;
	CHECK(fb_runtime_start(&runtime, &options) == 0);
	CHECK(fb_channel_create(&questions, 1, "questions") == 0);
	CHECK(fb_mutex_create(&mutex, "turns") == 0);
	for (i = 0; i < COROUTINES; i++) {
		CHECK(fb_channel_create(&answers[i], 0, NULL) == 0);
	}
	for (i = 0; i < 2; i++) {
		CHECK(fb_spawn_in(runtime, &servers[i], NULL, serve, NULL) == 0);
	}
	attr.share_stack = co_alloc_sharestack(1, 64 * 1024);
	CHECK(attr.share_stack != NULL);
	for (i = 0; i < COROUTINES; i++) {
		CHECK(co_create(&co[i], i % 3 == 0 ? NULL : &attr, ask, (void *)i) == 0);
		co_resume(co[i]);
	}
	loop_until(&done, COROUTINES);
	CHECK(fb_channel_close(questions) == 0);
	for (i = 0; i < 2; i++) {
		CHECK(fb_join(servers[i], NULL) == 0);
	}
	for (i = 0; i < COROUTINES; i++) {
		co_release(co[i]);
		fb_channel_unref(answers[i]);
	}
	co_free_sharestack(attr.share_stack);
	fb_channel_unref(questions);
	CHECK(fb_mutex_destroy(mutex) == 0);
	CHECK(fb_runtime_stop(runtime) == 0);
	return finish();
}
