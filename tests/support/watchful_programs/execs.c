/* Executes itself argv[1] times, after some argv[2] seconds each time. */
#include "watchful.h"

int main(int argc, char **argv)
{
    char left[16];
    int n = atoi(argv[1]);
    if (argc > 3) ready();
    compute(atof(argv[2]) + 0.0007 * (n % 13));
    if (n == 0 || told()) { puts("right"); return 0; }
    snprintf(left, sizeof left, "%d", n - 1);
    execl("/proc/self/exe", argv[0], left, argv[2], NULL);
    fail("exec");
}
