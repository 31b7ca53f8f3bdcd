/* Which parameters an op serves: see owner.h.
 *
 * Nodes are elements of ops. `from` is filled in order of execution (what a node is made of), `to` against it (where its result
 * goes); both are cut at storages that have one owner. Storages that come to be owned by these rules begin the next of at most three rounds.
 */
#include "owner.h"

#include "owner_sets.h"

#include <lastbit/array.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct text_of_set {
    uint32_t set;
    char *name, *module;
} text_of_set;

struct lb_owners {
    const lb_flow *flow;
    const lb_program *program;
    const char **names; /* of what can own; the sets' numbers */
    uint32_t n_names;
    lb_owner_sets sets;
    uint32_t *anchors;    /* per storage of the flow: set */
    uint32_t *first_node; /* per op, and one more */
    uint32_t *from, *to;  /* per node: sets */
    uint32_t *owner;      /* per node: set */
    uint32_t *whole;      /* per op: set */
    uint8_t *followed;    /* per op: flows are followed through it */
    uint32_t all;         /* the set of all parameters */
    text_of_set *texts;   /* of every set that some op has, ascending */
    uint32_t n_texts;
};

/* ---- who can own ------------------------------------------------------------------------------------------------ */

static bool is_name(const char *name)
{
    return *name && strcmp(name, "?") != 0;
}

