/* What one side alone has: see diff_structure.h. */
#include "diff/diff_structure.h"

#include "diff/diff_cuts.h"
#include "diff/diff_place.h"
#include "diff/diff_rows.h"
#include "program/state_name.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ops ---- */

static void count_name(char *text, size_t size, const char *name)
{
    char *at = strstr(text, name);
    size_t n = strlen(name), used = strlen(text);
    if (at && (at[n] == ',' || at[n] == '\0' || at[n] == ' ')) return;
    if (used + n + 3 < size) snprintf(text + used, size - used, "%s%s", used ? ", " : "", name);
}

/* One side of the walk, for its ops without a partner. */
typedef struct loners {
    const lb_program_view *side, *other;
    const lb_program *program;
    const uint32_t *partner, *join; /* per op; LB_NONE: none */
    const lb_forwards *passes;
    int which; /* 0: A of the alignment */
} loners;

static uint32_t share_of(const loners *s, uint32_t op)
{
    return lb_program_view_group(s->side, s->other, lb_program_view_part_of(s->side, op));
}

static bool is_alone(const loners *s, uint32_t op)
{
    return s->partner[op] == LB_NONE && s->join[op] == LB_NONE && lb_op_computes(s->program, &s->program->ops[op]) &&
           share_of(s, op) != LB_NONE && !lb_forwards_has_no_like(s->passes, s->which, op);
}

static void list_alone(const loners *s, uint32_t share, const lb_op *like, const char *layer, char *text, size_t size)
{
    *text = '\0';
    for (uint32_t i = 0; i < s->program->n_ops; i++) {
        const lb_op *op = &s->program->ops[i];
        if (op->phase == like->phase && is_alone(s, i) && share_of(s, i) == share &&
            strcmp(lb_op_layer(s->program, op), layer) == 0)
            count_name(text, size, lb_op_name(s->program, op));
    }
}

static bool is_listed(const lb_diff_report *report, int64_t step, int32_t rank, const lb_op *op, const char *layer)
{
    for (uint32_t k = report->n_structures; k-- > 0;)
        if (report->structures[k].step == step && report->structures[k].rank == rank &&
            report->structures[k].phase == op->phase && strcmp(report->structures[k].layer, layer) == 0)
            return true;
    return false;
}

/* A whole forward pass of one side is one sentence, not a row for each of its layers. */
static void list_passes(lb_diff_walk *walk)
{
    char sentences[LB_FORWARDS_SENTENCES][300];
    const uint32_t n =
        lb_forwards_tell(&walk->alignment.forwards, walk->pa, walk->pb, walk->swapped ? 1 : 0, sentences);
    for (uint32_t i = 0; i < n; i++) {
        const char *what = strstr(sentences[i], ": ");
        bool known = false; /* of an earlier step */
        for (uint32_t k = 0; k < walk->report->n_findings && !known; k++)
            known = what && strstr(walk->report->findings[k], what);
        if (!known) lb_report_finding(walk->report, sentences[i]);
    }
}

/* The name of what the program begins with in a storage, "" for none; NULL: the storage is of the step. */
static const char *name_before(const lb_program *program, int64_t storage)
{
    for (uint32_t k = 0; k < program->n_ops; k++) {
        const uint32_t v =
            lb_op_is_source(program, &program->ops[k]) ? lb_op_results(program, &program->ops[k])[0] : LB_NONE;
        if (v != LB_NONE && program->values[v].storage == storage)
            return lb_program_text(program, program->values[v].name);
    }
    return NULL;
}

static bool begins_with(const lb_program *program, const char *name)
{
    for (uint32_t k = 0; k < program->n_ops; k++) {
        const uint32_t v =
            lb_op_is_source(program, &program->ops[k]) ? lb_op_results(program, &program->ops[k])[0] : LB_NONE;
        if (v != LB_NONE && !strcmp(lb_program_text(program, program->values[v].name), name)) return true;
    }
    return false;
}

