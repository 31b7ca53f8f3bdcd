/* lastbit parity A B: log-probabilities of the same tokens in two files. The engine is in bisect/pairs/parity. */
#include "command/command_line.h"
#include "command/text_door.h"

#include <lastbit/parity.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static double threshold = 1e-3;
static char *noise_path, *matrix_path, *work_folder, *swap_block, *html;
static int heat, worst = 10;

static const struct poptOption options[] = {
    {"noise", 0, POPT_ARG_STRING, &noise_path, 0,
     "another run of the first side: what it differs by is the noise floor", "FILE"},
    {"threshold", 0, POPT_ARG_DOUBLE, &threshold, 0, "k3 of every kind of token passes below this (0.001)", "K3"},
    {"heat", 0, POPT_ARG_NONE, &heat, 0, "print the tokens coloured by probability, both sides in parallel", NULL},
    {"matrix", 0, POPT_ARG_STRING, &matrix_path, 0,
     "run a command over variables, one at a time (`lastbit help tokens`)", "FILE"},
    {"work", 0, POPT_ARG_STRING, &work_folder, 0,
     "keep the runs of a matrix here, and take up those that lie there (FILE.runs)", "FOLDER"},
    {"swap-block", 0, POPT_ARG_STRING, &swap_block, 0,
     "of two captures: run the first model with the second's blocks of this class (A D E M R; each: "
     "every class by itself)",
     "CLASS"},
    {"html", 0, POPT_ARG_STRING, &html, 0, "also write the page of `lastbit report`, with every token", "FILE"},
    {"worst", 0, POPT_ARG_INT, &worst, 0, "list so many tokens of the largest k3 (10)", "N"},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "parity",
    .synopsis = "FILE FILE | --matrix FILE",
    .about =
        "Compares the log-probabilities that two runs gave the same tokens: a trainer and a server, "
        "a model before saving and after loading, an adapter online and merged. Tokens are aligned first: padding, "
        "special tokens, different tokenisation, shifted labels, "
        "dropped and repeated tokens and a different chat template are found and reported, "
        "and so is what was not compared. "
        "Passes when k3 is below 0.001 for every kind of token and neither side's loss is over 3 times the other's "
        "(k3 does not see errors in a text that the model knows by heart; "
        "the losses do). --noise raises both limits to the difference of two runs of the first side.\n"
        "\n"
        "A cause is named if the numbers tell it from all others: a different logarithm, a shift, a temperature, "
        "a filter (top-k, top-p, min-p), a different vocabulary, the most probable word's number, different labels, "
        "logits that do not depend on the text. Most need more than a number per token: alternatives (top_logprobs) "
        "of both sides, or logits of one. Lost shards, older weights and different prompts look alike.\n"
        "\n"
        "Files: JSON (a sequence a line: token_ids, logprobs, tokens, kinds, mask; or answers of OpenAI's API, vLLM, "
        "SGLang), safetensors and .npz (token_ids, logprobs, logits, kinds, mask), and captures. "
        "`lastbit help tokens` lists their fields.",
    .example = "  lastbit parity trainer.jsonl server.jsonl --noise trainer-again.jsonl --heat\n"
               "  lastbit parity --matrix variables.json   # precision, adapter, fusion, cache ...: which one matters",
    .options = options,
    .min_args = 0,
    .max_args = 2,
};

/* ---- JSON ---- */

static json_t *row_json(const lb_parity_row *row)
{
    json_t *object = json_pack("{s:s,s:I,s:I,s:I}", "kind", row->name, "count", (json_int_t)row->count, "held",
                               (json_int_t)row->held, "impossible", (json_int_t)row->nonfinite);
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"k3", row->k3},
                   {"kl", row->kl},
                   {"top1", row->top1},
                   {"max_abs", row->max_abs},
                   {"mean_abs", row->mean_abs},
                   {"mean", row->mean},
                   {"loss_a", row->loss_a},
                   {"loss_b", row->loss_b},
                   {"loss_factor", lb_parity_loss_factor(row->loss_a, row->loss_b)},
                   {"perplexity_a", row->perplexity_a},
                   {"perplexity_b", row->perplexity_b},
                   {"noise", row->noise},
                   {"noise_loss_factor", row->noise_loss},
                   {"k3_limit", row->k3_limit},
                   {"loss_factor_limit", row->loss_limit},
                   {"above_noise", row->noise > 0 ? row->k3 / row->noise : NAN}};
    const char *reason = lb_parity_reason_name(row->reason);
    json_object_set_new(object, "reason", *reason ? json_string(reason) : json_null());
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(object, numbers[i].name, lb_command_json_number(numbers[i].value));
    return object;
}

