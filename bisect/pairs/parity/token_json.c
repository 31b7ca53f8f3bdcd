/* Token sets in JSON: our own fields, and what servers answer. See lastbit/parity.h. */
#include "parity/token_set.h"

#include <lastbit/decode_limit.h>
#include <lastbit/input.h>
#include <lastbit/input_lines.h>
#include <lastbit/json_text.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where in the file we are, for messages. */
typedef struct place {
    lb_token_set *set;
    size_t line; /* 0: one document */
    lb_err *err;
} place;

static lb_status bad(const place *at, const char *field, const char *expected)
{
    if (at->line)
        return lb_fail(at->err, LB_ERR_CORRUPT, "%s: line %zu: %s: expected %s", at->set->path, at->line, field,
                       expected);
    return lb_fail(at->err, LB_ERR_CORRUPT, "%s: %s: expected %s", at->set->path, field, expected);
}

/* The first of some fields that an object has. */
static json_t *field(const json_t *object, const char *const *names, const char **name)
{
    for (; *names; names++) {
        json_t *found = json_object_get(object, *names);
        if (!found || json_is_null(found)) continue;
        if (name) *name = *names;
        return found;
    }
    return NULL;
}

static const char *const ID_FIELDS[] = {"id", "uid", "request_id", "sequence", NULL};
static const char *const TOKEN_FIELDS[] = {"token_ids", "input_ids",    "ids",    "completion_ids",
                                           "responses", "response_ids", "tokens", NULL};
static const char *const TEXT_FIELDS[] = {"token_texts", "texts", "tokens", NULL};
/* Trainers' names too: verl and slime (rollout_log_probs, old_log_probs), TRL (…per_token_logps). */
static const char *const SCORE_FIELDS[] = {"logprobs",
                                           "token_logprobs",
                                           "log_probs",
                                           "logps",
                                           "rollout_log_probs",
                                           "rollout_logprobs",
                                           "old_log_probs",
                                           "old_logprobs",
                                           "sampling_per_token_logps",
                                           "old_per_token_logps",
                                           "per_token_logps",
                                           NULL};
/* Of the weights that scored a sequence: SGLang, slime, and what others call it. */
static const char *const VERSION_FIELDS[] = {"weight_version", "policy_version", "weight_versions", "model_version",
                                             NULL};

static const char *name_of(const place *at, const json_t *value)
{
    char text[40];
    if (json_is_string(value)) return json_string_value(value);
    if (!json_is_integer(value)) return NULL;
    snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    return lb_token_set_keep(at->set, text);
}

/* The version of the weights that an object names; of a list, where they changed on the way, all of it. */
static void take_version(const place *at, lb_token_sequence *sequence, const json_t *object)
{
    const json_t *version = field(object, VERSION_FIELDS, NULL);
    if (!version || !sequence) return;
    char *text = json_is_string(version) ? NULL : json_dumps(version, JSON_ENCODE_ANY | JSON_COMPACT);
    sequence->version = lb_token_set_keep(at->set, json_is_string(version) ? json_string_value(version)
                                                   : text                  ? text
                                                                           : "");
    free(text);
}

/* A number, null for none, or what hide_words left. */
static bool log_probability(const json_t *value, double *logp)
{
    const char *text = json_string_value(value);
    *logp = NAN;
    if (!value || json_is_null(value)) return true;
    if (text && (strcmp(text, "-inf") == 0 || strcmp(text, "-Infinity") == 0)) return *logp = -INFINITY, true;
    if (text && (!*text || strcasecmp(text, "nan") == 0)) return true;
    if (!json_is_number(value)) return false;
    *logp = json_number_value(value);
    return true;
}

static bool take_score(const json_t *value, lb_token *token)
{
    if (!log_probability(value, &token->logp)) return false;
    token->nan = value && !json_is_null(value) && isnan(token->logp);
    return true;
}

static int32_t kind_of(const place *at, const json_t *value)
{
    char text[40];
    if (json_is_string(value)) return lb_token_set_kind(at->set, json_string_value(value));
    if (!json_is_integer(value)) return -1;
    snprintf(text, sizeof text, "kind %lld", (long long)json_integer_value(value));
    return lb_token_set_kind(at->set, text);
}

/* ---- alternatives ----------------------------------------------------------------------------------------------- *
 * {"text": logp, …}, [{"token", "logprob"}, …], [[logp, id, text], …], {"id": {"logprob", "rank"}} */

