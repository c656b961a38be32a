/* Spins until `go` names a case. A test sets it while this process is held, has replicas go the way,
 * and sets it back: the process itself never goes there. What it loads decides addresses, at one
 * labelled instruction: table[value]. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 300ul
#define VAST 40000ul /* more pages than a replica takes in a burst */
#define MANY 6000ul /* areas; between each two there is one that cannot be read */
static uint64_t table[1024] __attribute__((aligned(4096)));
static volatile uint64_t go, events;
static int uffd = -1;
static struct {
    char *sparse, *readable, *none, *gone, *shared, *shared_new, *file, *file_new, *file_shared, *huge,
        *unforked, *wiped, *lent, *guarded, *many, *vast;
} area;

static inline void use(uint64_t value)
{
    const uint64_t *at = &table[value & 1023];
    __asm__ volatile(".ifndef use_ip\n.globl use_ip\nuse_ip:\n.endif\nmov (%0), %%rax"
                     : : "r"(at) : "rax");
}
__attribute__((noinline)) static void tell(uint64_t value) { use(value); }
static char peek(const char *at) { return *(volatile const char *)at; }
static void poke(char *at, char value) { *(volatile char *)at = value; }
static void finish(void) { syscall(SYS_getppid); }

/* The bytes that some pages begin with. */
static void show(const char *from, unsigned long pages)
{
    for (unsigned long i = 0; i < pages; i++)
        tell((uint64_t)(uint8_t)peek(from + i * PAGE));
    finish();
}
static void sparse_reads(void) { show(area.sparse, PAGES); }
static void sparse_writes(void)
{
    for (unsigned long i = 0; i < PAGES; i++)
        poke(area.sparse + i * PAGE, (char)(i + 1));
    show(area.sparse, PAGES);
}
__attribute__((noinline)) static void stack_pages(void)
{
    volatile char deep[20 * PAGE];
    for (unsigned long i = 0; i < 20; i++)
        deep[i * PAGE] = (char)(i + 3);
    for (unsigned long i = 0; i < 20; i++)
        tell((uint64_t)deep[i * PAGE]);
    finish();
}
__attribute__((noinline)) static void stack_growth(void)
{
    volatile char deep[256 * PAGE];
    deep[0] = 1;
    tell((uint64_t)deep[0]);
    finish();
}
static void stores_to_readable(void) { tell(1); poke(area.readable, 1); tell(2); }
static void loads_from_none(void) { tell(1); tell((uint64_t)peek(area.none)); }
static void loads_from_nowhere(void) { tell(1); tell((uint64_t)peek(area.gone)); }
static void loads_from_odd_address(void) { tell(1); tell((uint64_t)peek((char *)(1ul << 63 | 8))); }
static void jumps_nowhere(void) { tell(1); ((void (*)(void))(uintptr_t)area.gone)(); }
static void divides(void) { tell(1); tell(7u / (unsigned)table[5]); }
static void traps(void) { tell(1); __asm__ volatile("int3"); tell(2); }
static void undefined(void) { tell(1); __asm__ volatile("ud2"); }
static void readable_loads(void) { show(area.readable, 2); }
static void shared_loads(void) { show(area.shared, 4); }
static void shared_new(void) { tell(1); show(area.shared_new, 1); }
static void file_loads(void) { show(area.file, 3); }
static void file_new(void) { tell(1); show(area.file_new, 1); }
static void file_shared(void) { poke(area.file_shared, 9); show(area.file_shared, 2); }
static void huge_loads(void)
{
    for (int i = 0; i < 512; i++)
        tell((uint64_t)(uint8_t)peek(area.huge + 4099 * i));
    finish();
}
static void unforked(void) { show(area.unforked, 2); }
static void wiped(void) { show(area.wiped, 2); }
static void lent(void) { tell(1); show(area.lent, 1); }
static void lent_given(void) { show(area.lent + PAGE, 1); }
static void half_store(void) /* the second half of the store is forbidden */
{
    tell(1);
    *(volatile uint64_t *)(area.guarded + PAGE - 4) = 0x1122334455667788;
}
static void half_load(void)
{
    tell(1);
    tell(*(volatile uint64_t *)(area.sparse + PAGE - 4));
    finish();
}

static void many_areas(void) /* to and fro among them, to one that cannot be read */
{
    for (unsigned long i = 0; i < 100; i++)
        tell((uint64_t)peek(area.many + 2 * (i * 3571 % MANY) * PAGE));
    tell((uint64_t)peek(area.many + (2 * (MANY / 3) + 1) * PAGE));
}

/* With no other access between, so that they tell how many pages it has. */
__attribute__((noinline)) static void step_through(const char *from, unsigned long pages)
{
    for (const char *at = from; at < from + pages * PAGE; at += PAGE)
        __asm__ volatile(".globl step_ip\nstep_ip: mov (%0), %%rax" : : "r"(at) : "rax");
}
static void half_of_vast(void) { step_through(area.vast, VAST / 2); finish(); }
static void all_of_vast(void) { step_through(area.vast + VAST / 2 * PAGE, VAST); finish(); }

