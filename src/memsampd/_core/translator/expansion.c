#include "expansion.h"
#include "line_stream.h"

#include <string.h>

void
expansion_begin(struct expansion *x, uint64_t limit, unsigned line_shift)
{
    visits_begin(&x->visits);
    x->limit = limit;
    x->total = x->instructions = x->prefetches = x->repeats = 0;
    x->counted_rows = x->counted_writes = 0;
    x->resume_iteration = 0;
    x->resume_access = 0;
    x->is_full = false;
    x->rows.count = 0;
    memset(&x->regs, 0, sizeof x->regs);
    x->regs.fs_base = x->segment_base[ACCESS_FS];
    x->regs.gs_base = x->segment_base[ACCESS_GS];
    line_marks_begin(&x->marks);
    x->line_shift = line_shift;
}

bool
expansion_count(struct expansion *x)
{
    size_t rare;

    if (!reuse_counter_count(x->counter, &x->marks, &rare))
        return false;
    x->note(x->note_context, x->marks.mark, rare, x->line_shift);
    return true;
}

/* Make marks of rows. False without memory. */
static bool
mark_rows(struct expansion *x)
{
    struct rows *rows = &x->rows;

    for (size_t i = 0; i < rows->count; i++) {
        const uint64_t further = further_lines(rows->address[i], rows->size_bytes[i], x->line_shift);
        if (!line_marks_reserve(&x->marks, further + 1))
            return false;
        for (uint64_t k = 0; k <= further; k++)
            line_marks_put(&x->marks, (rows->address[i] >> x->line_shift) + k);
        x->counted_writes += rows->is_write[i];
    }
    x->counted_rows += rows->count;
    rows->count = 0;
    return true;
}

void
special_operands(const struct special *s, const uint64_t *words, struct user_regs_struct *regs,
                 uint8_t *xstate)
{
    for (unsigned i = 0; i < SPECIAL_GPRS && s->gpr[i] != NO_GPR; i++)
        memcpy((char *)regs + 8 * (size_t)gpr_words[s->gpr[i]], &words[s->gpr_word[i]], 8);
    for (unsigned i = 0; i < s->vectors; i++) {
        if (s->vector_bytes[i] == 8)
            recipe_put_opmask(xstate, s->vector[i], words[s->vector_word[i]]);
        else
            recipe_put_vector(xstate, s->vector[i], &words[s->vector_word[i]], s->vector_bytes[i]);
    }
}

uint64_t
repeated_elements(const struct special *s, const uint64_t *words)
{
    const uint64_t left = words[s->count_after_word];
    uint64_t from = 0;

    for (unsigned i = 0; i < SPECIAL_GPRS && s->gpr[i] != NO_GPR; i++)
        from = s->gpr[i] == RCX ? words[s->gpr_word[i]] : from;
    /* Where the program has written over its record there may be more left than it began with. */
    return left <= from ? from - left : 0;
}

int64_t
repeated_bytes(const struct special *s, const uint64_t *words, const struct user_regs_struct *regs)
{
    uint64_t pointer;

    memcpy(&pointer, (const char *)regs + 8 * (size_t)s->recipe.reference[0].base, 8);
    return (int64_t)(words[s->pointer_after_word] - pointer);
}

/* An iteration of a repeated instruction. */
struct iteration {
    struct rows *rows;
    uint64_t number, next; /* its own, and that of the next one that accesses anything */
    uint64_t step;         /* from element to element */
    bool moves_lines, is_backwards;
};

/* How many elements, from one on, touch no line but those that it touches. */
static uint64_t
elements_in_lines(uint64_t address, unsigned size_bytes, bool is_backwards)
{
    const uint64_t in_line = (UINT64_C(1) << MOVED_LINE_SHIFT) - 1, end = address + size_bytes - 1;
    return (is_backwards ? address & in_line : in_line - (end & in_line)) / size_bytes + 1;
}

/* A recipe_emit: `context` is the iteration. */
static int
add_element(void *context, uint64_t ip, uint64_t address, unsigned size_bytes, int is_write)
{
    struct iteration *now = context;

    if (now->moves_lines) {
        const uint64_t next =
            now->number + elements_in_lines(address, size_bytes, now->is_backwards);
        now->next = next < now->next ? next : now->next;
        if (now->number != 0 &&
            elements_in_lines(address - now->step, size_bytes, now->is_backwards) > 1)
            return 0;
    }
    return rows_add(now->rows, ip, address, size_bytes, is_write);
}

