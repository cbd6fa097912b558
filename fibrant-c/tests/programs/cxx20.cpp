// standard: c++20
// In C++20 co_yield is a keyword: the headers leave it alone, and both kinds of coroutines work side by side.

#include "co_closure.h"
#include "co_comm.h"
#include "co_routine.h"
#include "co_routine_inner.h"
#include "co_routine_specific.h"

#include "check.h"

#include <coroutine>
#include <exception>
#include <string>

struct Numbers {
	struct promise_type {
		int current = 0;
		Numbers get_return_object() { return Numbers{std::coroutine_handle<promise_type>::from_promise(*this)}; }
		std::suspend_always initial_suspend() noexcept { return {}; }
		std::suspend_always final_suspend() noexcept { return {}; }
		std::suspend_always yield_value(int value) noexcept {
			current = value;
			return {};
		}
		void return_void() {}
		void unhandled_exception() { std::terminate(); }
	};

	std::coroutine_handle<promise_type> handle;

	int next() {
		handle.resume();
		return handle.promise().current;
	}
};

static Numbers squares() {
	for (int i = 1;; i++) {
		poll(nullptr, 0, 1); // in the stackful coroutine that asks for the next number
		co_yield i * i;
	}
}

CO_ROUTINE_SPECIFIC(std::string, name);

static int ready;
static int done;

static void *routine(void *arg) {
	co_enable_hook_sys();
	*name = static_cast<const char *>(arg);
	Numbers numbers = squares();
	int sum = 0;
	for (int i = 0; i < 5; i++) {
		sum += numbers.next();
	}
	numbers.handle.destroy();
	CHECK(sum == 55);
	CHECK(*name == static_cast<const char *>(arg));
	CHECK(name->size() == 3);
	ready++;
	co_yield_ct();
	done++;
	return nullptr;
}

int main() {
	static char first[] = "one";
	static char second[] = "two";
	stCoRoutine_t *co[2] = {start(routine, first), start(routine, second)};
	loop_until(&ready, 2);
	CHECK(done == 0);
	co_resume(co[0]);
	co_resume(co[1]);
	CHECK(done == 2);
	co_release(co[0]);
	co_release(co[1]);
	clsCoMutex mutex;
	clsSmartLock lock(&mutex);
	return finish();
}
