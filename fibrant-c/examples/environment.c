/*
 * An environment for each coroutine: how a program written for CGI, which finds its request in environment variables, serves
 * several requests at a time.
 */

#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>

#include "co_routine.h"

#define REQUESTS 3

static int ended;

/* The old program: it knows nothing of coroutines. */
static void cgi_main(void) {
	poll(NULL, 0, 10);
	printf("query: %s\n", getenv("QUERY_STRING"));
}

static void *handle(void *arg) {
	char query[32];
	/* With the hooks on, the listed variables are the coroutine's own, and unset at first. */
	co_enable_hook_sys();
	snprintf(query, sizeof(query), "id=%d", (int)(intptr_t)arg);
	setenv("QUERY_STRING", query, 1);
	cgi_main();
	ended++;
	return NULL;
}

static int all_ended(void *arg) {
	(void)arg;
	return ended == REQUESTS ? -1 : 0;
}

int main(void) {
	const char *names[] = {"QUERY_STRING", "REQUEST_METHOD"};
	struct stCoRoutine_t *co[REQUESTS];
	int i;

	co_set_env_list(names, sizeof(names) / sizeof(names[0]));
	for (i = 0; i < REQUESTS; i++) {
		co_create(&co[i], NULL, handle, (void *)(intptr_t)i);
		co_resume(co[i]);
	}
	co_eventloop(co_get_epoll_ct(), all_ended, NULL);
	for (i = 0; i < REQUESTS; i++) {
		co_release(co[i]);
	}
	printf("the process's own: %s\n", getenv("QUERY_STRING") == NULL ? "unset" : "set");
	return 0;
}
