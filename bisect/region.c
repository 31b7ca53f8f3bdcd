/* Regions: see region.h.
 *
 * A region must hold both ends of what it changes: a narrow value is written by one op and read by another, and at the
 * region's border values are rounded as they were. So sites are whole layers, then all ops that touch, not casts alone.
 */
#include "region.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct narrowing {
    lb_inquiry *q;
    const lb_region *region;
    int64_t step;
    bool kinds;      /* the ops of rows stand for all of their name, layer and phase */
    char later[512]; /* steps after it that the cure needs, changed whole beside what is tried in it */
    lb_err *err;
} narrowing;

bool lb_region_exists(const lb_inquiry *q, const lb_region *region)
{
    for (uint32_t s = 0; s < q->n_steps; s++) {
        const lb_program *p = lb_inquiry_program(q, q->failure.rank, q->steps[s]);
        for (uint32_t i = 0; p && i < p->n_ops; i++)
            if (region->touches(p, &p->ops[i])) return true;
    }
    return false;
}

static lb_status add_later(const narrowing *n, lb_sites *sites)
{
    lb_site_form form = {n->region->kind, n->region->argument, "step=", "", ','};
    return *n->later ? lb_sites_add(sites, &form, n->later, n->err) : LB_OK;
}

/* One site per layer that can take the change, in order of execution; ops outside every module go by phase. */
static lb_status list_layers(const narrowing *n, const lb_program *p, lb_sites *sites, uint32_t *scopes,
                             uint8_t *seen)
{
    char inside[64], outside[64], pattern[320];
    snprintf(inside, sizeof inside, "step=%" PRId64 "&^(?:", n->step);
    snprintf(outside, sizeof outside, "step=%" PRId64 "&^/&phase=", n->step);
    lb_site_form in_layer = {n->region->kind, n->region->argument, inside, ")/", '|'};
    lb_site_form in_phase = {n->region->kind, n->region->argument, outside, "", ','};
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        uint32_t slot = op->scope ? op->scope : p->n_scopes + op->phase;
        if (seen[slot] || !n->region->touches(p, op)) continue;
        seen[slot] = 1;
        scopes[sites->n] = op->scope;
        lb_escape(lb_op_layer(p, op), pattern, sizeof pattern);
        if (op->scope)
            LB_TRY(lb_sites_add(sites, &in_layer, pattern, n->err));
        else
            LB_TRY(lb_sites_add(sites, &in_phase, lb_phase_name((lb_phase)op->phase), n->err));
    }
    lb_sites_name(sites, "layers of step %" PRId64 " %s", n->step, n->region->how);
    return LB_OK;
}

static bool in_scopes(const lb_op *op, const uint32_t *scopes, uint32_t n_scopes)
{
    for (uint32_t k = 0; k < n_scopes; k++)
        if (op->scope == scopes[k]) return true;
    return false;
}

/* One site per op of these layers that can take the change; site k is op rows[k]. */
static lb_status list_single_ops(const narrowing *n, const lb_program *p, const uint32_t *scopes,
                                 uint32_t n_scopes, lb_sites *sites, uint32_t *rows)
{
    char before[64], body[16];
    snprintf(before, sizeof before, "step=%" PRId64 "&index=", n->step);
    lb_site_form form = {n->region->kind, n->region->argument, before, "", ','};
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!in_scopes(&p->ops[i], scopes, n_scopes) || !n->region->touches(p, &p->ops[i])) continue;
        rows[sites->n] = i;
        snprintf(body, sizeof body, "%u", i);
        LB_TRY(lb_sites_add(sites, &form, body, n->err));
    }
    return LB_OK;
}

/* One site per op name in a layer and phase; site k is all of the kind of rows[k], which is its first. An optimizer that does
 * the same to each of hundreds of parameters is one culprit, not hundreds. */
static lb_status list_op_kinds(const narrowing *n, const lb_program *p, const uint32_t *scopes,
                               uint32_t n_scopes, lb_sites *sites, uint32_t *rows)
{
    char before[64], layer[320], name[160], body[512], after[40];
    snprintf(before, sizeof before, "step=%" PRId64 "&", n->step);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        bool known = !in_scopes(op, scopes, n_scopes) || !n->region->touches(p, op);
        for (uint32_t k = 0; k < sites->n && !known; k++) {
            const lb_op *first = &p->ops[rows[k]];
            known = first->scope == op->scope && first->phase == op->phase && first->name == op->name;
        }
        if (known) continue;
        rows[sites->n] = i;
        lb_escape(lb_op_layer(p, op), layer, sizeof layer);
        lb_escape(lb_op_name(p, op), name, sizeof name);
        snprintf(body, sizeof body, "^%s/%s$", layer, name);
        snprintf(after, sizeof after, "&phase=%s", lb_phase_name((lb_phase)op->phase));
        lb_site_form form = {n->region->kind, n->region->argument, before, after, '|'};
        LB_TRY(lb_sites_add(sites, &form, body, n->err));
    }
    return LB_OK;
}

