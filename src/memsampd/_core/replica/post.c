#include "core.h"
#include "post.h"

#include <stddef.h>
#include <string.h>
#include <ucontext.h>

#define SIGINFO_WORDS 3 /* number, errno, code; the address */
#define NO_SIGNAL 0u
#define SLEEPING 0x100u /* behind all signals */

/* As the handler writes it. */
struct post {
    uint32_t signal;
    uint32_t pad;
    uint64_t info, context;
};

/* Come to with the signal's number in edi, the addresses of siginfo and ucontext in rsi and rdx, and the
 * stack pointer at the frame. No vector register is touched, and nothing is pushed. Copied to
 * AREA_HANDLER, from where the post lies at a known distance. 100,000 rounds are some milliseconds: who
 * answers later is not there. */
#define TEXT_OF(value) #value
#define TEXT(value) TEXT_OF(value)
#define HANDLER_TO_POST (-(0x100000 + 0x4800 + 0x100)) /* AREA_POST - AREA_HANDLER, checked below */
_Static_assert((long)AREA_POST - (long)AREA_HANDLER == HANDLER_TO_POST, "the post");
#define HANDLER_BYTES 96
_Static_assert(AREA_HANDLER_BYTES == HANDLER_BYTES && AREA_HANDLER + HANDLER_BYTES <= AREA_CALL,
               "room for the handler");

__asm__(".pushsection .rodata\n"
        "memsampd_handler:\n"
        "    mov %rsi, memsampd_handler + 8 + " TEXT(HANDLER_TO_POST) "(%rip)\n"
        "    mov %rdx, memsampd_handler + 16 + " TEXT(HANDLER_TO_POST) "(%rip)\n"
        "    mov %edi, memsampd_handler + " TEXT(HANDLER_TO_POST) "(%rip)\n"
        "memsampd_handler_posted:\n"
        "    mov $100000, %ecx\n"
        "1:  pause\n"
        "    mov memsampd_handler + " TEXT(HANDLER_TO_POST) "(%rip), %eax\n"
        "    test %eax, %eax\n"
        "    je memsampd_handler_end\n"
        "    cmp %edi, %eax\n"
        "    jne 2f\n" /* it is told to sleep */
        "    dec %ecx\n"
        "    jnz 1b\n"
        "    mov %edi, %eax\n"
        "    mov $0x100, %ecx\n"
        "    lock cmpxchg %ecx, memsampd_handler + " TEXT(HANDLER_TO_POST) "(%rip)\n"
        "    test %eax, %eax\n" /* what was there */
        "    je memsampd_handler_end\n"
        "2:  mov $34, %eax\n" /* pause */
        "    syscall\n"
        "    jmp 2b\n"
        "memsampd_handler_end:\n"
        "    pop %rcx\n"
        "    mov $15, %eax\n" /* rt_sigreturn */
        "    syscall\n"
        "    .org memsampd_handler + " TEXT(HANDLER_BYTES) ", 0xcc\n"
        ".popsection\n");
extern const uint8_t memsampd_handler[], memsampd_handler_posted[], memsampd_handler_end[];

const int post_signal[5] = {SIGBUS, SIGSEGV, SIGTRAP, SIGILL, SIGFPE};

static struct post *
post_of(const uint8_t *area)
{
    return (struct post *)(uintptr_t)(area + AREA_POST);
}

void
post_put_handler(uint8_t *area)
{
    memcpy(area + AREA_HANDLER, memsampd_handler, AREA_HANDLER_BYTES);
}

uint64_t
post_handler_posted(void)
{
    return AREA_HANDLER + (uint64_t)(memsampd_handler_posted - memsampd_handler);
}

uint64_t
post_handler_end(void)
{
    return AREA_HANDLER + (uint64_t)(memsampd_handler_end - memsampd_handler);
}

bool
post_is_handler(uint64_t offset)
{
    return offset >= AREA_HANDLER && offset < AREA_HANDLER + AREA_HANDLER_BYTES;
}

