/* How long an instruction is and how it goes on.
 *
 * Of instructions of a form a decoder in Python is asked once (translator/forms.h), and what it tells is kept
 * by the form's key: there is one authority on what code means.
 */
#ifndef MEMSAMPD_DECODER_H
#define MEMSAMPD_DECODER_H

#include "core.h"
#include "forms.h"

/* How an instruction goes on, as the decoder tells it. */
enum going { GOES_ON, JUMPS, ENDS, IS_INVALID };

struct decoded {
    unsigned length;
    enum going going;
    uint64_t target; /* of one that jumps */
};

struct decoder {
    PyObject *forms;  /* by key: length of immediates and enum going */
    PyObject *decode; /* decode(code, ip): length, enum going, target */
};

/* The instruction at `code`; -1 with an exception set on failure. */
int decode_one(const struct decoder *d, const uint8_t *code, size_t size, uint64_t ip,
               struct decoded *now);

#endif
