/* argv[1]: milliseconds to compute between waits; argv[2]: which wait, of WAIT_KINDS; argv[3]: how
 * many milliseconds of it. */
#include "watchful.h"

int main(int argc, char **argv)
{
    (void)argc;
    double busy = 1e-3 * atof(argv[1]);
    int kind = atoi(argv[2]), pipes[2], futex = 0, poller = epoll_create1(0);
    int milliseconds = atoi(argv[3]);
    const struct timespec wait = {0, milliseconds * 1000000L};
    char c;
    if (pipe(pipes) < 0) fail("pipe");
    struct itimerval none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &none, NULL);
    ready();
    for (int round = 0; round % 8 || !told(); round++) { /* most of its calls are waits */
        double began = now();
        long got = 0;
        struct pollfd p = {pipes[0], POLLIN, 0};
        struct epoll_event event;
        switch (kind) {
        case 0: got = epoll_wait(poller, &event, 1, milliseconds); break;
        case 1: got = nanosleep(&wait, NULL); break;
        case 2: got = poll(&p, 1, milliseconds); break;
        case 3: got = syscall(SYS_futex, &futex, FUTEX_WAIT, 0, &wait, NULL, 0);
                if (got < 0 && errno == ETIMEDOUT) got = 0;
                break;
        case 4: if (fork() == 0) { nanosleep(&wait, NULL); _exit(write(pipes[1], "x", 1) != 1); }
                if (read(pipes[0], &c, 1) != 1) fail("read");
                if (wait4(-1, NULL, 0, NULL) < 0) fail("wait");
                break;
        default: got = clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, NULL);
                 if (got) { errno = (int)got; got = -1; }
        }
        if (got != 0) fail("interrupted");
        double took = now() - began;
        if (took < 1e-3 * milliseconds - 1e-4) { printf("cut short: %f\n", took); return 1; }
        if (busy > 0) compute(busy);
    }
    puts("right");
    return 0;
}