/* Is what the storage holds at the end of the step compared, whole or in parts? `which`: 0 for A of the alignment. */
static bool is_final(const lb_diff_walk *walk, int which, int64_t storage)
{
    const lb_shadow_pair *all = &walk->shadows;
    for (uint32_t f = 0; f < all->n_finals; f++) {
        const lb_shadow_final *final = &all->finals[f];
        if (!which && walk->pa->values[final->whole.value].storage == storage) return true;
        for (uint32_t k = 0; k < final->parts && which; k++)
            if (walk->pb->values[all->final_parts[final->first + k].value].storage == storage) return true;
    }
    return false;
}

/* Does an op write to memory that was there before the step and is not compared at its end: an average of weights, a
 * buffer? */
static bool writes_what_stays(const lb_diff_walk *walk, const loners *side, const lb_op *op)
{
    const lb_program *program = side->program, *other = side->which ? walk->pa : walk->pb;
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
        const uint32_t v = lb_op_outcome(program, op, i);
        if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype) ||
            lb_layout_numel(&program->values[v].layout) < 2)
            continue;
        if (lb_op_writes(program, op, program->values[v].storage) == LB_NONE ||
            program->values[v].flags & LB_VALUE_GRADIENT)
            continue;
        if (is_final(walk, side->which, program->values[v].storage)) continue;
        const char *name = name_before(program, program->values[v].storage);
        const bool state = name && lb_state_name_is(name); /* shows in the parameter of the next step */
        if (name && !state && !(*name && begins_with(other, name))) return true;
    }
    return false;
}

void lb_diff_walk_list_structure(lb_diff_walk *walk)
{
    list_passes(walk);
    lb_diff_report *report = walk->report;
    const lb_forwards *passes = &walk->alignment.forwards;
    loners a = {walk->a, walk->b, walk->pa, walk->alignment.b_of_a, walk->alignment.join_of_a, passes, 0};
    loners b = {walk->b, walk->a, walk->pb, walk->alignment.a_of_b, walk->alignment.join_of_b, passes, 1};
    const loners *sides[] = {walk->swapped ? &b : &a, walk->swapped ? &a : &b};
    for (int k = 0; k < 2; k++) {
        const lb_program *program = sides[k]->program;
        for (uint32_t i = 0; i < program->n_ops; i++) {
            const lb_op *op = &program->ops[i];
            const char *layer = lb_op_layer(program, op);
            if (!is_alone(sides[k], i)) continue;
            report->lone_writes[k] = report->lone_writes[k] || writes_what_stays(walk, sides[k], op);
            uint32_t n;
            const uint32_t share = share_of(sides[k], i),
                           first = lb_program_view_first_of(sides[0]->side, sides[0]->other, share, &n);
            const int32_t rank = sides[0]->side->parts[first == LB_NONE ? 0 : first].program->rank;
            if (is_listed(report, program->step, rank, op, layer)) continue;
            char only_a[400], only_b[400];
            list_alone(sides[0], share, op, layer, only_a, sizeof only_a);
            list_alone(sides[1], share, op, layer, only_b, sizeof only_b);
            lb_diff_structure s = {program->step,
                                   rank,
                                   (lb_phase)op->phase,
                                   lb_report_keep(report, layer),
                                   lb_report_keep(report, only_a),
                                   lb_report_keep(report, only_b)};
            LB_DIFF_APPEND(report, structures, n_structures, s);
        }
    }
}

/* ---- parameters ---- */

/* What a source holds that is a parameter or a batch and has a name; NULL. */
static const lb_value *parameter_of(const lb_program *program, uint32_t op)
{
    if (!lb_op_is_source(program, &program->ops[op])) return NULL;
    const lb_value *v = &program->values[lb_op_results(program, &program->ops[op])[0]];
    const bool kind = v->source == LB_SOURCE_PARAMETER || v->source == LB_SOURCE_BATCH;
    return kind && *lb_program_text(program, v->name) ? v : NULL;
}

