/* When it is told to, a thread ends the process while the first one computes; argv[1]: or has
 * ended before. */
#include "watchful.h"

static void *work(void *unused)
{
    (void)unused;
    while (!told()) compute(0.001);
    compute(0.01 + 0.001 * (getpid() % 37));
    _exit(7);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    (void)argc;
    pthread_create(&thread, NULL, work, NULL);
    ready();
    while (!told()) compute(0.001);
    if (atoi(argv[1])) syscall(SYS_exit, 0);
    compute(3600);
}
