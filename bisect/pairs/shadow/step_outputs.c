/* Finding what leaves a step: see step_outputs.h. */
#include "shadow/step_outputs.h"

#include "shadow/cross_feed.h"
#include "kernel/value_memory.h"

#include "base/array.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A result of an outermost call. */
typedef struct result {
    const char *path; /* mapped */
    const char *class_name;
    uint32_t call, position, value, op, part;
    uint32_t given; /* what its call was given first; LB_NONE */
} result;

typedef struct results {
    result *list;
    uint32_t n;
    char **paths; /* per scope, mapped */
    uint32_t n_scopes;
} results;

/* Scopes that some call of theirs has results in. */
static uint8_t *called_scopes(const lb_program *program)
{
    uint8_t *called = calloc(program->n_scopes + 1, 1);
    for (uint32_t i = 0; called && i < program->n_boundaries; i++)
        if (program->boundaries[i].output) called[program->boundaries[i].scope] = 1;
    return called;
}

/* Is no module around this one called? The row of the outermost module itself is scope 0 when its path is "". */
static bool is_outermost(const lb_program *program, const uint8_t *called, uint32_t scope)
{
    while (scope) {
        scope = program->scopes[scope].parent == LB_NONE ? 0 : program->scopes[scope].parent;
        if (called[scope]) return false;
    }
    return true;
}

/* What the call of a result was given first, LB_NONE: no tensor. */
static uint32_t given_to(const lb_program *program, const lb_boundary *output)
{
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *b = &program->boundaries[i];
        if (!b->output && !b->recompute && b->scope == output->scope && b->call == output->call && b->position == 0)
            return b->value;
    }
    return LB_NONE;
}

/* By which call's result it meets the other side's: of passes that meet by their data it is that of its pass. */
static uint32_t call_of(const lb_forwards *passes, int which, const lb_boundary *b, uint32_t op, const results *before,
                        const char *path)
{
    const uint32_t pass = lb_forwards_number(passes, which, op);
    uint32_t call = pass * LB_FORWARDS_CALLS;
    if (pass == LB_NONE) return b->call;
    for (uint32_t i = 0; i < before->n; i++)
        call += before->list[i].call / LB_FORWARDS_CALLS == pass && before->list[i].position == b->position &&
                before->list[i].path == path;
    return call;
}

/* Of a side (`which` 0: A), but for passes that the other side does not have. */
static bool list_results(const lb_aligned_views *views, int which, const lb_layer_names_map *rules, results *results)
{
    const lb_program_view *side = which ? views->b : views->a;
    const lb_forwards *passes = &views->alignment->forwards;
    const lb_program *program = side->program;
    uint8_t *called = called_scopes(program);
    results->list = malloc((program->n_boundaries + 1) * sizeof *results->list), results->n = 0;
    results->paths = calloc(program->n_scopes + 1, sizeof *results->paths), results->n_scopes = program->n_scopes;
    bool done = called && results->list && results->paths;
    for (uint32_t i = 0; done && i < program->n_scopes; i++) {
        results->paths[i] = lb_layer_names_map_apply(rules, lb_program_text(program, program->scopes[i].path));
        done = results->paths[i] != NULL;
    }
    for (uint32_t i = 0; done && i < program->n_boundaries; i++) {
        const lb_boundary *b = &program->boundaries[i];
        if (!b->output || b->recompute || b->value == LB_NONE || !is_outermost(program, called, b->scope)) continue;
        const uint32_t op = lb_cross_feed_giver(program, b->value, b->op);
        if (op == LB_NONE || lb_layout_numel(&program->values[b->value].layout) == 0) continue;
        if (lb_forwards_has_no_like(passes, which, op)) continue;
        const char *path = results->paths[b->scope];
        const uint32_t call = call_of(passes, which, b, op, results, path);
        const uint32_t class_name = program->scopes[b->scope].class_name;
        results->list[results->n++] =
            (result){.path = path,
                     .class_name = class_name == LB_NONE ? "" : lb_program_text(program, class_name),
                     .call = call,
                     .position = b->position,
                     .value = b->value,
                     .op = op,
                     .part = lb_program_view_part_of(side, op),
                     .given = given_to(program, b)};
    }
    free(called);
    return done;
}

