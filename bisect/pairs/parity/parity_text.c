/* A parity report for a person, and its heat map: see lastbit/parity.h. */
#include "compare/number_word.h"
#include "parity/parity_verdict.h"
#include "shell/shell_word.h"
#include "parity/token_set.h"

#include <lastbit/text.h>
#include <lastbit/text_stream.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *number(double x, char text[16])
{
    return lb_number_word(x, 4, text);
}

/* "3.2x" above the noise floor; "-" where none is known. */
static const char *above(const lb_parity_row *row, char text[16])
{
    if (isnan(row->noise) || isnan(row->k3))
        snprintf(text, 16, "-");
    else if (row->noise > 0)
        snprintf(text, 16, "%.3gx", row->k3 / row->noise);
    else
        snprintf(text, 16, row->k3 > 0 ? "floor 0" : "at floor");
    return text;
}

static void print_row(FILE *out, const lb_parity_row *row, bool judged)
{
    char t[8][16];
    fprintf(out, "%-16s %8llu %10s %10s %8s %10s %10s %10s %10s %10s%s\n", row->name, (unsigned long long)row->count,
            number(row->k3, t[0]), number(row->kl, t[1]), number(row->top1, t[2]), number(row->mean_abs, t[3]),
            number(row->max_abs, t[4]), number(row->loss_a, t[5]), number(row->loss_b, t[6]), above(row, t[7]),
            !judged || row->reason == LB_PARITY_BY_WITHIN ? ""
            : row->reason == LB_PARITY_BY_NOISE           ? "  in the noise"
            : row->reason == LB_PARITY_BY_LOSS            ? "  FAIL (loss)"
                                                          : "  FAIL");
}

static void print_table(FILE *out, const char *title, const lb_parity_row *rows, uint32_t n, bool judged)
{
    fprintf(out, "\n%-16s %8s %10s %10s %8s %10s %10s %10s %10s %10s\n", title, "tokens", "k3", "KL", "top-1",
            "mean |d|", "max |d|", "loss first", "loss 2nd", "over noise");
    for (uint32_t i = 0; i < n; i++) print_row(out, &rows[i], judged);
}

static void print_piece(FILE *out, const lb_token *token)
{
    if (!token->text) {
        fprintf(out, "token id %lld", (long long)token->id);
        return;
    }
    fputc('"', out);
    for (const char *c = token->text; *c; c++) fputc((unsigned char)*c < ' ' || *c == 0x7f ? ' ' : *c, out);
    fputc('"', out);
}

static void print_worst(FILE *out, const lb_parity_report *report, const lb_token_set *set)
{
    if (!report->n_worst) return;
    fprintf(out, "\nlargest k3      sequence  token    first   second  what\n");
    for (uint32_t i = 0; i < report->n_worst; i++) {
        const lb_parity_token *token = &report->worst[i];
        fprintf(out, "%-15.4g %8u %6u %8.4f %8.4f  ", token->k3, token->sequence, token->a, token->log_p, token->log_q);
        print_piece(out, &set->sequences[token->sequence].tokens[token->a]);
        fputc('\n', out);
    }
}

/* "passes below 0.001; two runs of the first side: 2e-05" */
static void print_k3(FILE *out, const lb_parity_report *report, double threshold)
{
    char text[16];
    fprintf(out, "k3    %s over %llu tokens", number(report->all.k3, text), (unsigned long long)report->all.count);
    if (report->all.noise > 0)
        fprintf(out, ", %.3g times the noise floor %.3g", report->all.k3 / report->all.noise, report->all.noise);
    else if (report->all.noise == 0)
        fprintf(out, ", where two runs of the first side agree to the last bit");
    else
        fprintf(out, "; noise floor unknown (--noise: another run of the first side)");
    fprintf(out, "; passes below %.4g for every kind\n", threshold);
}

