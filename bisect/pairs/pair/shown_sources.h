/* What a source shows. Of a tensor with gaps (the values in a cache that are a third of what one projection gave) the
 * recording keeps the range of its storage as a source, and the tensor is a value in it that no op gives:
 *
 *      source  caches.1.1  [1856]           v . . v . . v . . v        the range: queries and keys of other tokens lie
 *              between
 *      value   caches.1.1  [4, 2, 5, 16]    v     v     v     v        what is read, of the same name
 *
 * Where two such tensors share a storage the second is kept as the rest of its range, which the first does not hold:
 * that source shows it. The other side may hold the same tensor without gaps: what is compared, and handed over from
 * side to side, is what is shown. */
#ifndef LB_BISECT_SHOWN_SOURCES_H
#define LB_BISECT_SHOWN_SOURCES_H

#include <lastbit/program.h>

/* Per op: of a source the value that it shows, its own result where there are no gaps; LB_NONE for other ops.
 * malloc'ed; NULL when out of memory. */
uint32_t *lb_shown_sources(const lb_program *program);

#endif
