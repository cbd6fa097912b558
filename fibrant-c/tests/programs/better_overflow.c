/* Where fibrant is better than libco: a stack that overflows ends the program with a message, instead of writing into another's. */

#include "check.h"

#include <signal.h>
#include <sys/wait.h>

/* Deep enough for any stack here: 64 MiB at least. */
static int recurse(int depth) {
	volatile char frame[4096];
	memset((void *)(uintptr_t)frame, depth, sizeof(frame));
	return depth == 16384 ? 0 : recurse(depth + 1) + frame[17];
}

static void *overflows(void *arg) {
	(void)arg;
	exit(recurse(0) + 2);
	return NULL;
}

static void overflow(int size, int shared) {
	struct stCoRoutineAttr_t attr = CO_ROUTINE_ATTR_INIT;
	struct stCoRoutine_t *co;
	attr.stack_size = size;
	if (shared) {
		attr.stack_size = 4096;
		attr.share_stack = co_alloc_sharestack(2, size);
	}
	CHECK(co_create(&co, &attr, overflows, NULL) == 0);
	co_resume(co);
}

static void own_stack(void) { overflow(64 * 1024, 0); }
static void large_stack(void) { overflow(1024 * 1024, 0); }
static void shared_stack(void) { overflow(192 * 1024, 1); }

static void *waits_first(void *arg) {
	co_enable_hook_sys();
	poll(NULL, 0, 1);
	return overflows(arg);
}

/* Resumed by the event loop. */
static void in_event_loop(void) {
	start(waits_first, NULL);
	loop_for(20000);
}

static void *resumes_another(void *arg) {
	(void)arg;
	overflow(96 * 1024, 0);
	return NULL;
}

/* The one that runs is told of, not the one that has resumed it. */
static void nested(void) { start(resumes_another, NULL); }

static void *on_this(void *arg) {
	overflow(64 * 1024, 0);
	return arg;
}

/* A thread that C has made has no stack for signals of its own. */
static void on_thread(void) {
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, on_this, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* What is no overflow is not called one. */
static void *faults(void *arg) {
	char *volatile nowhere = (char *)16;
	*nowhere = 1;
	return arg;
}

static void other_fault(void) { start(faults, NULL); }

/* What a child that does this says on its standard error, and how it ends. */
static int said_by(void (*what)(void), char *text, size_t room) {
	int out[2];
	int status = 0;
	size_t length = 0;
	ssize_t got;
	pid_t child;
	CHECK(pipe(out) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		dup2(out[1], 2);
		close(out[0]);
		close(out[1]);
		alarm(30);
		what();
		_exit(1);
	}
	close(out[1]);
	while ((got = read(out[0], text + length, room - 1 - length)) > 0) {
		length += (size_t)got;
	}
	text[length] = '\0';
	close(out[0]);
	CHECK(waitpid(child, &status, 0) == child);
	return status;
}

static void must_be_told(void (*what)(void), const char *wanted) {
	char text[1024];
	int status = said_by(what, text, sizeof(text));
	if (strncmp(text, wanted, strlen(wanted)) != 0 || strchr(text, '\n') != text + strlen(text) - 1) {
		fprintf(stderr, "\"%s\" instead of \"%s\", status %x\n", text, wanted, (unsigned)status);
		exit(1);
	}
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void) {
	char text[1024];
	int status;
	must_be_told(own_stack, "fibrant: a coroutine has overflowed its stack of 64 KiB. "
	                        "Give it more with stCoRoutineAttr_t::stack_size");
	must_be_told(large_stack, "fibrant: a coroutine has overflowed its stack of 1024 KiB. ");
	must_be_told(shared_stack, "fibrant: a coroutine has overflowed its stack of 192 KiB. ");
	must_be_told(in_event_loop, "fibrant: a coroutine has overflowed its stack of 128 KiB. ");
	must_be_told(nested, "fibrant: a coroutine has overflowed its stack of 96 KiB. ");
	must_be_told(on_thread, "fibrant: a coroutine has overflowed its stack of 64 KiB. ");

	status = said_by(other_fault, text, sizeof(text));
	CHECK(strcmp(text, "") == 0);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	return finish();
}
