/*
 * Starts an echo server, and makes requests of it: on each of its connections a message of 64 bytes is sent as soon as the one before has
 * come back. The figure is the processor time that the server takes for each, its own and the kernel's on its behalf.
 *
 * echo_load CONNECTIONS SECONDS SERVER [ARGUMENT...]
 *
 * Where there are two processors, each of the two has one of its own. The connecting and the first half second are not counted.
 */

#define _GNU_SOURCE
#include "echo.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { MESSAGE = 64, WARM_UP = 500000000 };

static void stay_on(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1) sched_setaffinity(0, sizeof set, &set);
}

/* Starts the server, which ends with us; its port is the first line that it prints. */
static pid_t start(char **command, int *port) {
    int ends[2];
    char line[32] = "";
    require(pipe(ends) == 0, "pipe");
    const pid_t child = fork();
    require(child >= 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        stay_on(0);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execv(command[0], command);
        perror(command[0]);
        _exit(127);
    }
    close(ends[1]);
    FILE *output = fdopen(ends[0], "r");
    require(output && fgets(line, sizeof line, output), command[0]);
    fclose(output);
    *port = atoi(line);
    return child;
}

static double processor_time(pid_t process) {
    clockid_t clock;
    struct timespec time;
    require(clock_getcpuclockid(process, &clock) == 0 && clock_gettime(clock, &time) == 0, "the server's clock");
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void send_message(int fd) {
    static const char message[MESSAGE] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    require(write(fd, message, MESSAGE) == MESSAGE, "write");
}

/* Makes requests for so long; how many were answered. */
static long ask(int epoll, double time) {
    static struct epoll_event events[CONNECTIONS];
    static int received[1 << 16];
    char buffer[LARGEST];
    long answered = 0;
    for (double end = nanoseconds() + time; nanoseconds() < end;) {
        const int count = epoll_wait(epoll, events, CONNECTIONS, 1000);
        require(count > 0, "no answer");
        for (int i = 0; i < count; i++) {
            const int fd = events[i].data.fd;
            const ssize_t got = read(fd, buffer, sizeof buffer);
            require(got > 0, "the server hung up");
            received[fd] += (int)got;
            if (received[fd] == MESSAGE) {
                received[fd] = 0;
                answered++;
                send_message(fd);
            }
        }
    }
    return answered;
}

int main(int count, char **arguments) {
    require(count >= 4, "echo_load CONNECTIONS SECONDS SERVER [ARGUMENT...]");
    const int connections = atoi(arguments[1]);
    const double seconds = atof(arguments[2]);
    require(connections > 0 && connections < CONNECTIONS && seconds > 0, "connections and seconds");
    allow_many_descriptors();
    stay_on(1);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int port;
    const pid_t server = start(&arguments[3], &port);
    address.sin_port = htons((unsigned short)port);
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    require(epoll >= 0, "epoll_create1");
    for (int i = 0; i < connections; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        require(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
        send_at_once(fd);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        require(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
        send_message(fd);
    }
    ask(epoll, WARM_UP);
    const double start_time = nanoseconds();
    const double used = processor_time(server);
    const long answered = ask(epoll, seconds * 1e9);
    const double each = (processor_time(server) - used) / (double)answered;
    const double elapsed = nanoseconds() - start_time;
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);

    char name[64];
    char variant[64];
    const char *slash = strrchr(arguments[3], '/');
    snprintf(name, sizeof name, "%s%s%s", slash ? slash + 1 : arguments[3], count > 4 ? " " : "", count > 4 ? arguments[4] : "");
    snprintf(variant, sizeof variant, "%d connections", connections);
    figure(name, "c_echo", variant, each, "ns");
    snprintf(variant, sizeof variant, "%d connections, requests a second", connections);
    figure(name, "c_echo", variant, (double)answered * 1e9 / elapsed, "/s");
    return 0;
}
