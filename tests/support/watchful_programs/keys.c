/* Memory with a protection key: what the key forbids faults, and nothing else does. */
#include "watchful.h"

#include <setjmp.h>

static sigjmp_buf back;
static volatile int codes[2];
static void fault(int n, siginfo_t *info, void *context)
{
    (void)n; (void)context;
    codes[info->si_code == SEGV_PKUERR]++;
    siglongjmp(back, 1);
}

int main(void)
{
    int key = pkey_alloc(0, 0);
    if (key < 0) fail("skip pkey_alloc");
    volatile char *page =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    if (pkey_mprotect((void *)page, 4096, PROT_READ | PROT_WRITE, key) < 0) fail("pkey_mprotect");
    ready();
    for (int round = 1; !told(); round++) {
        pkey_set(key, 0);
        for (int i = 0; i < 200000; i++) page[i % 4096] = (char)round;
        pkey_set(key, PKEY_DISABLE_WRITE);
        for (int i = 0; i < 200000; i++)
            if (page[i % 4096] != (char)round) { puts("other bytes"); return 1; }
        if (pkey_get(key) != PKEY_DISABLE_WRITE) { puts("other rights"); return 1; }
        if (sigsetjmp(back, 1) == 0) { page[0] = 1; puts("a store went through"); return 1; }
        pkey_set(key, PKEY_DISABLE_ACCESS);
        compute(0.001);
        if (pkey_get(key) != PKEY_DISABLE_ACCESS) { puts("other rights"); return 1; }
        if (sigsetjmp(back, 1) == 0) { sink += page[0]; puts("a load went through"); return 1; }
        if (codes[0] != 0 || codes[1] != 2 * round) { puts("other faults"); return 1; }
    }
    puts("right");
    return 0;
}
