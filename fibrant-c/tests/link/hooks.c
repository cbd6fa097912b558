/* A program that does nothing but call what is hooked, from two threads. `cargo xtask test` links it with what it has packed, in every
 * way, and looks whose functions it has. */
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int ends[2];

static void *send_late(void *text)
{
    poll(NULL, 0, 10);
    return write(ends[1], text, strlen(text)) < 0 ? NULL : text;
}

int main(void)
{
    char text[] = "late", received[sizeof text] = "";
    void *sent = NULL;
    struct addrinfo *names = NULL;
    pthread_t thread;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || pthread_create(&thread, NULL, send_late, text) != 0)
        return 1;
    if (read(ends[0], received, sizeof received) != (ssize_t)strlen(text) || strcmp(text, received) != 0)
        return 2;
    if (pthread_join(thread, &sent) != 0 || sent != text)
        return 3;
    if (getaddrinfo("127.0.0.1", "80", NULL, &names) != 0)
        return 4;
    freeaddrinfo(names);
    puts(received);
    return 0;
}
