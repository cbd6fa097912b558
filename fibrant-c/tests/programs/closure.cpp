// Closures with copies of variables and with references to them, executed by threads and by coroutines.

#include "co_closure.h"

#include "check.h"

#include <string>
#include <vector>

static void *execute(void *arg) {
	static_cast<stCoClosure_t *>(arg)->exec();
	return NULL;
}

template <class T>
static T twice(T value) {
	T result = T();
	co_ref(out, result);
	co_func(Twice, out, value) {
		out.result = value + value;
	}
	co_func_end;
	Twice task(out, value);
	task.exec();
	return result;
}

int main() {
	std::vector<stCoClosure_t *> tasks;
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	int total = 100;
	std::vector<int> seen;
	co_ref(ref, total, seen, mutex);
	for (int i = 0; i < 10; i++) {
		co_func(Add, ref, i) {
			pthread_mutex_lock(&ref.mutex);
			ref.seen.push_back(i);
			ref.total += i;
			pthread_mutex_unlock(&ref.mutex);
		}
		co_func_end;
		tasks.push_back(new Add(ref, i));
	}

	std::vector<pthread_t> threads(tasks.size());
	for (size_t i = 0; i < tasks.size(); i++) {
		CHECK(pthread_create(&threads[i], NULL, execute, tasks[i]) == 0);
	}
	for (size_t i = 0; i < tasks.size(); i++) {
		CHECK(pthread_join(threads[i], NULL) == 0);
		delete tasks[i];
	}
	CHECK(total == 145);
	CHECK(seen.size() == 10);

	// In a coroutine, with a wait in the midst.
	int done = 0;
	std::string word = "copied";
	const int &number = total;
	co_ref(counter, done);
	co_func(Wait, counter, word, number) {
		co_enable_hook_sys();
		poll(NULL, 0, 5);
		CHECK(word == "copied");
		CHECK(number == 145);
		counter.done++;
	}
	co_func_end;
	Wait wait(counter, word, number);
	word = "changed";
	total = 0;
	stCoRoutine_t *co = start(execute, &wait);
	CHECK(done == 0);
	loop_until(&done, 1);
	co_release(co);

	// As many as there can be, and none.
	int a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
	co_ref(all, a, b, c, d, e, f, total);
	co_func(Seven, all, a, b, c, d, e, f) {
		all.total = a + b + c + d + e + f;
		all.a = 10;
	}
	co_func_end;
	Seven seven(all, a, b, c, d, e, f);
	seven.exec();
	CHECK(total == 21);
	CHECK(a == 10 && seven.a == 1);
	static int without;
	co_func(None) {
		without++;
	}
	co_func_end;
	None none;
	stCoClosure_t *any = &none;
	any->exec();
	CHECK(without == 1);

	CHECK(twice(21) == 42);
	CHECK(twice(std::string("ab")) == "abab");
	return finish();
}
