/* Muon slices: see muon.h. */
#include "muon.h"

#include "operand_role.h"
#include "optimizer_ops.h"
#include "ops.h"
#include "rewrite.h"

#include <lastbit/array.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding ---------------------------------------------------------------------------------------------------- */

static bool op_is(const lb_program *p, const lb_op *op, const char *base)
{
    const char *name = lb_op_known_as(lb_op_name(p, op));
    size_t n = strlen(base);
    return !strncmp(name, "aten::", 6) && !strncmp(name + 6, base, n) && (!name[6 + n] || name[6 + n] == '.');
}

static bool contains_muon(const char *text)
{
    for (; *text; text++)
        if (tolower((unsigned char)text[0]) == 'm' && tolower((unsigned char)text[1]) == 'u' &&
            tolower((unsigned char)text[2]) == 'o' && tolower((unsigned char)text[3]) == 'n')
            return true;
    return false;
}

/* ---- products of a matrix with itself transposed ----------------------------------------------------------------- */

/* Where the op's factors are and along what they are summed, as its row says; NULL: it is no product of two. */
static const lb_factors *factors_of(const lb_program *p, const lb_op *op)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(lb_op_known_as(lb_op_name(p, op)), &form);
    return lb_is_product(row) && op->args > row->factors.b ? &row->factors : NULL;
}

/* How a factor lies in the memory that it came from: strides of the summed dimension, of the other one, and of the batch. */
typedef struct lie {
    int64_t storage, summed, other, batch;
} lie;

/* The stride that the same dimension has in the tensor that `copy` was made of; false when that cannot be said. */
static bool stride_before(const lb_value *from, const lb_value *copy, int64_t stride, int64_t *before)
{
    if (from->layout.ndim != copy->layout.ndim || !lb_layout_same_shape(&from->layout, &copy->layout)) return false;
    for (int d = 0; d < copy->layout.ndim; d++)
        if (copy->layout.shape[d] > 1 && copy->layout.stride[d] == stride) {
            *before = from->layout.stride[d];
            return true;
        }
    return false;
}

/* Follows a factor back through copies and casts, which move elements and change none (but for their rounding). */
static lie lie_of(const lb_flow *flow, uint32_t op, uint32_t value, uint8_t summed)
{
    const lb_program *p = flow->program;
    const lb_value *v = &p->values[value];
    const int n = v->layout.ndim;
    lie l = {.storage = -1};
    if (n < 2) return l;
    l = (lie){v->storage, v->layout.stride[n - summed], v->layout.stride[n - (summed == 1 ? 2 : 1)],
              n > 2 && v->layout.shape[n - 3] > 1 ? v->layout.stride[n - 3] : 0};
    for (int hops = 0; hops < 8; hops++) {
        uint32_t def;
        if (lb_flow_defs_of(flow, op, value, &def, 1) != 1) break;
        const lb_op *copy = &p->ops[def];
        const bool copies = op_is(p, copy, "clone") || op_is(p, copy, "_to_copy") || op_is(p, copy, "contiguous");
        if (!copies || !copy->results || lb_op_args(p, copy)[0].tag != LB_ARG_VALUE) break;
        const uint32_t from = lb_op_args(p, copy)[0].u.value;
        const lb_value *made = &p->values[lb_op_results(p, copy)[0]];
        lie before = {.storage = p->values[from].storage};
        if (!stride_before(&p->values[from], made, l.summed, &before.summed) ||
            !stride_before(&p->values[from], made, l.other, &before.other) ||
            (l.batch && !stride_before(&p->values[from], made, l.batch, &before.batch)))
            break;
        l = before, op = def, value = from;
    }
    return l;
}

/* Both factors are the same matrix, or parts of it, one of them transposed: what is summed over lies alike in both, and so do rows.
 * That holds for slices of the summed dimension (tiles), and for blocks of rows with each other. */