static int64_t number_in(const char *text)
{
    char *end;
    const long long n = strtoll(text, &end, 10);
    return *text && !*end && n >= 0 ? n : -1;
}

/* vLLM writes "token_id:880" for texts where it is asked to. */
static void take_id_of_text(lb_token_choice *choice)
{
    if (choice->id < 0 && choice->text && strncmp(choice->text, "token_id:", 9) == 0)
        choice->id = number_in(choice->text + 9);
}

static lb_token_choice choice_of(const place *at, const char *key, const json_t *value)
{
    static const char *const texts[] = {"token", "decoded_token", "text", NULL}, *const ids[] = {"token_id", "id",
                                                                                                 NULL};
    lb_token_choice choice = {.id = -1, .logp = NAN};
    if (json_is_array(value)) { /* SGLang: [logp, id, text] */
        log_probability(json_array_get(value, 0), &choice.logp);
        const json_t *id = json_array_get(value, 1), *text = json_array_get(value, 2);
        if (json_is_integer(id)) choice.id = json_integer_value(id);
        if (json_is_string(text)) choice.text = lb_token_set_keep(at->set, json_string_value(text));
    } else if (json_is_object(value)) {
        log_probability(json_object_get(value, "logprob"), &choice.logp);
        const json_t *id = field(value, ids, NULL), *text = field(value, texts, NULL);
        if (json_is_integer(id)) choice.id = json_integer_value(id);
        if (!id && key) choice.id = number_in(key);
        if (json_is_string(text)) choice.text = lb_token_set_keep(at->set, json_string_value(text));
    } else {
        log_probability(value, &choice.logp);
        if (key) choice.text = lb_token_set_keep(at->set, key);
    }
    take_id_of_text(&choice);
    return choice;
}

static void add_choices(const place *at, lb_token_sequence *sequence, json_t *choices)
{
    const char *key;
    json_t *value;
    size_t i;
    double most = -INFINITY;
    json_object_foreach(choices, key, value) lb_token_choice_add(at->set, sequence, choice_of(at, key, value));
    json_array_foreach(choices, i, value) lb_token_choice_add(at->set, sequence, choice_of(at, NULL, value));
    lb_token *token = &sequence->tokens[sequence->n - 1];
    for (uint32_t c = 0; c < token->choices; c++) {
        const lb_token_choice *choice = &sequence->choices[token->first_choice + c];
        if (choice->logp > most && choice->id >= 0) most = choice->logp, token->top1 = choice->id;
    }
}

/* ---- a sequence of ours ---- */

/* One field per token: an array as long as the others, or one shorter where the first token has none. */
typedef struct column {
    const char *name;
    json_t *array;
    size_t size, lag;
} column;

/* A trainer's sample holds all tokens, and numbers of the response alone, which ends it. */
static bool is_of_response(const json_t *object, size_t size, size_t n)
{
    const json_t *length = json_object_get(object, "response_length");
    return size < n && json_is_integer(length) && json_integer_value(length) == (json_int_t)size;
}

static lb_status column_of(const place *at, const json_t *object, const char *const *names, size_t n, column *c)
{
    *c = (column){0};
    c->array = field(object, names, &c->name);
    if (!c->array) return LB_OK;
    if (!json_is_array(c->array)) return bad(at, c->name, "an array with an element per token");
    c->size = json_array_size(c->array);
    if (n && is_of_response(object, c->size, n)) return c->lag = n - c->size, LB_OK;
    if (n && c->size != n && c->size + 1 != n) return bad(at, c->name, "as many elements as there are tokens");
    c->lag = n && c->size + 1 == n;
    return LB_OK;
}

static json_t *cell(const column *column, size_t i)
{
    return column->array && i >= column->lag ? json_array_get(column->array, i - column->lag) : NULL;
}

enum { IDS, TEXTS, SCORES, KINDS, MASK, LOSS_MASK, TOP1, TOP, COLUMNS };

