// Variables that every coroutine has for itself.

#include "co_routine_specific.h"

#include "check.h"

struct Data {
	int idx;
	char text[100];
};

CO_ROUTINE_SPECIFIC(Data, routine_data);

struct Other {
	long sum;
};

CO_ROUTINE_SPECIFIC(Other, other)

// It cannot be made without arguments, so it is all zero.
struct Closed {
	int id;
	explicit Closed(int number) : id(number) {}
};

CO_ROUTINE_SPECIFIC(Closed, closed);

static int done;

static void *routine(void *arg) {
	co_enable_hook_sys();
	const int id = *static_cast<int *>(arg);
	CHECK(routine_data->idx == 0);
	CHECK(routine_data->text[0] == '\0');
	routine_data->idx = id;
	snprintf(routine_data->text, sizeof(routine_data->text), "routine %d", id);
	Data *mine = routine_data.operator->();
	for (int round = 0; round < 5; round++) {
		poll(NULL, 0, 1 + id % 3);
		CHECK(routine_data->idx == id);
		CHECK(mine == routine_data.operator->());
		CHECK(atoi(routine_data->text + 8) == id);
		other->sum += id;
	}
	CHECK(other->sum == 5 * id);
	CHECK(closed->id == 0);
	*closed = Closed(id);
	CHECK(closed->id == id);
	done++;
	return NULL;
}

static pthread_key_t key;

static void *by_key(void *) {
	int own = 0;
	CHECK(co_getspecific(key) == NULL);
	CHECK(co_setspecific(key, &own) == 0);
	CHECK(co_getspecific(key) == &own);
	// The thread's own value is another one.
	CHECK(pthread_getspecific(key) == &key);
	co_yield_ct();
	CHECK(co_getspecific(key) == &own);
	CHECK(co_setspecific(key, NULL) == 0);
	CHECK(co_getspecific(key) == NULL);
	done++;
	return NULL;
}

int main() {
	static int ids[10];
	stCoRoutine_t *co[10];
	routine_data->idx = 77;
	for (int i = 0; i < 10; i++) {
		ids[i] = i;
		co[i] = start(routine, &ids[i]);
	}
	loop_until(&done, 10);
	CHECK(routine_data->idx == 77);
	CHECK(other->sum == 0);
	for (int i = 0; i < 10; i++) {
		co_release(co[i]);
	}

	// On the main routine, they are the thread's.
	CHECK(pthread_key_create(&key, NULL) == 0);
	CHECK(co_getspecific(key) == NULL);
	CHECK(co_setspecific(key, &key) == 0);
	CHECK(pthread_getspecific(key) == &key);
	done = 0;
	stCoRoutine_t *first = start(by_key, NULL);
	stCoRoutine_t *second = start(by_key, NULL);
	CHECK(co_getspecific(key) == &key);
	co_resume(first);
	co_resume(second);
	CHECK(done == 2);
	co_release(first);
	co_release(second);
	return finish();
}