static bool is_gram(const lb_flow *flow, uint32_t i)
{
    const lb_program *p = flow->program;
    const lb_op *op = &p->ops[i];
    const lb_factors *factors = factors_of(p, op);
    const lb_arg *args = lb_op_args(p, op);
    if (!factors || args[factors->a].tag != LB_ARG_VALUE || args[factors->b].tag != LB_ARG_VALUE) return false;
    const lie a = lie_of(flow, i, args[factors->a].u.value, factors->sum_a),
              b = lie_of(flow, i, args[factors->b].u.value, factors->sum_b);
    return a.storage >= 0 && a.storage == b.storage && a.summed == b.summed && a.other == b.other &&
           a.batch == b.batch && a.summed != a.other;
}

/* ---- between a gradient and a write ------------------------------------------------------------------------------- */

/* Per op of the slice: what it has on its way from the gradient. */
typedef struct history {
    uint8_t *gradient; /* depends on the gradient, not through products that are kept */
    uint8_t *grams;    /* Gram products in a row, 255 at most */
    uint8_t *products; /* products in a row since the first Gram product */
} history;

static bool history_new(history *h, uint32_t n)
{
    h->gradient = calloc((size_t)n + 1, 1), h->grams = calloc((size_t)n + 1, 1), h->products = calloc((size_t)n + 1, 1);
    return h->gradient && h->grams && h->products;
}

static void history_release(history *h)
{
    free(h->gradient);
    free(h->grams);
    free(h->products);
}

/* State that outlives the step, and is not the parameter: what is accumulated there (a preconditioner's statistics, a momentum) is
 * remembered, not iterated. */
static bool remembers(const lb_program *p, const lb_op *op, int64_t parameter, const uint8_t *kept, const lb_flow *flow)
{
    for (uint32_t w = 0; w < op->written; w++) {
        const uint32_t v = lb_op_written(p, op)[w];
        if (v != LB_NONE && p->values[v].storage != parameter && kept[flow->storage_of[v]]) return true;
    }
    return false;
}

static uint8_t more(uint8_t n)
{
    return n < 255 ? n + 1 : n;
}

/* What an op takes over from those whose writes it sees in `value`. */
static void take_over(const lb_flow *flow, uint32_t i, uint32_t value, const uint8_t *marks, const history *h,
                      uint8_t *grams, uint8_t *products)
{
    uint32_t defs[32];
    const uint32_t n = lb_flow_defs_of(flow, i, value, defs, 32);
    for (uint32_t k = 0; k < n && k < 32; k++) {
        if (!marks[defs[k]]) continue;
        if (h->grams[defs[k]] > *grams) *grams = h->grams[defs[k]];
        if (h->products[defs[k]] > *products) *products = h->products[defs[k]];
    }
}

/* A matrix, not the vector of a power iteration. */
static bool gives_matrix(const lb_program *p, const lb_op *op)
{
    const uint32_t v = op->results ? lb_op_results(p, op)[0] : op->written ? lb_op_written(p, op)[0] : LB_NONE;
    const int n = v == LB_NONE ? 0 : p->values[v].layout.ndim;
    return n > 1 && p->values[v].layout.shape[n - 1] > 1 && p->values[v].layout.shape[n - 2] > 1;
}

/* Fills the history of one op from those that it reads. A product counts on from its factors; what it is added to (a sum over tiles) is
 * the same product still. */
static void take_history(const lb_flow *flow, uint32_t i, const lb_muon_slice *slice, const uint8_t *kept,
                         const uint8_t *marks, history *h)
{
    const lb_program *p = flow->program;
    const lb_op *op = &p->ops[i];
    const lb_factors *factors = factors_of(p, op);
    uint8_t grams = 0, products = 0;
    h->gradient[i] = slice->gradient >= 0 && lb_op_reads(p, op, slice->gradient) != LB_NONE;
    for (uint32_t e = flow->first_def[i]; e < flow->first_def[i + 1]; e++) {
        const uint32_t def = flow->defs[e];
        if (!marks[def]) continue;
        h->gradient[i] |= h->gradient[def];
        if (h->grams[def] > h->grams[i]) h->grams[i] = h->grams[def];
        if (h->products[def] > h->products[i]) h->products[i] = h->products[def];
    }
    for (int f = 0; f < 2 && factors; f++) {
        const lb_arg *arg = &lb_op_args(p, op)[f ? factors->b : factors->a];
        if (arg->tag == LB_ARG_VALUE) take_over(flow, i, arg->u.value, marks, h, &grams, &products);
    }
    const bool gram = h->gradient[i] && is_gram(flow, i);
    if (gram && more(grams) > h->grams[i]) h->grams[i] = more(grams);
    if ((gram || (products && gives_matrix(p, op))) && more(products) > h->products[i]) h->products[i] = more(products);
    if (remembers(p, op, slice->storage, kept, flow)) h->grams[i] = h->products[i] = 0;
}

