// The lock for coroutines: one at a time, in the order of arrival.

#include "co_comm.h"

#include "check.h"

#include <vector>

// As a member of what is kept in a container.
struct Session {
	clsCoMutex lock;
	int id;
};

static clsCoMutex mutex;
static story events;
static int inside;
static int done;

static void *locker(void *arg) {
	co_enable_hook_sys();
	{
		clsSmartLock lock(&mutex);
		CHECK(++inside == 1);
		poll(NULL, 0, 3);
		note(&events, *static_cast<char *>(arg));
		CHECK(--inside == 0);
	}
	done++;
	return NULL;
}

// Unlocks with somebody waiting, and comes again: it is behind the waiter now.
static void *greedy(void *) {
	co_enable_hook_sys();
	for (int round = 0; round < 3; round++) {
		mutex.CoLock();
		CHECK(++inside == 1);
		poll(NULL, 0, 1);
		note(&events, 'g');
		CHECK(--inside == 0);
		mutex.CoUnLock();
	}
	done++;
	return NULL;
}

static void *locks_all(void *arg) {
	std::vector<Session> &sessions = *static_cast<std::vector<Session> *>(arg);
	for (size_t i = 0; i < sessions.size(); i++) {
		clsSmartLock lock(&sessions[i].lock);
		sessions[i].id++;
	}
	done++;
	return NULL;
}

static void locks_are_members() {
	std::vector<Session> sessions;
	sessions.resize(10);
	sessions.resize(100); // they move
	clsCoMutex another = clsCoMutex();
	another = mutex;
	another.CoLock();
	another.CoUnLock();
	done = 0;
	stCoRoutine_t *co = start(locks_all, &sessions);
	CHECK(done == 1);
	co_release(co);
	done = 0;
}

int main() {
	locks_are_members();
	static char names[] = "abcde";
	stCoRoutine_t *co[5];
	for (int i = 0; i < 5; i++) {
		co[i] = start(locker, &names[i]);
	}
	loop_until(&done, 5);
	CHECK_STORY(events, "abcde");
	for (int i = 0; i < 5; i++) {
		co_release(co[i]);
	}

	done = 0;
	memset(&events, 0, sizeof(events));
	co[0] = start(greedy, NULL);
	co[1] = start(greedy, NULL);
	co[2] = start(locker, &names[0]);
	loop_until(&done, 3);
	CHECK_STORY(events, "ggagggg");
	for (int i = 0; i < 3; i++) {
		co_release(co[i]);
	}

	// Free again: no wait on the main routine either.
	clsSmartLock lock(&mutex);
	return finish();
}