/* Of "optimizer.exp_avg:NAME" the name. */
static const char *bare_name(const char *name)
{
    const char *colon = strncmp(name, "optimizer.", 10) ? NULL : strchr(name, ':');
    return colon ? colon + 1 : name;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static uint32_t row_of_name(const lb_owners *o, const char *name)
{
    const char **found = o->n_names ? bsearch(&name, o->names, o->n_names, sizeof *o->names, by_text) : NULL;
    return found ? (uint32_t)(found - o->names) : LB_NONE;
}

static bool add_name(lb_owners *o, const char *name)
{
    if (!is_name(name)) return true;
    const char **more = lb_array_grow(o->names, o->n_names, sizeof *more);
    if (!more) return false;
    o->names = more;
    o->names[o->n_names++] = name;
    return true;
}

/* The name that a value's storage has as a fixed point; NULL for other values. */
static const char *owner_in_recording(const lb_program *p, const lb_value *v)
{
    if (!(v->flags & (LB_VALUE_PARAMETER | LB_VALUE_GRADIENT | LB_VALUE_STATE)) || v->name == LB_NONE) return NULL;
    const char *name = bare_name(lb_program_text(p, v->name));
    return is_name(name) ? name : NULL;
}

/* Strings are interned: a name is looked at once, however many values have it. */
static bool collect_names(lb_owners *o, const lb_program *p)
{
    uint8_t *seen = calloc((size_t)p->n_strings + 1, 1);
    bool ok = seen != NULL;
    for (uint32_t k = 0; k < p->n_group_params && ok; k++)
        ok = add_name(o, lb_program_text(p, p->group_params[k].name));
    for (uint32_t v = 0; v < p->n_values && ok; v++) {
        const char *name = owner_in_recording(p, &p->values[v]);
        if (!name || seen[p->values[v].name]) continue;
        seen[p->values[v].name] = 1;
        ok = add_name(o, name);
    }
    free(seen);
    return ok;
}

static void sort_names(lb_owners *o)
{
    uint32_t n = 0;
    if (o->n_names) qsort(o->names, o->n_names, sizeof *o->names, by_text);
    for (uint32_t i = 0; i < o->n_names; i++)
        if (!n || strcmp(o->names[n - 1], o->names[i]) != 0) o->names[n++] = o->names[i];
    o->n_names = n;
}

static void anchor(lb_owners *o, int64_t storage, const char *name, bool *given)
{
    const uint32_t s = storage < 0 ? LB_NONE : lb_flow_storage(o->flow, storage), row = row_of_name(o, name);
    if (s == LB_NONE || row == LB_NONE) return;
    o->anchors[s] = lb_owner_set_join(&o->sets, o->anchors[s], lb_owner_set_of(&o->sets, row));
    if (given) given[s] = true;
}

/* A bucket of gradients is one storage of many: the groups name them all, a value's own name but one. */
static lb_status anchor_storages(lb_owners *o, const lb_program *const programs[2], lb_err *err)
{
    bool *given = calloc(o->flow->n_storages + 1, sizeof *given);
    if (!given) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (int n = 0; n < 2 && programs[n]; n++)
        for (uint32_t k = 0; k < programs[n]->n_group_params; k++) {
            const lb_group_param *param = &programs[n]->group_params[k];
            anchor(o, param->storage, lb_program_text(programs[n], param->name), given);
            anchor(o, param->gradient, lb_program_text(programs[n], param->name), given);
        }
    for (int n = 0; n < 2 && programs[n]; n++)
        for (uint32_t v = 0; v < programs[n]->n_values; v++) {
            const char *name = owner_in_recording(programs[n], &programs[n]->values[v]);
            const uint32_t s = name ? lb_flow_storage(o->flow, programs[n]->values[v].storage) : LB_NONE;
            if (s != LB_NONE && !given[s] && !o->anchors[s]) anchor(o, programs[n]->values[v].storage, name, NULL);
        }
    free(given);
    return LB_OK;
}

/* ---- elements --------------------------------------------------------------------------------------------------- */

static bool has_elements(const char *name)
{
    static const char *const words[] = {"aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strncmp(name, words[i], strlen(words[i]))) return true;
    return false;
}

/* A list of tensors: its length, 0 for any other arg. */
static uint32_t tensors_in(const lb_program *p, const lb_arg *arg)
{
    if (arg->tag != LB_ARG_LIST) return 0;
    for (uint32_t i = 0; i < arg->count; i++)
        if (p->args[arg->u.first + i].tag == LB_ARG_VALUE) return arg->count;
    return 0;
}

static uint32_t count_elements(const lb_program *p, const lb_op *op)
{
    uint32_t most = 1;
    if (!has_elements(lb_op_name(p, op))) return 1;
    for (uint32_t a = 0; a < op->args; a++) {
        const uint32_t n = tensors_in(p, &lb_op_args(p, op)[a]);
        if (n > most) most = n;
    }
    return most;
}

uint32_t lb_owner_elements(const lb_owners *o, uint32_t op)
{
    return o->first_node[op + 1] - o->first_node[op];
}

static bool same_place(const lb_program *p, uint32_t a, uint32_t b)
{
    const lb_value *x = &p->values[a], *y = &p->values[b];
    return a == b || (x->storage == y->storage && x->layout.offset == y->layout.offset);
}

/* Has one of the lists this value, or another version of it, at that place? */
static bool listed_at(const lb_program *p, const lb_op *op, uint32_t value, uint32_t element, uint32_t n)
{
    for (uint32_t a = 0; a < op->args; a++) {
        const lb_arg *arg = &lb_op_args(p, op)[a];
        if (tensors_in(p, arg) != n || p->args[arg->u.first + element].tag != LB_ARG_VALUE) continue;
        if (same_place(p, p->args[arg->u.first + element].u.value, value)) return true;
    }
    return false;
}

/* `guess` is tried first: lists are written in order. */
static uint32_t find_element(const lb_owners *o, uint32_t i, uint32_t value, uint32_t guess)
{
    const lb_program *p = o->program;
    const lb_op *op = &p->ops[i];
    const uint32_t n = lb_owner_elements(o, i);
    if (n == 1) return 0;
    if (op->results == n && guess < n && same_place(p, lb_op_results(p, op)[guess], value)) return guess;
    for (uint32_t r = 0; op->results == n && r < n; r++)
        if (lb_op_results(p, op)[r] != LB_NONE && same_place(p, lb_op_results(p, op)[r], value)) return r;
    if (listed_at(p, op, value, guess % n, n)) return guess % n;
    for (uint32_t e = 0; e < n; e++)
        if (listed_at(p, op, value, e, n)) return e;
    return LB_OWNER_WHOLE;
}

uint32_t lb_owner_element(const lb_owners *o, uint32_t op, uint32_t value)
{
    const uint32_t e = find_element(o, op, value, 0);
    return lb_owner_elements(o, op) == 1 ? LB_OWNER_WHOLE : e;
}

/* ---- flows ------------------------------------------------------------------------------------------------------ */

/* One thing to do with every value that an element reads. */
typedef struct reader {
    lb_owners *o;
    uint32_t op, element, node;
    void (*visit)(const struct reader *reader, uint32_t value);
} reader;

static void visit_value(void *context, uint32_t value)
{
    const reader *r = context;
    r->visit(r, value);
}

static void each_read(const reader *r)
{
    const lb_program *p = r->o->program;
    const lb_op *op = &p->ops[r->op];
    const uint32_t n = lb_owner_elements(r->o, r->op);
    if (n == 1) {
        lb_op_each_input(p, op, visit_value, (void *)r);
        return;
    }
    for (uint32_t a = 0; a < op->args; a++) {
        const lb_arg *arg = &lb_op_args(p, op)[a];
        const uint32_t count = tensors_in(p, arg);
        if (arg->tag == LB_ARG_VALUE) r->visit(r, arg->u.value);
        for (uint32_t k = count == n ? r->element : 0; k < (count == n ? r->element + 1 : count); k++)
            if (p->args[arg->u.first + k].tag == LB_ARG_VALUE) r->visit(r, p->args[arg->u.first + k].u.value);
    }
}

/* The nodes of op `def` that wrote what is read as `value`: one, or all. */
static void nodes_that_wrote(const lb_owners *o, uint32_t def, uint32_t value, uint32_t guess, uint32_t *first,
                             uint32_t *last)
{
    const uint32_t e = find_element(o, def, value, guess);
    *first = o->first_node[def] + (e == LB_OWNER_WHOLE ? 0 : e);
    *last = e == LB_OWNER_WHOLE ? o->first_node[def + 1] : *first + 1;
}

static bool has_one_owner(const lb_owners *o, uint32_t value)
{
    return lb_owner_set_count(&o->sets, o->anchors[o->flow->storage_of[value]]) == 1;
}

static void join(lb_owners *o, uint32_t *set, uint32_t more)
{
    *set = lb_owner_set_join(&o->sets, *set, more);
}

static void take_from(const reader *r, uint32_t value)
{
    lb_owners *o = r->o;
    uint32_t defs[16], *into = &o->from[r->node], n = 0;
    if (!has_one_owner(o, value)) n = lb_flow_defs_of(o->flow, r->op, value, defs, 16);
    bool inside = false;
    for (uint32_t d = 0; d < n && d < 16; d++) {
        uint32_t first, last;
        if (!o->followed[defs[d]]) continue;
        inside = true;
        nodes_that_wrote(o, defs[d], value, r->element, &first, &last);
        for (uint32_t k = first; k < last; k++) join(o, into, o->from[k]);
    }
    if (!inside) join(o, into, o->anchors[o->flow->storage_of[value]]);
}

static void give_to(const reader *r, uint32_t value)
{
    lb_owners *o = r->o;
    uint32_t defs[16];
    if (has_one_owner(o, value)) return;
    const uint32_t n = lb_flow_defs_of(o->flow, r->op, value, defs, 16);
    for (uint32_t d = 0; d < n && d < 16; d++) {
        uint32_t first, last;
        nodes_that_wrote(o, defs[d], value, r->element, &first, &last);
        for (uint32_t k = first; k < last; k++) join(o, &o->to[k], o->to[r->node]);
    }
}

/* Owners of what an op writes: `single` those of storages with one, else of the others. */
static void join_written(lb_owners *o, uint32_t i, bool single, uint32_t *sets)
{
    const lb_op *op = &o->program->ops[i];
    if (!lb_op_defines(o->program, op)) return;
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        const bool result = r < op->results;
        const uint32_t v = result ? lb_op_results(o->program, op)[r] : lb_op_written(o->program, op)[r - op->results];
        if (v == LB_NONE || has_one_owner(o, v) != single) continue;
        const uint32_t set = o->anchors[o->flow->storage_of[v]], n = lb_owner_elements(o, i);
        const uint32_t e = set ? find_element(o, i, v, result ? r : r - op->results) : 0;
        if (!set) continue;
        for (uint32_t k = e == LB_OWNER_WHOLE ? 0 : e; k < (e == LB_OWNER_WHOLE ? n : e + 1); k++)
            if (single || !sets[o->first_node[i] + k]) join(o, &sets[o->first_node[i] + k], set);
    }
}

static bool stands_outside(const lb_op *op)
{
    return op->phase == LB_PHASE_OPTIMIZER || op->phase == LB_PHASE_COMMUNICATION || !op->scope;
}

static void follow(lb_owners *o)
{
    const lb_program *p = o->program;
    memset(o->to, 0, o->first_node[p->n_ops] * sizeof *o->to);
    memset(o->from, 0, o->first_node[p->n_ops] * sizeof *o->from);
    for (uint32_t i = p->n_ops; i-- > 0;) {
        if (!stands_outside(&p->ops[i])) continue;
        bool flows = p->ops[i].phase == LB_PHASE_OPTIMIZER || p->ops[i].phase == LB_PHASE_COMMUNICATION;
        join_written(o, i, true, o->to);
        join_written(o, i, false, o->to);
        for (uint32_t k = o->first_node[i]; k < o->first_node[i + 1]; k++) {
            const reader r = {o, i, k - o->first_node[i], k, give_to};
            flows |= o->to[k] != 0;
            if (o->to[k]) each_read(&r);
        }
        o->followed[i] = flows;
    }
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t k = o->first_node[i]; o->followed[i] && k < o->first_node[i + 1]; k++) {
            const reader r = {o, i, k - o->first_node[i], k, take_from};
            each_read(&r);
        }
}

