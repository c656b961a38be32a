#include "counting.h"
#include "reuse_counter.h"

int
counter_init(counter *self, uint64_t seed)
{
    if (line_sample_init(&self->sample, seed) < 0 || stack_samples_init(&self->stacks) < 0 ||
        recent_init(&self->recent, RECENT_FIRST_BITS) < 0)
        return -1;
    return counter_begin(self);
}

int
counter_begin(counter *self)
{
    memset(self->exact, 0, sizeof self->exact);
    self->repeats = 0;
    self->now += EXACT + 1; /* what came before is not within EXACT of the present */
    self->start = self->now;
    stack_samples_begin(&self->stacks);
    scattered_begin(&self->scattered);
    return line_sample_begin(&self->sample);
}

void
counter_free(counter *self)
{
    free(self->recent.entries);
    line_sample_free(&self->sample);
    stack_samples_free(&self->stacks);
}

/* ---- Places for lines ---- */

/* Another line takes the place of this one. */
static int
put_out(counter *self, const recent_line *entry)
{
    const unsigned halvings = self->sample.line_halvings;

    if (entry->time < self->start)
        return 0;
    const int kept = line_sample_put(&self->sample, entry->line, entry->time);
    if (self->sample.line_halvings != halvings)
        stack_samples_forget(&self->stacks, EXACT);
    if (kept == 0)
        stack_samples_forget(&self->stacks, entry->time < self->now - EXACT ? EXACT : 0);
    return kept < 0 ? -1 : 0;
}

/* Those that must stay have found a place, or not; the others are put out if they do not find one. */
static int
move_recent(counter *self, recent_table *to, bool stale, bool *found)
{
    for (size_t i = 0; *found && i < recent_entries(&self->recent); i++) {
        const recent_line *entry = &self->recent.entries[i];
        if (entry->time < self->start || (entry->time < self->now - EXACT) != stale)
            continue;
        recent_line *place = recent_place(to, entry->line, 1);
        if (place != NULL)
            *place = *entry;
        else if (!stale)
            *found = false;
        else if (put_out(self, entry) < 0)
            return -1;
    }
    return 0;
}

/* More places, for all lines that were accessed lately at least. */
static int
grow_recent(counter *self)
{
    for (unsigned bits = self->recent.bits + 1;; bits++) {
        recent_table grown;
        bool found = true;
        if (recent_init(&grown, bits) < 0)
            return -1;
        if (move_recent(self, &grown, false, &found) < 0 ||
            (found && move_recent(self, &grown, true, &found) < 0)) {
            free(grown.entries);
            return -1;
        }
        if (found) {
            free(self->recent.entries);
            self->recent = grown;
            return 0;
        }
        free(grown.entries);
        if (bits >= RECENT_MOST_BITS) {
            self->is_crowded = true;
            return 0;
        }
    }
}

/* A place for a line that has none; what was there is looked after. NULL without memory. */
static recent_line *
make_place(counter *self, uint64_t line)
{
    const uint64_t stale = self->now - EXACT;
    recent_line *place = recent_place(&self->recent, line, stale);
    if (place == NULL && !self->is_crowded && self->recent.bits < RECENT_MOST_BITS) {
        if (grow_recent(self) < 0)
            return NULL;
        place = recent_place(&self->recent, line, stale);
    }
    if (place == NULL)
        place = recent_oldest(&self->recent, line);
    return put_out(self, place) < 0 ? NULL : place;
}

/* A line of the sample returns at EXACT or more, or for the first time; it was last accessed at
 * `before`, or that is to be looked up if it is 0. */
static __attribute__((noinline)) void
count_distant(counter *self, uint64_t line, uint64_t before)
{
    if (before == 0)
        before = line_sample_last(&self->sample, line);
    if (before >= self->start)
        line_sample_note(&self->sample, line, before, self->now);
}

/* Whether the stack distances of what comes now are looked at. */
static bool
has_stacks(const counter *self)
{
    return self->now - self->start < STACK_ACCESSES - LINE_NUMBERS;
}

/* A line that is not at home is accessed again, or for the first time, which `before` = 0 tells as little
 * as that it was not lately. */
static void
note_stack(counter *self, uint64_t line, uint64_t before)
{
    const uint64_t start = self->start;

    if (before == 0 && self->stacks.below > EXACT)
        before = line_sample_last(&self->sample, line);
    if (before >= start && self->now - before - 1 < self->stacks.below)
        stack_samples_note(&self->stacks, (uint32_t)(before - start), (uint32_t)(self->now - start));
}

/* A line that is not at home. Its last access of these is at `last`. */
static __attribute__((noinline)) int
count_strange(counter *self, uint64_t line, uint64_t last)
{
    recent_line *entry = recent_find(&self->recent, line), *home = recent_home(&self->recent, line);
    const uint64_t before = entry != NULL ? entry->time : 0;

    if (entry == NULL) {
        entry = make_place(self, line);
        if (entry == NULL)
            return -1;
        entry->line = line;
    } else if (home->time < self->now - EXACT) { /* it can go home by now */
        if (put_out(self, home) < 0)
            return -1;
        entry->time = entry->line = 0;
        entry = home;
        entry->line = line;
    }
    entry->time = last;
    if (has_stacks(self))
        note_stack(self, line, before);
    if (self->now - before - 1 < EXACT) {
        self->exact[self->now - before - 1]++;
        return 0;
    }
    scattered_note(&self->scattered, line);
    if (line_sample_has(&self->sample, line))
        count_distant(self, line, before);
    return 0;
}

/* Marks that are being counted: from which on, at what time, and where the next rare line goes. */
struct counting {
    size_t i;
    uint64_t now, *rare;
};

