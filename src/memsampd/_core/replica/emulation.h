/* System calls of a shadow whose result is known without asking the outside world.
 *
 * A shadow must neither wait nor be noticed. Four kinds of calls leave it unnoticed and have the
 * result that the target would see: answers that we know (who it is, its signal mask), reads of the
 * target's own settings, calls that the shadow really makes because they concern nothing but
 * its own copy of private memory and of signal handlers, and input and output on files
 * (open_files.h). All others end the burst, and so does any
 * of these that could come out otherwise in the target. docs/shadow.md has the table.
 */
#ifndef MEMSAMPD_EMULATION_H
#define MEMSAMPD_EMULATION_H

#include "core.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

enum emulated {
    EMULATED,       /* the registers are those behind the call, memory has its results */
    NOT_EMULATED,   /* the burst ends before this call; the registers are as they were */
    EMULATION_LOST, /* the shadow is gone, or stopped in a way that we do not know */
};

struct address_range {
    uint64_t start, end;
};

/* What is known of a file that the target had open at the stop. */
enum {
    FILE_IS_NULL = 1, /* /dev/null; all others are regular */
    FILE_WRITTEN = 2, /* by the shadow, as it believes: what is in it is no longer known */
    FILE_ADRIFT = 4,  /* its offset is no longer known */
};

/* As packed by memsampd.sampler.shadow.files. */
struct open_file {
    int32_t number;         /* the target's descriptor */
    int32_t descriptor;     /* ours: to read from if the target may; -1 for /dev/null */
    int64_t offset;         /* of the target's at the stop; the shadow moves it here only */
    uint64_t device, inode; /* as fstat tells of ours */
    uint32_t flags;         /* as of open: whether it may be read and written, O_APPEND */
    uint32_t marks;         /* FILE_* */
};

/* What one burst must know to answer; made by emulation_begin, freed by emulation_end. */
struct emulation {
    pid_t target_tid;         /* the thread that the shadow is a copy of, in our PID namespace */
    pid_t pid, tid, ppid;     /* process, thread and parent as that thread itself sees them */
    uint64_t mask;            /* its signal mask, which the shadow changes here only */
    uint64_t pending;         /* signals that wait for it: unblocking one ends the burst */
    bool locks_memory;        /* mlock is not inherited, so some calls would come out otherwise */
    uint64_t syscall_address; /* where a `syscall` instruction can be injected */
    struct address_range *forbidden; /* areas that no call of the shadow may touch or get */
    size_t forbidden_count;
    struct open_file *files;
    size_t file_count;
    uint64_t calls; /* emulated so far */
};

/* Start afresh from what memsampd.sampler.shadow.emulation.emulation_of made, or, given None, with
 * nothing: then no call is emulated. -1 with an exception set where it is malformed. */
int emulation_begin(struct emulation *state, PyObject *identity);
/* What emulation_begin takes, so that another shadow can go on from where this one is; None if no
 * call is emulated. NULL with an exception set: no memory. */
PyObject *emulation_identity(const struct emulation *state);
/* Keep the shadow's hands off an area, as of a code cache; -1: no memory. */
int emulation_forbid(struct emulation *state, uint64_t start, uint64_t end);
bool emulation_forbids(const struct emulation *state, uint64_t start, uint64_t end);
void emulation_end(struct emulation *state);

/* Emulate the `syscall` instruction at regs->rip, which the stopped shadow has not executed. The
 * caller writes `regs` back. */
enum emulated syscall_emulate(pid_t pid, struct emulation *state, struct user_regs_struct *regs);

/* As in <asm/unistd_64.h> when memsampd was built; NULL for a number unknown then. */
const char *syscall_name(uint64_t number);

#endif
