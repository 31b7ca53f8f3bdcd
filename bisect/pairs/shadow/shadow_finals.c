/* Parameters that may differ at the end of a step, found before anything runs: see shadow_pair.h. */
#include "pair/cut_tensors.h"
#include "shadow/final_image.h"
#include "shadow/shadow_pair.h"

#include <stdlib.h>
#include <string.h>

/* Both sides, and what each writes. */
typedef struct finals {
    const lb_program_view *sides[2];
    lb_image_writes *writes[2];
} finals;

/* The last op that writes some of what was that source, and the value that it left; false when none does. */
static bool find_last(const lb_image_writes *writes, uint32_t source, lb_shadow_part *last)
{
    last->op = lb_image_write_before(writes, source, UINT32_MAX, &last->value);
    return last->op != LB_NONE;
}

/* Not all of it, or more: a flat buffer that it is a window on. */
static bool is_part(const lb_program *p, uint32_t source, const lb_shadow_part *last)
{
    const lb_value *whole = &p->values[lb_op_results(p, &p->ops[source])[0]], *left = &p->values[last->value];
    return !lb_layout_same_shape(&whole->layout, &left->layout) || whole->layout.offset != left->layout.offset;
}

/* Where one side writes only a part at last, or nothing of what the other writes; false when that is not so. */
static bool add_pieces(const finals *all, uint32_t i, uint32_t j, lb_shadow_pair *out)
{
    const lb_program *pa = all->sides[0]->program, *pb = all->sides[1]->program;
    lb_shadow_part a, b;
    const uint32_t va = lb_op_results(pa, &pa->ops[i])[0], vb = lb_op_results(pb, &pb->ops[j])[0];
    const lb_value *x = &pa->values[va], *y = &pb->values[vb];
    const bool writes_a = find_last(all->writes[0], i, &a), writes_b = find_last(all->writes[1], j, &b);
    const bool held = x->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE);
    if (!(writes_a && is_part(pa, i, &a)) && !(writes_b && is_part(pb, j, &b)) && !(held && writes_a != writes_b))
        return false;
    if (x->dtype != y->dtype || !lb_layout_is_contiguous(&x->layout) || !lb_layout_is_contiguous(&y->layout) ||
        !lb_layout_same_shape(&x->layout, &y->layout) || lb_dtype_bits(x->dtype) < 8)
        return false;
    if (!lb_image_may_differ(all->writes[0], i, all->writes[1], j)) return true;
    out->final_parts[out->n_final_parts] = writes_b ? b : (lb_shadow_part){j, vb};
    out->finals[out->n_finals++] = (lb_shadow_final){.whole = writes_a ? a : (lb_shadow_part){i, va},
                                                     .first = out->n_final_parts++,
                                                     .parts = 1,
                                                     .dim = LB_REASSEMBLY_SAME,
                                                     .pieces = true,
                                                     .cut = LB_NONE,
                                                     .sources = {i, j},
                                                     .agreement = LB_SHADOW_UNKNOWN};
    return true;
}

/* `sources`: those of B that A's source `i` stands for. */
static void add_final(const finals *all, uint32_t i, const uint32_t *sources, uint32_t n, uint32_t *values,
                      lb_shadow_pair *out)
{
    const lb_program_view *a = all->sides[0], *b = all->sides[1];
    const lb_program *pa = a->program, *pb = b->program;
    lb_shadow_final final = {.first = out->n_final_parts,
                             .parts = n,
                             .sources = {i, sources[0]},
                             .cut = LB_NONE,
                             .agreement = LB_SHADOW_UNKNOWN};
    lb_shadow_part *parts = out->final_parts + final.first;
    if (n == 1 && add_pieces(all, i, sources[0], out)) return;
    if (!find_last(all->writes[0], i, &final.whole)) return;
    bool same = true;
    for (uint32_t k = 0; k < n; k++) {
        if (!find_last(all->writes[1], sources[k], &parts[k])) return;
        values[k] = parts[k].value;
        same = same && !lb_program_view_values_differ(a, final.whole.value, b, values[k]);
    }
    final.dim = lb_reassembly_dim(NULL, pa, final.whole.value, pb, values, n);
    if (final.dim == LB_REASSEMBLY_NONE || (final.dim == LB_REASSEMBLY_SAME && same)) return;
    out->n_final_parts += n;
    out->finals[out->n_finals++] = final;
}

