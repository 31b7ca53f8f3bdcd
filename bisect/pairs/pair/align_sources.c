/* Which source of B is which of A: parameters, batches, draws, what earlier steps left. Here one meets one; several are
 * joined in align_parts.c. */
#include "pair/aligner.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- one against one ---- */

/* In which way two sources may be the same one. The strongest is asked of all before a weaker one of any, so that a
 * likeness by chance takes no source from its namesake. */
typedef enum likeness { BY_NAME, BY_BITS, BY_BITS_ALONE, BY_USE } likeness;

/* A source of each side. */
typedef struct source_pair {
    const lb_source_list *list[2];
    uint32_t row[2], op[2];
    const char *name[2];
    const lb_value *value[2];
} source_pair;

static void put(source_pair *pair, int side, const lb_source_list *list, uint32_t row)
{
    pair->list[side] = list, pair->row[side] = row, pair->op[side] = list->ops[row],
    pair->name[side] = list->names[row];
    pair->value[side] = lb_source_value(list->side->program, list->ops[row]);
}

static bool are_used_alike(const lb_aligner *al, const lb_source_reader *a, const lb_source_reader *b)
{
    return a->op != LB_NONE && b->op != LB_NONE && al->out->b_of_a[a->op] == b->op && a->input == b->input;
}

/* Pieces of a batch have its name, each of them; as many elements of it may be others. Where one side alone has pieces
 * (keys and values that the other side's layer makes in tensors of their own), places say nothing. */
static bool are_same_piece(const source_pair *pair)
{
    const lb_source_place *a = &pair->list[0]->places[pair->row[0]], *b = &pair->list[1]->places[pair->row[1]];
    return !a->in_pieces || !b->in_pieces || a->offset == b->offset;
}

static bool are_alike(const lb_aligner *al, const source_pair *pair, likeness how)
{
    const lb_value *va = pair->value[0], *vb = pair->value[1];
    const lb_source_reader *a = &pair->list[0]->readers[pair->row[0]], *b = &pair->list[1]->readers[pair->row[1]];
    const bool one_nameless = !*pair->name[0] || !*pair->name[1];
    const bool bits =
        va->dtype == vb->dtype && !lb_digest_is_none(va->logical) && lb_digest_equal(va->logical, vb->logical);
    switch (how) {
    case BY_NAME: return *pair->name[0] && !strcmp(pair->name[0], pair->name[1]) && (bits || are_same_piece(pair));
    case BY_BITS: return !*pair->name[0] && !*pair->name[1] && bits;
    /* a batch that one side's module takes whole and the other's in slices has a name on one side */
    case BY_BITS_ALONE:
        return bits && one_nameless && !((va->flags | vb->flags) & (LB_VALUE_PARAMETER | LB_VALUE_STATE));
    case BY_USE:
        if (va->dtype != vb->dtype && !(lb_dtype_is_float(va->dtype) && lb_dtype_is_float(vb->dtype))) return false;
        /* In a layer of different ops names alone may have paired the readers: weak for what earlier steps left, which
         * looks all alike. */
        if (va->source == LB_SOURCE_CARRIED && a->op != LB_NONE && al->out->irregular[a->op]) return false;
        return one_nameless && are_used_alike(al, a, b);
    }
    return false;
}

static bool shows_window(const lb_alignment *al, int side, const lb_program *p, uint32_t source)
{
    return al->shown[side][source] != lb_op_results(p, &p->ops[source])[0];
}

/* Ranges of as many elements may show other parts of a batch: what is shown has to be of one shape. */
static bool have_same_shape(const lb_aligner *al, const source_pair *pair)
{
    const lb_alignment *out = al->out;
    if (!shows_window(out, 0, al->a, pair->op[0]) && !shows_window(out, 1, al->b, pair->op[1]))
        return lb_layout_same_shape(&pair->value[0]->layout, &pair->value[1]->layout);
    const lb_value *x = &al->a->values[out->shown[0][pair->op[0]]], *y = &al->b->values[out->shown[1][pair->op[1]]];
    return x->dtype == y->dtype && lb_layout_same_shape(&x->layout, &y->layout);
}

/* Pairs them if they are alike. A larger batch is joined as rows of one part. */
static bool pair_if_alike(lb_aligner *al, const source_pair *pair, likeness how)
{
    const lb_batch_rows *rows = al->out->joins.rows;
    const bool same = have_same_shape(al, pair);
    uint32_t room;
    if (!same && !(rows && lb_batch_rows_dim(rows, &pair->value[0]->layout, &pair->value[1]->layout) >= 0))
        return false;
    if (!al->stages && lb_aligner_group(al, 0, pair->op[0]) != lb_aligner_group(al, 1, pair->op[1])) return false;
    const lb_source_reader *a = &pair->list[0]->readers[pair->row[0]], *b = &pair->list[1]->readers[pair->row[1]];
    const bool lasts = (pair->value[0]->flags | pair->value[1]->flags) & (LB_VALUE_PARAMETER | LB_VALUE_STATE);
    if (!lasts && !lb_forwards_meet(&al->out->forwards, a->op, b->op)) return false;
    if (!are_alike(al, pair, how)) return false;
    if (!same) return lb_aligner_join(al, pair->op[0], &pair->op[1], 1, &room);
    al->out->source_b_of_a[pair->op[0]] = pair->op[1];
    return true;
}

/* ---- which rows can be alike ---- */

