/* Tensors that replicas hold in common: see replicas.h. */
#define _GNU_SOURCE /* asprintf */
#include "failure/replicas.h"

#include "failure/held_copies.h"
#include "exchanges/rank_steps.h"

#include "failure/own_gradient.h"
#include "program/shard_cover.h"
#include "program/state_name.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One version of a named tensor on one rank, in one step: `at` 0 is what the step found, others what its ops wrote. */
typedef struct version {
    const char *name; /* as a whole: "optimizer.exp_avg:up.weight" */
    lb_replica_kind kind;
    uint32_t rank_row, at, op, order;
    uint32_t group;   /* collective; LB_NONE: the same part of a tensor, as its value says */
    uint32_t class;   /* of held_copies.h; LB_NONE */
    uint32_t reduced; /* collective that its gradient enters; LB_NONE */
    uint32_t value;
    lb_digest digest;
} version;

typedef struct check {
    lb_rank_steps at;
    const lb_program **programs; /* of the step at hand; NULL: that rank did not record it */
    version *versions;           /* of the step at hand */
    uint32_t n_versions, room;
    const char **told; /* names that were found unequal */
    uint32_t n_told, room_told;
    bool first;
    lb_held_copies copies;
    char **joined; /* names that stand for several */
    uint32_t n_joined;
    lb_replicas *out;
    lb_err *err;
} check;

/* ---- which tensors are replicas ---------------------------------------------------------------------------------- */

typedef struct replica {
    const char *name;
    uint32_t reduced; /* collective that its gradient enters */
    uint32_t group;   /* the same, where all of it is reduced; LB_NONE: not a replica */
} replica;

/* A storage that an all-gather filled: every member holds all of it. */
typedef struct gathered {
    int64_t storage;
    uint32_t collective;
} gathered;

typedef struct replica_list {
    replica *rows; /* by name */
    uint32_t n;
    gathered *wholes;
    uint32_t n_wholes;
    uint8_t *partition; /* per string: a parameter of that name is one rank's part of what is gathered */
    bool scatters;      /* some gradient is scattered, or reduced over part of the ranks' group */
    uint32_t group;     /* of the last whole gradient */
} replica_list;

static int by_name(const void *x, const void *y)
{
    return strcmp(((const replica *)x)->name, ((const replica *)y)->name);
}

static void release_list(replica_list *list)
{
    free(list->rows), free(list->wholes), free(list->partition);
}

static bool is_gather(const lb_program *program, const lb_op *op)
{
    const char *name = lb_op_name(program, op);
    return strstr(name, "allgather") || strstr(name, "all_gather");
}

static uint32_t collective_filling(const replica_list *list, int64_t storage)
{
    for (uint32_t i = 0; i < list->n_wholes; i++)
        if (list->wholes[i].storage == storage) return list->wholes[i].collective;
    return LB_NONE;
}

/* The ops that a collective's input was copied from, one copy behind the other. */
typedef struct copies {
    const lb_program *program;
    const lb_slice_flow *flow;
    replica_list *list;
    uint32_t op, queue[64], n;
} copies;

static bool copies_only(const lb_program *program, const lb_op *op)
{
    static const char *const names[] = {"aten::copy_",           "aten::_to_copy", "aten::clone", "aten::contiguous",
                                        "aten::detach",          "aten::cat",      "aten::slice", "aten::split",
                                        "aten::constant_pad_nd", "aten::flatten",  NULL};
    if (op->flags & LB_OP_VIEW) return true;
    for (const char *const *name = names; *name; name++)
        if (lb_program_name_extends(lb_op_name(program, op), *name)) return true;
    return false;
}