/* Nothing that the step leaves differs in exact arithmetic, and it leaves an update: what came in may be the same data,
 * packed or padded. */
static bool leaves_the_same(const lb_diff_walk *walk)
{
    bool updates = false;
    for (uint32_t i = 0; i < walk->pa->n_ops; i++) updates |= walk->pa->ops[i].phase == LB_PHASE_OPTIMIZER;
    for (uint32_t f = 0; f < walk->shadows.n_finals; f++)
        if (walk->shadows.finals[f].agreement != LB_SHADOW_AGREES) return false;
    for (uint32_t e = 0; e < walk->exits.n; e++)
        if (walk->exits.list[e].agreement == LB_SHADOW_DISAGREES) return false;
    return walk->have_shadows && updates;
}

static void add_other_shape(lb_diff_walk *walk, uint32_t ia, const lb_value *a, uint32_t ib, const lb_value *b)
{
    char why[440], shapes[2][160];
    const bool shape = !lb_layout_same_shape(&a->layout, &b->layout);
    lb_held_part_shape_text(&a->layout, shapes[walk->swapped], sizeof shapes[0]);
    lb_held_part_shape_text(&b->layout, shapes[!walk->swapped], sizeof shapes[0]);
    snprintf(why, sizeof why, "its %s is %s on the first side, %s on the second%s", shape ? "shape" : "dtype",
             shape ? shapes[0] : lb_dtype_name(walk->swapped ? b->dtype : a->dtype),
             shape ? shapes[1] : lb_dtype_name(walk->swapped ? a->dtype : b->dtype),
             shape ? "" : ": ranks are put together in one dtype only");
    lb_diff_row row = {.step = walk->pa->step, .rank = walk->pa->rank, .index = ia, .other = ib, .value = true};
    row.layer = lb_report_keep(walk->report, lb_program_text(walk->pa, a->name));
    row.op = "lb::source", row.why = lb_report_keep(walk->report, why), row.local = LB_VERDICT_DIVERGED;
    if (shape && a->source == LB_SOURCE_BATCH && walk->given_more)
        row.local = LB_VERDICT_MISSING, row.why = LB_WHY_KEPT;
    else if (shape && a->source == LB_SOURCE_BATCH && leaves_the_same(walk))
        row.local = LB_VERDICT_ROUNDING,
        row.why = "of another shape; what the step leaves is the same in exact arithmetic";
    row.verdict = row.local, row.bound_ratio = NAN;
    row.difference.cosine = 1, row.difference.first = -1;
    lb_diff_rows_report(walk, &row);
    walk->report->sources++;
}

/* ---- a batch that each side read in other pieces ---- */

/* What the sources of one storage hold together: element `first` of it and those behind. */
typedef struct gathered {
    char *bytes;
    uint8_t *there; /* per element */
    int64_t first, n;
} gathered;

static bool is_data(const lb_value *v)
{
    return !(v->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE | LB_VALUE_GRADIENT)) &&
           lb_dtype_bits(v->dtype) % 8 == 0 && lb_layout_is_contiguous(&v->layout);
}

/* What a source of data holds; NULL: it is none. */
static const lb_value *data_of(const lb_program *program, uint32_t op)
{
    const uint32_t v =
        lb_op_is_source(program, &program->ops[op]) ? lb_op_results(program, &program->ops[op])[0] : LB_NONE;
    return v != LB_NONE && is_data(&program->values[v]) ? &program->values[v] : NULL;
}

static const lb_value *piece_of(const lb_program *program, uint32_t op, const lb_value *of)
{
    const lb_value *v = data_of(program, op);
    return v && v->storage == of->storage && v->version == of->version && v->dtype == of->dtype ? v : NULL;
}

