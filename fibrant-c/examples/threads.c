/*
 * Threads: each has its own event loop, and a coroutine stays on the thread that made it.
 */

#define _GNU_SOURCE

#include <pthread.h>
#include <stdio.h>

#include "co_routine.h"

#define THREADS 3
#define COROUTINES 100

struct thread {
	pthread_t id;
	int ended;
};

static void *sleeper(void *arg) {
	struct thread *thread = (struct thread *)arg;
	co_enable_hook_sys();
	poll(NULL, 0, 10);
	thread->ended++; /* no lock: nobody else on this thread runs now, and no other thread has these coroutines */
	return NULL;
}

static int all_ended(void *arg) {
	return ((struct thread *)arg)->ended == COROUTINES ? -1 : 0;
}

static void *run(void *arg) {
	struct thread *thread = (struct thread *)arg;
	struct stCoRoutine_t *co[COROUTINES];
	int i;
	for (i = 0; i < COROUTINES; i++) {
		co_create(&co[i], NULL, sleeper, thread);
		co_resume(co[i]);
	}
	co_eventloop(co_get_epoll_ct(), all_ended, thread); /* this thread's loop */
	for (i = 0; i < COROUTINES; i++) {
		co_release(co[i]);
	}
	return NULL;
}

int main(void) {
	struct thread threads[THREADS] = {{0}};
	int i;
	for (i = 0; i < THREADS; i++) {
		pthread_create(&threads[i].id, NULL, run, &threads[i]);
	}
	for (i = 0; i < THREADS; i++) {
		pthread_join(threads[i].id, NULL);
		printf("thread %d: %d coroutines\n", i, threads[i].ended);
	}
	return 0;
}
