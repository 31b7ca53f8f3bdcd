/* Words for results of collectives: see collective_result_text.h. */
#include "exchanges/collective_result_text.h"

#include "orders/term_fault.h"

#include <lastbit/text_stream.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is told ------------------------------------------------------------------------------------------------ */

/* The first element that is wrong on a member; how many there are. */
typedef struct fault {
    int64_t element, count;
    uint32_t member;
    char wrong[8], right[8];
} fault;

static void find_fault(const lb_collective_exchange *exchange, uint32_t member, fault *fault)
{
    const size_t width = lb_collective_exchange_width(exchange, member);
    const lb_collective_stream *got = &exchange->received[member];
    for (int64_t k = 0; exchange->right[member] && k < got->elements; k++) {
        const char *a = got->bytes + (size_t)k * width, *b = exchange->right[member] + (size_t)k * width;
        if (!memcmp(a, b, width)) continue;
        if (!fault->count++) {
            fault->element = k, fault->member = member;
            memcpy(fault->wrong, a, width < 8 ? width : 8), memcpy(fault->right, b, width < 8 ? width : 8);
        }
    }
}

static void print_number(FILE *out, lb_dtype dtype, const char *bytes)
{
    double x;
    int64_t i;
    if (lb_dtype_is_integer(dtype)) {
        lb_convert(LB_I64, &i, dtype, bytes, 1, NULL);
        fprintf(out, "%" PRId64, i);
    } else {
        lb_load_f64(&x, dtype, bytes, 1);
        fprintf(out, "%.9g", x);
    }
}

/* Of many, the first, the last and how many. */
static void print_ranks(FILE *out, const int32_t *ranks, uint32_t n)
{
    enum { MANY = 16 };
    fputs(n == 1 ? "rank " : "ranks ", out);
    if (n > MANY)
        fprintf(out, "%d,%d,…,%d (%" PRIu32 " ranks)", ranks[0], ranks[1], ranks[n - 1], n);
    else
        for (uint32_t i = 0; i < n; i++) fprintf(out, "%s%d", i ? "," : "", ranks[i]);
}

static void print_call(FILE *out, const lb_collective_exchange *exchange)
{
    const lb_collective_member *member = exchange->meeting->members;
    const char *name = lb_collective_member_name(member), *after = strstr(name, "::"), *base = after ? after + 2 : name;
    const char *group = lb_program_text(member->program, lb_collective_member_row(member)->group);
    if (exchange->meeting->message)
        fprintf(out, "message %" PRIu32 " from rank %d to rank %d", member->ordinal,
                lb_collective_member_rank(member, member->sender), lb_collective_member_rank(member, member->receiver));
    else
        fprintf(out, "%s%s%s%s %" PRIu32 " of group %s", base,
                lb_collective_member_row(member)->reduce == LB_NONE ? "" : "(",
                lb_collective_member_row(member)->reduce == LB_NONE
                    ? ""
                    : lb_program_text(member->program, lb_collective_member_row(member)->reduce),
                lb_collective_member_row(member)->reduce == LB_NONE ? "" : ")", member->ordinal,
                *group ? group : "(unnamed)");
    if (*lb_op_layer(member->program, &member->program->ops[member->op]))
        fprintf(out, " in %s", lb_op_layer(member->program, &member->program->ops[member->op]));
}

/* What each member received of the sum's element `at`; NULL: nothing. */
static void list_received(const lb_collective_exchange *exchange, const lb_rank_terms *terms, int64_t at,
                          const void **received)
{
    const size_t width = lb_dtype_bits(terms->dtype) / 8;
    for (uint32_t i = 0; i < terms->n; i++) {
        const lb_collective_member *member = &exchange->meeting->members[i];
        const int64_t from = lb_collective_exchange_part(exchange, terms, i);
        const lb_collective_stream *got = &exchange->received[i];
        const bool has =
            lb_collective_run_receives(member->program, &member->program->ops[member->op], member->place) &&
            from >= 0 && got->bytes && got->dtype == terms->dtype && at >= from && at < from + got->elements;
        received[i] = has ? got->bytes + (size_t)(at - from) * width : NULL;
    }
}

