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

static const lb_program_view *side_of(const reader *reader, int side)
{
    return side ? reader->site->source->b : reader->site->source->a;
}

static const lb_matched_region_side *region_of(const reader *reader)
{
    return &reader->site->region->sides[reader->runner];
}

static int32_t rank_of_value(const reader *reader, uint32_t value)
{
    uint32_t row;
    return lb_program_view_recorded(side_of(reader, reader->runner), value, &row)->rank;
}

/* ---- whose a leaf is ---- */

static bool is_gather(const char *name)
{
    return strstr(name, "allgather") || strstr(name, "all_gather");
}

/* Of one rank: the all_gather that gave `value`, and which of its outputs that is. */
static const lb_collective *gather_of(const lb_program *program, uint32_t value, uint32_t *at, uint32_t *outputs)
{
    for (uint32_t c = 0; c < program->n_collectives; c++) {
        const lb_op *op = &program->ops[program->collectives[c].op];
        if (!is_gather(lb_op_name(program, op))) continue;
        for (uint32_t k = 0; k < op->results + op->written; k++) {
            const bool result = k < op->results;
            if ((result ? lb_op_results(program, op)[k] : lb_op_written(program, op)[k - op->results]) != value)
                continue;
            *at = result ? k : k - op->results, *outputs = result ? op->results : op->written;
            return &program->collectives[c];
        }
    }
    return NULL;
}

/* The rank that brought a leaf; `*chunks`: it holds what all of that collective's ranks brought, this many. */
static bool find_rank(const reader *reader, uint32_t leaf, int32_t *rank, const lb_collective **all)
{
    const lb_program *program = side_of(reader, reader->runner)->program;
    uint32_t at, outputs;
    *all = NULL;
    if (reader->site->source->collective_matches[reader->runner]) {
        *rank = rank_of_value(reader, leaf);
        return true;
    }
    const lb_collective *row = gather_of(program, leaf, &at, &outputs);
    if (!row || (outputs != row->ranks && outputs != 1)) return false;
    if (outputs == 1 && row->ranks > 1) *all = row;
    *rank = (int32_t)program->refs[row->first_rank + at];
    return true;
}

/* ---- streams ---- */

static bool is_overwritten(const reader *reader, uint32_t leaf)
{
    const lb_matched_region_side *side = region_of(reader);
    const lb_value *values = side_of(reader, reader->runner)->program->values;
    bool hit = false;
    for (uint32_t k = 0; k < reader->site->region->n_outputs; k++)
        hit |= values[side->outputs[k]].storage == values[leaf].storage;
    return hit;
}

/* `n` more elements of a rank's stream. */
static char *append(reader *reader, int32_t rank, int64_t n, int64_t *lengths)
{
    lb_sum_terms *terms = reader->out;
    const size_t size = lb_dtype_bits(terms->dtype) / 8;
    uint32_t k = 0;
    while (k < terms->n && terms->ranks[k] != rank) k++;
    if (k == LB_MOST_SUM_TERMS) return NULL;
    if (k == terms->n) terms->ranks[terms->n] = rank, lengths[terms->n] = 0, terms->streams[terms->n++] = NULL;
    char *grown = realloc(terms->streams[k], (size_t)(lengths[k] + n) * size + 1);
    reader->no_memory |= !grown;
    if (!grown) return NULL;
    terms->streams[k] = grown, lengths[k] += n;
    if (!k) terms->starts[++terms->tensors] = lengths[0];
    return grown + (size_t)(lengths[k] - n) * size;
}

static bool read_leaf(reader *reader, uint32_t i, int64_t *lengths)
{
    lb_sum_terms *terms = reader->out;
    const lb_tensor *t = &reader->site->inputs[reader->runner][reader->bits][i];
    const uint32_t leaf = region_of(reader)->leaves[i];
    const lb_collective *all;
    const lb_program *program = side_of(reader, reader->runner)->program;
    int32_t rank;
    if (reader->dropped && is_overwritten(reader, leaf)) return true;
    if (t->dtype != terms->dtype || !find_rank(reader, leaf, &rank, &all)) return false;
    const int64_t n = lb_layout_numel(&t->layout), ranks = all ? all->ranks : 1;
    const size_t size = lb_dtype_bits(terms->dtype) / 8;
    char *dense = n % ranks ? NULL : malloc((size_t)n * size + 1);
    bool done = dense && lb_tensor_gather(t, dense, NULL) == LB_OK;
    for (int64_t k = 0; k < ranks && done; k++) {
        char *to = append(reader, all ? (int32_t)program->refs[all->first_rank + k] : rank, n / ranks, lengths);
        done = to != NULL;
        if (done) memcpy(to, dense + (size_t)(k * (n / ranks)) * size, (size_t)(n / ranks) * size);
    }
    free(dense);
    return done;
}

