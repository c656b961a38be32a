/* Where a burst's thread and its replica run, and before whom. */
#include "core.h"
#include "burst_cpus.h"

#include <sys/resource.h>
#include <time.h>

#define HURRIED_NICENESS (-15)

/* Both or none: apart, each stop takes longer than where the scheduler puts them. */
static bool
keep_both_to(const cpu_set_t *cpus, pid_t replica)
{
    return sched_setaffinity(replica, sizeof *cpus, cpus) == 0 &&
           sched_setaffinity(0, sizeof *cpus, cpus) == 0;
}

static void
keep_both_to_one(int cpu, pid_t replica)
{
    cpu_set_t one;

    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    keep_both_to(&one, replica);
}

void
go_to_cpu_of(pid_t tid, pid_t replica)
{
    cpu_set_t ours;
    int cpu = thread_cpu(tid);

    if (sched_getaffinity(0, sizeof ours, &ours) < 0)
        return;
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &ours))
        cpu = sched_getcpu();
    keep_both_to_one(cpu, replica);
}

void
go_anywhere(struct burst *b)
{
    keep_both_to(&b->cpus, b->r->process.pid);
}

void
go_aside(struct burst *b)
{
    const int theirs = thread_cpu(b->order->tid);
    const struct timespec moment = {0, 1};
    const pid_t replica = b->r->process.pid;
    cpu_set_t others = b->cpus;

    if (theirs >= 0 && theirs < CPU_SETSIZE && CPU_COUNT(&others) > 1)
        CPU_CLR(theirs, &others);
    if (!keep_both_to(&others, replica) || CPU_COUNT(&others) == 1)
        return;
    nanosleep(&moment, NULL); /* the scheduler puts who wakes up where it is quiet */
    keep_both_to_one(sched_getcpu(), replica);
}

void
hurry(struct burst *b)
{
    /* We go before the replica: it would not make way for one of its own rank, when the time is over. */
    const struct sched_param first = {.sched_priority = 2}, second = {.sched_priority = 1};
    const pid_t replica = b->r->process.pid;
    const int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;

    b->is_hurried = true;
    b->policy = policy == SCHED_BATCH || policy == SCHED_IDLE ? policy : SCHED_OTHER;
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
    sched_setscheduler(replica, b->policy, &none);
    setpriority(PRIO_PROCESS, (id_t)replica, b->niceness);
    sched_setscheduler(0, b->policy | SCHED_RESET_ON_FORK, &none); /* not everybody may clear that flag */
    setpriority(PRIO_PROCESS, 0, b->niceness);
}
