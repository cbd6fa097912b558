/* A library whose constructor sleeps, and says whether somebody came in meanwhile. */

#include <time.h>

static __thread int local = 42;
int constructed;

__attribute__((constructor)) static void construct(void)
{
    struct timespec time = {0, 50 * 1000 * 1000};
    nanosleep(&time, 0);
    constructed = local;
}

int is_constructed(void)
{
    return constructed == 42 && local == 42;
}
