/* Which ops and values of two programs correspond: see matched_region_finder.h.
 * An anchor is a claim: here both sides hold one quantity. A wrong one costs more than a missing
 * one. Missing, a matched region is longer and has fewer candidates; wrong, other quantities are compared,
 * and an innocent op is named. So names alone are believed only in groups where every op has its
 * partner, and elsewhere the recorded numbers have to speak for the pair. */
#include "explain/matched_region_finder.h"

#include "ranks/message_key.h"
#include "kernel/value_memory.h"
#include "pair/moved_rows.h"

#include "base/array.h"
#include <lastbit/compare.h>
#include <stdlib.h>
#include <string.h>

/* UNKNOWN is what calloc leaves: an op is asked once, since the answer may cost reading two
 * tensors. */
enum { UNKNOWN = 0, SURE, DOUBTED };

void lb_region_finder_values_add(void *rows, uint32_t value)
{
    lb_region_finder_values *values = rows;
    uint32_t *grown = lb_array_grow(values->list, values->n, sizeof *grown);
    if (!grown) {
        values->failed = true;
        return;
    }
    values->list = grown;
    values->list[values->n++] = value;
}

bool lb_region_finder_values_has(const lb_region_finder_values *rows, uint32_t value)
{
    for (uint32_t i = 0; i < rows->n; i++)
        if (rows->list[i] == value) return true;
    return false;
}

const lb_program *lb_matched_region_program(const lb_matched_region_source *source, int side)
{
    return side ? source->b->program : source->a->program;
}

const lb_value *lb_matched_region_value(const lb_matched_region_source *source, int side, uint32_t value)
{
    return side ? lb_assemblies_row(source->assemblies, value) : &source->a->program->values[value];
}

uint32_t lb_matched_region_recorded(const lb_matched_region_source *source, int side, uint32_t value)
{
    const uint32_t n = lb_matched_region_program(source, side)->n_values;
    return !side || value < n ? value : source->assemblies->list[value - n].parts[0];
}

bool lb_matched_region_bytes(const lb_matched_region_source *source, int side, uint32_t value, lb_tensor *tensor)
{
    bool exact;
    /* B alone has assemblies: it is the side that was called more often, or whose batch is larger. */
    if (side && value >= source->b->program->n_values) return lb_assemblies_bytes(source->assemblies, value, tensor);
    return lb_regenerated_value(source->bytes[side], value, tensor, &exact) && exact;
}

bool lb_matched_region_same_place(const lb_matched_region_source *source, const lb_boundary *a, const lb_boundary *b)
{
    const lb_forwards *passes = &source->alignment->forwards;
    return a->output == b->output && b->value != LB_NONE && b->position == a->position && !b->recompute &&
           lb_forwards_call(passes, 0, source->a->program, a) == lb_forwards_call(passes, 1, source->b->program, b) &&
           !strcmp(source->paths[0][a->scope], source->paths[1][b->scope]);
}

bool lb_matched_region_same_choice(const lb_matched_region_source *source, const lb_routing *a, const lb_routing *b)
{
    const lb_forwards *passes = &source->alignment->forwards;
    return lb_forwards_call_of(passes, 0, source->a->program, a->scope, a->call) ==
               lb_forwards_call_of(passes, 1, source->b->program, b->scope, b->call) &&
           !strcmp(source->paths[0][a->scope], source->paths[1][b->scope]);
}

bool lb_region_finder_same_shape(const lb_region_finder *finder, uint32_t value_a, uint32_t value_b)
{
    return lb_layout_same_shape(&lb_matched_region_value(finder->source, 0, value_a)->layout,
                                &lb_matched_region_value(finder->source, 1, value_b)->layout);
}

bool lb_matched_region_differs(const lb_matched_region_source *source, uint32_t value_a, uint32_t value_b)
{
    const lb_value *a = lb_matched_region_value(source, 0, value_a), *b = lb_matched_region_value(source, 1, value_b);
    if ((a->flags | b->flags) & LB_VALUE_UNDEFINED) return false;
    const bool known = a->dtype == b->dtype && !lb_digest_is_none(a->logical) && !lb_digest_is_none(b->logical);
    /* Digests decide nearly all comparisons without bytes. Where they differ the bytes are still
     * asked, because a NaN has many bit patterns. */
    if (known && lb_digest_equal(a->logical, b->logical)) return false;
    lb_tensor ta, tb;
    lb_difference difference;
    /* Unknown counts as different: the matched region is then told with what lacks, instead of vanishing. */
    if (!lb_matched_region_bytes(source, 0, value_a, &ta) || !lb_matched_region_bytes(source, 1, value_b, &tb))
        return true;
    if (known) return !lb_memory_tensor_same(&ta, &tb); /* NaN is NaN, whatever bits a processor gave it */
    return lb_compare_numbers(&ta, &tb, &difference, NULL) != LB_OK || difference.differing > 0;
}