/* An orthogonalisation chains Gram products, each of what the one before gave; or it iterates one Gram matrix, which takes more products
 * in a row than any use of a single one. */
enum { CHAINED = 2, ITERATED = 6 };

static bool is_iteration(const lb_flow *flow, const lb_muon_slice *slice, const uint8_t *kept, const uint8_t *marks,
                         history *h)
{
    uint8_t grams = 0, products = 0;
    for (uint32_t i = 0; i < flow->program->n_ops; i++) {
        h->gradient[i] = h->grams[i] = h->products[i] = 0;
        if (!marks[i]) continue;
        take_history(flow, i, slice, kept, marks, h);
        if (lb_op_writes(flow->program, &flow->program->ops[i], slice->storage) == LB_NONE) continue;
        if (h->grams[i] > grams) grams = h->grams[i];
        if (h->products[i] > products) products = h->products[i];
    }
    return grams >= CHAINED || products >= ITERATED;
}

/* The first value in `storage` that an op of the slice reads. */
static uint32_t first_read(const lb_program *p, const uint32_t *ops, uint32_t n, int64_t storage)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < n && found == LB_NONE; i++) found = lb_op_reads(p, &p->ops[ops[i]], storage);
    return found;
}

/* What all slices of one program share. */
typedef struct search {
    const lb_flow *flow;
    uint8_t *optimizer; /* per op: an optimizer's */
    uint8_t *
        stop; /* per op: not of the optimizer's slice: it writes a gradient (clipping, unscaling), or a parameter beside the optimizer */
    uint8_t *kept;  /* per storage: it outlives the step */
    uint8_t *marks; /* per op: of the slice that is looked at */
    history history;
} search;

/* What an optimizer computes, with what ranks exchange for it. A weight that is loaded beside it is no update. */
enum { PHASES = 1u << LB_PHASE_OPTIMIZER | 1u << LB_PHASE_COMMUNICATION };

/* Fills `slice` when the writes of its storage are Muon's. */
static lb_status examine(search *s, lb_muon_slice *slice, bool *found, lb_err *err)
{
    const lb_program *p = s->flow->program;
    uint32_t n = 0;
    *found = false;
    slice->write = LB_NONE;
    memset(s->marks, 0, p->n_ops);
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (s->optimizer[i] && lb_op_writes(p, &p->ops[i], slice->storage) != LB_NONE) {
            s->marks[i] = 1;
            slice->write = i;
        }
    if (slice->write == LB_NONE) return LB_OK;
    lb_slice_grow(s->flow, true, PHASES, s->stop, s->marks);
    if (!is_iteration(s->flow, slice, s->kept, s->marks, &s->history)) return LB_OK;
    slice->grams = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!s->marks[i]) continue;
        n++;
        if (s->history.gradient[i] && is_gram(s->flow, i) && !slice->grams++) slice->first_gram = i;
    }
    slice->ops = malloc(n * sizeof *slice->ops);
    if (!slice->ops) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    slice->n_ops = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (s->marks[i]) slice->ops[slice->n_ops++] = i;
    slice->gradient_value = slice->gradient < 0 ? LB_NONE : first_read(p, slice->ops, n, slice->gradient);
    slice->before = first_read(p, slice->ops, n, slice->storage);
    *found = true;
    return LB_OK;
}

/* A parameter that some optimizer steps, and where its gradient lies. */
typedef struct stepped {
    uint32_t name, group;
    int64_t storage, gradient;
} stepped;

