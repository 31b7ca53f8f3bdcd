/* Which forward pass of B is which of A: see forwards.h. */
#include "pair/forwards.h"

#include "pair/op_kind.h"
#include "program/slice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- where they begin ---- */

/* The rows of what one call of an outermost module is given. */
typedef struct outermost {
    uint32_t scope, call, op, first, end;
} outermost;

/* The next call of an outermost module from boundary `*row` on, which moves behind it. */
static bool next_outermost(const lb_program *program, uint32_t *row, outermost *found)
{
    uint32_t i = *row;
    while (i < program->n_boundaries && (program->boundaries[i].output || program->boundaries[i].recompute)) i++;
    if (i == program->n_boundaries) return false;
    *found = (outermost){program->boundaries[i].scope, program->boundaries[i].call, program->boundaries[i].op, i, i};
    while (found->end < program->n_boundaries && !program->boundaries[found->end].output &&
           program->boundaries[found->end].scope == found->scope && program->boundaries[found->end].call == found->call)
        found->end++;
    /* A module that hands on nothing has no end of its own: it ends where it is called again. */
    for (i = found->end; i < program->n_boundaries; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        if (boundary->scope == found->scope && (boundary->output || boundary->call != found->call) &&
            !boundary->recompute)
            break;
    }
    while (i < program->n_boundaries && program->boundaries[i].output && program->boundaries[i].scope == found->scope)
        i++;
    *row = i;
    return true;
}

static bool add_pass(lb_side_forwards *side, const outermost *call)
{
    lb_forward *more = realloc(side->list, (side->n + 1) * sizeof *more);
    if (!more) return false;
    side->list = more;
    side->list[side->n++] = (lb_forward){call->op, call->first, call->end, 0, INT64_MAX, false, LB_NONE};
    return true;
}

/* Is it a part of a module that was called? Called by itself it goes on with what that gave (a head over chunks of
 * tokens). */
static bool is_part_of_called(const lb_program *program, const uint8_t *called, uint32_t scope)
{
    while ((scope = program->scopes[scope].parent) != LB_NONE)
        if (called[scope]) return true;
    return false;
}

static bool list_passes(const lb_program *program, lb_side_forwards *side)
{
    uint8_t *called = calloc((size_t)program->n_scopes + 1, 1); /* in the pass at hand */
    uint32_t row = 0;
    outermost call;
    bool room = called != NULL;
    while (room && next_outermost(program, &row, &call)) {
        if (side->n && (!called[call.scope] || is_part_of_called(program, called, call.scope))) {
            called[call.scope] = 1;
            continue;
        }
        memset(called, 0, program->n_scopes);
        called[call.scope] = 1;
        room = add_pass(side, &call);
    }
    free(called);
    return room;
}

/* ---- what belongs to them ---- */

static uint32_t pass_at(const lb_side_forwards *side, uint32_t op)
{
    uint32_t k = side->n;
    while (k && side->list[k - 1].first > op) k--;
    return k ? k - 1 : LB_NONE;
}

/* Autograd numbers the ops of forward: those of a pass lie between the first of it and the first of the next. Nothing
 * is numbered while no gradient is asked for, so that the next one may begin with the same number: then the later pass
 * has it. */
static void number_nodes(const lb_program *program, lb_side_forwards *side)
{
    uint32_t next = side->n;
    int64_t node = INT64_MAX;
    for (uint32_t i = program->n_ops; i-- > 0 && next;) {
        if (program->ops[i].phase == LB_PHASE_FORWARD && program->ops[i].node >= 0) node = program->ops[i].node;
        while (next && side->list[next - 1].first >= i) side->list[--next].node = node;
    }
}

static uint32_t pass_of_node(const lb_side_forwards *side, const lb_op *op)
{
    if (op->phase != LB_PHASE_BACKWARD || op->node < 0 || op->node_name == LB_NONE) return LB_NONE;
    for (uint32_t k = side->n; k-- > 0;)
        if (side->list[k].node <= op->node) return k;
    return LB_NONE;
}

static bool accumulates(const lb_program *program, const lb_op *op)
{
    return strstr(lb_program_text(program, op->node_name), "AccumulateGrad") != NULL;
}

/* Ops of a module belong to the pass in which that call of it began, its backward among them. A gradient is added up by
 * one node for all passes. */
