/* Collectives with their bytes: see collective_exchange.h. */
#include "exchanges/collective_exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ASKED = 512 };

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

void lb_collective_exchange_close(lb_collective_exchange *x)
{
    for (uint32_t i = 0; i < x->meeting->n; i++) {
        if (x->sent) free(x->sent[i].bytes);
        if (x->received) free(x->received[i].bytes);
        if (x->right) free(x->right[i]);
        if (x->earlier) free(x->earlier[i].bytes);
    }
    free(x->earlier);
    free(x->sent), free(x->received), free(x->right);
}

size_t lb_collective_exchange_width(const lb_collective_exchange *x, uint32_t member)
{
    return lb_dtype_bits(x->received[member].dtype) / 8;
}

lb_status lb_collective_exchange_open(const lb_collective_meeting *meeting, lb_collective_exchange *x, lb_err *err)
{
    const uint32_t n = meeting->n;
    *x = (lb_collective_exchange){.meeting = meeting,
                                  .kind = lb_collective_run_kind(lb_collective_member_name(meeting->members)),
                                  .sent = calloc(n, sizeof *x->sent),
                                  .received = calloc(n, sizeof *x->received),
                                  .right = calloc(n, sizeof *x->right)};
    if (!x->sent || !x->received || !x->right) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    return LB_OK;
}

static lb_status read_exchange(lb_capture *capture, lb_collective_exchange *x, lb_err *err)
{
    for (uint32_t i = 0; i < x->meeting->n; i++) {
        const lb_collective_member *m = &x->meeting->members[i];
        LB_TRY(lb_collective_stream_read(capture, m->program, m->inputs, m->n_inputs, &x->sent[i], err));
        LB_TRY(lb_collective_stream_read(capture, m->program, m->outputs, m->n_outputs, &x->received[i], err));
    }
    return LB_OK;
}

/* Each member's part is as large as any other's, in input and output; lists of different sizes are left alone. */
static bool parts_are_even(const lb_collective_exchange *x)
{
    for (uint32_t i = 0; i < x->meeting->n; i++) {
        const lb_collective_member *m = &x->meeting->members[i];
        const lb_op *op = &m->program->ops[m->op];
        for (uint32_t k = 0; k < op->args; k++) {
            const lb_arg *arg = &lb_op_args(m->program, op)[k];
            for (uint32_t j = 1; arg->tag == LB_ARG_LIST && j < arg->count; j++) {
                const lb_arg *first = &m->program->args[arg->u.first], *other = first + j;
                if (first->tag == LB_ARG_INT && (other->tag != LB_ARG_INT || other->u.i != first->u.i)) return false;
            }
        }
        for (uint32_t k = 1; k < m->n_inputs; k++)
            if (!lb_layout_same_shape(&m->program->values[m->inputs[k]].layout,
                                      &m->program->values[m->inputs[0]].layout))
                return false;
    }
    return true;
}

/* Libraries of their own cut and join along other dimensions. */
static bool has_plain_layout(const char *name)
{
    return !strncmp(name, "c10d::", 6) || !strncmp(name, "nccl::", 6) || !strncmp(name, "_c10d_functional::", 18);
}

/* `right` of member `who` takes `n` elements of what `from` sent. */
static bool take(lb_collective_exchange *x, uint32_t who, int64_t to, uint32_t from, int64_t at, int64_t n)
{
    const lb_collective_stream *s = &x->sent[from], *r = &x->received[who];
    const size_t width = lb_collective_exchange_width(x, who);
    if (!s->bytes || !r->bytes || s->dtype != r->dtype || at + n > s->elements || to + n > r->elements) return false;
    if (!x->right[who]) x->right[who] = malloc((size_t)(r->elements + 1) * width);
    if (!x->right[who]) return false;
    memcpy(x->right[who] + (size_t)to * width, s->bytes + (size_t)at * width, (size_t)n * width);
    return true;
}

