/* Parent and child increment their own counters in shared memory; only they may. */
#include "watchful.h"

int main(void)
{
    volatile long *page =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        for (long n = 0; page[16] == 0;) {
            long at = page[8];
            if (at < n) { page[9] = 1; break; }
            n = at;
        }
        _exit(0);
    }
    ready();
    for (long n = 0; !told();) {
        for (int i = 0; i < 1000; i++) {
            long at = page[8];
            if (at != n) { printf("%ld became %ld\n", n, at); return 1; }
            page[8] = ++n;
        }
        for (int i = 0; i < 3000; i++) sink += (uint64_t)i;
    }
    page[16] = 1;
    waitpid(child, NULL, 0);
    puts(page[9] ? "went back" : "right");
    return 0;
}