/* What a single op touches, where no flow is followed: what it writes, else what it reads, that has one owner. */
static void touch(const reader *r, uint32_t value)
{
    if (has_one_owner(r->o, value)) join(r->o, &r->o->owner[r->node], r->o->anchors[r->o->flow->storage_of[value]]);
}

static void touch_results(lb_owners *o, uint32_t i)
{
    const lb_op *op = &o->program->ops[i];
    for (uint32_t r = 0; r < op->results && op->flags & LB_OP_VIEW; r++) {
        const reader at = {o, i, 0, o->first_node[i], NULL};
        if (lb_op_results(o->program, op)[r] != LB_NONE) touch(&at, lb_op_results(o->program, op)[r]);
    }
    join_written(o, i, true, o->owner);
}

/* A view that ends in no fixed point is of whose contents it shows. */
static void take_shown(const reader *r, uint32_t value)
{
    lb_owners *o = r->o;
    uint32_t def, first, last;
    if (!lb_flow_defs_of(o->flow, r->op, value, &def, 1)) return;
    nodes_that_wrote(o, def, value, 0, &first, &last);
    for (uint32_t k = first; k < last; k++) join(o, &o->owner[r->node], o->owner[k]);
}

/* What left the tensors (a rate that became a Python number) comes back in the op that is called next. */
static void take_over_from_next(lb_owners *o)
{
    uint32_t next = 0;
    for (uint32_t i = o->program->n_ops; i-- > 0;) {
        uint32_t whole = 0;
        if (o->program->ops[i].phase != LB_PHASE_OPTIMIZER) continue;
        for (uint32_t k = o->first_node[i]; k < o->first_node[i + 1]; k++) {
            if (!o->owner[k]) o->owner[k] = next;
            join(o, &whole, o->owner[k]);
        }
        if (whole) next = whole;
    }
}

