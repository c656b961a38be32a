/* A thread that this thread of ours traces: its stops and its registers. */
#ifndef MEMSAMPD_TRACEE_H
#define MEMSAMPD_TRACEE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

/* glibc declares the request as an enum of its own making; the kernel takes a long. */
long ptrace_call(long request, pid_t tid, void *address, void *data);

/* Wait for a stop of `tid`. 0: stopped; -1: gone; 1: interrupted by the alarm. */
int held_wait(pid_t tid, int *status);

/* The same to the end. */
int tracee_wait(pid_t tid, int *status);
bool is_event_stop(int status);
bool is_syscall_stop(int status);

/* One that has ended, unless whoever started it is to collect it. */
void tracee_collect(pid_t tid);

bool read_registers(pid_t pid, struct user_regs_struct *regs);
bool write_registers(pid_t pid, const struct user_regs_struct *regs);

/* As the kernel's struct ptrace_rseq_configuration. */
struct rseq_registration {
    uint64_t area;
    uint32_t size, signature, flags, pad;
};

/* Its area for restartable sequences; false if it has none. */
bool read_rseq(pid_t tid, struct rseq_registration *rseq);

#endif
