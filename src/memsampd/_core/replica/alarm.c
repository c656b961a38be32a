#include "core.h"
#include "alarm.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ALARM_REPEATS_NANOSECONDS 100000L /* then twice as long, and so on */
#define ALARM_LONGEST_NANOSECONDS 10000000L

struct alarm {
    timer_t timer;
    volatile long pause_nanoseconds; /* until it goes off again; 0: it is not to */
};

static _Thread_local struct alarm *own_alarm;

static int
alarm_signal(void)
{
    return SIGRTMAX - 3;
}

/* It goes off again, as one that comes just before a wait does not end that. On a busy machine waits may be
 * long: an alarm costs 10 to 30 us of CPU time. */
static void
repeat(int signal)
{
    struct alarm *a = own_alarm;
    const int error = errno;

    (void)signal;
    if (a != NULL && a->pause_nanoseconds != 0) {
        const struct itimerspec at = {.it_value.tv_nsec = a->pause_nanoseconds};
        if (a->pause_nanoseconds < ALARM_LONGEST_NANOSECONDS)
            a->pause_nanoseconds *= 2;
        timer_settime(a->timer, 0, &at, NULL);
    }
    errno = error;
}

int
alarm_install(void)
{
    struct sigaction action = {.sa_handler = repeat}; /* no SA_RESTART: waits end with EINTR */
    return sigaction(alarm_signal(), &action, NULL);
}

void
silence_stops(void)
{
    struct sigaction action;

    if (sigaction(SIGCHLD, NULL, &action) == 0 && action.sa_handler == SIG_DFL &&
        !(action.sa_flags & SA_NOCLDSTOP)) {
        action.sa_flags |= SA_NOCLDSTOP;
        sigaction(SIGCHLD, &action, NULL);
    }
}

struct alarm *
alarm_create(void)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = alarm_signal()};
    struct alarm *a = malloc(sizeof *a);
    sigset_t ours;

    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    if (a == NULL || timer_create(CLOCK_MONOTONIC, &event, &a->timer) < 0) {
        free(a);
        return NULL;
    }
    a->pause_nanoseconds = 0;
    own_alarm = a;
    sigemptyset(&ours);
    sigaddset(&ours, alarm_signal());
    pthread_sigmask(SIG_UNBLOCK, &ours, NULL);
    return a;
}

void
alarm_set(struct alarm *a, double seconds)
{
    struct itimerspec at = {{0, 0}, {0, 0}};

    a->pause_nanoseconds = seconds > 0 ? ALARM_REPEATS_NANOSECONDS : 0;
    if (seconds > 0) {
        at.it_value.tv_sec = (time_t)seconds;
        at.it_value.tv_nsec = (long)((seconds - (double)at.it_value.tv_sec) * 1e9);
    }
    timer_settime(a->timer, TIMER_ABSTIME, &at, NULL);
}

void
alarm_free(struct alarm *a)
{
    if (a == NULL)
        return;
    own_alarm = NULL;
    timer_delete(a->timer);
    free(a);
}