/* ---- tensors that the sides cut differently ---- */

lb_shadow_part lb_shadow_part_left(const lb_held_part *part)
{
    const lb_program *p = part->side->program;
    const lb_value *source = &p->values[part->value];
    for (uint32_t i = p->n_ops; i-- > 0;) {
        const lb_op *op = &p->ops[i];
        for (uint32_t k = 0; k < op->written; k++) {
            const uint32_t v = lb_op_written(p, op)[k];
            int64_t first, last;
            if (v == LB_NONE || p->values[v].storage != source->storage) continue;
            if (lb_layout_dense_range(&p->values[v].layout, &first, &last, NULL) != LB_OK) continue;
            first -= source->layout.offset, last -= source->layout.offset;
            if (first < part->at + part->elements && last > part->at) return (lb_shadow_part){i, v};
        }
    }
    return (lb_shadow_part){part->op, part->value};
}

static bool is_written(const lb_cut_tensors *cuts, const lb_cut_tensor *cut)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < cut->n_rows[k]; i++) {
            const lb_held_part *part = &cuts->parts[k][cut->rows[k][i]];
            if (lb_shadow_part_left(part).op != part->op) return true;
        }
    return false;
}

static void add_cut(const lb_cut_tensors *cuts, uint32_t row, lb_shadow_pair *out)
{
    const lb_cut_tensor *cut = &cuts->list[row];
    if (!cut->known || !is_written(cuts, cut)) return;
    const lb_held_part *a = &cuts->parts[0][cut->rows[0][0]], *b = &cuts->parts[1][cut->rows[1][0]];
    out->final_parts[out->n_final_parts] = lb_shadow_part_left(b);
    out->finals[out->n_finals++] = (lb_shadow_final){.whole = lb_shadow_part_left(a),
                                                     .first = out->n_final_parts++,
                                                     .parts = 1,
                                                     .dim = LB_REASSEMBLY_NONE,
                                                     .sources = {a->op, b->op},
                                                     .cut = row,
                                                     .agreement = LB_SHADOW_UNKNOWN};
}

lb_status lb_shadow_pair_init(const lb_program_view *side_a, const lb_program_view *side_b,
                              const lb_alignment *alignment, lb_shadow_pair *out, lb_err *err)
{
    const lb_program *pa = side_a->program, *pb = side_b->program;
    memset(out, 0, sizeof *out);
    out->first_flip = LB_NONE;
    const lb_cut_tensors *cuts = alignment->cuts;
    const size_t n_cuts = cuts ? cuts->n : 0;
    out->finals = calloc(pa->n_ops + n_cuts + 1, sizeof *out->finals);
    out->final_parts = calloc(pb->n_ops + n_cuts + 1, sizeof *out->final_parts);
    uint32_t *values = calloc(pb->n_ops + 1, sizeof *values);
    const finals all = {{side_a, side_b}, {lb_image_writes_new(pa), lb_image_writes_new(pb)}};
    bool room = out->finals && out->final_parts && values && all.writes[0] && all.writes[1];
    for (uint32_t i = 0; room && i < pa->n_ops; i++) {
        uint32_t j = alignment->source_b_of_a[i], join = alignment->join_of_a[i];
        bool source = lb_op_is_source(pa, &pa->ops[i]);
        if (!source || !*lb_program_text(pa, pa->values[lb_op_results(pa, &pa->ops[i])[0]].name)) continue;
        if (j != LB_NONE) add_final(&all, i, &j, 1, values, out);
        if (join == LB_NONE) continue;
        const lb_reassembly *parts = &alignment->joins.list[join];
        add_final(&all, i, alignment->joins.part_ops + parts->first, parts->parts, values, out);
    }
    for (uint32_t i = 0; room && i < n_cuts; i++) add_cut(cuts, i, out);
    lb_image_writes_free(all.writes[0]), lb_image_writes_free(all.writes[1]);
    free(values);
    if (room) return LB_OK;
    lb_shadow_pair_release(out);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", pa->n_ops);
}