static void measure(const lb_program *program, const lb_value *of, gathered *out)
{
    int64_t last = INT64_MIN;
    *out = (gathered){.first = INT64_MAX};
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_value *v = piece_of(program, i, of);
        if (!v) continue;
        const int64_t end = v->layout.offset + lb_layout_numel(&v->layout);
        if (v->layout.offset < out->first) out->first = v->layout.offset;
        if (end > last) last = end;
    }
    out->n = last - out->first;
}

static bool gather(const lb_program_view *side, const lb_value *of, gathered *out)
{
    const lb_program *program = side->program;
    const size_t size = lb_dtype_bytes(of->dtype, 1);
    out->bytes = calloc((size_t)out->n + 1, size), out->there = calloc((size_t)out->n + 1, 1);
    for (uint32_t i = 0; out->bytes && out->there && i < program->n_ops; i++) {
        const lb_value *v = piece_of(program, i, of);
        lb_tensor tensor;
        if (!v) continue;
        if (lb_program_view_value(side, (uint32_t)(v - program->values), &tensor, NULL) != LB_OK) return false;
        const size_t at = (size_t)(v->layout.offset - out->first), n = (size_t)lb_layout_numel(&v->layout);
        if (n) memcpy(out->bytes + at * size, tensor.data, n * size);
        memset(out->there + at, 1, n);
    }
    return out->bytes && out->there;
}

/* Both sides hold the same elements, in whatever pieces they were read. */
static bool hold_the_same(const lb_diff_walk *walk, const lb_value *a, const lb_value *b)
{
    gathered x, y;
    if (a->dtype != b->dtype) return false;
    measure(walk->pa, a, &x), measure(walk->pb, b, &y);
    const bool same = x.n == y.n && gather(walk->a, a, &x) && gather(walk->b, b, &y) &&
                      !memcmp(x.there, y.there, (size_t)x.n) &&
                      !memcmp(x.bytes, y.bytes, lb_dtype_bytes(a->dtype, (size_t)x.n));
    free(x.bytes), free(x.there), free(y.bytes), free(y.there);
    return same;
}

/* Batches that are left over on one side, and what of the other's data, left over as well, is the same. */
static void pair_pieces(const lb_diff_walk *walk, uint8_t *paired_a, uint8_t *paired_b)
{
    for (uint32_t i = 0; i < walk->pa->n_ops; i++)
        for (uint32_t j = 0; j < walk->pb->n_ops && !paired_a[i]; j++) {
            const lb_value *a = data_of(walk->pa, i), *b = a && !paired_b[j] ? data_of(walk->pb, j) : NULL;
            if (!a) break;
            if (!b || (a->source != LB_SOURCE_BATCH && b->source != LB_SOURCE_BATCH) || !hold_the_same(walk, a, b))
                continue;
            for (uint32_t k = 0; k < walk->pa->n_ops; k++) paired_a[k] |= piece_of(walk->pa, k, a) != NULL;
            for (uint32_t k = 0; k < walk->pb->n_ops; k++) paired_b[k] |= piece_of(walk->pb, k, b) != NULL;
        }
}

/* ---- parameters and inputs by name ---- */

typedef struct named {
    const char *name;
    uint32_t op;
} named;

static int by_name_and_op(const void *a, const void *b)
{
    const int order = lb_by_text(a, b);
    return order ? order : lb_by_u32(&((const named *)a)->op, &((const named *)b)->op);
}

/* What is not paired, by name and place; malloc'ed, NULL: out of memory. */
static named *list_lone(const lb_program *program, const uint8_t *paired, uint32_t *n)
{
    named *list = malloc((program->n_ops + 1) * sizeof *list);
    *n = 0;
    for (uint32_t i = 0; list && i < program->n_ops; i++) {
        const lb_value *v = paired[i] ? NULL : parameter_of(program, i);
        if (v) list[(*n)++] = (named){lb_program_text(program, v->name), i};
    }
    if (list) qsort(list, *n, sizeof *list, by_name_and_op);
    return list;
}

