#include "course.h"
#include "line_stream.h"

#include <string.h>

void
expansion_begin(struct expansion *x, uint64_t limit, uint64_t course_limit, unsigned line_shift)
{
    course_begin(&x->course, course_limit);
    x->limit = limit;
    x->total = x->record_total = x->instructions = x->prefetches = 0;
    x->resume_iteration = 0;
    x->resume_access = 0;
    x->is_full = false;
    x->rows.count = 0;
    lines_begin(&x->lines);
    x->line_shift = line_shift;
}

static void
load_operands(struct expansion *x, const struct special *s, const uint64_t *words,
              struct user_regs_struct *regs)
{
    memset(regs, 0, sizeof *regs);
    regs->fs_base = x->segment_base[ACCESS_FS];
    regs->gs_base = x->segment_base[ACCESS_GS];
    for (unsigned i = 0; i < SPECIAL_GPRS && s->gpr[i] != NO_GPR; i++)
        memcpy((char *)regs + 8 * (size_t)gpr_words[s->gpr[i]], &words[s->gpr_word[i]], 8);
    for (unsigned i = 0; i < s->vectors; i++) {
        if (s->vector_bytes[i] == 8)
            recipe_put_opmask(x->xstate, s->vector[i], words[s->vector_word[i]]);
        else
            recipe_put_vector(x->xstate, s->vector[i], &words[s->vector_word[i]],
                              s->vector_bytes[i]);
    }
}

/* The iterations of a repeated instruction: how many the counter tells, and which way the pointer. */
static enum expanded
expand_repeated(struct expansion *x, const struct special *s, const uint64_t *words,
                struct user_regs_struct *regs)
{
    const struct recipe_reference *first = &s->recipe.reference[0];
    uint64_t count = regs->rcx - words[s->count_after_word], pointer;
    memcpy(&pointer, (char *)regs + 8 * (size_t)first->base, 8);
    bool backwards = (int64_t)(words[s->pointer_after_word] - pointer) < 0;
    uint64_t step = first->size_bytes;
    step = backwards ? -step : step;

    regs->rsi += x->resume_iteration * step;
    regs->rdi += x->resume_iteration * step;
    for (uint64_t i = x->resume_iteration; i < count; i++) {
        size_t before = x->rows.count;
        if (x->total >= x->limit) {
            x->is_full = true;
            x->resume_iteration = 0;
            return EXPANDED_FULL;
        }
        if (before >= x->chunk_rows) {
            x->resume_iteration = i;
            return EXPANDED_CHUNK;
        }
        if (recipe_references(&s->recipe, regs, x->xstate, rows_add, &x->rows) != 0)
            return EXPANDED_NO_MEMORY;
        x->total += x->rows.count - before;
        regs->rsi += step;
        regs->rdi += step;
    }
    x->resume_iteration = 0;
    return EXPANDED_ALL;
}

static enum expanded
expand_special(struct expansion *x, const struct special *s, const uint64_t *words)
{
    struct user_regs_struct regs;
    size_t before = x->rows.count;

    load_operands(x, s, words, &regs);
    if (s->recipe.flags & RECIPE_REPEATED)
        return expand_repeated(x, s, words, &regs);
    if (recipe_references(&s->recipe, &regs, x->xstate, rows_add, &x->rows) != 0)
        return EXPANDED_NO_MEMORY;
    x->total += x->rows.count - before;
    return EXPANDED_ALL;
}

static inline uint64_t
address_of(const struct expansion *x, const struct operand *o, const uint64_t *words)
{
    uint64_t base = o->word != 0 ? words[o->word] : 0;
    return base + x->segment_base[o->source] + (uint64_t)o->delta;
}

/* Count the first so many instructions of a record. */
static void
count_part(struct expansion *x, const struct block *block, const struct exit *part,
           unsigned instructions)
{
    x->instructions += instructions;
    x->prefetches += instructions < part->instructions
                         ? x->blocks->instruction[block->first_instruction + instructions]
                               .prefetches_before
                         : part->prefetches;
}

