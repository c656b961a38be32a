/* Under a filter that allows no restart_syscall. argv[1]: milliseconds to sleep now and then; argv[2]:
 * "late" if the filter comes when it is told to, as servers take theirs. */
#include "watchful.h"

#define ALLOW(n) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##n, 0, 1), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(int argc, char **argv)
{
    (void)argc;
    int sleep_milliseconds = atoi(argv[1]);
    char line;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(write), ALLOW(exit_group), ALLOW(fstat), ALLOW(newfstatat), ALLOW(clock_gettime),
        ALLOW(poll),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    setvbuf(stdout, NULL, _IONBF, 0);
    if (strcmp(argv[2], "late") == 0) {
        puts("early");
        while (!told()) compute(0.01);
        if (read(0, &line, 1) != 1) fail("read");
    }
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) fail("seccomp");
    puts("ready");
    while (!told()) {
        compute(0.02);
        double begin = now();
        if (sleep_milliseconds && (poll(NULL, 0, sleep_milliseconds) != 0 ||
                                   now() - begin < 1e-3 * sleep_milliseconds)) {
            puts("cut short");
            return 1;
        }
    }
    puts("right");
    return 0;
}
