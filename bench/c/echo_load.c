/*
 * Starts echo servers, and makes requests of one after the other: on each connection a message of 64 bytes is sent as soon as the one
 * before has come back. The figure is the processor time that a server takes for each, its own and the kernel's on its behalf.
 *
 * echo_load CONNECTIONS ROUNDS SERVER[:ARGUMENT]...
 *
 * What a request takes depends on what else the machine does, and changes within seconds. So the servers take turns of a fraction of a
 * second, in which the others are stopped; of the turns of each the median counts, and of the ratios to the first server in the same
 * round. Where there are two processors, the servers have one and this program the other.
 */

#define _GNU_SOURCE
#include "echo.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { MESSAGE = 64, SERVERS = 8, ROUNDS = 1000 };

/* Of a turn, in nanoseconds: what is not counted, and what is. */
#define WARM_UP 50e6
#define TURN 150e6

struct server {
    const char *name;
    pid_t process;
    int epoll;
    double costs[ROUNDS];
    double ratios[ROUNDS];
};

static void stay_on(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1) sched_setaffinity(0, sizeof set, &set);
}

/* Starts a server, which ends with us; its port is the first line that it prints. */
static pid_t start(char *command, int *port) {
    char *const colon = strchr(command, ':');
    if (colon) *colon = 0;
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
        execl(command, command, colon ? colon + 1 : NULL, (char *)NULL);
        perror(command);
        _exit(127);
    }
    close(ends[1]);
    FILE *output = fdopen(ends[0], "r");
    require(output && fgets(line, sizeof line, output), command);
    fclose(output);
    if (colon) *colon = ' ';
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
    static int received[1 << 16]; /* by descriptor */
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

/* Connects to a server, and makes the first requests. */
static void connect_to(struct server *server, char *command, int connections) {
    int port;
    server->process = start(command, &port);
    const char *slash = strrchr(command, '/');
    server->name = slash ? slash + 1 : command;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((unsigned short)port);
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    require(server->epoll >= 0, "epoll_create1");
    for (int i = 0; i < connections; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        require(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
        send_at_once(fd);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        require(epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
        send_message(fd);
    }
    ask(server->epoll, WARM_UP);
    kill(server->process, SIGSTOP);
}

/* One server's turn: nanoseconds for each request. */
static double turn(const struct server *server) {
    kill(server->process, SIGCONT);
    ask(server->epoll, WARM_UP);
    const double used = processor_time(server->process);
    const long answered = ask(server->epoll, TURN);
    const double each = (processor_time(server->process) - used) / (double)answered;
    kill(server->process, SIGSTOP);
    return each;
}

static int order(const void *one, const void *other) {
    const double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, order);
    return values[count / 2];
}

int main(int count, char **arguments) {
    static struct server servers[SERVERS];
    require(count >= 4 && count - 3 <= SERVERS, "echo_load CONNECTIONS ROUNDS SERVER[:ARGUMENT]...");
    const int connections = atoi(arguments[1]);
    const int rounds = atoi(arguments[2]);
    require(connections > 0 && connections < CONNECTIONS && rounds > 0 && rounds <= ROUNDS, "connections and rounds");
    allow_many_descriptors();
    stay_on(1);
    count -= 3;
    for (int i = 0; i < count; i++) connect_to(&servers[i], arguments[3 + i], connections);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < count; i++) {
            servers[i].costs[round] = turn(&servers[i]);
            servers[i].ratios[round] = servers[i].costs[round] / servers[0].costs[round];
        }
    for (int i = 0; i < count; i++) {
        char variant[64];
        snprintf(variant, sizeof variant, "%d connections", connections);
        figure(servers[i].name, "c_echo", variant, median(servers[i].costs, rounds), "ns");
        snprintf(variant, sizeof variant, "%d connections, ratio to the first", connections);
        figure(servers[i].name, "c_echo", variant, median(servers[i].ratios, rounds), "");
        kill(servers[i].process, SIGKILL);
        waitpid(servers[i].process, NULL, 0);
    }
    return 0;
}
