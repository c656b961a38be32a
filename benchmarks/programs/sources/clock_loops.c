/* Loops whose accesses follow from their registers, for benchmarks/clock_loops.py and the tests.
 *
 * usage: clock_loops KIND BYTES FILE
 *
 *   KIND   stream: loads through an array, one after the other
 *          chase:  each load yields the address of the next one, a random cycle of lines
 *          rows:   20,000 loads, then one store, and again
 *          mixed:  a random number of loads of an array, a quarter as many of a chase, one store
 *   FILE   is made 4096 bytes long: see struct shared
 *
 * Prints the addresses of its labels, its array and the file's mapping, a line each, and runs until
 * it is killed. Loops touch no memory but what is said here, and keep their state in registers. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 64, ROW = 20000 };

/* What was done so far; odd versions are being written. */
struct shared {
    volatile uint64_t version, accesses, cpu_ns;
};

static uint64_t random_next(uint64_t *state) /* xorshift64 */
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static void *allocate(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("clock_loops");
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

/* A single random cycle through all lines (Sattolo's algorithm). */
static uint64_t *make_chase(size_t bytes)
{
    size_t count = bytes / LINE_BYTES;
    uint64_t *lines = allocate(bytes), seed = 88172645463325252;
    uint32_t *order = allocate(count * sizeof *order);
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    for (size_t i = count - 1; i > 0; i--) {
        size_t j = random_next(&seed) % i;
        uint32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (size_t i = 0; i < count; i++)
        lines[order[i] * 8] = (uint64_t)&lines[order[(i + 1) % count] * 8];
    munmap(order, count * sizeof *order);
    return lines;
}

static void tell(struct shared *shared, uint64_t accesses)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    shared->version++;
    shared->accesses += accesses;
    shared->cpu_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    shared->version++;
}

#define LABEL(name) ".globl " #name "\n.hidden " #name "\n" #name ":\n"
#define DECLARE(name) extern const char name[] __attribute__((visibility("hidden")))
DECLARE(stream_load);
DECLARE(stream_step);
DECLARE(chase_chase);
DECLARE(rows_load);
DECLARE(rows_step);
DECLARE(rows_store);
DECLARE(mixed_load);
DECLARE(mixed_step);
DECLARE(mixed_chase);
DECLARE(mixed_store);

static void __attribute__((noinline, noclone))
stream(struct shared *shared, uint64_t *array, uint64_t count)
{
    for (;;) {
        __asm__ volatile("xor %%ecx, %%ecx\n"
                         LABEL(stream_load) "mov (%0,%%rcx,8), %%rbx\n"
                         LABEL(stream_step) "inc %%rcx\n cmp %1, %%rcx\n jne stream_load\n"
                         :
                         : "S"(array), "D"(count)
                         : "rbx", "rcx", "memory", "cc");
        tell(shared, count);
    }
}

static void __attribute__((noinline, noclone))
chase(struct shared *shared, uint64_t *lines, uint64_t steps)
{
    uint64_t *at = lines;
    for (;;) {
        uint64_t left = steps;
        __asm__ volatile(LABEL(chase_chase) "mov (%0), %0\n dec %1\n jnz chase_chase\n"
                         : "+a"(at), "+d"(left)
                         :
                         : "memory", "cc");
        tell(shared, steps);
    }
}

static void __attribute__((noinline, noclone))
rows(struct shared *shared, uint64_t *array, uint64_t *out)
{
    for (;;) {
        uint64_t left = 500;
        __asm__ volatile(
            "1: xor %%ecx, %%ecx\n"
            LABEL(rows_load) "mov (%1,%%rcx,8), %%rbx\n"
            LABEL(rows_step) "inc %%rcx\n cmp %2, %%rcx\n jne rows_load\n"
            LABEL(rows_store) "mov %%rbx, (%3)\n dec %0\n jnz 1b\n"
            : "+d"(left)
            : "S"(array), "D"((uint64_t)ROW), "r"(out)
            : "rbx", "rcx", "memory", "cc");
        tell(shared, 500 * (ROW + 1));
    }
}

/* r9: the state of a generator of random numbers; r13: accesses. */
static void __attribute__((noinline, noclone))
mixed(struct shared *shared, uint64_t *array, uint64_t *lines, uint64_t *out)
{
    uint64_t *at = lines, kept = 1;
    for (;;) {
        uint64_t left = 100;
        register uint64_t state __asm__("r9") = kept;
        register uint64_t accesses __asm__("r13") = 0;
        register uint64_t *to __asm__("r8") = out;
        __asm__ volatile(
            "2: imul %[factor], %[state]\n add %[term], %[state]\n"
            "mov %[state], %%r12\n shr $52, %%r12\n lea 4096(,%%r12,4), %%r12\n"
            "add %%r12, %[accesses]\n xor %%ecx, %%ecx\n"
            LABEL(mixed_load) "mov (%[array],%%rcx,8), %%rbx\n"
            LABEL(mixed_step) "inc %%rcx\n cmp %%r12, %%rcx\n jne mixed_load\n"
            "shr $2, %%r12\n lea 1(%[accesses],%%r12), %[accesses]\n"
            LABEL(mixed_chase) "mov (%[at]), %[at]\n dec %%r12\n jnz mixed_chase\n"
            LABEL(mixed_store) "mov %[at], (%[to])\n dec %[left]\n jnz 2b\n"
            : [state] "+r"(state), [at] "+a"(at), [left] "+d"(left), [accesses] "+r"(accesses)
            : [array] "S"(array), [to] "r"(to), [factor] "r"(6364136223846793005u),
              [term] "r"(1442695040888963407u)
            : "rbx", "rcx", "r12", "memory", "cc");
        kept = state;
        tell(shared, accesses);
    }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    size_t bytes = strtoull(argv[2], NULL, 0);
    int fd = open(argv[3], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096) < 0)
        return 1;
    struct shared *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int is_chase = strcmp(argv[1], "chase") == 0;
    uint64_t *array = is_chase ? make_chase(bytes) : allocate(bytes);
    uint64_t *lines = strcmp(argv[1], "mixed") == 0 ? make_chase(bytes) : NULL;
    uint64_t *out = allocate(4096);
    const struct {
        const char *name;
        const void *address;
    } labels[] = {
        {"stream_load", stream_load}, {"stream_step", stream_step}, {"chase_chase", chase_chase},
        {"rows_load", rows_load},     {"rows_step", rows_step},     {"rows_store", rows_store},
        {"mixed_load", mixed_load},   {"mixed_step", mixed_step},   {"mixed_chase", mixed_chase},
        {"mixed_store", mixed_store}, {"array", array},             {"lines", lines},
        {"out", out},
    };
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
        printf("%s %#" PRIxPTR "\n", labels[i].name, (uintptr_t)labels[i].address);
    printf("end 0\n");
    fflush(stdout);
    if (is_chase)
        chase(shared, array, bytes > 4 << 20 ? 100000 : 500000); /* 5 to 30 ms */
    else if (strcmp(argv[1], "stream") == 0)
        stream(shared, array, bytes / sizeof *array);
    else if (strcmp(argv[1], "rows") == 0)
        rows(shared, array, out);
    else if (lines)
        mixed(shared, array, lines, out);
    return 2;
}
