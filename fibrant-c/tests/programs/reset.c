/* A coroutine that is reset starts again, with the same routine and argument. */

#include "check.h"

static struct story story;

static void *halves(void *arg) {
	note(&story, *(const char *)arg);
	co_yield_ct();
	note(&story, '+');
	return NULL;
}

int main(void) {
	char letter = 'x';
	struct stCoRoutine_t *co = NULL;

	CHECK(co_create(&co, NULL, halves, &letter) == 0);
	co_reset(co);
	CHECK_STORY(story, "");
	co_resume(co);
	CHECK_STORY(story, "x");
	co_reset(co);
	co_resume(co);
	CHECK_STORY(story, "xx");
	co_resume(co);
	CHECK_STORY(story, "xx+");
	co_reset(co);
	letter = 'y';
	co_resume(co);
	co_resume(co);
	CHECK_STORY(story, "xx+y+");
	co_reset(co);
	co_release(co);

	/* On a shared stack. */
	{
		static struct stShareStack_t *volatile kept; /* libco cannot free them */
		struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
		struct stCoRoutine_t *other = NULL;
		memset(&story, 0, sizeof(story));
		attr.share_stack = kept = co_alloc_sharestack(1, 64 * 1024);
		CHECK(co_create(&co, &attr, halves, &letter) == 0);
		CHECK(co_create(&other, &attr, halves, &letter) == 0);
		co_resume(co);
		co_resume(other);
		co_reset(co);
		co_resume(co);
		co_resume(other);
		co_resume(co);
		CHECK_STORY(story, "yyy++");
		co_release(co);
		co_release(other);
	}
	return finish();
}