static void choose(lb_owners *o)
{
    for (uint32_t i = 0; i < o->program->n_ops; i++) {
        for (uint32_t k = o->first_node[i]; k < o->first_node[i + 1]; k++) {
            const uint32_t to = o->to[k], from = o->from[k];
            const reader r = {o, i, k - o->first_node[i], k, touch};
            o->owner[k] = 0;
            if (o->followed[i])
                o->owner[k] = to && (lb_owner_set_count(&o->sets, to) == 1 || lb_owner_set_count(&o->sets, from) != 1)
                                  ? to
                                  : from;
            if (!o->owner[k] && k == o->first_node[i]) touch_results(o, i);
            if (!o->owner[k]) each_read(&r);
            const reader shown = {o, i, 0, k, take_shown};
            if (!o->owner[k] && o->program->ops[i].flags & LB_OP_VIEW && stands_outside(&o->program->ops[i]))
                each_read(&shown);
        }
    }
}

/* ---- storages without a name ------------------------------------------------------------------------------------ */

/* Storages that came in from before and have no owner. */
static void mark_strangers(const lb_owners *o, bool *stranger)
{
    const lb_program *p = o->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!lb_op_is_source(p, &p->ops[i]) || !p->ops[i].results) continue;
        const lb_value *v = &p->values[lb_op_results(p, &p->ops[i])[0]];
        const uint32_t s = o->flow->storage_of[lb_op_results(p, &p->ops[i])[0]];
        stranger[s] = !o->anchors[s] && v->source != LB_SOURCE_BATCH && v->source != LB_SOURCE_RANDOM;
    }
}

