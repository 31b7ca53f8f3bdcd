/* Targets for what bisect and replay read: logs, tokens, results, adapters, journals, and what is typed on a command
 * line or lies in a file that it names. See reader_targets.h; a refusal gives a sentence, memory is never what ran out,
 * and what was accepted is used. */
#ifndef LB_TESTS_RUN_TARGETS_H
#define LB_TESTS_RUN_TARGETS_H
#include "memory_files.h"

#include "ranks/choices.h"
#include "runs/diff_record.h"
#include "watch/tensorboard.h"
#include "search/journal.h"
#include "pair/layer_names.h"
#include "orders/collective_sum.h"
#include "program/selector.h"

#include <lastbit/audit.h>
#include <lastbit/decode_limit.h>
#include <lastbit/fingerprint_table.h>
#include <lastbit/order.h>
#include <lastbit/parity.h>
#include <lastbit/report.h>
#include <lastbit/watch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* X(name, what is put right after a mutation, what its input is) */
#define RUN_TARGETS(X)                                                                                                 \
    X(events, repair_events, "a TensorBoard event file")                                                               \
    X(log, NULL, "lines of a log of any format")                                                                       \
    X(pattern, NULL, "a line with a pattern, then lines of a log")                                                     \
    X(tokens, NULL, "JSON or lines of JSON with tokens")                                                               \
    X(result, NULL, "what a command printed with --json")                                                              \
    X(fingerprints, NULL, "a table of fingerprints in JSON")                                                           \
    X(adapter, NULL, "a safetensors file of LoRA, a NUL, its adapter_config.json")                                     \
    X(journal, NULL, "the journal of a bisection")                                                                     \
    X(swap, NULL, "a byte that chooses the kind, then SELECTOR=ARGUMENT")                                              \
    X(selector, NULL, "a selector")                                                                                    \
    X(tree, NULL, "an order as a tree: its text, or JSON")                                                             \
    X(order, NULL, "the order of a collective")                                                                        \
    X(map, NULL, "a rule s/PATTERN/REPLACEMENT/, a newline, a path")                                                   \
    X(rank, NULL, "the record of a rank in a diff of many")

static unsigned run_answered, run_refused;

static bool run_accepted(lb_status status, const lb_err *err)
{
    run_answered += status == LB_OK;
    run_refused += status != LB_OK;
    if (status == LB_OK) return true;
    if (status != LB_ERR_NOMEM && err->message[0] && status == err->status) return false;
    fprintf(stderr, "%s: '%s'\n", lb_status_name(status), err->message);
    abort();
}

/* The bytes as a text of their own; malloc'ed. */
static char *text_of_input(const uint8_t *bytes, size_t size)
{
    char *text = (char *)malloc(size + 1);
    if (!text) abort();
    if (size) memcpy(text, bytes, size);
    text[size] = '\0';
    return text;
}

/* ---- logs -------------------------------------------------------------------------------------------------------- */

typedef struct log_sink {
    lb_watch *run; /* NULL: records are counted */
    uint64_t records;
} log_sink;

static void take_record(void *context, const lb_watch_record *record)
{
    log_sink *sink = (log_sink *)context;
    sink->records++;
    if (sink->run) lb_watch_take(sink->run, record);
}
static void take_complaint(void *context, uint64_t line, const char *why)
{
    (void)context, (void)line;
    if (!why[0]) abort();
}
static void take_checkpoint(void *context, int64_t step, const char *text)
{
    log_sink *sink = (log_sink *)context;
    if (sink->run) lb_watch_checkpoint_written(sink->run, step, text);
}

/* The records of a log that comes in two pieces, of which the first has `half` bytes. */
static uint64_t count_records(const char *pattern, const char *bytes, size_t size, size_t half, lb_watch *run)
{
    lb_watch_log_options options = LB_WATCH_LOG_OPTIONS_INIT;
    lb_err err = LB_ERR_INIT;
    lb_watch_log *log;
    log_sink to = {run, 0};
    const lb_watch_sink sink = {&to, take_record, take_complaint, take_checkpoint};
    options.pattern = pattern;
    if (lb_watch_log_new(&options, &sink, &log, &err) != LB_OK) return run_accepted(err.status, &err), 0;
    if (lb_watch_log_bytes(log, bytes, half, &err) != LB_OK ||
        lb_watch_log_bytes(log, bytes + half, size - half, &err) != LB_OK || lb_watch_log_end(log, &err) != LB_OK)
        run_accepted(err.status, &err);
    lb_watch_log_free(log);
    return to.records;
}

