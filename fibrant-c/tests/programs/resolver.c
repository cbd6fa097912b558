/* Names are looked up by several coroutines, each with its own result. */

#include "check.h"

#include <netdb.h>

static int done;
static struct hostent *results[3];

static void *lookup(void *arg) {
	int id = (int)(intptr_t)arg;
	struct hostent *host;
	co_enable_hook_sys();
	host = gethostbyname(id == 1 ? "127.0.0.2" : "localhost");
	CHECK(host != NULL);
	CHECK(host->h_addrtype == AF_INET && host->h_length == 4);
	results[id] = host;
	poll(NULL, 0, 5);
	/* Nobody else's look-up has changed it. */
	CHECK(host->h_addr_list[0][0] == 127);
	CHECK(host->h_addr_list[0][3] == (id == 1 ? 2 : 1));
	{
		struct hostent own;
		struct hostent *answer = NULL;
		char buffer[2048];
		int error = 0;
		CHECK(gethostbyname_r("127.0.0.3", &own, buffer, sizeof(buffer), &answer, &error) == 0);
		CHECK(answer == &own);
		CHECK(own.h_addr_list[0][3] == 3);
	}
	{
		struct addrinfo *list = NULL;
		struct addrinfo hints;
		memset(&hints, 0, sizeof(hints));
		hints.ai_family = AF_INET;
		hints.ai_socktype = SOCK_STREAM;
		CHECK(getaddrinfo("localhost", "80", &hints, &list) == 0);
		CHECK(list != NULL && list->ai_family == AF_INET);
		freeaddrinfo(list);
	}
	done++;
	return NULL;
}

int main(void) {
	struct stCoRoutine_t *co[3];
	int i;
	for (i = 0; i < 3; i++) {
		co[i] = start(lookup, (void *)(intptr_t)i);
	}
	loop_until(&done, 3);
	CHECK(results[0] != results[1] && results[1] != results[2] && results[0] != results[2]);
	for (i = 0; i < 3; i++) {
		co_release(co[i]);
	}
	return finish();
}
