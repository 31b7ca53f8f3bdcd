/* Values put together: see assembly.h. */
#include "pair/assembly.h"

#include "pair/regenerated.h"

#include "base/array.h"
#include "base/hash.h"
#include <stdlib.h>
#include <string.h>

void lb_assemblies_release(lb_assemblies *all)
{
    for (uint32_t i = 0; i < all->n; i++) free(all->list[i].parts), free(all->list[i].pieces), free(all->list[i].bytes);
    free(all->list), lb_hash_release(&all->by_parts);
    all->list = NULL, all->n = 0;
}

static uint64_t hash_of(int dim, const uint32_t *parts, uint32_t n)
{
    uint64_t hash = (uint64_t)dim + 1;
    for (uint32_t i = 0; i < n; i++) hash = (hash ^ parts[i]) * UINT64_C(0x9E3779B97F4A7C15), hash ^= hash >> 32;
    return hash;
}

static bool same_bits(const lb_program *program, const uint32_t *parts, uint32_t n)
{
    const lb_value *first = &program->values[parts[0]];
    for (uint32_t i = 1; i < n; i++) {
        const lb_value *other = &program->values[parts[i]];
        bool same_place = other->storage == first->storage && other->version == first->version;
        bool known = !lb_digest_is_none(first->logical) && lb_digest_equal(first->logical, other->logical);
        if (!same_place && !known) return false;
    }
    return true;
}

uint32_t lb_assemblies_value(lb_assemblies *all, const lb_program *pa, uint32_t whole, const uint32_t *parts,
                             uint32_t n)
{
    const lb_program *pb = all->how.b->program;
    for (uint32_t i = 0; i < n; i++)
        if (parts[i] == LB_NONE || pb->values[parts[i]].dtype != pb->values[parts[0]].dtype) return LB_NONE;
    const int dim = lb_reassembly_dim(all->how.rows, pa, whole, pb, parts, n);
    if (dim == LB_REASSEMBLY_SAME) return same_bits(pb, parts, n) ? parts[0] : LB_NONE;
    if (dim < 0) return LB_NONE;
    const uint64_t hash = hash_of(dim, parts, n);
    LB_HASH_EACH(row, &all->by_parts, hash)
    {
        const lb_assembly *assembly = &all->list[row];
        if (assembly->n == n && assembly->dim == dim && !memcmp(assembly->parts, parts, n * sizeof *parts))
            return pb->n_values + row;
    }
    lb_assembly *grown = lb_array_grow(all->list, all->n, sizeof *grown);
    uint32_t *copy = malloc(n * sizeof *copy), n_pieces;
    lb_reassembly_piece *pieces =
        lb_reassembly_pieces(all->how.rows, &pa->values[whole].layout, dim, all->how.b, parts, n, &n_pieces);
    if (grown) all->list = grown;
    if (!grown || !copy || !pieces || !lb_hash_add(&all->by_parts, hash, all->n)) {
        free(copy), free(pieces);
        return LB_NONE;
    }
    memcpy(copy, parts, n * sizeof *copy);
    lb_assembly *assembly = &all->list[all->n];
    *assembly = (lb_assembly){
        .row = pb->values[parts[0]], .parts = copy, .n = n, .dim = dim, .pieces = pieces, .n_pieces = n_pieces};
    assembly->own = n == 1 && all->numbers && all->numbers[parts[0]] ? whole : LB_NONE;
    assembly->row.layout = lb_layout_contiguous(pa->values[whole].layout.ndim, pa->values[whole].layout.shape);
    assembly->row.logical = assembly->row.blob = (lb_digest){0};
    assembly->row.storage = -1, assembly->row.flags &= ~(uint32_t)LB_VALUE_KEPT;
    return pb->n_values + all->n++;
}

const lb_value *lb_assemblies_row(const lb_assemblies *all, uint32_t value)
{
    const lb_program *pb = all->how.b->program;
    return value < pb->n_values ? &pb->values[value] : &all->list[value - pb->n_values].row;
}

bool lb_assemblies_bytes(lb_assemblies *all, uint32_t value, lb_tensor *tensor)
{
    lb_assembly *assembly = &all->list[value - all->how.b->program->n_values];
    bool exact;
    if (assembly->own != LB_NONE) return lb_regenerated_value(all->wholes, assembly->own, tensor, &exact) && exact;
    if (!assembly->bytes && !assembly->failed) {
        lb_tensor made;
        assembly->failed = !lb_reassembly_assemble(&all->how, &assembly->row.layout, assembly->dim, assembly->parts,
                                                   assembly->n, &made);
        if (!assembly->failed) assembly->bytes = made.data;
    }
    *tensor = (lb_tensor){assembly->bytes, assembly->row.dtype, assembly->row.layout};
    return assembly->bytes != NULL;
}
