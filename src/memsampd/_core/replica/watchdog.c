#include "core.h"
#include "watchdog.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct timespec
as_timespec(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    return t;
}

static void *
watch(void *context)
{
    struct watchdog *w = context;

    pthread_mutex_lock(&w->lock);
    while (!w->is_closing) {
        if (w->pidfd < 0 || w->has_fired) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        struct timespec until = as_timespec(w->deadline_seconds);
        if (!w->is_cancelled &&
            pthread_cond_timedwait(&w->changed, &w->lock, &until) != ETIMEDOUT)
            continue;
        if (w->pidfd < 0)
            continue;
        w->has_fired = true;
        syscall(SYS_pidfd_send_signal, w->pidfd, SIGSTOP, NULL, 0);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int
watchdog_init(struct watchdog *w)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;

    memset(w, 0, sizeof *w);
    w->pidfd = -1;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all); /* the program's signals are for its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(&w->thread, NULL, watch, w);
    w->has_thread = errno == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return w->has_thread ? 0 : -1;
}

void
watchdog_free(struct watchdog *w)
{
    if (!w->has_thread)
        return;
    pthread_mutex_lock(&w->lock);
    w->is_closing = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    w->has_thread = false;
}

void
watchdog_arm(struct watchdog *w, int pidfd, double deadline_seconds)
{
    pthread_mutex_lock(&w->lock);
    w->pidfd = pidfd;
    w->deadline_seconds = deadline_seconds;
    w->has_fired = false;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void
watchdog_disarm(struct watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    w->pidfd = -1;
    pthread_mutex_unlock(&w->lock);
}

bool
watchdog_has_fired(struct watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    bool fired = w->has_fired;
    pthread_mutex_unlock(&w->lock);
    return fired;
}

void
watchdog_cancel(struct watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    w->is_cancelled = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}
