/* See met_storages.h.
 * Nothing else could pair such states: they have no names, and Adam's moments of two layers of one
 * shape are told apart neither by their shapes nor by the ops that read them. What they held at the
 * end of the last step tells them, if exact arithmetic found it to be the same quantity. */
#include "merged/met_storages.h"

#include "shadow/cross_feed.h"
#include "pair/cut_tensors.h"
#include "program/owner.h"

#include "base/array.h"
#include "program/state_name.h"
#include <stdlib.h>
#include <string.h>

/* A foreach op gives hundreds of tensors in an order of its own, which need not be the other
 * side's: its results would be paired by their place alone. */
enum { FEW = 8 };

static int64_t storage_of(const lb_program *program, uint32_t op, uint32_t outcome)
{
    const lb_op *o = &program->ops[op];
    if (outcome >= o->results + o->written) return -1;
    const uint32_t v = lb_op_outcome(program, o, outcome);
    return v == LB_NONE ? -1 : program->values[v].storage;
}

/* What a storage held last counts.
 * Searched from the back, because the last write of a state follows its first ones closely. A
 * storage is in at most one pair: moments are written several times in an update, and an early
 * meeting (both are still zeros) must give way to the last. */
static bool note_in(int64_t (**list)[2], uint32_t *n, int64_t first, int64_t second)
{
    for (uint32_t i = *n; i-- > 0;)
        if ((*list)[i][0] == first || (*list)[i][1] == second) {
            (*list)[i][0] = first, (*list)[i][1] = second;
            return true;
        }
    int64_t(*more)[2] = lb_array_grow(*list, *n, sizeof *more);
    if (!more) return false;
    *list = more;
    more[*n][0] = first, more[*n][1] = second;
    ++*n;
    return true;
}

static bool note(lb_met_storages *met, int64_t first, int64_t second)
{
    return note_in(&met->list, &met->n, first, second);
}

/* In the optimizer: that is where most states without a name are written. */
static bool note_node(lb_met_storages *met, const lb_program_view *a, const lb_program_view *b,
                      const lb_merged_steps *steps, const lb_node *node, bool swapped)
{
    /* One against several parts is a state in shards; which shard a storage of A belongs to is no
     * pair. */
    if (!node->told || node->n[0] != 1 || node->n[1] != 1) return true;
    const uint32_t x = steps->ops[node->first[0]], y = steps->ops[node->first[1]];
    if (a->program->ops[x].phase != LB_PHASE_OPTIMIZER || !lb_op_computes(a->program, &a->program->ops[x])) return true;
    if (a->program->ops[x].results + a->program->ops[x].written > FEW) return true;
    for (uint32_t i = 0; i < a->program->ops[x].results + a->program->ops[x].written; i++) {
        const int64_t sa = storage_of(a->program, x, i), sb = storage_of(b->program, y, i);
        if (sa >= 0 && sb >= 0 && !note(met, swapped ? sb : sa, swapped ? sa : sb)) return false;
    }
    return true;
}

/* ---- what the next step reads without a name ---- */

/* Two sides of one step, and what became of them. */
typedef struct ends {
    const lb_program_view *a, *b;
    const lb_merged_steps *steps;
    bool swapped;
} ends;

static bool writes_all(const lb_value *left, const lb_value *read)
{
    return lb_layout_numel(&left->layout) >= lb_layout_numel(&read->layout);
}

/* What of B the op of A that left a storage leaves in its place; -1: nothing, or something is written over it. */
static int64_t left_in_place(const ends *ends, uint32_t x, uint32_t value, const lb_node *node)
{
    const lb_program *pa = ends->a->program, *pb = ends->b->program;
    const uint32_t y = ends->steps->ops[node->first[1]];
    uint32_t given;
    for (uint32_t i = 0; i < lb_op_outcomes(&pa->ops[x]) && i < lb_op_outcomes(&pb->ops[y]); i++) {
        if (lb_op_outcome(pa, &pa->ops[x], i) != value) continue;
        const int64_t storage = storage_of(pb, y, i);
        return storage >= 0 && lb_cross_feed_giver_of_storage(pb, storage, pb->n_ops, &given) == y ? storage : -1;
    }
    return -1;
}

static bool same_name(const ends *ends, uint32_t x, uint32_t y)
{
    return !strcmp(lb_op_name(ends->a->program, &ends->a->program->ops[x]),
                   lb_op_name(ends->b->program, &ends->b->program->ops[y]));
}

