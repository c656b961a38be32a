#include "core.h"
#include "area.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

/* What the shadow's recvmsg needs, in its scratch memory; pointers are the shadow's. */
struct letter_box {
    int sockets[2];
    uint64_t byte;
    struct iovec part;
    struct msghdr message;
    _Alignas(8) uint8_t control[CMSG_SPACE(sizeof(int))];
};

struct caller {
    pid_t pid;
    const struct user_regs_struct *regs;
    uint64_t syscall_address;
    enum tracee_status status;
};

/* One system call of the shadow's; -1 and a status that stays once one failed. */
static long
call(struct caller *c, long number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3,
     uint64_t a4, uint64_t a5)
{
    const uint64_t arguments[6] = {a0, a1, a2, a3, a4, a5};
    long result = -1;

    if (c->status == TRACEE_OK)
        c->status = tracee_inject_shadow(c->pid, c->regs, c->syscall_address, number, arguments,
                                         &result);
    return c->status == TRACEE_OK ? result : -1;
}

static void
copy(struct caller *c, uint64_t address, void *ours, size_t size, bool to_shadow)
{
    struct iovec mine = {ours, size}, theirs = {(void *)(uintptr_t)address, size};
    ssize_t done = -1;

    if (c->status != TRACEE_OK)
        return;
    done = to_shadow ? process_vm_writev(c->pid, &mine, 1, &theirs, 1, 0)
                     : process_vm_readv(c->pid, &mine, 1, &theirs, 1, 0);
    if (done != (ssize_t)size)
        c->status = TRACEE_NO_SCRATCH;
}

int
area_create(struct area *a)
{
    a->bytes = NULL;
    a->memfd = (int)syscall(SYS_memfd_create, "memsampd", MFD_CLOEXEC | 0x10u /* MFD_EXEC */);
    if (a->memfd < 0 && errno == EINVAL) /* before Linux 6.3 */
        a->memfd = (int)syscall(SYS_memfd_create, "memsampd", MFD_CLOEXEC);
    if (a->memfd < 0 || ftruncate(a->memfd, AREA_OURS_BYTES) < 0)
        return -1;
    void *bytes = mmap(NULL, AREA_OURS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, a->memfd, 0);
    if (bytes == MAP_FAILED)
        return -1;
    a->bytes = bytes;
    return 0;
}

void
area_free(struct area *a)
{
    if (a->bytes != NULL)
        munmap(a->bytes, AREA_OURS_BYTES);
    if (a->memfd >= 0)
        close(a->memfd);
    a->bytes = NULL;
    a->memfd = -1;
}

static int
send_memfd(int pidfd, int theirs, int memfd)
{
    uint8_t byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &memfd, sizeof memfd);
    int ours = (int)syscall(SYS_pidfd_getfd, pidfd, theirs, 0);
    if (ours < 0)
        return -1;
    ssize_t sent = sendmsg(ours, &message, MSG_NOSIGNAL);
    int error = errno;
    close(ours);
    errno = error;
    return sent == 1 ? 0 : -1;
}

static int
receive_memfd(struct caller *c, const struct area *a, int pidfd, uint64_t at)
{
    struct letter_box box;
    int fd = -1;

    memset(&box, 0, sizeof box);
    call(c, SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0,
         at + offsetof(struct letter_box, sockets), 0, 0);
    copy(c, at, &box, sizeof box.sockets, false);
    if (c->status == TRACEE_OK && send_memfd(pidfd, box.sockets[0], a->memfd) < 0)
        c->status = TRACEE_CALL_FAILED;
    box.part = (struct iovec){(void *)(uintptr_t)(at + offsetof(struct letter_box, byte)), 1};
    box.message.msg_iov = (void *)(uintptr_t)(at + offsetof(struct letter_box, part));
    box.message.msg_iovlen = 1;
    box.message.msg_control = (void *)(uintptr_t)(at + offsetof(struct letter_box, control));
    box.message.msg_controllen = sizeof box.control;
    copy(c, at, &box, sizeof box, true);
    call(c, SYS_recvmsg, (uint64_t)box.sockets[1], at + offsetof(struct letter_box, message),
         MSG_CMSG_CLOEXEC | MSG_DONTWAIT, 0, 0, 0);
    copy(c, at, &box, sizeof box, false);
    if (c->status == TRACEE_OK)
        memcpy(&fd, box.control + CMSG_LEN(0), sizeof fd);
    return fd;
}

enum tracee_status
area_map(const struct area *a, pid_t shadow, int pidfd, const struct user_regs_struct *regs,
         uint64_t syscall_address, uint64_t scratch_address, uint64_t address)
{
    struct caller c = {shadow, regs, syscall_address, TRACEE_OK};
    struct letter_box before;

    copy(&c, scratch_address, &before, sizeof before, false);
    uint64_t fd = (uint64_t)receive_memfd(&c, a, pidfd, scratch_address);
    const uint64_t flags = MAP_SHARED | MAP_FIXED_NOREPLACE;
    call(&c, SYS_mmap, address, AREA_CODE, PROT_READ | PROT_WRITE, flags, fd, 0);
    call(&c, SYS_mmap, address + AREA_CODE, AREA_CODE_BYTES, PROT_READ | PROT_EXEC, flags, fd,
         AREA_CODE);
    call(&c, SYS_mmap, address + AREA_BUFFER, BUFFER_BYTES, PROT_READ | PROT_WRITE,
         flags | MAP_POPULATE, fd, AREA_BUFFER);
    call(&c, SYS_close_range, 0, ~0u, 0, 0, 0, 0);
    copy(&c, scratch_address, &before, sizeof before, true);
    return c.status;
}
