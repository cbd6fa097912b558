/* Where fibrant is better than libco: locks of pthread's between coroutines, their thread's own code, and other threads. */

#include "check.h"

#include <sys/syscall.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct story story;
static int done;
static int held[2];
static int go[2];
static long main_thread;

/* Whether the main thread sleeps in the kernel. */
static int main_sleeps(void) {
	char path[64];
	char line[512];
	char *state;
	FILE *file;
	snprintf(path, sizeof(path), "/proc/self/task/%ld/stat", main_thread);
	file = fopen(path, "r");
	CHECK(file != NULL);
	CHECK(fgets(line, sizeof(line), file) != NULL);
	fclose(file);
	state = strrchr(line, ')');
	CHECK(state != NULL);
	return state[2] == 'S';
}

/* Has the mutex until the main thread is ready for it, and blocks. */
static void *holder(void *arg) {
	char byte;
	long deadline = now_ms() + 30000;
	int seen = 0;
	(void)arg;
	CHECK(pthread_mutex_lock(&mutex) == 0);
	CHECK(write(held[1], "h", 1) == 1);
	CHECK(read(go[0], &byte, 1) == 1);
	while (seen < 3) {
		CHECK(now_ms() < deadline);
		seen += main_sleeps();
		usleep(1000);
	}
	CHECK(pthread_mutex_unlock(&mutex) == 0);
	return NULL;
}

static void *locks(void *arg) {
	(void)arg;
	co_enable_hook_sys();
	CHECK(pthread_mutex_lock(&mutex) == 0);
	note(&story, 'c');
	CHECK(pthread_mutex_unlock(&mutex) == 0);
	done++;
	return NULL;
}

int main(void) {
	struct stCoRoutine_t *co;
	pthread_t thread;
	char byte;
	main_thread = syscall(SYS_gettid);
	CHECK(pipe(held) == 0 && pipe(go) == 0);

	/* The thread's own code wants a lock that its coroutine has waited for longer, which cannot go on as long as that code blocks:
	   whoever is next in line must not keep it from the lock. */
	CHECK(pthread_create(&thread, NULL, holder, NULL) == 0);
	CHECK(read(held[0], &byte, 1) == 1);
	co = start(locks, NULL);
	CHECK(done == 0);
	CHECK(write(go[1], "g", 1) == 1);
	CHECK(pthread_mutex_lock(&mutex) == 0);
	note(&story, 'm');
	CHECK(pthread_mutex_unlock(&mutex) == 0);
	loop_until(&done, 1);
	CHECK_STORY(story, "mc");
	CHECK(pthread_join(thread, NULL) == 0);
	co_release(co);
	return finish();
}