static bool place_modules(const lb_program *program, lb_side_forwards *side)
{
    uint32_t **first = calloc((size_t)program->n_scopes + 1, sizeof *first),
             *n = calloc((size_t)program->n_scopes + 1, sizeof *n);
    bool room = first && n;
    for (uint32_t i = 0; room && i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (!op->scope || op->phase == LB_PHASE_OPTIMIZER || accumulates(program, op)) continue;
        if (op->call >= n[op->scope]) {
            uint32_t *more = realloc(first[op->scope], (op->call + 1) * sizeof *more);
            if (!(room = more != NULL)) break;
            first[op->scope] = more;
            while (n[op->scope] <= op->call) more[n[op->scope]++] = i;
        }
        side->of_op[i] = pass_at(side, first[op->scope][op->call]);
    }
    for (uint32_t i = 0; first && i < program->n_scopes; i++) free(first[i]);
    free(first), free(n);
    return room;
}

enum { SEVERAL = LB_NONE - 1 };

static uint32_t join(uint32_t a, uint32_t b)
{
    return a == LB_NONE || a == b ? b : b == LB_NONE ? a : SEVERAL;
}

/* Ops outside every module: by what they are computed from, then by what is computed from them. */
static void place_others(const lb_slice_flow *flow, lb_side_forwards *side)
{
    const lb_program *program = flow->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->scope || lb_op_is_source(program, op)) continue;
        if (op->phase == LB_PHASE_OPTIMIZER || op->phase == LB_PHASE_COMMUNICATION) {
            side->of_op[i] = SEVERAL;
            continue;
        }
        side->of_op[i] = pass_of_node(side, op);
        for (uint32_t e = flow->first_def[i]; side->of_op[i] == LB_NONE && e < flow->first_def[i + 1]; e++) {
            const uint32_t def = flow->defs[e];
            side->of_op[i] = accumulates(program, &program->ops[def]) ? SEVERAL : side->of_op[def];
        }
        for (uint32_t e = flow->first_def[i]; op->phase != LB_PHASE_BACKWARD && e < flow->first_def[i + 1]; e++)
            side->of_op[i] = join(side->of_op[i], side->of_op[flow->defs[e]]);
    }
    for (uint32_t i = program->n_ops; i-- > 0;) {
        if (program->ops[i].scope || side->of_op[i] != LB_NONE) continue;
        uint32_t pass = LB_NONE;
        for (uint32_t u = flow->first_use[i]; u < flow->first_use[i + 1]; u++)
            pass = join(pass, side->of_op[flow->uses[u]]);
        side->of_op[i] = pass;
    }
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (side->of_op[i] == SEVERAL) side->of_op[i] = LB_NONE;
}

static lb_status place_ops(const lb_program *program, lb_side_forwards *side, lb_err *err)
{
    lb_slice_flow *flow;
    side->of_op = malloc(((size_t)program->n_ops + 1) * sizeof *side->of_op);
    side->call = malloc(((size_t)program->n_ops + 1) * sizeof *side->call);
    if (side->of_op) memset(side->of_op, 0xFF, ((size_t)program->n_ops + 1) * sizeof *side->of_op);
    if (!side->of_op || !side->call || !place_modules(program, side))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for the passes of %u ops", program->n_ops);
    number_nodes(program, side);
    LB_TRY(lb_slice_flow_new(program, &flow, err));
    place_others(flow, side);
    lb_slice_flow_free(flow);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        lb_forward *pass = side->of_op[i] == LB_NONE ? NULL : &side->list[side->of_op[i]];
        if (!pass) continue;
        pass->learns |= program->ops[i].phase == LB_PHASE_BACKWARD;
        pass->ops += program->ops[i].phase == LB_PHASE_FORWARD && lb_op_computes(program, &program->ops[i]);
    }
    return LB_OK;
}

/* ---- which meets which ---- */

static bool given_alike(const lb_program *pa, const lb_forward *a, const lb_program *pb, const lb_forward *b)
{
    const uint32_t n = a->end_given - a->first_given;
    if (!n || n != b->end_given - b->first_given) return false;
    for (uint32_t i = 0; i < n; i++) {
        const lb_digest digest = pa->values[pa->boundaries[a->first_given + i].value].logical,
                        y = pb->values[pb->boundaries[b->first_given + i].value].logical;
        if (lb_digest_is_none(digest) || !lb_digest_equal(digest, y)) return false;
    }
    return true;
}

static void pair(lb_forwards *passes, uint32_t a, uint32_t b)
{
    passes->sides[0].list[a].like = b, passes->sides[1].list[b].like = a;
}

static uint32_t count_alone(const lb_side_forwards *side, bool learns)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < side->n; i++) n += side->list[i].like == LB_NONE && side->list[i].learns == learns;
    return n;
}