/* Whose numbers the followed ops write there; true when some storage has an owner that it had not. */
static lb_status adopt(lb_owners *o, bool *any, lb_err *err)
{
    const lb_program *p = o->program;
    bool *stranger = calloc(o->flow->n_storages + 1, sizeof *stranger);
    uint32_t *sets = calloc(o->flow->n_storages + 1, sizeof *sets);
    *any = false;
    if (stranger && sets) mark_strangers(o, stranger);
    for (uint32_t i = 0; i < p->n_ops && stranger && sets; i++) {
        const lb_op *op = &p->ops[i];
        for (uint32_t w = 0; w < op->written; w++) {
            const uint32_t v = lb_op_written(p, op)[w];
            if (v == LB_NONE || !stranger[o->flow->storage_of[v]] || !stands_outside(op)) continue;
            uint32_t first, last;
            nodes_that_wrote(o, i, v, w, &first, &last);
            for (uint32_t k = first; k < last; k++) join(o, &sets[o->flow->storage_of[v]], o->owner[k]);
        }
    }
    for (uint32_t s = 0; s < o->flow->n_storages && stranger && sets; s++)
        if (sets[s]) o->anchors[s] = sets[s], *any = true;
    const bool ok = stranger && sets;
    free(stranger);
    free(sets);
    return ok && !o->sets.failed ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

/* ---- as text ---------------------------------------------------------------------------------------------------- */

static uint32_t set_of_params(lb_owners *o, const lb_program *p, const lb_group *group)
{
    uint32_t set = 0;
    for (uint32_t k = 0; k < group->params; k++) {
        const uint32_t row = row_of_name(o, lb_program_text(p, p->group_params[group->first_param + k].name));
        if (row != LB_NONE) join(o, &set, lb_owner_set_of(&o->sets, row));
    }
    return set;
}

/* What the optimizers step; where the recording knows of none, what is marked as a parameter. */
static uint32_t set_of_all(lb_owners *o)
{
    const lb_program *p = o->program;
    uint32_t set = 0;
    for (uint32_t g = 0; g < p->n_groups; g++) join(o, &set, set_of_params(o, p, &p->groups[g]));
    for (uint32_t v = 0; v < p->n_values && !p->n_groups; v++) {
        const char *name = p->values[v].flags & LB_VALUE_GRADIENT ? owner_in_recording(p, &p->values[v]) : NULL;
        if (name) join(o, &set, lb_owner_set_of(&o->sets, row_of_name(o, name)));
    }
    return set;
}

static size_t module_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

/* The innermost module that holds all of a set. */
static char *module_of_set(const lb_owners *o, uint32_t set)
{
    uint32_t i = lb_owner_set_next(&o->sets, set, 0);
    char *module = i == LB_NONE ? strdup("") : strndup(o->names[i], module_length(o->names[i]));
    while (module && i != LB_NONE && (i = lb_owner_set_next(&o->sets, set, i + 1)) != LB_NONE) {
        const size_t n = module_length(o->names[i]);
        size_t same = 0, whole = 0;
        for (;; same++) {
            const bool ends = !module[same], over = same == n;
            if ((ends || module[same] == '.') && (over || o->names[i][same] == '.')) whole = same;
            if (ends || over || module[same] != o->names[i][same]) break;
        }
        module[whole] = '\0';
    }
    return module;
}

static char *name_of_set(lb_owners *o, uint32_t set)
{
    const lb_program *p = o->program;
    const uint32_t n = lb_owner_set_count(&o->sets, set), first = lb_owner_set_next(&o->sets, set, 0);
    char text[400] = "";
    if (n == 1) snprintf(text, sizeof text, "%s", o->names[first]);
    if (n > 1 && set == o->all) snprintf(text, sizeof text, "all parameters");
    for (uint32_t g = 0; n > 1 && !*text && g < p->n_groups; g++)
        if (set_of_params(o, p, &p->groups[g]) == set)
            snprintf(text, sizeof text, "the parameters of group %u of %s", p->groups[g].index,
                     lb_program_text(p, p->groups[g].optimizer));
    if (n > 1 && !*text) snprintf(text, sizeof text, "%s and %u more", o->names[first], n - 1);
    return strdup(text);
}

static lb_status write_texts(lb_owners *o, lb_err *err)
{
    const uint32_t n = o->program->n_ops;
    uint8_t *seen = NULL;
    o->all = set_of_all(o);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = o->first_node[i]; k < o->first_node[i + 1]; k++) join(o, &o->whole[i], o->owner[k]);
    const uint32_t n_sets = o->sets.n;
    seen = calloc((size_t)n_sets + 1, 1);
    o->texts = calloc((size_t)n_sets + 1, sizeof *o->texts);
    if (!seen || !o->texts || o->sets.failed) {
        free(seen);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < n; i++) seen[o->whole[i]] = 1;
    for (uint32_t k = 0; k < o->first_node[n]; k++) seen[o->owner[k]] = 1;
    for (uint32_t s = 0; s < o->flow->n_storages; s++) seen[o->anchors[s]] = 1;
    bool ok = true;
    for (uint32_t s = 0; s < n_sets; s++)
        if (seen[s]) {
            o->texts[o->n_texts] = (text_of_set){s, name_of_set(o, s), module_of_set(o, s)};
            ok &= o->texts[o->n_texts].name && o->texts[o->n_texts].module;
            o->n_texts++;
        }
    free(seen);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

static int by_set(const void *a, const void *b)
{
    const uint32_t x = ((const text_of_set *)a)->set, y = ((const text_of_set *)b)->set;
    return x < y ? -1 : x > y;
}

static const text_of_set *text_of(const lb_owners *o, uint32_t set)
{
    const text_of_set key = {.set = set};
    return bsearch(&key, o->texts, o->n_texts, sizeof key, by_set);
}

/* ---- life-cycle ------------------------------------------------------------------------------------------------- */

static lb_status number_nodes(lb_owners *o, lb_err *err)
{
    const lb_program *p = o->program;
    o->first_node = malloc(((size_t)p->n_ops + 1) * sizeof *o->first_node);
    if (!o->first_node) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) o->first_node[i] = n, n += count_elements(p, &p->ops[i]);
    o->first_node[p->n_ops] = n;
    o->from = calloc((size_t)n + 1, sizeof *o->from);
    o->to = calloc((size_t)n + 1, sizeof *o->to);
    o->owner = calloc((size_t)n + 1, sizeof *o->owner);
    o->whole = calloc((size_t)p->n_ops + 1, sizeof *o->whole);
    o->followed = calloc((size_t)p->n_ops + 1, 1);
    o->anchors = calloc(o->flow->n_storages + 1, sizeof *o->anchors);
    return o->from && o->to && o->owner && o->whole && o->followed && o->anchors
               ? LB_OK
               : lb_fail(err, LB_ERR_NOMEM, "out of memory for the owners of %u ops", p->n_ops);
}