static json_t *rows_json(const lb_parity_row *rows, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, row_json(&rows[i]));
    return list;
}

static json_t *token_json(const lb_parity_token *t, const lb_token_sequence *sequences)
{
    const lb_token *token = &sequences[t->sequence].tokens[t->a];
    json_t *object = json_pack("{s:I,s:I,s:I}", "sequence", (json_int_t)t->sequence, "token", (json_int_t)t->a, "other",
                               (json_int_t)t->b);
    if (token->id >= 0) json_object_set_new(object, "id", json_integer(token->id));
    json_t *text = token->text ? json_string(token->text) : NULL;
    if (text) json_object_set_new(object, "text", text);
    json_object_set_new(object, "log_p", lb_command_json_number(t->log_p));
    json_object_set_new(object, "log_q", lb_command_json_number(t->log_q));
    json_object_set_new(object, "k3", lb_command_json_number(t->k3));
    return object;
}

/* The losses of all tokens; ratio: the second's over the first's. */
static json_t *loss_json(const lb_parity_report *report)
{
    json_t *object = json_object();
    json_object_set_new(object, "first", lb_command_json_number(report->all.loss_a));
    json_object_set_new(object, "second", lb_command_json_number(report->all.loss_b));
    json_object_set_new(object, "ratio", lb_command_json_finite(report->all.loss_b / report->all.loss_a));
    json_object_set_new(object, "noise_factor", lb_command_json_number(report->all.noise_loss));
    return object;
}

static json_t *coverage_json(const lb_parity_report *report)
{
    json_t *sides[2];
    for (int side = 0; side < 2; side++) {
        const lb_parity_coverage *coverage = &report->coverage[side];
        sides[side] = json_pack("{s:I,s:I,s:I,s:I,s:I}", "tokens", (json_int_t)coverage->tokens, "compared",
                                (json_int_t)coverage->compared, "first", (json_int_t)coverage->first, "unscored",
                                (json_int_t)coverage->unscored, "unmatched", (json_int_t)coverage->unmatched);
    }
    return json_pack("{s:o,s:o}", "first", sides[0], "second", sides[1]);
}

static json_t *causes_json(const lb_parity_report *report)
{
    json_t *object = json_object();
    for (int c = 0; c < LB_PARITY_CAUSES_N; c++)
        json_object_set_new(object, lb_parity_cause_name(c),
                            json_string(lb_parity_cause_state_name(report->causes[c])));
    return object;
}

/* `map`: every token, too. */
static json_t *report_json(const lb_parity_report *report, const lb_token_set *set, bool map)
{
    const lb_token_sequence *sequences;
    lb_token_set_sequences(set, &sequences);
    json_t *findings = json_array(), *listed = json_array();
    for (uint32_t i = 0; i < report->n_findings; i++)
        json_array_append_new(
            findings, json_pack("{s:s,s:b,s:s}", "kind", lb_parity_finding_name(report->findings[i].kind), "corrected",
                                report->findings[i].corrected, "message", report->findings[i].message));
    for (uint32_t i = 0; i < report->n_worst; i++)
        json_array_append_new(listed, token_json(&report->worst[i], sequences));
    json_t *object = json_pack(
        "{s:s,s:f,s:o,s:o,s:o,s:o,s:o}", "verdict", lb_parity_verdict_name(report->verdict), "threshold", threshold,
        "all", row_json(&report->all), "tokens", rows_json(report->kinds, report->n_kinds), "positions",
        rows_json(report->positions, report->n_positions), "findings", findings, "worst", listed);
    json_object_set_new(object, "decided", json_string(report->decided));
    json_object_set_new(object, "loss", loss_json(report));
    json_object_set_new(object, "coverage", coverage_json(report));
    json_object_set_new(object, "causes", causes_json(report));
    json_object_set_new(object, "noise_floor", lb_command_json_number(report->noise_floor));
    if (map) {
        json_t *rows = json_array();
        for (uint32_t i = 0; i < report->n_pairs; i++) {
            json_t *tokens = json_array();
            for (uint32_t k = 0; k < report->pairs[i].n; k++)
                json_array_append_new(tokens, token_json(&report->pairs[i].tokens[k], sequences));
            json_array_append_new(rows,
                                  json_pack("{s:I,s:o}", "sequence", (json_int_t)report->pairs[i].a, "tokens", tokens));
        }
        json_object_set_new(object, "heat", rows);
    }
    return object;
}

