// A server's skeleton: threads hand in requests, the event loop's function gives each to an idle coroutine or to a new one, and
// the answers go back. Coroutines make, resume and release others.

#include "check.h"

#include <deque>
#include <vector>

static const int THREADS = 3;
static const int REQUESTS = 200; // of each thread
static const size_t MOST = 20;   // coroutines

struct Request {
	int value;
	int answer;
};

struct Worker {
	stCoRoutine_t *co;
	Request *request;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered_cond = PTHREAD_COND_INITIALIZER;
static std::deque<Request *> requests;
static std::vector<Worker *> idle;
static std::vector<Worker *> workers;
static int answered;

// The part of a request's work that another coroutine does.
static void *helper(void *arg) {
	co_enable_hook_sys();
	Request *request = static_cast<Request *>(arg);
	request->answer = request->value * 2;
	co_yield_ct();
	request->answer++;
	return NULL;
}

static void *work(void *arg) {
	co_enable_hook_sys();
	Worker *self = static_cast<Worker *>(arg);
	for (;;) {
		Request *request = self->request;
		stCoRoutine_t *co = NULL;
		CHECK(co_create(&co, NULL, helper, request) == 0);
		co_resume(co);
		CHECK(request->answer == request->value * 2);
		if (request->value % 7 == 0) {
			poll(NULL, 0, 1);
		}
		co_resume(co);
		co_release(co);
		CHECK(request->answer == request->value * 2 + 1);

		pthread_mutex_lock(&mutex);
		answered++;
		request->value = -1;
		pthread_cond_broadcast(&answered_cond);
		pthread_mutex_unlock(&mutex);

		idle.push_back(self);
		co_yield_ct();
	}
	return NULL;
}

// Called by the event loop after every turn.
static int dispatch(void *) {
	for (;;) {
		pthread_mutex_lock(&mutex);
		if (answered == THREADS * REQUESTS) {
			pthread_mutex_unlock(&mutex);
			return -1;
		}
		if (requests.empty() || (idle.empty() && workers.size() == MOST)) {
			pthread_mutex_unlock(&mutex);
			return 0;
		}
		Request *request = requests.front();
		requests.pop_front();
		pthread_mutex_unlock(&mutex);

		Worker *worker;
		if (idle.empty()) {
			worker = new Worker;
			CHECK(co_create(&worker->co, NULL, work, worker) == 0);
			workers.push_back(worker);
		} else {
			worker = idle.back();
			idle.pop_back();
		}
		worker->request = request;
		co_resume(worker->co);
	}
}

// A thread without coroutines: its calls block, whatever the library does elsewhere.
static void *ask(void *) {
	for (int i = 0; i < REQUESTS; i++) {
		Request request = {i, 0};
		pthread_mutex_lock(&mutex);
		requests.push_back(&request);
		while (request.value != -1) {
			pthread_cond_wait(&answered_cond, &mutex);
		}
		pthread_mutex_unlock(&mutex);
		CHECK(request.answer == i * 2 + 1);
	}
	return NULL;
}

int main() {
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++) {
		CHECK(pthread_create(&threads[i], NULL, ask, NULL) == 0);
	}
	co_eventloop(co_get_epoll_ct(), dispatch, NULL);
	for (int i = 0; i < THREADS; i++) {
		CHECK(pthread_join(threads[i], NULL) == 0);
	}
	CHECK(idle.size() == workers.size());
	for (size_t i = 0; i < workers.size(); i++) {
		co_release(workers[i]->co);
		delete workers[i];
	}
	return finish();
}
