/* What else is known: see fallback_proof.h.
 * The order of asking goes from what says most to what says least: a bound for one op is a
 * statement about that op, the same function about several, a state only about where a scale came
 * from. The first that holds is told, and each refuses where it would prove nothing. */
#include "explain/fallback_proof.h"

#include "kernel/ops.h"
#include "explain/same_ops.h"
#include "explain/written_order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A scale reaches its cast in a few steps (a product, a clamp, a view or two); further on another
 * tensor's cast would be found. Below 16 numbers a kernel that never ran gives the very bits now
 * and then. */
enum { HOPS = 6, FEW = 16 };

typedef struct known {
    const lb_match_site *site;
    const lb_program *p[2];
    bool side[2];           /* replay of its ops gives its bits */
    const lb_score *own[2]; /* how many of them */
    const lb_score *score;
    bool proven_elsewhere; /* ops of these kinds were one real function at another place */
    lb_attribution_memory *memory;
    lb_attribution_found *found;
} known;

static const lb_value *output_of(const known *known, int side)
{
    return lb_matched_region_value(known->site->source, side, known->site->region->sides[side].outputs[0]);
}

static bool both(const known *known)
{
    return known->side[0] && known->side[1];
}

static void tell(known *known, lb_cause cause, lb_proof proof, const char *schedule, const char *why)
{
    lb_attribution_found *out = known->found;
    out->cause = cause, out->proof = proof, out->reversed = false;
    out->matched = known->score->matched, out->elements = known->score->elements;
    /* All that was tried before has missed. */
    out->excluded = out->tried;
    snprintf(out->schedule, sizeof out->schedule, "%s", schedule);
    snprintf(out->why, sizeof out->why, "%s", why);
}

/* ---- the same op ---- */

/* So few numbers that a kernel which did not run may well have given them. */
static bool is_few(const known *known)
{
    return lb_layout_numel(&output_of(known, 0)->layout) < FEW;
}

/* The same op and dtypes, but numbers, texts or flags among its arguments are others. */
static bool has_other_arguments(const known *known)
{
    const lb_matched_region *region = known->site->region;
    if (!region->pair || output_of(known, 0)->dtype != output_of(known, 1)->dtype) return false;
    const lb_op *a = &known->p[0]->ops[region->sides[0].op], *b = &known->p[1]->ops[region->sides[1].op];
    return !strcmp(lb_op_name(known->p[0], a), lb_op_name(known->p[1], b)) &&
           !lb_op_same_args(known->p[0], a, known->p[1], b, 0);
}

/* Is the result of each element the function of one number, as `aten::sqrt` gives it? */
static bool is_elementwise(const known *known)
{
    lb_op_form form;
    const lb_matched_region *region = known->site->region;
    const lb_op_row *row = lb_op_find(lb_op_name(known->p[0], &known->p[0]->ops[region->sides[0].op]), &form);
    return row && row->flags & LB_ROW_ELEMENTWISE && !(row->flags & LB_ROW_EXACT);
}

/* May one kernel have run on both sides? Not for sums in f32, whose order is one thing for all elements; 16 bits hide
 * it in most. */
static bool is_chance(const known *known)
{
    return (is_elementwise(known) || lb_dtype_bits(output_of(known, 0)->dtype) < 32) &&
           lb_match_score_by_chance(known->own[known->side[0] ? 0 : 1], known->own[known->side[0] ? 1 : 0]);
}

static lb_status by_bounds(known *known, bool *done, lb_err *err)
{
    bool inside[2];
    const lb_match_site *site = known->site;
    const bool same_dtype = output_of(known, 0)->dtype == output_of(known, 1)->dtype;
    const bool joined = site->region->parts && site->region->sides[1].op != LB_NONE;
    /* A bound replaces the kernel that replay lacks. With both sides' bits known nothing is
     * lacking, and the bound would be the weaker statement. */
    if ((!site->region->pair && !joined) || both(known)) return LB_OK;
    /* Another epsilon moves results by less than a bound now and then, which would then be told as
     * an inherited difference. */
    if (has_other_arguments(known)) return LB_OK;
    /* Same inputs, same op, same dtype: the bound would allow any bits. One side known to be replay's own kernel, the
     * other not: then a kernel differs, and the bound cannot say which, unless that is chance. */
    const bool one = known->side[0] || known->side[1];
    if (same_dtype && (lb_match_site_same_inputs(site) || (one && !is_few(known) && !is_chance(known)))) return LB_OK;
    for (int side = 0; side < 2; side++)
        /* Both sides have to keep the bound: with one side outside of it the op does not compute
         * what it is said to compute there, and `input` would excuse a fault. */
        LB_TRY(lb_match_site_reaches(site, joined && !site->subprograms[1] ? 0 : side, side, &inside[side], err));
    if (!inside[0] || !inside[1]) return LB_OK;
    *done = true;
    /* The swap makes the budget's replay store what B stores; B in f32 against A in bf16 cannot be
     * made by rounding. */
    if (!same_dtype && lb_dtype_bits(output_of(known, 1)->dtype) < 32)
        lb_attribution_add_rounding(known->found, lb_dtype_name(output_of(known, 1)->dtype));
    tell(known, same_dtype ? LB_CAUSE_INPUT : LB_CAUSE_PRECISION, LB_PROOF_BOUND,
         same_dtype ? "" : lb_dtype_name(output_of(known, 1)->dtype),
         "replay has not the very kernel that ran; "
         "each side's elements all lie inside the op's bound on its own inputs");
    return LB_OK;
}

