/* Choosing the instructions of a superblock: a path through the program's code.
 *
 * Without a profile it is straight-line code up to the first jump. With one it goes where the
 * program mostly goes: along taken branches, jumps, calls and what they return to, and round again
 * through short loops.
 */
#ifndef MEMSAMPD_PATH_H
#define MEMSAMPD_PATH_H

#include "tables.h"

#define PATH_MAXIMUM_INSTRUCTIONS 64

/* How the path goes on behind an instruction that can transfer control. */
enum way {
    WAY_ON,    /* behind it; a conditional branch leaves the path when taken */
    WAY_TAKEN, /* to the target of a conditional branch; it leaves the path when not taken */
    WAY_THERE, /* to the one target of a direct jump or call */
    WAY_GUESS, /* to the likely target of an indirect jump, call or return, which leaves the path if
                * it goes elsewhere */
    WAY_END,   /* nowhere: the last instruction */
};

struct step {
    struct parsed p;
    const struct form *form;
    uint64_t ip;
    uint64_t next; /* where the path goes on, except at WAY_END */
    uint8_t way;
};

/* Two registers for translated code itself. */
struct pair {
    uint8_t scratch, buffer;
};

struct path {
    struct step step[PATH_MAXIMUM_INSTRUCTIONS];
    unsigned count;
    uint64_t next_ip;  /* behind the last step, unless that ends at WAY_END */
    uint8_t last_kind; /* enum exit_kind: how it goes on there */
    struct pair pair;  /* that no step uses */
    bool is_guided;    /* laid out by the profile */
    bool is_passing;   /* ends at what the replica has stored to in this burst */
};

/* TRANSLATED, or TRANSLATION_NEEDS_FORM. */
enum translation path_choose(struct blocks *b, uint64_t ip, struct path *path);

/* The last immediate of an instruction of a known form. */
int64_t step_immediate(const struct step *s);

/* Where a direct branch, jump or call goes. */
uint64_t step_target(const struct step *s);

/* What a return takes off the stack beyond its address. */
uint16_t step_popped_bytes(const struct step *s);

#endif
