/* Where a burst's thread and its replica run, and before whom. */
#include "core.h"
#include "burst_cpus.h"

#include <sys/resource.h>

#define HURRIED_NICENESS (-15)

void
go_to_cpu_of(pid_t tid, pid_t replica)
{
    cpu_set_t ours, one;
    int cpu = thread_cpu(tid);

    if (sched_getaffinity(0, sizeof ours, &ours) < 0)
        return;
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &ours))
        cpu = sched_getcpu();
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0)
        sched_setaffinity(replica, sizeof one, &one);
}

void
go_anywhere(struct burst *b)
{
    sched_setaffinity(0, sizeof b->cpus, &b->cpus);
    sched_setaffinity(b->r->process.pid, sizeof b->cpus, &b->cpus);
}

void
go_aside(struct burst *b)
{
    const int theirs = thread_cpu(b->order->tid);
    cpu_set_t one = b->cpus;

    if (theirs >= 0 && theirs < CPU_SETSIZE && CPU_COUNT(&one) > 1)
        CPU_CLR(theirs, &one);
    for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &one) && kept++ != 0)
            CPU_CLR(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    sched_setaffinity(b->r->process.pid, sizeof one, &one);
}

void
hurry(struct burst *b)
{
    /* We go before the replica: it would not make way for one of its own rank, when the time is over. */
    const struct sched_param first = {.sched_priority = 2}, second = {.sched_priority = 1};
    const pid_t replica = b->r->process.pid;

    b->is_hurried = true;
    b->niceness = getpriority(PRIO_PROCESS, 0);
    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) == 0 &&
        sched_setscheduler(replica, SCHED_FIFO, &second) == 0)
        return;
    setpriority(PRIO_PROCESS, 0, HURRIED_NICENESS);
    setpriority(PRIO_PROCESS, (id_t)replica, HURRIED_NICENESS);
}

void
unhurry(struct burst *b)
{
    const struct sched_param none = {.sched_priority = 0};
    const pid_t replica = b->r->process.pid;

    if (!b->is_hurried)
        return;
    b->is_hurried = false;
    sched_setscheduler(replica, SCHED_OTHER, &none);
    setpriority(PRIO_PROCESS, (id_t)replica, 0);
    sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none); /* not everybody may clear that flag */
    setpriority(PRIO_PROCESS, 0, b->niceness);
}
