/* Runs pieces of code from given registers on given memory, and tells what became of both.
 *
 * A case on standard input: length u32, code, 16 registers u64 (rax rbx rcx rdx rsi rdi rbp rsp r8
 * to r15). Its answer: the registers, and the memory, two pages at MEMORY. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { MEMORY = 0x20000000, MEMORY_BYTES = 8192, CODE_BYTES = 4096 };

uint64_t native_registers[16], native_stack, native_entry;
void native_run(void);
void native_exit(void);

__asm__(".text\n"
        ".globl native_run, native_exit\n"
        "native_run:\n"
        " push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
        " mov %rsp, native_stack(%rip)\n"
        " lea native_registers(%rip), %r15\n"
        " mov 0(%r15), %rax\n mov 8(%r15), %rbx\n mov 16(%r15), %rcx\n mov 24(%r15), %rdx\n"
        " mov 32(%r15), %rsi\n mov 40(%r15), %rdi\n mov 48(%r15), %rbp\n mov 56(%r15), %rsp\n"
        " mov 64(%r15), %r8\n mov 72(%r15), %r9\n mov 80(%r15), %r10\n mov 88(%r15), %r11\n"
        " mov 96(%r15), %r12\n mov 104(%r15), %r13\n mov 112(%r15), %r14\n mov 120(%r15), %r15\n"
        " jmp *native_entry(%rip)\n"
        "native_exit:\n"
        " mov %r15, native_registers+120(%rip)\n lea native_registers(%rip), %r15\n"
        " mov %rax, 0(%r15)\n mov %rbx, 8(%r15)\n mov %rcx, 16(%r15)\n mov %rdx, 24(%r15)\n"
        " mov %rsi, 32(%r15)\n mov %rdi, 40(%r15)\n mov %rbp, 48(%r15)\n mov %rsp, 56(%r15)\n"
        " mov %r8, 64(%r15)\n mov %r9, 72(%r15)\n mov %r10, 80(%r15)\n mov %r11, 88(%r15)\n"
        " mov %r12, 96(%r15)\n mov %r13, 104(%r15)\n mov %r14, 112(%r15)\n"
        " mov native_stack(%rip), %rsp\n"
        " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");

int main(void)
{
    unsigned char *memory = mmap((void *)MEMORY, MEMORY_BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    unsigned char *code = mmap(NULL, CODE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t length;
    if (memory == MAP_FAILED || code == MAP_FAILED)
        return 1;
    native_entry = (uint64_t)code;
    while (fread(&length, sizeof length, 1, stdin) == 1) {
        const unsigned char jump[6] = {0xff, 0x25}; /* to the address behind it */
        const uint64_t back = (uint64_t)native_exit;
        if (length > CODE_BYTES - 14 || fread(code, length, 1, stdin) != 1 ||
            fread(native_registers, sizeof native_registers, 1, stdin) != 1)
            return 2;
        memcpy(code + length, jump, sizeof jump);
        memcpy(code + length + sizeof jump, &back, sizeof back);
        for (int i = 0; i < MEMORY_BYTES; i++)
            memory[i] = (unsigned char)(i * 37 + (i >> 8) * 11);
        native_run();
        fwrite(native_registers, sizeof native_registers, 1, stdout);
        fwrite(memory, MEMORY_BYTES, 1, stdout);
    }
    return 0;
}
