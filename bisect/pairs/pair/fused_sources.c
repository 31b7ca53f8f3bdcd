/* Finding fused parameters: see fused_sources.h. */
#include "pair/fused_sources.h"

#include "pair/cut_tensors.h"

#include "base/array.h"
#include "program/state_name.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTS = 64 };

typedef struct finder {
    lb_fused_sources *fused;
    const lb_program_view *a, *b;
    lb_alignment *al;
    bool failed;
} finder;

static const lb_value *source_value(const lb_program *p, uint32_t op)
{
    if (!lb_op_is_source(p, &p->ops[op])) return NULL;
    const uint32_t v = lb_op_results(p, &p->ops[op])[0];
    return v == LB_NONE || !*lb_program_text(p, p->values[v].name) ? NULL : &p->values[v];
}

uint32_t lb_fused_sources_count(const lb_program *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_value *v = source_value(p, i);
        n += v && v->flags & LB_VALUE_PARAMETER;
    }
    return n;
}

static bool is_free_a(const finder *f, uint32_t op)
{
    return f->al->source_b_of_a[op] == LB_NONE && f->al->join_of_a[op] == LB_NONE;
}

/* Of several ranks each holds its own. */
static bool same_part(const finder *f, uint32_t op_a, uint32_t op_b)
{
    return lb_program_view_part_of(f->a, op_a) == lb_program_view_part_of(f->b, op_b);
}

static bool is_free_b(const finder *f, uint32_t op)
{
    for (uint32_t i = 0; i < f->a->program->n_ops; i++)
        if (f->al->source_b_of_a[i] == op) return false;
    return f->al->join_of_b[op] == LB_NONE;
}

/* ---- by name ---- */

static uint32_t find_part(const finder *f, uint32_t whole, const char *prefix, size_t n, const char *part)
{
    const lb_program *p = f->b->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_value *v = source_value(p, i);
        const char *name = v ? lb_program_text(p, v->name) : "";
        if (v && lb_state_name_before(name) == n && !strncmp(name, prefix, n) && !strcmp(name + n, part) &&
            same_part(f, whole, i) && is_free_b(f, i))
            return i;
    }
    return LB_NONE;
}

static void join_known(finder *f, uint32_t op, const lb_value *v)
{
    const char *name = lb_program_text(f->a->program, v->name);
    const size_t n = lb_state_name_before(name);
    uint32_t ops[MOST_PARTS];
    for (uint32_t r = 0; r < f->fused->n; r++) {
        const lb_fused_row *row = &f->fused->list[r];
        bool all = !strcmp(name + n, row->whole);
        for (uint32_t k = 0; all && k < row->n; k++)
            all = (ops[k] = find_part(f, op, name, n, row->parts[k])) != LB_NONE;
        if (all && lb_alignment_reassembly(f->al, f->a->program, f->b->program, op, ops, row->n)) return;
    }
}

/* ---- by contents ---- */

static bool open_value(const lb_program_view *side, uint32_t op, lb_tensor *t)
{
    return lb_program_view_value(side, lb_op_results(side->program, &side->program->ops[op])[0], t, NULL) == LB_OK &&
           t->layout.ndim > 0 && lb_layout_is_contiguous(&t->layout) && lb_dtype_bits(t->dtype) >= 8;
}

static size_t bytes_of(const lb_tensor *t)
{
    return lb_dtype_bytes(t->dtype, (size_t)lb_layout_numel(&t->layout));
}

/* Is the part, but for its length, of the whole's shape, and are its bytes those from `at` on? */
static bool is_slice(const lb_tensor *whole, size_t at, const lb_tensor *part)
{
    if (whole->dtype != part->dtype || whole->layout.ndim != part->layout.ndim) return false;
    for (int d = 1; d < whole->layout.ndim; d++)
        if (whole->layout.shape[d] != part->layout.shape[d]) return false;
    const size_t n = bytes_of(part);
    return n && n < bytes_of(whole) && at + n <= bytes_of(whole) &&
           !memcmp((const char *)whole->data + at, part->data, n);
}

/* What both sides have by its name is in no other tensor, though it may have the same bits (norms are all ones as they
 * begin). */
static bool has_name(const lb_program *p, const char *name)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_value *v = source_value(p, i);
        if (v && !strcmp(lb_program_text(p, v->name), name)) return true;
    }
    return false;
}

static char *copy_name(finder *f, const lb_program *p, uint32_t op)
{
    char *name = strdup(lb_program_text(p, source_value(p, op)->name));
    f->failed |= !name;
    return name;
}

