/* See inventory.h. */
#include "audit/inventory.h"

#include "parts/parts_each.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one pass over all pieces ------------------------------------------------------------------------------------ */

/* A large tensor is shared out among the threads, small ones among each other. */
static void measure_all(lb_inventory *inventory, const lb_audit_gathering *gathering)
{
    const lb_checkpoint *checkpoint = inventory->checkpoint;
    uint64_t done = 0;
    for (uint32_t i = 0; i < checkpoint->n_pieces; i++) {
        if (!lb_piece_is_large(&checkpoint->pieces[i].tensor)) continue;
        inventory->measured[i] = lb_piece_measure(&checkpoint->pieces[i].tensor);
        lb_audit_progress(gathering, "reading", ++done, checkpoint->n_pieces);
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (uint32_t i = 0; i < checkpoint->n_pieces; i++) {
        if (lb_piece_is_large(&checkpoint->pieces[i].tensor)) continue;
        inventory->measured[i] = lb_piece_measure(&checkpoint->pieces[i].tensor);
#pragma omp critical(lb_audit_progress)
        lb_audit_progress(gathering, "reading", ++done, checkpoint->n_pieces);
    }
}

/* ---- pieces as units of work ------------------------------------------------------------------------------------- */

/* Numbers: a complex element is two. */
static int64_t parts_of(const lb_tensor *t)
{
    return lb_layout_numel(&t->layout) * (lb_dtype_is_complex(t->dtype) ? 2 : 1);
}

/* `elements`: what the tensor has, of which everything else is a part. */
static void measured_record(lb_part_record *record, lb_piece_measured *measured, int64_t elements)
{
    lb_statistics *statistics = &measured->statistics;
    int64_t *const counts[] = {&statistics->elements, &statistics->nan,  &statistics->pos_inf,
                               &statistics->neg_inf,  &statistics->zero, &measured->first_bad};
    int64_t most = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        lb_part_record_tally(record, counts[i], counts[i] == &measured->first_bad ? -1 : 0);
        if (*counts[i] > most) most = *counts[i];
    }
    if (most > elements || measured->first_bad >= elements)
        lb_part_record_refuse(record, "elements", "%lld of %lld", (long long)most, (long long)elements);
    double *const sums[] = {&statistics->min, &statistics->max, &statistics->sum, &statistics->sum_squares};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) lb_part_record_f64(record, sums[i]);
    lb_part_record_u64(record, &measured->digest.hi), lb_part_record_u64(record, &measured->digest.lo);
}

static lb_status work_piece(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)err;
    const lb_inventory *inventory = context;
    lb_piece_measured measured = lb_piece_measure(&inventory->checkpoint->pieces[unit].tensor);
    measured_record(record, &measured, parts_of(&inventory->checkpoint->pieces[unit].tensor));
    return LB_OK;
}

static lb_status fold_piece(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)err;
    lb_inventory *inventory = context;
    measured_record(record, &inventory->measured[unit], parts_of(&inventory->checkpoint->pieces[unit].tensor));
    return record->status;
}

static lb_status measure(lb_inventory *inventory, const lb_audit_gathering *gathering, lb_err *err)
{
    const lb_parts_loop loop = {"tensor", inventory->checkpoint->n_pieces, work_piece, fold_piece, inventory};
    if (gathering->options->parts) return lb_parts_each(gathering->options->parts, &loop, err);
    measure_all(inventory, gathering);
    return LB_OK;
}

static bool is_profiled(const lb_checkpoint_piece *piece)
{
    return lb_dtype_is_float(piece->tensor.dtype) && !lb_inventory_is_state(piece->name);
}

/* `rows` has room for n of them. */
static void numbers_record(lb_part_record *record, void *rows, int64_t n, size_t size)
{
    const void *bytes = rows;
    size_t held = (size_t)n * size;
    lb_part_record_bytes(record, &bytes, &held);
    if (!record->reading) return;
    if (held != (size_t)n * size)
        lb_part_record_refuse(record, "profile", "%zu bytes of %lld rows", held, (long long)n);
    else if (held)
        memcpy(rows, bytes, held);
}

