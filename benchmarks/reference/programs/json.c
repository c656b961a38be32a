/* json DOCUMENTS ROUNDS: documents are written as text, parsed into trees, searched and summed.
 *
 * Sizes of documents differ by a factor of thousand: many small ones, some large. Each round keeps
 * the trees of all documents, looks members up by name and writes a part of them again.
 * Deterministic.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { NUMBER, STRING, LIST, OBJECT } kind;

typedef struct node {
    kind kind;
    uint32_t length;       /* of the text */
    const char *name;      /* of a member; ends at its quote */
    const char *text;      /* of a string */
    double number;
    struct node *first, *next;
} node;

typedef struct {
    node *node;
    size_t used, size;
} arena;

static uint64_t state = 88172645463325252u;

static uint32_t random_next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static void *allocate(size_t count, size_t size)
{
    void *memory = malloc(count * size);
    if (memory == NULL)
        exit(1);
    return memory;
}

/* ---- writing ---- */

static const char *const names[] = {"id", "name", "tags", "price", "parts", "at", "owner", "notes"};

static char *write_text(char *to, const char *text)
{
    *to++ = '"';
    while (*text)
        *to++ = *text++;
    *to++ = '"';
    return to;
}

static char *write_word(char *to)
{
    uint32_t draw = random_next();
    *to++ = '"';
    for (unsigned i = 0; i < 3 + draw % 12; i++)
        *to++ = (char)('a' + (draw >> (i % 6 * 4)) % 16);
    *to++ = '"';
    return to;
}

static char *write_digits(char *to, uint32_t number)
{
    char digits[10];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count)
        *to++ = digits[--count];
    return to;
}

static char *write_value(char *to, unsigned depth)
{
    uint32_t draw = random_next();
    if (depth == 0 || draw % 4 == 0)
        return draw & 16 ? write_digits(to, draw >> (draw >> 8) % 24) : write_word(to);
    unsigned members = 2 + (draw >> 8) % 6;
    char open = draw & 16 ? '[' : '{';
    *to++ = open;
    for (unsigned i = 0; i < members; i++) {
        if (i)
            *to++ = ',';
        if (open == '{') {
            to = write_text(to, names[((draw >> 16) + i) % 8]);
            *to++ = ':';
        }
        to = write_value(to, depth - 1);
    }
    *to++ = open == '[' ? ']' : '}';
    return to;
}

/* ---- parsing ---- */

static node *new_node(arena *a, kind kind)
{
    if (a->used == a->size)
        exit(1);
    node *made = &a->node[a->used++];
    memset(made, 0, sizeof *made);
    made->kind = kind;
    return made;
}

static const char *parse(const char *at, arena *a, node **found);

static const char *parse_members(const char *at, arena *a, node *parent, char close)
{
    node **next = &parent->first;
    while (*at != close) {
        const char *name = NULL;
        if (*at == ',')
            at++;
        if (close == '}') {
            name = at + 1;
            for (at++; *at != '"'; at++)
                ;
            at += 2;
        }
        at = parse(at, a, next);
        (*next)->name = name;
        next = &(*next)->next;
    }
    return at + 1;
}

static const char *parse(const char *at, arena *a, node **found)
{
    if (*at == '{' || *at == '[') {
        *found = new_node(a, *at == '{' ? OBJECT : LIST);
        return parse_members(at + 1, a, *found, *at == '{' ? '}' : ']');
    }
    if (*at == '"') {
        *found = new_node(a, STRING);
        (*found)->text = ++at;
        for (; *at != '"'; at++)
            (*found)->length++;
        return at + 1;
    }
    *found = new_node(a, NUMBER);
    for (; *at >= '0' && *at <= '9'; at++)
        (*found)->number = 10 * (*found)->number + (*at - '0');
    return at;
}

/* ---- searching ---- */

static double total(const node *tree, const char *name, size_t length)
{
    double sum = 0;
    for (const node *each = tree->first; each; each = each->next) {
        if (each->kind == NUMBER && (!each->name || !strncmp(each->name, name, length)))
            sum += each->number;
        sum += total(each, name, length);
    }
    return sum;
}

static uint64_t letters(const node *tree)
{
    uint64_t sum = 0;
    for (const node *each = tree->first; each; each = each->next) {
        for (uint32_t i = 0; i < each->length; i++)
            sum = 31 * sum + (uint64_t)each->text[i];
        sum += letters(each);
    }
    return sum;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t documents = (size_t)atoi(argv[1]), bytes = (size_t)64 << 20, count = 0;
    char *text = allocate(bytes, 1), *end = text;
    const char **start = allocate(documents, sizeof *start);
    arena a = {allocate(bytes / 16, sizeof(node)), 0, bytes / 16};
    node **tree = allocate(documents, sizeof *tree);
    double sum = 0;
    uint64_t hash = 0;

    while (count < documents && (size_t)(end - text) < bytes / 2) {
        start[count++] = end;
        end = write_value(end, 3 + (random_next() % 64 ? count % 4 : 6));
        *end++ = '\n';
    }
    for (int round = 0; round < atoi(argv[2]); round++) {
        a.used = 0;
        for (size_t i = 0; i < count; i++)
            parse(start[i], &a, &tree[i]);
        for (size_t search = 0; search < 6; search++)
            for (size_t i = 0; i < count; i++)
                sum += total(tree[i], names[search], strlen(names[search]));
        for (size_t i = 0; i < 40 * count; i++) /* some documents are wanted often */
            sum += total(tree[random_next() % (count / 8 + 1)], "price", 5);
        for (size_t i = 0; i < count; i++)
            hash += letters(tree[i]);
    }
    printf("%zu %zu %td %.9e %" PRIu64 "\n", count, a.used, end - text, sum, hash);
    return 0;
}