/* The iterations of a repeated instruction: how many the counter tells, and which way the pointer. */
static enum expanded
expand_repeated(struct expansion *x, const struct special *s, const uint64_t *words)
{
    const uint64_t size_bytes = s->recipe.reference[0].size_bytes;
    struct user_regs_struct *regs = &x->regs;
    const uint64_t count = repeated_elements(s, words), rsi = regs->rsi, rdi = regs->rdi;
    struct iteration now = {
        .rows = &x->rows,
        .number = x->resume_iteration,
        .moves_lines = recipe_moves_lines(&s->recipe),
        .is_backwards = repeated_bytes(s, words, regs) < 0,
    };
    now.step = now.is_backwards ? -size_bytes : size_bytes;

    for (; now.number < count; now.number = now.next) {
        const size_t before = x->rows.count;
        if (x->total >= x->limit) {
            x->is_full = true;
            x->resume_iteration = 0;
            return EXPANDED_FULL;
        }
        if (before >= x->chunk_rows) {
            x->resume_iteration = now.number;
            return EXPANDED_CHUNK;
        }
        now.next = now.moves_lines ? UINT64_MAX : now.number + 1;
        regs->rsi = rsi + now.number * now.step;
        regs->rdi = rdi + now.number * now.step;
        if (recipe_references(&s->recipe, regs, x->xstate, add_element, &now) != 0)
            return EXPANDED_NO_MEMORY;
        x->total += x->rows.count - before;
        x->instructions += now.moves_lines;
        if (now.moves_lines)
            x->repeats += (now.next < count ? now.next : count) - now.number;
        x->iterations++;
    }
    x->instructions -= now.moves_lines && count != 0; /* the record tells of one */
    x->resume_iteration = 0;
    return EXPANDED_ALL;
}

