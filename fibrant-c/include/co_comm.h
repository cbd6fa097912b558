/*
 * A lock for the coroutines of one thread, for C++. (Coroutines of different threads use a pthread_mutex_t.)
 */

#ifndef FIBRANT_CO_COMM_H
#define FIBRANT_CO_COMM_H

#include "co_routine.h"

#ifdef __cplusplus

/* Locks in the order of arrival. The two members are what objects that were compiled with libco's own header expect. */
class clsCoMutex {
public:
	clsCoMutex() : waiters_(co_cond_alloc()), holder_and_waiters_(0) {}
	/* A copy is a lock of its own that nobody has; what is assigned to stays the lock that it is. Containers ask for both. */
	clsCoMutex(const clsCoMutex &) : waiters_(co_cond_alloc()), holder_and_waiters_(0) {}
	clsCoMutex &operator=(const clsCoMutex &) { return *this; }
	~clsCoMutex() { co_cond_free(waiters_); }

	/* Waits until the lock is this coroutine's. Locking twice waits for ever. */
	void CoLock() {
		if (holder_and_waiters_++ > 0) {
			co_cond_timedwait(waiters_, -1);
		}
	}

	/* The lock is now the longest waiter's, if there is one: whoever comes later counts it, and waits behind it. */
	void CoUnLock() {
		--holder_and_waiters_;
		co_cond_signal(waiters_);
	}

private:
	stCoCond_t *waiters_;
	int holder_and_waiters_;
};

/* Holds the lock as long as it lives. */
class clsSmartLock {
public:
	clsSmartLock(clsCoMutex *mutex) : mutex_(mutex) { mutex_->CoLock(); }
	~clsSmartLock() { mutex_->CoUnLock(); }

private:
	clsCoMutex *mutex_;
};

#endif

#endif
