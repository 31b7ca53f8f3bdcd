/* Rows of `digits`: see digit_list.h. */
#include "check/digit_list.h"

#include "base/array.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *lb_check_digit_kind_name(lb_check_digit_kind kind)
{
    static const char *const names[] = {
#define LB_CHECK_DIGIT_TEXT(name, text) text,
        LB_CHECK_DIGIT_KINDS(LB_CHECK_DIGIT_TEXT)
#undef LB_CHECK_DIGIT_TEXT
    };
    return names[kind];
}

lb_check_digit *lb_digit_list_add(lb_check_report *report, lb_check_digit_kind kind, const lb_program *program)
{
    static const lb_check_effect unknown = {NAN, NAN, NAN, NAN, NAN};
    lb_check_digit *grown = lb_array_grow(report->digits, report->n_digits, sizeof *grown);
    if (!grown) return NULL;
    report->digits = grown;
    lb_check_digit *digit = &report->digits[report->n_digits++];
    *digit = (lb_check_digit){.kind = kind,
                              .step = program->step,
                              .rank = program->rank,
                              .phase = "",
                              .index = LB_NONE,
                              .effect = unknown,
                              .cured = unknown,
                              .digits = NAN,
                              .share = NAN,
                              .recent = NAN,
                              .bits = NAN};
    return digit;
}

void lb_digit_list_place(lb_check_digit *digit, const lb_program *program, uint32_t op)
{
    const lb_op *o = &program->ops[op];
    const lb_code_line line = lb_op_line(program, o);
    digit->phase = lb_phase_name((lb_phase)o->phase), digit->index = op, digit->ops = 1;
    snprintf(digit->layer, sizeof digit->layer, "%s", lb_op_layer(program, o));
    snprintf(digit->op, sizeof digit->op, "%s", lb_op_name(program, o));
    digit->line = lb_code_line_copy(&line);
}

bool lb_digit_list_alike(const char *a, const char *b, char *wide, size_t room)
{
    size_t n = 0;
    while (*a && *b && n + 1 < room) {
        const bool number = (isdigit((unsigned char)*a) || *a == '*') && isdigit((unsigned char)*b);
        const size_t in_a = number ? strspn(a, "0123456789*") : 1, in_b = number ? strspn(b, "0123456789") : 1;
        if (number && (in_a != in_b || strncmp(a, b, in_a) != 0))
            wide[n++] = '*', a += in_a, b += in_b;
        else if (*a == *b)
            wide[n++] = *a++, b++;
        else
            return false;
    }
    wide[n] = 0;
    return !*a && !*b;
}

void lb_digit_list_widen(lb_check_digit *digit, const char *layer)
{
    char wide[sizeof digit->layer];
    if (lb_digit_list_alike(digit->layer, layer, wide, sizeof wide))
        snprintf(digit->layer, sizeof digit->layer, "%s", wide);
}

double lb_digit_list_cost(const lb_check_effect *effect)
{
    double cost = isnan(effect->loss) ? 0 : effect->loss;
    if (effect->logits > cost) cost = effect->logits;
    return effect->gradients > cost ? effect->gradients : cost;
}

static double weight_of(const lb_check_digit *digit)
{
    if (digit->kind == LB_CHECK_DIGIT_ROUNDING) return lb_digit_list_cost(&digit->effect);
    const double weight = digit->kind == LB_CHECK_DIGIT_CANCELLATION ? digit->bits : digit->share;
    return isnan(weight) ? 0 : weight;
}

static int by_cost(const void *a, const void *b)
{
    const lb_check_digit *x = a, *y = b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    const double left = weight_of(x), right = weight_of(y);
    if (left != right) return left > right ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

void lb_digit_list_sort(lb_check_report *report)
{
    if (report->n_digits) qsort(report->digits, report->n_digits, sizeof *report->digits, by_cost);
}

static void print_row(FILE *out, const lb_check_digit *digit)
{
    char line[400];
    lb_code_line_text(&digit->line, line, sizeof line);
    fprintf(out, "    %s", *digit->layer ? digit->layer : "(outside)");
    if (*digit->op) fprintf(out, "  %s", digit->op);
    if (digit->dtype) fprintf(out, " %s", lb_dtype_name(digit->dtype));
    if (!isnan(digit->digits)) fprintf(out, ", %.1f digits are right", digit->digits);
    if (!isnan(digit->bits)) fprintf(out, ", %.1f bits", digit->bits);
    if (!isnan(digit->share)) fprintf(out, ", %.3g %%", 100 * digit->share);
    if (*line) fprintf(out, "\n        %s", line);
    fprintf(out, "\n        %s\n", digit->message);
    if (*digit->cure) fprintf(out, "        cure: %s\n", digit->cure);
}

void lb_digit_list_print(const lb_check_report *report, FILE *out)
{
    static const char *const titles[] = {"what costs most digits, each line of code alone",
                                         "sums that cancel",
                                         "updates that were absorbed",
                                         "states of optimizers that underflow",
                                         "numbers that left the range of their dtype",
                                         "headroom of gradients in f16",
                                         "choices near a tie"};
    static const double LEAST = 1e-4; /* of the whole rounding */
    enum { SHOWN = 8 };
    uint32_t n = 0;
    for (uint32_t i = 0; i < report->n_digits; i++) {
        const lb_check_digit *digit = &report->digits[i];
        const bool first = !i || report->digits[i - 1].kind != digit->kind;
        n = first ? 1 : n + 1;
        if (digit->kind == LB_CHECK_DIGIT_ROUNDING && n > 1 && digit->share < LEAST) continue;
        if (first) fprintf(out, "%s:\n", titles[digit->kind]);
        if (n <= SHOWN) print_row(out, digit);
        if (n == SHOWN + 1) fprintf(out, "    and more: --json has all\n");
    }
}

void lb_digit_list_release(lb_check_report *report)
{
    for (uint32_t i = 0; i < report->n_digits; i++) lb_code_line_release(&report->digits[i].line);
    free(report->digits);
}