/* ---- text ---- */

static uint32_t terminal_width(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 100;
}

static lb_status print_text(const lb_parity_report *report, const lb_token_set *a, const lb_token_set *b, lb_err *err)
{
    const lb_parity_colour colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR") ? lb_text_code : NULL;
    char *text = lb_parity_text(report, a, b, threshold);
    if (!text) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the text");
    lb_command_print_text(text);
    free(text);
    for (uint32_t i = 0; heat && i < report->n_pairs; i++) {
        char *map = lb_parity_heat_map(report, a, i, terminal_width(), colour);
        if (!map) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the text");
        printf("\nsequence %u\n%s", report->pairs[i].a, map);
        free(map);
    }
    return LB_OK;
}

static int run(const lb_command_arguments *arguments)
{
    lb_err err = LB_ERR_INIT;
    lb_token_set *a = NULL, *b = NULL, *noise = NULL;
    lb_parity_report *report = NULL;
    lb_parity_options options = LB_PARITY_OPTIONS_INIT;
    lb_status status = lb_token_set_read(arguments->args[0], &a, &err);
    if (status == LB_OK) status = lb_token_set_read(arguments->args[1], &b, &err);
    if (status == LB_OK && noise_path) status = lb_token_set_read(noise_path, &noise, &err);
    options.threshold = threshold, options.worst = (uint32_t)worst, options.noise = noise;
    if (status == LB_OK) status = lb_parity_run(a, b, &options, &report, &err);
    if (status == LB_OK && html) status = lb_command_write_page("parity", report_json(report, a, true), html, &err);
    if (status == LB_OK && arguments->json) lb_command_print_json("parity", report_json(report, a, heat));
    if (status == LB_OK && !arguments->json) status = print_text(report, a, b, &err);
    int rc = status != LB_OK                     ? lb_command_fail("parity", &err)
             : report->verdict == LB_PARITY_PASS ? LB_EXIT_SAME
             : report->verdict == LB_PARITY_FAIL ? LB_EXIT_DIFFERENT
                                                 : LB_EXIT_UNTESTABLE;
    lb_parity_report_free(report);
    lb_token_set_free(a), lb_token_set_free(b), lb_token_set_free(noise);
    return rc;
}

static json_t *cell_json(const lb_parity_cell *cell)
{
    json_t *object =
        json_pack("{s:s?,s:s?,s:s,s:s,s:s,s:i,s:f,s:b,s:b,s:b,s:s}", "variable", cell->variable, "value", cell->value,
                  "command", cell->command, "out", cell->out, "verdict", lb_parity_verdict_name(cell->verdict), "exit",
                  cell->exit, "seconds", cell->seconds, "resumed", cell->resumed, "scored", cell->scored, "matters",
                  cell->matters, "message", cell->message);
    json_object_set_new(object, "k3", cell->scored ? lb_command_json_number(cell->reference.k3) : json_null());
    json_object_set_new(object, "worst", lb_command_json_number(cell->worst));
    json_object_set_new(object, "baseline", lb_command_json_number(cell->baseline));
    return object;
}

static json_t *matrix_json(const lb_parity_matrix *matrix)
{
    json_t *cells = json_array(), *matters = json_array();
    for (uint32_t i = 0; i < matrix->n; i++) {
        const lb_parity_cell *cell = &matrix->cells[i];
        json_array_append_new(cells, cell_json(cell));
        if (cell->matters) json_array_append_new(matters, json_sprintf("%s=%s", cell->variable, cell->value));
    }
    return json_pack("{s:o,s:o,s:o,s:f}", "cells", cells, "matters", matters, "noise_floor",
                     lb_command_json_number(matrix->noise_floor), "threshold", threshold);
}

