#include "core.h"
#include "frame.h"

#include <cpuid.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>

#define UC_FP_XSTATE 0x1
#define UC_SIGCONTEXT_SS 0x2
#define UC_STRICT_RESTORE_SS 0x4
/* Neither 0, SS_ONSTACK nor SS_DISABLE: the kernel refuses it and so leaves the alternate signal
 * stack, which we cannot know, as it is. */
#define SS_FLAGS_INVALID 0x7

#define FXSAVE_SW_OFFSET 464
#define XSAVE_HEADER_OFFSET 512
#define XSAVE_MINIMUM_BYTES 576

struct fx_software_bytes {
    uint32_t magic1;
    uint32_t extended_size;
    uint64_t xfeatures;
    uint32_t xstate_size;
    uint32_t padding[7];
};

static void
fill_context(ucontext_t *context, const struct user_regs_struct *regs, uint64_t mask)
{
    greg_t *g = context->uc_mcontext.gregs;

    context->uc_flags = UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS;
    context->uc_stack.ss_flags = SS_FLAGS_INVALID;
    g[REG_R8] = (greg_t)regs->r8;
    g[REG_R9] = (greg_t)regs->r9;
    g[REG_R10] = (greg_t)regs->r10;
    g[REG_R11] = (greg_t)regs->r11;
    g[REG_R12] = (greg_t)regs->r12;
    g[REG_R13] = (greg_t)regs->r13;
    g[REG_R14] = (greg_t)regs->r14;
    g[REG_R15] = (greg_t)regs->r15;
    g[REG_RDI] = (greg_t)regs->rdi;
    g[REG_RSI] = (greg_t)regs->rsi;
    g[REG_RBP] = (greg_t)regs->rbp;
    g[REG_RBX] = (greg_t)regs->rbx;
    g[REG_RDX] = (greg_t)regs->rdx;
    g[REG_RAX] = (greg_t)regs->rax;
    g[REG_RCX] = (greg_t)regs->rcx;
    g[REG_RSP] = (greg_t)regs->rsp;
    g[REG_RIP] = (greg_t)regs->rip;
    g[REG_EFL] = (greg_t)regs->eflags;
    g[REG_CSGSFS] = (greg_t)((regs->cs & 0xffff) | (regs->ss & 0xffff) << 48);
    memcpy(&context->uc_sigmask, &mask, sizeof mask);
}

/* End of the last XSAVE component in use: what the kernel must read back, and no more, for it
 * refuses frames larger than what this task was ever given room for. */
static size_t
xstate_used_bytes(uint64_t components)
{
    size_t end = XSAVE_MINIMUM_BYTES;
    unsigned size, offset, c, d;

    for (unsigned i = 2; i < 63; i++) {
        if (!(components >> i & 1) || !__get_cpuid_count(0xd, i, &size, &offset, &c, &d))
            continue;
        if (offset + size > end)
            end = offset + size;
    }
    return end;
}

static size_t
fill_xstate(uint8_t *area, const uint8_t *xstate, size_t xstate_bytes)
{
    struct fx_software_bytes software = {0};
    uint64_t components;
    const uint32_t magic2 = FP_XSTATE_MAGIC2;

    if (xstate_bytes < XSAVE_MINIMUM_BYTES)
        return 0;
    memcpy(&components, xstate + XSAVE_HEADER_OFFSET, sizeof components);
    size_t used = xstate_used_bytes(components);
    if (used > xstate_bytes || used > FRAME_XSTATE_BYTES)
        return 0;
    memcpy(area, xstate, used);
    software.magic1 = FP_XSTATE_MAGIC1;
    software.extended_size = (uint32_t)used + (uint32_t)sizeof magic2;
    software.xfeatures = components | 3;
    software.xstate_size = (uint32_t)used;
    memcpy(area + FXSAVE_SW_OFFSET, &software, sizeof software);
    memcpy(area + used, &magic2, sizeof magic2);
    return used + sizeof magic2;
}

size_t
frame_build(uint8_t *scratch, uint64_t address, const struct user_regs_struct *regs,
            const uint8_t *xstate, size_t xstate_bytes, uint64_t mask, uint64_t syscall_address,
            uint64_t sigreturn_address)
{
    struct user_regs_struct child = *regs;
    ucontext_t context;

    memset(scratch, 0, FRAME_SCRATCH_BYTES);
    size_t used = fill_xstate(scratch + FRAME_XSTATE_OFFSET, xstate, xstate_bytes);
    if (used == 0)
        return 0;

    memcpy(scratch, FRAME_MARK, sizeof FRAME_MARK - 1);
    memset(&context, 0, sizeof context);
    fill_context(&context, regs, mask);
    context.uc_flags |= UC_FP_XSTATE;
    context.uc_mcontext.fpregs = (fpregset_t)(uintptr_t)(address + FRAME_XSTATE_OFFSET);
    memcpy(scratch + FRAME_PARENT_OFFSET, &sigreturn_address, 8);
    memcpy(scratch + FRAME_PARENT_OFFSET + 8, &context, offsetof(ucontext_t, uc_sigmask) + 8);

    child.rax = SYS_exit_group;
    child.rdi = FRAME_CHILD_EXIT_STATUS;
    child.rip = syscall_address;
    child.rsp = address + FRAME_CHILD_OFFSET;
    memset(&context, 0, sizeof context);
    fill_context(&context, &child, ~(uint64_t)0);
    memcpy(scratch + FRAME_CHILD_OFFSET, &sigreturn_address, 8);
    memcpy(scratch + FRAME_CHILD_OFFSET + 8, &context, offsetof(ucontext_t, uc_sigmask) + 8);
    return FRAME_XSTATE_OFFSET + used;
}
