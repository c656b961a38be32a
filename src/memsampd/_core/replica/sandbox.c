#include "core.h"
#include "sandbox.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOWEST_ADDRESS 0x10000u
#define OWN_UID 2061133857u /* nobody else's: no user may stop, read or pin it */
#define NOBODY 65534u

/* ---- Its memory ---- */

static FILE *
open_maps(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    return fopen(path, "re");
}

/* The next area of it; false behind the last. */
static bool
next_area(FILE *maps, uint64_t *start, uint64_t *end)
{
    char line[512];

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%" SCNx64 "-%" SCNx64, start, end) == 2)
            return true;
    return false;
}

static void
leave_rseq(struct caller *c)
{
    struct rseq_registration rseq = {0};

    if (read_rseq(c->p->pid, &rseq))
        caller_try(c, SYS_rseq, rseq.area, rseq.size, 1, rseq.signature);
}

/* What it still has beside the translator's area: mappings that the kernel has sealed. */
static void
find_parts(struct process *p)
{
    const uint64_t area_end = p->area_address + AREA_BYTES + GUARD_BYTES;
    uint64_t start, end, from = LOWEST_ADDRESS;
    FILE *maps = open_maps(p->pid);

    p->parts = 0;
    while (p->parts < PROCESS_PARTS - 1 && next_area(maps, &start, &end)) {
        if (start >= HIGHEST_ADDRESS)
            continue;
        if (start > from)
            p->part[p->parts++] = (struct process_part){from, start};
        from = end;
        if (from >= p->area_address && from < area_end)
            from = area_end; /* behind the buffer nothing is mapped: its end must fault */
    }
    if (maps != NULL)
        fclose(maps);
    if (from < HIGHEST_ADDRESS)
        p->part[p->parts++] = (struct process_part){from, HIGHEST_ADDRESS};
}

void
sandbox_map_memory(struct caller *c, bool may_execute)
{
    struct process *p = c->p;
    const uint64_t end = p->area_address + AREA_BYTES;
    const uint64_t protection = PROT_READ | PROT_WRITE | (may_execute ? PROT_EXEC : 0);

    leave_rseq(c);
    caller_try(c, SYS_munmap, LOWEST_ADDRESS, p->area_address - LOWEST_ADDRESS, 0, 0);
    if (!caller_try(c, SYS_munmap, end, HIGHEST_ADDRESS - end, 0, 0)) {
        /* Some of it is sealed: take the rest away one by one. */
        uint64_t start, stop;
        FILE *maps = open_maps(p->pid);
        while (next_area(maps, &start, &stop))
            if (start >= end && stop <= HIGHEST_ADDRESS)
                caller_try(c, SYS_munmap, start, stop - start, 0, 0);
        if (maps != NULL)
            fclose(maps);
    }
    find_parts(p);
    for (size_t i = 0; i < p->parts; i++) {
        struct process_part *part = &p->part[i];
        struct uffdio_register request = {
            .range = {part->start, part->end - part->start},
            .mode = UFFDIO_REGISTER_MODE_MISSING |
                    (p->can_protect ? UFFDIO_REGISTER_MODE_WP : 0) |
                    (p->can_keep ? UFFDIO_REGISTER_MODE_MINOR : 0),
        };
        caller_call(c, SYS_mmap, part->start, part->end - part->start, protection,
                    MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, (uint64_t)p->frames.file,
                    part->start);
        if (c->error == 0 && ioctl(p->uffd, UFFDIO_REGISTER, &request) < 0)
            c->error = errno;
    }
}

/* ---- Its rights ---- */

/* Traced again for each burst, and killed at its end and by our death (whose signal needs the right to send
 * one, too), it is to be of another user only if we may do both to those. */
static bool
may_have_other_user(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct held[2] = {{0}};
    const uint32_t needed = 1u << CAP_SYS_PTRACE | 1u << CAP_KILL;

    return geteuid() == 0 && syscall(SYS_capget, &header, held) == 0 &&
           (held[0].effective & needed) == needed;
}

static void
change_user(struct caller *c)
{
    caller_try(c, SYS_setgroups, 0, 0, 0, 0);
    if (!caller_try(c, SYS_setresgid, OWN_UID, OWN_UID, OWN_UID, 0) ||
        !caller_try(c, SYS_setresuid, OWN_UID, OWN_UID, OWN_UID, 0)) {
        caller_try(c, SYS_setresgid, NOBODY, NOBODY, NOBODY, 0);
        caller_try(c, SYS_setresuid, NOBODY, NOBODY, NOBODY, 0);
    }
    caller_try(c, SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0);
}

void
sandbox_confine(struct caller *c, const struct area *area)
{
    static const struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pause, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_DONTNEED, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct {
        struct sock_fprog program;
        struct rlimit none;
        struct __user_cap_header_struct header;
        struct __user_cap_data_struct capabilities[2];
        struct sock_filter filter[sizeof filter / sizeof filter[0]];
    } *letter = (void *)(area->bytes + AREA_SLOTS);
    const uint64_t at = c->p->area_address + AREA_SLOTS;

    memcpy(letter->filter, filter, sizeof filter);
    letter->program.len = sizeof filter / sizeof filter[0];
    letter->program.filter = (void *)(uintptr_t)(at + offsetof(__typeof__(*letter), filter));
    letter->none = (struct rlimit){0, 0};
    letter->header = (struct __user_cap_header_struct){.version = _LINUX_CAPABILITY_VERSION_3};
    memset(letter->capabilities, 0, sizeof letter->capabilities);
    caller_try(c, SYS_setrlimit, RLIMIT_CORE, at + offsetof(__typeof__(*letter), none), 0, 0);
    caller_call(c, SYS_close_range, 0, ~0u, 2 /* CLOSE_RANGE_UNSHARE */, 0, 0, 0);
    if (may_have_other_user())
        change_user(c);
    /* Not root may have some, too; and without the others' ids root would have kept its own. */
    caller_call(c, SYS_capset, at + offsetof(__typeof__(*letter), header),
                at + offsetof(__typeof__(*letter), capabilities), 0, 0, 0, 0);
    /* A change of identity has taken this away. */
    caller_call(c, SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0);
    caller_call(c, SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0);
    caller_call(c, SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, at, 0, 0, 0);
    memset(letter, 0, sizeof *letter);
}
