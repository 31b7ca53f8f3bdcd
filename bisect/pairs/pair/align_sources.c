/* Which source of B is which of A: parameters, batches, draws, what earlier steps left. Here one meets one; several are
 * joined in align_parts.c. */
#include "pair/aligner.h"

#include <stdlib.h>
#include <string.h>

const lb_value *lb_source_value(const lb_program *p, uint32_t op)
{
    if (!lb_op_is_source(p, &p->ops[op])) return NULL;
    uint32_t value = lb_op_results(p, &p->ops[op])[0];
    return value == LB_NONE ? NULL : &p->values[value];
}

/* ---- the sources of a side ---- */

typedef struct reading {
    const lb_program *program;
    int64_t storage;
    uint32_t input, n; /* the first input that lies in the storage; UINT32_MAX: none so far */
} reading;

static void note_read(void *context, uint32_t value)
{
    reading *r = context;
    if (value != LB_NONE && r->input == UINT32_MAX && r->program->values[value].storage == r->storage) r->input = r->n;
    r->n++;
}

static lb_source_reader reader_of(const lb_program *p, uint32_t source)
{
    const int64_t storage = p->values[lb_op_results(p, &p->ops[source])[0]].storage;
    for (uint32_t i = source + 1; i < p->n_ops; i++) {
        reading r = {p, storage, UINT32_MAX, 0};
        if (!lb_op_computes(p, &p->ops[i])) continue;
        lb_op_each_input(p, &p->ops[i], note_read, &r);
        if (r.input != UINT32_MAX) return (lb_source_reader){i, r.input};
    }
    return (lb_source_reader){LB_NONE, 0};
}

/* A source is called what it shows: a window of it may have the name that the other side's source has. */
static bool list_sources(const lb_aligner *al, int which, const lb_layer_names_map *rules, lb_source_list *s)
{
    const lb_program_view *side = which ? al->side_b : al->side_a;
    const uint32_t *shown = al->out->shown[which];
    const lb_program *p = side->program;
    const size_t room = p->n_ops + 1;
    *s = (lb_source_list){.side = side, .ops = malloc(room * sizeof *s->ops), .taken = calloc(room, 1)};
    s->names = calloc(room, sizeof *s->names), s->readers = malloc(room * sizeof *s->readers);
    if (!s->ops || !s->names || !s->readers || !s->taken) return false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!lb_source_value(p, i) || lb_aligner_group(al, which, i) == LB_NONE) continue;
        s->ops[s->n] = i, s->readers[s->n] = reader_of(p, i);
        s->names[s->n] = lb_layer_names_map_apply(rules, lb_program_text(p, p->values[shown[i]].name));
        if (!s->names[s->n++]) return false;
    }
    return true;
}

static void free_sources(lb_source_list *s)
{
    for (uint32_t i = 0; s->names && i < s->n; i++) free(s->names[i]);
    free(s->names), free(s->ops), free(s->readers), free(s->taken);
}

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

/* Where in what is read of its storage a source begins, and whether that is read in several pieces. */
static int64_t place_of(const lb_source_list *list, uint32_t row, bool *in_pieces)
{
    const lb_program *p = list->side->program;
    const lb_value *mine = lb_source_value(p, list->ops[row]);
    int64_t first = mine->layout.offset;
    for (uint32_t j = 0; j < list->n; j++) {
        const lb_value *other = lb_source_value(p, list->ops[j]);
        if (other == mine || other->storage != mine->storage || other->version != mine->version) continue;
        *in_pieces = true;
        if (other->layout.offset < first) first = other->layout.offset;
    }
    return mine->layout.offset - first;
}

/* Pieces of a batch have its name, each of them; as many elements of it may be others. Where one side alone has pieces
 * (keys and values that the other side's layer makes in tensors of their own), places say nothing. */
static bool are_same_piece(const source_pair *s)
{
    bool in_pieces[2] = {false, false};
    const int64_t a = place_of(s->list[0], s->row[0], &in_pieces[0]),
                  b = place_of(s->list[1], s->row[1], &in_pieces[1]);
    return !in_pieces[0] || !in_pieces[1] || a == b;
}