static void free_results(results *results)
{
    for (uint32_t i = 0; results->paths && i < results->n_scopes; i++) free(results->paths[i]);
    free(results->paths), free(results->list);
}

static bool is_same(const result *x, const result *y)
{
    return x->part == y->part && x->call == y->call && x->position == y->position && !strcmp(x->path, y->path);
}

static uint32_t count_calls(const results *results)
{
    uint32_t calls = 0;
    for (uint32_t i = 0; i < results->n; i++) calls += results->list[i].position == 0;
    return calls;
}

static const result *find(const results *results, const result *like)
{
    for (uint32_t i = 0; i < results->n; i++)
        if (is_same(&results->list[i], like)) return &results->list[i];
    return NULL;
}

/* The one dimension in which two shapes differ; -1: none, or several. */
static int differing_dim(const lb_layout *x, const lb_layout *y)
{
    int dim = -1;
    for (int d = 0; x->ndim == y->ndim && d < x->ndim; d++) {
        if (x->shape[d] == y->shape[d]) continue;
        if (dim >= 0) return -1;
        dim = d;
    }
    return dim;
}

/* A side that recomputes what the other has in a cache is given all tokens, and hands on a row for each. */
static int more_rows(const lb_program *pa, const result *x, const lb_program *pb, const result *y)
{
    const lb_layout *a = &pa->values[x->value].layout, *b = &pb->values[y->value].layout;
    if (x->given == LB_NONE || y->given == LB_NONE) return -1;
    const lb_layout *from_a = &pa->values[x->given].layout, *from_b = &pb->values[y->given].layout;
    const int dim = differing_dim(a, b);
    if (dim < 0 || dim != differing_dim(from_a, from_b)) return -1;
    return a->shape[dim] == from_a->shape[dim] && b->shape[dim] == from_b->shape[dim] ? dim : -1;
}

static uint32_t count_siblings(const results *results, const result *x)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < results->n; i++)
        n += results->list[i].part == x->part && results->list[i].call == x->call &&
             !strcmp(results->list[i].path, x->path);
    return n;
}

/* Two modules that share a path alone, or one that gives out more than the other, need not give out in one order. The
 * ops that gave two results tell that these are one where they are aligned. */
static bool is_by_place_alone(const lb_aligned_views *views, const results *ra, const result *x, const results *rb,
                              const result *y)
{
    const uint32_t n[] = {count_siblings(ra, x), count_siblings(rb, y)};
    if (views->alignment->b_of_a[x->op] == y->op || (n[0] == 1 && n[1] == 1)) return false;
    return n[0] != n[1] || strcmp(x->class_name, y->class_name) != 0;
}

static void pair_results(const lb_aligned_views *views, const results *ra, const results *rb, lb_step_outputs *exits)
{
    const lb_program_view *a = views->a, *b = views->b;
    for (uint32_t i = 0; i < ra->n; i++) {
        const result *x = &ra->list[i], *y = find(rb, x);
        if (!y) continue;
        const lb_value *va = &a->program->values[x->value], *vb = &b->program->values[y->value];
        exits->list[exits->n++] = (lb_step_output){.op = {x->op, y->op},
                                                   .value = {x->value, y->value},
                                                   .other_shape = !lb_layout_same_shape(&va->layout, &vb->layout),
                                                   .rows = more_rows(a->program, x, b->program, y),
                                                   .differs = lb_program_view_values_differ(a, x->value, b, y->value),
                                                   .by_place = is_by_place_alone(views, ra, x, rb, y),
                                                   .agreement = LB_SHADOW_UNKNOWN};
    }
}

