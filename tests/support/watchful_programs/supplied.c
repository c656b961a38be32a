/* Supplies its own pages: each must be asked for exactly once, by itself. */
#include "watchful.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

static int uffd;
static volatile long asked;
static char *memory;
static void *supply(void *unused)
{
    static char page[4096] __attribute__((aligned(4096)));
    struct uffd_msg message;
    (void)unused;
    while (read(uffd, &message, sizeof message) == sizeof message) {
        uint64_t at = message.arg.pagefault.address & ~4095ull;
        memset(page, (int)((at - (uint64_t)(uintptr_t)memory) >> 12 & 0x7f) + 1, sizeof page);
        asked++;
        struct uffdio_copy copy = {.dst = at, .src = (uint64_t)(uintptr_t)page, .len = 4096};
        ioctl(uffd, UFFDIO_COPY, &copy);
    }
    return NULL;
}

int main(void)
{
    size_t pages = 256;
    pthread_t thread;
    struct uffdio_api api = {.api = UFFD_API};
    uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | 1);
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) < 0) fail("skip userfaultfd");
    memory = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register all = {.range = {(uint64_t)(uintptr_t)memory, pages << 12},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(uffd, UFFDIO_REGISTER, &all) < 0) fail("skip register");
    pthread_create(&thread, NULL, supply, NULL);
    ready();
    long touched = 0;
    while (!told()) {
        for (size_t i = 0; i < pages; i++) {
            if (memory[i << 12] != (char)((i & 0x7f) + 1)) { puts("another page"); return 1; }
            touched++;
            for (int n = 0; n < 20000; n++) sink += (uint64_t)n;
        }
        madvise(memory, pages << 12, MADV_DONTNEED);
    }
    printf(asked == touched ? "right" : "%ld asked, %ld touched", asked, touched);
    return 0;
}
