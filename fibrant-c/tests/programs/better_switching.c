/* Where fibrant is better than libco: mistakes are refused, and nothing is limited. */

#include "check.h"
#include "co_routine_inner.h"

static int runs;
static struct stCoRoutine_t *chain[1000];

static void *once(void *arg) {
	(void)arg;
	runs++;
	return NULL;
}

static void *resumes_itself(void *arg) {
	struct stCoRoutine_t **self = (struct stCoRoutine_t **)arg;
	runs++;
	co_resume(*self);
	co_resume(co_self());
	runs++;
	return NULL;
}

/* The one that resumed it is not suspended: it cannot be resumed either. */
static void *resumes_its_resumer(void *arg) {
	runs++;
	co_resume((struct stCoRoutine_t *)arg);
	runs++;
	return NULL;
}

static void *resumes_another(void *arg) {
	struct stCoRoutine_t *inner = NULL;
	(void)arg;
	CHECK(co_create(&inner, NULL, resumes_its_resumer, co_self()) == 0);
	co_resume(inner);
	co_release(inner);
	return NULL;
}

/* Each link of the chain resumes the next: far deeper than libco's 128. */
static void *link_of_chain(void *arg) {
	intptr_t i = (intptr_t)arg;
	if (i + 1 < 1000) {
		CHECK(co_create(&chain[i + 1], NULL, link_of_chain, (void *)(i + 1)) == 0);
		co_resume(chain[i + 1]);
	}
	runs++;
	co_yield_ct();
	runs++;
	return NULL;
}

int main(void) {
	struct stCoRoutine_t *co = NULL;
	int i;

	/* On the main routine there is nobody to yield to, and nothing to reset. */
	co_yield_ct();
	co_yield_env(co_get_curr_thread_env());
	co_yield(co_self());
	co_resume(co_self());
	co_reset(co_self());

	co = start(once, NULL);
	CHECK(runs == 1);
	co_resume(co);
	co_resume(co);
	CHECK(runs == 1);
	co_release(co);

	runs = 0;
	CHECK(co_create(&co, NULL, resumes_itself, &co) == 0);
	co_resume(co);
	CHECK(runs == 2);
	co_release(co);

	runs = 0;
	co = start(resumes_another, NULL);
	CHECK(runs == 2);
	co_release(co);

	runs = 0;
	CHECK(co_create(&chain[0], NULL, link_of_chain, NULL) == 0);
	co_resume(chain[0]);
	CHECK(runs == 1000);
	for (i = 0; i < 1000; i++) {
		co_resume(chain[i]);
	}
	CHECK(runs == 2000);
	for (i = 0; i < 1000; i++) {
		co_release(chain[i]);
	}
	return finish();
}
