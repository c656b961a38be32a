#include "course.h"
#include "line_stream.h"

#include <string.h>

void
expansion_begin(struct expansion *x, uint64_t limit, uint64_t course_limit, unsigned line_shift)
{
    course_begin(&x->course, course_limit);
    x->limit = limit;
    x->total = x->instructions = x->prefetches = 0;
    x->resume_iteration = 0;
    x->resume_access = 0;
    x->is_full = false;
    x->rows.count = 0;
    x->lines.count = x->lines.rows = x->lines.writes = 0;
    x->line_shift = line_shift;
}

static void
load_operands(struct expansion *x, const struct special *s, const uint64_t *words,
              struct user_regs_struct *regs)
{
    memset(regs, 0, sizeof *regs);
    regs->fs_base = x->fs_base;
    regs->gs_base = x->gs_base;
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

static uint64_t
address_of(const struct expansion *x, const struct accesses *a, size_t i, const uint64_t *words)
{
    uint64_t base = a->word[i] != 0 ? words[a->word[i]] : 0;
    if (a->source[i] == ACCESS_FS)
        base += x->fs_base;
    else if (a->source[i] == ACCESS_GS)
        base += x->gs_base;
    return base + (uint64_t)a->delta[i];
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
        if (a->source[at] == ACCESS_SPECIAL) {
            result = expand_special(x, &x->blocks->special[a->delta[at]], words);
            if (result != EXPANDED_ALL)
                break;
            continue;
        }
        if (rows_add(&x->rows, a->ip[at], address_of(x, a, at, words), a->size_bytes[at],
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
add_rows(struct rows *rows, const struct accesses *a, size_t first, size_t n, const uint64_t *words)
{
    if (rows->count + n > rows->capacity && rows_reserve(rows, n) < 0)
        return false;
    memcpy(rows->ip + rows->count, a->ip + first, 8 * n);
    memcpy(rows->size_bytes + rows->count, a->size_bytes + first, 2 * n);
    memcpy(rows->is_write + rows->count, a->is_write + first, n);
    uint64_t *address = rows->address + rows->count;
    for (size_t i = 0; i < n; i++) {
        unsigned word = a->word[first + i];
        address[i] = (word != 0 ? words[word] : 0) + (uint64_t)a->delta[first + i];
    }
    rows->count += n;
    return true;
}

static bool
add_lines(struct lines *lines, const struct accesses *a, size_t first, size_t n,
          const uint64_t *words, unsigned shift)
{
    const uint16_t *restrict word = a->word + first, *restrict size_bytes = a->size_bytes + first;
    const int64_t *restrict delta = a->delta + first;
    const uint8_t *restrict is_write = a->is_write + first;
    size_t count = lines->count, writes = 0;

    if (!lines_reserve(lines, 2 * n))
        return false;
    uint64_t *restrict line = lines->line;
    for (size_t i = 0; i < n; i++) {
        uint64_t address = (word[i] != 0 ? words[word[i]] : 0) + (uint64_t)delta[i];
        uint64_t further = further_lines(address, size_bytes[i], shift);
        line[count] = address >> shift;
        line[count + 1] = (address >> shift) + 1; /* overwritten if it is not touched */
        if (further > 1) {
            lines->count = count;
            if (!lines_reserve(lines, further + 2 * (n - i)))
                return false;
            line = lines->line;
            for (uint64_t k = 0; k <= further; k++)
                line[count + k] = (address >> shift) + k;
        }
        count += 1 + further;
    }
    for (size_t i = 0; i < n; i++)
        writes += is_write[i];
    lines->count = count;
    lines->rows += n;
    lines->writes += writes;
    return true;
}

static enum expanded
expand_one(struct expansion *x, const struct exit *part, const uint64_t *words)
{
    const struct block *block = &x->blocks->block[part->block];
    const struct accesses *a = &x->blocks->accesses;
    const size_t first = block->first_access, n = part->accesses;

    if (!block->is_plain || x->resume_access != 0 || x->total + n >= x->limit) {
        enum expanded result = expand_slowly(x, block, part, words);
        return x->line_shift == 0 || lines_add(&x->lines, &x->rows, x->line_shift)
                   ? result
                   : EXPANDED_NO_MEMORY;
    }
    if (!(x->line_shift == 0 ? add_rows(&x->rows, a, first, n, words)
                             : add_lines(&x->lines, a, first, n, words, x->line_shift)))
        return EXPANDED_NO_MEMORY;
    x->total += n;
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
    const struct block *block = &x->blocks->block[part->block];
    const struct accesses *a = &x->blocks->accesses;
    uint64_t rows = part->accesses;

    if (block->is_plain)
        return rows;
    for (uint32_t i = 0; i < part->accesses; i++) {
        size_t at = block->first_access + i;
        if (a->source[at] == ACCESS_SPECIAL)
            rows += rows_of_special(x, &x->blocks->special[a->delta[at]], words) - 1;
    }
    return rows;
}

/* One whole record: to rows while these are wanted, and to the course. */
static enum expanded
expand_record(struct expansion *x, uint32_t exit, const uint64_t *words)
{
    const struct exit *part = &x->blocks->exit[exit];
    enum expanded result = x->is_full ? EXPANDED_FULL : expand_one(x, part, words);

    if (x->course.limit == 0 || (result != EXPANDED_ALL && result != EXPANDED_FULL))
        return result;
    if (course_add(&x->course, x->blocks, exit, rows_of(x, part, words)) < 0)
        return EXPANDED_NO_MEMORY;
    return result == EXPANDED_FULL && x->course.rows < x->course.limit ? EXPANDED_ALL : result;
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

enum expanded
expand(struct expansion *x, const uint64_t **from, const uint64_t *end)
{
    const uint64_t *at = *from;
    enum expanded result = EXPANDED_ALL;
    struct exit *before = NULL, *now;

    while (at < end) {
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
