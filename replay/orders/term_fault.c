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

static bool has_all_parts(const trial *trial)
{
    const size_t size = lb_dtype_bits(trial->sum->terms.dtype) / 8;
    for (uint32_t p = 0; p < trial->sum->n_parts; p++) {
        const lb_term_part *part = &trial->sum->parts[p];
        if (memcmp(trial->out + (size_t)part->first * size, part->bytes, (size_t)part->n * size)) return false;
    }
    return trial->sum->n_parts > 0;
}

/* A rank less, or one more, moves the blocks of a reduce-scatter: they are those of all ranks in any case. */
static bool gives(trial *trial, const lb_collective_order *order)
{
    const lb_term_sum *s = trial->sum;
    const lb_rank_terms terms = {trial->inputs, trial->n, s->terms.dtype, s->terms.count};
    lb_collective_order mine = *order;
    mine.home = s->home <= trial->n ? s->home : 0;
    const bool blocks = s->blocks && trial->n == s->terms.n;
    const lb_status status = blocks ? lb_collective_reduce_blocks(order, s->reduction, &terms, trial->out, NULL)
                                    : lb_collective_reduce(&mine, s->reduction, &terms, trial->out, NULL);
    return status == LB_OK && has_all_parts(trial);
}

static bool some_order_gives(trial *trial)
{
    lb_collective_order order;
    for (const char *at = LB_COLLECTIVE_ORDERS; trial->n && lb_collective_order_next(&at, trial->order);)
        if (lb_collective_order_parse(trial->order, &order, NULL) == LB_OK && gives(trial, &order)) return true;
    return false;
}

static void bring_all(trial *trial)
{
    trial->n = trial->sum->terms.n;
    memcpy(trial->inputs, trial->sum->terms.inputs, trial->n * sizeof *trial->inputs);
}

/* `who` is added once more before place `at`. */
static bool is_twice(trial *trial, uint32_t who, uint32_t at)
{
    bring_all(trial);
    memmove(trial->inputs + at + 1, trial->inputs + at, (trial->n - at) * sizeof *trial->inputs);
    trial->inputs[at] = trial->sum->terms.inputs[who];
    trial->n++;
    return some_order_gives(trial);
}

static bool is_exchanged(trial *trial, uint32_t who, const void *other)
{
    bring_all(trial);
    trial->inputs[who] = other;
    return some_order_gives(trial);
}

static bool is_missing(trial *trial, uint32_t who)
{
    bring_all(trial);
    trial->n--;
    memmove(trial->inputs + who, trial->inputs + who + 1, (trial->n - who) * sizeof *trial->inputs);
    return some_order_gives(trial);
}

static bool find_kind(trial *trial, uint32_t who, const char *zeros, lb_term_fault_kind *kind)
{
    const lb_term_sum *s = trial->sum;
    *kind = LB_TERM_STALE;
    if (s->earlier && s->earlier[who] && is_exchanged(trial, who, s->earlier[who])) return true;
    *kind = LB_TERM_MISSING;
    if (is_missing(trial, who)) return true;
    *kind = LB_TERM_ZEROS;
    if (is_exchanged(trial, who, zeros)) return true;
    *kind = LB_TERM_TWICE;
    return is_twice(trial, who, trial->sum->terms.n) || is_twice(trial, who, who);
}

lb_status lb_term_fault_find(const lb_term_sum *sum, bool *found, lb_term_fault *fault, lb_err *err)
{
    const size_t bytes = (size_t)(sum->terms.count + 1) * (lb_dtype_bits(sum->terms.dtype) / 8);
    trial trial = {.sum = sum};
    *found = false;
    if (!lb_dtype_is_float(sum->terms.dtype) || sum->terms.n > LB_TERM_FAULT_RANKS || sum->reduction > LB_REDUCE_AVG)
        return LB_OK;
    char *zeros = calloc(bytes, 1);
    trial.out = malloc(bytes);
    lb_status status = zeros && trial.out ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for contributions");
    for (uint32_t who = 0; who < sum->terms.n && status == LB_OK && !*found; who++) {
        *found = find_kind(&trial, who, zeros, &fault->kind);
        fault->who = who;
        memcpy(fault->order, trial.order, sizeof fault->order);
    }
    free(zeros), free(trial.out);
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