/* Collectives that reduce in another way: a sum where the other side has a mean. */
static bool reduces_otherwise(const known *known, const char **names)
{
    const lb_matched_region_source *source = known->site->source;
    const lb_program_view *sides[] = {source->a, source->b};
    for (int side = 0; side < 2; side++) {
        const lb_program *recorded;
        const uint32_t op = known->site->region->sides[side].op;
        const lb_collective *row =
            source->collective_matches[side] ? lb_collective_of_side(sides[side], op, &recorded) : NULL;
        if (!row) return false;
        names[side] = lb_program_text(recorded, row->reduce);
    }
    return strcmp(names[0], names[1]) != 0;
}

/* But for a cast to the dtype of its result.
 * Such an op can only hand on a difference of what it reads. */
static bool rounds_nothing(const lb_program *program, const lb_op *op)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(lb_op_name(program, op), &form);
    return row && row->flags & LB_ROW_EXACT;
}

/* Each side's op gives its own bits from its own inputs: then what differs is among its arguments. */
static void by_arguments(known *known, bool *done)
{
    const lb_matched_region *region = known->site->region;
    if ((!region->pair && !(region->parts && region->sides[1].n_ops)) || !both(known)) return;
    const lb_op *a = &known->p[0]->ops[region->sides[0].op], *b = &known->p[1]->ops[region->sides[1].op];
    const bool same_dtype = output_of(known, 0)->dtype == output_of(known, 1)->dtype;
    const char *names[2];
    /* Asked first: a mean's own argument is the reduction, which would otherwise be told as "other
     * arguments". */
    if (reduces_otherwise(known, names)) {
        *done = true;
        snprintf(known->found->first, sizeof known->found->first, "%s", names[0]);
        tell(known, LB_CAUSE_KERNEL, LB_PROOF_BITS, names[1], "another reduction: each side's own gives its own bits");
        return;
    }
    if (same_dtype && lb_op_same_args(known->p[0], a, known->p[1], b, region->parts)) {
        /* The same op with the same arguments that gives each side's bits, and still they are not
         * A's kernel on B's inputs: only for an op without any rounding does that leave nothing but
         * the inputs. */
        *done = rounds_nothing(known->p[0], a);
        if (*done)
            tell(known, LB_CAUSE_INPUT, LB_PROOF_BITS, "",
                 "an op that rounds nothing of its own; each side's gives its own bits");
        return;
    }
    *done = true;
    tell(known, same_dtype ? LB_CAUSE_KERNEL : LB_CAUSE_PRECISION, LB_PROOF_BITS,
         same_dtype ? "other arguments" : lb_dtype_name(output_of(known, 1)->dtype),
         "the same op with other constants among its arguments, or another dtype: each side's gives its own bits");
}

/* The same where replay has not the very kernel: each side keeps the op's bound with its own arguments. */
static lb_status by_other_arguments(known *known, bool *done, lb_err *err)
{
    bool inside = true;
    if (!has_other_arguments(known) || both(known)) return LB_OK;
    for (int side = 0; side < 2 && inside; side++) LB_TRY(lb_match_site_reaches(known->site, side, side, &inside, err));
    if (!inside) return LB_OK;
    *done = true;
    tell(known, LB_CAUSE_KERNEL, LB_PROOF_BOUND, "other arguments",
         "the same op with other constants among its arguments: "
         "each side's elements lie inside the op's bound with its own");
    return LB_OK;
}

/* ---- a state that one side reads ---- */

/* A state that both sides read is an input like any other, and its difference has been counted as
 * such. */
