/* Whatever lies in a file, `audit`, `parity`, `watch` and `report` answer it or refuse it with a sentence: never a
 * crash, and never memory by a number that the file claims. Each sample is read as it is, cut off, with bits flipped
 * and with hostile texts and numbers put in, the same ones every time. Sanitizers (preset dev) see what a plain build
 * lets pass. */
#define _GNU_SOURCE 1
#include "cmocka_first.h"
#include "scratch_folder.h"

#include "watch/tensorboard.h"
#include "lying_numbers.h"

#include <lastbit/audit.h>
#include <lastbit/parity.h>
#include <lastbit/report.h>
#include <lastbit/watch.h>

#include <dirent.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* Of each kind, for one sample. */
static unsigned changes(void)
{
    const char *full = getenv("LASTBIT_FULL");
    return full && *full && *full != '0' ? 50 : 15;
}

#if defined(__SANITIZE_ADDRESS__)
#include "held_memory.h"
static void limit_memory(void) {}
#else
/* What only a lie could ask for fails, and that memory lacked fails the test. */
static void limit_memory(void)
{
    const struct rlimit bytes = {3u << 30, 3u << 30};
    if (setrlimit(RLIMIT_AS, &bytes) != 0) abort();
}
enum { MEMORY_LIMIT = 1 };
static void forget_memory(void) {}
static long memory_used(void)
{
    return 0;
}
#endif

static unsigned answered, refused;

/* A refusal says why; that memory is lacking is no reason, for the samples are small. */
static bool is_answer(lb_status status, const lb_err *err)
{
    answered += status == LB_OK;
    refused += status != LB_OK;
    if (status == LB_OK) return true;
    if (status == LB_ERR_NOMEM || !err->message[0] || status != err->status)
        fail_msg("%s: '%s'", lb_status_name(status), err->message);
    return false;
}

static const char *put(const char *name, const void *bytes, size_t size)
{
    const char *path = in_scratch(name);
    write_whole(path, bytes, size);
    return path;
}

/* ---- readers ----------------------------------------------------------------------------------------------------- */

typedef void reader(const char *file, const char *bytes, size_t size);

static void take_record(void *context, const lb_watch_record *record)
{
    lb_watch_take(context, record);
}
static void take_complaint(void *context, uint64_t line, const char *why)
{
    (void)context, (void)line;
    if (!why[0]) abort();
}
static void take_checkpoint(void *context, int64_t step, const char *text)
{
    lb_watch_checkpoint_written(context, step, text);
}

static void read_log(const char *pattern, const char *bytes, size_t size)
{
    lb_watch_options watched = LB_WATCH_OPTIONS_INIT;
    lb_watch_log_options options = LB_WATCH_LOG_OPTIONS_INIT;
    lb_err err = LB_ERR_INIT;
    lb_watch_log *log;
    watched.schedule = (lb_watch_schedule){LB_SCHEDULE_WSD, 0, 0.03, 0.1, 0.2, false};
    watched.checkpoint_every = 2;
    lb_watch *runs[2] = {lb_watch_new(&watched), lb_watch_new(&watched)};
    options.pattern = *pattern ? pattern : NULL;
    for (int i = 0; i < 2; i++) {
        const lb_watch_sink sink = {runs[i], take_record, take_complaint, take_checkpoint};
        assert_int_equal(lb_watch_log_new(&options, &sink, &log, &err), LB_OK);
        const size_t half = i ? size : size / 2; /* the second time in two pieces */
        assert_int_equal(lb_watch_log_bytes(log, bytes, half, &err), LB_OK);
        assert_int_equal(lb_watch_log_bytes(log, bytes + half, size - half, &err), LB_OK);
        assert_int_equal(lb_watch_log_end(log, &err), LB_OK);
        lb_watch_log_free(log);
    }
    lb_watch_alarm alarms[10];
    lb_watch_finding finding;
    lb_watch_reruns(runs, 2, true, alarms, 10, &finding);
    for (int i = 0; i < 2; i++) {
        const lb_watch_report report = lb_watch_now(runs[i]);
        answered += report.records > 0, refused += report.records == 0;
        lb_watch_free(runs[i]);
    }
}