/* The first of that name that is not paired; NULL. */
static const lb_value *find_parameter(const lb_program *program, const uint8_t *paired, const named *list, uint32_t n,
                                      const char *name, uint32_t *op)
{
    for (size_t i = lb_array_first(list, n, sizeof *list, &name, lb_by_text); i < n && !strcmp(list[i].name, name); i++)
        if (!paired[list[i].op]) return parameter_of(program, *op = list[i].op);
    return NULL;
}

/* A name is as long as it is: two that begin alike are two. */
static void report_lone(lb_diff_report *report, const char *name, const char *side)
{
    const size_t size = strlen(name) + 40;
    char *text = malloc(size);
    report->out_of_memory |= !text;
    if (text) snprintf(text, size, "%s is on the %s side only", name, side), lb_report_missing(report, text);
    free(text);
}

/* False when out of memory. */
static bool add_lone_parameters(lb_diff_walk *walk, uint8_t *paired_a, uint8_t *paired_b)
{
    const lb_program *programs[] = {walk->pa, walk->pb};
    uint8_t *paired[] = {paired_a, paired_b};
    uint32_t n[2];
    named *lone[] = {list_lone(walk->pa, paired_a, &n[0]), list_lone(walk->pb, paired_b, &n[1])};
    const bool room = lone[0] && lone[1];
    for (int k = 0; k < 2 && room; k++)
        for (uint32_t i = 0, j; i < programs[k]->n_ops; i++) {
            const lb_value *mine = paired[k][i] ? NULL : parameter_of(programs[k], i);
            const bool batch = mine && mine->source == LB_SOURCE_BATCH;
            if (!mine || (batch && walk->uneven)) continue; /* micro-batches are no other batch */
            const char *name = lb_program_text(programs[k], mine->name);
            const lb_value *theirs = find_parameter(programs[!k], paired[!k], lone[!k], n[!k], name, &j);
            if (theirs) {
                paired[!k][j] = 1;
                add_other_shape(walk, k ? j : i, k ? theirs : mine, k ? i : j, k ? mine : theirs);
                continue;
            }
            if (!batch) report_lone(walk->report, name, (k == 1) != walk->swapped ? "second" : "first");
        }
    free(lone[0]), free(lone[1]);
    return room;
}

/* Of a rank of A that stands against none: what it holds is there already. */
static bool stands_alone(const lb_diff_walk *walk, uint32_t ia)
{
    return lb_program_view_group(walk->a, walk->b, lb_program_view_part_of(walk->a, ia)) == LB_NONE;
}

lb_status lb_diff_structure_list_parameters(lb_diff_walk *walk, lb_err *err)
{
    uint8_t *paired_a = calloc(walk->pa->n_ops + 1, 1), *paired_b = calloc(walk->pb->n_ops + 1, 1);
    const lb_alignment *al = &walk->alignment;
    for (uint32_t i = 0; paired_a && paired_b && i < walk->pa->n_ops; i++) {
        uint32_t j = al->source_b_of_a[i];
        paired_a[i] = j != LB_NONE || al->join_of_a[i] != LB_NONE || walk->cuts.held[0][i] || stands_alone(walk, i);
        if (j != LB_NONE) paired_b[j] = 1;
    }
    for (uint32_t i = 0; paired_a && paired_b && i < walk->pb->n_ops; i++)
        paired_b[i] |= al->join_of_b[i] != LB_NONE || walk->cuts.held[1][i];
    lb_status status = LB_ERR_NOMEM;
    if (paired_a && paired_b) status = LB_OK, pair_pieces(walk, paired_a, paired_b);
    if (status == LB_OK && !add_lone_parameters(walk, paired_a, paired_b)) status = LB_ERR_NOMEM;
    free(paired_a), free(paired_b);
    return status == LB_OK ? status : lb_fail(err, status, "out of memory");
}