/* ---- ranks ---- */

static uint32_t meeting_of(const lb_matched_region_source *source, int side, uint32_t op)
{
    return source->collective_matches[side] ? source->collective_matches[side]->of_op[op] : LB_NONE;
}

const uint32_t *lb_matched_region_members(const lb_matched_region_source *source, int side, const uint32_t *op,
                                          uint32_t *n)
{
    /* An op that meets no other is its own only member, so that callers need no second way for
     * programs of one rank. */
    const uint32_t row = meeting_of(source, side, *op);
    *n = 1;
    if (row == LB_NONE) return op;
    *n = source->collective_matches[side]->list[row].n;
    return source->collective_matches[side]->ops + source->collective_matches[side]->list[row].first;
}

bool lb_matched_region_is_met(const lb_matched_region_source *source, int side, uint32_t op)
{
    return meeting_of(source, side, op) != LB_NONE;
}

bool lb_matched_region_meets(const lb_matched_region_source *source, const lb_matched_region *region, int side)
{
    const lb_matched_region_side *x = &region->sides[side];
    for (uint32_t i = 0; i < x->n_ops; i++)
        if (lb_matched_region_is_met(source, side, x->ops[i])) return true;
    return false;
}

/* ---- anchors ---- */

/* The same but for rounding, and, where `scaled`, for a factor.
 * A relative distance of 0.1 is far above rounding (2^-8 in bf16) and far below that of unrelated
 * tensors (about 1.4). A factor is allowed by the angle: the squared sine stays below 0.1^2, which
 * is the same distance after the best scaling. */
static bool are_alike(const lb_region_finder *finder, uint32_t va, uint32_t vb, bool scaled)
{
    lb_tensor a, b;
    lb_difference difference;
    if (va == LB_NONE || vb == LB_NONE || !lb_region_finder_same_shape(finder, va, vb)) return false;
    if (!lb_matched_region_differs(finder->source, va, vb)) return true;
    if (!lb_matched_region_bytes(finder->source, 0, va, &a) || !lb_matched_region_bytes(finder->source, 1, vb, &b))
        return false;
    if (lb_compare_numbers(&a, &b, &difference, NULL) != LB_OK) return false;
    return difference.rel_l2 < LB_FINDER_NEAR ||
           (scaled && difference.cosine > 0 &&
            1 - difference.cosine * difference.cosine < LB_FINDER_NEAR * LB_FINDER_NEAR);
}

/* Gradients of a mean over more rows are smaller by a factor. */
bool lb_region_finder_is_near(const lb_region_finder *finder, uint32_t value_a, uint32_t value_b)
{
    return are_alike(finder, value_a, value_b, finder->source->alignment->joins.rows != NULL);
}

/* What stands for outcome `k` of op `i` of A where several ops of B make it; LB_NONE. */
uint32_t lb_region_finder_joined_outcome(lb_region_finder *finder, uint32_t i, uint32_t k)
{
    const lb_alignment *al = finder->source->alignment;
    /* Assemblies are made on demand and kept by number: most joined values are never looked at. */
    if (al->join_of_a[i] == LB_NONE) return LB_NONE;
    const lb_reassembly *join = &al->joins.list[al->join_of_a[i]];
    uint32_t *parts = malloc(join->parts * sizeof *parts), value = LB_NONE,
             whole = lb_op_outcome(finder->p[0], &finder->p[0]->ops[i], k);
    finder->failed |= !parts;
    if (parts && whole != LB_NONE && lb_reassembly_values(&al->joins, join, finder->p[1], k, parts))
        value = lb_assemblies_value(finder->source->assemblies, finder->p[0], whole, parts, join->parts);
    free(parts);
    return value;
}

