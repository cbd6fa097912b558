// A producer that signals and sleeps, consumers that wait while the queue is empty.

#include "check.h"

#include <queue>

struct Task {
	int id;
};

struct Env {
	stCoCond_t *cond;
	std::queue<Task *> tasks;
	story events;
	int consumed;
};

static void *producer(void *arg) {
	co_enable_hook_sys();
	Env *env = static_cast<Env *>(arg);
	for (int id = 0; id < 5; id++) {
		Task *task = new Task;
		task->id = id;
		env->tasks.push(task);
		note(&env->events, 'p');
		CHECK(co_cond_signal(env->cond) == 0);
		// The signal did not switch: the consumer has not run yet.
		CHECK(env->tasks.size() == 1);
		poll(NULL, 0, 3);
	}
	return NULL;
}

static void *consumer(void *arg) {
	co_enable_hook_sys();
	Env *env = static_cast<Env *>(arg);
	for (;;) {
		if (env->tasks.empty()) {
			CHECK(co_cond_timedwait(env->cond, -1) == 0);
			continue;
		}
		Task *task = env->tasks.front();
		env->tasks.pop();
		CHECK(task->id == env->consumed);
		delete task;
		note(&env->events, 'c');
		env->consumed++;
	}
	return NULL;
}

int main() {
	Env *env = new Env();
	env->cond = co_cond_alloc();

	stCoRoutine_t *consumer_co = start(consumer, env);
	stCoRoutine_t *producer_co = start(producer, env);
	loop_until(&env->consumed, 5);
	CHECK_STORY(env->events, "pcpcpcpcpc");

	co_release(consumer_co);
	co_release(producer_co);
	CHECK(co_cond_free(env->cond) == 0);
	delete env;
	return finish();
}