static void note_lone(const results *ra, const results *rb, char *text, size_t size)
{
    const results *lists[] = {ra, rb};
    for (int k = 0; k < 2 && !*text; k++)
        for (uint32_t i = 0; i < lists[k]->n && !*text; i++) {
            const result *x = &lists[k]->list[i];
            if (find(lists[!k], x)) continue;
            snprintf(text, size, "result %u of call %u of %.200s is on the %s side only", x->position, x->call,
                     *x->path ? x->path : "the outermost module", k ? "second" : "first");
        }
}

/* ---- what the next step takes up ---- */

static bool is_entering(const lb_program *program, int64_t storage)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        const uint32_t v = op->results ? lb_op_results(program, op)[0] : LB_NONE;
        if (v != LB_NONE && program->values[v].storage == storage && lb_op_is_source(program, op)) return true;
    }
    return false;
}

/* How the next step finds a state that this one made. */
typedef struct found_state {
    int64_t storage; /* of the whole; -1: it is none */
    const char *name;
    const lb_layout *layout;
    bool part; /* of a larger one */
} found_state;

static found_state made_here(const lb_program_view *side, uint32_t part, const lb_program *next, uint32_t op)
{
    found_state s = {.storage = -1};
    uint32_t shards;
    const lb_op *o = &next->ops[op];
    const uint32_t v = lb_op_is_source(next, o) ? lb_op_results(next, o)[0] : LB_NONE;
    if (v == LB_NONE || next->values[v].source != LB_SOURCE_CARRIED) return s;
    const int64_t storage = lb_program_view_storage(side, part, next->values[v].storage);
    s.name = lb_program_text(next, next->values[v].name), s.layout = &next->values[v].layout;
    s.part = lb_program_shards_of(next, v, &shards) != NULL;
    if (*s.name && !is_entering(side->program, storage)) s.storage = storage;
    return s;
}

/* The ops that filled two equal storages last may have given them in different shapes (a product of tokens here, of a
 * batch of them there): what counts is that the elements lie in one order. */
static bool is_comparable(const lb_layout *x, const lb_layout *y)
{
    return lb_layout_same_shape(x, y) ||
           (lb_layout_numel(x) == lb_layout_numel(y) && lb_layout_is_contiguous(x) && lb_layout_is_contiguous(y));
}

static bool same_strides(const lb_layout *x, const lb_layout *y)
{
    bool same = lb_layout_same_shape(x, y);
    for (int d = 0; d < x->ndim && same; d++) same = x->shape[d] < 2 || x->stride[d] == y->stride[d];
    return same;
}

/* The value that shows what `value` holds in that layout; LB_NONE. */
static uint32_t shown_as(const lb_program *program, uint32_t value, const lb_layout *layout)
{
    const lb_value *v = &program->values[value];
    for (uint32_t i = 0; i < program->n_values; i++) {
        const lb_value *x = &program->values[i];
        if (x->storage == v->storage && x->version == v->version && x->dtype == v->dtype &&
            x->layout.offset == layout->offset && same_strides(&x->layout, layout))
            return i;
    }
    return LB_NONE;
}

/* Views have no digest. */
static bool views_differ(const lb_program_view *a, uint32_t va, const lb_program_view *b, uint32_t vb)
{
    lb_tensor x, y;
    return lb_program_view_value(a, va, &x, NULL) != LB_OK || lb_program_view_value(b, vb, &y, NULL) != LB_OK ||
           !lb_memory_tensor_same(&x, &y);
}

static bool is_shown(const lb_value *v, const lb_layout *shown)
{
    return lb_layout_same_shape(&v->layout, shown);
}

/* What a storage of either side holds at the end; its name, "": none. */
typedef struct left {
    int64_t storages[2];
    const char *name;
    bool by_use;
} left;

