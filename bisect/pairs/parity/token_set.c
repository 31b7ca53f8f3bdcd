/* See lastbit/parity.h and token_set.h. */
#include "parity/token_set.h"

#include "compare/token_row.h"

#include <lastbit/input.h>
#include "base/array.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

lb_token_sequence *lb_token_set_add(lb_token_set *set, const char *name)
{
    lb_token_sequence *more = lb_array_grow(set->sequences, set->n, sizeof *more);
    if (!more) return set->failed = true, NULL;
    set->sequences = more;
    lb_token_sequence *sequence = &more[set->n++];
    *sequence = (lb_token_sequence){.name = name ? lb_token_set_keep(set, name) : NULL};
    return sequence;
}

lb_token *lb_token_sequence_add(lb_token_set *set, lb_token_sequence *sequence)
{
    lb_token *more = lb_array_grow(sequence->tokens, sequence->n, sizeof *more);
    if (!more) return set->failed = true, NULL;
    sequence->tokens = more;
    lb_token *token = &more[sequence->n++];
    *token = (lb_token){.id = -1, .logp = NAN, .kind = -1, .top1 = -1, .first_choice = sequence->n_choices};
    return token;
}

void lb_token_choice_add(lb_token_set *set, lb_token_sequence *sequence, lb_token_choice choice)
{
    lb_token_choice *more = lb_array_grow(sequence->choices, sequence->n_choices, sizeof *more);
    if (!more) {
        set->failed = true;
        return;
    }
    sequence->choices = more;
    more[sequence->n_choices++] = choice;
    sequence->tokens[sequence->n - 1].choices++;
}

const char *lb_token_set_keep(lb_token_set *set, const char *text)
{
    char **more = lb_array_grow(set->texts, set->n_texts, sizeof *more), *copy = more ? strdup(text) : NULL;
    if (more) set->texts = more;
    if (!copy) return set->failed = true, "";
    return more[set->n_texts++] = copy;
}

int32_t lb_token_set_kind(lb_token_set *set, const char *name)
{
    for (uint32_t i = 0; i < set->n_kinds; i++)
        if (strcmp(set->kinds[i], name) == 0) return (int32_t)i;
    char **more = lb_array_grow(set->kinds, set->n_kinds, sizeof *more), *copy = more ? strdup(name) : NULL;
    if (more) set->kinds = more;
    if (!copy) return set->failed = true, -1;
    more[set->n_kinds] = copy;
    return (int32_t)set->n_kinds++;
}

void lb_token_row(const lb_token_sequence *sequence, int64_t at, double *row)
{
    const lb_tensor *t = &sequence->logits;
    const char *from = (const char *)t->data + at * t->layout.stride[0] * (int64_t)(lb_dtype_bits(t->dtype) / 8);
    lb_load_f64_strided(row, t->dtype, from, t->layout.stride[1], (size_t)t->layout.shape[1]);
    lb_token_log_softmax(row, t->layout.shape[1]);
}

/* ---- a file ---- */

/* JSON begins with { or [; a safetensors file, whose ninth byte is a brace, does not. */
static lb_status is_json(const char *path, bool *json, lb_err *err)
{
    FILE *in;
    LB_TRY(lb_input_stream(path, &in, err));
    int c = fgetc(in);
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r') c = fgetc(in);
    *json = c == '{' || c == '[';
    return lb_input_stream_end(in, path, err);
}

/* Files of tensors open as a program of named sources and nothing else. */
static bool holds_a_run(lb_capture *file)
{
    const int64_t *steps;
    const int32_t *ranks;
    const lb_program *program;
    if (!lb_capture_steps(file, &steps) || !lb_capture_ranks(file, &ranks)) return true;
    if (lb_capture_program(file, ranks[0], steps[0], &program, NULL) != LB_OK) return true;
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (!lb_op_is_source(program, &program->ops[i])) return true;
    return false;
}

static lb_status read_file(lb_token_set *set, lb_err *err)
{
    bool json = false;
    if (!lb_input_is_folder(set->path)) LB_TRY(is_json(set->path, &json, err));
    if (!json) {
        LB_TRY(lb_capture_open(set->path, &set->file, err));
        set->recorded = holds_a_run(set->file);
        return set->recorded ? lb_token_set_read_capture(set, err) : lb_token_set_read_tensors(set, err);
    }
    return lb_token_set_read_json(set, err);
}

static lb_status check_scores(const lb_token_set *set, lb_err *err)
{
    uint64_t tokens = 0;
    for (uint32_t s = 0; s < set->n; s++)
        for (uint32_t t = 0; t < set->sequences[s].n; t++, tokens++)
            if (!isnan(set->sequences[s].tokens[t].logp) || set->sequences[s].tokens[t].nan) return LB_OK;
    return lb_fail(err, LB_ERR_INVALID,
                   "%s: %llu tokens in %u sequences, and no log-probability among them; "
                   "write \"logprobs\" beside \"token_ids\" (`lastbit help parity`)",
                   set->path, (unsigned long long)tokens, set->n);
}

lb_status lb_token_set_read(const char *path, lb_token_set **out, lb_err *err)
{
    lb_err own = LB_ERR_INIT;
    if (!err) err = &own;
    lb_token_set *set = calloc(1, sizeof *set);
    if (set) set->path = strdup(path);
    lb_status status = set && set->path ? read_file(set, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && set->failed) status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    if (status == LB_OK) status = check_scores(set, err);
    if (status != LB_OK) lb_token_set_free(set), set = NULL;
    *out = set;
    return status;
}

void lb_token_set_free(lb_token_set *set)
{
    if (!set) return;
    for (uint32_t s = 0; s < set->n; s++) {
        free(set->sequences[s].tokens), free(set->sequences[s].choices), free(set->sequences[s].logit_of);
        if (set->owns_rows) free(set->sequences[s].logits.data);
    }
    for (uint32_t i = 0; i < set->n_kinds; i++) free(set->kinds[i]);
    for (size_t i = 0; i < set->n_texts; i++) free(set->texts[i]);
    lb_capture_close(set->file);
    free(set->sequences), free(set->kinds), free(set->texts), free(set->path);
    free(set);
}

uint32_t lb_token_set_sequences(const lb_token_set *set, const lb_token_sequence **sequences)
{
    *sequences = set->sequences;
    return set->n;
}
