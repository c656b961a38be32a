/* The memory that tracer and replica share: slots, look-up table, translated code, trace buffer. */
#ifndef MEMSAMPD_AREA_H
#define MEMSAMPD_AREA_H

#include "layout.h"

#define BUFFER_BYTES (16u << 20)
#define GUARD_BYTES (64u << 10) /* unmapped behind the buffer: more than one record */
#define AREA_BYTES (AREA_BUFFER + BUFFER_BYTES)
#define AREA_OURS_BYTES (AREA_BYTES + 8192u) /* room behind the buffer to read a whole record */

struct area {
    int memfd;
    uint8_t *bytes; /* our mapping */
};

/* Code of ours at the end of the look-up's: `syscall; int3`, and a sleep for ever. */
#define AREA_CALL (AREA_CODE + LOOKUP_ROUTINE_BYTES - 32)
#define AREA_PARK (AREA_CODE + LOOKUP_ROUTINE_BYTES - 24)

/* As large as that, whatever limit of file sizes we have; -1 with errno set. */
int set_file_size(int file, uint64_t bytes);
int area_create(struct area *a); /* -1 with errno set */
void area_close(struct area *a); /* what was mapped stays */
void area_free(struct area *a);

#endif