/* Of a rank before this one. */
static bool is_known(const finder *f, uint32_t whole, const uint32_t *parts, uint32_t n)
{
    for (uint32_t r = 0; r < f->fused->n; r++) {
        const lb_fused_row *row = &f->fused->list[r];
        bool same = row->n == n &&
                    !strcmp(row->whole, lb_program_text(f->a->program, source_value(f->a->program, whole)->name));
        for (uint32_t k = 0; same && k < n; k++)
            same = !strcmp(row->parts[k], lb_program_text(f->b->program, source_value(f->b->program, parts[k])->name));
        if (same) return true;
    }
    return false;
}

static void remember(finder *f, uint32_t whole, const uint32_t *parts, uint32_t n)
{
    if (is_known(f, whole, parts, n)) return;
    lb_fused_row *more = lb_array_grow(f->fused->list, f->fused->n, sizeof *more);
    if (more) f->fused->list = more;
    lb_fused_row row = {.whole = copy_name(f, f->a->program, whole), .parts = calloc(n, sizeof *row.parts), .n = n};
    f->failed |= !more || !row.parts;
    for (uint32_t k = 0; row.parts && k < n; k++) row.parts[k] = copy_name(f, f->b->program, parts[k]);
    if (more)
        f->fused->list[f->fused->n++] = row;
    else
        free(row.parts);
}

static void find_parts(finder *f, uint32_t op)
{
    lb_tensor whole, part;
    uint32_t ops[MOST_PARTS], n = 0;
    size_t at = 0;
    if (has_name(f->b->program, lb_program_text(f->a->program, source_value(f->a->program, op)->name)) ||
        !open_value(f->a, op, &whole))
        return;
    for (bool more = true; more && at < bytes_of(&whole) && n < MOST_PARTS;) {
        more = false;
        for (uint32_t i = 0; i < f->b->program->n_ops && !more; i++) {
            const lb_value *v = source_value(f->b->program, i);
            bool used = !v || !(v->flags & LB_VALUE_PARAMETER) || !same_part(f, op, i) || !is_free_b(f, i) ||
                        has_name(f->a->program, lb_program_text(f->b->program, v->name));
            for (uint32_t k = 0; k < n; k++) used |= ops[k] == i;
            if (used || !open_value(f->b, i, &part) || !is_slice(&whole, at, &part)) continue;
            ops[n++] = i, at += bytes_of(&part), more = true;
        }
    }
    if (at != bytes_of(&whole) || n < 2) return;
    if (lb_alignment_reassembly(f->al, f->a->program, f->b->program, op, ops, n)) remember(f, op, ops, n);
}

lb_status lb_fused_sources_join(lb_fused_sources *fused, const lb_program_view *a, const lb_program_view *b,
                                lb_alignment *al, lb_err *err)
{
    finder f = {fused, a, b, al, false};
    for (int contents = 0; contents < 2 && !lb_program_views_are_uneven(a, b); contents++)
        for (uint32_t i = 0; i < a->program->n_ops && !f.failed; i++) {
            const lb_value *v = source_value(a->program, i);
            if (!v || !is_free_a(&f, i)) continue;
            if (!contents) join_known(&f, i, v);
            if (contents && v->flags & LB_VALUE_PARAMETER) find_parts(&f, i);
        }
    return f.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for names") : LB_OK;
}

static bool is_known_part(const lb_alignment *al, int side, uint32_t op)
{
    return al->cuts && al->cuts->held[side][op] == LB_HELD_KNOWN;
}

bool lb_fused_sources_apart(const lb_program_view *a, const lb_program_view *b, const lb_alignment *al)
{
    const finder f = {.a = a, .b = b, .al = (lb_alignment *)al};
    bool free_a = false, free_b = false;
    for (uint32_t i = 0; i < a->program->n_ops && !free_a; i++) {
        const lb_value *v = source_value(a->program, i);
        free_a = v && v->flags & LB_VALUE_PARAMETER && is_free_a(&f, i) && !is_known_part(al, 0, i);
    }
    for (uint32_t i = 0; free_a && i < b->program->n_ops && !free_b; i++) {
        const lb_value *v = source_value(b->program, i);
        free_b = v && v->flags & LB_VALUE_PARAMETER && is_free_b(&f, i) && !is_known_part(al, 1, i);
    }
    return free_b;
}

void lb_fused_sources_release(lb_fused_sources *fused)
{
    for (uint32_t i = 0; i < fused->n; i++) {
        for (uint32_t k = 0; fused->list[i].parts && k < fused->list[i].n; k++) free(fused->list[i].parts[k]);
        free(fused->list[i].parts), free(fused->list[i].whole);
    }
    free(fused->list);
    *fused = (lb_fused_sources){0};
}
