// Closures in the manner of libco, for programs that have them: a class with a body, copies of variables (co_func), and an object
// with references to variables (co_ref).

#include "co_closure.h"
#include "co_comm.h"
#include "co_routine.h"

#include <cstdio>
#include <vector>

static void *execute(void *arg) {
	co_enable_hook_sys();
	static_cast<stCoClosure_t *>(arg)->exec();
	return NULL;
}

static int three_done(void *arg) {
	return static_cast<std::vector<int> *>(arg)->size() == 3 ? -1 : 0;
}

int main() {
	std::vector<int> results;
	clsCoMutex mutex;
	co_ref(shared, results, mutex);

	std::vector<stCoClosure_t *> tasks;
	std::vector<stCoRoutine_t *> coroutines;
	for (int i = 0; i < 3; i++) {
		co_func(Task, shared, i) {
			clsSmartLock lock(&shared.mutex); // one at a time, also while one of them sleeps
			poll(NULL, 0, 10);
			std::printf("task %d\n", i);
			shared.results.push_back(i * i);
		}
		co_func_end;
		tasks.push_back(new Task(shared, i));
		stCoRoutine_t *co = NULL;
		co_create(&co, NULL, execute, tasks.back());
		co_resume(co);
		coroutines.push_back(co);
	}
	co_eventloop(co_get_epoll_ct(), three_done, &results);

	for (size_t i = 0; i < tasks.size(); i++) {
		std::printf("result %d\n", results[i]);
		co_release(coroutines[i]);
		delete tasks[i];
	}
	return 0;
}