uint64_t
post_blocked(void)
{
    uint64_t blocked = ~(uint64_t)0;

    for (size_t i = 0; i < sizeof post_signal / sizeof post_signal[0]; i++)
        blocked &= ~((uint64_t)1 << (post_signal[i] - 1));
    return blocked;
}

enum post_state
post_state(const uint8_t *area)
{
    const uint32_t signal = __atomic_load_n(&post_of(area)->signal, __ATOMIC_ACQUIRE);
    return signal == NO_SIGNAL ? POST_EMPTY : signal == SLEEPING ? POST_ASLEEP : POST_WAITING;
}

void
post_put_to_sleep(uint8_t *area)
{
    uint32_t *const signal = &post_of(area)->signal;
    const uint32_t state = __atomic_load_n(signal, __ATOMIC_ACQUIRE);

    if (state != NO_SIGNAL)
        __atomic_store_n(signal, SLEEPING, __ATOMIC_RELEASE);
}

void
post_clear(uint8_t *area)
{
    __atomic_store_n(&post_of(area)->signal, NO_SIGNAL, __ATOMIC_RELEASE);
}

/* The offset in the area of something that lies on the handler's stack; 0: it does not. */
static size_t
on_stack(uint64_t area_address, uint64_t address, size_t size)
{
    const uint64_t offset = address - area_address;

    return offset >= AREA_STACK && offset % 8 == 0 &&
                   offset <= AREA_STACK + AREA_STACK_BYTES - size ? (size_t)offset : 0;
}

bool
post_read(const uint8_t *area, uint64_t area_address, uint64_t context, uint64_t info,
          struct stop *stop)
{
    const struct post *post = post_of(area);
    uint64_t words[SIGINFO_WORDS];

    if (context == 0) {
        context = __atomic_load_n(&post->context, __ATOMIC_RELAXED);
        info = __atomic_load_n(&post->info, __ATOMIC_RELAXED);
    }
    stop->frame = on_stack(area_address, context, sizeof(ucontext_t));
    const size_t told = on_stack(area_address, info, sizeof words);
    if (stop->frame == 0 || told == 0)
        return false;
    memcpy(words, area + told, sizeof words);
    stop->signal = (int)(uint32_t)words[0];
    stop->code = (int)(uint32_t)words[1];
    stop->address = words[2];
    return stop->signal > 0 && stop->signal < NSIG;
}

/* The kernel's struct sigcontext begins with these, as words of struct user_regs_struct. */
#define WORD(name) (offsetof(struct user_regs_struct, name) / 8)
static const uint8_t word_of[] = {
    WORD(r8),  WORD(r9),  WORD(r10), WORD(r11), WORD(r12), WORD(r13), WORD(r14), WORD(r15), WORD(rdi),
    WORD(rsi), WORD(rbp), WORD(rbx), WORD(rdx), WORD(rax), WORD(rcx), WORD(rsp), WORD(rip), WORD(eflags),
};
#define REGISTERS_AT offsetof(ucontext_t, uc_mcontext.gregs)

void
post_read_registers(const uint8_t *area, const struct stop *stop, struct user_regs_struct *regs)
{
    for (size_t i = 0; i < sizeof word_of; i++)
        memcpy((uint64_t *)regs + word_of[i], area + stop->frame + REGISTERS_AT + 8 * i, 8);
}

void
post_write_registers(uint8_t *area, const struct stop *stop, const struct user_regs_struct *regs)
{
    for (size_t i = 0; i < sizeof word_of; i++)
        memcpy(area + stop->frame + REGISTERS_AT + 8 * i, (const uint64_t *)regs + word_of[i], 8);
}

enum post_state
post_answer(uint8_t *area, const struct stop *stop)
{
    uint32_t signal = (uint32_t)stop->signal;

    if (__atomic_compare_exchange_n(&post_of(area)->signal, &signal, NO_SIGNAL, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return POST_EMPTY;
    return signal == SLEEPING ? POST_ASLEEP : POST_WAITING;
}
