/* One source of A that several of B make up: shards of a parameter, what each rank begins with, slices of a batch.
 * Which sources stand for which is decided here; whether they can be put together, by the join. */
#include "pair/aligner.h"

#include "program/shard_cover.h"

#include <stdlib.h>
#include <string.h>

/* ---- sources that say which part of a larger tensor they are ---- */

/* Room for the sources of B that are parts of one name. */
typedef struct shards {
    uint32_t *ops, *values, n; /* all that are */
    uint32_t *order, *chosen;  /* those that cover the whole: rows, and ops */
} shards;

/* Those of B that have this name and say so, of that group of ranks; LB_NONE: of all. */
static void list_parts(const lb_aligner *al, const lb_source_list *list, const char *name, uint32_t group,
                       shards *shards)
{
    const lb_program *program = list->side->program;
    uint32_t said;
    shards->n = 0;
    for (uint32_t j = 0; j < list->n; j++) {
        const uint32_t v = lb_op_results(program, &program->ops[list->ops[j]])[0];
        if (group != LB_NONE && lb_aligner_group(al, 1, list->ops[j]) != group) continue;
        if (strcmp(list->names[j], name) || !lb_program_shards_of(program, v, &said)) continue;
        shards->ops[shards->n] = list->ops[j], shards->values[shards->n++] = v;
    }
}

/* Of equal parts one is put together with others; the rest stand where it does. */
static void join_copies(lb_aligner *al, const shards *shards, const lb_reassembly *join)
{
    for (uint32_t j = 0; j < shards->n; j++)
        for (uint32_t k = 0; k < join->parts && al->out->join_of_b[shards->ops[j]] == LB_NONE; k++) {
            const uint32_t op = al->out->joins.part_ops[join->first + k],
                           part = lb_op_results(al->b, &al->b->ops[op])[0];
            if (!lb_shard_is_copy(al->b, part, al->b, shards->values[j])) continue;
            al->out->join_of_b[shards->ops[j]] = al->out->join_of_b[op], al->out->place_of_b[shards->ops[j]] = k;
        }
}

/* A source of A that is the whole of what ranks of B have parts of: those that stand for its own rank, or else any (A's
 * ranks hold the same tensor then, and B's share one among them). */
static void join_shards(lb_aligner *al, const lb_source_list *a, uint32_t i, const lb_source_list *b, shards *shards)
{
    const uint32_t groups[] = {lb_aligner_group(al, 0, a->ops[i]), LB_NONE};
    const lb_value *whole = lb_source_value(al->a, a->ops[i]);
    if (!*a->names[i]) return;
    for (int all = 0; all < 2; all++) {
        list_parts(al, b, a->names[i], groups[all], shards);
        const uint32_t found = lb_shard_cover(al->b, &whole->layout, shards->values, shards->n, shards->order);
        if (found < 2) continue;
        for (uint32_t k = 0; k < found; k++) shards->chosen[k] = shards->ops[shards->order[k]];
        if (al->out->joins.n_part_ops + found <= al->b->n_ops &&
            lb_aligner_join(al, a->ops[i], shards->chosen, found, shards->order))
            join_copies(al, shards, &al->out->joins.list[al->out->join_of_a[a->ops[i]]]);
        return;
    }
}

/* What other ranks hold copies of, where no source of A stands for theirs. */
static void join_far_copies(lb_aligner *al, const lb_source_list *a, uint32_t i, const lb_source_list *b,
                            shards *shards)
{
    const uint32_t number = al->out->join_of_a[a->ops[i]];
    if (number == LB_NONE) return;
    list_parts(al, b, a->names[i], LB_NONE, shards);
    join_copies(al, shards, &al->out->joins.list[number]);
}

bool lb_aligner_join_shards(lb_aligner *al, lb_source_list *a, lb_source_list *b)
{
    if (!al->b->n_shards) return true;
    uint32_t *room = malloc((4 * (size_t)b->n + 1) * sizeof *room);
    if (!room) return false;
    shards shards = {.ops = room, .values = room + b->n, .order = room + 2 * b->n, .chosen = room + 3 * b->n};
    for (uint32_t i = 0; i < a->n; i++) join_shards(al, a, i, b, &shards);
    for (uint32_t i = 0; i < a->n; i++) join_far_copies(al, a, i, b, &shards);
    for (uint32_t i = 0; i < a->n; i++) a->taken[i] |= al->out->join_of_a[a->ops[i]] != LB_NONE;
    for (uint32_t j = 0; j < b->n; j++) b->taken[j] |= al->out->join_of_b[b->ops[j]] != LB_NONE;
    free(room);
    return true;
}