static lb_status read_columns(const place *at, const json_t *object, column *column, size_t *n)
{
    static const char *const kinds[] = {"kinds", "kind", NULL}, *const mask[] = {"mask", "attention_mask", NULL},
                             *const loss_mask[] = {"loss_mask", "response_mask", "completion_mask", NULL},
                             *const top1[] = {"top1", "argmax", NULL}, *const top[] = {"top_logprobs", NULL};
    const char *const *const fields[COLUMNS] = {TOKEN_FIELDS, TEXT_FIELDS, SCORE_FIELDS, kinds,
                                                mask,         loss_mask,   top1,         top};
    *n = 0;
    for (int f = 0; f < COLUMNS; f++) {
        LB_TRY(column_of(at, object, fields[f], f == SCORES ? *n : 0, &column[f]));
        if (f != SCORES && f != TOP && column[f].array && *n && column[f].size != *n) {
            if (!is_of_response(object, column[f].size, *n))
                return bad(at, column[f].name, "as many elements as there are tokens");
            column[f].lag = *n - column[f].size;
        }
        if (f == TOP && column[f].array) LB_TRY(column_of(at, object, fields[f], *n, &column[f]));
        if (!*n) *n = column[f].size;
    }
    return LB_OK;
}

static lb_status add_token(const place *at, lb_token_sequence *sequence, const column *column, size_t i)
{
    json_t *id = cell(&column[IDS], i), *text = cell(&column[TEXTS], i), *kept = cell(&column[MASK], i),
           *loss = cell(&column[LOSS_MASK], i);
    if (kept && json_number_value(kept) == 0 && !json_is_true(kept)) return LB_OK;
    lb_token *token = lb_token_sequence_add(at->set, sequence);
    if (!token) return LB_ERR_NOMEM;
    if (json_is_integer(id)) token->id = json_integer_value(id);
    if (id && !json_is_integer(id) && !json_is_string(id))
        return bad(at, column[IDS].name, "integers, or texts of tokens");
    if (json_is_string(text)) token->text = lb_token_set_keep(at->set, json_string_value(text));
    if (!take_score(cell(&column[SCORES], i), token)) return bad(at, column[SCORES].name, "numbers or null");
    if (cell(&column[KINDS], i))
        token->kind = kind_of(at, cell(&column[KINDS], i));
    else if (loss)
        token->kind =
            lb_token_set_kind(at->set, json_is_true(loss) || json_number_value(loss) != 0 ? "generated" : "prompt");
    if (json_is_integer(cell(&column[TOP1], i))) token->top1 = json_integer_value(cell(&column[TOP1], i));
    if (cell(&column[TOP], i)) add_choices(at, sequence, cell(&column[TOP], i));
    return LB_OK;
}

static lb_status read_sequence(const place *at, const json_t *object, const char *name)
{
    column column[COLUMNS];
    size_t n;
    LB_TRY(read_columns(at, object, column, &n));
    lb_token_sequence *sequence = lb_token_set_add(at->set, name);
    if (!sequence) return LB_ERR_NOMEM;
    take_version(at, sequence, object);
    for (size_t i = 0; i < n; i++) LB_TRY(add_token(at, sequence, column, i));
    return LB_OK;
}

/* ---- a token a line ---- */

static lb_status read_token(const place *at, const json_t *object)
{
    static const char *const ids[] = {"token_id", "token", NULL}, *const texts[] = {"text", "token", NULL},
                             *const kinds[] = {"kind", NULL};
    const json_t *id = field(object, ids, NULL), *text = field(object, texts, NULL),
                 *sequence = field(object, ID_FIELDS, NULL);
    const char *name = sequence ? name_of(at, sequence) : NULL;
    lb_token_sequence *q = at->set->n ? &at->set->sequences[at->set->n - 1] : NULL;
    if (!q || (name && (!q->name || strcmp(q->name, name) != 0))) q = lb_token_set_add(at->set, name);
    lb_token *token = q ? lb_token_sequence_add(at->set, q) : NULL;
    if (!token) return LB_ERR_NOMEM;
    if (json_is_integer(id)) token->id = json_integer_value(id);
    if (json_is_string(text)) token->text = lb_token_set_keep(at->set, json_string_value(text));
    if (!take_score(json_object_get(object, "logprob"), token)) return bad(at, "logprob", "a number or null");
    if (field(object, kinds, NULL)) token->kind = kind_of(at, field(object, kinds, NULL));
    if (json_object_get(object, "top_logprobs")) add_choices(at, q, json_object_get(object, "top_logprobs"));
    return LB_OK;
}

/* ---- what servers answer ---- */

/* The entry of the token itself among those of a position: by its number where that is told. Else by rank: of n
 * entries, one whose rank is above n is listed because it stands there. Else the first, as vLLM writes them; no other
 * program promises that order. */
static const char *own_entry(const json_t *entry, const json_t *told)
{
    const char *key, *first = NULL;
    const json_t *value;
    json_object_foreach((json_t *)entry, key, value)
    {
        const json_t *rank = json_object_get(value, "rank");
        if (!first) first = key;
        if (told && number_in(key) == json_integer_value(told)) return key;
        if (!told && json_integer_value(rank) > (json_int_t)json_object_size(entry)) return key;
    }
    return told ? NULL : first;
}

