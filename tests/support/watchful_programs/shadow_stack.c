/* With a shadow stack, where there can be one. main() must not return: it began without. */
#include "watchful.h"

static uint64_t shadow(void)
{
    uint64_t at = 0;
    __asm__ volatile("rdsspq %0" : "+r"(at));
    return at;
}

static __attribute__((noinline)) uint64_t nest(unsigned depth)
{
    return depth == 0 ? 1 : 3 * nest(depth - 1) + 1;
}

int main(void)
{
    long refused;
    __asm__ volatile("syscall" /* arch_prctl(ARCH_SHSTK_ENABLE, ARCH_SHSTK_SHSTK) */
                     : "=a"(refused) : "0"(SYS_arch_prctl), "D"(0x5001), "S"(1)
                     : "rcx", "r11", "memory");
    errno = -(int)refused;
    if (refused) fail("skip shadow stack");
    uint64_t first = shadow(), sum = nest(500);
    ready();
    while (!told()) {
        for (int i = 0; i < 100; i++)
            if (nest(500) != sum) { puts("wrong sum"); fflush(stdout); _exit(1); }
        if (shadow() != first || first == 0) { puts("moved"); fflush(stdout); _exit(1); }
    }
    puts("right");
    fflush(stdout);
    _exit(0);
}