static const lb_value *lone_state(const known *known, int side)
{
    const lb_matched_region_side *s = &known->site->region->sides[side];
    for (uint32_t i = 0; i < s->n_leaves; i++) {
        const lb_value *value = &known->p[side]->values[s->leaves[i]];
        if (s->partners[i] == LB_NONE &&
            (value->flags & LB_VALUE_STATE || value->source == LB_SOURCE_STATE || value->source == LB_SOURCE_CARRIED))
            return value;
    }
    return NULL;
}

typedef struct reading {
    const lb_program *p;
    const uint8_t *storages; /* per value: it lies in a storage that was reached */
    bool hit;
} reading;

static void note_read(void *context, uint32_t value)
{
    reading *reading = context;
    if (value != LB_NONE) reading->hit |= reading->storages[value];
}

/* Reached storages and not values: views and writes in place keep the storage, and the chain from a
 * scale to its cast often leads through them. Ops are in an order in which readers follow, so that
 * one pass is enough; its cost, ops times values for a hop, is bounded by the few hops. */
static lb_dtype find_cast(const lb_program *program, uint32_t value, uint32_t most, uint8_t *reached)
{
    uint32_t hops = 0;
    for (uint32_t v = 0; v < program->n_values; v++)
        reached[v] = program->values[v].storage == program->values[value].storage;
    for (uint32_t i = 0; i < program->n_ops && hops < most; i++) {
        const lb_op *op = &program->ops[i];
        reading reading = {program, reached, false};
        lb_op_each_input(program, op, note_read, &reading);
        for (uint32_t n = 0; reading.hit && n < op->results; n++) {
            uint32_t v = lb_op_results(program, op)[n];
            if (v == LB_NONE || reached[v]) continue;
            if (lb_dtype_is_float(program->values[v].dtype) && lb_dtype_bits(program->values[v].dtype) == 8)
                return program->values[v].dtype;
            for (uint32_t w = 0; w < program->n_values; w++)
                reached[w] |= program->values[w].storage == program->values[v].storage;
            hops++;
        }
    }
    return LB_NO_DTYPE;
}

lb_dtype lb_fallback_quantised_to(const lb_program *program, uint32_t value, uint32_t hops)
{
    uint8_t *reached = calloc(program->n_values + 1, 1);
    const lb_dtype dtype = reached ? find_cast(program, value, hops, reached) : LB_NO_DTYPE;
    free(reached);
    return dtype;
}

/* A history is written in every step; a scale that was set once is not.
 * This tells delayed from static scaling without knowing the framework that wrote either. */
static bool is_written(const lb_program *program, const lb_value *state)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (lb_op_writes(program, &program->ops[i], state->storage) != LB_NONE) return true;
    return false;
}

static void by_state(known *known, bool *done)
{
    if (known->site->region->pair || !both(known)) return;
    const lb_value *states[] = {lone_state(known, 0), lone_state(known, 1)};
    /* Exactly one side reads a state: both would be two histories, which is a difference of inputs. */
    if (!states[0] == !states[1]) return;
    const int side = states[1] ? 1 : 0;
    const lb_program *program = known->p[side];
    const lb_dtype grid = lb_fallback_quantised_to(program, known->site->region->sides[side].outputs[0], HOPS);
    /* Without a cast to eight bits behind it, a state that one side reads may be anything, and
     * calling it a scale would be a guess. */
    if (!grid) return;
    char name[48], why[256];
    const char *kind = is_written(program, states[side]) ? "delayed" : "static";
    const char *kinds[] = {"current", "current"};
    kinds[side] = kind;
    snprintf(name, sizeof name, "%s:%s", lb_dtype_name(grid), kinds[1]);
    snprintf(known->found->first, sizeof known->found->first, "%s:%s", lb_dtype_name(grid), kinds[0]);
    snprintf(why, sizeof why,
             "the scale before the cast to %s comes from the state %.80s on the %s side, "
             "from the tensor itself on the other; each side's ops, run by themselves, give its own bits",
             lb_dtype_name(grid), lb_program_text(program, states[side]->name), side ? "second" : "first");
    *done = true;
    tell(known, LB_CAUSE_PRECISION, LB_PROOF_BITS, name, why);
}

/* ---- parts ---- */

/* Of a larger batch's rows those that have different bits than A's ops give.
 * A library picks its kernel by the size of a batch, so that rows of both batches are right and
 * differ: this is the answer to a server that gives a prompt other logits alone than among others. */
static void name_rows(known *known, const lb_batch_rows *rows, uint32_t other)
{
    snprintf(known->found->schedule, sizeof known->found->schedule, "another kernel for a batch of %lld",
             (long long)rows->many);
    if (!other)
        snprintf(known->found->why, sizeof known->found->why,
                 "the larger batch's are what replay's own kernel gives; the smaller's are as near to the exact value");
    else
        snprintf(known->found->why, sizeof known->found->why,
                 "%u of %lld rows have not the bits that replay's own kernel gives either, "
                 "and are as near to the exact value",
                 other, (long long)rows->few);
}