static void (*const cases[])(void) = {
    NULL, sparse_reads, sparse_writes, stack_pages, stack_growth, stores_to_readable, loads_from_none,
    loads_from_nowhere, loads_from_odd_address, jumps_nowhere, divides, traps, undefined,
    readable_loads, shared_loads, shared_new, file_loads, file_new, file_shared, huge_loads, unforked,
    wiped, lent, lent_given, half_store, half_load, many_areas, half_of_vast, all_of_vast,
};

static char *map(size_t pages, int protection, int flags, int file)
{
    char *at = mmap(NULL, pages * PAGE, protection, flags | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
    if (at == MAP_FAILED)
        abort();
    return at;
}

static void lend(void)
{
    struct uffdio_api api = {.api = UFFD_API};
    area.lent = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    poke(area.lent + PAGE, 5);
    uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* user mode only */);
    struct uffdio_register request = {.range = {(uintptr_t)area.lent, 2 * PAGE},
                                      .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) < 0 || ioctl(uffd, UFFDIO_REGISTER, &request) < 0)
        uffd = -1;
}

static void prepare(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (unsigned i = 0; i < 64 * PAGE; i++)
        if (write(file, &(char){(char)(i / PAGE + 10)}, 1) != 1)
            abort();
    area.sparse = map(PAGES + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    madvise(area.sparse, (PAGES + 1) * PAGE, MADV_NOHUGEPAGE);
    area.readable = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    area.readable[0] = 21, area.readable[PAGE] = 22;
    mprotect(area.readable, 2 * PAGE, PROT_READ);
    area.none = map(1, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    area.none[0] = 1;
    mprotect(area.none, PAGE, PROT_NONE);
    area.shared = map(4, PROT_READ | PROT_WRITE, MAP_SHARED, -1);
    for (unsigned i = 0; i < 4; i++)
        area.shared[i * PAGE] = (char)(31 + i);
    area.shared_new = map(1, PROT_READ | PROT_WRITE, MAP_SHARED, -1);
    area.file = map(3, PROT_READ, MAP_PRIVATE, file);
    uint64_t sum = 0;
    for (unsigned i = 0; i < 3; i++)
        sum += (uint64_t)peek(area.file + i * PAGE);
    area.file_new = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 48 * (off_t)PAGE);
    area.file_shared = map(2, PROT_READ | PROT_WRITE, MAP_SHARED, file);
    area.file_shared[0] = area.file_shared[PAGE] = 41;
    char *room = map(2 * 512, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    area.huge = (char *)(((uintptr_t)room + 512 * PAGE - 1) & -(512 * PAGE));
    madvise(area.huge, 512 * PAGE, MADV_HUGEPAGE);
    for (unsigned i = 0; i < 512 * PAGE; i++)
        area.huge[i] = (char)(i % 251);
    area.unforked = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    area.unforked[0] = 51, area.unforked[PAGE] = 52;
    madvise(area.unforked, 2 * PAGE, MADV_DONTFORK);
    area.wiped = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    area.wiped[0] = 61, area.wiped[PAGE] = 62;
    madvise(area.wiped, 2 * PAGE, MADV_WIPEONFORK);
    area.guarded = map(2, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    area.guarded[0] = area.guarded[PAGE] = 1;
    mprotect(area.guarded + PAGE, PAGE, PROT_READ);
    area.many = map(2 * MANY, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    madvise(area.many, 2 * MANY * PAGE, MADV_NOHUGEPAGE);
    for (unsigned long i = 0; i < MANY; i++) {
        area.many[2 * i * PAGE] = (char)(i % 101);
        mprotect(area.many + (2 * i + 1) * PAGE, PAGE, PROT_NONE);
    }
    area.vast = map(VAST / 2 + VAST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, -1);
    madvise(area.vast, (VAST / 2 + VAST) * PAGE, MADV_NOHUGEPAGE);
    area.gone = map(1, PROT_READ | PROT_WRITE, MAP_PRIVATE, -1);
    munmap(area.gone, PAGE);
    table[6] = sum;
}

int main(int argc, char **argv)
{
    prepare(argv[1]);
    if (argc > 2)
        lend();
    printf("%p %p %p %d %p\n", (void *)table, (void *)&go, (void *)&events, uffd,
           (void *)area.sparse);
    fflush(stdout);
    for (;;) {
        uint64_t which = go;
        if (which == 99) { /* what a manager of its memory would see */
            struct pollfd of = {uffd, POLLIN, 0};
            events = 100 + (uint64_t)poll(&of, 1, 0);
            go = 0;
        } else if (which != 0) {
            cases[which]();
        }
    }
}
