#include "core.h"
#include "area.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int
set_file_size(int file, uint64_t bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the limit is all threads' */
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY}, before;

    pthread_mutex_lock(&lock);
    getrlimit(RLIMIT_FSIZE, &before);
    const bool is_too_low = before.rlim_cur < bytes;
    if (is_too_low && setrlimit(RLIMIT_FSIZE, &limit) < 0) {
        limit.rlim_cur = limit.rlim_max = before.rlim_max;
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    int failed = ftruncate(file, (off_t)bytes);
    int error = errno;
    if (is_too_low) /* for what we record, and whom we start */
        setrlimit(RLIMIT_FSIZE, &before);
    pthread_mutex_unlock(&lock);
    errno = error;
    return failed;
}

int
area_create(struct area *a)
{
    a->bytes = NULL;
    a->memfd = (int)syscall(SYS_memfd_create, "memsampd", MFD_CLOEXEC | 0x10u /* MFD_EXEC */);
    if (a->memfd < 0 && errno == EINVAL) /* before Linux 6.3 */
        a->memfd = (int)syscall(SYS_memfd_create, "memsampd", MFD_CLOEXEC);
    if (a->memfd < 0 || set_file_size(a->memfd, AREA_OURS_BYTES) < 0)
        return -1;
    void *bytes = mmap(NULL, AREA_OURS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, a->memfd, 0);
    if (bytes == MAP_FAILED)
        return -1;
    a->bytes = bytes;
    memcpy(a->bytes + AREA_CALL, "\x0f\x05\xcc", 3);
    memcpy(a->bytes + AREA_PARK, "\xb8\x22\x00\x00\x00\x0f\x05\xeb\xf7", 9); /* pause, again */
    return 0;
}

void
area_close(struct area *a)
{
    if (a->memfd >= 0)
        close(a->memfd);
    a->memfd = -1;
}

void
area_free(struct area *a)
{
    if (a->bytes != NULL)
        munmap(a->bytes, AREA_OURS_BYTES);
    area_close(a);
    a->bytes = NULL;
}
