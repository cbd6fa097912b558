// Variables of which every coroutine has its own: made at its first use, destroyed at the coroutine's end.

#include "co_routine_specific.h"

#include "co_routine.h"

#include <cstdio>
#include <string>

struct Request {
	int id;
	std::string user;
};

CO_ROUTINE_SPECIFIC(Request, request);

static const int COROUTINES = 3;
static int ended;

// Needs no argument to know whose request this is.
static void log_line(const char *what) {
	std::printf("request %d of %s: %s\n", request->id, request->user.c_str(), what);
}

static void *handle(void *arg) {
	static const char *const users[COROUTINES] = {"anna", "bert", "cleo"};
	co_enable_hook_sys();
	request->id = *static_cast<int *>(arg);
	request->user = users[request->id];
	log_line("begins");
	poll(NULL, 0, 10);
	log_line("ends");
	ended++;
	return NULL;
}

static int all_ended(void *) {
	return ended == COROUTINES ? -1 : 0;
}

int main() {
	int ids[COROUTINES];
	stCoRoutine_t *co[COROUTINES];
	for (int i = 0; i < COROUTINES; i++) {
		ids[i] = i;
		co_create(&co[i], NULL, handle, &ids[i]);
		co_resume(co[i]);
	}
	co_eventloop(co_get_epoll_ct(), all_ended, NULL);
	for (int i = 0; i < COROUTINES; i++) {
		co_release(co[i]);
	}
	return 0;
}
