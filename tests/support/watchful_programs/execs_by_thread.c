/* A thread that is not the first executes the program anew, argv[1] times, while others compute:
 * after argv[2] seconds each time. */
#include "watchful.h"

static char **arguments;
static void *work(void *unused) { (void)unused; compute(3600); return NULL; }
static void *go(void *unused)
{
    char left[16];
    (void)unused;
    compute(atof(arguments[2]));
    snprintf(left, sizeof left, "%d", atoi(arguments[1]) - 1);
    execl("/proc/self/exe", arguments[0], left, arguments[2], NULL);
    fail("exec");
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc > 3) ready();
    if (atoi(argv[1]) == 0 || told()) { puts("right"); return 0; }
    arguments = argv;
    pthread_create(&thread, NULL, work, NULL);
    pthread_create(&thread, NULL, go, NULL);
    compute(3600);
}
