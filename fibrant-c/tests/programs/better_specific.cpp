// Where fibrant is better than libco: what a coroutine had is destroyed with it, and there is no limit to the keys' number.

#include "co_routine_specific.h"

#include "check.h"

#include <string>
#include <vector>

static int alive;

struct Counted {
	std::string text;
	int number;
	Counted() : text("made") { alive++; } // leaves `number` alone
	~Counted() { alive--; }
};

CO_ROUTINE_SPECIFIC(Counted, first);
CO_ROUTINE_SPECIFIC(Counted, second);
CO_ROUTINE_SPECIFIC(std::vector<std::string>, words);

static void *routine(void *arg) {
	CHECK(first->text == "made" && first->number == 0);
	first->text += " and changed";
	CHECK(second->text == "made");
	words->push_back(static_cast<const char *>(arg));
	co_yield_ct();
	CHECK(first->text == "made and changed");
	CHECK(second->text == "made");
	CHECK(words->size() == 1 && (*words)[0] == static_cast<const char *>(arg));
	return NULL;
}

// A destructor that sets the value again is called again, as pthread's are.
static pthread_key_t stubborn;
static int calls;

static void again(void *value) {
	if (++calls < 3) {
		co_setspecific(stubborn, value);
	}
}

static void *sets_stubborn(void *) {
	co_setspecific(stubborn, &calls);
	return NULL;
}

static void *on_thread(void *) {
	first->text = "the thread's";
	CHECK(alive > 0);
	return NULL;
}

int main() {
	static char word[] = "word";
	stCoRoutine_t *co = start(routine, word);
	CHECK(alive == 2);
	co_resume(co);
	CHECK(alive == 0); // it has ended
	co_release(co);

	co = start(routine, word);
	stCoRoutine_t *other = start(routine, word);
	CHECK(alive == 4);
	co_release(co); // in the midst of its work
	CHECK(alive == 2);
	co_reset(other);
	CHECK(alive == 0);
	co_resume(other);
	CHECK(alive == 2);
	co_resume(other);
	CHECK(alive == 0);
	co_release(other);

	CHECK(pthread_key_create(&stubborn, again) == 0);
	co = start(sets_stubborn, NULL);
	CHECK(calls == 3);
	co_release(co);

	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, on_thread, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(alive == 0);
	return finish();
}
