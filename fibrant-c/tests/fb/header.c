/* The header needs nothing before it, may come twice, and its initialisers are fine with every warning, in C and in C++. */
#include <fibrant.h>
#include <fibrant.h>

int use_all(void);
int use_all(void) {
    fb_runtime_options options = FB_RUNTIME_OPTIONS_INIT;
    fb_attr attr = FB_ATTR_INIT;
    fb_case cases[] = {{FB_RECV, 0, NULL, NULL}, {FB_SEND, 0, NULL, NULL}};
    fb_duration time = FB_FOREVER + FB_NS(1) + FB_US(1) + FB_MS(1) + FB_S(1);
    size_t capacity = FB_UNBOUNDED;
    void *result = FB_CANCELED;
    return (int)options.size + attr.worker + cases[0].result + (int)time + (int)capacity + (result != NULL);
}
