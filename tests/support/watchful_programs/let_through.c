/* A signal that is only let through by the wait must end it. Another process sends the next one as
 * soon as the last one has been taken, so that it comes at any moment of the next wait. */
#include "watchful.h"

static volatile struct { volatile int handled, taken; } *shared;
static void take(int n) { (void)n; shared->handled++; }
int main(void)
{
    struct epoll_event event;
    int poller = epoll_create1(0);
    pid_t parent = getpid();
    sigset_t blocked, none;
    struct sigaction action = {.sa_handler = take, .sa_flags = SA_RESTART};
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int sent = 0; getppid() == parent; sent++) {
            while (shared->taken < sent) sched_yield();
            for (volatile int i = sent * 7919 % 100000; i > 0; i--) {}
            kill(parent, SIGUSR1);
        }
        _exit(0);
    }
    ready();
    while (!told()) {
        int got = epoll_pwait(poller, &event, 1, 3000, &none);
        if (shared->handled == shared->taken) continue; /* none came for so long */
        if (got != -1 || errno != EINTR) { printf("%d after a signal\n", got); return 1; }
        shared->taken++;
    }
    puts("right");
    return 0;
}
