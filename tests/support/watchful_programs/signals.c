/* A timer that ticks, and faults that are handled on a stack of their own. */
#include "watchful.h"

static volatile long ticks, faults, wrong;
static char *page, *low, *high;
static void tick(int n) { (void)n; ticks++; }
static void fault(int n, siginfo_t *info, void *context)
{
    (void)n; (void)context;
    char here;
    if (&here < low || &here > high || info->si_addr != page) wrong++;
    faults++;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

int main(void)
{
    size_t size = 1 << 16;
    low = malloc(size); high = low + size;
    stack_t alternate = {.ss_sp = low, .ss_size = size};
    if (sigaltstack(&alternate, NULL) < 0) fail("sigaltstack");
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct sigaction trap = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &trap, NULL);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &every, NULL);
    ready();
    uint64_t first = 0;
    for (long i = 1; !told() || ticks <= 100; i++) {
        uint64_t h = 1;
        for (int n = 0; n < 300000; n++) { h = (h ^ (uint64_t)n) * 0x9e3779b97f4a7c15u; sink = h; }
        if (first && h != first) { puts("wrong sum"); return 1; }
        first = h;
        *page = 1;
        if (faults != i) { printf("%ld faults of %ld\n", faults, i); return 1; }
        mprotect(page, 4096, PROT_NONE);
    }
    stack_t after;
    sigaltstack(NULL, &after);
    if (wrong || after.ss_sp != low || after.ss_size != size || after.ss_flags != 0) {
        puts("wrong stack");
        return 1;
    }
    puts("right");
    return 0;
}
