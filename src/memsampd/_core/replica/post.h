/* The post: how the replica tells of a fault while nobody traces it.
 *
 * A traced process stops at each signal, and to stop it and have it go on takes longer than to supply
 * a page. Untraced, it comes to a handler of ours, which puts down where the kernel has laid the
 * registers, and spins until that is answered; the tracer spins on another CPU. The registers are
 * changed where they lie. What is read here was written by a stranger: each word is fetched once and
 * checked.
 */
#ifndef MEMSAMPD_POST_H
#define MEMSAMPD_POST_H

#include "area.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/user.h>

/* A stop at a signal. */
struct stop {
    int signal, code;
    uint64_t address; /* of a fault in memory */
    size_t frame;     /* offset of the kernel's ucontext in the area */
};

enum post_state {
    POST_EMPTY,   /* it runs */
    POST_WAITING, /* it spins */
    POST_ASLEEP,  /* it spun for too long, and sleeps */
};

/* The handler's code, at AREA_HANDLER, as offsets in the area: from where on it has told, and from where
 * it goes back to the program. */
void post_put_handler(uint8_t *area);
uint64_t post_handler_posted(void);
uint64_t post_handler_end(void);
bool post_is_handler(uint64_t offset);

/* What the signals of a replica are set to; the handler does not care which comes. */
extern const int post_signal[5];
uint64_t post_blocked(void); /* mask of all others */

enum post_state post_state(const uint8_t *area);
void post_clear(uint8_t *area);
void post_put_to_sleep(uint8_t *area); /* if it spins */

/* The stop that was told; false if that cannot be. `context` instead of what was put down, if not 0: it
 * came to its handler, and no further. */
bool post_read(const uint8_t *area, uint64_t area_address, uint64_t context, uint64_t info,
               struct stop *stop);

/* The general registers of a stop; what a frame does not have stays. */
void post_read_registers(const uint8_t *area, const struct stop *stop, struct user_regs_struct *regs);
void post_write_registers(uint8_t *area, const struct stop *stop,
                          const struct user_regs_struct *regs);

/* Have it go back. POST_EMPTY: it does; POST_ASLEEP: it has to be woken; POST_WAITING: it says
 * something else now. */
enum post_state post_answer(uint8_t *area, const struct stop *stop);

#endif
