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

static bool is_gather(const lb_program *p, const lb_op *op)
{
    const char *name = lb_op_name(p, op);
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

static bool copies_only(const lb_program *p, const lb_op *op)
{
    static const char *const names[] = {"aten::copy_",           "aten::_to_copy", "aten::clone", "aten::contiguous",
                                        "aten::detach",          "aten::cat",      "aten::slice", "aten::split",
                                        "aten::constant_pad_nd", "aten::flatten",  NULL};
    if (op->flags & LB_OP_VIEW) return true;
    for (const char *const *name = names; *name; name++)
        if (lb_program_name_extends(lb_op_name(p, op), *name)) return true;
    return false;
}

/* A rank's part of what is gathered: a parameter that reaches the gather by copies alone, and lies elsewhere. */
static void note_contribution(void *context, uint32_t value)
{
    copies *c = context;
    uint32_t defs[4];
    if (value == LB_NONE) return;
    const lb_value *v = &c->program->values[value];
    if (v->flags & LB_VALUE_PARAMETER && v->name != LB_NONE && collective_filling(c->list, v->storage) == LB_NONE)
        c->list->partition[v->name] = 1;
    const uint32_t n = lb_slice_flow_defs_of(c->flow, c->op, value, defs, 4);
    for (uint32_t k = 0; k < n && k < 4; k++) {
        bool known = !copies_only(c->program, &c->program->ops[defs[k]]);
        for (uint32_t i = 0; i < c->n; i++) known |= c->queue[i] == defs[k];
        if (!known && c->n < sizeof c->queue / sizeof *c->queue) c->queue[c->n++] = defs[k];
    }
}

static lb_status list_gathered(const lb_program *p, const lb_slice_flow *flow, replica_list *list, lb_err *err)
{
    list->partition = calloc(p->n_strings + 1, 1);
    list->wholes = malloc((p->n_refs + 1) * sizeof *list->wholes);
    if (!list->partition || !list->wholes) return lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    for (uint32_t i = 0; i < p->n_collectives; i++) {
        const lb_op *op = &p->ops[p->collectives[i].op];
        for (uint32_t k = 0; is_gather(p, op) && k < lb_op_outcomes(op); k++)
            if (lb_op_outcome(p, op, k) != LB_NONE)
                list->wholes[list->n_wholes++] = (gathered){p->values[lb_op_outcome(p, op, k)].storage, i};
    }
    for (uint32_t i = 0; i < p->n_collectives; i++) {
        if (!is_gather(p, &p->ops[p->collectives[i].op])) continue;
        copies c = {.program = p, .flow = flow, .list = list, .queue = {p->collectives[i].op}, .n = 1};
        for (uint32_t k = 0; k < c.n; k++) {
            c.op = c.queue[k];
            lb_op_each_input(p, &p->ops[c.op], note_contribution, &c);
        }
    }
    return LB_OK;
}

static lb_status list_replicas(const lb_program *p, replica_list *list, lb_err *err)
{
    lb_slice_flow *flow;
    lb_own_gradients own;
    *list = (replica_list){.group = LB_NONE};
    LB_TRY(lb_slice_flow_new(p, &flow, err));
    lb_status status = lb_own_gradients_find(p, flow, &own, err);
    if (status == LB_OK) {
        status = list_gathered(p, flow, list, err);
        if (status != LB_OK) lb_own_gradients_release(&own);
    }
    lb_slice_flow_free(flow);
    if (status != LB_OK) return status;
    list->rows = malloc((own.n + 1) * sizeof *list->rows);
    for (uint32_t i = 0; list->rows && i < own.n; i++) {
        const lb_own_gradient *g = &own.list[i];
        const bool whole = g->whole && g->collective != LB_NONE;
        if (g->collective != LB_NONE && !g->whole) list->scatters = true;
        if (whole && list->group != LB_NONE &&
            !lb_own_gradient_same_group(p, &p->collectives[list->group], p, &p->collectives[g->collective]))
            list->scatters = true; /* expert or tensor parallelism beside it: what has no gradient may be a shard */
        if (whole) list->group = g->collective;
        if (g->name == LB_NONE) continue;
        list->rows[list->n++] = (replica){lb_program_text(p, g->name), g->collective, whole ? g->collective : LB_NONE};
    }
    lb_own_gradients_release(&own);
    if (!list->rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parameters");
    qsort(list->rows, list->n, sizeof *list->rows, by_name);
    return LB_OK;
}

/* The collective whose members hold this tensor in common; LB_NONE. */
static uint32_t shared_by(const lb_program *p, const replica_list *list, const lb_value *v, lb_replica_kind kind)
{
    const char *name = lb_program_text(p, v->name);
    const replica wanted = {.name = lb_state_name_parameter(name)};
    const replica *found = bsearch(&wanted, list->rows, list->n, sizeof wanted, by_name);
    if (found) return found->group;
    return kind == LB_REPLICA_STATE || list->scatters || list->partition[v->name] ? LB_NONE : list->group;
}

static uint32_t reduced_by(const replica_list *list, const char *name)
{
    const replica wanted = {.name = name};
    const replica *found = bsearch(&wanted, list->rows, list->n, sizeof wanted, by_name);
    return found ? found->reduced : LB_NONE;
}

/* ---- versions ---------------------------------------------------------------------------------------------------- */

static lb_status add_version(check *c, const version *v)
{
    if (c->n_versions == c->room) {
        const uint32_t room = c->room ? c->room * 2 : 256;
        version *grown = realloc(c->versions, room * sizeof *grown);
        if (!grown) return lb_fail(c->err, LB_ERR_NOMEM, "out of memory for parameters");
        c->versions = grown, c->room = room;
    }
    c->versions[c->n_versions++] = *v;
    return LB_OK;
}

static bool kind_of(const lb_program *p, const lb_value *v, lb_replica_kind *kind)
{
    if (v->name == LB_NONE || v->flags & (LB_VALUE_UNDEFINED | LB_VALUE_GRADIENT) || lb_digest_is_none(v->logical))
        return false;
    if (v->flags & LB_VALUE_PARAMETER)
        *kind = LB_REPLICA_PARAMETER;
    else if (v->flags & LB_VALUE_STATE)
        *kind = lb_state_name_is(lb_program_text(p, v->name)) ? LB_REPLICA_STATE : LB_REPLICA_BUFFER;
    else
        return false;
    return true;
}

static bool says_part(const lb_program *p, uint32_t value)
{
    uint32_t n;
    return lb_program_shards_of(p, value, &n) && n == 1;
}

/* A window on part of a tensor says nothing of the whole: the sources and the writes that cover it do. */
static lb_status list_versions(check *c, uint32_t rank_row, const replica_list *list)
{
    const lb_program *p = c->programs[rank_row];
    const uint32_t first = c->n_versions;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        const bool source = lb_op_is_source(p, op);
        if (!source && !op->written) continue;
        const uint32_t n = source ? op->results : op->written;
        for (uint32_t r = 0; r < n; r++) {
            const uint32_t row = source ? lb_op_results(p, op)[r] : lb_op_written(p, op)[r];
            version v = {.rank_row = rank_row, .op = i, .order = c->n_versions - first, .class = LB_NONE};
            if (row == LB_NONE || !kind_of(p, &p->values[row], &v.kind)) continue;
            v.name = lb_program_text(p, p->values[row].name), v.digest = p->values[row].logical;
            v.value = row, v.group = says_part(p, row) ? LB_NONE : shared_by(p, list, &p->values[row], v.kind);
            /* A window on what a gather fills is the same on all its members when the next step begins, whatever its
             * gradient did. */
            if (v.group == LB_NONE && source && v.kind == LB_REPLICA_PARAMETER && !says_part(p, row))
                v.group = collective_filling(list, p->values[row].storage);
            if (v.kind == LB_REPLICA_PARAMETER) v.class = lb_held_copies_class(&c->copies, rank_row, v.name);
            v.reduced = reduced_by(list, v.name);
            if (v.group != LB_NONE || v.class != LB_NONE || says_part(p, row)) LB_TRY(add_version(c, &v));
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

static bool was_told(const check *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_told; i++)
        if (!strcmp(c->told[i], name)) return true;
    return false;
}

static bool same_ranks(const lb_unequal *u, const int32_t *ranks, uint32_t n)
{
    return u->n_ranks == n && !memcmp(u->ranks, ranks, n * sizeof *ranks);
}

static lb_status tell(check *c, lb_unequal *found)
{
    lb_replicas *out = c->out;
    if (c->n_told == c->room_told) {
        const uint32_t room = c->room_told ? c->room_told * 2 : 64;
        const char **grown = realloc(c->told, room * sizeof *grown);
        if (!grown) return lb_fail(c->err, LB_ERR_NOMEM, "out of memory for parameters");
        c->told = grown, c->room_told = room;
    }
    c->told[c->n_told++] = found->tensor;
    for (uint32_t i = 0; i < out->n; i++) {
        lb_unequal *u = &out->list[i];
        if (u->kind != found->kind || u->step != found->step || u->at_first != found->at_first ||
            (u->op == LB_NONE) != (found->op == LB_NONE) || !same_ranks(u, found->ranks, found->n_ranks))
            continue;
        u->count++;
        if (found->rank == u->rank && found->op != LB_NONE && found->op < u->op) {
            free(u->tensor);
            u->tensor = strdup(found->tensor), u->op = found->op;
        }
        return u->tensor ? LB_OK : lb_fail(c->err, LB_ERR_NOMEM, "out of memory for parameters");
    }
    lb_unequal *grown = realloc(out->list, (out->n + 1) * sizeof *grown);
    if (!grown) return lb_fail(c->err, LB_ERR_NOMEM, "out of memory for parameters");
    out->list = grown;
    lb_unequal *u = &out->list[out->n];
    *u = *found;
    u->tensor = strdup(found->tensor), u->ranks = malloc((found->n_ranks + 1) * sizeof *u->ranks);
    out->n++;
    if (!u->tensor || !u->ranks) return lb_fail(c->err, LB_ERR_NOMEM, "out of memory for parameters");
    memcpy(u->ranks, found->ranks, found->n_ranks * sizeof *u->ranks);
    return LB_OK;
}

/* One rank's versions of a tensor. */
typedef struct history {
    const version *v;
    uint32_t n, rank_row;
} history;

static lb_digest digest_at(const history *h, uint32_t at)
{
    return h->v[at < h->n ? at : h->n - 1].digest;
}

/* Of n histories those whose digest at `at` is not the most frequent one; all of them where it has no majority. */
static uint32_t outvoted(const history *h, uint32_t n, uint32_t at, bool *out)
{
    uint32_t best = 0, votes = 0, others = 0;
    for (uint32_t i = 0; i < n && 2 * votes <= n; i++) { /* more than half is most */
        uint32_t same = 0;
        for (uint32_t k = 0; k < n; k++) same += lb_digest_equal(digest_at(&h[i], at), digest_at(&h[k], at));
        if (same > votes) best = i, votes = same;
    }
    for (uint32_t i = 0; i < n; i++)
        others += out[i] = 2 * votes <= n || !lb_digest_equal(digest_at(&h[i], at), digest_at(&h[best], at));
    return votes == n ? 0 : others;
}

/* Where the histories part: at their last versions they differ, and from `at` on they do. */
static lb_status compare(check *c, const history *h, uint32_t n, const char *name)
{
    bool *out = calloc(n + 1, sizeof *out);
    int32_t *ranks = calloc(n + 1, sizeof *ranks);
    uint32_t longest = 0, at = 0, who = 0;
    lb_status status = out && ranks ? LB_OK : lb_fail(c->err, LB_ERR_NOMEM, "out of memory for parameters");
    for (uint32_t i = 0; i < n; i++)
        if (h[i].n > longest) longest = h[i].n;
    c->out->compared++;
    /* Bits that differ in between and agree at the end (a buffer that is broadcast) are no matter. */
    if (status == LB_OK && longest && outvoted(h, n, UINT32_MAX, out)) {
        while (at < longest && !outvoted(h, n, at, out)) at++;
        lb_unequal u = {.kind = h->v->kind,
                        .tensor = (char *)name,
                        .count = 1,
                        .step = c->at.step,
                        .op = LB_NONE,
                        .at_first = c->first && at == 0,
                        .ranks = ranks,
                        .members = n};
        for (uint32_t i = 0; i < n; i++) {
            if (!out[i]) continue;
            /* Of two the one that wrote more often is the likelier to have written what the other did not. */
            if (!u.n_ranks || h[i].n > h[who].n) who = i;
            ranks[u.n_ranks++] = c->at.ranks[h[i].rank_row];
        }
        u.rank = c->at.ranks[h[who].rank_row];
        if (at && at < h[who].n) u.op = h[who].v[at].op;
        status = tell(c, &u);
    }
    free(out);
    free(ranks);
    return status;
}

/* Whether both hold it in common with the same ranks. */
static bool in_group(const check *c, const version *a, const version *b)
{
    const lb_program *p = c->programs[a->rank_row], *q = c->programs[b->rank_row];
    if (a->group == LB_NONE || b->group == LB_NONE)
        return a->group == b->group && lb_shard_is_copy(p, a->value, q, b->value);
    return lb_own_gradient_same_group(p, &p->collectives[a->group], q, &q->collectives[b->group]);
}

/* Versions [from, to) are of one name: by groups of ranks that hold it in common. */
static lb_status compare_name(check *c, uint32_t from, uint32_t to)
{
    history *h = malloc((c->at.n_ranks + 1) * sizeof *h);
    bool *done = calloc(c->at.n_ranks + 1, sizeof *done);
    lb_status status = h && done ? LB_OK : lb_fail(c->err, LB_ERR_NOMEM, "out of memory for parameters");
    for (uint32_t i = from; i < to && status == LB_OK; i++) {
        uint32_t n = 0;
        const uint32_t lead = c->versions[i].rank_row;
        const version *v0 = &c->versions[i];
        const bool alone =
            v0->group == LB_NONE && !says_part(c->programs[lead], v0->value); /* a copy: compared by its class */
        if (done[lead] || alone) continue;
        for (uint32_t k = i; k < to; k++) {
            const version *v = &c->versions[k];
            if (done[v->rank_row] && !(n && h[n - 1].rank_row == v->rank_row)) continue;
            if (v->rank_row != lead && !in_group(c, &c->versions[i], v)) continue;
            if (!n || h[n - 1].rank_row != v->rank_row) h[n++] = (history){v, 0, v->rank_row};
            h[n - 1].n++, done[v->rank_row] = true;
        }
        if (n > 1 && !was_told(c, c->versions[i].name)) status = compare(c, h, n, h->v->name);
    }
    free(h);
    free(done);
    return status;
}

/* Is the gradient of a copy reduced over a group that all others are members of? */
static bool reduced_over_all(const check *c, const history *h, uint32_t n)
{
    const version *v = h->v;
    const lb_program *p = c->programs[v->rank_row];
    if (v->reduced == LB_NONE) return false;
    const lb_collective *group = &p->collectives[v->reduced];
    for (uint32_t i = 0; i < n; i++) {
        bool member = false;
        for (uint32_t k = 0; k < group->ranks; k++)
            member |= (int32_t)p->refs[group->first_rank + k] == c->at.ranks[h[i].rank_row];
        if (!member) return false;
    }
    return true;
}

/* On a device whose backward adds in any order, copies differ by rounding although nothing is wrong. */
static bool may_be_rounding(const check *c, const history *h, uint32_t n)
{
    double least = INFINITY, most = 0;
    bool device = false;
    for (uint32_t i = 0; i < n; i++) {
        const lb_program *p = c->programs[h[i].rank_row];
        const lb_value *v = &p->values[h[i].v[h[i].n - 1].value];
        if (v->statistics == LB_NONE) return true;
        const double squares = p->statistics[v->statistics].sum_squares;
        device |= v->device != 0;
        least = squares < least ? squares : least, most = squares > most ? squares : most;
    }
    return device && most - least <= 1e-5 * most;
}

/* "embed.weight (output.weight on rank 1)" where copies have names of their own. */
static const char *name_of(check *c, const history *h, uint32_t n)
{
    const history *other = NULL;
    for (uint32_t i = 1; i < n && !other; i++)
        if (strcmp(h[i].v->name, h->v->name)) other = &h[i];
    if (!other) return h->v->name;
    char **grown = realloc(c->joined, (c->n_joined + 1) * sizeof *grown), *text = NULL;
    if (!grown) return h->v->name;
    c->joined = grown;
    if (asprintf(&text, "%s (%s on rank %d)", h->v->name, other->v->name, c->at.ranks[other->rank_row]) < 0)
        return h->v->name;
    return c->joined[c->n_joined++] = text;
}

/* Versions [from, to) are of one class of copies. */
static lb_status compare_class(check *c, uint32_t from, uint32_t to)
{
    history *h = malloc((c->at.n_ranks + 1) * sizeof *h);
    uint32_t n = 0;
    lb_status status = h ? LB_OK : lb_fail(c->err, LB_ERR_NOMEM, "out of memory for parameters");
    for (uint32_t k = from; k < to && h; k++) {
        const version *v = &c->versions[k];
        if (!n || h[n - 1].rank_row != v->rank_row) h[n++] = (history){v, 0, v->rank_row};
        h[n - 1].n++;
    }
    if (h && n > 1 && !was_told(c, h->v->name) && !may_be_rounding(c, h, n)) {
        const uint32_t before = c->out->n;
        const char *name = name_of(c, h, n);
        if (!was_told(c, name)) status = compare(c, h, n, name);
        for (uint32_t i = before; i < c->out->n; i++)
            c->out->list[i].copies = true, c->out->list[i].unreduced = !reduced_over_all(c, h, n);
    }
    free(h);
    return status;
}

static lb_status compare_copies(check *c)
{
    lb_status status = LB_OK;
    if (c->n_versions) qsort(c->versions, c->n_versions, sizeof *c->versions, by_class);
    for (uint32_t from = 0, to; from < c->n_versions && status == LB_OK; from = to) {
        for (to = from + 1; to < c->n_versions && c->versions[to].class == c->versions[from].class;) to++;
        if (c->versions[from].class != LB_NONE) status = compare_class(c, from, to);
    }
    return status;
}

static lb_status check_step(check *c)
{
    lb_status status = LB_OK;
    c->n_versions = 0;
    for (uint32_t r = 0; r < c->at.n_ranks && status == LB_OK; r++) {
        replica_list list;
        c->programs[r] = NULL;
        if (lb_capture_program(c->at.capture, c->at.ranks[r], c->at.step, &c->programs[r], NULL) != LB_OK) continue;
        status = list_replicas(c->programs[r], &list, c->err);
        if (status == LB_OK) status = list_versions(c, r, &list);
        release_list(&list);
    }
    if (status != LB_OK || !c->n_versions) return status;
    qsort(c->versions, c->n_versions, sizeof *c->versions, by_tensor);
    for (uint32_t from = 0, to; from < c->n_versions && status == LB_OK; from = to) {
        for (to = from + 1; to < c->n_versions && !strcmp(c->versions[to].name, c->versions[from].name);) to++;
        status = compare_name(c, from, to);
    }
    return status == LB_OK ? compare_copies(c) : status;
}

static lb_status check_each(void *context)
{
    check *c = context;
    const lb_status status = check_step(c);
    c->first = false;
    return status;
}

lb_status lb_replicas_check(lb_capture *capture, lb_replicas *out, lb_err *err)
{
    check c = {.at = lb_rank_steps_of(capture), .out = out, .err = err, .first = true};
    *out = (lb_replicas){0};
    if (c.at.n_ranks < 2) return LB_OK;
    c.programs = calloc(c.at.n_ranks, sizeof *c.programs);
    if (!c.programs) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", c.at.n_ranks);
    lb_status status = lb_held_copies_find(capture, &c.copies, err);
    if (status == LB_OK) status = lb_rank_steps_each(&c.at, check_each, &c);
    for (uint32_t i = 0; i < c.n_joined; i++) free(c.joined[i]);
    lb_held_copies_release(&c.copies);
    free(c.programs), free(c.versions), free(c.told), free(c.joined);
    if (status != LB_OK) lb_replicas_release(out);
    return status;
}

void lb_replicas_release(lb_replicas *replicas)
{
    for (uint32_t i = 0; i < replicas->n; i++) free(replicas->list[i].tensor), free(replicas->list[i].ranks);
    free(replicas->list);
    *replicas = (lb_replicas){0};
}
