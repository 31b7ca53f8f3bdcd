/* An assembly is a value built from B's values in the shape that A has. It concatenates parts where B has the value
 * only in parts (tokens by position over a prefill and decode steps, micro-batches), and selects A's rows where B's
 * batch is larger. Assemblies are numbered after the values of B's program, so that one can be used wherever a value is
 * expected. */
#ifndef LB_BISECT_ASSEMBLY_H
#define LB_BISECT_ASSEMBLY_H

#include "pair/reassembly.h"

#include "base/hash.h"

typedef struct lb_assembly {
    lb_value row; /* shape of the whole, dtype of the parts */
    uint32_t *parts, n;
    int dim;
    lb_reassembly_piece *pieces; /* what of the parts it is, in order */
    uint32_t n_pieces;
    uint32_t own; /* the value of A that is used in its place, as B's numbers only count rows; LB_NONE: none */
    void *bytes;  /* made at first use */
    bool failed;
} lb_assembly;

typedef struct lb_assemblies {
    lb_reassembling how;
    const struct lb_regenerated *wholes; /* of A; with `numbers` */
    const uint8_t *numbers; /* per value of B: it counts rows (row_numbers.c), and A's own are taken; NULL: none does */
    lb_assembly *list;
    uint32_t n;
    lb_hash by_parts;
} lb_assemblies;

void lb_assemblies_release(lb_assemblies *all);
/* The number of the value that `parts` of B make in the shape of `whole`; of parts that each have that shape the first,
 * if they have the same bits. LB_NONE: they make no such value. */
uint32_t lb_assemblies_value(lb_assemblies *all, const lb_program *pa, uint32_t whole, const uint32_t *parts,
                             uint32_t n);
const lb_value *lb_assemblies_row(const lb_assemblies *all, uint32_t value);
/* Its recorded bytes; false when some were not kept. */
bool lb_assemblies_bytes(lb_assemblies *all, uint32_t value, lb_tensor *tensor);

#endif