/* Input `k` of the ops of a join, put together; LB_NONE. */
uint32_t lb_region_finder_joined_input(lb_region_finder *finder, const lb_reassembly *join, uint32_t whole, uint32_t k,
                                       uint32_t count)
{
    uint32_t *parts = malloc(join->parts * sizeof *parts), value = LB_NONE;
    bool all = parts && whole != LB_NONE;
    finder->failed |= !parts;
    for (uint32_t n = 0; all && n < join->parts; n++) {
        lb_region_finder_values in = {0};
        const uint32_t op = finder->source->alignment->joins.part_ops[join->first + n];
        lb_op_each_input(finder->p[1], &finder->p[1]->ops[op], lb_region_finder_values_add, &in);
        all = in.n == count && !in.failed;
        if (all) parts[n] = in.list[k];
        free(in.list);
    }
    if (all) value = lb_assemblies_value(finder->source->assemblies, finder->p[0], whole, parts, join->parts);
    free(parts);
    return value;
}

/* A join whose inputs cannot be put together (a cache that grows from part to part) is where what they do is no op's
 * business. A decode step's attention reads t keys at step t and no slice of the whole's keys; only behind it do the
 * parts line up again. */
static bool has_whole_inputs(lb_region_finder *finder, uint32_t i)
{
    const lb_reassembly *join = &finder->source->alignment->joins.list[finder->source->alignment->join_of_a[i]];
    lb_region_finder_values in = {0};
    bool all = true;
    lb_op_each_input(finder->p[0], &finder->p[0]->ops[i], lb_region_finder_values_add, &in);
    for (uint32_t k = 0; k < in.n && all; k++)
        all = in.list[k] == LB_NONE || lb_region_finder_joined_input(finder, join, in.list[k], k, in.n) != LB_NONE;
    finder->failed |= in.failed;
    free(in.list);
    return all;
}

uint32_t lb_region_finder_maker(const lb_region_finder *finder, int side, uint32_t reader, uint32_t value)
{
    uint32_t defs[2];
    /* Room for two is enough to know that there is not exactly one: a value of several writers has
     * no single maker. */
    return lb_slice_flow_defs_of(finder->flow[side], reader, value, defs, 2) == 1 ? defs[0] : LB_NONE;
}

/* Another part of what lines up: the same shape and strides, elsewhere.
 * A contiguous value says nothing by its offset, since allocators and flat parameters place it
 * anywhere; a window with strides is a choice among the parts of one tensor. */
static bool is_another_part(const lb_region_finder *finder, uint32_t va, uint32_t vb)
{
    const lb_layout *l = &finder->p[0]->values[va].layout, *m = &finder->p[1]->values[vb].layout;
    return l->offset != m->offset && lb_layout_same_shape(l, m) && !lb_layout_is_contiguous(l) &&
           !lb_layout_is_contiguous(m);
}

/* Which result of the op that made it a value is (a window of), and where it begins there; false: of none of them. */
typedef struct place {
    uint32_t result;
    int64_t offset;
} place;

static bool place_of(const lb_region_finder *finder, int side, uint32_t maker, uint32_t value, place *at)
{
    const lb_program *program = finder->p[side];
    const lb_op *op = &program->ops[maker];
    bool found = false;
    for (uint32_t k = 0; k < lb_op_outcomes(op); k++) {
        const uint32_t v = lb_op_outcome(program, op, k);
        if (v == LB_NONE || program->values[v].storage != program->values[value].storage) continue;
        if (!found || v == value)
            *at = (place){k, program->values[value].layout.offset - program->values[v].layout.offset};
        found = true;
        if (v == value) break;
    }
    return found;
}

/* Another result of ops that line up (what another rank brought to an all_gather), or another window of one (a
 * chunk). */
static bool is_another_result(const lb_region_finder *finder, uint32_t from, uint32_t va, uint32_t by, uint32_t vb)
{
    place a, b;
    if (!lb_layout_same_shape(&finder->p[0]->values[va].layout, &finder->p[1]->values[vb].layout)) return false;
    return place_of(finder, 0, from, va, &a) && place_of(finder, 1, by, vb, &b) &&
           (a.result != b.result || a.offset != b.offset);
}

static bool is_add(const lb_region_finder *finder, uint32_t i)
{
    return !strncmp(lb_op_name(finder->p[0], &finder->p[0]->ops[i]), "aten::add", 9);
}

/* One argument of a pair of ops, with the op that made it or LB_NONE, on both sides. */
typedef struct term {
    uint32_t x, y, from, by;
} term;

