// A producer and a consumer on one thread: the consumer waits for a condition, the producer sleeps between two tasks.

#include "co_routine.h"

#include <cstdio>
#include <queue>

struct Env {
	stCoCond_t *cond;
	std::queue<int> tasks;
	int consumed;
};

static const int TASKS = 5;

static void *produce(void *arg) {
	co_enable_hook_sys();
	Env *env = static_cast<Env *>(arg);
	for (int id = 0; id < TASKS; id++) {
		env->tasks.push(id);
		std::printf("produced %d\n", id);
		co_cond_signal(env->cond); // makes the consumer ready; the event loop resumes it, not this call
		poll(NULL, 0, 10);         // the sleep of coroutines
	}
	return NULL;
}

static void *consume(void *arg) {
	co_enable_hook_sys();
	Env *env = static_cast<Env *>(arg);
	while (env->consumed < TASKS) {
		if (env->tasks.empty()) {
			co_cond_timedwait(env->cond, -1);
			continue;
		}
		std::printf("consumed %d\n", env->tasks.front());
		env->tasks.pop();
		env->consumed++;
	}
	return NULL;
}

// Called after every turn of the event loop, which -1 ends.
static int all_consumed(void *arg) {
	return static_cast<Env *>(arg)->consumed == TASKS ? -1 : 0;
}

int main() {
	Env env;
	env.cond = co_cond_alloc();
	env.consumed = 0;

	stCoRoutine_t *consumer = NULL;
	stCoRoutine_t *producer = NULL;
	co_create(&consumer, NULL, consume, &env);
	co_resume(consumer);
	co_create(&producer, NULL, produce, &env);
	co_resume(producer);

	co_eventloop(co_get_epoll_ct(), all_consumed, &env);

	co_release(consumer);
	co_release(producer);
	co_cond_free(env.cond);
	return 0;
}