/* Reading: a profile of such a tensor, whose sizes follow from the tensor. */
static void profile_record(lb_part_record *record, lb_profile *profile)
{
    for (int a = 0; a < LB_PROFILE_AXES; a++) {
        numbers_record(record, profile->axes[a].sizes, profile->axes[a].n, sizeof *profile->axes[a].sizes);
        numbers_record(record, profile->axes[a].hashes, profile->axes[a].n, sizeof *profile->axes[a].hashes);
    }
    for (int s = 0; s < LB_PROFILE_SIDES; s++)
        numbers_record(record, profile->sides[s].list, profile->sides[s].n, sizeof *profile->sides[s].list);
}

typedef struct profiling {
    lb_inventory *inventory;
    int64_t head;
} profiling;

static lb_status work_profile(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const profiling *profiling = context;
    const lb_checkpoint_piece *piece = &profiling->inventory->checkpoint->pieces[unit];
    lb_profile profile = {0};
    if (!is_profiled(piece)) return LB_OK;
    if (!lb_profile_init(&profile, &piece->tensor, profiling->head, lb_inventory_is_stacked(piece->name)))
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory for the sizes of its rows",
                       profiling->inventory->checkpoint->path);
    profile_record(record, &profile);
    lb_profile_release(&profile);
    return LB_OK;
}

static lb_status fold_profile(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const profiling *profiling = context;
    const lb_checkpoint_piece *piece = &profiling->inventory->checkpoint->pieces[unit];
    lb_profile *profile = &profiling->inventory->profiles[unit];
    if (!is_profiled(piece)) return record->status;
    if (!lb_profile_room(profile, &piece->tensor, profiling->head, lb_inventory_is_stacked(piece->name)))
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory for the sizes of its rows",
                       profiling->inventory->checkpoint->path);
    profile_record(record, profile);
    return record->status;
}