static lb_status list_ops(narrowing *n, const lb_program *p, const uint32_t *scopes, uint32_t n_scopes,
                          lb_sites *sites, uint32_t *rows)
{
    enum { MANY = 64 };
    LB_TRY(list_single_ops(n, p, scopes, n_scopes, sites, rows));
    n->kinds = sites->n > MANY;
    if (n->kinds) {
        lb_sites_release(sites);
        LB_TRY(list_op_kinds(n, p, scopes, n_scopes, sites, rows));
    }
    lb_sites_name(sites, "%sops of %s%s %s", n->kinds ? "kinds of " : "",
                  n_scopes == 1 ? lb_program_text(p, p->scopes[scopes[0]].path) : "these layers",
                  n_scopes == 1 && !scopes[0] ? "no layer" : "", n->region->how);
    return LB_OK;
}

/* Does op j read what op i gives, or is it i's backward? An autograd node has the sequence number that was the next to be given
 * when its forward op ran. */
static bool belong(const lb_flow *flow, uint32_t i, uint32_t j)
{
    const lb_op *a = &flow->program->ops[i], *b = &flow->program->ops[j];
    if (a->phase == LB_PHASE_FORWARD && b->phase == LB_PHASE_BACKWARD && b->node >= 0 && a->node == b->node + 1)
        return true;
    for (uint32_t e = flow->first_def[j]; e < flow->first_def[j + 1]; e++)
        if (flow->defs[e] == i) return true;
    return false;
}

/* group[k] gets the first row of the connected part of the region that rows[k] lies in: ops that hand a value on to each
 * other need the change together and are one culprit. */
static void find_groups(const lb_flow *flow, const uint32_t *rows, uint32_t n, uint32_t *group)
{
    for (uint32_t i = 0; i < n; i++) group[i] = i;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n; j++) {
            uint32_t a = group[i], b = group[j];
            if (a == b || !belong(flow, rows[i], rows[j])) continue;
            for (uint32_t k = 0; k < n; k++)
                if (group[k] == a || group[k] == b) group[k] = a < b ? a : b;
        }
}

/* "score and blend": the layers of a group, in order. */
static void list_group_layers(const lb_program *p, const uint32_t *rows, const uint32_t *group, uint32_t n,
                              uint32_t which, char *text, size_t size)
{
    text[0] = '\0';
    for (uint32_t i = 0; i < n; i++) {
        bool before = false;
        for (uint32_t k = 0; k < i; k++)
            before |= group[k] == which && p->ops[rows[k]].scope == p->ops[rows[i]].scope;
        if (group[i] != which || before) continue;
        const char *layer = lb_op_layer(p, &p->ops[rows[i]]);
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", used ? ", " : "", *layer ? layer : "no layer");
    }
}

/* One culprit per connected part of the region: its first op that is guilty. */
static lb_status blame_ops(const narrowing *n, const lb_program *p, const uint32_t *rows, uint32_t n_rows)
{
    lb_flow *flow = NULL;
    uint32_t *group = malloc((n_rows + 1) * sizeof *group);
    lb_status status = group ? lb_flow_new(p, &flow, n->err) : lb_fail(n->err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) find_groups(flow, rows, n_rows, group);
    for (uint32_t i = 0; i < n_rows && status == LB_OK; i++) {
        uint32_t size = 0, row = rows[i];
        char layers[160];
        lb_culprit *c;
        if (group[i] != i) continue;
        for (uint32_t k = 0; k < n_rows; k++) {
            if (group[k] != i) continue;
            if (!n->region->guilty(p, &p->ops[row]) && n->region->guilty(p, &p->ops[rows[k]])) row = rows[k];
            size++;
        }
        list_group_layers(p, rows, group, n_rows, i, layers, sizeof layers);
        status = lb_culprit_add(n->q, n->region->axis, n->q->failure.rank, p->step, row, &c, n->err);
        if (status == LB_OK) status = lb_culprit_all_ranks(n->q, c, n->err);
        if (status != LB_OK) break;
        snprintf(c->why, sizeof c->why, "With %u %s of %s %s%s, %s, the window ends without the failure.", size,
                 n->kinds    ? (size == 1 ? "kind of op" : "kinds of ops")
                 : size == 1 ? "op"
                             : "ops",
                 layers, n->region->how, *n->later ? ", in later steps too" : "", lb_besides(n->q));
    }
    lb_flow_free(flow);
    free(group);
    return status;
}