/* Whether `is` holds of some argument of a pair of ops that have as many. */
static bool some_term(lb_region_finder *finder, uint32_t i, uint32_t j, bool (*is)(lb_region_finder *, const term *))
{
    lb_region_finder_values values = {0}, y = {0};
    bool found = false;
    lb_op_each_input(finder->p[0], &finder->p[0]->ops[i], lb_region_finder_values_add, &values);
    lb_op_each_input(finder->p[1], &finder->p[1]->ops[j], lb_region_finder_values_add, &y);
    for (uint32_t k = 0; values.n == y.n && k < values.n && !found; k++) {
        if (values.list[k] == LB_NONE || y.list[k] == LB_NONE) continue;
        const term t = {values.list[k], y.list[k], lb_region_finder_maker(finder, 0, i, values.list[k]),
                        lb_region_finder_maker(finder, 1, j, y.list[k])};
        found = is(finder, &t);
    }
    finder->failed |= values.failed || y.failed;
    free(values.list), free(y.list);
    return found;
}

static bool is_made_alike(const lb_region_finder *finder, const term *term)
{
    return term->from != LB_NONE && term->by != LB_NONE && finder->source->alignment->b_of_a[term->from] == term->by;
}

static bool is_another_part_alike(lb_region_finder *finder, const term *term)
{
    return is_made_alike(finder, term) && is_another_part(finder, term->x, term->y);
}

/* Products that line up, but each of another part of what both sides have: one slot's output where the other side takes
 * another's. Two loops over the slots of a router in different orders line up by name and shape, product by product,
 * and each pair belongs to two slots. */
static bool multiplies_other_parts(lb_region_finder *finder, uint32_t i, uint32_t j)
{
    return !strncmp(lb_op_name(finder->p[0], &finder->p[0]->ops[i]), "aten::mul", 9) &&
           some_term(finder, i, j, is_another_part_alike);
}

static bool is_another_term(lb_region_finder *finder, const term *term)
{
    if (term->from == LB_NONE || term->by == LB_NONE || finder->source->alignment->b_of_a[term->from] == LB_NONE)
        return false;
    return !is_made_alike(finder, term) || is_another_part(finder, term->x, term->y) ||
           is_another_result(finder, term->from, term->x, term->by, term->y) ||
           multiplies_other_parts(finder, term->from, term->by);
}

/* Additions that line up one by one, but add other things: the same number of terms in another order. A term is another
 * when what gave it lines up with something else, or when it is another part of what does, or is made of one. a + b + c
 * against c + b + a: every addition has a partner, and none of the partial sums corresponds. Were they anchors, each
 * addition would inherit its difference, and no op would own the order. */
static bool adds_other_terms(lb_region_finder *finder, uint32_t i, uint32_t j)
{
    return is_add(finder, i) && some_term(finder, i, j, is_another_term);
}

static bool is_apart_and_untrusted(lb_region_finder *finder, const term *term)
{
    return is_made_alike(finder, term) && is_add(finder, term->from) &&
           !lb_region_finder_is_trusted(finder, term->from) && !lb_region_finder_is_near(finder, term->x, term->y);
}

/* Where two sums stand that have not the same terms yet, what is added next gives other partial sums, too.
 * Only while the numbers are apart: once both sums hold the same terms they are near again, and the
 * next addition may be trusted. */
static bool goes_on_from_other_terms(lb_region_finder *finder, uint32_t i, uint32_t j)
{
    return is_add(finder, i) && some_term(finder, i, j, is_apart_and_untrusted);
}

/* The cheap tests come first. The third asks for trust in the op before, which recurses along the
 * chain of additions; trust is remembered, so that each op is still asked once. */
static bool sums_otherwise(lb_region_finder *finder, uint32_t i, uint32_t j)
{
    return multiplies_other_parts(finder, i, j) || adds_other_terms(finder, i, j) ||
           goes_on_from_other_terms(finder, i, j);
}

static bool is_of_other_numbers(lb_region_finder *finder, const term *term)
{
    return lb_dtype_is_float(finder->p[0]->values[term->x].dtype) &&
           lb_region_finder_same_shape(finder, term->x, term->y) && !are_alike(finder, term->x, term->y, true);
}

/* Of ops that give alike numbers: is what they read of one shape, but not alike, and not only scaled? An exp of small
 * numbers is near to another's. Other inputs with near outputs are chance or saturation (softmax of nearly equal
 * scores); the pair must agree on both ends. */
static bool reads_other_numbers(lb_region_finder *finder, uint32_t i, uint32_t j)
{
    return some_term(finder, i, j, is_of_other_numbers);
}

static bool is_apart(lb_region_finder *finder, const term *term)
{
    return lb_dtype_is_float(finder->p[0]->values[term->x].dtype) &&
           lb_region_finder_same_shape(finder, term->x, term->y) && !lb_region_finder_is_near(finder, term->x, term->y);
}

