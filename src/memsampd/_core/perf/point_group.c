#include "point_group.h"

#include <errno.h>
#include <linux/hw_breakpoint.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <time.h>

enum {
    RING_BYTES = 64 << 10,
    FEW_HITS_RING_BYTES = 4 << 10, /* if hits fill less: who may not lock much has little of it */
};

/* A record of a hit, as sample_type and read_format below make it; that of the end ends with its time. */
struct hit_record {
    struct perf_event_header header;
    uint64_t id, ip;
    uint64_t time_ns;
    uint64_t read_values; /* members of the group: the clock, the counters and the points */
    uint64_t task_ns;
    uint64_t counts[COUNTERS_MAX + POINTS_MAX];
};
_Static_assert((HITS_MAX + 1) * sizeof(struct hit_record) <= RING_BYTES, "all fit");

static int
open_event(struct perf_event_attr *attr, pid_t tid, int leader)
{
    attr->read_format = PERF_FORMAT_GROUP;
    attr->exclude_hv = 1;
    attr->use_clockid = 1; /* the same in all of a group */
    attr->clockid = CLOCK_MONOTONIC;
    attr->remove_on_exec = 1; /* the new program's addresses mean something else */
    attr->disabled = 1;
    return perf_event_open(attr, tid, -1, leader);
}

static int
open_point(struct point_group *g, pid_t tid, const struct point *point, size_t ring_bytes)
{
    struct perf_event_attr attr = {
        .type = PERF_TYPE_BREAKPOINT,
        .bp_type = point->kind,
        .bp_addr = point->address,
        .bp_len = point->kind == HW_BREAKPOINT_X ? sizeof(long) : HW_BREAKPOINT_LEN_8,
        .sample_period = 1,
        .exclude_kernel = !g->how.sees_kernel,
        .sample_type =
            PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_IP | PERF_SAMPLE_TIME | PERF_SAMPLE_READ,
        /* Who waits for the thread to come here wants to find it still there. */
        .wakeup_events = 1,
    };
    const int fd = open_event(&attr, tid, g->clock), at = g->points;
    if (fd < 0)
        return -1;
    g->fd[g->points++] = fd;
    if (ioctl(fd, PERF_EVENT_IOC_ID, &g->id[at]) < 0)
        return -1;
    return at == 0 ? ring_map(&g->ring, fd, ring_bytes)
                   : ioctl(fd, PERF_EVENT_IOC_SET_OUTPUT, g->fd[0]);
}

/* Counts from when the clock starts; the other members' disabled bit is theirs. */
static int
open_counter(struct point_group *g, pid_t tid, struct perf_event_attr *attr)
{
    attr->exclude_kernel = 1;
    int fd = open_event(attr, tid, g->clock);
    if (fd < 0)
        return -1;
    g->counter[g->counters++] = fd;
    return ioctl(fd, PERF_EVENT_IOC_ENABLE, 0);
}

/* The clock writes to the ring, too, once: when the kernel ends it. */
static int
have_end_told(struct point_group *g)
{
    return ioctl(g->clock, PERF_EVENT_IOC_ID, &g->clock_id) < 0
               ? -1
               : ioctl(g->clock, PERF_EVENT_IOC_SET_OUTPUT, g->fd[0]);
}

int
points_open(struct point_group *g, pid_t tid, const struct point *points, int count,
            const struct watching *how, struct perf_event_attr *counters, int counter_count)
{
    struct perf_event_attr clock = {
        .type = PERF_TYPE_SOFTWARE,
        .config = PERF_COUNT_SW_TASK_CLOCK,
        .sample_period = how->cpu_ns,
        /* Where it may not look into the kernel the limit waits for user mode; the time counts all the same. */
        .exclude_kernel = !how->sees_kernel,
        .pinned = 1,
        .sample_type = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_IP | PERF_SAMPLE_TIME,
    };
    const size_t members = (size_t)count + (size_t)counter_count;
    const size_t record_bytes = offsetof(struct hit_record, counts) + 8 * members;
    const size_t bytes = ((size_t)how->hits * (size_t)count + 1) * record_bytes; /* and the end */
    const size_t ring_bytes = bytes < FEW_HITS_RING_BYTES ? FEW_HITS_RING_BYTES : RING_BYTES;

    g->how = *how;
    int opened = g->clock = open_event(&clock, tid, -1);
    for (int i = 0; opened >= 0 && i < counter_count; i++)
        opened = open_counter(g, tid, &counters[i]);
    for (int i = 0; opened >= 0 && i < count; i++)
        opened = open_point(g, tid, &points[i], ring_bytes);
    if (opened >= 0 && how->cpu_ns != 0)
        opened = have_end_told(g);
    if (opened >= 0)
        return 0;
    int error = errno; /* closing may change it */
    points_close(g);
    errno = error;
    return -1;
}