/* Count marks up to the last one, or as long as there are stack distances to be looked at. */
ALWAYS_INLINE bool
count_marks(counter *self, const struct line_marks *marks, struct counting *at, bool with_stacks)
{
    recent_table recent = self->recent; /* by value: stores do not change it */
    uint32_t *const exact = self->exact;
    uint8_t *const is_last = self->stacks.is_last;
    const uint64_t *const mark = marks->mark, start = self->start;
    uint64_t now = at->now, next = mark[at->i], *rare = at->rare;
    size_t i = at->i;

    for (; i < marks->count; i++) {
        const uint64_t line = next & LINE_MASK, number = next >> LINE_BITS;
        const uint32_t since = (uint32_t)(now - start);
        if (with_stacks && since >= STACK_ACCESSES - LINE_NUMBERS)
            break;
        next = mark[i + 1];
        const uint64_t last = now + (((next >> LINE_BITS) - number - 1) & (LINE_NUMBERS - 1));
        recent_line *entry = recent_home(&recent, line);
        if (with_stacks)
            is_last[last - start] = 1;
        if (__builtin_expect(entry->line == line, 1)) {
            const uint64_t before = entry->time, distance = now - before - 1;
            entry->time = last;
            if (__builtin_expect(distance < EXACT, 1)) {
                exact[distance]++;
                if (with_stacks) {
                    is_last[before - start] = 0;
                    if (__builtin_expect(stack_samples_want(since, STACK_NEAR), 0))
                        stack_samples_take(&self->stacks, (uint32_t)(before - start), since);
                }
            } else {
                *rare++ = line;
                self->now = now;
                scattered_note(&self->scattered, line);
                if (with_stacks && before >= start)
                    stack_samples_note(&self->stacks, (uint32_t)(before - start), since);
                if (line_sample_has(&self->sample, line))
                    count_distant(self, line, before);
            }
        } else {
            *rare++ = line;
            self->now = now;
            if (__builtin_expect(count_strange(self, line, last) < 0, 0))
                return false;
            recent = self->recent;
        }
        now = last + 1;
    }
    *at = (struct counting){i, now, rare};
    return true;
}

bool
reuse_counter_count(counter *self, struct line_marks *marks, size_t *rare)
{
    const size_t count = marks->count;
    const uint64_t started = self->now;
    struct counting at = {0, started, marks->mark};

    if (count != 0)
        marks->mark[count] = marks->accesses << LINE_BITS;
    if ((has_stacks(self) && !count_marks(self, marks, &at, true)) ||
        (at.i < count && !count_marks(self, marks, &at, false))) {
        self->is_broken = true;
        return false;
    }
    self->now = at.now;
    self->repeats += at.now - started - count;
    *rare = (size_t)(at.rare - marks->mark);
    line_marks_take(marks);
    return true;
}

/* An access that was seen to return counts as a reuse only if the whole of its distance's bin
 * could be seen from it; else it is censored, like one that did not return. So censoring depends
 * on the position in the burst alone, and bins need no guess of what happened inside them.
 *
 * A bin that is one integer could be seen. Of wider ones it is known only now, at the end. */
static void
sum_up_sample(const counter *self, uint64_t *reuses, uint64_t *censored)
{
    const uint64_t end = self->now - 1;
    for (size_t i = 0; i < self->sample.distants; i++) {
        const reuse each = self->sample.distant[i];
        unsigned bin = bin_of(each.now - each.before - 1);
        (bin < bin_of(end - each.before) ? reuses : censored)[bin]++;
    }
    for (uint64_t i = 0; i < table_entries(&self->sample.lines); i++) {
        const table_entry *entry = &self->sample.lines.entries[i];
        if (!entry->value || !line_sample_has(&self->sample, entry->line))
            continue;
        const recent_line *recent = recent_find(&self->recent, entry->line);
        if (recent == NULL || recent->time < self->start)
            censored[bin_of(end - entry->value)]++;
    }
    for (size_t i = 0; i < recent_entries(&self->recent); i++) {
        const recent_line *entry = &self->recent.entries[i];
        if (entry->time < self->start)
            continue;
        if (end - entry->time < EXACT || line_sample_has(&self->sample, entry->line))
            censored[bin_of(end - entry->time)]++;
    }
}

static uint64_t
sum_of(const uint64_t *counts, unsigned first, unsigned end)
{
    uint64_t sum = 0;
    for (unsigned bin = first; bin < end; bin++)
        sum += counts[bin];
    return sum;
}

/* Make what the sample showed the share of it that all distant accesses have: rounded so that their
 * number stays what it is. */
static void
scale_sample(uint64_t *reuses, uint64_t *censored, uint64_t distant)
{
    const uint64_t seen = sum_of(reuses, EXACT, BINS) + sum_of(censored, EXACT, BINS);
    uint64_t before = 0, given = 0;

    if (seen == 0) { /* no more is known than that they are distant */
        censored[EXACT] = distant;
        return;
    }
    for (unsigned bin = EXACT; bin < BINS; bin++) {
        uint64_t *const counts[2] = {&reuses[bin], &censored[bin]};
        for (int i = 0; i < 2; i++) {
            before += *counts[i];
            uint64_t due = (uint64_t)((unsigned __int128)before * distant / seen);
            *counts[i] = due - given;
            given = due;
        }
    }
}

void
counter_sum_up(const counter *self, uint64_t *reuses, uint64_t *censored)
{
    for (unsigned distance = 0; distance < EXACT; distance++)
        reuses[distance] = self->exact[distance];
    reuses[0] += self->repeats;
    sum_up_sample(self, reuses, censored);
    scale_sample(reuses, censored,
                 self->now - self->start - sum_of(reuses, 0, EXACT) - sum_of(censored, 0, EXACT));
}