/* "parts 2 to 5 of 5": those with different bits than A's ops give as they are; the others have those very bits. */
static lb_status name_parts(known *known, lb_err *err)
{
    const lb_batch_rows *rows = known->site->source->alignment->joins.rows;
    const uint32_t n = rows ? (uint32_t)rows->few : known->site->region->parts;
    uint8_t *matched = calloc(n + 1, 1);
    uint32_t other = 0, first = n, last = 0;
    if (!matched) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = lb_match_site_parts(known->site, &(lb_candidate){0}, matched, err);
    for (uint32_t i = 0; i < n; i++)
        if (!matched[i]) other++, first = i < first ? i : first, last = i;
    free(matched);
    if (status == LB_OK && rows) name_rows(known, rows, other);
    /* All parts or none in different bits: then the calls tell nothing apart, and the sentence that
     * stands is right. */
    if (status != LB_OK || rows || !other || other == n) return status;
    snprintf(known->found->schedule, sizeof known->found->schedule, "another kernel for %u of %u calls", other, n);
    snprintf(known->found->why, sizeof known->found->why,
             "%u of %u calls have, bit by bit, what the first side's ops give on their inputs; calls %u to %u, "
             "of other sizes, have not, and are as near to the exact value as those",
             n - other, n, first + 1, last + 1);
    return LB_OK;
}

/* ---- other ops ---- */

/* Both add up the same terms, each by ops of its own, of which none is a sum whose order could be swapped: in which
 * orders? */
static lb_status by_written_order(known *known, bool *done, lb_err *err)
{
    lb_written_order order;
    if (known->site->region->pair || !both(known)) return LB_OK;
    LB_TRY(lb_written_order_find(known->site,
                                 lb_attribution_memory_runs(known->memory, known->site->region->sides[0].n_ops +
                                                                               known->site->region->sides[1].n_ops),
                                 &order, err));
    lb_attribution_memory_charge(known->memory, &order.cost);
    if (!order.found) return LB_OK;
    *done = true;
    char why[256];
    snprintf(why, sizeof why,
             "both sides add up the same %u terms, each by ops of its own; "
             "the orders are those in which these ops add, and give each side's bits",
             order.terms);
    tell(known, LB_CAUSE_ORDER, LB_PROOF_BITS, order.name[1], why);
    snprintf(known->found->first, sizeof known->found->first, "%s", order.name[0]);
    known->found->tried = order.tried, known->found->excluded = order.excluded;
    return LB_OK;
}

/* The narrowest dtype that ops which round leave their results in; a cast at the end is not meant.
 * bf16 arithmetic and f32 arithmetic with a cast behind it both store bf16; what rounds on the way
 * is the difference between them, and the last dtype would hide it. */
static lb_dtype working_dtype(const known *known, int side)
{
    const lb_program *program = known->p[side];
    const lb_matched_region_side *s = &known->site->region->sides[side];
    lb_dtype narrow = output_of(known, side)->dtype;
    bool any = false;
    for (uint32_t i = 0; i < s->n_ops; i++) {
        const lb_op *op = &program->ops[s->ops[i]];
        lb_op_form form;
        const lb_op_row *row = lb_op_find(lb_op_name(program, op), &form);
        uint32_t v = op->results   ? lb_op_results(program, op)[0]
                     : op->written ? lb_op_written(program, op)[0]
                                   : LB_NONE;
        if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype) || lb_op_is_cast(program, op)) continue;
        if (!row || row->flags & (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)) continue;
        if (!any || lb_dtype_precision(program->values[v].dtype) < lb_dtype_precision(narrow))
            narrow = program->values[v].dtype;
        any = true;
    }
    return narrow;
}