static void read_tokens(const char *file, const char *bytes, size_t size)
{
    lb_err err = LB_ERR_INIT;
    lb_token_set *set;
    lb_parity_report *report;
    lb_parity_options options = LB_PARITY_OPTIONS_INIT;
    if (!is_answer(lb_token_set_read(put(file, bytes, size), &set, &err), &err)) return;
    options.noise = set;
    if (is_answer(lb_parity_run(set, set, &options, &report, &err), &err)) {
        char *text = lb_parity_text(report, set, set, 1e-3), *map = lb_parity_heat_map(report, set, 0, 80, NULL);
        if (!text) abort();
        free(text), free(map);
        lb_parity_report_free(report);
    }
    lb_token_set_free(set);
}

static void read_result(const char *file, const char *bytes, size_t size)
{
    const lb_report_part parts[] = {{file, bytes, size}, {file, bytes, size}};
    lb_err err = LB_ERR_INIT;
    char *page = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&page, &n);
    is_answer(lb_report_write(to, parts, 2, &err), &err);
    fclose(to);
    free(page);
}

static void audit(const char *path, const char *against)
{
    lb_audit_options options = LB_AUDIT_OPTIONS_INIT;
    lb_audit_report *report;
    lb_err err = LB_ERR_INIT;
    options.against = against, options.expect = against, options.restart = true, options.rows = 2;
    if (!is_answer(lb_audit(path, &options, &report, &err), &err)) return;
    for (uint32_t i = 0; i < report->n_findings; i++)
        if (!report->findings[i].message[0]) abort();
    lb_audit_report_free(report);
}

