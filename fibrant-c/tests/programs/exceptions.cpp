// C++ in coroutines: exceptions thrown while others wait below frames that would catch them, destructors, the library's containers and streams.

#include "check.h"

#include <map>
#include <sstream>
#include <string>
#include <vector>

static int done;
static int alive;

struct Guard {
	Guard() { alive++; }
	~Guard() { alive--; }
};

static void level(int id, int depth) {
	Guard guard;
	if (depth == 0) {
		poll(NULL, 0, 2);
		throw id;
	}
	level(id, depth - 1);
}

static void *routine(void *arg) {
	co_enable_hook_sys();
	const int id = *static_cast<int *>(arg);
	for (int round = 0; round < 5; round++) {
		int caught = -1;
		try {
			Guard guard;
			level(id, id + round);
			CHECK(!"reached");
		} catch (int thrown) {
			// No wait in here: what is being handled is the thread's, and so every coroutine's.
			caught = thrown;
		}
		CHECK(caught == id);
		poll(NULL, 0, 1 + id % 3);
	}
	std::ostringstream text;
	std::map<std::string, std::vector<int> > map;
	for (int i = 0; i < 10; i++) {
		text << i << ' ';
		map[text.str()].push_back(i);
	}
	CHECK(map.size() == 10);
	done++;
	return NULL;
}

int main() {
	static int ids[8];
	stCoRoutine_t *co[8];
	for (int i = 0; i < 8; i++) {
		ids[i] = i;
		co[i] = start(routine, &ids[i]);
	}
	loop_until(&done, 8);
	CHECK(alive == 0);
	for (int i = 0; i < 8; i++) {
		co_release(co[i]);
	}
	return finish();
}
