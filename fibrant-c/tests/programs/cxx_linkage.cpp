// An object as libco's older headers make them: every function has C++ linkage and a mangled name, and clsCoMutex is not inline.
// Nothing of our headers is included here.

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct stCoRoutine_t;
struct stShareStack_t;
struct stCoEpoll_t;
struct stCoCond_t;
struct stCoRoutineEnv_t;

struct stCoRoutineAttr_t {
	int stack_size;
	stShareStack_t *share_stack;
	stCoRoutineAttr_t() : stack_size(128 * 1024), share_stack(NULL) {}
} __attribute__((packed));

typedef int (*pfn_co_eventloop_t)(void *);

int co_create(stCoRoutine_t **co, const stCoRoutineAttr_t *attr, void *(*routine)(void *), void *arg);
void co_resume(stCoRoutine_t *co);
void co_yield(stCoRoutine_t *co);
void co_yield_ct();
void co_release(stCoRoutine_t *co);
void co_reset(stCoRoutine_t *co);
stCoRoutine_t *co_self();
stCoRoutine_t *co_get_current();
int co_poll(stCoEpoll_t *ctx, pollfd fds[], nfds_t nfds, int timeout_ms);
void co_eventloop(stCoEpoll_t *ctx, pfn_co_eventloop_t pfn, void *arg);
int co_setspecific(pthread_key_t key, const void *value);
void *co_getspecific(pthread_key_t key);
pthread_key_t co_specific_key(void (*destructor)(void *));
stCoEpoll_t *co_get_epoll_ct();
void co_enable_hook_sys();
void co_disable_hook_sys();
bool co_is_enable_sys_hook();
stCoCond_t *co_cond_alloc();
int co_cond_free(stCoCond_t *cond);
int co_cond_signal(stCoCond_t *cond);
int co_cond_broadcast(stCoCond_t *cond);
int co_cond_timedwait(stCoCond_t *cond, int timeout_ms);
int co_cond_wait_result(stCoCond_t *cond, int timeout_ms);
stShareStack_t *co_alloc_sharestack(int count, int stack_size);
void co_free_sharestack(stShareStack_t *share_stack);
void co_set_env_list(const char *name[], size_t cnt);
void co_log_err(const char *fmt, ...);
int co_accept(int fd, sockaddr *addr, socklen_t *len);
void co_init_curr_thread_env();
stCoRoutineEnv_t *co_get_curr_thread_env();
void co_free(stCoRoutine_t *co);
void co_yield_env(stCoRoutineEnv_t *env);
stCoRoutine_t *GetCurrThreadCo();

class clsCoMutex {
public:
	clsCoMutex();
	~clsCoMutex();
	void CoLock();
	void CoUnLock();

private:
	stCoCond_t *cond;
	int count;
};

// The constructor and the destructor of a base have names of their own.
class Derived : public clsCoMutex {
public:
	Derived() : extra(1) {}
	int extra;
};

#define CHECK(condition)                                                                           \
	do {                                                                                           \
		if (!(condition)) {                                                                        \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
			exit(1);                                                                               \
		}                                                                                          \
	} while (0)

static stCoCond_t *cond;
static pthread_key_t key;
static Derived *mutex;
static int inside;
static int done;
static int turns;

static int until_done(void *arg) {
	return ++turns > 20000 || done >= *static_cast<int *>(arg) ? -1 : 0;
}

static void *routine(void *arg) {
	CHECK(!co_is_enable_sys_hook());
	co_enable_hook_sys();
	CHECK(co_is_enable_sys_hook());
	CHECK(co_self() == *static_cast<stCoRoutine_t **>(arg));
	CHECK(co_self() == GetCurrThreadCo());
	CHECK(co_self() == co_get_current());
	CHECK(co_getspecific(key) == NULL);
	CHECK(co_setspecific(key, arg) == 0);
	co_yield(co_self());
	co_yield_env(co_get_curr_thread_env());
	co_yield_ct();
	CHECK(co_getspecific(key) == arg);
	CHECK(getenv("COLOUR") == NULL);
	CHECK(setenv("COLOUR", "red", 1) == 0);
	co_cond_timedwait(cond, -1);
	CHECK(co_cond_wait_result(cond, 1) == ETIMEDOUT);
	mutex->CoLock();
	CHECK(++inside == 1);
	poll(NULL, 0, 2);
	CHECK(--inside == 0);
	mutex->CoUnLock();
	CHECK(co_poll(co_get_epoll_ct(), NULL, 0, 1) == 0);
	CHECK(co_accept(-1, NULL, NULL) == -1);
	co_disable_hook_sys();
	done++;
	return NULL;
}

int main() {
	const char *names[] = {"COLOUR"};
	co_init_curr_thread_env();
	co_set_env_list(names, 1);
	co_log_err("%s %d", "nothing", 1);
	key = co_specific_key(NULL);
	cond = co_cond_alloc();
	mutex = new Derived;
	{
		clsCoMutex plain;
		plain.CoLock();
		plain.CoUnLock();
	}

	stCoRoutineAttr_t attr;
	attr.share_stack = co_alloc_sharestack(1, 128 * 1024);
	stCoRoutine_t *co[3];
	CHECK(co_create(&co[0], NULL, routine, &co[0]) == 0);
	CHECK(co_create(&co[1], &attr, routine, &co[1]) == 0);
	CHECK(co_create(&co[2], &attr, routine, &co[2]) == 0);
	co_resume(co[0]);
	co_reset(co[0]);
	co_setspecific(key, NULL);
	co_release(co[0]);
	CHECK(co_create(&co[0], NULL, routine, &co[0]) == 0);
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 3; i++) {
			co_resume(co[i]);
		}
	}
	co_cond_signal(cond);
	co_cond_broadcast(cond);
	int wanted = 3;
	co_eventloop(co_get_epoll_ct(), until_done, &wanted);
	CHECK(done == 3);
	co_release(co[0]);
	co_release(co[1]);
	co_free(co[2]);
	co_free_sharestack(attr.share_stack);
	delete mutex;
	CHECK(co_cond_free(cond) == 0);
	puts("ok");
	return 0;
}