static void read_checkpoint(const char *file, const char *bytes, size_t size)
{
    const char *path = put(file, bytes, size);
    audit(path, NULL);
    audit(path, path);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

typedef struct sample {
    reader *read;
    const char *file; /* its name, or a log's pattern */
    const char *bytes;
    size_t size; /* 0: a text */
} sample;

static const char LINES[] = "step 00001/30000 (0.17%) | loss: 4.2371 | lrm: 0.55 | dt: 412.10ms | tok/sec: 254,128 | "
                            "mfu: 17.8 | gnorm: 1.4231 | "
                            "total time: 0.34m\nsaved checkpoint ckpt/step_00001.pt\nstep 00002/30000 (0.17%) | loss: "
                            "nan | lrm: 1e-3 | dt: 41s | "
                            "gnorm: inf\nstep 00003/30000 | loss: 4.1 | gnorm: 2 | skipped: yes | shard: a.bin\n";
static const char OBJECTS[] =
    "{\"step\": 1, \"train\": {\"loss\": 2.5, \"grad_norm\": 1.0}, \"lr\": 1e-4, \"shard\": \"part-00.bin\", \"rank\": "
    "0, "
    "\"token_counts\": [5, 0, 3, 9], \"tokens_hash\": \"ab\"}\n"
    "{'step': 2, 'loss': nan, 'grad_norm': Infinity, 'checkpoint': 'ckpt/2', 'token_counts': [0, 4, 4, 9]}\n"
    "{\"step\": 3, \"loss\": \"2.4\", \"skipped\": true, \"curriculum\": \"long\", \"text\": \"\\u00e9\\\"\"}\n";
static const char TABLE[] =
    "step,loss,\"grad_norm\",lr,shard\n1,2.5,1.0,1e-4,\"a,b\"\n2,nan,,1e-4,\"c\"\"d\"\n3,2.4,inf,1e-4,e\n";
static const char HISTORY[] =
    "{\n  \"best_metric\": null,\n  \"global_step\": 20,\n  \"log_history\": [\n    {\n      "
    "\"epoch\": 0.1,\n      \"grad_norm\": 1.5,\n      \"learning_rate\": 5e-05,\n      \"loss\": "
    "2.5,\n      \"step\": 10\n    },\n    {\n      \"eval_loss\": 2.1,\n      \"step\": 10\n    "
    "},\n    {\"loss\": NaN, \"step\": 20}\n  ],\n  \"max_steps\": 20,\n  \"save_steps\": 10\n}\n";
static const char TOKENS[] =
    "{\"id\": \"a\", \"token_ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9], \"logprobs\": [null, -0.1, -2.5, -0.3, -1e-3, -7, "
    "-0.2, "
    "-0.4, -0.9], \"kinds\": [\"text\", \"text\", \"image\", \"image\", \"text\", \"text\", \"text\", 4, \"text\"], "
    "\"mask\": [1, 1, 1, 1, 1, 1, 1, 1, 0], \"top1\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n"
    "{\"id\": 2, \"tokens\": [\"<s>\", \"a\", \"b\"], \"logprobs\": [-0.1, -Infinity, NaN], \"loss_mask\": [0, 1, "
    "1]}\n";
static const char TOKEN_LINES[] =
    "{\"sequence\": \"s\", \"position\": 0, \"token_id\": 5, \"token\": \"x\", \"logprob\": -1.5, \"kind\": \"text\"}\n"
    "{\"sequence\": \"s\", \"position\": 1, \"token_id\": 6, \"token\": \"y\", \"logprob\": -0.5, \"top_logprobs\": "
    "[[-0.5, "
    "6, \"y\"], [-3, 7, \"z\"]]}\n";
static const char SERVERS[] =
    "[{\"id\": \"cmpl\", \"choices\": [{\"logprobs\": {\"tokens\": [\"a\", \"b\"], \"token_logprobs\": [-0.5, -1.5], "
    "\"top_logprobs\": [{\"a\": -0.5, \"c\": -2}, null]}, \"prompt_logprobs\": [null, {\"17\": {\"logprob\": -0.25, "
    "\"rank\": 1, \"decoded_token\": \"q\"}}]}]}, {\"choices\": [{\"logprobs\": {\"content\": [{\"token\": \"a\", "
    "\"logprob\": -0.5, \"top_logprobs\": [{\"token\": \"a\", \"logprob\": -0.5}]}]}}]}, {\"meta_info\": "
    "{\"input_token_logprobs\": [[null, 1, \"a\"], [-0.5, 2, \"b\"]], \"output_token_logprobs\": [[-0.5, 3, \"c\"]], "
    "\"output_top_logprobs\": [[[-0.5, 3, \"c\"], [-2.5, 4, \"d\"]]]}}]\n";
static const char DIFF[] =
    "{\"schema\": \"lastbit.diff/1\", \"command\": \"lastbit diff a b\", \"verdict\": \"diverged\", \"first\": "
    "{\"step\": 0, "
    "\"layer\": \"l.0\", \"op\": \"aten::mm\", \"verdict\": \"diverged\", \"index\": 3}, \"layers\": [{\"step\": 0, "
    "\"rank\": 0, \"phase\": \"forward\", \"layer\": \"l.0\", \"verdict\": \"rounding\", \"rel_l2\": 1e-6, "
    "\"max_ulp\": 7, "
    "\"differing\": 3, \"elements\": 9}, {\"rank\": 1, \"layer\": \"l.1\", \"verdict\": \"diverged\", \"rel_l2\": "
    "\"inf\", "
    "\"max_ulp\": null}, {\"rank\": 2, \"layer\": \"l.1\", \"verdict\": \"identical\", \"rel_l2\": 0}], \"tokens\": "
    "[{\"kind\": \"text\", \"k3\": 0.5}], \"structure\": [\"x\"], \"missing\": []}";
static const char WATCHED[] =
    "{\"schema\": \"lastbit.watch/1\", \"pattern\": \"none\", \"alarms\": [{\"step\": 1, \"kind\": \"loss\"}], "
    "\"curves\": "
    "{\"step\": [1, 2, 3], \"loss\": [1.5, \"nan\", null], \"grad_norm\": [1, 2, 3]}, \"x_histogram\": {\"-3\": 12}}";
static const char INDEX[] =
    "{\"metadata\": {\"total_size\": 8}, \"weight_map\": {\"a\": \"a.safetensors\", \"b\": \"b.safetensors\"}}";

static const sample SAMPLES[] = {
    {read_log, "", LINES, 0},
    {read_log, "", OBJECTS, 0},
    {read_log, "", TABLE, 0},
    {read_log, "", HISTORY, 0},
    {read_log, "step (?<step>\\d+).*loss: (?<loss>\\S+)", LINES, 0},
    {read_tokens, "t.jsonl", TOKENS, 0},
    {read_tokens, "t.jsonl", TOKEN_LINES, 0},
    {read_tokens, "t.json", SERVERS, 0},
    {read_result, "diff.json", DIFF, 0},
    {read_result, "watch.json", WATCHED, 0},
    {read_checkpoint, "model.safetensors.index.json", INDEX, 0},
};

/* ---- changes ----------------------------------------------------------------------------------------------------- */

/* What a field of text may hold instead of what was meant. */
static const char *const TEXTS[] = {"1e999",
                                    "-1",
                                    "99999999999999999999",
                                    "-9223372036854775808",
                                    "9007199254740993",
                                    "4294967296",
                                    "1e-320",
                                    "-0.0",
                                    "0.5",
                                    "nan",
                                    "null",
                                    "{}",
                                    "[]",
                                    "[[[[[[[[[[[[[[[[[[[[",
                                    "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":",
                                    "\"",
                                    "\\",
                                    "\\u0000",
                                    "\\ud800",
                                    "\xff\xfe",
                                    "\xc3",
                                    "\n",
                                    "\r\n",
                                    ",",
                                    "%s%n",
                                    "</script><!--"};
enum { N_TEXTS = sizeof TEXTS / sizeof *TEXTS };

/* `size` bytes of `from` with `n` bytes of `text` in the place of `over` bytes at `at`; malloc'ed. */
static char *replaced(const sample *s, size_t at, size_t over, const char *text, size_t n, size_t *size)
{
    if (over > s->size - at) over = s->size - at;
    *size = s->size - over + n;
    char *bytes = malloc(*size + 1);
    memcpy(bytes, s->bytes, at);
    memcpy(bytes + at, text, n);
    memcpy(bytes + at + n, s->bytes + at + over, s->size - at - over);
    bytes[*size] = '\0';
    return bytes;
}

/* How long the number or word at a place is. */
static size_t word_at(const sample *s, size_t at)
{
    size_t n = 0;
    while (at + n < s->size && strchr("0123456789.eE+-_abcdfghijklmnopqrstuvwxyz", s->bytes[at + n]) &&
           s->bytes[at + n])
        n++;
    return n;
}

static void read_change(const sample *s, char *bytes, size_t size)
{
    forget_memory();
    s->read(s->file, bytes, size);
    if (memory_used() > MEMORY_LIMIT) fail_msg("%s: %ld bytes were held", s->file, memory_used());
    free(bytes);
}

static void read_changes(const sample *s)
{
    size_t size;
    s->read(s->file, s->bytes, s->size);
    const unsigned n = changes();
    for (unsigned k = 0; k < n; k++) {
        const size_t at = s->size <= n ? k % s->size : (size_t)rand() % s->size;
        read_change(s, replaced(s, s->size * k / n, s->size, "", 0, &size), s->size * k / n);
        const char flipped = (char)(s->bytes[at] ^ 1 << rand() % 8);
        read_change(s, replaced(s, at, 1, &flipped, 1, &size), size);
        const char *text = TEXTS[k % N_TEXTS];
        char *bytes = replaced(s, at, word_at(s, at), text, strlen(text), &size);
        read_change(s, bytes, size);
        bytes = replaced(s, at, 0, "\0", 1, &size);
        read_change(s, bytes, size);
        bytes = replaced(s, at, 0, s->bytes + at, (size_t)rand() % (s->size - at) + 1, &size); /* twice */
        read_change(s, bytes, size);
        bytes = replaced(s, 0, 0, "", 0, &size);
        lie((uint8_t *)bytes + at, size - at, k);
        read_change(s, bytes, size);
    }
}

static void texts_are_answered_or_refused(void **state)
{
    sample s = *(const sample *)*state;
    if (!s.size) s.size = strlen(s.bytes);
    answered = refused = 0;
    srand(1);
    read_changes(&s);
    assert_true(answered > 0 && refused > 0);
}

/* ---- checkpoints: what the fuzzers of their readers start from --------------------------------------------------- */

static void read_folder(const char *corpus, const char *file)
{
    char folder[512], path[1024];
    snprintf(folder, sizeof folder, "%s/tests/fuzz/corpus/%s", LB_SOURCE_DIR, corpus);
    struct dirent **entries;
    const int n = scandir(folder, &entries, NULL, alphasort);
    assert_true(n > 2);
    for (int i = 0; i < n; i++) {
        sample s = {read_checkpoint, file, NULL, 0};
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && (s.bytes = read_whole(path, &s.size))) read_changes(&s);
        free((void *)(uintptr_t)s.bytes);
        free(entries[i]);
    }
    free(entries);
}

