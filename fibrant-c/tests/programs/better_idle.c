/* Where fibrant is better than libco: a loop with nothing to call sleeps until the next deadline, however many wait for theirs. */

#include "check.h"

#include <sys/resource.h>

#define MANY 1000

static int asleep;
static int woken;
static int told[2];

static void *sleeper(void *arg) {
	(void)arg;
	co_enable_hook_sys();
	asleep++;
	poll(NULL, 0, 600000 + (int)(intptr_t)arg);
	woken++;
	return NULL;
}

/* Deadlines are kept in such a loop. */
static void *teller(void *arg) {
	(void)arg;
	co_enable_hook_sys();
	poll(NULL, 0, 2500);
	CHECK(write(told[1], "x", 1) == 1);
	return NULL;
}

static void *idle(void *arg) {
	intptr_t i;
	for (i = 0; i < MANY; i++) {
		start(sleeper, (void *)i);
	}
	CHECK(asleep == MANY);
	start(teller, NULL);
	CHECK(write(told[1], "r", 1) == 1);
	co_eventloop(co_get_epoll_ct(), NULL, NULL);
	return arg;
}

/* How often the process has gone to sleep: a loop that wakes every millisecond does that two thousand times in 2 s. */
static long sleeps(void) {
	struct rusage used;
	CHECK(getrusage(RUSAGE_SELF, &used) == 0);
	return used.ru_nvcsw;
}

static long cpu_ms(void) {
	struct rusage used;
	CHECK(getrusage(RUSAGE_SELF, &used) == 0);
	return (long)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

int main(void) {
	pthread_t thread;
	char byte;
	long begin;
	long used;
	long slept;
	CHECK(pipe(told) == 0);
	CHECK(pthread_create(&thread, NULL, idle, NULL) == 0);
	CHECK(read(told[0], &byte, 1) == 1);
	usleep(200000);
	begin = cpu_ms();
	slept = sleeps();
	usleep(2000000);
	used = cpu_ms() - begin;
	slept = sleeps() - slept;
	printf("%ld ms of processor time in 2 s, %ld sleeps\n", used, slept);
	CHECK(used < 50);
	CHECK(slept < 100);
	CHECK(read(told[0], &byte, 1) == 1);
	CHECK(woken == 0);
	return finish();
}