/* Is what all received the sum of other contributions? Said if so. */
static bool print_term_fault(FILE *out, const lb_collective_exchange *exchange, lb_collective_finding *found)
{
    const void *inputs[LB_COLLECTIVE_MAX_RANKS], *earlier[LB_TERM_FAULT_RANKS];
    lb_term_part parts[LB_TERM_FAULT_RANKS];
    lb_term_sum sum = {.reduction = exchange->reduction, .parts = parts};
    lb_term_fault fault;
    bool is_one = false;
    char text[96];
    if (exchange->meeting->n > LB_TERM_FAULT_RANKS || !lb_collective_exchange_terms(exchange, inputs, &sum.terms))
        return false;
    for (uint32_t i = 0; i < exchange->meeting->n; i++) {
        const lb_collective_member *member = &exchange->meeting->members[i];
        const lb_collective_stream *got = &exchange->received[i],
                                   *old = exchange->earlier ? &exchange->earlier[i] : NULL;
        const int64_t from = lb_collective_exchange_part(exchange, &sum.terms, i);
        earlier[i] =
            old && old->bytes && old->dtype == sum.terms.dtype && old->elements == sum.terms.count ? old->bytes : NULL;
        if (!lb_collective_run_receives(member->program, &member->program->ops[member->op], member->place)) continue;
        if (from < 0 || !got->bytes || got->dtype != sum.terms.dtype) return false;
        parts[sum.n_parts++] = (lb_term_part){from, got->elements, got->bytes};
    }
    sum.home = exchange->kind == LB_EXCHANGE_REDUCE ? lb_collective_exchange_home(exchange, &exchange->order, 0) : 0;
    sum.blocks = exchange->kind == LB_EXCHANGE_REDUCE_SCATTER;
    sum.earlier = earlier;
    if (lb_term_fault_find(&sum, &is_one, &fault, NULL) != LB_OK || !is_one) return false;
    found->brought = lb_collective_member_rank(exchange->meeting->members, fault.who);
    lb_term_fault_text(&fault, found->brought, text, sizeof text);
    fprintf(out, ". All of it is the sum %s, in order %s", text, fault.order);
    return true;
}

static void print_bits(FILE *out, uint64_t bits)
{
    const int one = lb_sum_fault_one_bit(bits);
    if (one >= 0) {
        fprintf(out, "bit %d", one);
        return;
    }
    fputs("bits", out);
    for (int b = 0, n = 0; b < 64; b++)
        if (bits >> b & 1) fprintf(out, "%s%d", n++ ? "," : " ", b);
}

typedef struct asked_element {
    const lb_collective_exchange *x;
    int64_t at;
} asked_element;

static bool may_be(void *context, lb_collective_order *order)
{
    const asked_element *asked = context;
    order->home = lb_collective_exchange_home(asked->x, order, asked->at);
    return lb_collective_exchange_fits(asked->x, order);
}

static bool is_same_hop(const lb_sum_fault_hop *a, const lb_sum_fault_hop *b)
{
    return a->from == b->from && a->to == b->to;
}

/* "bit 17, or bit 19 on the way from rank 3 to rank 4"; true: there is one hop. Of many the first are named. */
static bool print_way(FILE *out, const lb_collective_member *member, const lb_sum_fault_way *way)
{
    enum { FEW_HOPS = 4 };
    bool one_hop = true;
    for (uint32_t i = 1; i < way->n; i++) one_hop &= is_same_hop(&way->hops[i], &way->hops[0]);
    const bool few = way->possible <= FEW_HOPS || one_hop;
    for (uint32_t i = 0; i < (few ? way->n : FEW_HOPS); i++) {
        const lb_sum_fault_hop *hop = &way->hops[i], *next = i + 1 < way->n ? hop + 1 : NULL;
        fputs(i ? ", or " : "", out);
        print_bits(out, hop->bits);
        if (!next || !few || !is_same_hop(next, hop))
            fprintf(out, " on the way from rank %d to rank %d", lb_collective_member_rank(member, hop->from),
                    lb_collective_member_rank(member, hop->to));
    }
    if (!few) fprintf(out, ", or one of %" PRIu32 " more", way->possible - FEW_HOPS);
    if (!one_hop)
        fprintf(out, ": each of these %" PRIu32 " gives what was received, and the bits do not tell which it was",
                way->possible);
    return one_hop;
}