lb_status lb_inventory_profile(lb_inventory *inventory, int64_t head, const lb_audit_gathering *gathering, lb_err *err)
{
    const lb_checkpoint *checkpoint = inventory->checkpoint;
    bool made = (inventory->profiles = calloc(checkpoint->n_pieces + 1u, sizeof *inventory->profiles)) != NULL;
    uint64_t done = 0;
    profiling profiling = {inventory, head};
    const lb_parts_loop loop = {"profile", checkpoint->n_pieces, work_profile, fold_profile, &profiling};
    if (made && gathering->options->parts) return lb_parts_each(gathering->options->parts, &loop, err);
#pragma omp parallel for schedule(dynamic, 1)
    for (uint32_t i = 0; i < checkpoint->n_pieces; i++) {
        const lb_checkpoint_piece *piece = &checkpoint->pieces[i];
        const bool judged = inventory->profiles && is_profiled(piece);
        if (judged &&
            !lb_profile_init(&inventory->profiles[i], &piece->tensor, head, lb_inventory_is_stacked(piece->name))) {
#pragma omp atomic write
            made = false;
        }
#pragma omp critical(lb_audit_progress)
        lb_audit_progress(gathering, "rows and columns", ++done, checkpoint->n_pieces);
    }
    return made ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory for the sizes of its rows", checkpoint->path);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static char *pattern_of(const char *name)
{
    char *pattern = (char *)malloc(strlen(name) + 1), *to = pattern;
    for (const char *at = name; pattern && *at;) {
        size_t word = strcspn(at, "."), digits = strspn(at, "0123456789");
        if (digits == word && word) {
            *to++ = '*';
        } else {
            memcpy(to, at, word);
            to += word;
        }
        at += word;
        if (*at) *to++ = *at++;
    }
    if (pattern) *to = '\0';
    return pattern;
}

static const lb_inventory *sorted; /* qsort has no context; one inventory is sorted at a time */
#pragma omp threadprivate(sorted)

static int by_pattern(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    int order = strcmp(sorted->names[x].pattern, sorted->names[y].pattern);
    return order ? order : (x > y) - (x < y);
}

lb_status lb_inventory_new(const lb_checkpoint *checkpoint, bool read, const lb_audit_gathering *gathering,
                           lb_inventory **inventory, lb_err *err)
{
    lb_inventory *made = (lb_inventory *)calloc(1, sizeof *made);
    bool complete = made != NULL;
    if (complete) {
        made->checkpoint = checkpoint;
        made->measured = (lb_piece_measured *)calloc(checkpoint->n_pieces + 1u, sizeof *made->measured);
        made->names = (lb_inventory_name *)calloc(checkpoint->n_pieces + 1u, sizeof *made->names);
        made->siblings = (uint32_t *)calloc(checkpoint->n_pieces + 1u, sizeof *made->siblings);
        complete = made->measured && made->names && made->siblings;
    }
    for (uint32_t i = 0; complete && i < checkpoint->n_pieces; i++) {
        if (i && strcmp(checkpoint->pieces[i].name, checkpoint->pieces[i - 1].name) == 0) {
            made->names[made->n_names - 1].n++;
            continue;
        }
        made->siblings[made->n_names] = made->n_names;
        lb_inventory_name *name = &made->names[made->n_names++];
        *name = (lb_inventory_name){checkpoint->pieces[i].name, pattern_of(checkpoint->pieces[i].name), i, 1};
        complete = name->pattern != NULL;
    }
    if (!complete) {
        lb_inventory_free(made);
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    }
    sorted = made;
    if (made->n_names) qsort(made->siblings, made->n_names, sizeof *made->siblings, by_pattern);
    const lb_status status = read ? measure(made, gathering, err) : LB_OK;
    if (status == LB_OK || status == LB_ERR_PARTIAL)
        *inventory = made;
    else
        lb_inventory_free(made);
    return status;
}

void lb_inventory_free(lb_inventory *inventory)
{
    if (!inventory) return;
    for (uint32_t i = 0; inventory->names && i < inventory->n_names; i++) free(inventory->names[i].pattern);
    for (uint32_t i = 0; inventory->profiles && i < inventory->checkpoint->n_pieces; i++)
        lb_profile_release(&inventory->profiles[i]);
    free(inventory->profiles);
    free(inventory->names);
    free(inventory->siblings);
    free(inventory->measured);
    free(inventory);
}

static int by_named(const void *a, const void *b)
{
    return strcmp(((const lb_inventory_name *)a)->name, ((const lb_inventory_name *)b)->name);
}

const lb_inventory_name *lb_inventory_find(const lb_inventory *inventory, const char *name)
{
    lb_inventory_name wanted = {name, NULL, 0, 0};
    return inventory->n_names ? (const lb_inventory_name *)bsearch(&wanted, inventory->names, inventory->n_names,
                                                                   sizeof *inventory->names, by_named)
                              : NULL;
}

uint32_t lb_inventory_group(const lb_inventory *inventory, uint32_t i)
{
    uint32_t end = i + 1;
    while (end < inventory->n_names && strcmp(inventory->names[inventory->siblings[i]].pattern,
                                              inventory->names[inventory->siblings[end]].pattern) == 0)
        end++;
    return end;
}

/* ---- what names tell --------------------------------------------------------------------------------------------- */

const char *lb_inventory_word_of(const char *name, const char *const *words)
{
    for (; *words; words++) {
        size_t n = strlen(*words);
        for (const char *at = name; (at = strstr(at, *words)); at++)
            if ((at == name || at[-1] == '.') && (at[n] == '.' || at[n] == '\0')) return *words;
    }
    return NULL;
}

bool lb_inventory_is_state(const char *name)
{
    static const char *const parts[] = {"exp_avg",     "momentum", "max_exp_avg",  "optim",        "running_",
                                        "num_batches", "amax",     "_extra_state", "master_param", "rng"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i])) return true;
    return strncmp(name, "state.", 6) == 0;
}

bool lb_inventory_is_run_state(const lb_inventory *inventory, const lb_inventory_name *name)
{
    static const char *const files[] = {"optim",  "scheduler", "rng_state",     "random_states",
                                        "scaler", "sampler",   "trainer_state", NULL};
    const char *path = inventory->checkpoint->files[inventory->checkpoint->pieces[name->first].file].path,
               *slash = strrchr(path, '/');
    for (const char *const *file = files; *file; file++)
        if (strstr(slash ? slash + 1 : path, *file) && !strstr(path, "model_optim_rng")) return true;
    if (strstr(name->name, "running_") || strstr(name->name, "num_batches")) return false;
    return lb_inventory_is_state(name->name) || strstr(name->name, "scheduler") || strstr(name->name, "random_state");
}

/* One of the words between dots and underscores. */
static bool has_word(const char *name, const char *const *words)
{
    for (; *words; words++) {
        const size_t n = strlen(*words);
        for (const char *at = name; (at = strstr(at, *words)); at++)
            if ((at == name || strchr("._", at[-1])) && (!at[n] || strchr("._", at[n]))) return true;
    }
    return false;
}