/* Those that are left over: equally many on both sides are the same ones, given other data. */
static void pair_rest(lb_forwards *passes, bool learns)
{
    lb_side_forwards *a = &passes->sides[0], *b = &passes->sides[1];
    if (count_alone(a, learns) != count_alone(b, learns)) return;
    for (uint32_t i = 0, j = 0; i < a->n; i++) {
        if (a->list[i].like != LB_NONE || a->list[i].learns != learns) continue;
        while (b->list[j].like != LB_NONE || b->list[j].learns != learns) j++;
        pair(passes, i, j);
    }
}

bool lb_forwards_shift(const lb_forwards *passes)
{
    const lb_side_forwards *forwards = &passes->sides[0];
    bool shift = false;
    for (uint32_t i = 0; i < forwards->n && passes->used; i++)
        shift |= forwards->list[i].like != LB_NONE && forwards->list[i].like != i;
    return shift;
}

static void match_passes(const lb_program *pa, const lb_program *pb, lb_forwards *passes)
{
    lb_side_forwards *a = &passes->sides[0], *b = &passes->sides[1];
    bool any = false;
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t j = 0; j < b->n && a->list[i].like == LB_NONE; j++)
            if (b->list[j].like == LB_NONE && a->list[i].learns == b->list[j].learns &&
                given_alike(pa, &a->list[i], pb, &b->list[j]))
                pair(passes, i, j), any = true;
    if (!any) return;
    for (int learns = 0; learns < 2; learns++) {
        pair_rest(passes, learns);
        /* A batch on one side may be several on the other. */
        if (count_alone(a, learns) && count_alone(b, learns)) return;
    }
    passes->used = true;
    passes->used = a->n != b->n || lb_forwards_shift(passes);
}

/* ---- the numbers of calls ---- */

enum { ALONE = 1 << 14, SUMS = 1 << 30 };

/* Of a pass: A's number, in which B's like meets it; beyond all of A's for one of B without a like. */
static uint32_t number_of(const lb_forwards *passes, int which, uint32_t pass)
{
    const uint32_t like = passes->sides[which].list[pass].like;
    return which == 0 ? pass : like != LB_NONE ? like : ALONE + pass;
}

static bool number_calls(const lb_program *program, lb_forwards *passes, int which)
{
    lb_side_forwards *side = &passes->sides[which];
    const size_t cells = (size_t)program->n_scopes * side->n;
    uint32_t *first = malloc((cells + 1) * sizeof *first); /* the first call of a module in a pass */
    if (!first) return false;
    memset(first, 0xFF, cells * sizeof *first);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t pass = side->of_op[i];
        uint32_t *cell = pass == LB_NONE ? NULL : &first[(size_t)program->ops[i].scope * side->n + pass];
        if (cell && program->ops[i].call < *cell) *cell = program->ops[i].call;
    }
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        const uint32_t pass = side->of_op[i];
        side->call[i] = accumulates(program, op) ? SUMS : op->call; /* in the order in which the passes ran */
        if (pass == LB_NONE) continue;
        const uint32_t within = op->call - first[(size_t)op->scope * side->n + pass];
        side->call[i] = (number_of(passes, which, pass) + 1) * LB_FORWARDS_CALLS + within % LB_FORWARDS_CALLS;
    }
    free(first);
    return true;
}

/* ---- calls that boundaries are of ---- */

/* The row of the call's first boundary; what runs a second time for backward belongs to the pass that it repeats. */
static uint32_t first_given(const lb_program *program, uint32_t row)
{
    const lb_boundary *boundary = &program->boundaries[row];
    for (uint32_t i = 0; boundary->recompute && i < row; i++)
        if (program->boundaries[i].scope == boundary->scope && program->boundaries[i].call == boundary->call) return i;
    return row;
}

static uint32_t pass_of_row(const lb_side_forwards *side, uint32_t row)
{
    uint32_t k = side->n;
    while (k && side->list[k - 1].first_given > row) k--;
    return k ? k - 1 : LB_NONE;
}