/* As many as are listed, of all ways. */
static void keep_hops(const lb_collective_member *member, const lb_sum_fault_way *ways, uint32_t n,
                      lb_collective_finding *found)
{
    found->hops = calloc(LB_SUM_FAULT_HOPS, sizeof *found->hops);
    for (uint32_t i = 0; i < n; i++) {
        found->possible += ways[i].possible;
        for (uint32_t k = 0; k < ways[i].n && found->hops && found->n_hops < LB_SUM_FAULT_HOPS; k++) {
            const lb_sum_fault_hop *hop = &ways[i].hops[k];
            lb_ranks_hop *kept = &found->hops[found->n_hops++];
            *kept = (lb_ranks_hop){.from = lb_collective_member_rank(member, hop->from),
                                   .to = lb_collective_member_rank(member, hop->to),
                                   .bits = hop->bits};
            snprintf(kept->order, sizeof kept->order, "%.47s", ways[i].order);
        }
    }
}

/* Which hop of the sum carried other bits; `all`: every rank that receives this element received it wrong. */
static void print_hops(FILE *out, const lb_collective_exchange *exchange, const fault *fault, bool all,
                       lb_collective_finding *found)
{
    enum { WAYS = 3, FEW = 16 };
    const void *inputs[LB_COLLECTIVE_MAX_RANKS], *received[LB_COLLECTIVE_MAX_RANKS];
    lb_rank_terms terms;
    lb_sum_fault_way ways[WAYS];
    const lb_collective_member *member = exchange->meeting->members;
    const lb_collective *row = lb_collective_member_row(member);
    if (!lb_collective_exchange_terms(exchange, inputs, &terms)) return;
    asked_element asked = {exchange, lb_collective_exchange_part(exchange, &terms, fault->member) + fault->element};
    list_received(exchange, &terms, asked.at, received);
    const lb_sum_fault_question question = {
        .reduction = exchange->reduction,
        .terms = &terms,
        .at = asked.at,
        .received = received,
        .told = row->algorithm != LB_NONE ? lb_program_text(member->program, row->algorithm) : NULL,
        .fits = may_be,
        .context = &asked};
    /* Where most elements are wrong it was no bit on a hop. */
    const bool few = exchange->misses <= (int64_t)FEW * exchange->meeting->n;
    const uint32_t n = few ? lb_sum_fault_ways(&question, ways, question.told ? 1 : WAYS) : 0;
    if (!n && all && exchange->proven)
        fputs(". All received the same, so that it happened while the sum was made", out);
    if (n) keep_hops(member, ways, n, found);
    for (uint32_t i = 0; i < n; i++) {
        fprintf(out,
                i     ? "; in order %s, which gives the same sums, "
                : all ? ". All received the same: in order %s it is "
                      : ". In order %s it is ",
                ways[i].order);
        if (!print_way(out, member, &ways[i]) || i) continue;
        const lb_sum_fault_hop *hop = ways[i].hops;
        found->from = lb_collective_member_rank(member, hop->from),
        found->to = lb_collective_member_rank(member, hop->to);
        if (ways[i].n == 1 && lb_sum_fault_one_bit(hop->bits) >= 0) found->bit = lb_sum_fault_one_bit(hop->bits);
    }
}

static void print_element(FILE *out, const lb_collective_exchange *exchange, const fault *fault,
                          const lb_collective_finding *found)
{
    const lb_dtype dtype = exchange->received[fault->member].dtype;
    fprintf(out, ": element %" PRId64 " is ", fault->element);
    print_number(out, dtype, fault->wrong);
    fputs(" for ", out);
    print_number(out, dtype, fault->right);
    if (found->bit >= 0 && found->bit == lb_sum_fault_bit(fault->wrong, fault->right,
                                                          lb_collective_exchange_width(exchange, fault->member)))
        fprintf(out, ", bit %d of its %s is turned over", found->bit, lb_dtype_name(dtype));
    if (fault->count > 1) fprintf(out, ", and %" PRId64 " more are wrong", fault->count - 1);
}

static uint32_t receivers_of(const lb_collective_exchange *exchange)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < exchange->meeting->n; i++) {
        const lb_collective_member *member = &exchange->meeting->members[i];
        n += lb_collective_run_receives(member->program, &member->program->ops[member->op], member->place);
    }
    return exchange->kind == LB_EXCHANGE_REDUCE_SCATTER ? 1 : n;
}

static void print_hop(FILE *out, const lb_collective_exchange *exchange, uint32_t n_wrong, const fault *fault,
                      lb_collective_finding *found)
{
    if (exchange->meeting->message) {
        const lb_collective_member *member = exchange->meeting->members;
        found->from = lb_collective_member_rank(member, member->sender),
        found->to = lb_collective_member_rank(member, member->receiver);
        fprintf(out, ". The bits changed on this hop, or in the memory of either rank");
        return;
    }
    if (!exchange->sums) return;
    if (exchange->proven && fault->count > 1 && print_term_fault(out, exchange, found)) return;
    print_hops(out, exchange, fault, n_wrong == receivers_of(exchange), found);
}