/* `shown`: how the next step finds it, on both sides; NULL: there is none. */
static bool add_state(const lb_program_view *a, const lb_program_view *b, const left *what,
                      const lb_layout *const *shown, lb_step_outputs *exits)
{
    const int64_t sa = what->storages[0], sb = what->storages[1];
    const bool other_shape = shown && !lb_layout_same_shape(shown[0], shown[1]);
    uint32_t va, vb;
    const uint32_t op_a = lb_cross_feed_giver_of_storage(a->program, sa, a->program->n_ops, &va),
                   op_b = lb_cross_feed_giver_of_storage(b->program, sb, b->program->n_ops, &vb);
    if (op_a == LB_NONE || op_b == LB_NONE) return true;
    const lb_value *x = &a->program->values[va], *y = &b->program->values[vb];
    if (!other_shape && !is_comparable(&x->layout, &y->layout))
        return true; /* writes of parts: the ops that made them are judged */
    /* The same elements in another order (a copy that was transposed back) are compared with each other as the next
     * step sees them. */
    const bool other_order = shown && !other_shape && !same_strides(shown[0], shown[1]);
    if (other_order) va = shown_as(a->program, va, shown[0]), vb = shown_as(b->program, vb, shown[1]);
    if (va == LB_NONE || vb == LB_NONE) return true;
    lb_step_output *more = lb_array_grow(exits->list, exits->n, sizeof *more);
    if (!more) return false;
    exits->list = more;
    exits->list[exits->n++] = (lb_step_output){
        .op = {op_a, op_b},
        .value = {va, vb},
        .name = what->name,
        .by_use = what->by_use,
        .rows =
            other_shape && is_shown(x, shown[0]) && is_shown(y, shown[1]) ? differing_dim(&x->layout, &y->layout) : -1,
        .agreement = LB_SHADOW_UNKNOWN,
        .other_shape = other_shape,
        .differs = other_order ? views_differ(a, va, b, vb) : lb_program_view_values_differ(a, va, b, vb)};
    return true;
}

static const lb_program *next_of(const lb_program_view *side, uint32_t part)
{
    const lb_program *program = side->parts[part].program, *next;
    return lb_capture_program(side->capture, program->rank, program->step + 1, &next, NULL) == LB_OK ? next : NULL;
}

/* The `skip`-th state of that name that the step made. */
static found_state made_by_name(const lb_program_view *side, uint32_t part, const lb_program *next, const char *wanted,
                                uint32_t skip)
{
    for (uint32_t j = 0; j < next->n_ops; j++) {
        const found_state s = made_here(side, part, next, j);
        if (s.storage >= 0 && !strcmp(s.name, wanted) && skip-- == 0) return s;
    }
    return (found_state){.storage = -1};
}

static uint32_t count_before(const lb_program_view *side, uint32_t part, const lb_program *next, uint32_t end,
                             const char *wanted)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < end; j++) {
        const found_state s = made_here(side, part, next, j);
        n += s.storage >= 0 && !strcmp(s.name, wanted);
    }
    return n;
}

/* Moments, buffers and inputs that the step made anew, by the names under which the next one finds them: of several
 * inputs of one name the first is the first. Parts of different shapes are compared there, as tensors that the sides
 * cut differently. */
static bool add_states(const lb_program_view *a, const lb_program_view *b, lb_step_outputs *exits)
{
    for (uint32_t part = 0; part < a->n_parts; part++) {
        const lb_program *na = next_of(a, part), *nb = next_of(b, part);
        for (uint32_t i = 0; na && nb && i < na->n_ops; i++) {
            const found_state x = made_here(a, part, na, i);
            if (x.storage < 0) continue;
            const uint32_t nth = count_before(a, part, na, i, x.name);
            const found_state y = made_by_name(b, part, nb, x.name, nth);
            const bool several = nth || made_by_name(b, part, nb, x.name, 1).storage >= 0;
            if (y.storage < 0 || ((x.part || y.part) && !lb_layout_same_shape(x.layout, y.layout))) continue;
            if (several && !lb_layout_same_shape(x.layout, y.layout) && differing_dim(x.layout, y.layout) < 0)
                continue; /* the sides call modules in another number: this is the input of another call */
            const left what = {{x.storage, y.storage}, x.name, several};
            if (!add_state(a, b, &what, (const lb_layout *const[]){x.layout, y.layout}, exits)) return false;
        }
    }
    return true;
}

