/* Finding Muon: see muon.h. The passes that change it stand in muon_wide.c and muon_adamw.c. */
#include "program/muon.h"

#include "program/gram.h"
#include "program/optimizer_ops.h"

#include "base/array.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- between a gradient and a write ------------------------------------------------------------------------------ */

/* Per op of the slice: what it has on its way from the gradient. */
typedef struct history {
    uint8_t *gradient; /* depends on the gradient, not through products that are kept */
    uint8_t *grams;    /* Gram products in a row, 255 at most */
    uint8_t *products; /* products in a row since the first Gram product */
} history;

static bool history_new(history *history, uint32_t n)
{
    history->gradient = calloc((size_t)n + 1, 1), history->grams = calloc((size_t)n + 1, 1),
    history->products = calloc((size_t)n + 1, 1);
    return history->gradient && history->grams && history->products;
}

static void history_release(history *history)
{
    free(history->gradient);
    free(history->grams);
    free(history->products);
}

/* State that outlives the step, and is not the parameter: what is accumulated there (a preconditioner's statistics, a
 * momentum) is remembered, not iterated. */
static bool remembers(const lb_program *program, const lb_op *op, int64_t parameter, const uint8_t *kept,
                      const lb_slice_flow *flow)
{
    for (uint32_t w = 0; w < op->written; w++) {
        const uint32_t v = lb_op_written(program, op)[w];
        if (v != LB_NONE && program->values[v].storage != parameter && kept[flow->storage_of[v]]) return true;
    }
    return false;
}

static uint8_t more(uint8_t n)
{
    return n < 255 ? n + 1 : n;
}

/* How many Gram products and products were chained. */
typedef struct chained {
    uint8_t grams, products;
} chained;

/* What an op takes over from those whose writes it sees in `value`. */
static void take_over(const lb_slice_flow *flow, uint32_t i, uint32_t value, const uint8_t *marks,
                      const history *history, chained *chained)
{
    uint32_t defs[32];
    const uint32_t n = lb_slice_flow_defs_of(flow, i, value, defs, 32);
    for (uint32_t k = 0; k < n && k < 32; k++) {
        if (!marks[defs[k]]) continue;
        if (history->grams[defs[k]] > chained->grams) chained->grams = history->grams[defs[k]];
        if (history->products[defs[k]] > chained->products) chained->products = history->products[defs[k]];
    }
}

/* A matrix, not the vector of a power iteration. */
static bool gives_matrix(const lb_program *program, const lb_op *op)
{
    const uint32_t v = op->results   ? lb_op_results(program, op)[0]
                       : op->written ? lb_op_written(program, op)[0]
                                     : LB_NONE;
    const int n = v == LB_NONE ? 0 : program->values[v].layout.ndim;
    return n > 1 && program->values[v].layout.shape[n - 1] > 1 && program->values[v].layout.shape[n - 2] > 1;
}

/* Fills the history of one op from those that it reads. A product counts on from its factors; what it is added to (a
 * sum over tiles) is the same product still. */
static void take_history(const lb_slice_flow *flow, uint32_t i, const lb_muon_slice *slice, const uint8_t *kept,
                         const uint8_t *marks, history *history)
{
    const lb_program *program = flow->program;
    const lb_op *op = &program->ops[i];
    const lb_factors *factors = lb_gram_factors(program, op);
    chained before = {0, 0};
    history->gradient[i] = slice->gradient >= 0 && lb_op_reads(program, op, slice->gradient) != LB_NONE;
    for (uint32_t e = flow->first_def[i]; e < flow->first_def[i + 1]; e++) {
        const uint32_t def = flow->defs[e];
        if (!marks[def]) continue;
        history->gradient[i] |= history->gradient[def];
        if (history->grams[def] > history->grams[i]) history->grams[i] = history->grams[def];
        if (history->products[def] > history->products[i]) history->products[i] = history->products[def];
    }
    for (int f = 0; f < 2 && factors; f++) {
        const lb_arg *arg = &lb_op_args(program, op)[f ? factors->b : factors->a];
        if (arg->tag == LB_ARG_VALUE) take_over(flow, i, arg->u.value, marks, history, &before);
    }
    const bool gram = history->gradient[i] && lb_gram_is_product(flow, i);
    if (gram && more(before.grams) > history->grams[i]) history->grams[i] = more(before.grams);
    if ((gram || (before.products && gives_matrix(program, op))) && more(before.products) > history->products[i])
        history->products[i] = more(before.products);
    if (remembers(program, op, slice->storage, kept, flow)) history->grams[i] = history->products[i] = 0;
}

