// Where fibrant is better than libco: a coroutine may wait or yield while it handles an exception, and handle it further.

#include "check.h"

#include <stdexcept>
#include <string>

static int done;

static void leave(int how) {
	if (how % 2 == 0) {
		poll(NULL, 0, 1 + how % 3);
	} else {
		co_yield_ct();
	}
}

static void *routine(void *arg) {
	co_enable_hook_sys();
	const int id = *static_cast<int *>(arg);
	const std::string name(static_cast<size_t>(id + 1), static_cast<char>('a' + id));
	for (int round = 0; round < 10; round++) {
		try {
			try {
				throw std::runtime_error(name);
			} catch (const std::exception &error) {
				leave(id + round);
				CHECK(name == error.what());
				throw;
			}
		} catch (const std::runtime_error &error) {
			leave(id + round + 1);
			CHECK(name == error.what());
			try {
				throw id;
			} catch (int inner) {
				leave(id);
				CHECK(inner == id);
			}
			CHECK(name == error.what());
		}
	}
	done++;
	return NULL;
}

int main() {
	static int ids[6];
	stCoRoutine_t *co[6];
	for (int i = 0; i < 6; i++) {
		ids[i] = i;
		co[i] = start(routine, &ids[i]);
	}
	// Those that have yielded are resumed by hand, also those that wait: their poll() answers early.
	for (int turn = 0; turn < 10000 && done < 6; turn++) {
		for (int i = 0; i < 6; i++) {
			co_resume(co[(i * 5 + turn) % 6]);
		}
		loop_for(1);
	}
	CHECK(done == 6);
	for (int i = 0; i < 6; i++) {
		co_release(co[i]);
	}
	return finish();
}
