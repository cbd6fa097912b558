/* Where fibrant is better than libco, and once was not: a coroutine that waits for a thread is reset or released, a variable is set to its
   own value, the main routine uses a condition that others wait for, a lock is held across a coroutine's first wait, a forked child resets
   and releases, and a descriptor that is always ready keeps nobody from running. */

#include "check.h"
#include "fibrant.h"

#include <sys/wait.h>

static int done;
static int woken;
static struct stCoCond_t *cond;

/* The shell runs on a thread of its own meanwhile. */
static void *runs_a_command(void *arg) {
	co_enable_hook_sys();
	CHECK(system("sleep 0.1") == 0);
	done++;
	return arg;
}

static void *waits_for_signal(void *arg) {
	co_enable_hook_sys();
	CHECK(co_cond_timedwait(cond, -1) == 0);
	woken++;
	return arg;
}

/* It is left alone, as what it waits for cannot be taken back. */
static void reset_of_one_that_waits_for_a_thread(void) {
	struct stCoRoutine_t *co = start(runs_a_command, NULL);
	done = 0;
	co_reset(co);
	loop_until(&done, 1);
	co_release(co);
}

/* What comes too late wakes nobody, and not the next who has got its memory. */
static void release_of_one_that_waits_for_a_thread(void) {
	struct stCoRoutine_t *next[8];
	struct stCoRoutine_t *co = start(runs_a_command, NULL);
	int i;
	woken = 0;
	co_release(co);
	for (i = 0; i < 8; i++) {
		next[i] = start(waits_for_signal, NULL);
	}
	loop_for(300);
	CHECK(woken == 0);
	CHECK(co_cond_broadcast(cond) == 0);
	loop_until(&woken, 8);
	for (i = 0; i < 8; i++) {
		co_release(next[i]);
	}
}

static void *sets_a_variable_to_itself(void *arg) {
	int i;
	co_enable_hook_sys();
	CHECK(setenv("CGINAME", "a value that is long enough to be seen when it is overwritten", 1) == 0);
	for (i = 0; i < 100; i++) {
		CHECK(setenv("CGINAME", getenv("CGINAME"), 1) == 0);
		CHECK(strcmp(getenv("CGINAME"), "a value that is long enough to be seen when it is overwritten") == 0);
	}
	done++;
	return arg;
}

/* It cannot wait there, and nobody else is thrown out of the line. */
static void main_routine_waits_for_a_condition(void) {
	struct stCoRoutine_t *co;
	co_cond_free(cond);
	cond = co_cond_alloc();
	co = start(waits_for_signal, NULL);
	woken = 0;
	CHECK(co_cond_timedwait(cond, 10) == -1);
	CHECK(errno == EPERM);
	CHECK(co_cond_signal(cond) == 0);
	loop_until(&woken, 1);
	co_release(co);
}

static fb_mutex *lock;

static void *holds_a_lock_across_its_first_wait(void *arg) {
	CHECK(fb_mutex_lock(lock) == 0);
	CHECK(co_poll(co_get_epoll_ct(), NULL, 0, 5) == 0);
	CHECK(fb_mutex_unlock(lock) == 0);
	done++;
	return arg;
}

static void *finds_the_lock_taken(void *arg) {
	CHECK(fb_mutex_trylock(lock) == -EBUSY);
	done++;
	return arg;
}

static void a_coroutine_is_one_to_locks(void) {
	struct stCoRoutine_t *holder;
	struct stCoRoutine_t *other;
	CHECK(fb_mutex_create(&lock, NULL) == 0);
	done = 0;
	holder = start(holds_a_lock_across_its_first_wait, NULL);
	other = start(finds_the_lock_taken, NULL);
	loop_until(&done, 2);
	co_release(holder);
	co_release(other);
	fb_mutex_destroy(lock);
}

static void *counts(void *arg) {
	++*(int *)arg;
	return arg;
}

static void a_child_resets_and_releases(void) {
	int runs = 0;
	int status;
	pid_t child;
	struct stCoRoutine_t *co = start(counts, &runs);
	CHECK(runs == 1);
	fflush(NULL);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		co_reset(co);
		co_resume(co);
		_exit(runs == 2 ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	co_release(co);
}

static int stop;
static int ready;

static void *polls_what_is_ready(void *arg) {
	struct pollfd fds;
	fds.fd = ready;
	fds.events = POLLOUT;
	co_enable_hook_sys();
	while (!stop) {
		CHECK(poll(&fds, 1, 1000) == 1);
	}
	done++;
	return arg;
}

static void *reads_what_never_ends(void *arg) {
	char bytes[16];
	int fd = *(int *)arg;
	co_enable_hook_sys();
	while (!stop) {
		CHECK(read(fd, bytes, 1) == 1);
		CHECK(write(ready, bytes, 1) == 1);
	}
	done++;
	return arg;
}

static void *stops_the_others(void *arg) {
	co_enable_hook_sys();
	poll(NULL, 0, 20);
	stop = 1;
	return arg;
}

/* In libco each of their calls goes back to the event loop. */
static void one_who_always_finds_something_lets_others_run(void *(*busy)(void *)) {
	int pair[2];
	struct stCoRoutine_t *first;
	struct stCoRoutine_t *second;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(write(pair[1], "x", 1) == 1);
	ready = pair[1];
	stop = 0;
	done = 0;
	second = start(stops_the_others, NULL);
	first = start(busy, &pair[0]);
	loop_until(&done, 1);
	co_release(first);
	co_release(second);
	close(pair[0]);
	close(pair[1]);
}

int main(void) {
	struct stCoRoutine_t *co;
	static const char *names[] = {"CGINAME"};
	co_set_env_list(names, 1);
	cond = co_cond_alloc();
	reset_of_one_that_waits_for_a_thread();
	release_of_one_that_waits_for_a_thread();
	done = 0;
	co = start(sets_a_variable_to_itself, NULL);
	CHECK(done == 1);
	co_release(co);
	main_routine_waits_for_a_condition();
	a_coroutine_is_one_to_locks();
	a_child_resets_and_releases();
	one_who_always_finds_something_lets_others_run(polls_what_is_ready);
	one_who_always_finds_something_lets_others_run(reads_what_never_ends);
	co_cond_free(cond);
	return finish();
}
