/* The hooks are a coroutine's own, and off at first: a call that would block then blocks the whole thread. */

#include "check.h"

static struct story story;
static int done;

static void *without(void *arg) {
	(void)arg;
	CHECK(!co_is_enable_sys_hook());
	poll(NULL, 0, 10);
	note(&story, 'a');
	co_enable_hook_sys();
	CHECK(co_is_enable_sys_hook());
	poll(NULL, 0, 10);
	note(&story, 'd');
	co_disable_hook_sys();
	CHECK(!co_is_enable_sys_hook());
	poll(NULL, 0, 1);
	note(&story, 'e');
	done++;
	return NULL;
}

static void *other(void *arg) {
	(void)arg;
	CHECK(!co_is_enable_sys_hook());
	note(&story, 'c');
	done++;
	return NULL;
}

/* Calls block the thread again once the hooks are off: the resumer gets it back at the end only. */
static void *turned_off(void *arg) {
	(void)arg;
	co_enable_hook_sys();
	co_disable_hook_sys();
	poll(NULL, 0, 5);
	done++;
	return NULL;
}

/* A wait that needs no hooks does not turn them on, and one that turned them on for itself turns them off. */
static void *waits_without(void *arg) {
	struct stCoCond_t *cond = (struct stCoCond_t *)arg;
	CHECK(co_cond_timedwait(cond, -1) == 0);
	poll(NULL, 0, 5);
	note(&story, 'f');
	CHECK(co_poll(co_get_epoll_ct(), NULL, 0, 20000) == 0);
	poll(NULL, 0, 5);
	note(&story, 'g');
	done++;
	return NULL;
}

/* Datagrams between two coroutines; and a receiver that has a time limit. */
static int udp[2];
static struct sockaddr_in addresses[2];

static void *open_udp(int i) {
	socklen_t length = sizeof(addresses[i]);
	udp[i] = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK(udp[i] >= 0);
	addresses[i].sin_family = AF_INET;
	addresses[i].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(udp[i], (struct sockaddr *)&addresses[i], sizeof(addresses[i])) == 0);
	CHECK(getsockname(udp[i], (struct sockaddr *)&addresses[i], &length) == 0);
	return NULL;
}

static void *asks(void *arg) {
	char answer[16] = "";
	struct sockaddr_in from;
	socklen_t length = sizeof(from);
	struct timeval limit;
	long begin;
	(void)arg;
	co_enable_hook_sys();
	open_udp(0);
	while (addresses[1].sin_port == 0) {
		poll(NULL, 0, 1);
	}
	CHECK(sendto(udp[0], "question", 8, 0, (struct sockaddr *)&addresses[1], sizeof(addresses[1])) == 8);
	CHECK(recvfrom(udp[0], answer, sizeof(answer), 0, (struct sockaddr *)&from, &length) == 6);
	CHECK(memcmp(answer, "answer", 6) == 0);
	CHECK(from.sin_port == addresses[1].sin_port);

	limit.tv_sec = 0;
	limit.tv_usec = 40000;
	CHECK(setsockopt(udp[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	begin = now_ms();
	CHECK(recvfrom(udp[0], answer, sizeof(answer), 0, NULL, NULL) == -1);
	CHECK(errno == EAGAIN);
	CHECK(now_ms() - begin >= 39);
	close(udp[0]);
	done++;
	return NULL;
}

static void *answers(void *arg) {
	char question[16] = "";
	struct sockaddr_in from;
	socklen_t length = sizeof(from);
	(void)arg;
	co_enable_hook_sys();
	open_udp(1);
	CHECK(recvfrom(udp[1], question, sizeof(question), 0, (struct sockaddr *)&from, &length) == 8);
	CHECK(sendto(udp[1], "answer", 6, 0, (struct sockaddr *)&from, length) == 6);
	close(udp[1]);
	done++;
	return NULL;
}

int main(void) {
	struct stCoRoutine_t *co[2];
	struct stCoCond_t *cond;
	CHECK(!co_is_enable_sys_hook());
	co[0] = start(without, NULL);
	/* It came back only from its second sleep. */
	CHECK_STORY(story, "a");
	CHECK(!co_is_enable_sys_hook());
	co[1] = start(other, NULL);
	loop_until(&done, 2);
	CHECK_STORY(story, "acde");
	co_release(co[0]);
	co_release(co[1]);

	done = 0;
	co[0] = start(turned_off, NULL);
	CHECK(done == 1);
	co_release(co[0]);

	done = 0;
	memset(&story, 0, sizeof(story));
	cond = co_cond_alloc();
	co[0] = start(waits_without, cond);
	CHECK_STORY(story, "");
	co_resume(co[0]);
	CHECK_STORY(story, "f");
	co_resume(co[0]);
	CHECK_STORY(story, "fg");
	CHECK(done == 1);
	co_release(co[0]);
	co_cond_free(cond);

	done = 0;
	co[0] = start(answers, NULL);
	co[1] = start(asks, NULL);
	loop_until(&done, 2);
	co_release(co[0]);
	co_release(co[1]);
	return finish();
}