/* How many ops both programs begin with; of sources that no op of these reads the last are left out. */
static uint32_t same_begin(const lb_program *a, const lb_program *b)
{
    uint32_t n = 0;
    for (; n < a->n_ops && n < b->n_ops; n++) {
        const lb_op *x = &a->ops[n], *y = &b->ops[n];
        if (x->phase != y->phase || x->call != y->call || x->results != y->results ||
            strcmp(lb_op_name(a, x), lb_op_name(b, y)) || strcmp(lb_op_layer(a, x), lb_op_layer(b, y)))
            break;
    }
    while (n && lb_op_is_source(a, &a->ops[n - 1])) n--;
    return n;
}

/* The storage of a source that has no name and that this step wrote; -1: it is none. */
static int64_t nameless(const lb_program_view *side, uint32_t part, const lb_program *next, uint32_t op,
                        const lb_layout **layout)
{
    const uint32_t v = lb_op_is_source(next, &next->ops[op]) ? lb_op_results(next, &next->ops[op])[0] : LB_NONE;
    if (v == LB_NONE || next->values[v].source != LB_SOURCE_CARRIED || !lb_dtype_is_float(next->values[v].dtype) ||
        *lb_program_text(next, next->values[v].name))
        return -1;
    uint32_t left;
    const int64_t storage = lb_program_view_storage(side, part, next->values[v].storage);
    const uint32_t giver = lb_cross_feed_giver_of_storage(side->program, storage, side->program->n_ops, &left);
    *layout = &next->values[v].layout;
    return giver == LB_NONE || lb_op_is_source(side->program, &side->program->ops[giver]) ? -1 : storage;
}

/* Caches and log-probabilities that Python holds: as far as the next step begins with the same ops on both sides, these
 * say which is which. */
static bool add_nameless(const lb_program_view *a, const lb_program_view *b, lb_step_outputs *exits)
{
    for (uint32_t part = 0; part < a->n_parts; part++) {
        const lb_program *na = next_of(a, part), *nb = next_of(b, part);
        const lb_layout *shown[2];
        for (uint32_t i = 0, n = na && nb ? same_begin(na, nb) : 0; i < n; i++) {
            const left what = {{nameless(a, part, na, i, &shown[0]), nameless(b, part, nb, i, &shown[1])}, "", true};
            if (what.storages[0] < 0 || what.storages[1] < 0 || !lb_layout_same_shape(shown[0], shown[1])) continue;
            if (!add_state(a, b, &what, shown, exits)) return false;
        }
    }
    return true;
}

/* Without a next step: what two aligned ops of the optimizer create as zeros and others write is a state. */
static bool creates_state(const lb_program *program, const lb_op *op)
{
    const char *name = lb_op_name(program, op);
    return op->phase == LB_PHASE_OPTIMIZER && op->results == 1 &&
           (!strncmp(name, "aten::zeros", 11) || !strncmp(name, "aten::new_zeros", 15));
}

static bool add_last_states(const lb_program_view *a, const lb_program_view *b, const lb_alignment *al,
                            lb_step_outputs *exits)
{
    const lb_program *pa = a->program, *pb = b->program;
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        const uint32_t j = al->b_of_a[i], part = lb_program_view_part_of(a, i);
        if (j == LB_NONE || !creates_state(pa, &pa->ops[i]) || (next_of(a, part) && next_of(b, part))) continue;
        const uint32_t va = lb_op_results(pa, &pa->ops[i])[0], vb = lb_op_results(pb, &pb->ops[j])[0];
        if (va == LB_NONE || vb == LB_NONE) continue;
        const left what = {{pa->values[va].storage, pb->values[vb].storage}, "", false};
        if (!add_state(a, b, &what, NULL, exits)) return false;
    }
    return true;
}