/* vLLM: null for the first token, then {"ID": {"logprob", "rank", "decoded_token"}, …}. */
static lb_status read_positions(const place *at, lb_token_sequence *sequence, json_t *positions, const json_t *ids,
                                int32_t kind)
{
    json_t *entry;
    size_t i;
    if (!json_is_array(positions)) return bad(at, "prompt_logprobs", "an array");
    json_array_foreach(positions, i, entry)
    {
        lb_token *token = lb_token_sequence_add(at->set, sequence);
        if (!token) return LB_ERR_NOMEM;
        token->kind = kind;
        const json_t *told = json_array_get(ids, i);
        if (json_is_integer(told)) token->id = json_integer_value(told);
        if (!json_is_object(entry)) continue;
        add_choices(at, sequence, entry);
        const char *key = own_entry(entry, told);
        if (!key) continue;
        const lb_token_choice own = choice_of(at, key, json_object_get(entry, key));
        token = &sequence->tokens[sequence->n - 1];
        token->id = own.id, token->logp = own.logp, token->text = own.text;
    }
    return LB_OK;
}

static lb_status read_prompt(const place *at, lb_token_sequence *sequence, json_t *prompt, const json_t *ids)
{
    return read_positions(at, sequence, prompt, ids, lb_token_set_kind(at->set, "prompt"));
}

/* OpenAI's completions: {"tokens", "token_logprobs", "top_logprobs"}; chat: {"content": [{"token", "logprob",
 * "top_logprobs"}]}. */
static lb_status read_answer(const place *at, lb_token_sequence *sequence, const json_t *logprobs, int32_t kind)
{
    json_t *content = json_object_get(logprobs, "content"), *token;
    const uint32_t first = sequence->n;
    size_t i, n;
    if (json_is_array(content)) {
        json_array_foreach(content, i, token)
        {
            lb_token *t = lb_token_sequence_add(at->set, sequence);
            if (!t) return LB_ERR_NOMEM;
            const lb_token_choice own = choice_of(at, NULL, token);
            t->id = own.id, t->text = own.text, t->logp = own.logp;
            add_choices(at, sequence, json_object_get(token, "top_logprobs"));
        }
    } else {
        column column[COLUMNS];
        LB_TRY(read_columns(at, logprobs, column, &n));
        for (i = 0; i < n; i++) LB_TRY(add_token(at, sequence, column, i));
    }
    for (uint32_t t = first; t < sequence->n; t++) sequence->tokens[t].kind = kind;
    return LB_OK;
}

static lb_status read_choices_of_server(const place *at, const json_t *object, const char *name)
{
    json_t *choice;
    size_t i;
    json_array_foreach(json_object_get(object, "choices"), i, choice)
    {
        char text[200];
        snprintf(text, sizeof text, "%s/%zu", name ? name : "", i);
        json_t *prompt = json_object_get(choice, "prompt_logprobs"), *ids = json_object_get(choice, "prompt_token_ids");
        if (!prompt) prompt = json_object_get(object, "prompt_logprobs");
        if (!ids) ids = json_object_get(object, "prompt_token_ids");
        const json_t *logprobs = json_object_get(choice, "logprobs");
        lb_token_sequence *sequence =
            lb_token_set_add(at->set, json_array_size(json_object_get(object, "choices")) > 1 ? text : name);
        if (!sequence) return LB_ERR_NOMEM;
        const bool prompted = prompt && !json_is_null(prompt);
        if (prompted) LB_TRY(read_prompt(at, sequence, prompt, ids));
        if (json_is_object(logprobs))
            LB_TRY(read_answer(at, sequence, logprobs, prompted ? lb_token_set_kind(at->set, "generated") : -1));
    }
    return LB_OK;
}