/* Those of the groups; where an optimizer is plain code, what the model calls a parameter and its gradient. */
static lb_status list_stepped(const lb_program *p, stepped **rows, uint32_t *n, lb_err *err)
{
    *n = 0;
    *rows = malloc((p->n_group_params + p->n_values + 1) * sizeof **rows);
    if (!*rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t k = 0; k < p->groups[g].params; k++) {
            const lb_group_param *param = &p->group_params[p->groups[g].first_param + k];
            (*rows)[(*n)++] = (stepped){param->name, g, param->storage, param->gradient};
        }
    const uint32_t in_groups = *n;
    for (uint32_t v = 0; v < p->n_values; v++) {
        const lb_value *value = &p->values[v];
        bool known = !(value->flags & LB_VALUE_PARAMETER) || value->name == LB_NONE;
        for (uint32_t k = 0; k < *n && !known; k++) known = (*rows)[k].storage == value->storage;
        if (!known) (*rows)[(*n)++] = (stepped){value->name, LB_NONE, value->storage, -1};
    }
    for (uint32_t v = 0; v < p->n_values; v++)
        for (uint32_t k = in_groups; k < *n && p->values[v].flags & LB_VALUE_GRADIENT; k++)
            if ((*rows)[k].name == p->values[v].name) (*rows)[k].gradient = p->values[v].storage;
    return LB_OK;
}

