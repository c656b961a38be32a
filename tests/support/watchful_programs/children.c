/* Whose children end: each is collected by it, and it hears of each once. */
#include "watchful.h"

static volatile sig_atomic_t seen;
static void count(int n) { (void)n; seen++; }
int main(void)
{
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGCHLD, &action, NULL);
    ready();
    while (!told()) {
        int before = seen, status;
        pid_t child = fork();
        if (child == 0) { compute(0.005); _exit(7); }
        compute(0.03);
        pid_t got = waitpid(-1, &status, 0);
        if (got != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
            fail("a child not ours");
        if (waitpid(-1, &status, 0) != -1 || errno != ECHILD) fail("another child");
        if (seen != before + 1) { printf("%d signals\n", seen - before); return 1; }
    }
    puts("right");
    return 0;
}