/* SGLang: meta_info {"input_token_logprobs": [[logp, id, text], …], "output_token_logprobs", "output_top_logprobs"}. */
static lb_status read_meta_info(const place *at, const json_t *meta, const char *name)
{
    static const char *const parts[2][3] = {{"input_token_logprobs", "input_top_logprobs", "prompt"},
                                            {"output_token_logprobs", "output_top_logprobs", "generated"}};
    lb_token_sequence *sequence = lb_token_set_add(at->set, name);
    if (!sequence) return LB_ERR_NOMEM;
    take_version(at, sequence, meta);
    for (int part = 0; part < 2; part++) {
        json_t *rows = json_object_get(meta, parts[part][0]), *top = json_object_get(meta, parts[part][1]), *row;
        size_t i;
        json_array_foreach(rows, i, row)
        {
            const lb_token_choice own = choice_of(at, NULL, row);
            lb_token *token = lb_token_sequence_add(at->set, sequence);
            if (!token) return LB_ERR_NOMEM;
            token->id = own.id, token->text = own.text, token->logp = own.logp;
            token->kind = lb_token_set_kind(at->set, parts[part][2]);
            add_choices(at, sequence, json_array_get(top, i));
        }
    }
    return LB_OK;
}

/* vLLM's RequestOutput, as its fields are dumped: {"prompt_token_ids", "prompt_logprobs", "outputs": [{"token_ids",
 * "logprobs": [{"ID": …}, …]}]}. */
static lb_status read_request_output(const place *at, json_t *object, const char *name)
{
    json_t *output, *outputs = json_object_get(object, "outputs"), *prompt = json_object_get(object, "prompt_logprobs");
    size_t i;
    json_array_foreach(outputs, i, output)
    {
        char text[200];
        snprintf(text, sizeof text, "%s/%zu", name ? name : "", i);
        lb_token_sequence *sequence = lb_token_set_add(at->set, json_array_size(outputs) > 1 ? text : name);
        if (!sequence) return LB_ERR_NOMEM;
        if (json_is_array(prompt))
            LB_TRY(read_prompt(at, sequence, prompt, json_object_get(object, "prompt_token_ids")));
        json_t *logprobs = json_object_get(output, "logprobs");
        if (!json_is_array(logprobs)) return bad(at, "outputs.logprobs", "an array with an entry per token");
        LB_TRY(read_positions(at, sequence, logprobs, json_object_get(output, "token_ids"),
                              lb_token_set_kind(at->set, "generated")));
    }
    return LB_OK;
}

/* TRL's `vllm-serve`: all completions in one object, {"prompt_ids": [[…]], "completion_ids": [[…]], "logprobs": [[…]]};
 * of later versions a number, or [number of the sampled token, …], per token. */
static lb_status read_completions(const place *at, const json_t *object)
{
    const json_t *all = json_object_get(object, "completion_ids"), *scores = json_object_get(object, "logprobs"), *ids;
    size_t s;
    json_array_foreach((json_t *)all, s, ids)
    {
        const json_t *numbers = json_array_get(scores, s), *id;
        lb_token_sequence *sequence = lb_token_set_add(at->set, NULL);
        size_t t;
        if (!sequence) return LB_ERR_NOMEM;
        if (json_array_size(numbers) != json_array_size(ids))
            return bad(at, "logprobs", "a number per completion token");
        json_array_foreach((json_t *)ids, t, id)
        {
            const json_t *number = json_array_get(numbers, t);
            lb_token *token = lb_token_sequence_add(at->set, sequence);
            if (!token) return LB_ERR_NOMEM;
            token->id = json_is_integer(id) ? json_integer_value(id) : -1;
            if (json_is_array(number)) number = json_array_get(number, 0);
            if (!take_score(number, token)) return bad(at, "logprobs", "numbers or null");
        }
    }
    return LB_OK;
}

/* ---- a value of the file ---- */

static lb_status read_value(const place *at, json_t *object)
{
    if (json_is_array(object)) {
        json_t *inner;
        size_t i;
        json_array_foreach(object, i, inner) LB_TRY(read_value(at, inner));
        return LB_OK;
    }
    if (!json_is_object(object)) return bad(at, "value", "an object that describes a sequence or a token");
    const json_t *id = field(object, ID_FIELDS, NULL), *meta = json_object_get(object, "meta_info");
    const char *name = id ? name_of(at, id) : NULL;
    if (json_is_array(json_object_get(object, "choices"))) return read_choices_of_server(at, object, name);
    if (json_is_object(meta)) return read_meta_info(at, meta, name);
    if (json_is_array(json_object_get(object, "outputs"))) return read_request_output(at, object, name);
    if (json_is_array(json_array_get(json_object_get(object, "completion_ids"), 0)))
        return read_completions(at, object);
    if (json_is_array(json_object_get(object, "prompt_logprobs"))) {
        lb_token_sequence *sequence = lb_token_set_add(at->set, name);
        return sequence ? read_prompt(at, sequence, json_object_get(object, "prompt_logprobs"),
                                      json_object_get(object, "prompt_token_ids"))
                        : LB_ERR_NOMEM;
    }
    if (json_object_get(object, "logprob")) return read_token(at, object);
    if (field(object, SCORE_FIELDS, NULL) || field(object, TOKEN_FIELDS, NULL)) return read_sequence(at, object, name);
    return bad(at, "object",
               "\"logprobs\" with \"token_ids\" or \"tokens\", \"logprob\" of one token, or a server's answer");
}

