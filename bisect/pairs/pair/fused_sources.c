/* Finding fused parameters: see fused_sources.h. */
#include "pair/fused_sources.h"

#include "pair/cut_tensors.h"

#include "base/array.h"
#include "program/state_name.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MOST_PARTS = 64 };

/* What a parameter of B begins with, as far as FRONT bytes of it. */
enum { FRONT = 64 };
typedef struct front {
    uint64_t hash; /* of its dtype and of the bytes */
    uint32_t op;
} front;

typedef struct finder {
    lb_fused_sources *fused;
    const lb_program_view *a, *b;
    lb_alignment *al;
    uint8_t *taken_b;      /* sources of B that one of A has for itself */
    const char **names[2]; /* of all sources, sorted */
    uint32_t n_names[2];
    front *fronts; /* of parameters whose names A lacks, by hash and place */
    uint32_t n_fronts;
    bool lengths[FRONT + 1]; /* of those that are shorter */
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
        const lb_value *value = source_value(p, i);
        n += value && value->flags & LB_VALUE_PARAMETER;
    }
    return n;
}

static bool is_free_a(const finder *finder, uint32_t op)
{
    return finder->al->source_b_of_a[op] == LB_NONE && finder->al->join_of_a[op] == LB_NONE;
}

/* Of several ranks each holds its own. */
static bool same_part(const finder *finder, uint32_t op_a, uint32_t op_b)
{
    return lb_program_view_part_of(finder->a, op_a) == lb_program_view_part_of(finder->b, op_b);
}

static bool list_taken(finder *finder)
{
    finder->taken_b = calloc(finder->b->program->n_ops + 1, 1);
    for (uint32_t i = 0; finder->taken_b && i < finder->a->program->n_ops; i++)
        if (finder->al->source_b_of_a[i] != LB_NONE) finder->taken_b[finder->al->source_b_of_a[i]] = 1;
    return finder->taken_b;
}

static bool is_free_b(const finder *finder, uint32_t op)
{
    return !finder->taken_b[op] && finder->al->join_of_b[op] == LB_NONE;
}

/* ---- by name ---- */

static uint32_t find_part(const finder *finder, uint32_t whole, const char *prefix, size_t n, const char *part)
{
    const lb_program *p = finder->b->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_value *value = source_value(p, i);
        const char *name = value ? lb_program_text(p, value->name) : "";
        if (value && lb_state_name_before(name) == n && !strncmp(name, prefix, n) && !strcmp(name + n, part) &&
            same_part(finder, whole, i) && is_free_b(finder, i))
            return i;
    }
    return LB_NONE;
}