static bool note_left(lb_met_storages *met, const ends *ends, int64_t storage, const lb_value *read)
{
    const lb_program *pa = ends->a->program;
    uint32_t value;
    const uint32_t x = lb_cross_feed_giver_of_storage(pa, storage, pa->n_ops, &value),
                   n = x == LB_NONE ? LB_NONE : ends->steps->node_of[0][x];
    const lb_node *node = n == LB_NONE ? NULL : &ends->steps->nodes[n];
    if (!node || node->n[0] != 1 || node->n[1] != 1 || !writes_all(&pa->values[value], read)) return true;
    const int64_t other = left_in_place(ends, x, value, node), first = ends->swapped ? other : storage,
                  second = ends->swapped ? storage : other;
    if (other < 0) return true;
    if (node->told && lb_op_outcomes(&pa->ops[x]) <= FEW && !note(met, first, second)) return false;
    if (!node->told && !same_name(ends, x, ends->steps->ops[node->first[1]])) return true;
    return note_in(&met->shared, &met->n_shared, first, second);
}

/* A float source without a name; a range with gaps is not known again as carried. */
static const lb_value *nameless_source(const lb_program *program, uint32_t op)
{
    const uint32_t v =
        lb_op_is_source(program, &program->ops[op]) ? lb_op_results(program, &program->ops[op])[0] : LB_NONE;
    const lb_value *value = v == LB_NONE ? NULL : &program->values[v];
    if (!value || !lb_dtype_is_float(value->dtype) || *lb_program_text(program, value->name)) return NULL;
    return value->source == LB_SOURCE_CARRIED || value->source == LB_SOURCE_OTHER || value->source == LB_SOURCE_BATCH
               ? value
               : NULL;
}

static bool note_next(lb_met_storages *met, const ends *ends)
{
    for (uint32_t part = 0; part < ends->a->n_parts; part++) {
        const lb_program *program = ends->a->parts[part].program, *next;
        if (lb_capture_program(ends->a->capture, program->rank, program->step + 1, &next, NULL) != LB_OK) continue;
        for (uint32_t i = 0; i < next->n_ops; i++) {
            const lb_value *v = nameless_source(next, i);
            if (v && !note_left(met, ends, lb_program_view_storage(ends->a, part, v->storage), v)) return false;
        }
    }
    return true;
}

static bool note_exits(lb_met_storages *met, const ends *ends, const lb_step_outputs *exits)
{
    for (uint32_t i = 0; i < exits->n; i++) {
        const lb_step_output *exit = &exits->list[i];
        if (!exit->by_use || exit->agreement != LB_SHADOW_AGREES) continue;
        const int64_t a = ends->a->program->values[exit->value[0]].storage,
                      b = ends->b->program->values[exit->value[1]].storage;
        if (!note_in(&met->shared, &met->n_shared, ends->swapped ? b : a, ends->swapped ? a : b)) return false;
    }
    return true;
}

/* ---- from step to step ---- */

static bool is_given(const lb_program_view *side, int64_t storage)
{
    uint32_t value;
    return lb_cross_feed_giver_of_storage(side->program, storage, side->program->n_ops, &value) != LB_NONE;
}

/* Storages are freed and used again: of older pairs those count on that this step left alone. */
static uint32_t keep_untouched(int64_t (*list)[2], uint32_t n, const lb_program_view *first,
                               const lb_program_view *second)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!is_given(first, list[i][0]) && !is_given(second, list[i][1]))
            list[kept][0] = list[i][0], list[kept++][1] = list[i][1];
    return kept;
}

lb_status lb_met_storages_note(lb_met_storages *met, const lb_program_view *a, const lb_program_view *b,
                               const lb_merged_steps *steps, const lb_step_outputs *exits, bool swapped, lb_err *err)
{
    const ends e = {a, b, steps, swapped};
    const lb_program_view *first = swapped ? b : a, *second = swapped ? a : b;
    met->n = 0;
    met->n_shared = keep_untouched(met->shared, met->n_shared, first, second);
    bool done = (lb_program_views_are_uneven(a, b) || note_next(met, &e)) && note_exits(met, &e, exits);
    for (uint32_t i = 0; i < steps->merged.n_nodes && done; i++)
        done = note_node(met, a, b, steps, &steps->nodes[i], swapped);
    return done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u nodes", steps->merged.n_nodes);
}

bool lb_met_storages_shared(const lb_met_storages *met, int64_t a, int64_t b, bool swapped)
{
    for (uint32_t i = 0; i < met->n_shared; i++)
        if (met->shared[i][swapped] == a && met->shared[i][!swapped] == b) return true;
    return false;
}

