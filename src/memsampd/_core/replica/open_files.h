/* Input and output of a shadow on files that its target has open.
 *
 * A shadow has no descriptors. Reads are done for it, through descriptors of our own, at offsets that
 * are kept aside; writes are not done at all, so that from then on nobody knows what is in the file.
 */
#ifndef MEMSAMPD_OPEN_FILES_H
#define MEMSAMPD_OPEN_FILES_H

#include "emulation.h"

/* Answer one of read, pread64, readv, write, pwrite64, writev and lseek. */
enum emulated open_files_answer(pid_t pid, struct emulation *state,
                                const struct user_regs_struct *regs, long *result);

#endif