static lb_status prepare(search *s, const stepped *rows, uint32_t n, lb_err *err)
{
    const lb_program *p = s->flow->program;
    s->stop = calloc((size_t)p->n_ops + 1, 1), s->marks = malloc((size_t)p->n_ops + 1);
    s->kept = calloc(s->flow->n_storages + 1, 1);
    s->optimizer = lb_optimizer_ops(s->flow);
    uint8_t *gradients = calloc(s->flow->n_storages + 1, 1);
    const bool ok = history_new(&s->history, p->n_ops) && s->optimizer && s->stop && s->marks && s->kept && gradients;
    for (uint32_t k = 0; k < n && ok; k++) {
        const uint32_t at = rows[k].gradient < 0 ? LB_NONE : lb_flow_storage(s->flow, rows[k].gradient);
        if (at != LB_NONE) gradients[at] = 1;
    }
    for (uint32_t v = 0; v < p->n_values && ok; v++)
        if (p->values[v].flags & (LB_VALUE_STATE | LB_VALUE_PARAMETER)) s->kept[s->flow->storage_of[v]] = 1;
    for (uint32_t i = 0; i < p->n_ops && ok; i++) {
        const lb_op *op = &p->ops[i];
        for (uint32_t w = 0; w < op->written; w++) {
            const uint32_t v = lb_op_written(p, op)[w];
            if (v != LB_NONE)
                s->stop[i] |=
                    gradients[s->flow->storage_of[v]] || (p->values[v].flags & LB_VALUE_PARAMETER && !s->optimizer[i]);
        }
        if (lb_op_is_source(p, op)) s->kept[s->flow->storage_of[lb_op_results(p, op)[0]]] = 1;
    }
    free(gradients);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

static lb_status append_slice(lb_muon *muon, const lb_muon_slice *slice, lb_err *err)
{
    lb_muon_slice *more = lb_array_grow(muon->slices, muon->n, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    muon->slices = more;
    uint32_t at = muon->n++;
    for (; at > 0 && muon->slices[at - 1].write > slice->write; at--) muon->slices[at] = muon->slices[at - 1];
    muon->slices[at] = *slice;
    return LB_OK;
}

lb_status lb_muon_find(const lb_program *p, const lb_flow *flow, lb_muon *muon, lb_err *err)
{
    search s = {.flow = flow};
    stepped *rows;
    uint32_t n;
    *muon = (lb_muon){0};
    LB_TRY(list_stepped(p, &rows, &n, err));
    lb_status status = prepare(&s, rows, n, err);
    for (uint32_t k = 0; k < n && status == LB_OK; k++) {
        const lb_group *group = rows[k].group == LB_NONE ? NULL : &p->groups[rows[k].group];
        lb_muon_slice slice = {.name = rows[k].name,
                               .storage = rows[k].storage,
                               .gradient = rows[k].gradient,
                               .group = rows[k].group,
                               .scope = lb_program_owner(p, lb_program_text(p, rows[k].name)),
                               .confirmed = group && contains_muon(lb_program_text(p, group->optimizer))};
        bool found;
        status = examine(&s, &slice, &found, err);
        if (status == LB_OK && found && (status = append_slice(muon, &slice, err)) != LB_OK) free(slice.ops);
    }
    free(rows);
    free(s.optimizer);
    free(s.stop);
    free(s.marks);
    free(s.kept);
    history_release(&s.history);
    if (status != LB_OK) lb_muon_release(muon);
    return status;
}

void lb_muon_release(lb_muon *muon)
{
    for (uint32_t i = 0; i < muon->n; i++) free(muon->slices[i].ops);
    free(muon->slices);
    *muon = (lb_muon){0};
}

static double group_option(const lb_program *p, const lb_group *group, const char *name, double otherwise)
{
    for (uint32_t i = 0; i < group->options; i++)
        if (!strcmp(lb_program_text(p, p->scalars[group->first_option + i].name), name))
            return p->scalars[group->first_option + i].number;
    return otherwise;
}

/* A beta as the recorder names the items of a tuple, or by a name of its own. */
static double group_beta(const lb_program *p, const lb_group *group, int which, double otherwise)
{
    otherwise = group_option(p, group, which ? "beta2" : "beta1", otherwise);
    return group_option(p, group, which ? "betas.1" : "betas.0", otherwise);
}

double lb_muon_sibling_rate(const lb_program *p, uint32_t *group)
{
    *group = LB_NONE;
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (strstr(lb_program_text(p, p->groups[g].optimizer), "Adam")) {
            *group = g;
            return group_option(p, &p->groups[g], "lr", NAN);
        }
    return NAN;
}

/* ---- f32 -------------------------------------------------------------------------------------------------------- */

static bool narrow(lb_dtype dtype)
{
    return lb_dtype_is_float(dtype) && lb_dtype_bits(dtype) < 32;
}

/* Marks ops of the chosen slices (1) and of the others (2). */
static uint8_t *mark_slices(const lb_program *p, const lb_muon *muon, const bool *chosen, lb_err *err)
{
    uint8_t *marks = calloc((size_t)p->n_ops + 1, 1);
    if (!marks) lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; marks && s < muon->n; s++)
        for (uint32_t i = 0; i < muon->slices[s].n_ops; i++) marks[muon->slices[s].ops[i]] |= chosen[s] ? 1 : 2;
    return marks;
}

/* Storages that chosen slices alone define, and that are no parameter's, gradient's or state's (those have a source). */
static uint8_t *internal_storages(const lb_program *p, const lb_flow *flow, const uint8_t *marks, lb_err *err)
{
    uint8_t *inside = calloc(flow->n_storages + 1, 1), *outside = calloc(flow->n_storages + 1, 1);
    if (!inside || !outside) {
        free(inside);
        free(outside);
        lb_fail(err, LB_ERR_NOMEM, "out of memory");
        return NULL;
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (!lb_op_defines(p, op)) continue;
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            uint32_t value = lb_op_outcome(p, op, r);
            if (value != LB_NONE) (marks[i] & 1 ? inside : outside)[flow->storage_of[value]] = 1;
        }
    }
    for (uint32_t s = 0; s < flow->n_storages; s++) inside[s] &= !outside[s];
    for (uint32_t v = 0; v < p->n_values; v++) /* a view that reads before any write: contents from an earlier step */
        if (p->values[v].flags & (LB_VALUE_PARAMETER | LB_VALUE_GRADIENT | LB_VALUE_STATE))
            inside[flow->storage_of[v]] = 0;
    free(outside);
    return inside;
}

static void write_wide_op(lb_rewrite *rw, uint32_t i)
{
    lb_op op = rw->in->ops[i];
    lb_arg *args = malloc((op.args + 1) * sizeof *args);
    if (!args) {
        rw->failed = true;
        return;
    }
    memcpy(args, lb_op_args(rw->in, &op), op.args * sizeof *args);
    bool changed = false;
    for (uint32_t a = 0; a < op.args; a++)
        if (args[a].tag == LB_ARG_DTYPE && narrow((lb_dtype)args[a].u.i)) args[a].u.i = LB_F32, changed = true;
    if (changed) op.first_arg = lb_program_add_args(rw->out, args, op.args);
    free(args);
    lb_rewrite_op(rw, &op, i);
}