static void join_known(finder *finder, uint32_t op, const lb_value *value)
{
    const char *name = lb_program_text(finder->a->program, value->name);
    const size_t n = lb_state_name_before(name);
    uint32_t ops[MOST_PARTS];
    for (uint32_t r = 0; r < finder->fused->n; r++) {
        const lb_fused_row *row = &finder->fused->list[r];
        bool all = !strcmp(name + n, row->whole);
        for (uint32_t k = 0; all && k < row->n; k++)
            all = (ops[k] = find_part(finder, op, name, n, row->parts[k])) != LB_NONE;
        if (all && lb_alignment_reassembly(finder->al, finder->a->program, finder->b->program, op, ops, row->n)) return;
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

/* ---- what is looked among ---- */

static bool list_names(finder *finder, int side)
{
    const lb_program *p = (side ? finder->b : finder->a)->program;
    finder->names[side] = malloc((p->n_ops + 1) * sizeof *finder->names[side]);
    for (uint32_t i = 0; finder->names[side] && i < p->n_ops; i++) {
        const lb_value *value = source_value(p, i);
        if (value) finder->names[side][finder->n_names[side]++] = lb_program_text(p, value->name);
    }
    if (finder->names[side]) qsort(finder->names[side], finder->n_names[side], sizeof *finder->names[side], lb_by_text);
    return finder->names[side];
}

/* What both sides have by its name is in no other tensor, though it may have the same bits (norms are all ones as they
 * begin). */
static bool has_name(const finder *finder, int side, const char *name)
{
    return bsearch(&name, finder->names[side], finder->n_names[side], sizeof *finder->names[side], lb_by_text);
}

static uint64_t front_hash(lb_dtype dtype, const void *bytes, size_t n)
{
    return XXH3_64bits_withSeed(bytes, n, (uint64_t)dtype << 8 | n);
}

static int by_hash_and_op(const void *a, const void *b)
{
    const int order = lb_by_u64(a, b);
    return order ? order : lb_by_u32(&((const front *)a)->op, &((const front *)b)->op);
}

static bool list_fronts(finder *finder)
{
    const lb_program *p = finder->b->program;
    lb_tensor part;
    finder->fronts = malloc((p->n_ops + 1) * sizeof *finder->fronts);
    for (uint32_t i = 0; finder->fronts && i < p->n_ops; i++) {
        const lb_value *value = source_value(p, i);
        if (!value || !(value->flags & LB_VALUE_PARAMETER) || !is_free_b(finder, i) ||
            has_name(finder, 0, lb_program_text(p, value->name)) || !open_value(finder->b, i, &part) ||
            !bytes_of(&part))
            continue;
        const size_t n = bytes_of(&part) < FRONT ? bytes_of(&part) : FRONT;
        finder->lengths[n] = true;
        finder->fronts[finder->n_fronts++] = (front){front_hash(part.dtype, part.data, n), i};
    }
    if (finder->fronts) qsort(finder->fronts, finder->n_fronts, sizeof *finder->fronts, by_hash_and_op);
    return finder->fronts;
}

static bool prepare(finder *finder)
{
    return list_taken(finder) && list_names(finder, 0) && list_names(finder, 1);
}

static void release(finder *finder)
{
    free(finder->taken_b), free(finder->names[0]), free(finder->names[1]), free(finder->fronts);
}

static char *copy_name(finder *finder, const lb_program *p, uint32_t op)
{
    char *name = strdup(lb_program_text(p, source_value(p, op)->name));
    finder->failed |= !name;
    return name;
}

/* Of a rank before this one. */
static bool is_known(const finder *finder, uint32_t whole, const uint32_t *parts, uint32_t n)
{
    for (uint32_t r = 0; r < finder->fused->n; r++) {
        const lb_fused_row *row = &finder->fused->list[r];
        bool same = row->n == n && !strcmp(row->whole, lb_program_text(finder->a->program,
                                                                       source_value(finder->a->program, whole)->name));
        for (uint32_t k = 0; same && k < n; k++)
            same = !strcmp(row->parts[k],
                           lb_program_text(finder->b->program, source_value(finder->b->program, parts[k])->name));
        if (same) return true;
    }
    return false;
}

static void remember(finder *finder, uint32_t whole, const uint32_t *parts, uint32_t n)
{
    if (is_known(finder, whole, parts, n)) return;
    lb_fused_row *more = lb_array_grow(finder->fused->list, finder->fused->n, sizeof *more);
    if (more) finder->fused->list = more;
    lb_fused_row row = {
        .whole = copy_name(finder, finder->a->program, whole), .parts = calloc(n, sizeof *row.parts), .n = n};
    finder->failed |= !more || !row.parts;
    for (uint32_t k = 0; row.parts && k < n; k++) row.parts[k] = copy_name(finder, finder->b->program, parts[k]);
    if (more)
        finder->fused->list[finder->fused->n++] = row;
    else
        free(row.parts);
}

/* The first parameter of B, of those that are none of the n in `ops`, whose bytes are the whole's from `at` on. */
static uint32_t find_slice(const finder *finder, uint32_t op, const lb_tensor *whole, size_t at, const uint32_t *ops,
                           uint32_t n)
{
    uint32_t found = LB_NONE;
    const char *bytes = (const char *)whole->data + at;
    for (size_t length = 1; length <= FRONT && at + length <= bytes_of(whole); length++) {
        if (!finder->lengths[length]) continue;
        const uint64_t hash = front_hash(whole->dtype, bytes, length);
        for (size_t i = lb_array_first(finder->fronts, finder->n_fronts, sizeof *finder->fronts, &hash, lb_by_u64);
             i < finder->n_fronts && finder->fronts[i].hash == hash && finder->fronts[i].op < found; i++) {
            lb_tensor part;
            bool used = !same_part(finder, op, finder->fronts[i].op) || !is_free_b(finder, finder->fronts[i].op);
            for (uint32_t k = 0; k < n; k++) used |= ops[k] == finder->fronts[i].op;
            if (used || !open_value(finder->b, finder->fronts[i].op, &part) || !is_slice(whole, at, &part)) continue;
            found = finder->fronts[i].op;
        }
    }
    return found;
}

static void find_parts(finder *finder, uint32_t op)
{
    lb_tensor whole, part;
    uint32_t ops[MOST_PARTS], n = 0;
    size_t at = 0;
    if (has_name(finder, 1, lb_program_text(finder->a->program, source_value(finder->a->program, op)->name)) ||
        !open_value(finder->a, op, &whole))
        return;
    if (!finder->fronts && !list_fronts(finder))
        finder->failed = true; /* they are opened once there is a whole to find */
    while (!finder->failed && at < bytes_of(&whole) && n < MOST_PARTS) {
        const uint32_t found = find_slice(finder, op, &whole, at, ops, n);
        if (found == LB_NONE || !open_value(finder->b, found, &part)) return;
        ops[n++] = found, at += bytes_of(&part);
    }
    if (finder->failed || at != bytes_of(&whole) || n < 2) return;
    if (lb_alignment_reassembly(finder->al, finder->a->program, finder->b->program, op, ops, n))
        remember(finder, op, ops, n);
}

lb_status lb_fused_sources_join(lb_fused_sources *fused, const lb_program_view *a, const lb_program_view *b,
                                lb_alignment *al, lb_err *err)
{
    finder finder = {.fused = fused, .a = a, .b = b, .al = al};
    if (lb_program_views_are_uneven(a, b)) return LB_OK;
    finder.failed = !prepare(&finder);
    for (int contents = 0; contents < 2 && !finder.failed; contents++)
        for (uint32_t i = 0; i < a->program->n_ops && !finder.failed; i++) {
            const lb_value *value = source_value(a->program, i);
            if (!value || !is_free_a(&finder, i)) continue;
            if (!contents) join_known(&finder, i, value);
            if (contents && value->flags & LB_VALUE_PARAMETER) find_parts(&finder, i);
        }
    release(&finder);
    return finder.failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory for names") : LB_OK;
}

static bool is_known_part(const lb_alignment *al, int side, uint32_t op)
{
    return al->cuts && al->cuts->held[side][op] == LB_HELD_KNOWN;
}

lb_status lb_fused_sources_apart(const lb_program_view *a, const lb_program_view *b, const lb_alignment *al,
                                 bool *apart, lb_err *err)
{
    finder finder = {.a = a, .b = b, .al = (lb_alignment *)al};
    bool free_a = false, free_b = false;
    if (!list_taken(&finder)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for sources");
    for (uint32_t i = 0; i < a->program->n_ops && !free_a; i++) {
        const lb_value *value = source_value(a->program, i);
        free_a = value && value->flags & LB_VALUE_PARAMETER && is_free_a(&finder, i) && !is_known_part(al, 0, i);
    }
    for (uint32_t i = 0; free_a && i < b->program->n_ops && !free_b; i++) {
        const lb_value *value = source_value(b->program, i);
        free_b = value && value->flags & LB_VALUE_PARAMETER && is_free_b(&finder, i) && !is_known_part(al, 1, i);
    }
    release(&finder);
    *apart = free_b;
    return LB_OK;
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