/* Called with other constants, on different numbers, with near results: sum / 48 against the sum of four means / 4.
 * What the one side leaves to this op the other has done before. */
static bool takes_up_a_factor(lb_region_finder *finder, uint32_t i, uint32_t j)
{
    const lb_op *a = &finder->p[0]->ops[i], *b = &finder->p[1]->ops[j];
    if (!lb_op_outcomes(a) || !lb_op_outcomes(b) || lb_op_same_args(finder->p[0], a, finder->p[1], b, 0)) return false;
    return some_term(finder, i, j, is_apart) &&
           lb_region_finder_is_near(finder, lb_op_outcome(finder->p[0], a, 0), lb_op_outcome(finder->p[1], b, 0));
}

/* Additions in two types, among ops of which some stand on one side only: a wide accumulator, whose partial sums the
 * other side has not. */
static bool accumulates_wider(lb_region_finder *finder, uint32_t i, uint32_t j)
{
    if (!finder->source->alignment->irregular[i] || !is_add(finder, i) || !lb_op_outcomes(&finder->p[1]->ops[j]))
        return false;
    const uint32_t a = lb_op_outcome(finder->p[0], &finder->p[0]->ops[i], 0),
                   b = lb_op_outcome(finder->p[1], &finder->p[1]->ops[j], 0);
    return a != LB_NONE && b != LB_NONE && finder->p[0]->values[a].dtype != finder->p[1]->values[b].dtype;
}

/* Does an op of a larger batch give, from its rows, a value of one shape first?
 * Nearness proves nothing there, since it must differ; what remains is its place. */
static bool is_over_others(lb_region_finder *finder, uint32_t i)
{
    const lb_alignment *al = finder->source->alignment;
    const lb_reassembly *join = &al->joins.list[al->join_of_a[i]];
    if (!al->joins.rows || !lb_op_outcomes(&finder->p[0]->ops[i])) return false;
    const uint32_t value = lb_region_finder_joined_outcome(finder, i, 0);
    return value < finder->p[1]->n_values &&
           lb_alignment_reads_rows(al, finder->p[0], i, finder->p[1], al->joins.part_ops[join->first]);
}

/* The same rows in different places. */
static bool have_moved(const lb_region_finder *finder, uint32_t va, uint32_t vb)
{
    lb_tensor a, b;
    return va != LB_NONE && vb != LB_NONE && lb_region_finder_same_shape(finder, va, vb) &&
           lb_matched_region_differs(finder->source, va, vb) && lb_matched_region_bytes(finder->source, 0, va, &a) &&
           lb_matched_region_bytes(finder->source, 1, vb, &b) && lb_rows_moved(&a, &b, LB_FINDER_NEAR);
}

/* Has a module of A ops without a partner, and does it give the same in spite of them?
 * Both are needed: rows that moved in a module whose ops all have partners were mixed up by a
 * fault, and so were those that its output still shows. */
static bool gives_the_same(const lb_region_finder *finder, uint32_t scope, uint8_t phase)
{
    const lb_program *a = finder->p[0], *b = finder->p[1];
    bool other_ops = false;
    for (uint32_t i = 0; i < a->n_ops && !other_ops; i++)
        other_ops = a->ops[i].scope == scope && a->ops[i].phase == phase && finder->source->alignment->irregular[i];
    for (uint32_t i = 0; i < a->n_boundaries && other_ops; i++) {
        const lb_boundary *boundary = &a->boundaries[i];
        if (boundary->scope != scope || !boundary->output || boundary->value == LB_NONE || boundary->recompute)
            continue;
        for (uint32_t k = 0; k < b->n_boundaries; k++)
            if (lb_matched_region_same_place(finder->source, boundary, &b->boundaries[k]))
                return lb_region_finder_is_near(finder, boundary->value, b->boundaries[k].value);
    }
    return false;
}

bool lb_region_finder_is_moved(const lb_region_finder *finder, uint32_t scope, uint8_t phase, uint32_t value_a,
                               uint32_t value_b)
{
    const uint32_t parent = finder->p[0]->scopes[scope].parent;
    return have_moved(finder, value_a, value_b) && parent != LB_NONE && gives_the_same(finder, parent, phase);
}

