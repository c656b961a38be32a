/* Tells libFuzzer which code of ours ran, for gcc: it calls one function at every branch
 * (-fsanitize-coverage=trace-pc), where libFuzzer wants clang's counters. Linked into the core. */
#include <stdint.h>

/* Of libFuzzer. Without it (as in meson's trial of the compiler) there is nobody to tell. */
__attribute__((weak)) void __sanitizer_cov_8bit_counters_init(uint8_t *first, uint8_t *end);
__attribute__((weak)) void __sanitizer_cov_pcs_init(const uintptr_t *first, const uintptr_t *end);

enum { COUNTERS = 1 << 16 };

static uint8_t counters[COUNTERS];
static uintptr_t places[COUNTERS][2]; /* of each counter: where it is, and flags */

__attribute__((constructor)) static void
announce(void)
{
    if (!__sanitizer_cov_8bit_counters_init || !__sanitizer_cov_pcs_init)
        return;
    __sanitizer_cov_8bit_counters_init(counters, counters + COUNTERS);
    __sanitizer_cov_pcs_init(places[0], places[COUNTERS]);
}

/* Hidden, or libFuzzer's own one, which does nothing, would come first. */
__attribute__((visibility("hidden"))) void
__sanitizer_cov_trace_pc(void)
{
    uint8_t *counter = &counters[(uintptr_t)__builtin_return_address(0) % COUNTERS];
    *counter += *counter < UINT8_MAX;
}

/* Comparisons of integers are libFuzzer's; of others it has none. */
__attribute__((visibility("hidden"))) void
__sanitizer_cov_trace_cmpf(float a, float b)
{
    (void)a, (void)b;
}

__attribute__((visibility("hidden"))) void
__sanitizer_cov_trace_cmpd(double a, double b)
{
    (void)a, (void)b;
}