/* Access by access: special ones, and the limit, which falls between two instructions. */
static enum expanded
expand_slowly(struct expansion *x, const struct block *block, const struct exit *part,
              const uint64_t *words)
{
    const struct accesses *a = &x->blocks->accesses;
    enum expanded result = EXPANDED_ALL;
    uint32_t first = block->first_access, i = x->resume_access;

    for (; i < part->accesses; i++) {
        size_t at = first + i;
        bool is_next = i == 0 || a->instruction[at] != a->instruction[at - 1];
        if (x->total >= x->limit && is_next && x->resume_iteration == 0) {
            x->is_full = true;
            break;
        }
        const struct operand *operand = &a->operand[at];
        if (operand->source == ACCESS_SPECIAL) {
            result = expand_special(x, &x->blocks->special[operand->delta], words);
            if (result != EXPANDED_ALL)
                break;
            continue;
        }
        if (rows_add(&x->rows, a->ip[at], address_of(x, operand, words), operand->size_bytes,
                     a->is_write[at]) != 0)
            return EXPANDED_NO_MEMORY;
        x->total++;
    }
    if (result == EXPANDED_CHUNK || result == EXPANDED_NO_MEMORY) {
        x->resume_access = i;
        return result;
    }
    x->resume_access = 0;
    x->is_full |= x->total >= x->limit;
    if (result == EXPANDED_FULL) /* between two iterations of a repeated instruction */
        count_part(x, block, part, a->instruction[first + i]);
    else if (x->is_full) /* behind the last one that referenced anything */
        count_part(x, block, part, i == 0 ? 0 : a->instruction[first + i - 1] + 1u);
    else
        count_part(x, block, part, part->instructions);
    return x->is_full ? EXPANDED_FULL : EXPANDED_ALL;
}

static bool
add_rows(struct expansion *x, const struct exit *part, const uint64_t *words)
{
    const struct accesses *a = &x->blocks->accesses;
    const size_t first = part->first_access, n = part->accesses;
    struct rows *rows = &x->rows;

    if (rows->count + n > rows->capacity && rows_reserve(rows, n) < 0)
        return false;
    memcpy(rows->ip + rows->count, a->ip + first, 8 * n);
    memcpy(rows->size_bytes + rows->count, a->size_bytes + first, 2 * n);
    memcpy(rows->is_write + rows->count, a->is_write + first, n);
    uint64_t *address = rows->address + rows->count;
    for (size_t i = 0; i < n; i++)
        address[i] = address_of(x, &a->operand[first + i], words);
    rows->count += n;
    return true;
}

/* The further lines that an access touches; room for `more` others is kept. */
static bool
add_further_lines(struct lines *lines, uint64_t first, uint64_t further, size_t more)
{
    if (!lines_reserve(lines, further + more))
        return false;
    for (uint64_t i = 1; i <= further; i++)
        lines->line[lines->count++] = first + i;
    return true;
}

static bool
add_lines(struct expansion *x, const struct exit *part, const uint64_t *words)
{
    const struct operand *operand = x->blocks->accesses.operand + part->first_access;
    const struct operand *end = operand + part->accesses;
    const unsigned shift = x->line_shift;
    struct lines *lines = &x->lines;

    if (!lines_reserve(lines, part->accesses))
        return false;
    uint64_t *line = lines->line + lines->count;
    for (; operand < end; operand++) {
        uint64_t address = address_of(x, operand, words);
        uint64_t further = further_lines(address, operand->size_bytes, shift);
        *line++ = address >> shift;
        if (__builtin_expect(further != 0, 0)) {
            lines->count = (size_t)(line - lines->line);
            if (!add_further_lines(lines, address >> shift, further, (size_t)(end - operand)))
                return false;
            line = lines->line + lines->count;
        }
    }
    lines->count = (size_t)(line - lines->line);
    lines->rows += part->accesses;
    lines->writes += part->stores;
    return true;
}

static enum expanded
expand_one(struct expansion *x, const struct exit *part, const uint64_t *words)
{
    if (!part->is_plain || x->resume_access != 0 || x->total + part->accesses >= x->limit) {
        enum expanded result = expand_slowly(x, &x->blocks->block[part->block], part, words);
        return x->line_shift == 0 || lines_add(&x->lines, &x->rows, x->line_shift)
                   ? result
                   : EXPANDED_NO_MEMORY;
    }
    if (!(x->line_shift == 0 ? add_rows(x, part, words) : add_lines(x, part, words)))
        return EXPANDED_NO_MEMORY;
    x->total += part->accesses;
    x->instructions += part->instructions;
    x->prefetches += part->prefetches;
    return EXPANDED_ALL;
}

static int
count_row(void *context, uint64_t ip, uint64_t address, unsigned size_bytes, int is_write)
{
    uint64_t *rows = context;
    (void)ip;
    (void)address;
    (void)size_bytes;
    (void)is_write;
    ++*rows;
    return 0;
}

static uint64_t
rows_of_special(struct expansion *x, const struct special *s, const uint64_t *words)
{
    struct user_regs_struct regs;
    uint64_t rows = 0;

    load_operands(x, s, words, &regs);
    recipe_references(&s->recipe, &regs, x->xstate, count_row, &rows);
    if (s->recipe.flags & RECIPE_REPEATED)
        rows *= regs.rcx - words[s->count_after_word];
    return rows;
}