/* An orthogonalisation chains Gram products, each of what the one before gave; or it iterates one Gram matrix, which
 * takes more products in a row than any use of a single one. */
enum { CHAINED = 2, ITERATED = 6 };

static bool is_iteration(const lb_slice_flow *flow, const lb_muon_slice *slice, const uint8_t *kept,
                         const uint8_t *marks, history *history)
{
    uint8_t grams = 0, products = 0;
    for (uint32_t i = 0; i < flow->program->n_ops; i++) {
        history->gradient[i] = history->grams[i] = history->products[i] = 0;
        if (!marks[i]) continue;
        take_history(flow, i, slice, kept, marks, history);
        if (lb_op_writes(flow->program, &flow->program->ops[i], slice->storage) == LB_NONE) continue;
        if (history->grams[i] > grams) grams = history->grams[i];
        if (history->products[i] > products) products = history->products[i];
    }
    return grams >= CHAINED || products >= ITERATED;
}

/* The first value in `storage` that an op of the slice reads. */
static uint32_t first_read(const lb_program *program, const uint32_t *ops, uint32_t n, int64_t storage)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < n && found == LB_NONE; i++) found = lb_op_reads(program, &program->ops[ops[i]], storage);
    return found;
}

/* What all slices of one program share. */
typedef struct search {
    const lb_slice_flow *flow;
    uint8_t *optimizer; /* per op: an optimizer's */
    /* per op: not of the optimizer's slice: it writes a gradient (clipping, unscaling), or a parameter beside the
     * optimizer */
    uint8_t *stop;
    uint8_t *kept;  /* per storage: it outlives the step */
    uint8_t *marks; /* per op: of the slice that is looked at */
    history history;
} search;

/* What an optimizer computes, with what ranks exchange for it. A weight that is loaded beside it is no update. */
enum { PHASES = 1u << LB_PHASE_OPTIMIZER | 1u << LB_PHASE_COMMUNICATION };

/* Fills `slice` when the writes of its storage are Muon's. */
static lb_status examine(search *search, lb_muon_slice *slice, bool *found, lb_err *err)
{
    const lb_program *program = search->flow->program;
    uint32_t n = 0;
    *found = false;
    slice->write = LB_NONE;
    memset(search->marks, 0, program->n_ops);
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (search->optimizer[i] && lb_op_writes(program, &program->ops[i], slice->storage) != LB_NONE) {
            search->marks[i] = 1;
            slice->write = i;
        }
    if (slice->write == LB_NONE) return LB_OK;
    lb_slice_grow(search->flow, true, PHASES, search->stop, search->marks);
    if (!is_iteration(search->flow, slice, search->kept, search->marks, &search->history)) return LB_OK;
    slice->grams = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!search->marks[i]) continue;
        n++;
        if (search->history.gradient[i] && lb_gram_is_product(search->flow, i) && !slice->grams++)
            slice->first_gram = i;
    }
    slice->ops = malloc(n * sizeof *slice->ops);
    if (!slice->ops) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    slice->n_ops = 0;
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (search->marks[i]) slice->ops[slice->n_ops++] = i;
    slice->gradient_value = slice->gradient < 0 ? LB_NONE : first_read(program, slice->ops, n, slice->gradient);
    slice->before = first_read(program, slice->ops, n, slice->storage);
    *found = true;
    return LB_OK;
}

/* ---- all parameters ---------------------------------------------------------------------------------------------- */

/* A parameter that some optimizer steps, and where its gradient lies. */
typedef struct stepped {
    uint32_t name, group;
    int64_t storage, gradient;
} stepped;

/* Those of the groups; where an optimizer is plain code, what the model calls a parameter and its gradient. */
static lb_status list_stepped(const lb_program *program, stepped **rows, uint32_t *n, lb_err *err)
{
    *n = 0;
    *rows = malloc((program->n_group_params + program->n_values + 1) * sizeof **rows);
    if (!*rows) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t g = 0; g < program->n_groups; g++)
        for (uint32_t k = 0; k < program->groups[g].params; k++) {
            const lb_group_param *param = &program->group_params[program->groups[g].first_param + k];
            (*rows)[(*n)++] = (stepped){param->name, g, param->storage, param->gradient};
        }
    const uint32_t in_groups = *n;
    for (uint32_t v = 0; v < program->n_values; v++) {
        const lb_value *value = &program->values[v];
        bool known = !(value->flags & LB_VALUE_PARAMETER) || value->name == LB_NONE;
        for (uint32_t k = 0; k < *n && !known; k++) known = (*rows)[k].storage == value->storage;
        if (!known) (*rows)[(*n)++] = (stepped){value->name, LB_NONE, value->storage, -1};
    }
    for (uint32_t v = 0; v < program->n_values; v++)
        for (uint32_t k = in_groups; k < *n && program->values[v].flags & LB_VALUE_GRADIENT; k++)
            if ((*rows)[k].name == program->values[v].name) (*rows)[k].gradient = program->values[v].storage;
    return LB_OK;
}