lb_status lb_pass_muon_wide(const lb_program *in, const lb_flow *flow, const lb_muon *muon, const bool *chosen,
                            lb_program **out, uint32_t **origin, lb_err *err)
{
    lb_rewrite rw = {0};
    uint8_t *marks = mark_slices(in, muon, chosen, err), *inside = NULL;
    lb_status status = marks ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK) status = (inside = internal_storages(in, flow, marks, err)) ? LB_OK : LB_ERR_NOMEM;
    if (status == LB_OK) status = lb_rewrite_init(&rw, in, err);
    if (status == LB_OK) {
        for (uint32_t v = 0; v < in->n_values; v++) {
            lb_value *value = &rw.out->values[v];
            if (!inside[flow->storage_of[v]] || !narrow(value->dtype)) continue;
            value->dtype = LB_F32;
            value->flags &= ~(uint32_t)LB_VALUE_KEPT;
            value->statistics = LB_NONE;
            value->logical = value->blob = (lb_digest){0, 0};
        }
        for (uint32_t i = 0; i < in->n_ops; i++) {
            const lb_op *op = &in->ops[i];
            uint32_t first = op->results ? lb_op_results(in, op)[0] : LB_NONE;
            lb_rewrite_begin(&rw, i);
            if (marks[i] & 1 && first != LB_NONE && inside[flow->storage_of[first]])
                write_wide_op(&rw, i);
            else
                lb_rewrite_keep(&rw, i);
        }
        status = lb_rewrite_finish(&rw, out, origin, err);
    }
    free(marks);
    free(inside);
    return status;
}

/* ---- AdamW ------------------------------------------------------------------------------------------------------ */

static lb_arg number(double x)
{
    return (lb_arg){.tag = LB_ARG_FLOAT, .u.f = x};
}

static lb_arg truth(bool x)
{
    return (lb_arg){.tag = LB_ARG_BOOL, .u.i = x};
}

static lb_arg value_arg(uint32_t value)
{
    return (lb_arg){.tag = LB_ARG_VALUE, .u.value = value};
}

static lb_arg list_of(lb_rewrite *rw, uint32_t value)
{
    lb_arg element = value_arg(value), list = {.tag = LB_ARG_LIST};
    list.count = value == LB_NONE ? 0 : 1;
    if (list.count) list.u.first = lb_program_add_args(rw->out, &element, 1);
    if (list.count && list.u.first == LB_NONE) rw->failed = true;
    return list;
}

/* State that the recorded run never had: storage ids below -1, the same in every step. `which`: 0 m, 1 v, 2 step count. */
static uint32_t new_state(lb_rewrite *rw, const lb_muon_slice *slice, int which, uint32_t version)
{
    const lb_value *param = &rw->in->values[slice->before];
    lb_value value = {.storage = -(4 * slice->storage + 4 + which),
                      .version = version,
                      .flags = LB_VALUE_STATE,
                      .dtype = which == 2 ? LB_F32 : param->dtype,
                      .device = param->device,
                      .name = LB_NONE,
                      .statistics = LB_NONE};
    value.layout = lb_layout_contiguous(which == 2 ? 0 : param->layout.ndim, param->layout.shape);
    uint32_t row = lb_program_add_value(rw->out, &value);
    if (row == LB_NONE) rw->failed = true;
    return row;
}

static uint32_t written_param(const lb_program *p, const lb_muon_slice *slice)
{
    const lb_op *op = &p->ops[slice->write];
    for (uint32_t r = 0; r < op->written; r++) {
        uint32_t value = lb_op_written(p, op)[r];
        if (value != LB_NONE && p->values[value].storage == slice->storage) return value;
    }
    return LB_NONE;
}

