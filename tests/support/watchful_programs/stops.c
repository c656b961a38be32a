/* Stops and continues are counted by its parent; argv[1]: how often it is stopped. */
#include "watchful.h"

static volatile int *continued, *is_over;
static void count(int n) { (void)n; ++*continued; }
int main(int argc, char **argv)
{
    (void)argc;
    int rounds = atoi(argv[1]), status;
    continued = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    is_over = continued + 1;
    pid_t child = fork();
    if (child == 0) {
        struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
        sigaction(SIGCONT, &action, NULL);
        while (!*is_over) { compute(0.001); getppid(); }  /* until the last one was waited for */
        _exit(9);
    }
    usleep(20000);
    printf("%d\n", (int)child);
    fflush(stdout);
    getchar();
    srand(7);
    for (int i = 0; i < rounds; i++) {
        kill(child, SIGSTOP);
        if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) fail("not stopped");
        if (WSTOPSIG(status) != SIGSTOP) fail("another signal");
        usleep((unsigned)rand() % 3000);
        if (waitpid(child, &status, WNOHANG | WUNTRACED | WCONTINUED) != 0) fail("twice");
        kill(child, SIGCONT);
        if (waitpid(child, &status, WCONTINUED) != child) fail("not continued");
        while (*continued <= i) usleep(100);
        usleep((unsigned)rand() % 3000);
    }
    *is_over = 1;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 9)
        fail("lost");
    puts(*continued == rounds ? "right" : "doubled");
    return 0;
}