static lb_status by_function(known *known, bool *done, lb_err *err)
{
    bool same, inside;
    const lb_matched_region *region = known->site->region;
    if (region->pair) return LB_OK;
    LB_TRY(lb_match_site_same_function(known->site, &same, err));
    /* f64 of both programs on the same inputs: agreement says that what is left is rounding,
     * whichever kernels ran. */
    if (!same) return LB_OK;
    for (int side = 0; side < 2; side++) { /* one op whose bits are not ours has a bound to keep */
        if (known->side[side] || region->sides[side].n_ops != 1) continue;
        LB_TRY(lb_match_site_reaches(known->site, side, side, &inside, err));
        if (!inside) return LB_OK;
    }
    *done = true;
    const lb_dtype a = working_dtype(known, 0), b = region->parts ? a : working_dtype(known, 1);
    const lb_cause cause =
        a == b && output_of(known, 0)->dtype == output_of(known, 1)->dtype ? LB_CAUSE_KERNEL : LB_CAUSE_PRECISION;
    tell(known, cause, both(known) ? LB_PROOF_BITS : LB_PROOF_EXACT,
         a == b ? "the second side's own ops" : lb_dtype_name(b),
         both(known) ? "other ops, the same real function: each side's ops, run by themselves, give its own bits"
                     : "other ops, the same real function of the same inputs; replay has not every kernel that ran");
    if (region->parts) return name_parts(known, err);
    if (a != b) snprintf(known->found->first, sizeof known->found->first, "%s", lb_dtype_name(a));
    return LB_OK;
}

/* Ops that cannot be run on the other side's bits, since different rows go through them there. Where they are the same
 * ops, each of which gives its own side's bits, nothing is left that could differ but what they read; where replay has
 * not the kernels, each side's result has to be as near to the exact one as replay's. */
static lb_status by_same_ops(known *known, bool *done, lb_err *err)
{
    const lb_match_site *site = known->site;
    lb_score across;
    bool same = false;
    if (site->region->pair || site->region->parts) return LB_OK;
    LB_TRY(lb_match_site_try(site, 0, 1, &(lb_candidate){0}, &across, err));
    const bool chose = lb_same_ops_chose(site->source, site->region);
    /* Then that says more, unless as many rows as on the other side are different rows. */
    if (across.ran && !chose) return LB_OK;
    LB_TRY(lb_same_ops(site->source, site->region, &same, err));
    for (int side = 0; side < 2 && same; side++)
        if (!known->side[side]) LB_TRY(lb_match_site_is_near(site, side, &same, err));
    if (!same) return LB_OK;
    *done = true;
    tell(known, chose ? LB_CAUSE_ROUTING : LB_CAUSE_INPUT, both(known) ? LB_PROOF_BITS : LB_PROOF_EXACT,
         chose ? "different rows" : "",
         both(known)
             ? "the same ops on different rows, which what they read decides: each side's, run by themselves, "
               "give its own bits"
             : "the same ops on different rows, which what they read decides; replay has not every kernel that ran, "
               "and each side's result is as near to the exact one as replay's");
    return LB_OK;
}

/* Other ops, of which neither side's can be run on the other's bits, since experts were chosen differently. Where the
 * choices agree, ops of these kinds were one real function; here each side's result is as near to the exact one of its
 * own ops as replay's. */
static lb_status by_kinds(known *known, bool *done, lb_err *err)
{
    const lb_match_site *site = known->site;
    bool near = known->proven_elsewhere && !site->region->pair && !site->region->parts &&
                lb_same_ops_chose(site->source, site->region);
    for (int side = 0; side < 2 && near; side++)
        if (!known->side[side]) LB_TRY(lb_match_site_is_near(site, side, &near, err));
    if (!near) return LB_OK;
    *done = true;
    tell(known, LB_CAUSE_ROUTING, LB_PROOF_EXACT, "different rows",
         "experts were chosen differently here, so that neither side's ops can be run on the other's rows. "
         "Where the choices agree, such ops are the same real function; "
         "here each side's result is as near to the exact result of its own ops as replay's");
    return LB_OK;
}

lb_status lb_fallback_proofs_find(const lb_fallback_question *asked, lb_attribution_found *found, bool *done,
                                  lb_err *err)
{
    known known = {.site = asked->site,
                   .memory = asked->memory,
                   .proven_elsewhere = asked->proven_elsewhere,
                   .side = {lb_score_all(asked->own[0]), lb_score_all(asked->own[1])},
                   .own = {asked->own[0], asked->own[1]},
                   .score = asked->score,
                   .found = found,
                   .p = {asked->site->source->a->program, asked->site->source->b->program}};
    *done = false;
    /* by_written_order stands before by_function, since an order with a name says more than "the same
     * function"; by_state is last, because it needs other ops that each give their own bits and are
     * no such function. */
    LB_TRY(by_bounds(&known, done, err));
    if (!*done) by_arguments(&known, done);
    if (!*done) LB_TRY(by_other_arguments(&known, done, err));
    if (!*done) LB_TRY(by_written_order(&known, done, err));
    if (!*done) LB_TRY(by_function(&known, done, err));
    if (!*done) LB_TRY(by_same_ops(&known, done, err));
    if (!*done) by_state(&known, done);
    if (!*done) LB_TRY(by_kinds(&known, done, err));
    return LB_OK;
}
