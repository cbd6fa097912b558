/*
 * Where fibrant is better than libco: fork() with coroutines at hand. Those that had yielded are the child's, too, and go on in each process
 * by themselves; those that wait in the parent's event loop stay the parent's. Each process has an event loop of its own.
 */

#include "check.h"

#include <signal.h>
#include <sys/wait.h>

/* The coroutines that are there when the process forks, one in each state. */
enum { YIELDED, ON_SHARED_STACK, FRESH, ENDED, SLEEPS, READS, HAS_ALL };

static struct stCoRoutine_t *co[HAS_ALL];
static struct stShareStack_t *stacks;
static int steps[HAS_ALL];
static int pipes[2];
static pthread_key_t key;
static int destroyed;

static void destroy(void *value) {
	CHECK(value != NULL);
	destroyed++;
}

/* Makes a step whenever it is resumed. What it has in its frames must be what it was. */
static void *yields(void *arg) {
	int id = (int)(intptr_t)arg;
	int step;
	CHECK(co_setspecific(key, &steps[id]) == 0);
	for (step = 1; step <= 3; step++) {
		CHECK(steps[id] == step - 1);
		steps[id] = step;
		co_yield_ct();
		CHECK(co_getspecific(key) == &steps[id]);
	}
	return NULL;
}

static void *sleeps(void *arg) {
	(void)arg;
	co_enable_hook_sys();
	poll(NULL, 0, 300);
	steps[SLEEPS]++;
	return NULL;
}

static void *reads(void *arg) {
	char byte = 0;
	(void)arg;
	co_enable_hook_sys();
	CHECK(read(pipes[0], &byte, 1) == 1);
	CHECK(byte == 'p');
	steps[READS]++;
	return NULL;
}

static struct stCoRoutine_t *make(struct stShareStack_t *stack, void *(*routine)(void *), void *arg) {
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	struct stCoRoutine_t *made = NULL;
	attr.share_stack = stack;
	CHECK(co_create(&made, &attr, routine, arg) == 0);
	return made;
}

/* Waits in the event loop of the process that it was made in. */
static int ends[2];
static int done;

static void *asks(void *arg) {
	char byte = 0;
	co_enable_hook_sys();
	CHECK(read(ends[0], &byte, 1) == 1);
	CHECK(byte == 'c');
	done++;
	return arg;
}

static void *answers(void *arg) {
	co_enable_hook_sys();
	poll(NULL, 0, 20);
	CHECK(write(ends[1], "c", 1) == 1);
	done++;
	return arg;
}

/* New coroutines wait for each other in this process's own event loop. */
static void use_event_loop(void) {
	struct stCoRoutine_t *pair[2];
	done = 0;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	pair[0] = make(NULL, asks, NULL);
	pair[1] = make(stacks, answers, NULL);
	co_resume(pair[0]);
	co_resume(pair[1]);
	CHECK(done == 0);
	loop_until(&done, 2);
	co_release(pair[0]);
	co_release(pair[1]);
	close(ends[0]);
	close(ends[1]);
}

/* Goes on with those that both processes have. */
static void go_on(void) {
	int id;
	for (id = YIELDED; id <= FRESH; id++) {
		int step = steps[id];
		CHECK(step == (id == FRESH ? 0 : 1));
		co_resume(co[id]);
		CHECK(steps[id] == step + 1);
	}
	co_resume(co[ENDED]);
	CHECK(steps[ENDED] == 3);
	steps[ENDED] = 0;
	co_reset(co[ENDED]);
	co_resume(co[ENDED]);
	CHECK(steps[ENDED] == 1);
	/* One to its end, the others released on the way. */
	destroyed = 0;
	co_resume(co[YIELDED]);
	co_resume(co[YIELDED]);
	CHECK(steps[YIELDED] == 3 && destroyed == 1);
	for (id = YIELDED; id <= ENDED; id++) {
		co_release(co[id]);
	}
	CHECK(destroyed == 4);
}

/* What happens in the child. `first` says what it does first with coroutines: it must not matter. */
static void be_child(int first) {
	alarm(30);
	if (first == 0) {
		use_event_loop();
	}
	go_on();
	use_event_loop();
	/* These are the parent's: nothing resumes them here, and nothing that is tried with them does harm. */
	co_resume(co[SLEEPS]);
	co_resume(co[READS]);
	co_reset(co[SLEEPS]);
	co_release(co[READS]);
	loop_for(500);
	CHECK(steps[SLEEPS] == 0 && steps[READS] == 0);
	exit(7);
}

