/* Machine code that NVRTC made, kept on disk: compiling takes seconds, in each process that records.
 *
 * It lies in LASTBIT_CACHE, else in XDG_CACHE_HOME/lastbit, else in ~/.cache/lastbit; an empty LASTBIT_CACHE keeps
 * nothing. A file is used where its owner is the user, no other user may write it, and its digest is right. Nothing
 * here fails: what cannot be read is compiled again, and what cannot be written is compiled next time. */
#ifndef LB_KERNEL_CACHE_H
#define LB_KERNEL_CACHE_H

#include <lastbit/digest.h>

#include <stdbool.h>
#include <stddef.h>

/* `key`: of all that the code depends on. NULL: it is not there; else malloc'ed. */
void *lb_kernel_cache_find(lb_digest key);
void lb_kernel_cache_keep(lb_digest key, const void *code, size_t bytes);

#endif
