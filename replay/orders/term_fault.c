/* Contributions that went wrong: see term_fault.h. */
#include "orders/term_fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct trial {
    const lb_term_sum *sum;
    const void *inputs[LB_TERM_FAULT_RANKS + 1];
    uint32_t n;
    char *out;
    char order[LB_COLLECTIVE_ORDER_NAME];
} trial;

static bool has_all_parts(const trial *t)
{
    const size_t size = lb_dtype_bits(t->sum->terms.dtype) / 8;
    for (uint32_t p = 0; p < t->sum->n_parts; p++) {
        const lb_term_part *part = &t->sum->parts[p];
        if (memcmp(t->out + (size_t)part->first * size, part->bytes, (size_t)part->n * size)) return false;
    }
    return t->sum->n_parts > 0;
}

/* A rank less, or one more, moves the blocks of a reduce-scatter: they are those of all ranks in any case. */
static bool gives(trial *t, const lb_collective_order *order)
{
    const lb_term_sum *s = t->sum;
    const lb_rank_terms terms = {t->inputs, t->n, s->terms.dtype, s->terms.count};
    lb_collective_order mine = *order;
    mine.home = s->home <= t->n ? s->home : 0;
    const bool blocks = s->blocks && t->n == s->terms.n;
    const lb_status status = blocks ? lb_collective_reduce_blocks(order, s->reduction, &terms, t->out, NULL)
                                    : lb_collective_reduce(&mine, s->reduction, &terms, t->out, NULL);
    return status == LB_OK && has_all_parts(t);
}

static bool some_order_gives(trial *t)
{
    lb_collective_order order;
    for (const char *at = LB_COLLECTIVE_ORDERS; t->n && lb_collective_order_next(&at, t->order);)
        if (lb_collective_order_parse(t->order, &order, NULL) == LB_OK && gives(t, &order)) return true;
    return false;
}

static void bring_all(trial *t)
{
    t->n = t->sum->terms.n;
    memcpy(t->inputs, t->sum->terms.inputs, t->n * sizeof *t->inputs);
}

/* `who` is added once more before place `at`. */
static bool is_twice(trial *t, uint32_t who, uint32_t at)
{
    bring_all(t);
    memmove(t->inputs + at + 1, t->inputs + at, (t->n - at) * sizeof *t->inputs);
    t->inputs[at] = t->sum->terms.inputs[who];
    t->n++;
    return some_order_gives(t);
}

static bool is_exchanged(trial *t, uint32_t who, const void *other)
{
    bring_all(t);
    t->inputs[who] = other;
    return some_order_gives(t);
}

static bool is_missing(trial *t, uint32_t who)
{
    bring_all(t);
    t->n--;
    memmove(t->inputs + who, t->inputs + who + 1, (t->n - who) * sizeof *t->inputs);
    return some_order_gives(t);
}

static bool find_kind(trial *t, uint32_t who, const char *zeros, lb_term_fault_kind *kind)
{
    const lb_term_sum *s = t->sum;
    *kind = LB_TERM_STALE;
    if (s->earlier && s->earlier[who] && is_exchanged(t, who, s->earlier[who])) return true;
    *kind = LB_TERM_MISSING;
    if (is_missing(t, who)) return true;
    *kind = LB_TERM_ZEROS;
    if (is_exchanged(t, who, zeros)) return true;
    *kind = LB_TERM_TWICE;
    return is_twice(t, who, t->sum->terms.n) || is_twice(t, who, who);
}

lb_status lb_term_fault_find(const lb_term_sum *sum, bool *found, lb_term_fault *fault, lb_err *err)
{
    const size_t bytes = (size_t)(sum->terms.count + 1) * (lb_dtype_bits(sum->terms.dtype) / 8);
    trial t = {.sum = sum};
    *found = false;
    if (!lb_dtype_is_float(sum->terms.dtype) || sum->terms.n > LB_TERM_FAULT_RANKS || sum->reduction > LB_REDUCE_AVG)
        return LB_OK;
    char *zeros = calloc(bytes, 1);
    t.out = malloc(bytes);
    lb_status status = zeros && t.out ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for contributions");
    for (uint32_t who = 0; who < sum->terms.n && status == LB_OK && !*found; who++) {
        *found = find_kind(&t, who, zeros, &fault->kind);
        fault->who = who;
        memcpy(fault->order, t.order, sizeof fault->order);
    }
    free(zeros), free(t.out);
    return status;
}

void lb_term_fault_text(const lb_term_fault *fault, int32_t rank, char *text, size_t room)
{
    switch (fault->kind) {
    case LB_TERM_ZEROS: snprintf(text, room, "with zeros for the contribution of rank %d", rank); break;
    case LB_TERM_MISSING: snprintf(text, room, "without the contribution of rank %d", rank); break;
    case LB_TERM_TWICE: snprintf(text, room, "with the contribution of rank %d added twice", rank); break;
    case LB_TERM_STALE:
        snprintf(text, room, "with what rank %d brought to an earlier collective for its contribution", rank);
        break;
    }
}