/* ---- one source of each program ---- */

/* Sources of B that may make up one of A, and room for the join. */
typedef struct parts {
    uint32_t *ops, *rows, n;
    uint32_t *values;
} parts;

static void join_parts(lb_aligner *al, lb_source_list *a, uint32_t i, lb_source_list *b, const parts *found)
{
    if (!lb_aligner_join(al, a->ops[i], found->ops, found->n, found->values)) return;
    a->taken[i] = 1;
    for (uint32_t k = 0; k < found->n; k++) b->taken[found->rows[k]] = 1;
}

/* Both say which part of a larger tensor they are: is some of the other side's another part? Those are no parts of A's,
 * whatever their shape. */
static bool are_other_parts(const lb_aligner *al, uint32_t source, const parts *found)
{
    const uint32_t a = lb_op_results(al->a, &al->a->ops[source])[0];
    uint32_t said;
    if (!lb_program_shards_of(al->a, a, &said)) return false;
    for (uint32_t k = 0; k < found->n; k++) {
        const uint32_t b = lb_op_results(al->b, &al->b->ops[found->ops[k]])[0];
        if (lb_program_shards_of(al->b, b, &said) && !lb_shard_is_copy(al->a, a, al->b, b)) return true;
    }
    return false;
}

/* Of unnamed ones the place in the program decides, and whether they can be put together. */
static void join_programs(lb_aligner *al, lb_source_list *a, uint32_t i, lb_source_list *b, parts *found)
{
    uint32_t n;
    const uint32_t first = lb_program_view_first_of(b->side, a->side, lb_aligner_group(al, 0, a->ops[i]), &n);
    const lb_value *va = lb_source_value(al->a, a->ops[i]);
    found->n = 0;
    for (uint32_t j = 0; j < b->n && found->n < n; j++) {
        const lb_value *vb = lb_source_value(al->b, b->ops[j]);
        if (b->taken[j] || lb_program_view_part_of(b->side, b->ops[j]) != first + found->n || va->dtype != vb->dtype)
            continue;
        if (strcmp(a->names[i], b->names[j]) != 0) continue;
        if (!*a->names[i] && va->layout.ndim != vb->layout.ndim) continue;
        found->ops[found->n] = b->ops[j], found->rows[found->n++] = j;
    }
    if (found->n == n && !are_other_parts(al, a->ops[i], found)) join_parts(al, a, i, b, found);
}

bool lb_aligner_join_programs(lb_aligner *al, lb_source_list *a, lb_source_list *b)
{
    const uint32_t n = b->side->n_parts;
    uint32_t *room = malloc(3 * n * sizeof *room);
    if (!room) return false;
    parts found = {.ops = room, .rows = room + n, .values = room + 2 * n};
    for (uint32_t i = 0; i < a->n; i++)
        if (!a->taken[i]) join_programs(al, a, i, b, &found);
    free(room);
    return true;
}

/* ---- slices ---- */

/* The source that op `reader` of B reads first as input `input`, if nothing has taken it; its row, or LB_NONE. */
static uint32_t source_read_by(const lb_source_list *list, uint32_t reader, uint32_t input)
{
    for (uint32_t j = 0; j < list->n; j++)
        if (!list->taken[j] && list->readers[j].op == reader && list->readers[j].input == input) return j;
    return LB_NONE;
}

/* The readers have met as parts of one op: what they read at the same place are the parts of what it reads there. */
static void join_slices(lb_aligner *al, lb_source_list *a, uint32_t i, lb_source_list *b, parts *found)
{
    const lb_source_reader *reader = &a->readers[i];
    const uint32_t number = reader->op == LB_NONE ? LB_NONE : al->out->join_of_a[reader->op];
    if (number == LB_NONE) return;
    const lb_reassembly *join = &al->out->joins.list[number];
    for (found->n = 0; found->n < join->parts; found->n++) {
        const uint32_t row = source_read_by(b, al->out->joins.part_ops[join->first + found->n], reader->input);
        if (row == LB_NONE) return;
        found->ops[found->n] = b->ops[row], found->rows[found->n] = row;
    }
    if (found->n) join_parts(al, a, i, b, found);
}

bool lb_aligner_join_slices(lb_aligner *al, lb_source_list *a, lb_source_list *b)
{
    const uint32_t n = b->n + 1;
    uint32_t *room = malloc(3 * n * sizeof *room);
    if (!room) return false;
    parts found = {.ops = room, .rows = room + n, .values = room + 2 * n};
    for (uint32_t i = 0; i < a->n; i++)
        if (!a->taken[i]) join_slices(al, a, i, b, &found);
    free(room);
    return true;
}