static void checkpoints_are_answered_or_refused(void **state)
{
    (void)state;
    answered = refused = 0;
    srand(1);
    read_folder("safetensors", "x.safetensors");
    read_folder("npz", "x.npz");
    read_folder("torch", "x.pt");
    assert_true(answered > 0 && refused > 0);
}

/* The parts are those of a real checkpoint. */
static void read_metadata(const char *file, const char *bytes, size_t size)
{
    put(file, bytes, size);
    audit(in_scratch("dcp"), NULL);
    audit(in_scratch("dcp"), in_scratch("dcp"));
}

static void metadata_is_answered_or_refused(void **state)
{
    (void)state;
    size_t size = 0;
    char path[512];
    answered = refused = 0;
    srand(1);
    assert_int_equal(mkdir(in_scratch("dcp"), 0700), 0);
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/parts.distcp", LB_SOURCE_DIR);
    char *parts = read_whole(path, &size);
    put("dcp/__0_0.distcp", parts, size);
    free(parts);
    for (int i = 0; i < 2; i++) {
        sample s = {read_metadata, "dcp/.metadata", NULL, 0};
        snprintf(path, sizeof path, "%s/tests/fuzz/corpus/distributed/%s", LB_SOURCE_DIR, i ? "joined" : "whole");
        s.bytes = read_whole(path, &s.size);
        assert_non_null(s.bytes);
        read_changes(&s);
        free((void *)(uintptr_t)s.bytes);
    }
    assert_true(answered > 0 && refused > 0);
}