/* What member `who` should have received, where elements are moved and not added; false: it is not known. */
static bool moved(lb_collective_exchange *x, uint32_t who)
{
    const uint32_t n = x->meeting->n;
    const lb_collective_member *first = x->meeting->members;
    const uint32_t root = lb_collective_run_root(first->program, &first->program->ops[first->op]);
    const int64_t size = x->received[who].elements;
    bool known = true;
    if (x->meeting->message) return size == x->sent[0].elements && take(x, who, 0, 0, 0, size);
    switch (x->kind) {
    case LB_EXCHANGE_BROADCAST: return root < n && x->sent[root].elements == size && take(x, who, 0, root, 0, size);
    case LB_EXCHANGE_SCATTER:
        return root < n && x->sent[root].elements == n * size && take(x, who, 0, root, who * size, size);
    case LB_EXCHANGE_ALL_GATHER:
    case LB_EXCHANGE_GATHER:
        for (uint32_t r = 0; r < n && known; r++)
            known = first->n_inputs <= 1 && x->sent[r].elements * n == size &&
                    take(x, who, r * x->sent[r].elements, r, 0, x->sent[r].elements);
        return known;
    case LB_EXCHANGE_ALL_TO_ALL:
        for (uint32_t r = 0; r < n && known; r++)
            known = size % n == 0 && x->sent[r].elements == size &&
                    take(x, who, r * (size / n), r, who * (size / n), size / n);
        return known;
    default: return false;
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

bool lb_collective_exchange_terms(const lb_collective_exchange *x, const void **inputs, lb_rank_terms *terms)
{
    *terms = (lb_rank_terms){inputs, x->meeting->n, x->sent[0].dtype, x->sent[0].elements};
    for (uint32_t i = 0; i < x->meeting->n; i++) {
        if (!x->sent[i].bytes || x->sent[i].dtype != terms->dtype || x->sent[i].elements != terms->count) return false;
        inputs[i] = x->sent[i].bytes;
    }
    return terms->count > 0 && lb_dtype_bits(terms->dtype) >= 8 && !lb_dtype_is_complex(terms->dtype);
}

int64_t lb_collective_exchange_part(const lb_collective_exchange *x, const lb_rank_terms *terms, uint32_t who)
{
    const int64_t size = x->received[who].elements;
    if (x->kind == LB_EXCHANGE_REDUCE_SCATTER) return size * terms->n == terms->count ? size * who : -1;
    return size == terms->count ? 0 : -1;
}

static int64_t misses_of(const lb_collective_exchange *x, const lb_rank_terms *terms, const char *sum)
{
    const size_t width = lb_dtype_bits(terms->dtype) / 8;
    int64_t misses = 0;
    for (uint32_t i = 0; i < terms->n; i++) {
        const int64_t from = lb_collective_exchange_part(x, terms, i);
        const char *got = x->received[i].bytes;
        if (from < 0 || !got || x->received[i].dtype != terms->dtype) continue;
        for (int64_t k = 0; k < x->received[i].elements; k++)
            misses += memcmp(got + (size_t)k * width, sum + (size_t)(from + k) * width, width) != 0;
    }
    return misses;
}

uint32_t lb_collective_exchange_home(const lb_collective_exchange *x, const lb_collective_order *order, int64_t at)
{
    const lb_collective_member *first = x->meeting->members;
    const int64_t each = x->sent[0].elements / x->meeting->n;
    if (x->kind == LB_EXCHANGE_REDUCE)
        return lb_collective_run_root(first->program, &first->program->ops[first->op]) + 1;
    if (x->kind == LB_EXCHANGE_REDUCE_SCATTER && lb_collective_order_ends_at_home(order) && each)
        return (uint32_t)(at / each) + 1;
    return 0;
}

static lb_status reduce_in(const lb_collective_exchange *x, const lb_collective_order *order,
                           const lb_rank_terms *terms, char *sum)
{
    lb_collective_order mine = *order;
    mine.home = lb_collective_exchange_home(x, order, 0);
    if (x->kind == LB_EXCHANGE_REDUCE_SCATTER && terms->count % terms->n == 0)
        return lb_collective_reduce_blocks(order, x->reduction, terms, sum, NULL);
    return lb_collective_reduce(&mine, x->reduction, terms, sum, NULL);
}

bool lb_collective_exchange_fits(const lb_collective_exchange *x, const lb_collective_order *order)
{
    const void *inputs[LB_COLLECTIVE_MAX_RANKS];
    lb_rank_terms terms;
    if (!x->sums || !lb_collective_exchange_terms(x, inputs, &terms)) return false;
    char *sum = malloc((size_t)(terms.count + 1) * (lb_dtype_bits(terms.dtype) / 8));
    const bool fits = sum && reduce_in(x, order, &terms, sum) == LB_OK && misses_of(x, &terms, sum) == x->misses;
    free(sum);
    return fits;
}

/* The order that gives most of what was received, the recorded one tried first, or a ring; its sum into `best`. */
static lb_status find_order(lb_collective_exchange *x, const lb_rank_terms *terms, char **best, lb_err *err)
{
    const lb_collective_member *m = x->meeting->members;
    const lb_collective *row = lb_collective_member_row(m);
    const size_t bytes = (size_t)(terms->count + 1) * (lb_dtype_bits(terms->dtype) / 8);
    const char *name = row->algorithm != LB_NONE ? lb_program_text(m->program, row->algorithm) : "ring";
    const char *at = LB_COLLECTIVE_ORDERS;
    char *sum = malloc(bytes), next[LB_COLLECTIVE_ORDER_NAME];
    *best = malloc(bytes);
    x->misses = INT64_MAX;
    lb_status status = sum && *best ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    for (; status == LB_OK && x->misses && name; name = lb_collective_order_next(&at, next) ? next : NULL) {
        lb_collective_order order;
        if (lb_collective_order_parse(name, &order, NULL) != LB_OK || reduce_in(x, &order, terms, sum) != LB_OK)
            continue;
        const int64_t misses = misses_of(x, terms, sum);
        if (misses >= x->misses) continue;
        x->misses = misses, x->order = order;
        snprintf(x->order_name, sizeof x->order_name, "%s", name);
        memcpy(*best, sum, bytes);
    }
    free(sum);
    if (status == LB_OK && x->misses < INT64_MAX) return LB_OK;
    free(*best);
    *best = NULL;
    return status;
}

/* `right` of each member: what it received, but for elements that no order of the sum gives, which are those of the
 * order that fits best. */
static lb_status add_up(lb_collective_exchange *x, lb_err *err)
{
    const void *inputs[LB_COLLECTIVE_MAX_RANKS];
    lb_rank_terms terms;
    char *sum = NULL;
    const lb_collective_member *first = x->meeting->members;
    const char *reduce = lb_program_text(first->program, lb_collective_member_row(first)->reduce);
    if (x->meeting->n > LB_COLLECTIVE_MAX_RANKS || !lb_collective_reduction_parse(reduce, &x->reduction)) return LB_OK;
    if (!lb_collective_exchange_terms(x, inputs, &terms)) return LB_OK;
    LB_TRY(find_order(x, &terms, &sum, err));
    x->sums = sum != NULL;
    const size_t width = lb_dtype_bits(terms.dtype) / 8;
    for (uint32_t i = 0; sum && i < x->meeting->n; i++) {
        const int64_t from = lb_collective_exchange_part(x, &terms, i);
        const lb_collective_stream *got = &x->received[i];
        uint32_t asked = 0;
        if (from < 0 || !got->bytes || got->dtype != terms.dtype) continue;
        x->right[i] = malloc((size_t)(got->elements + 1) * width);
        if (!x->right[i]) {
            free(sum);
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
        }
        memcpy(x->right[i], got->bytes, (size_t)got->elements * width);
        for (int64_t k = 0; k < got->elements && asked < MOST_ASKED; k++) {
            const char *v = got->bytes + (size_t)k * width, *s = sum + (size_t)(from + k) * width;
            if (!memcmp(v, s, width)) continue;
            asked++;
            const bool proven = lb_dtype_is_integer(terms.dtype)
                                    ? x->reduction != LB_REDUCE_AVG
                                    : lb_sum_fault_of(x->reduction, &terms, from + k, v) == LB_SUM_FAULT_PROVEN;
            if (proven) memcpy(x->right[i] + (size_t)k * width, s, width);
        }
    }
    free(sum);
    return LB_OK;
}

/* ---- members that received something else ------------------------------------------------------------------------ */

/* Members whose bytes are not what they should be. */
lb_status lb_collective_exchange_mark(lb_capture *capture, lb_collective_exchange *x, bool *wrong, uint32_t *n,
                                      lb_err *err)
{
    const bool reduces =
        x->kind == LB_EXCHANGE_ALL_REDUCE || x->kind == LB_EXCHANGE_REDUCE_SCATTER || x->kind == LB_EXCHANGE_REDUCE;
    const lb_collective_member *first = x->meeting->members;
    if (!x->meeting->whole || !has_plain_layout(lb_collective_member_name(first))) return LB_OK;
    LB_TRY(read_exchange(capture, x, err));
    if (reduces && !x->meeting->message) LB_TRY(add_up(x, err));
    const bool even = !reduces && parts_are_even(x);
    for (uint32_t i = 0; i < x->meeting->n; i++) {
        const lb_collective_member *m = &x->meeting->members[i];
        const bool receives =
            x->meeting->message ? i == 1 : lb_collective_run_receives(m->program, &m->program->ops[m->op], m->place);
        if (receives && (x->meeting->message || even) && !moved(x, i)) {
            free(x->right[i]);
            x->right[i] = NULL;
        }
        wrong[i] = receives && x->right[i] &&
                   memcmp(x->right[i], x->received[i].bytes,
                          (size_t)x->received[i].elements * lb_collective_exchange_width(x, i)) != 0;
        *n += wrong[i];
    }
    x->proven = *n > 0;
    return LB_OK;
}

lb_status lb_collective_exchange_read_earlier(lb_capture *capture, lb_collective_exchange *x,
                                              const lb_collective_meeting *earlier, lb_err *err)
{
    x->earlier = calloc(x->meeting->n, sizeof *x->earlier);
    if (!x->earlier) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    for (uint32_t i = 0; i < x->meeting->n && i < earlier->n; i++) {
        const lb_collective_member *m = &earlier->members[i];
        LB_TRY(lb_collective_stream_read(capture, m->program, m->inputs, m->n_inputs, &x->earlier[i], err));
    }
    return LB_OK;
}

/* Where what was sent decides nothing, the elements that a member received otherwise than one that is not suspected. */
void lb_collective_exchange_compare(lb_collective_exchange *x, const bool *wrong)
{
    uint32_t model = 0;
    while (model < x->meeting->n && (wrong[model] || !x->received[model].bytes)) model++;
    if (model == x->meeting->n) model = 0;
    const lb_collective_stream *right = &x->received[model];
    for (uint32_t i = 0; right->bytes && i < x->meeting->n; i++) {
        const lb_collective_stream *got = &x->received[i];
        if (!wrong[i] || !got->bytes || got->dtype != right->dtype || got->elements != right->elements) continue;
        if (!x->right[i]) x->right[i] = malloc((size_t)(got->elements + 1) * lb_collective_exchange_width(x, i));
        if (x->right[i]) memcpy(x->right[i], right->bytes, (size_t)got->elements * lb_collective_exchange_width(x, i));
    }
}