static void write_adamw(lb_rewrite *rw, const lb_muon_slice *slice, uint32_t sibling, double rate)
{
    const lb_program *p = rw->in;
    const lb_op *like = &p->ops[slice->write];
    uint32_t state[3][2], version = (uint32_t)(2 * (p->step < 0 ? 0 : p->step)) + 1;
    for (int k = 0; k < 3; k++) {
        for (uint32_t n = 0; n < 2; n++) state[k][n] = new_state(rw, slice, k, version + n);
        lb_rewrite_fill(rw, "lb::state", slice->write, state[k][0]);
        if (!rw->failed) rw->origin[rw->out->n_ops - 1] = LB_NONE;
    }
    lb_arg count[3] = {value_arg(state[2][0]), {.tag = LB_ARG_INT, .u.i = 1}, {.tag = LB_ARG_INT, .u.i = 1}};
    lb_rewrite_new(rw, &(lb_new_op){.name = "aten::add_.Tensor",
                                    .like = like,
                                    .origin = LB_NONE,
                                    .args = count,
                                    .n_args = 3,
                                    .results = &state[2][1],
                                    .n_results = 1,
                                    .written = &state[2][1],
                                    .n_written = 1});

    const lb_group *group = sibling == LB_NONE ? NULL : &p->groups[sibling];
    lb_arg args[15] = {list_of(rw, slice->before),
                       list_of(rw, slice->gradient_value),
                       list_of(rw, state[0][0]),
                       list_of(rw, state[1][0]),
                       list_of(rw, LB_NONE),
                       list_of(rw, state[2][1]),
                       number(rate),
                       number(group ? group_beta(p, group, 0, 0.9) : 0.9),
                       number(group ? group_beta(p, group, 1, 0.95) : 0.95),
                       number(group ? group_option(p, group, "weight_decay", 0) : 0),
                       number(group ? group_option(p, group, "eps", 1e-8) : 1e-8),
                       truth(false),
                       truth(false),
                       {.tag = LB_ARG_NONE},
                       {.tag = LB_ARG_NONE}};
    uint32_t written[4] = {written_param(p, slice), slice->gradient_value, state[0][1], state[1][1]};
    lb_rewrite_new(rw, &(lb_new_op){.name = "aten::_fused_adamw_",
                                    .like = like,
                                    .origin = slice->write,
                                    .args = args,
                                    .n_args = 15,
                                    .written = written,
                                    .n_written = 4});
}

/* What the chosen slices compute for themselves alone; an op with another reader stays. */
static void mark_removed(const lb_program *p, const lb_flow *flow, const lb_muon *muon, const bool *chosen,
                         uint8_t *marks)
{
    for (uint32_t i = p->n_ops; i-- > 0;) {
        if (marks[i] != 1) continue;
        bool writes_param = false;
        for (uint32_t s = 0; s < muon->n; s++)
            writes_param |= chosen[s] && lb_op_writes(p, &p->ops[i], muon->slices[s].storage) != LB_NONE;
        for (uint32_t e = flow->first_use[i]; e < flow->first_use[i + 1] && !writes_param; e++)
            if (marks[flow->uses[e]] != 1 && !(p->ops[flow->uses[e]].flags & LB_OP_VIEW)) marks[i] = 2;
    }
}

lb_status lb_pass_muon_adamw(const lb_program *in, const lb_flow *flow, const lb_muon *muon, const bool *chosen,
                             lb_program **out, uint32_t **origin, lb_err *err)
{
    lb_rewrite rw = {0};
    uint32_t sibling;
    double rate = lb_muon_sibling_rate(in, &sibling);
    if (!(rate > 0)) rate = 3e-4;
    for (uint32_t s = 0; s < muon->n; s++)
        if (chosen[s] && (muon->slices[s].gradient_value == LB_NONE || muon->slices[s].before == LB_NONE))
            return lb_fail(err, LB_ERR_UNSUPPORTED,
                           "Muon on %s: the recording does not say which value is its gradient",
                           lb_program_text(in, muon->slices[s].name));
    uint8_t *marks = mark_slices(in, muon, chosen, err);
    lb_status status = marks ? lb_rewrite_init(&rw, in, err) : LB_ERR_NOMEM;
    if (status == LB_OK) {
        mark_removed(in, flow, muon, chosen, marks);
        for (uint32_t i = 0; i < in->n_ops; i++) {
            lb_rewrite_begin(&rw, i);
            if (marks[i] != 1) lb_rewrite_keep(&rw, i);
            for (uint32_t s = 0; s < muon->n; s++)
                if (chosen[s] && muon->slices[s].write == i) write_adamw(&rw, &muon->slices[s], sibling, rate);
        }
        status = lb_rewrite_finish(&rw, out, origin, err);
    }
    free(marks);
    return status;
}
