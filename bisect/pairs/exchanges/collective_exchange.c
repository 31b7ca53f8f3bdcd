/* Collectives with their bytes: see collective_exchange.h. */
#include "exchanges/collective_exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ASKED = 512 };

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

void lb_collective_exchange_close(lb_collective_exchange *exchange)
{
    for (uint32_t i = 0; i < exchange->meeting->n; i++) {
        if (exchange->sent) free(exchange->sent[i].bytes);
        if (exchange->received) free(exchange->received[i].bytes);
        if (exchange->right) free(exchange->right[i]);
        if (exchange->earlier) free(exchange->earlier[i].bytes);
    }
    free(exchange->earlier);
    free(exchange->sent), free(exchange->received), free(exchange->right);
}

size_t lb_collective_exchange_width(const lb_collective_exchange *exchange, uint32_t member)
{
    return lb_dtype_bits(exchange->received[member].dtype) / 8;
}

lb_status lb_collective_exchange_open(const lb_collective_meeting *meeting, lb_collective_exchange *exchange,
                                      lb_err *err)
{
    const uint32_t n = meeting->n;
    *exchange = (lb_collective_exchange){.meeting = meeting,
                                         .kind = lb_collective_run_kind(lb_collective_member_name(meeting->members)),
                                         .sent = calloc(n, sizeof *exchange->sent),
                                         .received = calloc(n, sizeof *exchange->received),
                                         .right = calloc(n, sizeof *exchange->right)};
    if (!exchange->sent || !exchange->received || !exchange->right)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    return LB_OK;
}

static lb_status read_exchange(lb_capture *capture, lb_collective_exchange *exchange, lb_err *err)
{
    for (uint32_t i = 0; i < exchange->meeting->n; i++) {
        const lb_collective_member *member = &exchange->meeting->members[i];
        LB_TRY(lb_collective_stream_read(capture, member->program, member->inputs, member->n_inputs, &exchange->sent[i],
                                         err));
        LB_TRY(lb_collective_stream_read(capture, member->program, member->outputs, member->n_outputs,
                                         &exchange->received[i], err));
    }
    return LB_OK;
}

