/*
 * Nothing: how a coroutine's registers are kept is the library's own business. The file is here for programs that include it, and
 * for what they used to get with it.
 */

#ifndef FIBRANT_COCTX_H
#define FIBRANT_COCTX_H

#include <stdlib.h>

#endif
