/* A CGI program's environment for each coroutine: the listed names only, and nothing of it reaches the process. */

#include "check.h"

static const char *names[] = {"QUERY_STRING", "CGINAME", NULL, "", "CGINAME"};
static const char *ignored[] = {"PLAIN"};
static int done;

static void *cgi(void *arg) {
	int id = *(const int *)arg;
	char value[32];
	char mine[32];

	/* Until the hooks are on, it is the process's. */
	CHECK(strcmp(getenv("CGINAME"), "process") == 0);
	co_enable_hook_sys();
	CHECK(getenv("CGINAME") == NULL);

	snprintf(mine, sizeof(mine), "routine %d", id);
	poll(NULL, 0, 2);
	CHECK(setenv("CGINAME", mine, 1) == 0);
	poll(NULL, 0, 5 + id);
	CHECK(strcmp(getenv("CGINAME"), mine) == 0);

	CHECK(setenv("CGINAME", "no", 0) == 0);
	CHECK(strcmp(getenv("CGINAME"), mine) == 0);
	snprintf(value, sizeof(value), "query %d", id);
	CHECK(setenv("QUERY_STRING", value, 0) == 0);
	CHECK(strcmp(getenv("QUERY_STRING"), value) == 0);
	CHECK(setenv("QUERY_STRING", "", 1) == 0);
	CHECK(strcmp(getenv("QUERY_STRING"), "") == 0);
	CHECK(unsetenv("QUERY_STRING") == 0);
	CHECK(getenv("QUERY_STRING") == NULL);

	/* Other names are everybody's. */
	CHECK(getenv("PLAIN") != NULL);
	CHECK(setenv("PLAIN", "changed", 1) == 0);

	co_disable_hook_sys();
	CHECK(strcmp(getenv("CGINAME"), "process") == 0);
	co_enable_hook_sys();
	CHECK(strcmp(getenv("CGINAME"), mine) == 0);
	done++;
	return NULL;
}

int main(void) {
	static const int ids[3] = {0, 1, 2};
	struct stCoRoutine_t *co[3];
	int i;
	CHECK(setenv("CGINAME", "process", 1) == 0);
	CHECK(setenv("PLAIN", "before", 1) == 0);
	co_set_env_list(names, sizeof(names) / sizeof(names[0]));
	/* The first list is the list. */
	co_set_env_list(ignored, 1);
	for (i = 0; i < 3; i++) {
		co[i] = start(cgi, (void *)(uintptr_t)&ids[i]);
	}
	loop_until(&done, 3);
	CHECK(strcmp(getenv("CGINAME"), "process") == 0);
	CHECK(strcmp(getenv("PLAIN"), "changed") == 0);
	CHECK(getenv("QUERY_STRING") == NULL);
	for (i = 0; i < 3; i++) {
		co_release(co[i]);
	}
	return finish();
}