static uint32_t carried(const lb_program *program, uint32_t op)
{
    if (!lb_op_is_source(program, &program->ops[op])) return LB_NONE;
    const uint32_t v = lb_op_results(program, &program->ops[op])[0];
    return v != LB_NONE && program->values[v].source == LB_SOURCE_CARRIED && lb_dtype_is_float(program->values[v].dtype)
               ? v
               : LB_NONE;
}

static bool is_held(const lb_alignment *al, int side, uint32_t op)
{
    return al->cuts && al->cuts->held[side][op];
}

/* The reverse of source_b_of_a is not kept: sources without a name are few, and a search is enough. */
static bool is_free(const lb_alignment *al, uint32_t n_ops, uint32_t op_b)
{
    for (uint32_t i = 0; i < n_ops; i++)
        if (al->source_b_of_a[i] == op_b) return false;
    return al->join_of_b[op_b] == LB_NONE && !is_held(al, 1, op_b);
}

/* True when they are partners now. */
static bool pair(const lb_program_view *a, const lb_program_view *b, int64_t sb, uint32_t op_a, const lb_value *va,
                 lb_alignment *al)
{
    for (uint32_t j = 0; j < b->program->n_ops; j++) {
        const uint32_t v = carried(b->program, j);
        if (v == LB_NONE || b->program->values[v].storage != sb ||
            !lb_layout_same_shape(&va->layout, &b->program->values[v].layout))
            continue;
        /* A partner that was found by name or by bits is not taken away. */
        if (!is_free(al, a->program->n_ops, j)) return false;
        al->source_b_of_a[op_a] = j;
        return true;
    }
    return false;
}

static bool is_lone(const lb_alignment *al, uint32_t op_a)
{
    return al->source_b_of_a[op_a] == LB_NONE && al->join_of_a[op_a] == LB_NONE && !is_held(al, 0, op_a);
}

/* ---- by what they are to their parameter ---- */

/* A state of one side. */
typedef struct state {
    uint32_t op;
    const char *parameter; /* of the same name on both sides */
    const char *kind;      /* "exp_avg" with its length; of one without a name ""… */
    size_t kind_length;
    uint32_t place;   /* …and which of its parameter's */
    uint32_t partner; /* of A's: the state of B that it met; LB_NONE */
} state;

typedef struct states {
    state *list;
    uint32_t n;
    lb_slice_flow *flow;
    lb_owners *owners;
} states;

static void release_states(states *found)
{
    free(found->list);
    lb_owners_free(found->owners), lb_slice_flow_free(found->flow);
    *found = (states){0};
}

/* The parameter that a state is of by its name, "optimizer.exp_avg:up.weight"; NULL: it has none. */
static const char *named_parameter(const char *name)
{
    return lb_state_name_before(name) ? lb_state_name_parameter(name) : NULL;
}

static lb_status list_states(const lb_program_view *side, states *found, lb_err *err)
{
    const lb_program *program = side->program;
    LB_TRY(lb_slice_flow_new(program, &found->flow, err));
    LB_TRY(lb_owners_new(found->flow, NULL, &found->owners, err));
    found->list = malloc((program->n_ops + 1) * sizeof *found->list);
    if (!found->list) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the states of %u ops", program->n_ops);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t v = carried(program, i);
        const char *name = v == LB_NONE ? "" : lb_program_text(program, program->values[v].name),
                   *named = named_parameter(name);
        const char *parameter = v == LB_NONE ? "" : named ? named : *name ? "" : lb_owner_of_value(found->owners, v);
        if (!*parameter || strchr(parameter, ' ')) continue; /* "all parameters" have no state in common */
        state t = {i, parameter, named ? name : "", named ? (size_t)(named - name) : 0, 0, LB_NONE};
        for (uint32_t k = 0; k < found->n && !named; k++)
            t.place += !found->list[k].kind_length && !strcmp(found->list[k].parameter, parameter);
        found->list[found->n++] = t;
    }
    return LB_OK;
}

/* A's parameters go by the names of their partners. */
static const char *partners_name(const lb_program_view *a, const lb_program_view *b, const lb_alignment *al,
                                 const char *parameter)
{
    const lb_program *pa = a->program, *pb = b->program;
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        const uint32_t j = al->source_b_of_a[i];
        if (j == LB_NONE || !(pa->values[lb_op_results(pa, &pa->ops[i])[0]].flags & LB_VALUE_PARAMETER)) continue;
        if (!strcmp(lb_program_text(pa, pa->values[lb_op_results(pa, &pa->ops[i])[0]].name), parameter))
            return lb_program_text(pb, pb->values[lb_op_results(pb, &pb->ops[j])[0]].name);
    }
    return parameter;
}