bool lb_region_finder_is_trusted(lb_region_finder *finder, uint32_t i)
{
    const lb_alignment *al = finder->source->alignment;
    uint32_t j = al->b_of_a[i];
    if (j == LB_NONE && al->join_of_a[i] == LB_NONE) return false;
    if (finder->trust[i] == UNKNOWN) {
        const lb_op *a = &finder->p[0]->ops[i], *b = j == LB_NONE ? NULL : &finder->p[1]->ops[j];
        /* What gives nothing (a barrier) can be told apart by nothing but its place. */
        bool sure = !al->irregular[i] || !lb_op_outcomes(a);
        /* What is received depends on the other rank's program: its place among the ops of this one tells little. */
        const lb_message_end end = lb_message_end_of(lb_op_name(finder->p[0], a));
        if (end == LB_MESSAGE_RECEIVED) sure = false;
        if (end == LB_MESSAGE_SENT) sure = !al->irregular[i];
        /* The order of asking follows cost and certainty: moved rows end it first, since nearness
         * would only call them different; then the structure of sums, which reads no bytes in most
         * cases; near numbers last. */
        if (sure && lb_op_outcomes(a) &&
            lb_region_finder_is_moved(finder, a->scope, a->phase, lb_op_outcome(finder->p[0], a, 0),
                                      b ? lb_op_outcomes(b) ? lb_op_outcome(finder->p[1], b, 0) : LB_NONE
                                        : lb_region_finder_joined_outcome(finder, i, 0))) {
            finder->trust[i] = DOUBTED;
            return false;
        }
        /* Asked even of pairs in regular groups: sums in another order have a partner for each op,
         * which is what makes them look regular. */
        if (b ? sums_otherwise(finder, i, j) : !has_whole_inputs(finder, i)) {
            finder->trust[i] = DOUBTED;
            return false;
        }
        const bool over_others = !b && is_over_others(finder, i); /* nothing to be near to */
        if (al->joins.rows && lb_region_finder_sorts(finder, i)) {
            finder->trust[i] = DOUBTED;
            return false;
        }
        sure |= over_others;
        if (!sure && !b)
            sure = lb_region_finder_is_near(finder, lb_op_outcome(finder->p[0], a, 0),
                                            lb_region_finder_joined_outcome(finder, i, 0));
        if (!sure && b && lb_op_outcomes(a) && lb_op_outcomes(a) == lb_op_outcomes(b))
            sure = lb_region_finder_is_near(finder, lb_op_outcome(finder->p[0], a, 0),
                                            lb_op_outcome(finder->p[1], b, 0)) &&
                   !reads_other_numbers(finder, i, j);
        if (sure && b && (takes_up_a_factor(finder, i, j) || accumulates_wider(finder, i, j))) sure = false;
        finder->trust[i] = sure ? SURE : DOUBTED;
    }
    return finder->trust[i] == SURE;
}

/* The op of the other side that gives what op `i` gives; LB_NONE. */
static bool is_inside(const lb_region_finder *finder, int side, uint32_t i, uint32_t other)
{
    return finder->inside[side][i] || (other != LB_NONE && finder->inside[!side][other]);
}

uint32_t lb_region_finder_partner_op(lb_region_finder *finder, int side, uint32_t i)
{
    const lb_alignment *al = finder->source->alignment;
    uint32_t a = side ? al->a_of_b[i] : i;
    uint32_t other = side ? finder->source_a_of_b[i] : al->source_b_of_a[i];
    /* Sources are believed as they were paired: they have no inputs that could speak against it. */
    if (a != LB_NONE && al->b_of_a[a] != LB_NONE && lb_region_finder_is_trusted(finder, a))
        other = side ? a : al->b_of_a[a];
    if (side && al->joins.rows && al->join_of_b[i] != LB_NONE) { /* one op there, of fewer rows */
        const uint32_t whole = al->joins.list[al->join_of_b[i]].whole;
        if (lb_region_finder_is_trusted(finder, whole)) other = whole;
    }
    /* While a matched region grows to a composite, its inner anchors are closed to both sides: one side's
     * half of an anchor would leave the other's slice without a counterpart. */
    return is_inside(finder, side, i, other) ? LB_NONE : other;
}

uint32_t lb_region_finder_end(const lb_region_finder *finder, int side, uint32_t i)
{
    return finder->no_ends || is_inside(finder, side, i, finder->ends[side][i]) ? LB_NONE : finder->ends[side][i];
}

bool lb_region_finder_is_joined(lb_region_finder *finder, uint32_t i)
{
    return finder->source->alignment->join_of_a[i] != LB_NONE && lb_region_finder_is_trusted(finder, i);
}
