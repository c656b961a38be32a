/* hostile AREA WAY [SEED]: means harm to what observes it. Ends when there is a line of input.
 *
 * AREA is where a replica of it has the translator's area. Here is nothing: its stores and jumps
 * fault, which it survives by a handler; in the replica they hit until it comes to the fault of a
 * page that it lacks. WAY is what it does, or 16: another thing each time. */
#include <immintrin.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#define ALL 16
#define POST 0x800ul
#define STACK 0x1000ul
#define TABLE 0x5000ul
#define CODE (TABLE + (16ul << 16))
#define BUFFER (CODE + (64ul << 20))
#define BUFFER_BYTES (16ul << 20)
static sigjmp_buf back;
static volatile uint64_t sink;
static volatile uint64_t state = 88172645463325252u;
static uint64_t draw(void)
{
    uint64_t x = state;
    x ^= x << 13; x ^= x >> 7; x ^= x << 17;
    return state = x;
}
static void fault(int n) { siglongjmp(back, n); }
static const uint64_t values[] = {0, 1, 2, 0xffffffff, ~0ul, 1ul << 63, 0x7ffffffff000, 4096, 39};
static uint64_t value(void)
{
    return draw() % 3 ? values[draw() % (sizeof values / sizeof *values)] : draw();
}
/* Any word of a part of the area, over and over. */
static void scribble(uint64_t start, uint64_t bytes, int times)
{
    for (int i = 0; i < times; i++)
        *(volatile uint64_t *)(start + (draw() % bytes & ~7ul)) = value();
}
static void fill(uint64_t start, uint64_t bytes, uint64_t with)
{
    for (uint64_t at = 0; at < bytes; at += 8) *(volatile uint64_t *)(start + at) = with;
}
static void jump(uint64_t where) { ((void (*)(void))where)(); }
static __attribute__((noinline)) void repeat(uint64_t to, uint64_t count, int back_to_front)
{
    if (back_to_front) __asm__ volatile("std");
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(7) : "memory");
    __asm__ volatile("cld");
}
/* Stack pointers that point into the area, or nowhere. */
static __attribute__((noinline)) void move_stack(uint64_t to)
{
    __asm__ volatile("mov %%rsp, %%r12\n mov %0, %%rsp\n push %%rax\n push $34\n"
                     "popq %%rax\n popq %%rax\n"
                     "mov %%r12, %%rsp" : : "r"(to) : "r12", "rax", "memory");
}
/* All registers are addresses of the area's. */
static __attribute__((noinline)) void registers(uint64_t at)
{
    __asm__ volatile("push %%rbp\n push %%rbx\n mov %0, %%rax\n mov %%rax, %%rbx\n"
                     "mov %%rax, %%rcx\n mov %%rax, %%rdx\n mov %%rax, %%rsi\n"
                     "mov %%rax, %%rdi\n mov %%rax, %%rbp\n"
                     "mov %%rax, %%r8\n mov %%rax, %%r9\n mov %%rax, %%r10\n mov %%rax, %%r11\n"
                     "mov %%rax, %%r12\n mov %%rax, %%r13\n mov %%rax, %%r14\n mov %%rax, %%r15\n"
                     "movq %%r8, (%%r9)\n movq %%rsi, 8(%%rdi)\n addq %%r15, 136(%%r14)\n"
                     "pop %%rbx\n pop %%rbp"
                     : : "r"(at) : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11",
                       "r12", "r13", "r14", "r15", "memory");
}
static uint64_t somewhere(uint64_t area)
{
    return area + (draw() & 1 ? draw() % TABLE : BUFFER + draw() % BUFFER_BYTES);
}
static unsigned char *code;
/* Code that is written, run, and written over by itself. */
static void rewrite(void)
{
    static const unsigned char texts[][8] = {
        {0x0f, 0x05, 0xc3}, {0xb8, 0x0f, 0x05, 0x0f, 0x05, 0xc3}, {0xcd, 0x80, 0xc3},
        {0x0f, 0x0b, 0xc3}, {0xf4, 0xc3}, {0xcc, 0xc3}, {0xf1, 0xc3}, {0x0f, 0x34, 0xc3},
        {0xeb, 0xfd, 0x0f, 0x05, 0xc3},
        {0xc6, 0x05, 0x00, 0x00, 0x00, 0x00, 0x90, 0xc3}};
    memcpy(code, texts[draw() % 10], 8);
    __asm__ volatile("" ::: "memory");
    ((long (*)(long, long))code)(39, 39);
}
static void *unmapper(void *where)
{
    for (;;) {
        char *page = where;
        mprotect(page, 4096, PROT_NONE);
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
        munmap(page + 4096, 4096);
        mmap(page + 4096, 4096, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    return NULL;
}
/* Whether there is a line of input. */
static int told(void)
{
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}
int main(int argc, char **argv)
{
    const uint64_t area = strtoul(argv[1], NULL, 0);
    const int way = atoi(argv[2]);
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    struct sigaction action = {.sa_handler = fault, .sa_flags = SA_ONSTACK | SA_NODEFER};
    const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    char *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t thread;
    if (argc > 3) state ^= strtoul(argv[3], NULL, 0) * 0x9e3779b97f4a7c15u;
    code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaltstack(&stack, NULL);
    for (int i = 0; i < 6; i++) sigaction(faults[i], &action, NULL);
    if (way == 9 || way == ALL) pthread_create(&thread, NULL, unmapper, shared);
    puts("ready");
    fflush(stdout);
    while (!told()) {
        for (int i = 0; i < 20000; i++) sink += draw();
        if (sigsetjmp(back, 1)) { __asm__ volatile("cld"); continue; }
        switch (way == ALL ? (int)(draw() % ALL) : way) {
        case 0: scribble(area, TABLE, 500); scribble(area + BUFFER, BUFFER_BYTES, 100000); break;
        case 1: fill(area + BUFFER, BUFFER_BYTES, value()); break;
        case 2: scribble(area + TABLE, CODE - TABLE, 100); break;
        case 3: scribble(area + CODE, 64ul << 20, 100); break;
        case 4: jump(area + (draw() % 4 ? CODE + draw() % 65536 : draw() % BUFFER)); break;
        case 5: repeat(area + BUFFER + draw() % BUFFER_BYTES, value(), (int)(draw() & 1)); break;
        case 6: move_stack(somewhere(area)); break;
        case 7: registers(somewhere(area) & ~7ul); break;
        case 8: rewrite(); break;
        case 9: for (int i = 0; i < 100000; i++) { shared[draw() % 8192]++; } break;
        case 10: {
            volatile float tiny = 1e-38f;
            _mm_setcsr(((unsigned)draw() & 0xffbf) & ~0x1f80u);
            tiny = tiny * tiny / 0.0f;
            _mm_setcsr(0x1f80);
            jump(area + CODE + 0x4000);
            break;
        }
        case 11: {
            uint64_t wild = value(), flags = draw() & 0xbd5 & ~0x100ul;
            __asm__ volatile("pushq %0\n popfq\n" : : "r"(flags) : "cc", "memory");
            __asm__ volatile("cld");
            move_stack(wild);
            *(volatile uint64_t *)wild = 1;
            break;
        }
        case 12:
            __asm__ volatile("pushfq\n orq $0x100, (%%rsp)\n popfq\n nop\n nop\n pushfq\n"
                             "andq $~0x100, (%%rsp)\n popfq" ::: "cc", "memory");
            fill(area, TABLE, value());
            break;
        case 13: /* what it wrote before it came to the end of what it had */
            fill(area, TABLE, area + BUFFER + (draw() % (BUFFER_BYTES + (1 << 17)))); break;
        case 14: { /* what our signal handler would tell, and that handler */
            volatile uint64_t *post = (volatile uint64_t *)(area + POST);
            const uint64_t at = area + STACK + (draw() % (TABLE - STACK) & ~7ul);
            volatile uint64_t *told = (volatile uint64_t *)at;
            told[0] = draw() % 33, told[1] = draw() % 4, told[2] = value();
            post[1] = at;
            post[2] = draw() % 3 ? area + STACK + (draw() % (TABLE - STACK) & ~7ul) : value();
            post[0] = draw() % 3 ? told[0] : value();
            for (int i = 0; i < 1000; i++) sink += draw();
            jump(area + CODE + 256 + draw() % 128);
            break;
        }
        default: jump(value());
        }
    }
    puts("alive");
    return 0;
}
