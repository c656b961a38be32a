/* The replica touched a page that it lacks, or must not write to. */
#ifndef MEMSAMPD_PAGE_FAULTS_H
#define MEMSAMPD_PAGE_FAULTS_H

#include "pages.h"

enum page_fault {
    FAULT_SUPPLIED,   /* it is there now */
    FAULT_UNMAPPED,   /* the program would be killed, or told, as well */
    FAULT_FORBIDDEN,  /* a store into read-only memory */
    FAULT_GUARDED,    /* a store into memory that is code, too */
    FAULT_UNREADABLE, /* it cannot be read without a change to the target */
    FAULT_FULL,       /* too many pages */
};

/* Supply the page of the address that it touched, and perhaps pages near that one. */
enum page_fault pages_fault(struct pages *p, struct process *process, struct remote *remote,
                            uint64_t address);

/* Let it write to a guarded page. */
void pages_unguard(struct pages *p, struct process *process, uint64_t page);

#endif
