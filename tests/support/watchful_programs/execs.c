/* Executes itself argv[1] times. */
#include "watchful.h"

int main(int argc, char **argv)
{
    char left[16];
    int n = atoi(argv[1]);
    if (argc > 2) ready();
    compute(0.05 + 0.0007 * (n % 13));
    if (n == 0 || told()) { puts("right"); return 0; }
    snprintf(left, sizeof left, "%d", n - 1);
    execl("/proc/self/exe", argv[0], left, NULL);
    fail("exec");
}
