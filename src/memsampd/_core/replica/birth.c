#include "core.h"
#include "birth.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static int
open_userfaultfd(struct hello *hello)
{
    struct uffdio_api api = {
        .api = UFFD_API,
        .features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM |
                    UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
    };
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

    if (uffd < 0 && errno == EINVAL) /* before Linux 5.11 */
        uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (uffd < 0)
        return -1;
    if (ioctl(uffd, UFFDIO_API, &api) < 0) { /* before Linux 5.19: no protections, pages are not kept */
        close(uffd);
        uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
        api = (struct uffdio_api){.api = UFFD_API,
                                  .features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM};
        if (uffd < 0)
            return -1;
        if (ioctl(uffd, UFFDIO_API, &api) < 0) {
            close(uffd); /* the table of descriptors is memsampd's, too */
            return -1;
        }
    }
    hello->features = api.features;
    return uffd;
}

/* Its tracer, who may have been started so, would not be let end a hold by one of its own rank. */
static void
leave_real_time(void)
{
    const struct sched_param none = {.sched_priority = 0};
    const int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;

    if (policy == SCHED_FIFO || policy == SCHED_RR)
        sched_setscheduler(0, SCHED_OTHER, &none);
}

void
become_replica(const struct area *area, uint64_t at, pid_t parent)
{
    struct hello *hello = hello_of(area);
    const int flags = MAP_SHARED | MAP_FIXED_NOREPLACE;
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "memsampd-replica");
    setsid();
    if (getppid() != parent)
        _exit(1);
    leave_real_time();
    uint8_t *base = (uint8_t *)(uintptr_t)at;
    if (mmap(base, AREA_LOOKUP, PROT_READ | PROT_WRITE, flags, area->memfd, 0) != base ||
        mmap(base + AREA_LOOKUP, AREA_CODE - AREA_LOOKUP, PROT_READ, flags, area->memfd,
             AREA_LOOKUP) != base + AREA_LOOKUP ||
        mmap(base + AREA_CODE, AREA_CODE_BYTES, PROT_READ | PROT_EXEC, flags, area->memfd,
             AREA_CODE) != base + AREA_CODE ||
        mmap(base + AREA_BUFFER, BUFFER_BYTES, PROT_READ | PROT_WRITE, flags, area->memfd,
             AREA_BUFFER) != base + AREA_BUFFER ||
        (hello->uffd = open_userfaultfd(hello)) < 0) {
        hello->error = errno;
        hello->is_ready = 1;
        _exit(1);
    }
    hello->is_ready = 1;
    ((void (*)(void))(uintptr_t)(at + AREA_PARK))();
    _exit(1);
}
