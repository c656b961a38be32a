/* A signal frame that puts a thread back where it was, with no one's help.
 *
 * While a system call is injected into the target, its registers are ours. Were memsampd killed in
 * that moment, the kernel would let the target run on with them. So the injected call returns into
 * rt_sigreturn with a frame, written below, that holds the registers, vector state and signal mask
 * of the interrupted thread: it heals itself.
 */
#ifndef MEMSAMPD_FRAME_H
#define MEMSAMPD_FRAME_H

#include <stddef.h>
#include <stdint.h>
#include <sys/user.h>

/* Bytes of scratch memory that one injection needs in the target. */
#define FRAME_SCRATCH_BYTES 16384
#define FRAME_MARK "memsampd" /* at its start: scratch that a killed memsampd left behind */
/* How a shadow ends that runs because its tracer was killed: by this its zombie is known. */
#define FRAME_CHILD_EXIT_STATUS 0x6d
#define FRAME_PARENT_OFFSET 0x038 /* its ucontext starts at the next 64-byte line */
#define FRAME_CHILD_OFFSET 0x438
#define FRAME_XSTATE_OFFSET 0x800
#define FRAME_XSTATE_BYTES (FRAME_SCRATCH_BYTES - FRAME_XSTATE_OFFSET - 8)

/* Fill `scratch` (to be written at `address`) with two frames: the parent's, which restores `regs`,
 * the vector state `xstate` and `mask`; and the child's, which makes an untraced child end at once.
 * Returns the bytes used, or 0 if the vector state does not fit. */
size_t frame_build(uint8_t *scratch, uint64_t address, const struct user_regs_struct *regs,
                   const uint8_t *xstate, size_t xstate_bytes, uint64_t mask,
                   uint64_t syscall_address, uint64_t sigreturn_address);

#endif