/* What rows that are alike in some way have in common, as a number: rows with different keys are not alike. False: the
 * row is like none. */
static bool key_of_name(const char *name, uint64_t *key)
{
    *key = XXH3_64bits(name, strlen(name));
    return *name;
}

static bool key_of_bits(const lb_value *value, uint64_t *key)
{
    *key = value->logical.hi ^ value->logical.lo;
    return !lb_digest_is_none(value->logical);
}

static bool key_of_use(const lb_source_reader *reader, uint32_t op, uint64_t *key)
{
    *key = (uint64_t)op << 32 | reader->input;
    return op != LB_NONE;
}

/* `b_of_a`: the partners of the readers, for a list of A; NULL for one of B. */
static bool key_of(const lb_source_list *list, uint32_t row, likeness how, const uint32_t *b_of_a, uint64_t *key)
{
    const lb_value *value = lb_source_value(list->side->program, list->ops[row]);
    const lb_source_reader *reader = &list->readers[row];
    switch (how) {
    case BY_NAME: return key_of_name(list->names[row], key);
    case BY_BITS: return !*list->names[row] && key_of_bits(value, key);
    case BY_BITS_ALONE: return !(value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE)) && key_of_bits(value, key);
    case BY_USE: return key_of_use(reader, reader->op != LB_NONE && b_of_a ? b_of_a[reader->op] : reader->op, key);
    }
    return false;
}

typedef struct keyed_row {
    uint64_t key;
    uint32_t row;
} keyed_row;

/* Rows of B that nothing has taken, in the order of their keys, and of the list where keys are equal. */
typedef struct row_index {
    keyed_row *rows;
    uint32_t n, *free; /* free[k]: at or behind k, the way to the next row that nothing has taken */
} row_index;

static int by_key_and_row(const void *a, const void *b)
{
    const int order = lb_by_u64(a, b);
    return order ? order : lb_by_u32(&((const keyed_row *)a)->row, &((const keyed_row *)b)->row);
}

static bool index_rows(const lb_source_list *list, likeness how, row_index *index)
{
    *index = (row_index){malloc((list->n + 1) * sizeof *index->rows), 0, malloc((list->n + 1) * sizeof *index->free)};
    if (!index->rows || !index->free) return false;
    for (uint32_t row = 0; row < list->n; row++)
        if (!list->taken[row] && key_of(list, row, how, NULL, &index->rows[index->n].key))
            index->rows[index->n++].row = row;
    qsort(index->rows, index->n, sizeof *index->rows, by_key_and_row);
    for (uint32_t k = 0; k <= index->n; k++) index->free[k] = k;
    return true;
}

static uint32_t next_free(const row_index *index, uint32_t k)
{
    while (index->free[k] != k) index->free[k] = index->free[index->free[k]], k = index->free[k];
    return k;
}

/* Row `i` of A with the first row of B that is like it. */
static void pair_row(lb_aligner *al, lb_source_list *a, uint32_t i, lb_source_list *b, const row_index *index,
                     likeness how)
{
    uint64_t key;
    source_pair pair;
    if (a->taken[i] || !key_of(a, i, how, al->out->b_of_a, &key)) return;
    put(&pair, 0, a, i);
    for (uint32_t k = (uint32_t)lb_array_first(index->rows, index->n, sizeof *index->rows, &key, lb_by_u64);
         (k = next_free(index, k)) < index->n && index->rows[k].key == key; k++) {
        put(&pair, 1, b, index->rows[k].row);
        if (!pair_if_alike(al, &pair, how)) continue;
        a->taken[i] = b->taken[index->rows[k].row] = 1, index->free[k] = k + 1;
        return;
    }
}

static bool pair_alike(lb_aligner *al, lb_source_list *a, lb_source_list *b, likeness how)
{
    row_index index;
    const bool done = index_rows(b, how, &index);
    for (uint32_t i = 0; done && i < a->n; i++) pair_row(al, a, i, b, &index, how);
    free(index.rows), free(index.free);
    return done;
}

/* ---- all of them ---- */

static bool match_lists(lb_aligner *al, lb_source_list *a, lb_source_list *b)
{
    /* What the recording says of its parts comes before anything that is concluded. */
    if (al->side_b->n_parts > 1 && !al->out->joins.rows && !lb_aligner_join_shards(al, a, b)) return false;
    if (al->side_a->n_parts == 1 && !lb_source_list_find_stages(b, &al->stages)) return false;
    if (lb_program_views_are_uneven(al->side_a, al->side_b) && !al->stages) return lb_aligner_join_programs(al, a, b);
    for (likeness how = BY_NAME; how <= BY_USE; how++)
        if (!pair_alike(al, a, b, how)) return false;
    return lb_aligner_join_slices(al, a, b);
}

lb_status lb_aligner_match_sources(lb_aligner *al, const lb_layer_names_map *const rules[2], lb_err *err)
{
    lb_source_list a = {0}, b = {0};
    bool done = lb_source_list_init(&a, al, 0, rules[0]) && lb_source_list_init(&b, al, 1, rules[1]);
    lb_status status = done ? lb_layer_names_meet(a.names, a.n, b.names, b.n, err) : LB_OK;
    if (status == LB_OK && done) done = match_lists(al, &a, &b);
    if (!done) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for sources");
    lb_source_list_release(&a), lb_source_list_release(&b);
    return status;
}