/* 0: every run that ended passes; 1: some do not. */
static int run_matrix(const lb_command_arguments *arguments)
{
    lb_err err = LB_ERR_INIT;
    lb_parity_options options = LB_PARITY_OPTIONS_INIT;
    lb_parity_matrix *matrix = NULL;
    char *work = work_folder ? strdup(work_folder) : malloc(strlen(matrix_path) + sizeof ".runs");
    if (work && !work_folder) sprintf(work, "%s.runs", matrix_path);
    options.threshold = threshold;
    if (!arguments->json) options.progress = lb_command_progress;
    lb_status status = work ? lb_parity_matrix_run(matrix_path, work, &options, &matrix, &err)
                            : lb_fail(&err, LB_ERR_NOMEM, "out of memory");
    lb_command_progress_end();
    free(work);
    if (status == LB_OK) status = lb_command_write_page("parity", html ? matrix_json(matrix) : NULL, html, &err);
    if (status != LB_OK)
        return status == LB_ERR_INVALID ? lb_command_misused("parity", "%s", err.message)
                                        : lb_command_fail("parity", &err);
    bool same = true;
    for (uint32_t i = 0; i < matrix->n; i++)
        same &= matrix->cells[i].scored && matrix->cells[i].verdict == LB_PARITY_PASS;
    char *text = arguments->json ? NULL : lb_parity_matrix_text(matrix, threshold);
    if (arguments->json) lb_command_print_json("parity", matrix_json(matrix));
    if (text) lb_command_print_text(text);
    free(text);
    lb_parity_matrix_free(matrix);
    return same ? LB_EXIT_SAME : LB_EXIT_DIFFERENT;
}

/* The exchange comes as near as the second model does to itself when it is replayed. */
static bool at_floor(const lb_block_swap *row, const lb_block_swap *floor)
{
    return row->run && floor->run && row->all.k3 <= 1.5 * floor->all.k3 + 1e-15;
}

/* The first class that could not be exchanged by itself; NULL: all were. */
static const char *left_out(const lb_block_swap *rows, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (!rows[i].run && strlen(rows[i].classes) == 1) return rows[i].classes;
    return NULL;
}

/* Of what no exchange cures. */
static void print_rest(const lb_block_swap *rows, uint32_t n)
{
    const char *class = left_out(rows, n);
    if (class)
        printf("; what is left may lie in blocks %s, which could not be exchanged, or outside of the blocks", class);
    else
        printf("; what is left lies outside of the blocks (embedding, norms, head, dtype of the residual)");
}

/* What the table says, in a sentence: the fewest classes that take the gap to the floor, or the one that takes most of
 * it. */
static void print_swaps_answer(const lb_block_swap *rows, uint32_t n, const lb_block_swap *floor)
{
    const lb_block_swap *best = NULL;
    if (!rows->run || rows->all.k3 < 1e-10 || at_floor(rows, floor)) { /* f32's rounding alone gives 1e-12 */
        printf("%s\n\n", rows->run ? "the models agree as they were recorded" : "the models cannot be compared");
        return;
    }
    for (uint32_t i = 1; i < n; i++)
        if (rows[i].run && (!best || (!at_floor(best, floor) && rows[i].all.k3 < best->all.k3))) best = &rows[i];
    if (!best)
        printf("no class of blocks could be exchanged\n\n");
    else if (at_floor(best, floor))
        printf("blocks %s: exchanging them takes k3 from %.4g to %.4g, which is the floor\n\n", best->classes,
               rows->all.k3, best->all.k3);
    else {
        printf("no exchange takes k3 to the floor%s: from %.4g to %.4g with blocks %s",
               best->worst < threshold ? ", though one takes it below the threshold" : "", rows->all.k3, best->all.k3,
               best->classes);
        if (floor->run && n > 2) print_rest(rows, n);
        printf("\n\n");
    }
}