/* ---- inputs of decisions ---- */

typedef struct inputs {
    const lb_program *program;
    uint32_t list[16], n;
} inputs;

static void note_input(void *context, uint32_t value)
{
    inputs *in = context;
    if (in->n < sizeof in->list / sizeof *in->list) in->list[in->n++] = value;
}

/* Where an aligned pair gives both, the pair itself is judged. */
static bool is_one_pair(const lb_alignment *al, uint32_t op_a, uint32_t op_b)
{
    return al->b_of_a[op_a] == op_b || al->source_b_of_a[op_a] == op_b;
}

/* An input of an op of A and the one of an op of B in its place. */
typedef struct input_pair {
    uint32_t op_a, value_a, op_b, value_b;
} input_pair;

static void note_float(void *context, uint32_t value)
{
    inputs *in = context;
    in->n += value != LB_NONE && !lb_dtype_is_integer(lb_dtype_part(in->program->values[value].dtype));
}

static bool reads_integers(const lb_program *program, uint32_t op)
{
    inputs floats = {.program = program};
    lb_op_each_input(program, &program->ops[op], note_float, &floats);
    return floats.n == 0;
}

/* Floats that no aligned pair gives; and integers where no near tie can have decided: they were made of integers, or by
 * a pair that was called with different arguments (a threshold), which may count as none. */
static bool can_be_held(const lb_aligned_views *views, uint32_t op_a, const lb_value *x, uint32_t op_b,
                        const lb_value *y)
{
    const lb_program *pa = views->a->program, *pb = views->b->program;
    const bool pair = is_one_pair(views->alignment, op_a, op_b);
    if (lb_dtype_is_float(x->dtype) && lb_dtype_is_float(y->dtype)) return !pair;
    if (!lb_dtype_is_integer(x->dtype) || x->dtype != y->dtype) return false;
    if (pair) return !lb_op_same_args(pa, &pa->ops[op_a], pb, &pb->ops[op_b], 0);
    return reads_integers(pa, op_a) && reads_integers(pb, op_b);
}

static bool add_input(const lb_aligned_views *views, const input_pair *in, lb_step_outputs *exits)
{
    const lb_program_view *a = views->a, *b = views->b;
    const uint32_t va = in->value_a, vb = in->value_b;
    const lb_value *x = &a->program->values[va], *y = &b->program->values[vb];
    const uint32_t op_a = lb_cross_feed_giver(a->program, va, in->op_a),
                   op_b = lb_cross_feed_giver(b->program, vb, in->op_b);
    if (op_a == LB_NONE || op_b == LB_NONE || !lb_layout_same_shape(&x->layout, &y->layout)) return true;
    if (!can_be_held(views, op_a, x, op_b, y)) return true;
    lb_step_output *more = lb_array_grow(exits->list, exits->n, sizeof *more);
    if (!more) return false;
    exits->list = more;
    exits->list[exits->n++] =
        (lb_step_output){.op = {op_a, op_b},
                         .value = {va, vb},
                         .input = true,
                         .rows = -1,
                         .differs = lb_digest_is_none(x->logical) || lb_digest_is_none(y->logical) ||
                                    lb_program_view_values_differ(a, va, b, vb),
                         .agreement = LB_SHADOW_UNKNOWN};
    return true;
}

/* A collective whose members are all here is computed: what goes into it shows in what comes out. */
static bool has_met(const lb_collective_matches *m, uint32_t op)
{
    return m->of_op && m->of_op[op] != LB_NONE;
}

