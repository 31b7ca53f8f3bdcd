/* Words for results of collectives: see collective_result_text.h. */
#define _GNU_SOURCE /* open_memstream */
#include "exchanges/collective_result_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HOPS = 4 };

/* ---- what is told ------------------------------------------------------------------------------------------------ */

/* The first element that is wrong on a member; how many there are. */
typedef struct fault {
    int64_t element, count;
    uint32_t member;
    char wrong[8], right[8];
} fault;

static void find_fault(const lb_collective_exchange *x, uint32_t member, fault *f)
{
    const size_t width = lb_collective_exchange_width(x, member);
    const lb_collective_stream *got = &x->received[member];
    for (int64_t k = 0; x->right[member] && k < got->elements; k++) {
        const char *a = got->bytes + (size_t)k * width, *b = x->right[member] + (size_t)k * width;
        if (!memcmp(a, b, width)) continue;
        if (!f->count++) {
            f->element = k, f->member = member;
            memcpy(f->wrong, a, width < 8 ? width : 8), memcpy(f->right, b, width < 8 ? width : 8);
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

static void print_ranks(FILE *out, const int32_t *ranks, uint32_t n)
{
    fputs(n == 1 ? "rank " : "ranks ", out);
    for (uint32_t i = 0; i < n; i++) fprintf(out, "%s%d", i ? "," : "", ranks[i]);
}

static void print_call(FILE *out, const lb_collective_exchange *x)
{
    const lb_collective_member *m = x->meeting->members;
    const char *name = lb_collective_member_name(m), *after = strstr(name, "::"), *base = after ? after + 2 : name;
    const char *group = lb_program_text(m->program, lb_collective_member_row(m)->group);
    if (x->meeting->message)
        fprintf(out, "message %" PRIu32 " from rank %d to rank %d", m->ordinal, lb_collective_member_rank(m, m->sender),
                lb_collective_member_rank(m, m->receiver));
    else
        fprintf(out, "%s%s%s%s %" PRIu32 " of group %s", base,
                lb_collective_member_row(m)->reduce == LB_NONE ? "" : "(",
                lb_collective_member_row(m)->reduce == LB_NONE
                    ? ""
                    : lb_program_text(m->program, lb_collective_member_row(m)->reduce),
                lb_collective_member_row(m)->reduce == LB_NONE ? "" : ")", m->ordinal, *group ? group : "(unnamed)");
    if (*lb_op_layer(m->program, &m->program->ops[m->op]))
        fprintf(out, " in %s", lb_op_layer(m->program, &m->program->ops[m->op]));
}

/* The result goes around the ring: who is behind the hop received it changed. */
static bool find_late_hop(const lb_collective_exchange *x, const bool *wrong, const fault *f,
                          lb_collective_finding *found)
{
    const void *inputs[LB_COLLECTIVE_MAX_RANKS];
    lb_rank_terms terms;
    lb_sum_fault_hop hop;
    if (x->kind != LB_EXCHANGE_ALL_REDUCE || !lb_collective_exchange_terms(x, inputs, &terms) ||
        !lb_sum_fault_late(&x->order, &terms, f->element, wrong, &hop))
        return false;
    found->from = lb_collective_member_rank(x->meeting->members, hop.from);
    found->to = lb_collective_member_rank(x->meeting->members, hop.to);
    return true;
}

/* All received one number that no order gives: a bit of a sum that was handed on. */
static void print_early_hops(FILE *out, const lb_collective_exchange *x, const fault *f, lb_collective_finding *found)
{
    const void *inputs[LB_COLLECTIVE_MAX_RANKS];
    lb_rank_terms terms;
    lb_sum_fault_hop hops[MOST_HOPS];
    const lb_collective_member *m = x->meeting->members;
    if (!lb_collective_exchange_terms(x, inputs, &terms)) return;
    const int64_t at = lb_collective_exchange_part(x, &terms, f->member) + f->element;
    const uint32_t n = lb_sum_fault_hops(&x->order, x->reduction, &terms, at, f->wrong, hops, MOST_HOPS);
    if (!n || n > MOST_HOPS) {
        fputs(". All received the same, so that it happened while the sum was made", out);
        return;
    }
    fputs(". All received the same: in a ring it is one bit of a partial sum, ", out);
    for (uint32_t i = 0; i < n; i++)
        fprintf(out, "%sbit %d on the way from rank %d to rank %d", i ? ", or " : "", hops[i].bit,
                lb_collective_member_rank(m, hops[i].from), lb_collective_member_rank(m, hops[i].to));
    if (n > 1) return;
    found->from = lb_collective_member_rank(m, hops[0].from), found->to = lb_collective_member_rank(m, hops[0].to);
    found->bit = hops[0].bit;
}

static void print_element(FILE *out, const lb_collective_exchange *x, const fault *f,
                          const lb_collective_finding *found)
{
    const lb_dtype dtype = x->received[f->member].dtype;
    fprintf(out, ": element %" PRId64 " is ", f->element);
    print_number(out, dtype, f->wrong);
    fputs(" for ", out);
    print_number(out, dtype, f->right);
    if (found->bit >= 0 &&
        found->bit == lb_sum_fault_bit(f->wrong, f->right, lb_collective_exchange_width(x, f->member)))
        fprintf(out, ", bit %d of its %s is turned over", found->bit, lb_dtype_name(dtype));
    if (f->count > 1) fprintf(out, ", and %" PRId64 " more are wrong", f->count - 1);
}

static void print_hop(FILE *out, const lb_collective_exchange *x, const bool *wrong, uint32_t n_wrong, const fault *f,
                      lb_collective_finding *found)
{
    if (x->meeting->message) {
        const lb_collective_member *m = x->meeting->members;
        found->from = lb_collective_member_rank(m, m->sender), found->to = lb_collective_member_rank(m, m->receiver);
        fprintf(out, ". The bits changed on this hop, or in the memory of either rank");
        return;
    }
    if (!x->sums || !x->proven) return;
    if (n_wrong == x->meeting->n)
        print_early_hops(out, x, f, found);
    else if (find_late_hop(x, wrong, f, found))
        fprintf(out, ". The result went around a ring: the bits changed between rank %d and rank %d%s", found->from,
                found->to, n_wrong == 1 ? ", or in the memory of the latter" : "");
}

static char *result_message(const lb_collective_exchange *x, const bool *wrong, const fault *f,
                            lb_collective_finding *found)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    print_ranks(out, found->ranks, found->n_ranks);
    fputs(x->meeting->message              ? " did not receive what was sent in "
          : x->proven && x->sums           ? " received what no order of the sum gives from "
          : x->proven                      ? " did not receive what was sent from "
          : found->n_ranks < x->meeting->n ? " did not receive what the others did from "
                                           : " did not all receive the same from ",
          out);
    print_call(out, x);
    if (f->count)
        print_element(out, x, f, found), print_hop(out, x, wrong, found->n_ranks, f, found);
    else
        fputs(": the digests differ, and the bytes were not kept", out);
    fclose(out);
    return text;
}

void lb_collective_result_text(const lb_collective_exchange *x, const bool *wrong, lb_collective_finding *found)
{
    fault f = {.element = -1};
    for (uint32_t i = 0; i < x->meeting->n && !f.count; i++)
        if (wrong[i]) find_fault(x, i, &f);
    found->element = f.element;
    if (f.count) found->bit = lb_sum_fault_bit(f.wrong, f.right, lb_collective_exchange_width(x, f.member));
    found->message = result_message(x, wrong, &f, found);
}

char *lb_collective_result_text_nonfinite(const lb_collective_finding *found, const lb_collective_member *m,
                                          uint32_t value)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    const lb_statistics *s = &m->program->statistics[m->program->values[value].statistics];
    const lb_collective_meeting alone = {(lb_collective_member *)m, 1, m->sender != m->receiver, true};
    const lb_collective_exchange x = {.meeting = &alone};
    if (!out) return NULL;
    print_ranks(out, found->ranks, found->n_ranks);
    fprintf(out,
            " sent numbers that are not finite, and had received none: %" PRId64 " NaN, %" PRId64
            " infinite of %" PRId64,
            s->nan, s->pos_inf + s->neg_inf, s->elements);
    if (found->n_ranks > 1) fprintf(out, " on rank %d", found->rank);
    fputs(" in ", out);
    print_call(out, &x);
    if (m->program->values[value].name != LB_NONE)
        fprintf(out, " (%s)", lb_program_text(m->program, m->program->values[value].name));
    fputs(". What other ranks have of it came from there", out);
    fclose(out);
    return text;
}
