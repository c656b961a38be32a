/* Calls of known number: none is made that is not the program's. */
#include "watchful.h"

int main(int argc, char **argv)
{
    (void)argc;
    char text[64];
    int fd = open("/proc/self/exe", O_RDONLY);
    for (long round = atol(argv[1]); round > 0; round--) {
        for (int i = 0; i < 20000; i++) sink += (uint64_t)i;
        if (pread(fd, text, sizeof text, round % 100) != sizeof text) fail("pread");
        void *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *(volatile char *)memory = 1;
        munmap(memory, 8192);
        syscall(SYS_getppid);
    }
    puts("right");
    return 0;
}
