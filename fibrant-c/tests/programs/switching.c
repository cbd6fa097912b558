/* Who runs after whom: create, resume, yield and release, nested, by each of the three ways to yield. */

#include "check.h"
#include "co_routine_inner.h"

static struct story story;
static struct stCoRoutine_t *inner;
static void *seen_argument;

static void *one(void *arg) {
	seen_argument = arg;
	note(&story, 'a');
	co_yield_ct();
	note(&story, 'b');
	co_yield(co_self());
	note(&story, 'c');
	co_yield_env(co_get_curr_thread_env());
	note(&story, 'd');
	return arg;
}

static void *nested_inner(void *arg) {
	struct stCoRoutine_t **outer = (struct stCoRoutine_t **)arg;
	CHECK(co_self() == inner);
	CHECK(co_self() != *outer);
	note(&story, '2');
	co_yield_ct();
	note(&story, '5');
	return NULL;
}

static void *nested_outer(void *arg) {
	struct stCoRoutine_t *self = co_self();
	note(&story, '1');
	CHECK(co_create(&inner, NULL, nested_inner, arg) == 0);
	co_resume(inner);
	CHECK(co_self() == self);
	note(&story, '3');
	co_yield_ct();
	note(&story, '6');
	return NULL;
}

static void *never(void *arg) {
	(void)arg;
	note(&story, '!');
	return NULL;
}

int main(void) {
	struct stCoRoutine_t *main_routine = co_self();
	struct stCoRoutine_t *co = NULL;
	int argument = 0;

	CHECK(main_routine != NULL);
	CHECK(co_self() == main_routine);
	CHECK(co_get_current() == main_routine);
	CHECK(GetCurrThreadCo() == main_routine);
	CHECK(co_get_epoll_ct() != NULL);
	CHECK(co_get_epoll_ct() == co_get_epoll_ct());
	CHECK(co_get_curr_thread_env() == co_get_curr_thread_env());

	/* Created, but not started. */
	CHECK(co_create(&co, NULL, one, &argument) == 0);
	CHECK_STORY(story, "");
	co_resume(co);
	CHECK(seen_argument == &argument);
	note(&story, '-');
	co_resume(co);
	note(&story, '-');
	co_resume(co);
	note(&story, '-');
	co_resume(co);
	CHECK_STORY(story, "a-b-c-d");
	CHECK(co_self() == main_routine);
	co_release(co);

	/* The inner one's yield goes to the outer one; whoever resumes it next is its resumer from then on. */
	memset(&story, 0, sizeof(story));
	CHECK(co_create(&co, NULL, nested_outer, &co) == 0);
	co_resume(co);
	note(&story, '4');
	co_resume(inner);
	co_resume(co);
	CHECK_STORY(story, "123456");
	co_release(inner);
	co_free(co);

	/* One that never ran, and one in the midst of its work, can be released. */
	memset(&story, 0, sizeof(story));
	CHECK(co_create(&co, NULL, never, NULL) == 0);
	co_release(co);
	CHECK_STORY(story, "");
	co = start(one, &argument);
	co_release(co);
	CHECK_STORY(story, "a");
	return finish();
}
