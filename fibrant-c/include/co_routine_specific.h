/*
 * Variables of which every coroutine has its own.
 *
 *     struct Request { int id; char user[32]; };
 *     CO_ROUTINE_SPECIFIC(Request, request);          at file scope
 *
 *     request->id = 7;                                 C++
 *     request()->id = 7;                               C, where `request` is a function that returns the pointer
 *
 * A coroutine's variable is made when it first uses it, all zero (in C++, then constructed without arguments, if it can be), and is destroyed
 * and freed when the coroutine ends. The main routine's lasts as long as its thread.
 */

#ifndef FIBRANT_CO_ROUTINE_SPECIFIC_H
#define FIBRANT_CO_ROUTINE_SPECIFIC_H

#include <pthread.h>
#include <stdlib.h>

#include "co_routine.h"

#ifdef __cplusplus

#include <new>
#include <type_traits>

namespace fibrant_libco {

/* The variable that CO_ROUTINE_SPECIFIC defines. Its state is static, so that it can be used before any constructor has run. */
template <class T, class Tag>
class RoutineSpecific {
public:
	T *operator->() const { return get(); }
	T &operator*() const { return *get(); }

	/* This coroutine's variable; NULL only if there is no memory for it. */
	T *get() const {
		pthread_once(&once_, make_key);
		void *place = co_getspecific(key_);
		if (place == NULL) {
			place = make();
		}
		return static_cast<T *>(place);
	}

private:
	static void *make() {
		/* Zeroed first: the members that a constructor leaves alone have always been zero here. */
		void *place = calloc(1, sizeof(T));
		if (place == NULL) {
			return NULL;
		}
		T *value = construct(place, std::is_default_constructible<T>());
		if (co_setspecific(key_, value) != 0) {
			destroy(value);
			return NULL;
		}
		return value;
	}

	static void destroy(void *place) {
		destruct(static_cast<T *>(place), std::is_destructible<T>());
		free(place);
	}

	static T *construct(void *place, std::true_type) { return ::new (place) T(); }
	/* One that cannot be made without arguments is all zero. */
	static T *construct(void *place, std::false_type) { return static_cast<T *>(place); }
	static void destruct(T *value, std::true_type) { value->~T(); }
	static void destruct(T *, std::false_type) {}

	static void make_key() { key_ = co_specific_key(destroy); }

	static pthread_once_t once_;
	static pthread_key_t key_;
};

template <class T, class Tag>
pthread_once_t RoutineSpecific<T, Tag>::once_ = PTHREAD_ONCE_INIT;

template <class T, class Tag>
pthread_key_t RoutineSpecific<T, Tag>::key_;

} /* namespace fibrant_libco */

/* The tag is without a linkage of its own, so that two files may use one name for two variables. */
#define CO_ROUTINE_SPECIFIC(type, name)                                                            \
	namespace {                                                                                    \
	struct fibrant_specific_##name {};                                                             \
	}                                                                                              \
	__attribute__((unused)) static ::fibrant_libco::RoutineSpecific<type, fibrant_specific_##name> name;

#else

/* The last line wants the semicolon that follows the macro. */
#define CO_ROUTINE_SPECIFIC(type, name)                                                            \
	static pthread_once_t fibrant_specific_once_##name = PTHREAD_ONCE_INIT;                        \
	static pthread_key_t fibrant_specific_key_##name;                                              \
	static void fibrant_specific_make_##name(void) {                                               \
		fibrant_specific_key_##name = co_specific_key(free);                                       \
	}                                                                                              \
	__attribute__((unused)) static type *name(void) {                                              \
		pthread_once(&fibrant_specific_once_##name, fibrant_specific_make_##name);                 \
		void *fibrant_value = co_getspecific(fibrant_specific_key_##name);                         \
		if (fibrant_value == NULL) {                                                               \
			fibrant_value = calloc(1, sizeof(type));                                               \
			if (fibrant_value && co_setspecific(fibrant_specific_key_##name, fibrant_value)) {     \
				free(fibrant_value);                                                               \
				fibrant_value = NULL;                                                              \
			}                                                                                      \
		}                                                                                          \
		return (type *)fibrant_value;                                                              \
	}                                                                                              \
	struct fibrant_specific_end_##name

#endif

#endif
