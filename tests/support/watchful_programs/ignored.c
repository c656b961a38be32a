/* Ignored signals rain on one that waits: only a traced thread is woken by them. */
#include "watchful.h"

static void *rain(void *whom)
{
    pthread_t thread = *(pthread_t *)whom;
    for (;;) {
        pthread_kill(thread, SIGCHLD);
        usleep(300);
        pthread_kill(thread, SIGWINCH);
        usleep(300);
        pthread_kill(thread, SIGCONT);
        usleep(300);
    }
    return NULL;
}

int main(void)
{
    pthread_t self = pthread_self(), other;
    int poller = epoll_create1(0);
    struct epoll_event event;
    pthread_create(&other, NULL, rain, &self);
    ready();
    while (!told()) {
        compute(0.002);
        if (epoll_wait(poller, &event, 1, 2) != 0) fail("epoll_wait");
    }
    puts("right");
    return 0;
}