/* A rank's part of what is gathered: a parameter that reaches the gather by copies alone, and lies elsewhere. */
static void note_contribution(void *context, uint32_t value)
{
    copies *copies = context;
    uint32_t defs[4];
    if (value == LB_NONE) return;
    const lb_value *v = &copies->program->values[value];
    if (v->flags & LB_VALUE_PARAMETER && v->name != LB_NONE && collective_filling(copies->list, v->storage) == LB_NONE)
        copies->list->partition[v->name] = 1;
    const uint32_t n = lb_slice_flow_defs_of(copies->flow, copies->op, value, defs, 4);
    for (uint32_t k = 0; k < n && k < 4; k++) {
        bool known = !copies_only(copies->program, &copies->program->ops[defs[k]]);
        for (uint32_t i = 0; i < copies->n; i++) known |= copies->queue[i] == defs[k];
        if (!known && copies->n < sizeof copies->queue / sizeof *copies->queue) copies->queue[copies->n++] = defs[k];
    }
}

static lb_status list_gathered(const lb_program *program, const lb_slice_flow *flow, replica_list *list, lb_err *err)
{
    list->partition = calloc(program->n_strings + 1, 1);
    list->wholes = malloc((program->n_refs + 1) * sizeof *list->wholes);
    if (!list->partition || !list->wholes) return lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    for (uint32_t i = 0; i < program->n_collectives; i++) {
        const lb_op *op = &program->ops[program->collectives[i].op];
        for (uint32_t k = 0; is_gather(program, op) && k < lb_op_outcomes(op); k++)
            if (lb_op_outcome(program, op, k) != LB_NONE)
                list->wholes[list->n_wholes++] = (gathered){program->values[lb_op_outcome(program, op, k)].storage, i};
    }
    for (uint32_t i = 0; i < program->n_collectives; i++) {
        if (!is_gather(program, &program->ops[program->collectives[i].op])) continue;
        copies copies = {.program = program, .flow = flow, .list = list, .queue = {program->collectives[i].op}, .n = 1};
        for (uint32_t k = 0; k < copies.n; k++) {
            copies.op = copies.queue[k];
            lb_op_each_input(program, &program->ops[copies.op], note_contribution, &copies);
        }
    }
    return LB_OK;
}