static enum expanded
expand_special(struct expansion *x, const struct special *s, const uint64_t *words)
{
    const size_t before = x->rows.count;

    special_operands(s, words, &x->regs, x->xstate);
    if (s->recipe.flags & RECIPE_REPEATED)
        return expand_repeated(x, s, words);
    if (recipe_references(&s->recipe, &x->regs, x->xstate, rows_add, &x->rows) != 0)
        return EXPANDED_NO_MEMORY;
    x->total += x->rows.count - before;
    return EXPANDED_ALL;
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
        if (a->operand[at].source == ACCESS_SPECIAL) {
            result = expand_special(x, &x->blocks->special[a->delta[at]], words);
            if (result != EXPANDED_ALL)
                break;
            continue;
        }
        if (rows_add(&x->rows, a->ip[at],
                     address_of_access(x->blocks, x->segment_base, at, words), a->size_bytes[at],
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
    unsigned done = part->instructions;
    if (result == EXPANDED_FULL) { /* between two iterations of a repeated instruction */
        done = a->instruction[first + i];
    } else if (x->is_full) { /* behind the last one that referenced anything, if it is done */
        const unsigned behind = i == 0 ? 0 : a->instruction[first + i - 1] + 1u;
        done = behind < done ? behind : done;
    }
    count_part(x, block, part, done);
    return x->is_full ? EXPANDED_FULL : EXPANDED_ALL;
}

static bool
add_rows(struct expansion *x, const struct exit *part, const uint64_t *words)
{
    const struct accesses *a = &x->blocks->accesses;
    const size_t first = part->first_access, n = part->accesses;
    struct rows *rows = &x->rows;

    if (n == 0)
        return true;
    if (rows->count + n > rows->capacity && rows_reserve(rows, n) < 0)
        return false;
    memcpy(rows->ip + rows->count, a->ip + first, 8 * n);
    memcpy(rows->size_bytes + rows->count, a->size_bytes + first, 2 * n);
    memcpy(rows->is_write + rows->count, a->is_write + first, n);
    uint64_t *address = rows->address + rows->count;
    for (size_t i = 0; i < n; i++)
        address[i] = address_of_access(x->blocks, x->segment_base, first + i, words);
    rows->count += n;
    return true;
}

static enum expanded
expand_part(struct expansion *x, const uint64_t *words, const struct exit *part)
{
    if (!part->is_plain || x->line_shift != 0 || x->resume_access != 0 ||
        x->total + part->accesses >= x->limit) {
        enum expanded result = expand_slowly(x, &x->blocks->block[part->block], part, words);
        return x->line_shift == 0 || mark_rows(x) ? result : EXPANDED_NO_MEMORY;
    }
    if (!add_rows(x, part, words))
        return EXPANDED_NO_MEMORY;
    x->total += part->accesses;
    x->instructions += part->instructions;
    x->prefetches += part->prefetches;
    return EXPANDED_ALL;
}

/* One whole record, or the rest of one. */
static enum expanded
expand_record(struct expansion *x, struct exit *before, struct exit *now, const uint64_t *words)
{
    bool is_begun = x->resume_access != 0 || x->resume_iteration != 0;

    if (!is_begun && !count_exit(x, before, now))
        return EXPANDED_NO_MEMORY;
    x->iterations = 0;
    enum expanded result = expand_part(x, words, now);
    if (x->iterations > !is_begun) /* the first is counted with the record */
        visits_repeat(&x->visits, x->blocks, (uint32_t)(now - x->blocks->exit),
                      x->iterations - !is_begun);
    return result;
}

enum expanded
expand_cut(struct expansion *x, const uint64_t *words, const struct exit *part)
{
    x->iterations = 0;
    const enum expanded result = expand_part(x, words, part);
    const bool is_over = result != EXPANDED_CHUNK;
    return visits_add_part(&x->visits, x->blocks, part, x->iterations, is_over) ? result
                                                                               : EXPANDED_NO_MEMORY;
}

/* As much waits as should: nothing is to be done but to go on if it can be counted. */
static enum expanded
make_room(struct expansion *x)
{
    if (x->line_shift == 0)
        return EXPANDED_CHUNK;
    return expansion_count(x) ? EXPANDED_ALL : EXPANDED_NO_MEMORY;
}

enum expanded
expand(struct expansion *x, const uint64_t **from, const uint64_t *end)
{
    const uint64_t *at = *from;
    enum expanded result = x->is_full ? EXPANDED_FULL : EXPANDED_ALL;
    struct exit *before = NULL, *now;
    size_t words;

    while (at < end && result == EXPANDED_ALL) {
        if (x->line_shift != 0 && x->resume_access == 0 && x->resume_iteration == 0)
            result = expand_plain_lines(x, &at, end, &before);
        if (at >= end || result != EXPANDED_ALL)
            break;
        if (x->rows.count >= x->chunk_rows || x->marks.count >= MARKS_AT_ONCE) {
            result = make_room(x);
            continue;
        }
        now = exit_of_record(x->blocks, at, end, &words);
        result = now != NULL ? expand_record(x, before, now, at) : EXPANDED_MALFORMED;
        if (result == EXPANDED_CHUNK && (result = make_room(x)) == EXPANDED_ALL)
            continue; /* with the rest of it */
        if (result != EXPANDED_ALL)
            break;
        before = now;
        at += words;
    }
    *from = at;
    return result;
}

uint64_t
special_accesses(const struct special *s, const uint64_t *words)
{
    const struct recipe *r = &s->recipe;
    uint64_t elements = 1;

    if (r->flags & RECIPE_REPEATED) {
        elements = repeated_elements(s, words);
        elements = elements < UINT32_MAX ? elements : 0;
        if (recipe_moves_lines(r))
            elements = (elements * r->reference[0].size_bytes + (1u << MOVED_LINE_SHIFT) - 1) >>
                       MOVED_LINE_SHIFT;
    } else if (r->reference[0].kind == REFERENCE_GATHER) {
        elements = r->reference[0].lanes;
    }
    return elements * r->references;
}

uint64_t
record_accesses_slowly(const struct blocks *blocks, const struct exit *x, const uint64_t *words)
{
    const struct accesses *a = &blocks->accesses;
    uint64_t accesses = x->accesses;

    for (size_t i = x->first_access; i < (size_t)x->first_access + x->accesses; i++)
        if (a->operand[i].source == ACCESS_SPECIAL)
            accesses += special_accesses(&blocks->special[a->delta[i]], words) - 1;
    return accesses;
}

uint64_t
count_accesses(const struct blocks *blocks, const uint64_t *at, const uint64_t *end)
{
    const struct exit *x;
    uint64_t accesses = 0;

    for (size_t words; at < end && (x = exit_of_record(blocks, at, end, &words)) != NULL; at += words)
        accesses += record_accesses(blocks, x, at);
    return accesses;
}