static bool number_boundaries(const lb_program *program, lb_forwards *passes, int which)
{
    lb_side_forwards *side = &passes->sides[which];
    uint32_t *first =
        malloc(((size_t)program->n_scopes * side->n + 1) * sizeof *first); /* call of a module in a pass */
    side->given = malloc(((size_t)program->n_boundaries + 1) * sizeof *side->given);
    if (first) memset(first, 0xFF, (size_t)program->n_scopes * side->n * sizeof *first);
    for (uint32_t i = 0; first && side->given && i < program->n_boundaries; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        const uint32_t pass = pass_of_row(side, first_given(program, i));
        side->given[i] = boundary->call;
        if (pass == LB_NONE) continue;
        uint32_t *cell = &first[(size_t)boundary->scope * side->n + pass];
        if (boundary->call < *cell) *cell = boundary->call;
        side->given[i] =
            (number_of(passes, which, pass) + 1) * LB_FORWARDS_CALLS + (boundary->call - *cell) % LB_FORWARDS_CALLS;
    }
    const bool room = first && side->given;
    free(first);
    return room;
}

uint32_t lb_forwards_call(const lb_forwards *passes, int side, const lb_program *program, const lb_boundary *boundary)
{
    return passes->used ? passes->sides[side].given[boundary - program->boundaries] : boundary->call;
}

uint32_t lb_forwards_call_of(const lb_forwards *passes, int side, const lb_program *program, uint32_t scope,
                             uint32_t call)
{
    for (uint32_t i = 0; passes->used && i < program->n_boundaries; i++)
        if (program->boundaries[i].scope == scope && program->boundaries[i].call == call)
            return passes->sides[side].given[i];
    return call;
}

/* ---- all of it ---- */

lb_status lb_forwards_find(const lb_program_view *a, const lb_program_view *b, lb_forwards *passes, lb_err *err)
{
    const lb_program_view *views[] = {a, b};
    *passes = (lb_forwards){.used = false};
    if (a->n_parts != 1 || b->n_parts != 1) return LB_OK;
    for (int k = 0; k < 2; k++)
        if (!list_passes(views[k]->program, &passes->sides[k]))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for the passes of a step");
    if (passes->sides[0].n >= ALONE || passes->sides[1].n >= ALONE ||
        (passes->sides[0].n < 2 && passes->sides[1].n < 2))
        return LB_OK;
    for (int k = 0; k < 2; k++) LB_TRY(place_ops(views[k]->program, &passes->sides[k], err));
    match_passes(a->program, b->program, passes);
    for (int k = 0; k < 2 && passes->used; k++)
        if (!number_calls(views[k]->program, passes, k) || !number_boundaries(views[k]->program, passes, k))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for the passes of a step");
    return LB_OK;
}

void lb_forwards_release(lb_forwards *passes)
{
    for (int k = 0; k < 2; k++) {
        free(passes->sides[k].list), free(passes->sides[k].of_op);
        free(passes->sides[k].call), free(passes->sides[k].given);
    }
    *passes = (lb_forwards){.used = false};
}

static uint32_t pass_of(const lb_forwards *passes, int side, uint32_t op)
{
    return op == LB_NONE ? LB_NONE : passes->sides[side].of_op[op];
}

uint32_t lb_forwards_number(const lb_forwards *passes, int side, uint32_t op)
{
    const uint32_t pass = passes->used ? pass_of(passes, side, op) : LB_NONE;
    return pass == LB_NONE ? LB_NONE : number_of(passes, side, pass);
}

bool lb_forwards_meet(const lb_forwards *passes, uint32_t op_a, uint32_t op_b)
{
    const uint32_t a = passes->used ? pass_of(passes, 0, op_a) : LB_NONE,
                   b = passes->used ? pass_of(passes, 1, op_b) : LB_NONE;
    return a == LB_NONE || b == LB_NONE || passes->sides[0].list[a].like == b;
}

bool lb_forwards_has_no_like(const lb_forwards *passes, int side, uint32_t op)
{
    const uint32_t pass = passes->used ? pass_of(passes, side, op) : LB_NONE;
    return pass != LB_NONE && passes->sides[side].list[pass].like == LB_NONE;
}

/* How many passes that learn stand before it. */
static uint32_t learning_before(const lb_side_forwards *side, uint32_t pass)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pass; i++) n += side->list[i].learns;
    return n;
}

bool lb_forwards_cross(const lb_forwards *passes)
{
    const lb_side_forwards *a = &passes->sides[0], *b = &passes->sides[1];
    bool learns = false, crosses = false;
    uint32_t last = LB_NONE;
    for (uint32_t i = 0; i < a->n && passes->used; i++) {
        const uint32_t like = a->list[i].like;
        learns |= a->list[i].learns;
        if (like == LB_NONE) continue;
        crosses |= (last != LB_NONE && like < last) || learning_before(a, i) != learning_before(b, like);
        last = like;
    }
    return learns ? crosses : lb_forwards_shift(passes);
}