/* No smaller region than these layers. */
static lb_status blame_layers(const narrowing *n, const lb_program *p, const uint32_t *scopes,
                              uint32_t n_scopes)
{
    for (uint32_t i = 0; i < n_scopes; i++) {
        lb_culprit *c;
        LB_TRY(lb_culprit_add(n->q, n->region->axis, n->q->failure.rank, n->step, LB_NONE, &c, n->err));
        LB_TRY(lb_culprit_all_ranks(n->q, c, n->err));
        snprintf(c->layer, sizeof c->layer, "%s", lb_program_text(p, p->scopes[scopes[i]].path));
        snprintf(c->why, sizeof c->why,
                 "This layer needs to be %s as a whole: no smaller set of its ops cures.", n->region->how);
    }
    return LB_OK;
}

static lb_status narrow_to_ops(narrowing *n, const lb_program *p, const uint32_t *scopes, uint32_t n_scopes,
                               uint32_t *rows, uint32_t *n_rows)
{
    lb_sites sites = {0};
    uint32_t *found = NULL, count = 0;
    lb_status status = list_ops(n, p, scopes, n_scopes, &sites, rows);
    uint32_t n_ops = sites.n;
    if (status == LB_OK) status = add_later(n, &sites);
    if (status == LB_OK) status = lb_narrow(n->q, &sites, false, &found, &count, n->err);
    if (status == LB_OK && count) status = lb_cure_set(n->q, &sites, found, count, n->err);
    *n_rows = 0;
    for (uint32_t i = 0; i < count; i++)
        if (found[i] < n_ops) rows[(*n_rows)++] = rows[found[i]];
    lb_sites_release(&sites);
    free(found);
    return status;
}

static lb_status narrow_to_layers(narrowing *n, const lb_program *p, uint32_t *scopes, uint32_t *n_scopes)
{
    lb_sites layers = {0};
    uint32_t *guilty = NULL, count = 0;
    uint8_t *seen = calloc(p->n_scopes + 8, 1);
    lb_status status =
        seen ? list_layers(n, p, &layers, scopes, seen) : lb_fail(n->err, LB_ERR_NOMEM, "out of memory");
    uint32_t n_layers = layers.n;
    if (status == LB_OK) status = add_later(n, &layers);
    if (status == LB_OK) status = lb_narrow(n->q, &layers, false, &guilty, &count, n->err);
    if (status == LB_OK && count) status = lb_cure_set(n->q, &layers, guilty, count, n->err);
    *n_scopes = 0;
    for (uint32_t i = 0; i < count; i++)
        if (guilty[i] < n_layers) scopes[(*n_scopes)++] = scopes[guilty[i]];
    lb_sites_release(&layers);
    free(seen);
    free(guilty);
    return status;
}

static lb_status narrow_to_steps(narrowing *n)
{
    lb_sites steps = {0};
    lb_site_form form = {n->region->kind, n->region->argument, "step=", "", ','};
    uint32_t *found = NULL, count = 0;
    lb_status status = lb_sites_add_steps(n->q, &form, n->q->n_steps, &steps, n->err);
    lb_sites_name(&steps, "steps %s", n->region->how);
    if (status == LB_OK) status = lb_narrow_steps(n->q, &steps, true, &found, &count, n->err);
    if (status == LB_OK && count) status = lb_cure_set(n->q, &steps, found, count, n->err);
    n->step = count ? n->q->steps[found[0]] : n->q->failure.step;
    if (count) lb_step_list(n->q, found + 1, count - 1, n->later, sizeof n->later);
    lb_sites_release(&steps);
    free(found);
    return status;
}

/* ---- the origin first ----------------------------------------------------------------------------------------------- */

enum { NEAR = 8 }; /* ops that are tried around the one that broke */

