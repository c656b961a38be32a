#include "core.h"
#include "frames.h"
#include "area.h"
#include "remote.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t kept_by_all; /* bytes; atomic */

static int
create_file(bool may_execute)
{
    int file = (int)syscall(SYS_memfd_create, "memsampd-replica",
                            MFD_CLOEXEC | (may_execute ? 0x10u : 0x08u));

    if (file < 0 && errno == EINVAL) /* before Linux 6.3 */
        file = (int)syscall(SYS_memfd_create, "memsampd-replica", MFD_CLOEXEC);
    return file;
}

int
frames_create(struct frames *f, uint64_t bytes, bool may_execute)
{
    memset(f, 0, sizeof *f);
    f->file = create_file(may_execute);
    if (f->file < 0 || set_file_size(f->file, bytes) < 0) {
        int error = errno;
        frames_close(f);
        errno = error;
        return -1;
    }
    return 0;
}

static void
tell_kept(struct frames *f, uint64_t bytes)
{
    __atomic_add_fetch(&kept_by_all, bytes - f->kept_bytes, __ATOMIC_RELAXED);
    f->kept_bytes = bytes;
}

static void
close_windows(struct frames *f)
{
    for (size_t i = 0; i < f->windows; i++)
        munmap(f->window[i].bytes, FRAMES_WINDOW_BYTES);
    f->windows = 0;
}

void
frames_close(struct frames *f)
{
    tell_kept(f, 0);
    close_windows(f);
    if (f->file >= 0)
        close(f->file);
    f->file = -1;
}

/* Only for writing page by page: no huge pages, nothing of it in a core file or in children. */
static uint8_t *
open_window(struct frames *f, uint64_t start)
{
    if (f->windows == FRAMES_WINDOWS)
        return NULL;
    void *bytes = mmap(NULL, FRAMES_WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                       f->file, (off_t)start);
    if (bytes == MAP_FAILED)
        return NULL;
    madvise(bytes, FRAMES_WINDOW_BYTES, MADV_NOHUGEPAGE);
    madvise(bytes, FRAMES_WINDOW_BYTES, MADV_DONTDUMP);
    madvise(bytes, FRAMES_WINDOW_BYTES, MADV_DONTFORK);
    f->window[f->windows].start = start;
    f->window[f->windows].bytes = bytes;
    f->windows++;
    return bytes;
}

uint8_t *
frames_place(struct frames *f, uint64_t page)
{
    const uint64_t start = page & ~(FRAMES_WINDOW_BYTES - 1);

    for (size_t i = 0; i < f->windows; i++)
        if (f->window[i].start == start) {
            const __typeof__(f->window[0]) found = f->window[i];
            f->window[i] = f->window[0];
            f->window[0] = found;
            return found.bytes + (page - start);
        }
    uint8_t *bytes = open_window(f, start);
    return bytes == NULL ? NULL : bytes + (page - start);
}

/* Not by pwrite, which a limit of file sizes forbids at most addresses. */
bool
frames_write(struct frames *f, uint64_t address, const uint8_t *bytes, size_t size)
{
    const uint64_t page = page_of(address);
    uint8_t *const place = frames_place(f, page);
    uint8_t *to = place;

    if (place == NULL)
        to = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, f->file, (off_t)page);
    if (to == MAP_FAILED)
        return false;
    const bool is_written =
        remote_copy(getpid(), (uint64_t)(uintptr_t)bytes, to + (address - page), size);
    if (place == NULL)
        munmap(to, PAGE_BYTES);
    return is_written;
}

void
frames_drop(struct frames *f, uint64_t start, uint64_t end)
{
    fallocate(f->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)(end - start));
}

bool
frames_keep(struct frames *f, uint64_t end)
{
    struct stat status;

    tell_kept(f, fstat(f->file, &status) < 0 ? FRAMES_KEPT_BYTES + 1 : (uint64_t)status.st_blocks * 512);
    const bool are_few = __atomic_load_n(&kept_by_all, __ATOMIC_RELAXED) <= FRAMES_KEPT_BYTES;
    if (!are_few) {
        frames_drop(f, 0, end);
        tell_kept(f, 0);
    }
    if (f->windows == FRAMES_WINDOWS)
        close_windows(f);
    return are_few;
}