static bool same_kind(const state *x, const state *y)
{
    return x->kind_length == y->kind_length && !strncmp(x->kind, y->kind, x->kind_length) && x->place == y->place;
}

/* `met`: per op of A, whether its storage met that of its partner. */
static void note_partners(const uint8_t *met, const lb_alignment *al, states *a, const states *b)
{
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t k = 0; k < b->n && met[a->list[i].op] && a->list[i].partner == LB_NONE; k++)
            if (al->source_b_of_a[a->list[i].op] == b->list[k].op) a->list[i].partner = k;
}

/* Did some of A's kind meet one of B's, and none of either any other? */
static bool are_of_one_kind(const states *a, const state *x, const states *b, const state *y)
{
    bool any = false;
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->list[i].partner == LB_NONE) continue;
        const bool first = same_kind(&a->list[i], x), second = same_kind(&b->list[a->list[i].partner], y);
        if (first != second) return false;
        any |= first;
    }
    return any;
}

static void pair_kinds(const lb_program_view *a, const lb_program_view *b, const states *sa, const states *sb,
                       lb_alignment *al)
{
    for (uint32_t i = 0; i < sa->n; i++)
        for (uint32_t k = 0; k < sb->n && is_lone(al, sa->list[i].op); k++) {
            const state *x = &sa->list[i], *y = &sb->list[k];
            if (strcmp(x->parameter, y->parameter) ||
                lb_program_view_part_of(a, x->op) != lb_program_view_part_of(b, y->op))
                continue;
            if (!are_of_one_kind(sa, x, sb, y)) continue;
            const uint32_t va = carried(a->program, x->op), vb = carried(b->program, y->op);
            pair(a, b, b->program->values[vb].storage, x->op, &a->program->values[va], al);
        }
}

static lb_status pair_by_kind(const lb_program_view *a, const lb_program_view *b, const uint8_t *met, lb_alignment *al,
                              lb_err *err)
{
    states sa = {0}, sb = {0};
    lb_status status = list_states(a, &sa, err);
    if (status == LB_OK) status = list_states(b, &sb, err);
    for (uint32_t i = 0; i < sa.n && status == LB_OK; i++)
        sa.list[i].parameter = partners_name(a, b, al, sa.list[i].parameter);
    if (status == LB_OK) note_partners(met, al, &sa, &sb), pair_kinds(a, b, &sa, &sb, al);
    release_states(&sa), release_states(&sb);
    return status;
}

static bool note_pairs(lb_met_storages *met, const lb_program_view *a, const lb_program_view *b, const uint8_t *lone,
                       bool swapped, const lb_alignment *al)
{
    for (uint32_t i = 0; i < a->program->n_ops; i++) {
        const uint32_t j = al->source_b_of_a[i];
        if (!lone[i] || j == LB_NONE) continue;
        const int64_t sa = storage_of(a->program, i, 0), sb = storage_of(b->program, j, 0);
        if (!note_in(&met->shared, &met->n_shared, swapped ? sb : sa, swapped ? sa : sb)) return false;
    }
    return true;
}

lb_status lb_met_storages_pair(lb_met_storages *met, const lb_program_view *a, const lb_program_view *b, bool swapped,
                               lb_alignment *al, lb_err *err)
{
    const lb_program *program = a->program;
    if (!met->n) return LB_OK;
    uint8_t *now = calloc(program->n_ops + 1, 1), *lone = calloc(program->n_ops + 1, 1);
    bool left = false, done = now && lone;
    for (uint32_t i = 0; done && i < program->n_ops; i++) {
        const uint32_t v = carried(program, i);
        if (v == LB_NONE || !is_lone(al, i)) continue;
        lone[i] = 1;
        for (uint32_t k = 0; k < met->n && !now[i]; k++)
            if (met->list[k][swapped] == program->values[v].storage)
                now[i] = pair(a, b, met->list[k][!swapped], i, &program->values[v], al);
        left |= !now[i];
    }
    lb_status status = done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", program->n_ops);
    if (status == LB_OK && left && !lb_program_views_are_uneven(a, b)) status = pair_by_kind(a, b, now, al, err);
    if (status == LB_OK && !note_pairs(met, a, b, lone, swapped, al))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", program->n_ops);
    free(now), free(lone);
    return status;
}

void lb_met_storages_release(lb_met_storages *met)
{
    free(met->list), free(met->shared);
    *met = (lb_met_storages){0};
}