/* In one piece, and in two: both must come to as many records. One log in eight is watched, too, which takes ten times
 * as long as reading it. */
static void read_log(const char *pattern, const char *bytes, size_t size)
{
    lb_watch_options watched = LB_WATCH_OPTIONS_INIT;
    watched.checkpoint_every = 2;
    lb_watch *run = size % 8 == 0 ? lb_watch_new(&watched) : NULL;
    const uint64_t whole = count_records(pattern, bytes, size, size, run),
                   halves = count_records(pattern, bytes, size, size / 2, NULL);
    run_answered += whole > 0, run_refused += whole == 0;
    lb_watch_free(run);
    if (whole == halves) return;
    fprintf(stderr, "%llu records in one piece, %llu in two\n", (unsigned long long)whole, (unsigned long long)halves);
    abort();
}

static void target_events(const uint8_t *bytes, size_t size)
{
    char *text = text_of_input(bytes, size);
    read_log(NULL, text, size);
    free(text);
}

static void target_log(const uint8_t *bytes, size_t size)
{
    target_events(bytes, size);
}

static void target_pattern(const uint8_t *bytes, size_t size)
{
    char *text = text_of_input(bytes, size), *newline = (char *)memchr(text, '\n', size);
    if (newline) *newline = '\0';
    if (*text) read_log(text, newline ? newline + 1 : "", newline ? size - (size_t)(newline + 1 - text) : 0);
    free(text);
}