static void must_end_with(pid_t child, int code) {
	int status = 0;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

/*
 * A coroutine that forks, resumed by hand or by the event loop; and what the loop calls may fork. Both processes go on with it, and with
 * what has resumed it; but the child's event loop is another one, even if it comes back to the parent's: who waits there is not resumed in
 * the child, and gets all that is the parent's.
 */
enum way { BY_HAND, IN_THE_LOOP, IN_THE_CALLBACK };

#define SENT 30

static int line[2];
static int received;
static pid_t forked;

static void *receives(void *arg) {
	char byte = 0;
	co_enable_hook_sys();
	while (received < SENT) {
		CHECK(read(line[0], &byte, 1) == 1);
		received++;
	}
	return arg;
}

/* Sends when there is a child that could take it. */
static void *sends(void *arg) {
	int sent = 0;
	co_enable_hook_sys();
	while (sent < SENT) {
		poll(NULL, 0, 3);
		if (forked > 0) {
			CHECK(write(line[1], "l", 1) == 1);
			sent++;
		}
	}
	return arg;
}

/* Whether it is in its yield, which a resume ends, and not in a wait. */
static int has_yielded;

static void *forks(void *arg) {
	int local = 5;
	co_enable_hook_sys();
	if (*(const enum way *)arg == IN_THE_LOOP) {
		poll(NULL, 0, 1);
	}
	forked = fork();
	CHECK(forked >= 0);
	poll(NULL, 0, 5);
	local++;
	has_yielded = 1;
	co_yield_ct();
	CHECK(local == 6);
	poll(NULL, 0, 5);
	CHECK(local == 6);
	done++;
	return NULL;
}

struct turns {
	enum way way;
	long deadline;
};

static int after_each_turn(void *arg) {
	struct turns *turns = (struct turns *)arg;
	if (turns->way == IN_THE_CALLBACK && forked == -1) {
		forked = fork();
		CHECK(forked >= 0);
	}
	if (turns->way != IN_THE_CALLBACK && !has_yielded) {
		return 0;
	}
	return now_ms() >= turns->deadline ? -1 : 0;
}

static void fork_in(enum way way) {
	struct stCoRoutine_t *pair[2];
	struct stCoRoutine_t *forking = NULL;
	struct turns turns;
	forked = -1;
	received = 0;
	done = 0;
	has_yielded = 0;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
	pair[0] = start(receives, NULL);
	pair[1] = start(sends, NULL);
	if (way != IN_THE_CALLBACK) {
		forking = start(forks, &way);
	}
	turns.way = way;
	turns.deadline = now_ms() + 300;
	co_eventloop(co_get_epoll_ct(), after_each_turn, &turns);
	CHECK(forked != -1);
	if (forked == 0) {
		alarm(30);
		CHECK(received == 0);
	} else {
		loop_until(&received, SENT);
		co_release(pair[0]);
		co_release(pair[1]);
	}
	if (forking != NULL) {
		co_resume(forking);
		loop_until(&done, 1);
		co_release(forking);
	}
	use_event_loop();
	if (forked == 0) {
		exit(8);
	}
	must_end_with(forked, 8);
	close(line[0]);
	close(line[1]);
}

int main(void) {
	pid_t children[2];
	int id;
	int i;
	CHECK(pthread_key_create(&key, destroy) == 0);
	CHECK(pipe(pipes) == 0);
	stacks = co_alloc_sharestack(1, 64 * 1024);
	for (id = YIELDED; id <= ENDED; id++) {
		co[id] = make(id == ON_SHARED_STACK ? stacks : NULL, yields, (void *)(intptr_t)id);
	}
	co_resume(co[YIELDED]);
	co_resume(co[ON_SHARED_STACK]);
	for (i = 0; i < 4; i++) {
		co_resume(co[ENDED]);
	}
	co[SLEEPS] = start(sleeps, NULL);
	co[READS] = start(reads, NULL);

	for (i = 0; i < 2; i++) {
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (children[i] == 0) {
			be_child(i);
		}
	}
	/* Whatever the children do, here everything goes on as if there were none. */
	go_on();
	use_event_loop();
	must_end_with(children[0], 7);
	must_end_with(children[1], 7);
	CHECK(write(pipes[1], "p", 1) == 1);
	loop_until(&steps[SLEEPS], 1);
	loop_until(&steps[READS], 1);
	CHECK(steps[SLEEPS] == 1 && steps[READS] == 1);
	co_release(co[SLEEPS]);
	co_release(co[READS]);

	fork_in(BY_HAND);
	fork_in(IN_THE_LOOP);
	fork_in(IN_THE_CALLBACK);
	return finish();
}
