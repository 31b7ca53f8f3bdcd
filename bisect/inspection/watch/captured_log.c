/* A capture as a log: see captured_log.h. */
#include "watch/captured_log.h"

#include "watch/log_reader.h"

#include <inttypes.h>
#include <lastbit/archive.h>
#include <lastbit/dtype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Per-tensor option values ("lr") stand among the scalars as rows of parameter groups; the first group's rate is the
 * run's. */
static void put_rate(const lb_program *program, lb_watch_record *record)
{
    for (uint32_t g = 0; g < program->n_groups && !lb_watch_has(record, LB_WATCH_lr); g++)
        for (uint32_t i = 0; i < program->groups[g].options; i++) {
            const lb_scalar *option = &program->scalars[program->groups[g].first_option + i];
            if (!strcmp(lb_program_text(program, option->name), "lr"))
                lb_log_field_record_put_number(record, LB_WATCH_lr, option->number);
        }
}

static void put_scalars(const lb_program *program, const lb_field_names *names, lb_watch_record *record)
{
    double losses = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < program->n_scalars; i++) {
        const char *name = lb_program_text(program, program->scalars[i].name);
        const lb_watch_field field =
            lb_program_is_option(program, i) ? LB_WATCH_FIELDS : lb_field_of(names, name, strlen(name));
        if (field == LB_WATCH_FIELDS || field == LB_WATCH_step || field == LB_WATCH_rank) continue;
        if (field == LB_WATCH_loss) losses += program->scalars[i].number, n++;
        lb_log_field_record_put_number(record, field, program->scalars[i].number);
    }
    if (n) lb_log_field_record_put_number(record, LB_WATCH_loss, losses / n);
    put_rate(program, record);
}

typedef struct token_hash {
    uint64_t hi, lo;
} token_hash;

/* Integers that came from outside in this step are its tokens, labels and positions. Positions are the same in every
 * batch: only where something has changed since the rank's step before do they say what was read. */
static void put_tokens(const lb_program *program, token_hash *before, char text[33], lb_watch_record *record)
{
    uint64_t hi = 0, lo = 0;
    for (uint32_t i = 0; i < program->n_values; i++) {
        const lb_value *value = &program->values[i];
        const bool integer = value->dtype == LB_I64 || value->dtype == LB_I32;
        if (value->source != LB_SOURCE_BATCH || !integer) continue;
        hi = hi * 0x9e3779b97f4a7c15u + value->logical.hi, lo = lo * 0x9e3779b97f4a7c15u + value->logical.lo;
    }
    const token_hash last = *before;
    *before = (token_hash){hi, lo};
    if ((!last.hi && !last.lo) || (last.hi == hi && last.lo == lo) || (!hi && !lo)) return;
    snprintf(text, 33, "%016" PRIx64 "%016" PRIx64, hi, lo);
    lb_log_field_record_put(record, LB_WATCH_tokens, text, 32);
}

/* ---- how often each token was read ---- */

/* Ids of a vocabulary fall into so many ranges of equal width: tokenizers give low ids to what is frequent. */
enum { RANGES = 256 };

static bool is_embedding(const lb_program *program, const lb_op *op)
{
    return strcmp(lb_op_name(program, op), "aten::embedding") == 0 && op->args >= 2 &&
           lb_op_args(program, op)[0].tag == LB_ARG_VALUE && lb_op_args(program, op)[1].tag == LB_ARG_VALUE;
}

/* The value that the first embedding's numbers are, or are cut out of, and how many words it knows; LB_NONE: there is
 * none. */
static uint32_t ids_of(lb_capture *capture, const lb_program *program, int64_t *words)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!is_embedding(program, &program->ops[i])) continue;
        const lb_arg *args = lb_op_args(program, &program->ops[i]);
        const lb_value *table = &program->values[args[0].u.value], *ids = &program->values[args[1].u.value];
        *words = table->layout.ndim == 2 ? table->layout.shape[0] : 0;
        for (uint32_t v = 0; v < program->n_values && *words > 1; v++)
            if (program->values[v].storage == ids->storage && lb_capture_has_value(capture, program, v) &&
                (program->values[v].dtype == LB_I64 || program->values[v].dtype == LB_I32))
                return v;
    }
    return LB_NONE;
}

static void put_counts(lb_capture *capture, const lb_program *program, char text[RANGES * 12], lb_watch_record *record)
{
    uint32_t counts[RANGES] = {0};
    int64_t words = 0;
    lb_tensor tensor;
    const uint32_t value = ids_of(capture, program, &words);
    if (value == LB_NONE || lb_capture_value(capture, program, value, &tensor, NULL) != LB_OK) return;
    const int64_t ranges = words < RANGES ? words : RANGES, width = lb_dtype_bits(tensor.dtype) / 8;
    for (lb_rows r = lb_rows_of(&tensor.layout); lb_rows_next(&r);)
        for (int64_t i = 0; i < r.count; i++) {
            const double id = lb_to_f64(tensor.dtype, (const char *)tensor.data + (r.offset + i * r.stride) * width);
            if (id >= 0 && id < (double)words) counts[(int64_t)id * ranges / words]++;
        }
    size_t n = 0;
    for (int64_t i = 0; i < ranges; i++) n += (size_t)sprintf(text + n, "%s%" PRIu32, i ? "," : "", counts[i]);
    lb_log_field_record_put(record, LB_WATCH_counts, text, n);
}

static void give(lb_watch_log *log, lb_capture *capture, const lb_program *program, token_hash *before)
{
    lb_watch_record record = {0};
    char tokens[33], counts[RANGES * 12];
    lb_log_field_record_clear(&record);
    lb_log_field_record_put_number(&record, LB_WATCH_step, (double)program->step);
    if (program->world > 1) lb_log_field_record_put_number(&record, LB_WATCH_rank, program->rank);
    put_scalars(program, lb_watch_log_names(log), &record);
    put_tokens(program, before, tokens, &record);
    put_counts(capture, program, counts, &record);
    const char *shard = lb_program_text(program, program->shard);
    if (*shard) lb_log_field_record_put(&record, LB_WATCH_shard, shard, strlen(shard));
    lb_watch_log_give(log, &record);
}

lb_status lb_captured_log_read(lb_watch_log *log, const char *path, int64_t *last, lb_err *err)
{
    lb_capture *capture;
    const int64_t *steps;
    const int32_t *ranks;
    LB_TRY(lb_capture_open(path, &capture, err));
    lb_watch_log_is(log, LB_WATCH_CAPTURE);
    const uint32_t n = lb_capture_steps(capture, &steps), n_ranks = lb_capture_ranks(capture, &ranks);
    token_hash *before = calloc(n_ranks ? n_ranks : 1, sizeof *before);
    lb_status status = before ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        if (steps[i] <= *last) continue;
        for (uint32_t r = 0; r < n_ranks && status == LB_OK; r++) {
            const lb_program *program;
            lb_err none = LB_ERR_INIT;
            status = lb_capture_program(capture, ranks[r], steps[i], &program, &none);
            if (status == LB_OK)
                give(log, capture, program, &before[r]);
            else if (status == LB_ERR_NOT_FOUND)
                status = LB_OK;
            else
                lb_fail(err, status, "%s", none.message);
        }
        *last = steps[i];
    }
    free(before);
    lb_capture_close(capture);
    return status;
}