static lb_status list_replicas(const lb_program *program, replica_list *list, lb_err *err)
{
    lb_slice_flow *flow;
    lb_own_gradients own;
    *list = (replica_list){.group = LB_NONE};
    LB_TRY(lb_slice_flow_new(program, &flow, err));
    lb_status status = lb_own_gradients_find(program, flow, &own, err);
    if (status == LB_OK) {
        status = list_gathered(program, flow, list, err);
        if (status != LB_OK) lb_own_gradients_release(&own);
    }
    lb_slice_flow_free(flow);
    if (status != LB_OK) return status;
    list->rows = malloc((own.n + 1) * sizeof *list->rows);
    for (uint32_t i = 0; list->rows && i < own.n; i++) {
        const lb_own_gradient *gradient = &own.list[i];
        const bool whole = gradient->whole && gradient->collective != LB_NONE;
        if (gradient->collective != LB_NONE && !gradient->whole) list->scatters = true;
        if (whole && list->group != LB_NONE &&
            !lb_own_gradient_same_group(program, &program->collectives[list->group], program,
                                        &program->collectives[gradient->collective]))
            list->scatters = true; /* expert or tensor parallelism beside it: what has no gradient may be a shard */
        if (whole) list->group = gradient->collective;
        if (gradient->name == LB_NONE) continue;
        list->rows[list->n++] = (replica){lb_program_text(program, gradient->name), gradient->collective,
                                          whole ? gradient->collective : LB_NONE};
    }
    lb_own_gradients_release(&own);
    if (!list->rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parameters");
    qsort(list->rows, list->n, sizeof *list->rows, by_name);
    return LB_OK;
}

/* The collective whose members hold this tensor in common; LB_NONE. */
static uint32_t shared_by(const lb_program *program, const replica_list *list, const lb_value *value,
                          lb_replica_kind kind)
{
    const char *name = lb_program_text(program, value->name);
    const replica wanted = {.name = lb_state_name_parameter(name)};
    const replica *found = bsearch(&wanted, list->rows, list->n, sizeof wanted, by_name);
    if (found) return found->group;
    return kind == LB_REPLICA_STATE || list->scatters || list->partition[value->name] ? LB_NONE : list->group;
}

static uint32_t reduced_by(const replica_list *list, const char *name)
{
    const replica wanted = {.name = name};
    const replica *found = bsearch(&wanted, list->rows, list->n, sizeof wanted, by_name);
    return found ? found->reduced : LB_NONE;
}

/* ---- versions ---------------------------------------------------------------------------------------------------- */

static lb_status add_version(check *check, const version *v)
{
    if (check->n_versions == check->room) {
        const uint32_t room = check->room ? check->room * 2 : 256;
        version *grown = realloc(check->versions, room * sizeof *grown);
        if (!grown) return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for parameters");
        check->versions = grown, check->room = room;
    }
    check->versions[check->n_versions++] = *v;
    return LB_OK;
}

static bool kind_of(const lb_program *program, const lb_value *value, lb_replica_kind *kind)
{
    if (value->name == LB_NONE || value->flags & (LB_VALUE_UNDEFINED | LB_VALUE_GRADIENT) ||
        lb_digest_is_none(value->logical))
        return false;
    if (value->flags & LB_VALUE_PARAMETER)
        *kind = LB_REPLICA_PARAMETER;
    else if (value->flags & LB_VALUE_STATE)
        *kind = lb_state_name_is(lb_program_text(program, value->name)) ? LB_REPLICA_STATE : LB_REPLICA_BUFFER;
    else
        return false;
    return true;
}

static bool says_part(const lb_program *program, uint32_t value)
{
    uint32_t n;
    return lb_program_shards_of(program, value, &n) && n == 1;
}

/* A window on part of a tensor says nothing of the whole: the sources and the writes that cover it do. */
static lb_status list_versions(check *check, uint32_t rank_row, const replica_list *list)
{
    const lb_program *program = check->programs[rank_row];
    const uint32_t first = check->n_versions;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        const bool source = lb_op_is_source(program, op);
        if (!source && !op->written) continue;
        const uint32_t n = source ? op->results : op->written;
        for (uint32_t r = 0; r < n; r++) {
            const uint32_t row = source ? lb_op_results(program, op)[r] : lb_op_written(program, op)[r];
            version version = {.rank_row = rank_row, .op = i, .order = check->n_versions - first, .class = LB_NONE};
            if (row == LB_NONE || !kind_of(program, &program->values[row], &version.kind)) continue;
            version.name = lb_program_text(program, program->values[row].name),
            version.digest = program->values[row].logical;
            version.value = row, version.group = says_part(program, row)
                                                     ? LB_NONE
                                                     : shared_by(program, list, &program->values[row], version.kind);
            /* A window on what a gather fills is the same on all its members when the next step begins, whatever its
             * gradient did. */
            if (version.group == LB_NONE && source && version.kind == LB_REPLICA_PARAMETER && !says_part(program, row))
                version.group = collective_filling(list, program->values[row].storage);
            if (version.kind == LB_REPLICA_PARAMETER)
                version.class = lb_held_copies_class(&check->copies, rank_row, version.name);
            version.reduced = reduced_by(list, version.name);
            if (version.group != LB_NONE || version.class != LB_NONE || says_part(program, row))
                LB_TRY(add_version(check, &version));
        }
    }
    return LB_OK;
}

