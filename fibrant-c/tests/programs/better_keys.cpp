// Where fibrant is better than libco: values by key, and variables of coroutines, go on when pthread's 1024 keys are used up.

#include "co_routine_specific.h"

#include "check.h"

#include <limits.h>

static const int MANY = 3000;
static pthread_key_t keys[MANY];
static int values[3][MANY];
static int destroyed;

static int alive;

struct Counted {
	int number;
	Counted() { alive++; }
	~Counted() { alive--; }
};

CO_ROUTINE_SPECIFIC(Counted, first);
CO_ROUTINE_SPECIFIC(Counted, second);

static void destroy(void *value) {
	CHECK(value != NULL);
	destroyed++;
}

// Every key has a value of one's own, on coroutines and on the main routine, whoever else has set it.
static void set_all(int who) {
	for (int i = 0; i < MANY; i++) {
		CHECK(co_getspecific(keys[i]) == NULL);
		CHECK(co_setspecific(keys[i], &values[who][i]) == 0);
	}
}

static void check_all(int who) {
	for (int i = 0; i < MANY; i++) {
		CHECK(co_getspecific(keys[i]) == &values[who][i]);
	}
}

static void *routine(void *arg) {
	const int who = *static_cast<int *>(arg);
	set_all(who);
	first->number = who;
	second->number = -who;
	co_yield_ct();
	check_all(who);
	CHECK(first->number == who && second->number == -who);
	return NULL;
}

// Numbers that nobody has handed out do no harm: in a coroutine they have values as any other, without destructors.
static void *any_number(void *) {
	static const pthread_key_t numbers[] = {1023, 1024, 1025, 5000, 65535, 65536 + 2 * MANY, INT_MAX, UINT_MAX};
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		CHECK(co_setspecific(numbers[i], &values[1][i]) == 0);
	}
	co_yield_ct();
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		CHECK(co_getspecific(numbers[i]) == &values[1][i]);
		CHECK(co_setspecific(numbers[i], NULL) == 0);
	}
	return NULL;
}

// A thread's own values are destroyed when it ends.
static void *on_thread(void *) {
	set_all(2);
	check_all(2);
	first->number = 1;
	CHECK(second->number == 0);
	return NULL;
}

int main() {
	static int who[] = {1, 2};
	// Pthread's keys are used up at some point, but ours are not.
	pthread_key_t last;
	int count = 0;
	for (int i = 0; i < MANY; i++) {
		keys[i] = co_specific_key(destroy);
		for (int j = 0; j < i; j++) {
			CHECK(keys[i] != keys[j]);
		}
		if (keys[i] >= 1024) {
			count++;
		}
	}
	CHECK(count >= MANY - 1024);
	CHECK(pthread_key_create(&last, NULL) == EAGAIN);

	set_all(0);
	stCoRoutine_t *co = start(routine, &who[0]);
	stCoRoutine_t *other = start(routine, &who[1]);
	CHECK(alive == 4);
	check_all(0);
	co_resume(co);
	CHECK(destroyed == MANY && alive == 2); // it has ended
	co_release(other);
	CHECK(destroyed == 2 * MANY && alive == 0);
	co_release(co);
	check_all(0);

	co = start(any_number, NULL);
	for (int i = 0; i < 8; i++) {
		CHECK(co_getspecific(static_cast<pthread_key_t>(70000 + i)) == NULL);
	}
	co_resume(co);
	co_release(co);
	CHECK(destroyed == 2 * MANY);

	first->number = 5;
	CHECK(second->number == 0 && alive == 2);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, on_thread, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(destroyed == 3 * MANY && alive == 2);
	check_all(0);
	CHECK(first->number == 5);
	return finish();
}
