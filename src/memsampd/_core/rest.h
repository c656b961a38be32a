/* Bytes that are read one piece after the other, and may end too soon. */
#ifndef MEMSAMPD_REST_H
#define MEMSAMPD_REST_H

#include <stddef.h>
#include <string.h>

/* What is left to read. */
typedef struct {
    const unsigned char *at;
    size_t left;
} Rest;

/* The next bytes; what is missing leaves -1. */
static inline int
take(Rest *rest, void *to, size_t bytes)
{
    if (rest->left < bytes)
        return -1;
    if (to)
        memcpy(to, rest->at, bytes);
    rest->at += bytes;
    rest->left -= bytes;
    return 0;
}

#endif