/* ---- adapters, and ranks' files: a safetensors file and what stands beside it ------------------------------------ */

/* A file of f32 tensors [rows, columns] with numbers of their own; malloc'ed. */
static char *safetensors(const char *const *names, const int (*shapes)[2], size_t n, float first, size_t *size)
{
    char header[2048] = "{";
    size_t at = 0, length = 1;
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = (size_t)(shapes[i][0] * shapes[i][1]) * 4;
        length += (size_t)snprintf(header + length, sizeof header - length,
                                   "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[%zu,%zu]}",
                                   i ? "," : "", names[i], shapes[i][0], shapes[i][1], at, at + bytes);
        at += bytes;
    }
    header[length++] = '}';
    *size = 8 + length + at;
    char *bytes = malloc(*size);
    memcpy(bytes, &(uint64_t){length}, 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < at / 4; i++) {
        const float x = first + sinf((float)i);
        memcpy(bytes + 8 + length + 4 * i, &x, 4);
    }
    return bytes;
}

static const char *const HALVES[] = {
    "base_model.model.l.0.q_proj.lora_A.weight", "base_model.model.l.0.q_proj.lora_B.weight",
    "base_model.model.l.1.q_proj.lora_A.weight", "base_model.model.l.1.q_proj.lora_B.weight"};
static const int HALF_SHAPES[][2] = {{2, 8}, {4, 2}, {2, 8}, {4, 2}};
static const char *const WEIGHTS[] = {"l.0.q_proj.weight", "l.1.q_proj.weight"};
static const int WEIGHT_SHAPES[][2] = {{4, 8}, {4, 8}};

static void audit_adapter(void)
{
    lb_audit_options options = LB_AUDIT_OPTIONS_INIT;
    lb_audit_report *report;
    lb_err err = LB_ERR_INIT;
    options.base = in_scratch("base.safetensors"), options.merged = options.base, options.rows = 2;
    if (is_answer(lb_audit(in_scratch("lora"), &options, &report, &err), &err)) lb_audit_report_free(report);
}

static void read_in_adapter(const char *file, const char *bytes, size_t size)
{
    put(file, bytes, size);
    audit_adapter();
}

static void adapters_are_answered_or_refused(void **state)
{
    (void)state;
    static const char config[] =
        "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4, \"use_rslora\": false, \"use_dora\": false, "
        "\"target_modules\": [\"q_proj\"], \"rank_pattern\": {\"l.1.q_proj\": 2}, \"alpha_pattern\": {\"l\\\\.1.*\": "
        "4}, "
        "\"layers_to_transform\": null}";
    sample tensors = {read_in_adapter, "lora/adapter_model.safetensors", NULL, 0},
           settings = {read_in_adapter, "lora/adapter_config.json", config, sizeof config - 1};
    size_t size;
    answered = refused = 0;
    srand(1);
    assert_int_equal(mkdir(in_scratch("lora"), 0700), 0);
    char *base = safetensors(WEIGHTS, WEIGHT_SHAPES, 2, 1, &size);
    put("base.safetensors", base, size);
    char *halves = safetensors(HALVES, HALF_SHAPES, 4, 0, &tensors.size);
    tensors.bytes = halves;
    put(tensors.file, tensors.bytes, tensors.size);
    read_changes(&settings);
    put(settings.file, settings.bytes, settings.size);
    read_changes(&tensors);
    put(tensors.file, tensors.bytes, tensors.size);
    sample merged = {read_in_adapter, "base.safetensors", base, size};
    read_changes(&merged);
    free(base), free(halves);
    assert_true(answered > 0);
}