/* Python writes NaN and -Infinity, for which JSON has no words: outside of texts they become "" and "-inf", in
 * place. */
static void hide_words(char *bytes, size_t size)
{
    bool text = false;
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '"') text = !text;
        if (text && bytes[i] == '\\') i++;
        if (text || (bytes[i] != 'N' && bytes[i] != '-')) continue;
        if (size - i >= 3 && memcmp(bytes + i, "NaN", 3) == 0) memcpy(bytes + i, "\"\" ", 3), i += 2;
        if (size - i >= 9 && memcmp(bytes + i, "-Infinity", 9) == 0) memcpy(bytes + i, "\"-inf\"   ", 9), i += 8;
    }
}

/* `first` is what the line at hand holds, which was parsed. */
static lb_status read_lines(lb_token_set *set, lb_input_lines *lines, json_t *first, lb_err *err)
{
    bool more = true;
    for (json_t *value = first; more; value = NULL, more = lb_input_lines_next(lines)) {
        const place here = {set, lines->number, err};
        const char *text = lines->text + strspn(lines->text, " \t\r");
        json_error_t why = {.text = ""};
        if (!value && text == lines->text + lines->size) continue;
        if (!value) {
            hide_words(lines->text, lines->size);
            value = lb_decode_limit_json(text, lines->size - (size_t)(text - lines->text), 0,
                                         lb_decode_limit_room() / 2, &why);
        }
        if (!value)
            return lb_fail(err, lb_decode_limit_json_status(LB_ERR_CORRUPT), "%s: line %zu: %s", set->path,
                           (size_t)lines->number, why.text);
        const lb_status status = read_value(&here, value);
        json_decref(value);
        LB_TRY(status);
    }
    return LB_OK;
}

static lb_status read_document(lb_token_set *set, lb_err *err)
{
    FILE *file;
    char *bytes;
    size_t size;
    json_error_t why;
    const place here = {set, 0, err};
    LB_TRY(lb_input_stream(set->path, &file, err));
    LB_TRY(lb_input_lines_rest(file, set->path, lb_decode_limit_room(), &bytes, &size, err));
    hide_words(bytes, size);
    json_t *document = lb_decode_limit_json(bytes, size, 0, lb_decode_limit_room(), &why);
    free(bytes);
    if (!document)
        return lb_fail(err, lb_decode_limit_json_status(LB_ERR_CORRUPT), "%s: line %d, column %d: %s", set->path,
                       why.line, why.column, why.text);
    const lb_status status = read_value(&here, document);
    json_decref(document);
    return status;
}

/* Files of lines are read line by line, so that a message can name one; a first line that is no value by itself begins
 * a document, and so does one that is longer than a line may be. */
lb_status lb_token_set_read_json(lb_token_set *set, lb_err *err)
{
    lb_input_lines lines;
    json_error_t why;
    json_t *first = NULL;
    bool too_large = false; /* the first of several lines */
    LB_TRY(lb_input_lines_open(&lines, set->path, SIZE_MAX, err));
    if (lb_input_lines_next(&lines)) {
        hide_words(lines.text, lines.size);
        first = lb_decode_limit_json(lines.text, lines.size, 0, lb_decode_limit_room() / 2, &why);
        too_large = !first && lb_decode_limit_json_status(LB_OK) == LB_ERR_LIMIT && lb_input_lines_next(&lines);
    }
    const lb_status status = too_large ? lb_fail(err, LB_ERR_LIMIT, "%s: line 1: %s", set->path, why.text)
                             : first   ? read_lines(set, &lines, first, err)
                                       : LB_OK;
    lb_err refused = LB_ERR_INIT;
    const lb_status ended = lb_input_lines_close(&lines, &refused);
    if (status != LB_OK) return status;
    if (!first && (ended == LB_OK || ended == LB_ERR_LIMIT)) return read_document(set, err);
    return ended == LB_OK ? LB_OK : lb_fail(err, ended, "%s", refused.message);
}