/* The op that broke and, in order, who reads its result and the results of those, as far as the change can mean anything to them. */
static uint32_t list_near(const narrowing *n, const lb_trace_row *row, uint32_t broken, uint32_t *rows)
{
    const lb_program *p = row->program;
    const lb_flow *flow = row->flow;
    uint32_t count = 0;
    rows[count++] = broken;
    for (uint32_t k = 0; k < count; k++)
        for (uint32_t u = flow->first_use[rows[k]]; u < flow->first_use[rows[k] + 1]; u++) {
            const uint32_t user = flow->uses[u];
            bool known = p->ops[user].phase != p->ops[broken].phase || !n->region->touches(p, &p->ops[user]) || count == NEAR;
            for (uint32_t i = 0; i < count && !known; i++) known = rows[i] == user;
            if (!known) rows[count++] = user;
        }
    for (uint32_t i = 1; i < count; i++) /* sites stand in order of execution */
        for (uint32_t k = i; k > 0 && rows[k - 1] > rows[k]; k--) {
            const uint32_t swap = rows[k];
            rows[k] = rows[k - 1], rows[k - 1] = swap;
        }
    return count;
}

/* What broke first, and who reads that: where changing these few ops cures no step and no layer need be searched. */
static lb_status narrow_near_origin(narrowing *n, uint32_t *rows, uint32_t *n_rows)
{
    const lb_origin *origin = &n->q->out->origin;
    const lb_trace_row *row = origin->op == LB_NONE ? NULL : lb_trace_find(n->q->trace, origin->rank, origin->step);
    lb_sites sites = {0};
    uint32_t *found = NULL, count = 0, near[NEAR];
    char before[64], body[16];
    *n_rows = 0;
    if (!row || origin->broken == LB_NONE || origin->rank != n->q->failure.rank || !lb_trace_broke(row, origin->broken) ||
        !n->region->touches(row->program, &row->program->ops[origin->broken]))
        return LB_OK;
    snprintf(before, sizeof before, "step=%" PRId64 "&index=", origin->step);
    lb_site_form form = {n->region->kind, n->region->argument, before, "", ','};
    const uint32_t n_near = list_near(n, row, origin->broken, near);
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < n_near && status == LB_OK; i++) {
        snprintf(body, sizeof body, "%u", near[i]);
        status = lb_sites_add(&sites, &form, body, n->err);
    }
    lb_sites_name(&sites, "ops at and behind the one that broke %s", n->region->how);
    if (status == LB_OK) status = lb_narrow(n->q, &sites, false, &found, &count, n->err);
    if (status == LB_OK && count) status = lb_cure_set(n->q, &sites, found, count, n->err);
    for (uint32_t i = 0; i < count; i++) rows[(*n_rows)++] = near[found[i]];
    if (count) n->step = origin->step;
    lb_sites_release(&sites);
    free(found);
    return status;
}

lb_status lb_region_narrow(lb_inquiry *q, const lb_region *region, int64_t *step, uint32_t **ops,
                           uint32_t *n_ops, lb_err *err)
{
    narrowing n = {.q = q, .region = region, .err = err};
    uint32_t near[NEAR];
    *ops = NULL, *n_ops = 0;
    LB_TRY(narrow_near_origin(&n, near, n_ops));
    const bool direct = *n_ops > 0;
    if (!direct) LB_TRY(narrow_to_steps(&n));
    const lb_program *p = lb_inquiry_program(q, q->failure.rank, n.step);
    *step = n.step;
    if (!p)
        return lb_fail(err, LB_ERR_NOT_FOUND, "step %" PRId64 " of rank %d was not recorded", n.step,
                       q->failure.rank);
    uint32_t *scopes = malloc((p->n_scopes + 8) * sizeof *scopes), n_scopes = 0;
    *ops = malloc(((size_t)p->n_ops + 1) * sizeof **ops);
    lb_status status = scopes && *ops ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && direct) memcpy(*ops, near, *n_ops * sizeof *near);
    if (status == LB_OK && !direct) status = narrow_to_layers(&n, p, scopes, &n_scopes);
    if (status == LB_OK && n_scopes) status = narrow_to_ops(&n, p, scopes, n_scopes, *ops, n_ops);
    if (status == LB_OK && *n_ops)
        status = blame_ops(&n, p, *ops, *n_ops);
    else if (status == LB_OK && n_scopes)
        status = blame_layers(&n, p, scopes, n_scopes);
    else if (status == LB_OK) {
        lb_culprit *c;
        status = lb_culprit_add(q, region->axis, q->failure.rank, n.step, LB_NONE, &c, err);
        if (status == LB_OK)
            snprintf(c->why, sizeof c->why, "No smaller region than everything in the steps named, %s, cures.",
                     region->how);
    }
    free(scopes);
    return status;
}