static void read_among_ranks(const char *file, const char *bytes, size_t size)
{
    put(file, bytes, size);
    audit(in_scratch("ranks"), NULL);
}

static void files_of_ranks_are_answered_or_refused(void **state)
{
    (void)state;
    sample s = {read_among_ranks, "ranks/mp_rank_01.safetensors", NULL, 0};
    size_t size;
    answered = refused = 0;
    srand(1);
    assert_int_equal(mkdir(in_scratch("ranks"), 0700), 0);
    char *other = safetensors(WEIGHTS, WEIGHT_SHAPES, 2, 1, &size);
    put("ranks/mp_rank_00.safetensors", other, size);
    char *own = safetensors(WEIGHTS, WEIGHT_SHAPES, 2, 2, &s.size);
    s.bytes = own;
    read_changes(&s);
    free(own), free(other);
    assert_true(answered > 0);
}

/* ---- event files ------------------------------------------------------------------------------------------------- */

static uint32_t masked(const void *bytes, size_t n)
{
    const uint32_t crc = lb_tensorboard_crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* The events' own checksums: nothing behind them would be read otherwise. */
static void read_events(const char *pattern, const char *bytes, size_t size)
{
    char *right = malloc(size + 1);
    memcpy(right, bytes, size);
    for (uint64_t at = 0, n; at + 16 <= size; at += n + 16) {
        memcpy(&n, right + at, 8);
        memcpy(right + at + 8, &(uint32_t){masked(right + at, 8)}, 4);
        if (n > size - at - 16) break;
        memcpy(right + at + 12 + n, &(uint32_t){masked(right + at + 12, n)}, 4);
    }
    read_log(pattern, right, size);
    free(right);
    read_log(pattern, bytes, size);
}

/* step 300 { loss, as 0.5f }: written by hand from event.proto. */
static void events_are_answered_or_refused(void **state)
{
    (void)state;
    static const char event[] = "\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f";
    const uint64_t length = sizeof event - 1;
    char file[4 * (sizeof event + 15)];
    for (int i = 0; i < 4; i++) {
        char *at = file + i * (length + 16);
        memcpy(at, &length, 8);
        memcpy(at + 8, &(uint32_t){masked(at, 8)}, 4);
        memcpy(at + 12, event, length);
        at[13] = (char)(at[13] + i); /* its step */
        memcpy(at + 12 + length, &(uint32_t){masked(at + 12, length)}, 4);
    }
    answered = refused = 0;
    srand(1);
    read_changes(&(sample){read_events, "", file, sizeof file});
    assert_true(answered > 0 && refused > 0);
}

/* ---- tokens in tensors ------------------------------------------------------------------------------------------- */

static void tensors_of_tokens_are_answered_or_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"token_ids", "logprobs", "kinds", "mask"};
    static const int shapes[][2] = {{2, 12}, {2, 11}, {2, 12}, {2, 12}};
    sample s = {read_tokens, "t.safetensors", NULL, 0};
    answered = refused = 0;
    srand(1);
    char *bytes = safetensors(names, shapes, 4, -1, &s.size);
    s.bytes = bytes;
    read_changes(&s);
    free(bytes);
    assert_true(answered > 0 && refused > 0);
}

int main(void)
{
    enum { N = sizeof SAMPLES / sizeof *SAMPLES };
    static struct CMUnitTest tests[N + 6];
    size_t n = 0;
    limit_memory();
    for (; n < N; n++)
        tests[n] = (struct CMUnitTest){SAMPLES[n].file, texts_are_answered_or_refused, NULL, NULL,
                                       (void *)(uintptr_t)&SAMPLES[n]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(events_are_answered_or_refused);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(checkpoints_are_answered_or_refused);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(metadata_is_answered_or_refused);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(adapters_are_answered_or_refused);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(files_of_ranks_are_answered_or_refused);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(tensors_of_tokens_are_answered_or_refused);
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