/* Each member's part is as large as any other's, in input and output; lists of different sizes are left alone. */
static bool parts_are_even(const lb_collective_exchange *exchange)
{
    for (uint32_t i = 0; i < exchange->meeting->n; i++) {
        const lb_collective_member *member = &exchange->meeting->members[i];
        const lb_op *op = &member->program->ops[member->op];
        for (uint32_t k = 0; k < op->args; k++) {
            const lb_arg *arg = &lb_op_args(member->program, op)[k];
            for (uint32_t j = 1; arg->tag == LB_ARG_LIST && j < arg->count; j++) {
                const lb_arg *first = &member->program->args[arg->u.first], *other = first + j;
                if (first->tag == LB_ARG_INT && (other->tag != LB_ARG_INT || other->u.i != first->u.i)) return false;
            }
        }
        for (uint32_t k = 1; k < member->n_inputs; k++)
            if (!lb_layout_same_shape(&member->program->values[member->inputs[k]].layout,
                                      &member->program->values[member->inputs[0]].layout))
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
static bool take(lb_collective_exchange *exchange, uint32_t who, int64_t to, uint32_t from, int64_t at, int64_t n)
{
    const lb_collective_stream *s = &exchange->sent[from], *r = &exchange->received[who];
    const size_t width = lb_collective_exchange_width(exchange, who);
    if (!s->bytes || !r->bytes || s->dtype != r->dtype || at + n > s->elements || to + n > r->elements) return false;
    if (!exchange->right[who]) exchange->right[who] = malloc((size_t)(r->elements + 1) * width);
    if (!exchange->right[who]) return false;
    memcpy(exchange->right[who] + (size_t)to * width, s->bytes + (size_t)at * width, (size_t)n * width);
    return true;
}

/* What member `who` should have received, where elements are moved and not added; false: it is not known. */
static bool moved(lb_collective_exchange *exchange, uint32_t who)
{
    const uint32_t n = exchange->meeting->n;
    const lb_collective_member *first = exchange->meeting->members;
    const uint32_t root = lb_collective_run_root(first->program, &first->program->ops[first->op]);
    const int64_t size = exchange->received[who].elements;
    bool known = true;
    if (exchange->meeting->message) return size == exchange->sent[0].elements && take(exchange, who, 0, 0, 0, size);
    switch (exchange->kind) {
    case LB_EXCHANGE_BROADCAST:
        return root < n && exchange->sent[root].elements == size && take(exchange, who, 0, root, 0, size);
    case LB_EXCHANGE_SCATTER:
        return root < n && exchange->sent[root].elements == n * size && take(exchange, who, 0, root, who * size, size);
    case LB_EXCHANGE_ALL_GATHER:
    case LB_EXCHANGE_GATHER:
        for (uint32_t r = 0; r < n && known; r++)
            known = first->n_inputs <= 1 && exchange->sent[r].elements * n == size &&
                    take(exchange, who, r * exchange->sent[r].elements, r, 0, exchange->sent[r].elements);
        return known;
    case LB_EXCHANGE_ALL_TO_ALL:
        for (uint32_t r = 0; r < n && known; r++)
            known = size % n == 0 && exchange->sent[r].elements == size &&
                    take(exchange, who, r * (size / n), r, who * (size / n), size / n);
        return known;
    default: return false;
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

bool lb_collective_exchange_terms(const lb_collective_exchange *exchange, const void **inputs, lb_rank_terms *terms)
{
    *terms = (lb_rank_terms){inputs, exchange->meeting->n, exchange->sent[0].dtype, exchange->sent[0].elements};
    for (uint32_t i = 0; i < exchange->meeting->n; i++) {
        if (!exchange->sent[i].bytes || exchange->sent[i].dtype != terms->dtype ||
            exchange->sent[i].elements != terms->count)
            return false;
        inputs[i] = exchange->sent[i].bytes;
    }
    return terms->count > 0 && lb_dtype_bits(terms->dtype) >= 8 && !lb_dtype_is_complex(terms->dtype);
}

int64_t lb_collective_exchange_part(const lb_collective_exchange *exchange, const lb_rank_terms *terms, uint32_t who)
{
    const int64_t size = exchange->received[who].elements;
    if (exchange->kind == LB_EXCHANGE_REDUCE_SCATTER) return size * terms->n == terms->count ? size * who : -1;
    return size == terms->count ? 0 : -1;
}

static int64_t misses_of(const lb_collective_exchange *exchange, const lb_rank_terms *terms, const char *sum)
{
    const size_t width = lb_dtype_bits(terms->dtype) / 8;
    int64_t misses = 0;
    for (uint32_t i = 0; i < terms->n; i++) {
        const int64_t from = lb_collective_exchange_part(exchange, terms, i);
        const char *got = exchange->received[i].bytes;
        if (from < 0 || !got || exchange->received[i].dtype != terms->dtype) continue;
        for (int64_t k = 0; k < exchange->received[i].elements; k++)
            misses += memcmp(got + (size_t)k * width, sum + (size_t)(from + k) * width, width) != 0;
    }
    return misses;
}

uint32_t lb_collective_exchange_home(const lb_collective_exchange *exchange, const lb_collective_order *order,
                                     int64_t at)
{
    const lb_collective_member *first = exchange->meeting->members;
    const int64_t each = exchange->sent[0].elements / exchange->meeting->n;
    if (exchange->kind == LB_EXCHANGE_REDUCE)
        return lb_collective_run_root(first->program, &first->program->ops[first->op]) + 1;
    if (exchange->kind == LB_EXCHANGE_REDUCE_SCATTER && lb_collective_order_ends_at_home(order) && each)
        return (uint32_t)(at / each) + 1;
    return 0;
}

static lb_status reduce_in(const lb_collective_exchange *exchange, const lb_collective_order *order,
                           const lb_rank_terms *terms, char *sum)
{
    lb_collective_order mine = *order;
    mine.home = lb_collective_exchange_home(exchange, order, 0);
    if (exchange->kind == LB_EXCHANGE_REDUCE_SCATTER && terms->count % terms->n == 0)
        return lb_collective_reduce_blocks(order, exchange->reduction, terms, sum, NULL);
    return lb_collective_reduce(&mine, exchange->reduction, terms, sum, NULL);
}

bool lb_collective_exchange_fits(const lb_collective_exchange *exchange, const lb_collective_order *order)
{
    const void *inputs[LB_COLLECTIVE_MAX_RANKS];
    lb_rank_terms terms;
    if (!exchange->sums || !lb_collective_exchange_terms(exchange, inputs, &terms)) return false;
    char *sum = malloc((size_t)(terms.count + 1) * (lb_dtype_bits(terms.dtype) / 8));
    const bool fits =
        sum && reduce_in(exchange, order, &terms, sum) == LB_OK && misses_of(exchange, &terms, sum) == exchange->misses;
    free(sum);
    return fits;
}

/* The order that gives most of what was received, the recorded one tried first, or a ring; its sum into `best`. */
static lb_status find_order(lb_collective_exchange *exchange, const lb_rank_terms *terms, char **best, lb_err *err)
{
    const lb_collective_member *member = exchange->meeting->members;
    const lb_collective *row = lb_collective_member_row(member);
    const size_t bytes = (size_t)(terms->count + 1) * (lb_dtype_bits(terms->dtype) / 8);
    const char *name = row->algorithm != LB_NONE ? lb_program_text(member->program, row->algorithm) : "ring";
    const char *at = LB_COLLECTIVE_ORDERS;
    char *sum = malloc(bytes), next[LB_COLLECTIVE_ORDER_NAME];
    *best = malloc(bytes);
    exchange->misses = INT64_MAX;
    lb_status status = sum && *best ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    for (; status == LB_OK && exchange->misses && name; name = lb_collective_order_next(&at, next) ? next : NULL) {
        lb_collective_order order;
        if (lb_collective_order_parse(name, &order, NULL) != LB_OK || reduce_in(exchange, &order, terms, sum) != LB_OK)
            continue;
        const int64_t misses = misses_of(exchange, terms, sum);
        if (misses >= exchange->misses) continue;
        exchange->misses = misses, exchange->order = order;
        snprintf(exchange->order_name, sizeof exchange->order_name, "%s", name);
        memcpy(*best, sum, bytes);
    }
    free(sum);
    if (status == LB_OK && exchange->misses < INT64_MAX) return LB_OK;
    free(*best);
    *best = NULL;
    return status;
}

/* `right` of each member: what it received, but for elements that no order of the sum gives, which are those of the
 * order that fits best. */
static lb_status add_up(lb_collective_exchange *exchange, lb_err *err)
{
    const void *inputs[LB_COLLECTIVE_MAX_RANKS];
    lb_rank_terms terms;
    char *sum = NULL;
    const lb_collective_member *first = exchange->meeting->members;
    const char *reduce = lb_program_text(first->program, lb_collective_member_row(first)->reduce);
    if (exchange->meeting->n > LB_COLLECTIVE_MAX_RANKS || !lb_collective_reduction_parse(reduce, &exchange->reduction))
        return LB_OK;
    if (!lb_collective_exchange_terms(exchange, inputs, &terms)) return LB_OK;
    LB_TRY(find_order(exchange, &terms, &sum, err));
    exchange->sums = sum != NULL;
    const size_t width = lb_dtype_bits(terms.dtype) / 8;
    for (uint32_t i = 0; sum && i < exchange->meeting->n; i++) {
        const int64_t from = lb_collective_exchange_part(exchange, &terms, i);
        const lb_collective_stream *got = &exchange->received[i];
        uint32_t asked = 0;
        if (from < 0 || !got->bytes || got->dtype != terms.dtype) continue;
        exchange->right[i] = malloc((size_t)(got->elements + 1) * width);
        if (!exchange->right[i]) {
            free(sum);
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
        }
        memcpy(exchange->right[i], got->bytes, (size_t)got->elements * width);
        for (int64_t k = 0; k < got->elements && asked < MOST_ASKED; k++) {
            const char *v = got->bytes + (size_t)k * width, *s = sum + (size_t)(from + k) * width;
            if (!memcmp(v, s, width)) continue;
            asked++;
            const bool proven = lb_dtype_is_integer(terms.dtype)
                                    ? exchange->reduction != LB_REDUCE_AVG
                                    : lb_sum_fault_of(exchange->reduction, &terms, from + k, v) == LB_SUM_FAULT_PROVEN;
            if (proven) memcpy(exchange->right[i] + (size_t)k * width, s, width);
        }
    }
    free(sum);
    return LB_OK;
}

/* ---- members that received something else ------------------------------------------------------------------------ */

/* Members whose bytes are not what they should be. */
lb_status lb_collective_exchange_mark(lb_capture *capture, lb_collective_exchange *exchange, bool *wrong, uint32_t *n,
                                      lb_err *err)
{
    const bool reduces = exchange->kind == LB_EXCHANGE_ALL_REDUCE || exchange->kind == LB_EXCHANGE_REDUCE_SCATTER ||
                         exchange->kind == LB_EXCHANGE_REDUCE;
    const lb_collective_member *first = exchange->meeting->members;
    if (!exchange->meeting->whole || !has_plain_layout(lb_collective_member_name(first))) return LB_OK;
    LB_TRY(read_exchange(capture, exchange, err));
    if (reduces && !exchange->meeting->message) LB_TRY(add_up(exchange, err));
    const bool even = !reduces && parts_are_even(exchange);
    for (uint32_t i = 0; i < exchange->meeting->n; i++) {
        const lb_collective_member *member = &exchange->meeting->members[i];
        const bool receives =
            exchange->meeting->message
                ? i == 1
                : lb_collective_run_receives(member->program, &member->program->ops[member->op], member->place);
        if (receives && (exchange->meeting->message || even) && !moved(exchange, i)) {
            free(exchange->right[i]);
            exchange->right[i] = NULL;
        }
        wrong[i] = receives && exchange->right[i] &&
                   memcmp(exchange->right[i], exchange->received[i].bytes,
                          (size_t)exchange->received[i].elements * lb_collective_exchange_width(exchange, i)) != 0;
        *n += wrong[i];
    }
    exchange->proven = *n > 0;
    return LB_OK;
}

lb_status lb_collective_exchange_read_earlier(lb_capture *capture, lb_collective_exchange *exchange,
                                              const lb_collective_meeting *earlier, lb_err *err)
{
    exchange->earlier = calloc(exchange->meeting->n, sizeof *exchange->earlier);
    if (!exchange->earlier) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    for (uint32_t i = 0; i < exchange->meeting->n && i < earlier->n; i++) {
        const lb_collective_member *member = &earlier->members[i];
        LB_TRY(lb_collective_stream_read(capture, member->program, member->inputs, member->n_inputs,
                                         &exchange->earlier[i], err));
    }
    return LB_OK;
}

/* Where what was sent decides nothing, the elements that a member received otherwise than one that is not suspected. */
void lb_collective_exchange_compare(lb_collective_exchange *exchange, const bool *wrong)
{
    uint32_t model = 0;
    while (model < exchange->meeting->n && (wrong[model] || !exchange->received[model].bytes)) model++;
    if (model == exchange->meeting->n) model = 0;
    const lb_collective_stream *right = &exchange->received[model];
    for (uint32_t i = 0; right->bytes && i < exchange->meeting->n; i++) {
        const lb_collective_stream *got = &exchange->received[i];
        if (!wrong[i] || !got->bytes || got->dtype != right->dtype || got->elements != right->elements) continue;
        if (!exchange->right[i])
            exchange->right[i] = malloc((size_t)(got->elements + 1) * lb_collective_exchange_width(exchange, i));
        if (exchange->right[i])
            memcpy(exchange->right[i], right->bytes, (size_t)got->elements * lb_collective_exchange_width(exchange, i));
    }
}
