/* vfork, in which the parent sleeps on its child's memory. */
#include "watchful.h"

int main(void)
{
    ready();
    while (!told()) {
        int status;
        compute(0.003);
        volatile int mine = 1;
        pid_t child = vfork();
        if (child == 0) { mine = 2; compute(0.002); _exit(3); }
        if (child < 0 || mine != 2) fail("vfork");
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3) fail("waitpid");
    }
    puts("right");
    return 0;
}
