/* Finds the tensor that a source stands for. A tensor may have gaps in its storage (the values in a cache, a third of
 * what one projection gave). The recording then keeps the whole range of the storage as the source. The tensor itself
 * is a strided value in that range, which no op gives:
 *
 *      source  caches.1.1  [1856]           v . . v . . v . . v      the range, with queries and keys in between
 *      value   caches.1.1  [4, 2, 5, 16]    v     v     v     v      the tensor that ops read, under the same name
 *
 * Such a source shows that value. Where two tensors with gaps share a storage, the second source is the rest of the
 * range, which the first one left out; it shows the second tensor. The other side may hold the same tensor without
 * gaps, so that sides are compared, and numbers are handed over, by what sources show. */
#ifndef LB_BISECT_SHOWN_SOURCES_H
#define LB_BISECT_SHOWN_SOURCES_H

#include <lastbit/program.h>

/* For each op that is a source: the value that it shows, which is its own result where there are no gaps. LB_NONE for
 * all other ops. malloc'ed; NULL when out of memory. */
uint32_t *lb_shown_sources(const lb_program *program);

#endif