/* One stream per rank, all of one length. */
static bool read_streams(reader *reader)
{
    int64_t lengths[LB_MOST_SUM_TERMS] = {0};
    lb_sum_terms *terms = reader->out;
    bool fits = true;
    for (uint32_t i = 0; i < region_of(reader)->n_leaves && fits; i++) fits = read_leaf(reader, i, lengths);
    for (uint32_t k = 1; k < terms->n && fits; k++) fits = lengths[k] == lengths[0];
    terms->count = lengths[0];
    return fits && terms->n > 1 && terms->count > 0;
}

/* ---- what was received ---- */

static uint32_t place_of(const lb_sum_terms *terms, int32_t rank)
{
    uint32_t k = 0;
    while (k < terms->n && terms->ranks[k] != rank) k++;
    return k;
}

static int64_t length_received(const reader *reader, int32_t rank)
{
    int64_t n = 0;
    const lb_tensor *targets = reader->site->targets[reader->bits];
    for (uint32_t k = 0; k < reader->site->region->n_outputs; k++)
        if (rank_of_value(reader, region_of(reader)->outputs[k]) == rank) n += lb_layout_numel(&targets[k].layout);
    return n;
}

static bool read_received(reader *reader)
{
    lb_sum_terms *terms = reader->out;
    const uint32_t n = reader->site->region->n_outputs;
    terms->received = calloc(n + 1, sizeof *terms->received);
    reader->no_memory |= !terms->received;
    for (uint32_t k = 0; k < n && terms->received; k++) {
        const lb_tensor *target = &reader->site->targets[reader->bits][k];
        lb_received *received = &terms->received[k];
        *received = (lb_received){.rank = rank_of_value(reader, region_of(reader)->outputs[k]),
                                  .n = lb_layout_numel(&target->layout)};
        const int64_t all = length_received(reader, received->rank);
        const uint32_t site = place_of(terms, received->rank);
        const bool scattered = all * terms->n == terms->count;
        if (target->dtype != terms->dtype || site == terms->n || (!scattered && all != terms->count)) return false;
        received->from = scattered ? site * all : 0;
        for (uint32_t i = 0; i < k; i++)
            if (terms->received[i].rank == received->rank) received->from += terms->received[i].n;
        terms->n_received = k + 1;
        if (!(received->data = malloc(lb_dtype_bytes(terms->dtype, (size_t)received->n) + 1))) reader->no_memory = true;
        if (!received->data || lb_tensor_gather(target, received->data, NULL) != LB_OK) return false;
    }
    return terms->received && n;
}

/* ---- all of it ---- */

/* What the collective among the ops does, a sum where it only moves things; false: something else than a number can be
 * reduced by. */
static bool find_reduction(const reader *reader, lb_collective_reduction *reduction)
{
    *reduction = LB_REDUCE_SUM;
    for (uint32_t i = 0; i < region_of(reader)->n_ops; i++) {
        const lb_program *recorded;
        const lb_collective *row =
            lb_collective_of_side(side_of(reader, reader->runner), region_of(reader)->ops[i], &recorded);
        const char *text = row && row->reduce != LB_NONE ? lb_program_text(recorded, row->reduce) : "";
        reader->out->reduces |= *text != 0;
        if (*text) return lb_collective_reduction_parse(text, reduction);
    }
    return true;
}

static void start_over(lb_sum_terms *terms)
{
    for (uint32_t k = 0; k < terms->n; k++) free(terms->streams[k]);
    for (uint32_t k = 0; k < terms->n_received; k++) free(terms->received[k].data);
    free(terms->received);
    terms->received = NULL;
    terms->n = terms->n_received = terms->tensors = 0;
}

lb_status lb_sum_terms_open(const lb_match_site *site, int runner, int bits, lb_sum_terms *terms, bool *found,
                            lb_err *err)
{
    reader reader = {.site = site, .runner = runner, .bits = bits, .out = terms};
    *terms = (lb_sum_terms){0}, *found = false;
    if (site->region->parts || !lb_match_site_can(site, runner, bits) || !site->region->n_outputs ||
        !find_reduction(&reader, &terms->reduction))
        return LB_OK;
    terms->dtype = site->targets[bits][0].dtype;
    if (!lb_dtype_is_float(terms->dtype) || lb_dtype_bits(terms->dtype) < 16) return LB_OK;
    terms->starts = calloc(region_of(&reader)->n_leaves + LB_MOST_SUM_TERMS + 2, sizeof *terms->starts);
    reader.no_memory = !terms->starts;
    for (int dropped = 0; dropped < 2 && !*found && !reader.no_memory; dropped++) {
        start_over(terms);
        reader.dropped = dropped;
        *found = read_streams(&reader) && read_received(&reader);
    }
    return reader.no_memory ? lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective") : LB_OK;
}

void lb_sum_terms_release(lb_sum_terms *terms)
{
    start_over(terms);
    free(terms->starts);
    *terms = (lb_sum_terms){0};
}