static bool add_inputs(const lb_aligned_views *views, lb_step_outputs *exits)
{
    const lb_alignment *al = views->alignment;
    const lb_program *pa = views->a->program, *pb = views->b->program;
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        const uint32_t j = al->b_of_a[i];
        if (j == LB_NONE || pa->ops[i].flags & LB_OP_RANDOM || !lb_cross_feed_rebases(al, views->a, i, views->b, j))
            continue;
        if (has_met(&views->collective_matches[0], i) && has_met(&views->collective_matches[1], j)) continue;
        inputs x = {.program = pa}, y = {.program = pb};
        lb_op_each_input(pa, &pa->ops[i], note_input, &x), lb_op_each_input(pb, &pb->ops[j], note_input, &y);
        for (uint32_t k = 0; k < x.n && x.n == y.n; k++) {
            const input_pair in = {i, x.list[k], j, y.list[k]};
            if (in.value_a != LB_NONE && in.value_b != LB_NONE && !add_input(views, &in, exits)) return false;
        }
    }
    return true;
}

/* ---- the number that forward ends with ---- */

/* The op that gives a loss, whether or not the program looks at it. LB_NONE where there are several, or none. */
static uint32_t only_loss(const lb_program *program)
{
    const bool trains = lb_op_any_backward(program);
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (lb_op_last_number(program, i, trains) == LB_NONE) continue;
        if (found != LB_NONE) return LB_NONE;
        found = i;
    }
    return found;
}

static bool add_loss(const lb_aligned_views *views, lb_step_outputs *exits)
{
    const lb_program_view *a = views->a, *b = views->b;
    if (a->n_parts != 1 || b->n_parts != 1) return true;
    const uint32_t op_a = only_loss(a->program), op_b = only_loss(b->program);
    if (op_a == LB_NONE || op_b == LB_NONE) return true;
    const uint32_t va = lb_op_outcome(a->program, &a->program->ops[op_a], 0),
                   vb = lb_op_outcome(b->program, &b->program->ops[op_b], 0);
    for (uint32_t i = 0; i < exits->n; i++)
        if (exits->list[i].value[0] == va || exits->list[i].value[1] == vb) return true;
    lb_step_output *more = lb_array_grow(exits->list, exits->n, sizeof *more);
    if (!more) return false;
    exits->list = more;
    exits->list[exits->n++] = (lb_step_output){.op = {op_a, op_b},
                                               .value = {va, vb},
                                               .loss = true,
                                               .rows = -1,
                                               .differs = lb_program_view_values_differ(a, va, b, vb),
                                               .agreement = LB_SHADOW_UNKNOWN};
    return true;
}

lb_status lb_step_outputs_find(const lb_aligned_views *views, const lb_layer_names_map *const rules[2],
                               lb_step_outputs *exits, char lone[300], lb_err *err)
{
    const lb_program_view *a = views->a, *b = views->b;
    results ra = {0}, rb = {0};
    *exits = (lb_step_outputs){0}, *lone = '\0';
    if (lb_program_views_are_uneven(a, b)) return LB_OK;
    bool done = list_results(views, 0, rules[0], &ra) && list_results(views, 1, rules[1], &rb);
    if (done &&
        count_calls(&ra) != count_calls(&rb)) { /* a batch in micro-batches: no result of one is one of the other's */
        free_results(&ra), free_results(&rb);
        return LB_OK;
    }
    if (done) exits->list = lb_array_reserve(NULL, 0, ra.n, sizeof *exits->list);
    done = done && exits->list;
    if (done) pair_results(views, &ra, &rb, exits), note_lone(&ra, &rb, lone, 300);
    done = done && add_states(a, b, exits) && add_nameless(a, b, exits) &&
           add_last_states(a, b, views->alignment, exits) && add_inputs(views, exits) && add_loss(views, exits);
    free_results(&ra), free_results(&rb);
    return done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u results", a->program->n_boundaries);
}

void lb_step_outputs_release(lb_step_outputs *exits)
{
    free(exits->list);
    *exits = (lb_step_outputs){0};
}
