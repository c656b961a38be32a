/* Records of perf events, as perf_event_open(2) lays them out, made into samples and task events. */
#ifndef MEMSAMPD_RECORDS_H
#define MEMSAMPD_RECORDS_H

#include "ring.h"

/* rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp and r8 to r15: the order of their bits is that of the record. */
#define SAMPLED_REGISTERS UINT64_C(0xff00ff)
#define REGISTERS 16 /* of these: what one sample tells is a row of so many words */

/* A sample of the kernel's own code has the instruction that it was entered from among the registers,
 * and whom the kernel called for it: so far outwards, the entry included, if it is not deeper. */
enum { CHAIN_FRAMES = 16 };

enum { RECORDS_COUNTS = 5 }; /* of a group: the event that samples, and its members */

#define RECORDS_READ_FORMAT \
    (PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING)

/* What the kernel is asked for: these fields of a sample, and those that each one has. */
uint64_t records_sample_type(uint64_t asked);

/* Registers that such a sample has. */
uint64_t records_registers(uint64_t sample_type);

/* What is between two positions of a ring, for Python: perf.c tells the form. NULL with an exception
 * set, ValueError for fields that cannot be read. */
PyObject *records_parse(const Ring *ring, uint64_t tail, uint64_t head, uint64_t sample_type);

#endif
