/* Where fibrant is better than libco: more of what blocks is hooked, and while one coroutine waits in it others run. And what is
 * refused, where libco crashes. */

#include "check.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/wait.h>

static int done;
static int turns;
static int helped;

static sem_t semaphore;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int is_told;
static int event;
static int locked;
static char path[] = "/tmp/fibrant-XXXXXX";

/* Everybody here has the same. */
static __thread int shared;

static void by_usleep(void) { CHECK(usleep(20000) == 0); }

static void by_nanosleep(void) {
	struct timespec time = {0, 20000000};
	CHECK(nanosleep(&time, NULL) == 0);
}

static void by_select(void) {
	struct timeval time = {0, 20000};
	CHECK(select(0, NULL, NULL, NULL, &time) == 0);
}

static void by_epoll(void) {
	struct epoll_event wanted = {EPOLLIN, {0}};
	int epoll = epoll_create1(0);
	CHECK(epoll >= 0);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &wanted) == 0);
	CHECK(epoll_wait(epoll, &wanted, 1, 20000) == 1);
	CHECK(close(epoll) == 0);
}

static void by_waitpid(void) {
	int status;
	pid_t child = fork();
	if (child == 0) {
		struct timespec time = {0, 30000000};
		nanosleep(&time, NULL);
		_exit(7);
	}
	CHECK(child > 0);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void by_semaphore(void) { CHECK(sem_wait(&semaphore) == 0); }

static void by_condition(void) {
	CHECK(pthread_mutex_lock(&mutex) == 0);
	while (!is_told) {
		CHECK(pthread_cond_wait(&condition, &mutex) == 0);
	}
	CHECK(pthread_mutex_unlock(&mutex) == 0);
}

static void by_flock(void) {
	int own = open(path, O_RDWR);
	CHECK(own >= 0);
	CHECK(flock(own, LOCK_EX) == 0);
	CHECK(close(own) == 0);
}

static void *caller(void *arg) {
	void (*wait)(void) = *(void (**)(void))arg;
	int before;
	co_enable_hook_sys();
	shared++;
	before = turns;
	wait();
	CHECK(turns > before); /* others have run meanwhile */
	done++;
	return NULL;
}

/* Ends the waits that do not end by themselves. */
static void *helper(void *arg) {
	uint64_t one = 1;
	(void)arg;
	co_enable_hook_sys();
	poll(NULL, 0, 30);
	CHECK(write(event, &one, sizeof(one)) == sizeof(one));
	CHECK(sem_post(&semaphore) == 0);
	CHECK(pthread_mutex_lock(&mutex) == 0);
	is_told = 1;
	CHECK(pthread_mutex_unlock(&mutex) == 0);
	CHECK(pthread_cond_signal(&condition) == 0);
	CHECK(flock(locked, LOCK_UN) == 0);
	helped++;
	return NULL;
}

static void *ticker(void *arg) {
	(void)arg;
	co_enable_hook_sys();
	for (;;) {
		poll(NULL, 0, 1);
		turns++;
	}
	return NULL;
}

static void *once(void *arg) {
	++*(int *)arg;
	return NULL;
}

struct theirs {
	struct stCoRoutine_t *co;
	struct stShareStack_t *stacks;
	int count;
};

/* What is another thread's cannot be had here. */
static void *elsewhere(void *arg) {
	struct theirs *theirs = (struct theirs *)arg;
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	struct stCoRoutine_t *co = NULL;
	co_resume(theirs->co);
	CHECK(theirs->count == 0);
	attr.share_stack = theirs->stacks;
	CHECK(co_create(&co, &attr, once, &theirs->count) < 0);
	CHECK(shared == 0); /* another thread has another */
	return NULL;
}

int main(void) {
	static void (*const waits[])(void) = {by_usleep,  by_nanosleep, by_select,    by_epoll,
	                                      by_waitpid, by_semaphore, by_condition, by_flock};
	const int count = (int)(sizeof(waits) / sizeof(waits[0]));
	struct theirs theirs = {NULL, NULL, 0};
	struct stCoRoutine_t *co;
	pthread_t thread;
	int i;
	event = eventfd(0, 0);
	CHECK(event >= 0);
	CHECK(sem_init(&semaphore, 0, 0) == 0);
	locked = mkstemp(path);
	CHECK(locked >= 0);
	CHECK(flock(locked, LOCK_EX) == 0);

	start(ticker, NULL);
	for (i = 0; i < count; i++) {
		start(caller, (void *)&waits[i]);
	}
	CHECK(done == 0);
	CHECK(shared == count);
	start(helper, NULL);
	loop_until(&done, count);
	CHECK(helped == 1);
	CHECK(unlink(path) == 0);

	CHECK(co_create(&theirs.co, NULL, once, &theirs.count) == 0);
	theirs.stacks = co_alloc_sharestack(1, 64 * 1024);
	CHECK(theirs.stacks != NULL);
	CHECK(pthread_create(&thread, NULL, elsewhere, &theirs) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	co_resume(theirs.co);
	CHECK(theirs.count == 1);
	co_resume(theirs.co); /* it has ended */
	co_resume(NULL);
	CHECK(theirs.count == 1);
	co_release(theirs.co);
	co_free_sharestack(theirs.stacks);
	CHECK(co_alloc_sharestack(0, 64 * 1024) == NULL);
	CHECK(co_create(&co, NULL, NULL, NULL) == 0); /* one without a function does nothing */
	co_resume(co);
	co_release(co);
	return finish();
}