static int by_class(const void *x, const void *y)
{
    const version *a = x, *b = y;
    if (a->class != b->class) return a->class < b->class ? -1 : 1;
    if (a->rank_row != b->rank_row) return a->rank_row < b->rank_row ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static int by_tensor(const void *x, const void *y)
{
    const version *a = x, *b = y;
    const int names = strcmp(a->name, b->name);
    if (names) return names;
    if (a->rank_row != b->rank_row) return a->rank_row < b->rank_row ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

/* ---- the comparison ---------------------------------------------------------------------------------------------- */

static bool was_told(const check *check, const char *name)
{
    for (uint32_t i = 0; i < check->n_told; i++)
        if (!strcmp(check->told[i], name)) return true;
    return false;
}

static bool same_ranks(const lb_unequal *unequal, const int32_t *ranks, uint32_t n)
{
    return unequal->n_ranks == n && !memcmp(unequal->ranks, ranks, n * sizeof *ranks);
}

static lb_status tell(check *check, lb_unequal *found)
{
    lb_replicas *out = check->out;
    if (check->n_told == check->room_told) {
        const uint32_t room = check->room_told ? check->room_told * 2 : 64;
        const char **grown = realloc(check->told, room * sizeof *grown);
        if (!grown) return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for parameters");
        check->told = grown, check->room_told = room;
    }
    check->told[check->n_told++] = found->tensor;
    for (uint32_t i = 0; i < out->n; i++) {
        lb_unequal *unequal = &out->list[i];
        if (unequal->kind != found->kind || unequal->step != found->step || unequal->at_first != found->at_first ||
            (unequal->op == LB_NONE) != (found->op == LB_NONE) || !same_ranks(unequal, found->ranks, found->n_ranks))
            continue;
        unequal->count++;
        if (found->rank == unequal->rank && found->op != LB_NONE && found->op < unequal->op) {
            free(unequal->tensor);
            unequal->tensor = strdup(found->tensor), unequal->op = found->op;
        }
        return unequal->tensor ? LB_OK : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for parameters");
    }
    lb_unequal *grown = realloc(out->list, (out->n + 1) * sizeof *grown);
    if (!grown) return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for parameters");
    out->list = grown;
    lb_unequal *unequal = &out->list[out->n];
    *unequal = *found;
    unequal->tensor = strdup(found->tensor), unequal->ranks = malloc((found->n_ranks + 1) * sizeof *unequal->ranks);
    out->n++;
    if (!unequal->tensor || !unequal->ranks) return lb_fail(check->err, LB_ERR_NOMEM, "out of memory for parameters");
    memcpy(unequal->ranks, found->ranks, found->n_ranks * sizeof *unequal->ranks);
    return LB_OK;
}

/* One rank's versions of a tensor. */
typedef struct history {
    const version *version;
    uint32_t n, rank_row;
} history;

static lb_digest digest_at(const history *history, uint32_t at)
{
    return history->version[at < history->n ? at : history->n - 1].digest;
}

/* Of n histories those whose digest at `at` is not the most frequent one; all of them where it has no majority. */
static uint32_t outvoted(const history *history, uint32_t n, uint32_t at, bool *out)
{
    uint32_t best = 0, votes = 0, others = 0;
    for (uint32_t i = 0; i < n && 2 * votes <= n; i++) { /* more than half is most */
        uint32_t same = 0;
        for (uint32_t k = 0; k < n; k++)
            same += lb_digest_equal(digest_at(&history[i], at), digest_at(&history[k], at));
        if (same > votes) best = i, votes = same;
    }
    for (uint32_t i = 0; i < n; i++)
        others += out[i] =
            2 * votes <= n || !lb_digest_equal(digest_at(&history[i], at), digest_at(&history[best], at));
    return votes == n ? 0 : others;
}

/* Where the histories part: at their last versions they differ, and from `at` on they do. */
static lb_status compare(check *check, const history *history, uint32_t n, const char *name)
{
    bool *out = calloc(n + 1, sizeof *out);
    int32_t *ranks = calloc(n + 1, sizeof *ranks);
    uint32_t longest = 0, at = 0, who = 0;
    lb_status status = out && ranks ? LB_OK : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for parameters");
    for (uint32_t i = 0; i < n; i++)
        if (history[i].n > longest) longest = history[i].n;
    check->out->compared++;
    /* Bits that differ in between and agree at the end (a buffer that is broadcast) are no matter. */
    if (status == LB_OK && longest && outvoted(history, n, UINT32_MAX, out)) {
        while (at < longest && !outvoted(history, n, at, out)) at++;
        lb_unequal unequal = {.kind = history->version->kind,
                              .tensor = (char *)name,
                              .count = 1,
                              .step = check->at.step,
                              .op = LB_NONE,
                              .at_first = check->first && at == 0,
                              .ranks = ranks,
                              .members = n};
        for (uint32_t i = 0; i < n; i++) {
            if (!out[i]) continue;
            /* Of two the one that wrote more often is the likelier to have written what the other did not. */
            if (!unequal.n_ranks || history[i].n > history[who].n) who = i;
            ranks[unequal.n_ranks++] = check->at.ranks[history[i].rank_row];
        }
        unequal.rank = check->at.ranks[history[who].rank_row];
        if (at && at < history[who].n) unequal.op = history[who].version[at].op;
        status = tell(check, &unequal);
    }
    free(out);
    free(ranks);
    return status;
}

/* Whether both hold it in common with the same ranks. */
static bool in_group(const check *check, const version *a, const version *b)
{
    const lb_program *p = check->programs[a->rank_row], *q = check->programs[b->rank_row];
    if (a->group == LB_NONE || b->group == LB_NONE)
        return a->group == b->group && lb_shard_is_copy(p, a->value, q, b->value);
    return lb_own_gradient_same_group(p, &p->collectives[a->group], q, &q->collectives[b->group]);
}

/* Versions [from, to) are of one name: by groups of ranks that hold it in common. */
static lb_status compare_name(check *check, uint32_t from, uint32_t to)
{
    history *histories = malloc((check->at.n_ranks + 1) * sizeof *histories);
    bool *done = calloc(check->at.n_ranks + 1, sizeof *done);
    lb_status status = histories && done ? LB_OK : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for parameters");
    for (uint32_t i = from; i < to && status == LB_OK; i++) {
        uint32_t n = 0;
        const uint32_t lead = check->versions[i].rank_row;
        const version *v0 = &check->versions[i];
        const bool alone =
            v0->group == LB_NONE && !says_part(check->programs[lead], v0->value); /* a copy: compared by its class */
        if (done[lead] || alone) continue;
        for (uint32_t k = i; k < to; k++) {
            const version *v = &check->versions[k];
            if (done[v->rank_row] && !(n && histories[n - 1].rank_row == v->rank_row)) continue;
            if (v->rank_row != lead && !in_group(check, &check->versions[i], v)) continue;
            if (!n || histories[n - 1].rank_row != v->rank_row) histories[n++] = (history){v, 0, v->rank_row};
            histories[n - 1].n++, done[v->rank_row] = true;
        }
        if (n > 1 && !was_told(check, check->versions[i].name))
            status = compare(check, histories, n, histories->version->name);
    }
    free(histories);
    free(done);
    return status;
}

/* Is the gradient of a copy reduced over a group that all others are members of? */
static bool reduced_over_all(const check *check, const history *history, uint32_t n)
{
    const version *version = history->version;
    const lb_program *program = check->programs[version->rank_row];
    if (version->reduced == LB_NONE) return false;
    const lb_collective *group = &program->collectives[version->reduced];
    for (uint32_t i = 0; i < n; i++) {
        bool member = false;
        for (uint32_t k = 0; k < group->ranks; k++)
            member |= (int32_t)program->refs[group->first_rank + k] == check->at.ranks[history[i].rank_row];
        if (!member) return false;
    }
    return true;
}

/* On a device whose backward adds in any order, copies differ by rounding although nothing is wrong. */
static bool may_be_rounding(const check *check, const history *history, uint32_t n)
{
    double least = INFINITY, most = 0;
    bool device = false;
    for (uint32_t i = 0; i < n; i++) {
        const lb_program *program = check->programs[history[i].rank_row];
        const lb_value *value = &program->values[history[i].version[history[i].n - 1].value];
        if (value->statistics == LB_NONE) return true;
        const double squares = program->statistics[value->statistics].sum_squares;
        device |= value->device != 0;
        least = squares < least ? squares : least, most = squares > most ? squares : most;
    }
    return device && most - least <= 1e-5 * most;
}

/* "embed.weight (output.weight on rank 1)" where copies have names of their own. */
static const char *name_of(check *check, const history *histories, uint32_t n)
{
    const history *other = NULL;
    for (uint32_t i = 1; i < n && !other; i++)
        if (strcmp(histories[i].version->name, histories->version->name)) other = &histories[i];
    if (!other) return histories->version->name;
    char **grown = realloc(check->joined, (check->n_joined + 1) * sizeof *grown), *text = NULL;
    if (!grown) return histories->version->name;
    check->joined = grown;
    if (asprintf(&text, "%s (%s on rank %d)", histories->version->name, other->version->name,
                 check->at.ranks[other->rank_row]) < 0)
        return histories->version->name;
    return check->joined[check->n_joined++] = text;
}

/* Versions [from, to) are of one class of copies. */
static lb_status compare_class(check *check, uint32_t from, uint32_t to)
{
    history *histories = malloc((check->at.n_ranks + 1) * sizeof *histories);
    uint32_t n = 0;
    lb_status status = histories ? LB_OK : lb_fail(check->err, LB_ERR_NOMEM, "out of memory for parameters");
    for (uint32_t k = from; k < to && histories; k++) {
        const version *version = &check->versions[k];
        if (!n || histories[n - 1].rank_row != version->rank_row)
            histories[n++] = (history){version, 0, version->rank_row};
        histories[n - 1].n++;
    }
    if (histories && n > 1 && !was_told(check, histories->version->name) && !may_be_rounding(check, histories, n)) {
        const uint32_t before = check->out->n;
        const char *name = name_of(check, histories, n);
        if (!was_told(check, name)) status = compare(check, histories, n, name);
        for (uint32_t i = before; i < check->out->n; i++)
            check->out->list[i].copies = true, check->out->list[i].unreduced = !reduced_over_all(check, histories, n);
    }
    free(histories);
    return status;
}

static lb_status compare_copies(check *check)
{
    lb_status status = LB_OK;
    if (check->n_versions) qsort(check->versions, check->n_versions, sizeof *check->versions, by_class);
    for (uint32_t from = 0, to; from < check->n_versions && status == LB_OK; from = to) {
        for (to = from + 1; to < check->n_versions && check->versions[to].class == check->versions[from].class;) to++;
        if (check->versions[from].class != LB_NONE) status = compare_class(check, from, to);
    }
    return status;
}

static lb_status check_step(check *check)
{
    lb_status status = LB_OK;
    check->n_versions = 0;
    for (uint32_t r = 0; r < check->at.n_ranks && status == LB_OK; r++) {
        replica_list list;
        check->programs[r] = NULL;
        if (lb_capture_program(check->at.capture, check->at.ranks[r], check->at.step, &check->programs[r], NULL) !=
            LB_OK)
            continue;
        status = list_replicas(check->programs[r], &list, check->err);
        if (status == LB_OK) status = list_versions(check, r, &list);
        release_list(&list);
    }
    if (status != LB_OK || !check->n_versions) return status;
    qsort(check->versions, check->n_versions, sizeof *check->versions, by_tensor);
    for (uint32_t from = 0, to; from < check->n_versions && status == LB_OK; from = to) {
        for (to = from + 1; to < check->n_versions && !strcmp(check->versions[to].name, check->versions[from].name);)
            to++;
        status = compare_name(check, from, to);
    }
    return status == LB_OK ? compare_copies(check) : status;
}

static lb_status check_each(void *context)
{
    check *check = context;
    const lb_status status = check_step(check);
    check->first = false;
    return status;
}

lb_status lb_replicas_check(lb_capture *capture, lb_replicas *replicas, lb_err *err)
{
    check check = {.at = lb_rank_steps_of(capture), .out = replicas, .err = err, .first = true};
    *replicas = (lb_replicas){0};
    if (check.at.n_ranks < 2) return LB_OK;
    check.programs = calloc(check.at.n_ranks, sizeof *check.programs);
    if (!check.programs) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", check.at.n_ranks);
    lb_status status = lb_held_copies_find(capture, &check.copies, err);
    if (status == LB_OK) status = lb_rank_steps_each(&check.at, check_each, &check);
    for (uint32_t i = 0; i < check.n_joined; i++) free(check.joined[i]);
    lb_held_copies_release(&check.copies);
    free(check.programs), free(check.versions), free(check.told), free(check.joined);
    if (status != LB_OK) lb_replicas_release(replicas);
    return status;
}

void lb_replicas_release(lb_replicas *replicas)
{
    for (uint32_t i = 0; i < replicas->n; i++) free(replicas->list[i].tensor), free(replicas->list[i].ranks);
    free(replicas->list);
    *replicas = (lb_replicas){0};
}