static void print_loss(FILE *out, const lb_parity_report *report)
{
    char text[2][16];
    const double factor = lb_parity_loss_factor(report->all.loss_a, report->all.loss_b);
    fprintf(out, "loss  %s first, %s second", number(report->all.loss_a, text[0]), number(report->all.loss_b, text[1]));
    if (!isnan(factor)) fprintf(out, ": a factor of %.4g", factor);
    if (!isnan(report->all.noise_loss)) fprintf(out, " (two runs of the first side: %.4g)", report->all.noise_loss);
    fprintf(out, "; passes up to %.3g for every kind\n", lb_parity_verdict_loss_limit(&report->all));
}

static void print_part(FILE *out, const char **before, uint64_t n, const char *what)
{
    if (!n) return;
    fprintf(out, "%s%llu %s", *before, (unsigned long long)n, what);
    *before = ", ";
}

/* What was not compared, and why. */
static void print_coverage(FILE *out, const lb_parity_report *report)
{
    for (int side = 0; side < 2; side++) {
        const lb_parity_coverage *coverage = &report->coverage[side];
        const char *before = "; not: ";
        fprintf(out, "%s  %llu of %llu tokens compared", side ? "second" : "first ",
                (unsigned long long)coverage->compared, (unsigned long long)coverage->tokens);
        print_part(out, &before, coverage->first, "without a number as the first of their sequence");
        print_part(out, &before, coverage->unscored, "without a number elsewhere");
        print_part(out, &before, coverage->unmatched, "that the other side lacks or has no number for");
        fputc('\n', out);
    }
}

static void print_verdict(FILE *out, const lb_parity_report *report, double threshold)
{
    fprintf(out, "verdict: %s%s%s\n", lb_parity_verdict_name(report->verdict), *report->decided ? " — " : "",
            report->decided);
    if (!report->all.count) {
        print_coverage(out, report);
        return;
    }
    if (report->all.reason == LB_PARITY_BY_LOSS) print_loss(out, report);
    print_k3(out, report, lb_parity_verdict_k3_limit(&report->all, threshold));
    if (report->all.reason != LB_PARITY_BY_LOSS) print_loss(out, report);
    print_coverage(out, report);
    if (report->all.held)
        fprintf(out, "%llu tokens differ by more than is counted (d is held to 20, k3 to 10)\n",
                (unsigned long long)report->all.held);
    if (report->all.nonfinite)
        fprintf(out, "%llu tokens have the probability 0 on one side\n", (unsigned long long)report->all.nonfinite);
}

/* One command or step that would tell more. */
static void print_next(FILE *out, const lb_parity_report *report, const lb_token_set *a, const lb_token_set *b)
{
    if (report->verdict == LB_PARITY_FAIL && a->recorded && b->recorded) {
        fputs("where it begins: lastbit diff ", out), lb_shell_word(out, a->path), fputc(' ', out),
            lb_shell_word(out, b->path), fputc('\n', out);
    } else if (report->verdict == LB_PARITY_FAIL && report->n_findings &&
               report->findings[report->n_findings - 1].kind == LB_PARITY_UNTOLD) {
        fputs("next: of an adapter or checkpoint, lastbit audit CKPT --against CKPT; of two recorded runs, "
              "lastbit diff A.lb B.lb\n",
              out);
    }
}

char *lb_parity_text(const lb_parity_report *report, const lb_token_set *a, const lb_token_set *b, double threshold)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    print_verdict(out, report, threshold);
    for (uint32_t i = 0; i < report->n_findings; i++)
        fprintf(out, "%s %s: %s\n", i ? "       " : "\nfound: ", lb_parity_finding_name(report->findings[i].kind),
                report->findings[i].message);
    if (report->all.count) {
        print_table(out, "kind", report->kinds, report->n_kinds, true);
        if (report->n_kinds > 1) print_row(out, &report->all, false);
        if (report->n_positions > 1) print_table(out, "position", report->positions, report->n_positions, false);
        print_worst(out, report, a);
    }
    fprintf(out, "\nfirst:  %s\nsecond: %s\n", a->path, b->path);
    print_next(out, report, a, b);
    if (fclose(out) != 0) free(text), text = NULL;
    return text;
}