void
points_close(struct point_group *g)
{
    ring_unmap(&g->ring);
    while (g->points > 0)
        close(g->fd[--g->points]);
    while (g->counters > 0)
        close(g->counter[--g->counters]);
    if (g->clock >= 0)
        close(g->clock);
    g->clock = -1;
}

int
points_arm(const struct point_group *g, bool starts)
{
    for (int i = 0; i < g->points; i++)
        if (ioctl(g->fd[i], PERF_EVENT_IOC_REFRESH, g->how.hits) < 0)
            return -1;
    if (!starts)
        return 0;
    /* With a limit the clock overflows once, and is disabled: then the whole group is. */
    return g->how.cpu_ns != 0 ? ioctl(g->clock, PERF_EVENT_IOC_REFRESH, 1)
                              : ioctl(g->clock, PERF_EVENT_IOC_ENABLE, 0);
}

/* The next hit, or the end, from a position in the ring on, which is left behind it; false: no more. They are
 * not taken from the ring: it holds all that can come. */
static bool
next_sample(const struct point_group *g, uint64_t *at, uint64_t head, struct hit_record *record)
{
    while (*at < head) {
        if (ring_copy(&g->ring, *at, record, sizeof *record) < sizeof record->header)
            return false; /* never seen; going on would not end */
        *at += record->header.size;
        if (record->header.type == PERF_RECORD_SAMPLE)
            return true;
    }
    return false;
}

static bool
next_hit(const struct point_group *g, uint64_t *at, uint64_t head, struct hit_record *record)
{
    while (next_sample(g, at, head, record))
        if (g->how.cpu_ns == 0 || record->id != g->clock_id)
            return true;
    return false;
}

uint64_t
points_ended_ns(const struct point_group *g)
{
    if (g->how.cpu_ns == 0)
        return 0;
    const uint64_t head = ring_head(&g->ring);
    struct hit_record record;
    uint64_t at = 0;
    while (next_sample(g, &at, head, &record))
        if (record.id == g->clock_id)
            return record.time_ns;
    return 0;
}

int
points_hits_so_far(const struct point_group *g)
{
    const uint64_t head = ring_head(&g->ring);
    struct hit_record record;
    uint64_t at = 0;
    int hits = 0;
    while (next_hit(g, &at, head, &record))
        hits++;
    return hits;
}

static uint32_t
point_of(const struct point_group *g, uint64_t id)
{
    int point = 0;
    while (point < g->points && g->id[point] != id)
        point++;
    return (uint32_t)point;
}

static uint64_t
sum_of(const struct point_group *g, const uint64_t *counts)
{
    uint64_t sum = 0;
    for (int i = 0; i < g->counters; i++)
        sum += counts[i];
    return sum;
}

size_t
points_hits(const struct point_group *g, struct hit hits[HITS_MAX])
{
    const uint64_t head = ring_head(&g->ring);
    const size_t least = offsetof(struct hit_record, counts) + 8 * (size_t)g->counters;
    struct hit_record record;
    uint64_t at = 0;
    size_t count = 0;
    while (count < HITS_MAX && next_hit(g, &at, head, &record))
        if (record.header.size >= least)
            hits[count++] = (struct hit){record.task_ns, record.time_ns, record.ip,
                                         sum_of(g, record.counts), point_of(g, record.id),
                                         (record.header.misc & PERF_RECORD_MISC_CPUMODE_MASK) ==
                                             PERF_RECORD_MISC_KERNEL};
    return count;
}

ssize_t
points_read(const struct point_group *g, uint64_t *task_ns, uint64_t *counted)
{
    struct {
        uint64_t members, task_ns, counts[COUNTERS_MAX + POINTS_MAX];
    } values = {0};
    const ssize_t got = read(g->clock, &values, sizeof values);

    *task_ns = values.task_ns;
    *counted = sum_of(g, values.counts);
    return got;
}
