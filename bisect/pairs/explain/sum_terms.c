/* Reading terms: see sum_terms.h. */
#include "explain/sum_terms.h"

#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const lb_match_site *site;
    int runner, bits;
    lb_sum_terms *out;
    bool dropped; /* leaves in the storage of an output are none: it is written over */
    bool no_memory;
} reader;

static const lb_program_view *side_of(const reader *r, int side)
{
    return side ? r->site->source->b : r->site->source->a;
}

static const lb_matched_region_side *region_of(const reader *r)
{
    return &r->site->region->sides[r->runner];
}

static int32_t rank_of_value(const reader *r, uint32_t value)
{
    uint32_t row;
    return lb_program_view_recorded(side_of(r, r->runner), value, &row)->rank;
}

/* ---- whose a leaf is ---- */

static bool is_gather(const char *name)
{
    return strstr(name, "allgather") || strstr(name, "all_gather");
}

/* Of one rank: the all_gather that gave `value`, and which of its outputs that is. */
static const lb_collective *gather_of(const lb_program *p, uint32_t value, uint32_t *at, uint32_t *outputs)
{
    for (uint32_t c = 0; c < p->n_collectives; c++) {
        const lb_op *op = &p->ops[p->collectives[c].op];
        if (!is_gather(lb_op_name(p, op))) continue;
        for (uint32_t k = 0; k < op->results + op->written; k++) {
            const bool result = k < op->results;
            if ((result ? lb_op_results(p, op)[k] : lb_op_written(p, op)[k - op->results]) != value) continue;
            *at = result ? k : k - op->results, *outputs = result ? op->results : op->written;
            return &p->collectives[c];
        }
    }
    return NULL;
}

/* The rank that brought a leaf; `*chunks`: it holds what all of that collective's ranks brought, this many. */
static bool find_rank(const reader *r, uint32_t leaf, int32_t *rank, const lb_collective **all)
{
    const lb_program *p = side_of(r, r->runner)->program;
    uint32_t at, outputs;
    *all = NULL;
    if (r->site->source->collective_matches[r->runner]) {
        *rank = rank_of_value(r, leaf);
        return true;
    }
    const lb_collective *row = gather_of(p, leaf, &at, &outputs);
    if (!row || (outputs != row->ranks && outputs != 1)) return false;
    if (outputs == 1 && row->ranks > 1) *all = row;
    *rank = (int32_t)p->refs[row->first_rank + at];
    return true;
}

/* ---- streams ---- */

static bool is_overwritten(const reader *r, uint32_t leaf)
{
    const lb_matched_region_side *s = region_of(r);
    const lb_value *values = side_of(r, r->runner)->program->values;
    bool hit = false;
    for (uint32_t k = 0; k < r->site->region->n_outputs; k++)
        hit |= values[s->outputs[k]].storage == values[leaf].storage;
    return hit;
}

/* `n` more elements of a rank's stream. */
static char *append(reader *r, int32_t rank, int64_t n, int64_t *lengths)
{
    lb_sum_terms *s = r->out;
    const size_t size = lb_dtype_bits(s->dtype) / 8;
    uint32_t k = 0;
    while (k < s->n && s->ranks[k] != rank) k++;
    if (k == LB_MOST_SUM_TERMS) return NULL;
    if (k == s->n) s->ranks[s->n] = rank, lengths[s->n] = 0, s->streams[s->n++] = NULL;
    char *grown = realloc(s->streams[k], (size_t)(lengths[k] + n) * size + 1);
    r->no_memory |= !grown;
    if (!grown) return NULL;
    s->streams[k] = grown, lengths[k] += n;
    if (!k) s->starts[++s->tensors] = lengths[0];
    return grown + (size_t)(lengths[k] - n) * size;
}

static bool read_leaf(reader *r, uint32_t i, int64_t *lengths)
{
    lb_sum_terms *s = r->out;
    const lb_tensor *t = &r->site->inputs[r->runner][r->bits][i];
    const uint32_t leaf = region_of(r)->leaves[i];
    const lb_collective *all;
    const lb_program *p = side_of(r, r->runner)->program;
    int32_t rank;
    if (r->dropped && is_overwritten(r, leaf)) return true;
    if (t->dtype != s->dtype || !find_rank(r, leaf, &rank, &all)) return false;
    const int64_t n = lb_layout_numel(&t->layout), ranks = all ? all->ranks : 1;
    const size_t size = lb_dtype_bits(s->dtype) / 8;
    char *dense = n % ranks ? NULL : malloc((size_t)n * size + 1);
    bool done = dense && lb_tensor_gather(t, dense, NULL) == LB_OK;
    for (int64_t k = 0; k < ranks && done; k++) {
        char *to = append(r, all ? (int32_t)p->refs[all->first_rank + k] : rank, n / ranks, lengths);
        done = to != NULL;
        if (done) memcpy(to, dense + (size_t)(k * (n / ranks)) * size, (size_t)(n / ranks) * size);
    }
    free(dense);
    return done;
}

