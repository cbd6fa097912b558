/* A thread has its own main routine, its own coroutines and its own event loop. */

#include "check.h"
#include "co_routine_inner.h"

#define THREADS 4
#define EACH 10

struct thread {
	pthread_t id;
	struct stCoRoutine_t *main_routine;
	struct stCoEpoll_t *loop;
	struct stCoCond_t *cond;
	int slept;
	int woken;
};

static void *sleeper(void *arg) {
	struct thread *thread = (struct thread *)arg;
	int round;
	co_enable_hook_sys();
	CHECK(co_get_epoll_ct() == thread->loop);
	for (round = 0; round < 5; round++) {
		poll(NULL, 0, 1);
		CHECK(co_get_epoll_ct() == thread->loop);
		CHECK(pthread_equal(pthread_self(), thread->id));
	}
	if (++thread->slept == EACH) {
		co_cond_broadcast(thread->cond);
	}
	return NULL;
}

static void *waiter(void *arg) {
	struct thread *thread = (struct thread *)arg;
	co_cond_timedwait(thread->cond, -1);
	CHECK(thread->slept == EACH);
	thread->woken++;
	return NULL;
}

static void *run(void *arg) {
	struct thread *thread = (struct thread *)arg;
	struct stCoRoutine_t *co[EACH + 1];
	int i;
	thread->id = pthread_self();
	co_init_curr_thread_env();
	thread->main_routine = co_self();
	thread->loop = co_get_epoll_ct();
	thread->cond = co_cond_alloc();
	co[EACH] = start(waiter, thread);
	for (i = 0; i < EACH; i++) {
		co[i] = start(sleeper, thread);
	}
	loop_until(&thread->woken, 1);
	for (i = 0; i <= EACH; i++) {
		co_release(co[i]);
	}
	co_cond_free(thread->cond);
	return NULL;
}

int main(void) {
	static struct thread threads[THREADS + 1];
	int i;
	int j;
	for (i = 1; i <= THREADS; i++) {
		CHECK(pthread_create(&threads[i].id, NULL, run, &threads[i]) == 0);
	}
	run(&threads[0]);
	for (i = 1; i <= THREADS; i++) {
		CHECK(pthread_join(threads[i].id, NULL) == 0);
	}
	for (i = 0; i <= THREADS; i++) {
		CHECK(threads[i].woken == 1);
		for (j = 1; j < i && i != 0; j++) {
			/* The main thread's are alive all the time; the others' memory may have been used again. */
			CHECK(threads[i].main_routine != threads[0].main_routine);
			CHECK(threads[i].loop != threads[0].loop);
		}
	}
	return finish();
}