static char *result_message(const lb_collective_exchange *exchange, const fault *fault, lb_collective_finding *found)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    print_ranks(out, found->ranks, found->n_ranks);
    fputs(exchange->meeting->message              ? " did not receive what was sent in "
          : exchange->proven && exchange->sums    ? " received what no order of the sum gives from "
          : exchange->proven                      ? " did not receive what was sent from "
          : found->n_ranks < exchange->meeting->n ? " did not receive what the others did from "
                                                  : " did not all receive the same from ",
          out);
    print_call(out, exchange);
    if (fault->count)
        print_element(out, exchange, fault, found), print_hop(out, exchange, found->n_ranks, fault, found);
    else
        fputs(": the digests differ, and the bytes were not kept", out);
    fclose(out);
    return text;
}

void lb_collective_result_text(const lb_collective_exchange *exchange, const bool *wrong, lb_collective_finding *found)
{
    fault fault = {.element = -1};
    for (uint32_t i = 0; i < exchange->meeting->n && !fault.count; i++)
        if (wrong[i]) find_fault(exchange, i, &fault);
    found->element = fault.element;
    if (fault.count)
        found->bit = lb_sum_fault_bit(fault.wrong, fault.right, lb_collective_exchange_width(exchange, fault.member));
    found->message = result_message(exchange, &fault, found);
}

static void print_question(FILE *out, const lb_collective_member *member)
{
    const char *name = lb_collective_member_name(member), *after = strstr(name, "::");
    const lb_collective *row = lb_collective_member_row(member);
    int64_t elements = 0;
    for (uint32_t i = 0; i < member->n_inputs; i++)
        elements += lb_layout_numel(&member->program->values[member->inputs[i]].layout);
    fprintf(out, "%s%s%s%s of %" PRId64 " %s", after ? after + 2 : name, row->reduce == LB_NONE ? "" : "(",
            row->reduce == LB_NONE ? "" : lb_program_text(member->program, row->reduce),
            row->reduce == LB_NONE ? "" : ")", elements,
            member->n_inputs ? lb_dtype_name(member->program->values[member->inputs[0]].dtype) : "elements");
    if (lb_collective_run_kind(name) == LB_EXCHANGE_REDUCE)
        fprintf(out, " to place %u", lb_collective_run_root(member->program, &member->program->ops[member->op]));
}

void lb_collective_result_text_calls(const lb_collective_meeting *meeting, const bool *other,
                                     lb_collective_finding *found)
{
    char *text = NULL;
    size_t size = 0;
    uint32_t one = 0, rest = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    const lb_collective_exchange exchange = {.meeting = meeting};
    found->message = NULL;
    if (!out) return;
    while (!other[one]) one++;
    while (rest + 1 < meeting->n && other[rest]) rest++;
    print_ranks(out, found->ranks, found->n_ranks);
    fputs(found->n_ranks == meeting->n ? " did not all call the same in "
                                       : " called something else than the others in ",
          out);
    print_call(out, &exchange);
    fputs(": ", out);
    print_question(out, &meeting->members[one]);
    if (found->n_ranks < meeting->n) fputs(", the others ", out), print_question(out, &meeting->members[rest]);
    fclose(out);
    found->message = text;
}

char *lb_collective_result_text_nonfinite(const lb_collective_finding *found, const lb_collective_member *member,
                                          uint32_t value)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    const lb_statistics *statistics = &member->program->statistics[member->program->values[value].statistics];
    const lb_collective_meeting alone = {(lb_collective_member *)member, 1, member->sender != member->receiver, true};
    const lb_collective_exchange exchange = {.meeting = &alone};
    if (!out) return NULL;
    print_ranks(out, found->ranks, found->n_ranks);
    fprintf(out,
            " sent numbers that are not finite, and had received none: %" PRId64 " NaN, %" PRId64
            " infinite of %" PRId64,
            statistics->nan, statistics->pos_inf + statistics->neg_inf, statistics->elements);
    if (found->n_ranks > 1) fprintf(out, " on rank %d", found->rank);
    fputs(" in ", out);
    print_call(out, &exchange);
    if (member->program->values[value].name != LB_NONE)
        fprintf(out, " (%s)", lb_program_text(member->program, member->program->values[value].name));
    fputs(". What other ranks have of it came from there", out);
    fclose(out);
    return text;
}