static uint32_t masked_crc(const uint8_t *bytes, size_t n)
{
    const uint32_t crc = lb_tensorboard_crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Checksums of lengths and records. */
static void repair_events(uint8_t *bytes, size_t size)
{
    for (size_t at = 0; size - at >= 16;) {
        uint64_t length;
        memcpy(&length, bytes + at, 8);
        uint32_t crc = masked_crc(bytes + at, 8);
        memcpy(bytes + at + 8, &crc, 4);
        if (length > size - at - 16) return;
        crc = masked_crc(bytes + at + 12, (size_t)length);
        memcpy(bytes + at + 12 + length, &crc, 4);
        at += 16 + (size_t)length;
    }
}

/* ---- tokens and results ------------------------------------------------------------------------------------------ */

static void target_tokens(const uint8_t *bytes, size_t size)
{
    lb_err err = LB_ERR_INIT;
    lb_token_set *set;
    lb_parity_report *report;
    lb_parity_options options = LB_PARITY_OPTIONS_INIT;
    if (size == 0) return;
    if (!run_accepted(lb_token_set_read(memory_file("t.jsonl", bytes, size), &set, &err), &err)) return;
    if (run_accepted(lb_parity_run(set, set, &options, &report, &err), &err)) {
        char *text = lb_parity_text(report, set, set, 1e-3), *map = lb_parity_heat_map(report, set, 0, 80, false);
        if (!text) abort();
        free(text), free(map);
        lb_parity_report_free(report);
    }
    lb_token_set_free(set);
}

static void target_result(const uint8_t *bytes, size_t size)
{
    const lb_report_part part = {"x.json", (const char *)bytes, size};
    lb_err err = LB_ERR_INIT;
    FILE *to = fopen("/dev/null", "w");
    run_accepted(lb_report_write(to, &part, 1, &err), &err);
    fclose(to);
}

/* A table is the same as itself. */
static void target_fingerprints(const uint8_t *bytes, size_t size)
{
    lb_err err = LB_ERR_INIT;
    lb_fingerprint_table_options options = LB_FINGERPRINT_TABLE_OPTIONS_INIT;
    lb_fingerprint_table *table;
    lb_fingerprint_comparison *comparison;
    const char *path = memory_file("t.json", bytes, size);
    if (!run_accepted(lb_fingerprint_table_open(path, &options, &table, &err), &err)) return;
    if (run_accepted(lb_fingerprint_table_compare(&table, 1, &table, 1, &options, &comparison, &err), &err)) {
        if (comparison->n_findings || comparison->n < table->n) abort();
        lb_fingerprint_comparison_free(comparison);
    }
    lb_fingerprint_table_close(table);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* The configuration stands behind the last NUL, which a safetensors file has plenty of and JSON none. */
static void target_adapter(const uint8_t *bytes, size_t size)
{
    size_t end = size;
    while (end > 0 && bytes[end - 1]) end--;
    if (end == 0) return;
    const char *path = memory_file("adapter/adapter_model.safetensors", bytes, end - 1);
    memory_file("adapter/adapter_config.json", bytes + end, size - end);
    lb_audit_options options = LB_AUDIT_OPTIONS_INIT;
    lb_audit_report *report;
    lb_err err = LB_ERR_INIT;
    options.rows = 2;
    if (!run_accepted(lb_audit(path, &options, &report, &err), &err)) return;
    for (uint32_t i = 0; i < report->n_findings; i++)
        if (!report->findings[i].message[0]) abort();
    lb_audit_report_free(report);
}

/* ---- journals ---------------------------------------------------------------------------------------------------- */

static void target_journal(const uint8_t *bytes, size_t size)
{
    lb_journal *journal;
    lb_search_outcome outcome;
    const char *what;
    lb_err err = LB_ERR_INIT;
    if (size == 0) return;
    const char *path = memory_file("journal", bytes, size);
    if (!run_accepted(lb_journal_open(path, "run.lb, steps 0-2", true, &journal, &err), &err)) return;
    lb_journal_find(journal, "skip=a", &outcome, &what);
    lb_journal_close(journal, NULL);
}

/* ---- what is typed ----------------------------------------------------------------------------------------------- */

static void target_swap(const uint8_t *bytes, size_t size)
{
    lb_swap swap;
    lb_choices *choices;
    lb_err err = LB_ERR_INIT;
    if (size == 0 || memmem(bytes, size, "tree:", 5)) return; /* which names a file */
    char *text = text_of_input(bytes + 1, size - 1);
    const lb_swap_kind kind = (lb_swap_kind)(bytes[0] % (LB_SWAP_FUSE + 1));
    if (run_accepted(lb_swap_parse(kind, text, &swap, &err), &err)) {
        if (run_accepted(lb_choices_new(&swap, 1, &choices, &err), &err)) lb_choices_free(choices);
        lb_swap_release(&swap);
    }
    free(text);
}

/* Three ops in two modules. */
static const lb_program *selected_program(void)
{
    static lb_program *p;
    if (p) return p;
    p = lb_program_new();
    static const char *const paths[] = {"model.layers.0.mlp", "model.layers.1.attn"};
    for (int i = 0; i < 3; i++) {
        lb_op op = {.name = lb_program_string(p, i ? "aten::mm" : "aten::add.Tensor"),
                    .scope = lb_program_scope(p, paths[i % 2], "Linear", 0),
                    .node_name = LB_NONE,
                    .node = -1};
        lb_program_add_op(p, &op);
    }
    return p;
}

static void target_selector(const uint8_t *bytes, size_t size)
{
    lb_selector *selector;
    lb_err err = LB_ERR_INIT;
    uint8_t marks[3] = {0};
    char *text = text_of_input(bytes, size);
    if (run_accepted(lb_selector_new(text, &selector, &err), &err)) {
        const lb_program *p = selected_program();
        int64_t n;
        bool whole;
        if (lb_selector_mark(selector, p, NULL, NULL, marks, 1, &n, NULL) == LB_OK &&
            marks[0] + marks[1] + marks[2] != n)
            abort();
        for (uint32_t scope = 0; scope < p->n_scopes; scope++)
            if (lb_selector_scope(selector, p, scope, NULL, &whole, NULL) != LB_OK && whole) abort();
        lb_selector_free(selector);
    }
    free(text);
}

static void use_tree(lb_sum_tree *tree)
{
    lb_sum_tree *again = NULL;
    char *text = lb_sum_tree_print(tree), *json = lb_sum_tree_to_json(tree, "x");
    if (text && (lb_sum_tree_parse(text, &again, NULL) != LB_OK || !lb_sum_tree_equal(tree, again))) abort();
    if (text) lb_sum_tree_free(again);
    const lb_status is_read = json ? lb_sum_tree_from_json(json, &again, NULL) : LB_ERR_LIMIT;
    if (is_read == LB_OK) lb_sum_tree_free(again);
    if (is_read != LB_OK && is_read != LB_ERR_LIMIT) abort(); /* a short text may be a wide tree */
    free(text), free(json);
    lb_sum_tree_free(tree);
}

static void target_tree(const uint8_t *bytes, size_t size)
{
    lb_sum_tree *tree;
    lb_err err = LB_ERR_INIT;
    char *text = text_of_input(bytes, size);
    if (run_accepted(*text == '{' ? lb_sum_tree_from_json(text, &tree, &err) : lb_sum_tree_parse(text, &tree, &err),
                     &err))
        use_tree(tree);
    free(text);
}

static void target_order(const uint8_t *bytes, size_t size)
{
    lb_collective_order order;
    lb_collective_pieces pieces;
    lb_err err = LB_ERR_INIT;
    char *text = text_of_input(bytes, size);
    if (run_accepted(lb_collective_order_parse(text, &order, &err), &err)) {
        for (uint32_t ranks = 1; ranks < 6; ranks++) {
            err = (lb_err)LB_ERR_INIT;
            if (run_accepted(lb_collective_order_pieces(&order, ranks, 100, 4, &pieces, &err), &err))
                lb_collective_pieces_release(&pieces);
        }
    }
    free(text);
}

static void target_map(const uint8_t *bytes, size_t size)
{
    lb_layer_names_map *rules;
    lb_err err = LB_ERR_INIT;
    char *text = text_of_input(bytes, size), *newline = strchr(text, '\n');
    const char *path = newline ? newline + 1 : "transformer.h.3.attn.c_proj", *rule = text;
    if (newline) *newline = '\0';
    if (run_accepted(lb_layer_names_map_new(&rule, 1, &rules, &err), &err)) {
        char *mapped = lb_layer_names_map_apply(rules, path), *spelled = lb_layer_name_spelled(path);
        free(mapped), free(spelled);
        lb_layer_names_map_free(rules);
    }
    free(text);
}

/* ---- a rank of a diff -------------------------------------------------------------------------------------------- */

static void free_rank(lb_diff_report *report, lb_diff_exchanges *exchanges)
{
    lb_diff_report_free(report);
    free(exchanges->list);
}

static lb_diff_report *read_rank(const void *bytes, size_t size, lb_diff_exchanges *exchanges, lb_err *err)
{
    lb_diff_report *report = (lb_diff_report *)calloc(1, sizeof *report);
    lb_part_record record = lb_part_record_reader(bytes, size, "record", 0, err);
    *exchanges = (lb_diff_exchanges){0};
    if (!report) abort();
    lb_diff_record(&record, report, exchanges, report);
    if (run_accepted(lb_part_record_end(&record, err), err)) return report;
    free_rank(report, exchanges);
    return NULL;
}

static lb_part_record written_rank(lb_diff_report *report, lb_diff_exchanges *exchanges)
{
    lb_part_record record = {0};
    lb_diff_record(&record, report, exchanges, report);
    if (lb_part_record_end(&record, NULL) != LB_OK) abort();
    return record;
}

/* What was read can be told, and is written as what is read again. */
static void target_rank(const uint8_t *bytes, size_t size)
{
    lb_err err = LB_ERR_INIT;
    lb_diff_exchanges exchanges, same;
    lb_diff_report *report = read_rank(bytes, size, &exchanges, &err);
    if (!report) return;
    char *text = lb_diff_text(report, "a.lb", "b.lb", true);
    if (!text) abort();
    free(text);
    lb_part_record once = written_rank(report, &exchanges);
    lb_diff_report *again = read_rank(once.written.bytes, once.written.size, &same, &err);
    if (!again) abort();
    lb_part_record twice = written_rank(again, &same);
    if (once.written.size != twice.written.size ||
        memcmp(once.written.bytes, twice.written.bytes, once.written.size) != 0)
        abort();
    lb_part_record_release(&once), lb_part_record_release(&twice);
    free_rank(report, &exchanges), free_rank(again, &same);
}

#endif
