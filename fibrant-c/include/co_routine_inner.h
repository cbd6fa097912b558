/*
 * What programs reach for beyond co_routine.h: the environment of a thread. The fields of libco's structures are not offered.
 */

#ifndef FIBRANT_CO_ROUTINE_INNER_H
#define FIBRANT_CO_ROUTINE_INNER_H

#include "co_routine.h"
#include "coctx.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A thread's coroutines: which of them run, and its event loop. */
typedef struct stCoRoutineEnv_t stCoRoutineEnv_t;

/* Gives this thread its environment. Whatever needs one does this by itself; a second call changes nothing. */
void co_init_curr_thread_env(void);

/* The environment of this thread, made if there is none yet. */
struct stCoRoutineEnv_t *co_get_curr_thread_env(void);

/* Goes back to whoever resumed the coroutine that runs in env, which is this thread's. */
void co_yield_env(struct stCoRoutineEnv_t *env);

/* The same as co_release(). */
void co_free(struct stCoRoutine_t *co);

/* The same as co_self(). */
struct stCoRoutine_t *GetCurrThreadCo(void);

#ifdef __cplusplus
}
#endif

#endif