/* ---- the heat map ---- */

/* Of the 6 x 6 x 6 cube of a terminal's 256 colours: red for 0, yellow for a half, green for 1. */
static int colour_of(double probability)
{
    const double p = probability < 0 || isnan(probability) ? 0 : probability > 1 ? 1 : probability;
    const int red = p < 0.5 ? 5 : (int)lround(5 * (2 - 2 * p)), green = p > 0.5 ? 5 : (int)lround(5 * 2 * p);
    return 16 + 36 * red + 6 * green;
}

/* Cells of a terminal that a text takes, about: a byte that continues a character of UTF-8 takes none. */
static uint32_t cells_of(const char *text)
{
    uint32_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

typedef struct piece {
    char text[48];
    uint32_t cells;
    double p, q; /* probabilities */
} piece;

static piece piece_of(const lb_parity_token *token, const lb_token *of)
{
    piece x = {.p = exp(token->log_p), .q = exp(token->log_q)};
    if (of->text)
        lb_text_escape(LB_TEXT_UTF8, of->text, strlen(of->text), x.text, 41);
    else
        snprintf(x.text, sizeof x.text, " %lld", (long long)of->id);
    for (char *c = x.text; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    if (!*x.text) strcpy(x.text, " ");
    x.cells = cells_of(x.text);
    return x;
}

static char tenths(double p)
{
    return isnan(p) ? '?' : p >= 1 ? '9' : (char)('0' + (int)(10 * p));
}

/* One line of pieces, as the first or the second side sees them. */
static void print_line(FILE *out, const piece *pieces, uint32_t n, bool second, lb_parity_colour colour)
{
    fprintf(out, second ? "  second  " : "  first   ");
    for (uint32_t i = 0; i < n; i++) {
        const double p = second ? pieces[i].q : pieces[i].p;
        if (colour) {
            char numbers[24];
            snprintf(numbers, sizeof numbers, "30;48;5;%d", colour_of(p));
            fprintf(out, "%s%s%s", colour(numbers), pieces[i].text, colour("0"));
            continue;
        }
        fputc(tenths(p), out);
        for (uint32_t c = 1; c < pieces[i].cells; c++) fputc(' ', out);
    }
    fputc('\n', out);
}

static void print_pieces(FILE *out, const piece *pieces, uint32_t n, lb_parity_colour colour)
{
    if (!n) return;
    if (!colour) {
        fprintf(out, "          ");
        for (uint32_t i = 0; i < n; i++) fputs(pieces[i].text, out);
        fputc('\n', out);
    }
    print_line(out, pieces, n, false, colour), print_line(out, pieces, n, true, colour);
    fputc('\n', out);
}

char *lb_parity_heat_map(const lb_parity_report *report, const lb_token_set *set, uint32_t row, uint32_t width,
                         lb_parity_colour colour)
{
    char *text = NULL;
    size_t size = 0;
    if (row >= report->n_pairs) return strdup("");
    const lb_parity_pair *pair = &report->pairs[row];
    piece *pieces = malloc((width + 1) * sizeof *pieces);
    FILE *out = pieces ? lb_text_stream_open(&text, &size) : NULL;
    if (!out) {
        free(pieces);
        return NULL;
    }
    uint32_t n = 0, cells = 10;
    for (uint32_t i = 0; i < pair->n; i++) {
        const piece next = piece_of(&pair->tokens[i], &set->sequences[pair->a].tokens[pair->tokens[i].a]);
        if (n && (cells + next.cells > width || n == width)) {
            print_pieces(out, pieces, n, colour);
            n = 0, cells = 10;
        }
        pieces[n++] = next, cells += next.cells;
    }
    print_pieces(out, pieces, n, colour);
    free(pieces);
    if (fclose(out) != 0) free(text), text = NULL;
    return text;
}