static void print_swaps(const lb_block_swap *rows, uint32_t n, const lb_block_swap *floor, const char *const *paths)
{
    print_swaps_answer(rows, n, floor);
    printf("%-28s %7s %8s %11s %11s %11s  %s\n", "blocks of the second model", "blocks", "tokens", "k3", "over floor",
           "worst kind", "");
    for (uint32_t i = 0; i < n; i++) {
        const lb_block_swap *swap = &rows[i];
        char over[24] = "-";
        if (swap->run && floor->run && floor->all.k3 > 0)
            snprintf(over, sizeof over, "%.3gx", swap->all.k3 / floor->all.k3);
        printf("%-28s %7u ", *swap->classes ? swap->classes : "none (as recorded)", swap->blocks);
        if (swap->run)
            printf("%8llu %11.4g %11s %11.4g  %s%s\n", (unsigned long long)swap->all.count, swap->all.k3, over,
                   swap->worst, swap->worst_kind,
                   at_floor(swap, floor)     ? "  at the floor"
                   : swap->worst < threshold ? "  agrees"
                                             : "");
        else
            printf("not run: %s\n", swap->message);
    }
    if (floor->run)
        printf("%-28s %7s %8llu %11.4g\n", "floor (second, replayed)", "", (unsigned long long)floor->all.count,
               floor->all.k3);
    else
        printf("floor unknown: %s\n", floor->message);
    printf("\nmodel:    %s\nblocks of: %s\n", paths[0], paths[1]);
}

static void print_swaps_json(const lb_block_swap *rows, uint32_t n, const lb_block_swap *floor)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        const lb_block_swap *swap = &rows[i];
        json_array_append_new(list, json_pack("{s:s,s:I,s:b,s:I,s:o,s:o,s:s,s:b,s:s}", "classes", swap->classes,
                                              "blocks", (json_int_t)swap->blocks, "run", swap->run, "count",
                                              (json_int_t)swap->all.count, "k3",
                                              swap->run ? lb_command_json_number(swap->all.k3) : json_null(), "worst",
                                              lb_command_json_number(swap->worst), "worst_kind", swap->worst_kind,
                                              "at_floor", at_floor(swap, floor), "message", swap->message));
    }
    lb_command_print_json("parity", json_pack("{s:o,s:f,s:o,s:s}", "swaps", list, "threshold", threshold, "floor",
                                              floor->run ? lb_command_json_number(floor->all.k3) : json_null(),
                                              "floor_message", floor->message));
}

/* 0: the models agree as they are, or under the exchange that was asked for; 1: they do not, or one class alone makes
 * them agree. */
static int run_swaps(const lb_command_arguments *arguments)
{
    lb_err err = LB_ERR_INIT;
    lb_parity_options options = LB_PARITY_OPTIONS_INIT;
    lb_block_swap *rows, floor;
    uint32_t n;
    const bool each = strcmp(swap_block, "each") == 0;
    options.threshold = threshold;
    if (!each && (!*swap_block || strspn(swap_block, "ADEMR") != strlen(swap_block) || strlen(swap_block) > 5))
        return lb_command_misused("parity",
                                  "--swap-block %s: expected classes of blocks (A attention, D dense MLP, E experts, "
                                  "M Mamba, R recurrent), or each",
                                  swap_block);
    if (lb_block_swaps(arguments->args[0], arguments->args[1], each ? NULL : swap_block, &options, &floor, &rows, &n,
                       &err) != LB_OK)
        return lb_command_fail("parity", &err);
    if (arguments->json)
        print_swaps_json(rows, n, &floor);
    else
        print_swaps(rows, n, &floor, arguments->args);
    const lb_block_swap *last = &rows[each ? 0 : n - 1];
    const int rc = !last->run ? LB_EXIT_UNTESTABLE : last->worst < threshold ? LB_EXIT_SAME : LB_EXIT_DIFFERENT;
    free(rows);
    return rc;
}

int lb_cmd_parity(int argc, const char **argv)
{
    lb_command_arguments arguments;
    int rc = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (rc >= 0) return rc;
    if (!(threshold > 0))
        rc = lb_command_misused("parity", "--threshold: expected a number above 0");
    else if (worst < 0 || worst > 100000)
        rc = lb_command_misused("parity", "--worst %d: expected a number from 0 to 100000", worst);
    else if (matrix_path ? arguments.n_args != 0 : arguments.n_args != 2)
        rc = lb_command_misused("parity", "expected two token files, or --matrix FILE");
    else
        rc = matrix_path ? run_matrix(&arguments) : swap_block ? run_swaps(&arguments) : run(&arguments);
    free(noise_path), free(matrix_path), free(work_folder), free(swap_block), free(html);
    lb_command_arguments_release(&arguments);
    return rc;
}