static bool are_alike(const lb_aligner *al, const source_pair *s, likeness how)
{
    const lb_value *va = s->value[0], *vb = s->value[1];
    const lb_source_reader *a = &s->list[0]->readers[s->row[0]], *b = &s->list[1]->readers[s->row[1]];
    const bool one_nameless = !*s->name[0] || !*s->name[1];
    const bool bits =
        va->dtype == vb->dtype && !lb_digest_is_none(va->logical) && lb_digest_equal(va->logical, vb->logical);
    switch (how) {
    case BY_NAME: return *s->name[0] && !strcmp(s->name[0], s->name[1]) && (bits || are_same_piece(s));
    case BY_BITS: return !*s->name[0] && !*s->name[1] && bits;
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
static bool have_same_shape(const lb_aligner *al, const source_pair *s)
{
    const lb_alignment *out = al->out;
    if (!shows_window(out, 0, al->a, s->op[0]) && !shows_window(out, 1, al->b, s->op[1]))
        return lb_layout_same_shape(&s->value[0]->layout, &s->value[1]->layout);
    const lb_value *x = &al->a->values[out->shown[0][s->op[0]]], *y = &al->b->values[out->shown[1][s->op[1]]];
    return x->dtype == y->dtype && lb_layout_same_shape(&x->layout, &y->layout);
}

/* Pairs them if they are alike. A larger batch is joined as rows of one part. */
static bool pair_if_alike(lb_aligner *al, const source_pair *s, likeness how)
{
    const lb_batch_rows *rows = al->out->joins.rows;
    const bool same = have_same_shape(al, s);
    uint32_t room;
    if (!same && !(rows && lb_batch_rows_dim(rows, &s->value[0]->layout, &s->value[1]->layout) >= 0)) return false;
    if (!al->stages && lb_aligner_group(al, 0, s->op[0]) != lb_aligner_group(al, 1, s->op[1])) return false;
    const lb_source_reader *a = &s->list[0]->readers[s->row[0]], *b = &s->list[1]->readers[s->row[1]];
    const bool lasts = (s->value[0]->flags | s->value[1]->flags) & (LB_VALUE_PARAMETER | LB_VALUE_STATE);
    if (!lasts && !lb_forwards_meet(&al->out->forwards, a->op, b->op)) return false;
    if (!are_alike(al, s, how)) return false;
    if (!same) return lb_aligner_join(al, s->op[0], &s->op[1], 1, &room);
    al->out->source_b_of_a[s->op[0]] = s->op[1];
    return true;
}

/* Quadratic only in sources of one step, of which there are hundreds. */
static void pair_alike(lb_aligner *al, lb_source_list *a, lb_source_list *b, likeness how)
{
    source_pair pair;
    for (uint32_t i = 0; i < a->n; i++) {
        put(&pair, 0, a, i);
        for (uint32_t j = 0; j < b->n && !a->taken[i]; j++) {
            if (b->taken[j]) continue;
            put(&pair, 1, b, j);
            if (pair_if_alike(al, &pair, how)) a->taken[i] = b->taken[j] = 1;
        }
    }
}

/* ---- stages ---- */

enum { MOST_SHARED = 2 }; /* tensors that two stages hold: embeddings tied to the head, and what goes with them */

static bool is_parameter(const lb_source_list *list, uint32_t row)
{
    return *list->names[row] && lb_source_value(list->side->program, list->ops[row])->flags & LB_VALUE_PARAMETER;
}

/* The part that holds a parameter of this name, LB_NONE if several do. */
static uint32_t holder_of(const lb_source_list *list, uint32_t row)
{
    const uint32_t part = lb_program_view_part_of(list->side, list->ops[row]);
    for (uint32_t j = 0; j < list->n; j++)
        if (is_parameter(list, j) && !strcmp(list->names[j], list->names[row]) &&
            lb_program_view_part_of(list->side, list->ops[j]) != part)
            return LB_NONE;
    return part;
}

static bool is_said_to_be_part(const lb_source_list *list, uint32_t row)
{
    const lb_program *p = list->side->program;
    uint32_t n;
    return is_parameter(list, row) && lb_program_shards_of(p, lb_op_results(p, &p->ops[list->ops[row]])[0], &n);
}

/* Whether the ranks of a side hold a layer each, as the stages of a pipeline do: every one has parameters that no other
 * has, and hardly any is held twice. Ranks that share out experts or heads hold norms and embeddings alike; flat
 * parameters that are shared out say so. */
static bool are_stages(const lb_source_list *list)
{
    const uint32_t n_parts = list->side->n_parts;
    for (uint32_t j = 0; j < list->n; j++)
        if (is_said_to_be_part(list, j)) return false;
    uint32_t *held = calloc(n_parts, sizeof *held), shared = 0, stages = 0;
    for (uint32_t j = 0; held && j < list->n; j++) {
        const uint32_t part = is_parameter(list, j) ? holder_of(list, j) : n_parts;
        if (part < n_parts) held[part]++;
        shared += part == LB_NONE;
    }
    for (uint32_t p = 0; held && p < n_parts; p++) stages += held[p] > 0;
    free(held);
    return n_parts > 1 && stages == n_parts && shared <= MOST_SHARED * n_parts;
}

/* ---- all of them ---- */

static bool match_lists(lb_aligner *al, lb_source_list *a, lb_source_list *b)
{
    /* What the recording says of its parts comes before anything that is concluded. */
    if (al->side_b->n_parts > 1 && !al->out->joins.rows && !lb_aligner_join_shards(al, a, b)) return false;
    al->stages = al->side_a->n_parts == 1 && are_stages(b);
    if (lb_program_views_are_uneven(al->side_a, al->side_b) && !al->stages) return lb_aligner_join_programs(al, a, b);
    for (likeness how = BY_NAME; how <= BY_USE; how++) pair_alike(al, a, b, how);
    return lb_aligner_join_slices(al, a, b);
}

lb_status lb_aligner_match_sources(lb_aligner *al, const lb_layer_names_map *const rules[2], lb_err *err)
{
    lb_source_list a = {0}, b = {0};
    bool done = list_sources(al, 0, rules[0], &a) && list_sources(al, 1, rules[1], &b);
    lb_status status = done ? lb_layer_names_meet(a.names, a.n, b.names, b.n, err) : LB_OK;
    if (status == LB_OK && done) done = match_lists(al, &a, &b);
    if (!done) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for sources");
    free_sources(&a), free_sources(&b);
    return status;
}
