/* Thread-locals with values other than zero and with zero, as the compiler's options say they are to be reached. */

#include <string.h>

#ifndef START
#define START 12345
#endif

static __thread long number = START;
static __thread char text[16] = "initial";
static __thread long zero[2];

#ifdef ALIGNED
__thread char aligned[16] __attribute__((aligned(ALIGNED))) = "aligned";
#endif

int are_initial(void)
{
    return number == START && strcmp(text, "initial") == 0 && zero[0] == 0 && zero[1] == 0;
}

void soil(long value)
{
    number = value;
    memset(text, 'a' + value % 26, sizeof text);
    zero[0] = zero[1] = -value;
}

int are_soiled(long value)
{
    return number == value && text[0] == 'a' + value % 26 && text[15] == text[0] && zero[0] == -value && zero[1] == -value;
}