/* One stream per rank, all of one length. */
static bool read_streams(reader *r)
{
    int64_t lengths[LB_MOST_SUM_TERMS] = {0};
    lb_sum_terms *s = r->out;
    bool fits = true;
    for (uint32_t i = 0; i < region_of(r)->n_leaves && fits; i++) fits = read_leaf(r, i, lengths);
    for (uint32_t k = 1; k < s->n && fits; k++) fits = lengths[k] == lengths[0];
    s->count = lengths[0];
    return fits && s->n > 1 && s->count > 0;
}

/* ---- what was received ---- */

static uint32_t place_of(const lb_sum_terms *s, int32_t rank)
{
    uint32_t k = 0;
    while (k < s->n && s->ranks[k] != rank) k++;
    return k;
}

static int64_t length_received(const reader *r, int32_t rank)
{
    int64_t n = 0;
    const lb_tensor *targets = r->site->targets[r->bits];
    for (uint32_t k = 0; k < r->site->region->n_outputs; k++)
        if (rank_of_value(r, region_of(r)->outputs[k]) == rank) n += lb_layout_numel(&targets[k].layout);
    return n;
}

static bool read_received(reader *r)
{
    lb_sum_terms *s = r->out;
    const uint32_t n = r->site->region->n_outputs;
    s->received = calloc(n + 1, sizeof *s->received);
    r->no_memory |= !s->received;
    for (uint32_t k = 0; k < n && s->received; k++) {
        const lb_tensor *t = &r->site->targets[r->bits][k];
        lb_received *x = &s->received[k];
        *x = (lb_received){.rank = rank_of_value(r, region_of(r)->outputs[k]), .n = lb_layout_numel(&t->layout)};
        const int64_t all = length_received(r, x->rank);
        const uint32_t site = place_of(s, x->rank);
        const bool scattered = all * s->n == s->count;
        if (t->dtype != s->dtype || site == s->n || (!scattered && all != s->count)) return false;
        x->from = scattered ? site * all : 0;
        for (uint32_t i = 0; i < k; i++)
            if (s->received[i].rank == x->rank) x->from += s->received[i].n;
        s->n_received = k + 1;
        if (!(x->data = malloc(lb_dtype_bytes(s->dtype, (size_t)x->n) + 1))) r->no_memory = true;
        if (!x->data || lb_tensor_gather(t, x->data, NULL) != LB_OK) return false;
    }
    return s->received && n;
}

/* ---- all of it ---- */

/* What the collective among the ops does, a sum where it only moves things; false: something else than a number can be
 * reduced by. */
static bool find_reduction(const reader *r, lb_collective_reduction *reduction)
{
    *reduction = LB_REDUCE_SUM;
    for (uint32_t i = 0; i < region_of(r)->n_ops; i++) {
        const lb_program *recorded;
        const lb_collective *row = lb_collective_of_side(side_of(r, r->runner), region_of(r)->ops[i], &recorded);
        const char *text = row && row->reduce != LB_NONE ? lb_program_text(recorded, row->reduce) : "";
        r->out->reduces |= *text != 0;
        if (*text) return lb_collective_reduction_parse(text, reduction);
    }
    return true;
}

static void start_over(lb_sum_terms *s)
{
    for (uint32_t k = 0; k < s->n; k++) free(s->streams[k]);
    for (uint32_t k = 0; k < s->n_received; k++) free(s->received[k].data);
    free(s->received);
    s->received = NULL;
    s->n = s->n_received = s->tensors = 0;
}

lb_status lb_sum_terms_open(const lb_match_site *site, int runner, int bits, lb_sum_terms *s, bool *found, lb_err *err)
{
    reader r = {.site = site, .runner = runner, .bits = bits, .out = s};
    *s = (lb_sum_terms){0}, *found = false;
    if (site->region->parts || !lb_match_site_can(site, runner, bits) || !site->region->n_outputs ||
        !find_reduction(&r, &s->reduction))
        return LB_OK;
    s->dtype = site->targets[bits][0].dtype;
    if (!lb_dtype_is_float(s->dtype) || lb_dtype_bits(s->dtype) < 16) return LB_OK;
    s->starts = calloc(region_of(&r)->n_leaves + LB_MOST_SUM_TERMS + 2, sizeof *s->starts);
    r.no_memory = !s->starts;
    for (int dropped = 0; dropped < 2 && !*found && !r.no_memory; dropped++) {
        start_over(s);
        r.dropped = dropped;
        *found = read_streams(&r) && read_received(&r);
    }
    return r.no_memory ? lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective") : LB_OK;
}

void lb_sum_terms_release(lb_sum_terms *s)
{
    start_over(s);
    free(s->starts);
    *s = (lb_sum_terms){0};
}