bool lb_inventory_is_buffer(const char *name)
{
    static const char *const words[] = {"mask", "cos",    "sin",     "freq",   "freqs",  "freq2mels",
                                        "mel",  "mels",   "filters", "fb",     "window", "basis",
                                        "stft", "rotary", "istft",   "buffer", NULL};
    return has_word(name, words) || strstr(name, "inv_freq") || strstr(name, "mel_");
}

bool lb_inventory_is_table(const char *name)
{
    static const char *const tables[] = {"embedding", "embeddings", "emb",   "embd",  "wte",
                                         "wpe",       "tok",        "token", "vocab", NULL};
    static const char *const heads[] = {"lm_head", "output", "output_layer", "decoder", "proj_out",
                                        "logits",  "head",   "shared",       NULL};
    const char *dot = strrchr(name, '.'), *module = name;
    for (const char *at = name; dot && (at = strchr(at, '.')) && at < dot; at++) module = at + 1;
    const size_t n = strcspn(module, ".");
    for (const char *const *head = heads; *head; head++)
        if (strlen(*head) == n && strncmp(module, *head, n) == 0) return true;
    return strstr(name, "embed") != NULL || has_word(module, tables);
}

bool lb_inventory_is_stacked(const char *name)
{
    return strstr(name, "experts") != NULL;
}

bool lb_inventory_is_outgoing(const char *name)
{
    static const char *const words[] = {"o_proj", "out_proj", "down_proj",     "c_proj",     "w2",          "wo",
                                        "fc2",    "fc_out",   "dense_4h_to_h", "linear_fc2", "linear_proj", NULL};
    return lb_inventory_word_of(name, words) != NULL;
}

lb_inventory_cut lb_inventory_cut_of(const char *name)
{
    static const char *const columns[] = {"q_proj",
                                          "k_proj",
                                          "v_proj",
                                          "qkv_proj",
                                          "gate_proj",
                                          "up_proj",
                                          "gate_up_proj",
                                          "query_key_value",
                                          "dense_h_to_4h",
                                          "linear_qkv",
                                          "linear_fc1",
                                          "c_attn",
                                          "c_fc",
                                          "fc1",
                                          "w1",
                                          "w3",
                                          "wq",
                                          "wk",
                                          "wv",
                                          "in_proj",
                                          NULL};
    if (lb_inventory_is_outgoing(name)) return LB_CUT_ROW_PARALLEL;
    return lb_inventory_word_of(name, columns) ? LB_CUT_COLUMN_PARALLEL : LB_CUT_UNKNOWN;
}

char lb_inventory_lora_half(const char *name)
{
    static const char *const a[] = {"lora_A", "lora_embedding_A", "linear_in", "lora_a", NULL}, *const b[] = {
                                                                                                    "lora_B",
                                                                                                    "lora_embedding_B",
                                                                                                    "linear_out",
                                                                                                    "lora_b", NULL};
    bool adapter = strstr(name, "lora_") || strstr(name, "adapter");
    return !adapter ? 0 : lb_inventory_word_of(name, a) ? 'A' : lb_inventory_word_of(name, b) ? 'B' : 0;
}

const char *lb_inventory_index_text(const lb_layout *layout, int64_t index, char text[160])
{
    int64_t at[LB_MAX_DIMS];
    int n = 1;
    for (int d = layout->ndim - 1; d >= 0; d--) {
        int64_t size = layout->shape[d] > 0 ? layout->shape[d] : 1;
        at[d] = index % size;
        index /= size;
    }
    text[0] = '[';
    for (int d = 0; d < layout->ndim && n < 130; d++)
        n += snprintf(text + n, 160 - (size_t)n, "%s%lld", d ? ", " : "", (long long)at[d]);
    snprintf(text + n, 160 - (size_t)n, "]");
    return text;
}

const char *lb_inventory_shape_text(const lb_layout *layout, char text[160])
{
    int n = 1;
    text[0] = '[';
    for (int d = 0; d < layout->ndim && n < 130; d++)
        n += snprintf(text + n, 160 - (size_t)n, "%s%lld", d ? ", " : "", (long long)layout->shape[d]);
    snprintf(text + n, 160 - (size_t)n, "]");
    return text;
}