static lb_status prepare(search *search, const stepped *rows, uint32_t n, lb_err *err)
{
    const lb_program *program = search->flow->program;
    search->stop = calloc((size_t)program->n_ops + 1, 1), search->marks = malloc((size_t)program->n_ops + 1);
    search->kept = calloc(search->flow->n_storages + 1, 1);
    search->optimizer = lb_optimizer_ops(search->flow);
    uint8_t *gradients = calloc(search->flow->n_storages + 1, 1);
    const bool ok = history_new(&search->history, program->n_ops) && search->optimizer && search->stop &&
                    search->marks && search->kept && gradients;
    for (uint32_t k = 0; k < n && ok; k++) {
        const uint32_t at = rows[k].gradient < 0 ? LB_NONE : lb_slice_flow_storage(search->flow, rows[k].gradient);
        if (at != LB_NONE) gradients[at] = 1;
    }
    for (uint32_t value = 0; value < program->n_values && ok; value++)
        if (program->values[value].flags & (LB_VALUE_STATE | LB_VALUE_PARAMETER))
            search->kept[search->flow->storage_of[value]] = 1;
    for (uint32_t i = 0; i < program->n_ops && ok; i++) {
        const lb_op *op = &program->ops[i];
        for (uint32_t w = 0; w < op->written; w++) {
            const uint32_t value = lb_op_written(program, op)[w];
            if (value != LB_NONE)
                search->stop[i] |= gradients[search->flow->storage_of[value]] ||
                                   (program->values[value].flags & LB_VALUE_PARAMETER && !search->optimizer[i]);
        }
        if (lb_op_is_source(program, op)) search->kept[search->flow->storage_of[lb_op_results(program, op)[0]]] = 1;
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

static bool contains_muon(const char *text)
{
    for (; *text; text++)
        if (tolower((unsigned char)text[0]) == 'm' && tolower((unsigned char)text[1]) == 'u' &&
            tolower((unsigned char)text[2]) == 'o' && tolower((unsigned char)text[3]) == 'n')
            return true;
    return false;
}

lb_status lb_muon_find(const lb_program *program, const lb_slice_flow *flow, lb_muon *muon, lb_err *err)
{
    search search = {.flow = flow};
    stepped *rows;
    uint32_t n;
    *muon = (lb_muon){0};
    LB_TRY(list_stepped(program, &rows, &n, err));
    lb_status status = prepare(&search, rows, n, err);
    for (uint32_t k = 0; k < n && status == LB_OK; k++) {
        const lb_group *group = rows[k].group == LB_NONE ? NULL : &program->groups[rows[k].group];
        lb_muon_slice slice = {.name = rows[k].name,
                               .storage = rows[k].storage,
                               .gradient = rows[k].gradient,
                               .group = rows[k].group,
                               .scope = lb_program_owner(program, lb_program_text(program, rows[k].name)),
                               .confirmed = group && contains_muon(lb_program_text(program, group->optimizer))};
        bool found;
        status = examine(&search, &slice, &found, err);
        if (status == LB_OK && found && (status = append_slice(muon, &slice, err)) != LB_OK) free(slice.ops);
    }
    free(rows);
    free(search.optimizer);
    free(search.stop);
    free(search.marks);
    free(search.kept);
    history_release(&search.history);
    if (status != LB_OK) lb_muon_release(muon);
    return status;
}

void lb_muon_release(lb_muon *muon)
{
    for (uint32_t i = 0; i < muon->n; i++) free(muon->slices[i].ops);
    free(muon->slices);
    *muon = (lb_muon){0};
}

uint8_t *lb_muon_mark(const lb_program *program, const lb_muon *muon, const bool *chosen, lb_err *err)
{
    uint8_t *marks = calloc((size_t)program->n_ops + 1, 1);
    if (!marks) lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; marks && s < muon->n; s++)
        for (uint32_t i = 0; i < muon->slices[s].n_ops; i++) marks[muon->slices[s].ops[i]] |= chosen[s] ? 1 : 2;
    return marks;
}