lb_status lb_owners_new(const lb_flow *flow, const lb_program *next, lb_owners **out, lb_err *err)
{
    const lb_program *const programs[2] = {flow->program, next};
    lb_owners *o = calloc(1, sizeof *o);
    *out = NULL;
    if (!o) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    o->flow = flow, o->program = flow->program;
    bool any = true;
    lb_status status = collect_names(o, flow->program) && (!next || collect_names(o, next))
                           ? LB_OK
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    sort_names(o);
    if (status == LB_OK) status = lb_owner_sets_init(&o->sets, o->n_names, err);
    if (status == LB_OK) status = number_nodes(o, err);
    if (status == LB_OK) status = anchor_storages(o, programs, err);
    for (int round = 0; round < 3 && any && status == LB_OK; round++) {
        follow(o);
        choose(o);
        status = adopt(o, &any, err);
    }
    if (status == LB_OK) take_over_from_next(o);
    if (status == LB_OK) status = write_texts(o, err);
    if (status == LB_OK)
        *out = o;
    else
        lb_owners_free(o);
    return status;
}

void lb_owners_free(lb_owners *o)
{
    if (!o) return;
    for (uint32_t i = 0; i < o->n_texts; i++) {
        free(o->texts[i].name);
        free(o->texts[i].module);
    }
    free(o->texts);
    lb_owner_sets_release(&o->sets);
    free(o->names);
    free(o->anchors);
    free(o->first_node);
    free(o->from);
    free(o->to);
    free(o->owner);
    free(o->whole);
    free(o->followed);
    free(o);
}

/* ---- questions -------------------------------------------------------------------------------------------------- */

static uint32_t set_at(const lb_owners *o, uint32_t op, uint32_t element)
{
    return element < lb_owner_elements(o, op) ? o->owner[o->first_node[op] + element] : o->whole[op];
}

const char *lb_owner_of(const lb_owners *o, uint32_t op, uint32_t element)
{
    return text_of(o, set_at(o, op, element))->name;
}

const char *lb_owner_module(const lb_owners *o, uint32_t op, uint32_t element)
{
    const lb_op *row = &o->program->ops[op];
    if (row->scope && row->phase != LB_PHASE_OPTIMIZER) return lb_op_layer(o->program, row);
    return text_of(o, set_at(o, op, element))->module;
}

uint32_t lb_owner_count(const lb_owners *o, uint32_t op, uint32_t element)
{
    return lb_owner_set_count(&o->sets, set_at(o, op, element));
}

const char *lb_owner_of_value(const lb_owners *o, uint32_t value)
{
    return text_of(o, o->anchors[o->flow->storage_of[value]])->name;
}