/* Rows that a whole record has. */
static uint64_t
rows_of(struct expansion *x, const struct exit *part, const uint64_t *words)
{
    const struct operand *operand = x->blocks->accesses.operand + part->first_access;
    uint64_t rows = part->accesses;

    if (part->is_plain)
        return rows;
    for (uint32_t i = 0; i < part->accesses; i++)
        if (operand[i].source == ACCESS_SPECIAL)
            rows += rows_of_special(x, &x->blocks->special[operand[i].delta], words) - 1;
    return rows;
}

/* What became of the course. False without memory. */
static bool
has_added(struct expansion *x, enum course_added added)
{
    if (added == COURSE_CHANGED)
        lines_start_no_more(&x->lines);
    return added != COURSE_NO_MEMORY;
}

/* A record of as many rows as it is told by the words: the course has to know before. */
static bool
begin_record(struct expansion *x, uint32_t exit, const struct exit *part, const uint64_t *words)
{
    x->record_total = x->total;
    if (x->course.limit == 0 || part->is_plain)
        return true;
    uint64_t rows = rows_of(x, part, words);
    return rows <= part->accesses ||
           has_added(x, course_repeats(&x->course, x->blocks, exit, rows - part->accesses));
}

/* One whole record: to rows while these are wanted, and to the course. */
static inline enum expanded
expand_record(struct expansion *x, uint32_t exit, const uint64_t *words)
{
    const struct exit *part = &x->blocks->exit[exit];

    if (x->resume_access == 0 && x->resume_iteration == 0 && !begin_record(x, exit, part, words))
        return EXPANDED_NO_MEMORY;
    enum expanded result = x->is_full ? EXPANDED_FULL : expand_one(x, part, words);
    if (x->course.limit == 0 || (result != EXPANDED_ALL && result != EXPANDED_FULL))
        return result;
    uint64_t rows =
        result == EXPANDED_ALL ? x->total - x->record_total : rows_of(x, part, words);
    if (!has_added(x, course_add(&x->course, x->blocks, exit, rows)))
        return EXPANDED_NO_MEMORY;
    bool goes_on = x->course.rows < x->course.limit && !x->course.has_changed;
    return result == EXPANDED_FULL && goes_on ? EXPANDED_ALL : result;
}

/* Count for the layout of later translations. */
static void
count_exit(struct exit *before, struct exit *now)
{
    now->hits++;
    if (before == NULL || before->kind != EXIT_INDIRECT)
        return;
    if (before->candidate == now->block) {
        before->votes++;
    } else if (before->votes != 0) { /* Boyer and Moore's majority vote */
        before->votes--;
    } else {
        before->candidate = now->block;
        before->votes = 1;
    }
}

/* Plain records to lines, as nearly all are: up to the first other one, from which *from and *before
 * are left. */
static enum expanded
expand_plain_lines(struct expansion *x, const uint64_t **from, const uint64_t *end,
                   struct exit **before)
{
    struct exit *const exits = x->blocks->exit;
    const uint64_t limit = x->limit;
    const bool has_course = x->course.limit != 0;
    uint64_t total = x->total, instructions = 0, prefetches = 0;
    enum expanded result = EXPANDED_ALL;
    const uint64_t *at = *from;

    while (at < end && x->lines.count < x->chunk_rows) {
        struct exit *now = &exits[at[0]];
        if (!now->is_plain || total + now->accesses >= limit)
            break;
        if (!add_lines(x, now, at) ||
            (has_course && !has_added(x, course_add(&x->course, x->blocks, (uint32_t)at[0],
                                                    now->accesses)))) {
            result = EXPANDED_NO_MEMORY;
            break;
        }
        total += now->accesses;
        instructions += now->instructions;
        prefetches += now->prefetches;
        count_exit(*before, now);
        *before = now;
        at += now->words;
    }
    x->total = total;
    x->instructions += instructions;
    x->prefetches += prefetches;
    *from = at;
    return result;
}

enum expanded
expand(struct expansion *x, const uint64_t **from, const uint64_t *end)
{
    const uint64_t *at = *from;
    enum expanded result = EXPANDED_ALL;
    struct exit *before = NULL, *now;

    while (at < end && result == EXPANDED_ALL) {
        if (x->line_shift != 0 && x->resume_access == 0 && !x->is_full)
            result = expand_plain_lines(x, &at, end, &before);
        if (at >= end || result != EXPANDED_ALL)
            break;
        if (x->rows.count >= x->chunk_rows || x->lines.count >= x->chunk_rows) {
            result = EXPANDED_CHUNK;
            break;
        }
        result = expand_record(x, (uint32_t)at[0], at);
        if (result != EXPANDED_ALL)
            break;
        now = &x->blocks->exit[at[0]];
        count_exit(before, now);
        before = now;
        at += now->words;
    }
    *from = at;
    return result;
}

enum expanded
expand_part(struct expansion *x, const uint64_t *words, const struct exit *part)
{
    return expand_one(x, part, words);
}