/* ---- in words ---- */

/* The number of a pass among those that learn, or among those that do not; from 1. */
static uint32_t number_in_kind(const lb_side_forwards *side, uint32_t pass)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i <= pass; i++) n += side->list[i].learns == side->list[pass].learns;
    return n;
}

/* Micro-batches where one of both sides learns from some pass. */
static bool any_learns(const lb_forwards *passes)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < passes->sides[k].n; i++)
            if (passes->sides[k].list[i].learns) return true;
    return false;
}

static void tell_alone(const lb_forwards *passes, const lb_program *const programs[2], int which, uint32_t pass,
                       const char *const sides[2], char *text, size_t size)
{
    const lb_side_forwards *mine = &passes->sides[which], *other = &passes->sides[!which];
    const lb_forward *it = &mine->list[pass];
    const lb_program *program = programs[which];
    if (!it->learns && any_learns(passes)) {
        const uint32_t before = pass ? number_in_kind(mine, pass - 1) : 0;
        const char *from = it->first < program->n_ops ? lb_op_layer(program, &program->ops[it->first]) : "";
        char when[80] = "before the first micro-batch";
        if (pass && mine->list[pass - 1].learns) snprintf(when, sizeof when, "after micro-batch %u", before);
        if (pass && !mine->list[pass - 1].learns) snprintf(when, sizeof when, "after another evaluation");
        snprintf(
            text, size, "step %lld: %s runs an additional evaluation, %s: %u forward ops%s%.80s on, without a backward",
            (long long)program->step, sides[which], when, it->ops, *from ? " from layer " : " from the start", from);
        return;
    }
    const char *noun = it->learns ? "micro-batch" : "forward pass";
    for (uint32_t j = 0; j < other->n; j++)
        if (other->list[j].learns == it->learns && given_alike(program, it, programs[!which], &other->list[j])) {
            snprintf(text, size, "step %lld: %s %u of %s is run again by %s, as its number %u",
                     (long long)program->step, noun, number_in_kind(other, j), sides[!which], sides[which],
                     number_in_kind(mine, pass));
            return;
        }
    snprintf(text, size, "step %lld: %s runs an additional %s, its number %u", (long long)program->step, sides[which],
             noun, number_in_kind(mine, pass));
}

/* "2 1 3": the other side's numbers, in the order of this one. */
static bool tell_order(const lb_forwards *passes, const lb_program *program, int which, const char *side, char *text,
                       size_t size)
{
    const lb_side_forwards *mine = &passes->sides[which], *other = &passes->sides[!which];
    const char *noun = any_learns(passes) ? "micro-batches" : "forward passes";
    bool moved = false;
    uint32_t last = LB_NONE;
    size_t used =
        (size_t)snprintf(text, size, "step %lld: %s runs the %s in the order", (long long)program->step, side, noun);
    for (uint32_t i = 0; i < mine->n; i++) {
        const uint32_t like = mine->list[i].like;
        if (like == LB_NONE || (any_learns(passes) && !mine->list[i].learns)) continue;
        moved |= last != LB_NONE && like < last;
        last = like;
        if (used + 12 < size) used += (size_t)snprintf(text + used, size - used, " %u", number_in_kind(other, like));
    }
    return moved;
}

/* What A and B are called. `first`: which of them the user named first. */
static void name_sides(int first, const char *sides[2])
{
    sides[first] = "the first side", sides[!first] = "the second side";
}

void lb_forwards_tell_pass(const lb_forwards *passes, const lb_program *a, const lb_program *b, int first, int side,
                           uint32_t pass, char sentence[300])
{
    const lb_program *const programs[] = {a, b};
    const char *sides[2];
    name_sides(first, sides);
    tell_alone(passes, programs, side, pass, sides, sentence, 300);
}

uint32_t lb_forwards_tell(const lb_forwards *passes, const lb_program *a, const lb_program *b, int first,
                          char sentences[LB_FORWARDS_SENTENCES][300])
{
    const lb_program *const programs[] = {a, b};
    const char *sides[2];
    name_sides(first, sides);
    const int second = !first;
    uint32_t n = 0;
    if (!passes->used) return 0;
    if (tell_order(passes, programs[second], second, sides[second], sentences[n], sizeof sentences[n])) n++;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < passes->sides[k].n && n < LB_FORWARDS_SENTENCES; i++)
            if (passes->sides[k].list[i].like == LB_NONE)
                tell_alone(passes, programs, k, i, sides, sentences[n], sizeof sentences[n]), n++;
    return n;
}
