#include "decoder.h"

#include <string.h>

#define FORMS_MOST 16384 /* of garbage there are more forms than of code */

/* Ask Python. `p` is NULL where nothing can be kept; -1 with an exception set on failure. */
static int
ask(const struct decoder *d, const uint8_t *code, size_t size, uint64_t ip, const struct parsed *p,
    struct decoded *now)
{
    const size_t most = size < INSTRUCTION_MAXIMUM_BYTES ? size : INSTRUCTION_MAXIMUM_BYTES;
    PyObject *told = PyObject_CallFunction(d->decode, "y#K", (const char *)code, (Py_ssize_t)most,
                                           (unsigned long long)ip);
    int going;

    if (told == NULL)
        return -1;
    int parsed = PyArg_ParseTuple(told, "IiK", &now->length, &going,
                                  (unsigned long long *)&now->target);
    Py_DECREF(told);
    if (!parsed)
        return -1;
    now->going = (enum going)going;
    if (p == NULL || now->going == IS_INVALID || now->length < p->length)
        return 0;
    if (PyDict_Size(d->forms) >= FORMS_MOST)
        PyDict_Clear(d->forms);
    PyObject *key = PyLong_FromUnsignedLongLong(p->key);
    PyObject *kept = PyLong_FromLong((long)(now->length - p->length) << 8 | going);
    int result = key != NULL && kept != NULL ? PyDict_SetItem(d->forms, key, kept) : -1;
    Py_XDECREF(key);
    Py_XDECREF(kept);
    return result;
}

/* What is kept of a form; negative: nothing, or there is an exception. */
static long
kept_of(const struct decoder *d, uint64_t form)
{
    PyObject *key = PyLong_FromUnsignedLongLong(form);
    if (key == NULL)
        return -1;
    PyObject *kept = PyDict_GetItemWithError(d->forms, key);
    Py_DECREF(key);
    return kept != NULL ? PyLong_AsLong(kept) : -1;
}

static uint64_t
target_of(const uint8_t *code, const struct parsed *p, uint64_t next)
{
    int32_t far;

    if (p->opcode == 0xeb)
        return next + (uint64_t)(int64_t)(int8_t)code[p->length];
    memcpy(&far, code + p->length, sizeof far);
    return next + (uint64_t)(int64_t)far;
}

int
decode_one(const struct decoder *d, const uint8_t *code, size_t size, uint64_t ip,
           struct decoded *now)
{
    struct parsed p;

    if (!parse(code, size, &p))
        return ask(d, code, size, ip, NULL, now);
    const long kept = kept_of(d, p.key);
    if (kept < 0)
        return PyErr_Occurred() ? -1 : ask(d, code, size, ip, &p, now);
    now->length = p.length + (unsigned)(kept >> 8);
    now->going = (enum going)(kept & 0xff);
    if (now->length > INSTRUCTION_MAXIMUM_BYTES)
        return ask(d, code, size, ip, NULL, now);
    if (now->length > size) { /* it is cut off: the decoder says the same */
        now->length = (unsigned)size;
        now->going = IS_INVALID;
        return 0;
    }
    if (now->going == JUMPS)
        now->target = target_of(code, &p, ip + now->length);
    return 0;
}
