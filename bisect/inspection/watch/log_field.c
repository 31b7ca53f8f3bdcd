/* Field names and values: see log_field.h. */
#include "watch/log_field.h"

#include "watch/log_number.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *lb_watch_field_name(lb_watch_field field)
{
#define NAME(name, text) [LB_WATCH_##name] = #name,
    static const char *const names[LB_WATCH_FIELDS] = {LB_WATCH_NUMBERS(NAME) LB_WATCH_WORDS(NAME)[LB_WATCH_step] =
                                                           "step",
                                                       [LB_WATCH_rank] = "rank", [LB_WATCH_skipped] = "skipped"};
#undef NAME
    return (unsigned)field < LB_WATCH_FIELDS ? names[field] : "";
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* As they are when only letters, digits, a percent sign and a slash are left. Names are those of nanochat, Megatron-LM,
 * DeepSpeed, the Hugging Face Trainer, Lightning, torchtitan and Weights & Biases. */
static const struct {
    const char *name;
    lb_watch_field field;
} KNOWN[] = {
    {"step", LB_WATCH_step},
    {"globalstep", LB_WATCH_step},
    {"currentsteps", LB_WATCH_step},
    {"currentstep", LB_WATCH_step},
    {"steps", LB_WATCH_step},
    {"trainstep", LB_WATCH_step},
    {"globalsteps", LB_WATCH_step},
    {"iternum", LB_WATCH_step},
    {"trainerglobalstep", LB_WATCH_step},
    {"iter", LB_WATCH_step},
    {"iteration", LB_WATCH_step},
    {"loss", LB_WATCH_loss},
    {"lmloss", LB_WATCH_loss},
    {"lossstep", LB_WATCH_loss},
    {"trainlossstep", LB_WATCH_loss},
    {"trainingloss", LB_WATCH_loss},
    {"avgloss", LB_WATCH_loss},
    {"globalavgloss", LB_WATCH_loss},
    {"crossentropyloss", LB_WATCH_loss},
    {"celoss", LB_WATCH_loss},
    {"trainceloss", LB_WATCH_loss},
    {"losstrain", LB_WATCH_loss},
    {"iterloss", LB_WATCH_loss},
    {"meanloss", LB_WATCH_loss},
    {"sumloss", LB_WATCH_loss},
    {"trainloss", LB_WATCH_loss},
    {"lossmetrics/globalavgloss", LB_WATCH_loss},
    {"gnorm", LB_WATCH_gnorm},
    {"gradnorm", LB_WATCH_gnorm},
    {"gradientnorm", LB_WATCH_gnorm},
    {"globalgradnorm", LB_WATCH_gnorm},
    {"totalgradnorm", LB_WATCH_gnorm},
    {"gradnormtotal", LB_WATCH_gnorm},
    {"totalnorm", LB_WATCH_gnorm},
    {"gradnorms", LB_WATCH_gnorm},
    {"normgrad", LB_WATCH_gnorm},
    {"gradientl2norm", LB_WATCH_gnorm},
    {"gradl2norm", LB_WATCH_gnorm},
    {"gradnormpreclip", LB_WATCH_gnorm},
    {"gradnorm/total", LB_WATCH_gnorm},
    {"lrm", LB_WATCH_lrm},
    {"lrmult", LB_WATCH_lrm},
    {"lrmultiplier", LB_WATCH_lrm},
    {"lr", LB_WATCH_lr},
    {"lr/group0", LB_WATCH_lr},
    {"learningrate", LB_WATCH_lr},
    {"lrabs", LB_WATCH_lr},
    {"dt", LB_WATCH_dt},
    {"dtms", LB_WATCH_dt},
    {"steptime", LB_WATCH_dt},
    {"steptimems", LB_WATCH_dt},
    {"itertime", LB_WATCH_dt},
    {"itertimems", LB_WATCH_dt},
    {"itertimes", LB_WATCH_dt},
    {"ms/step", LB_WATCH_dt},
    {"iterationtime", LB_WATCH_dt},
    {"msperiter", LB_WATCH_dt},
    {"timems", LB_WATCH_dt},
    {"elapsedtimeperiterationms", LB_WATCH_dt},
    {"tok/sec", LB_WATCH_tok_sec},
    {"toksec", LB_WATCH_tok_sec},
    {"tok/s", LB_WATCH_tok_sec},
    {"tokpersec", LB_WATCH_tok_sec},
    {"tokens/s", LB_WATCH_tok_sec},
    {"tokens/sec", LB_WATCH_tok_sec},
    {"tokenspersec", LB_WATCH_tok_sec},
    {"tokenspersecond", LB_WATCH_tok_sec},
    {"throughput", LB_WATCH_tok_sec},
    {"tps", LB_WATCH_tok_sec},
    {"tokensperpsecond", LB_WATCH_tok_sec},
    {"tokenspersecondpergpu", LB_WATCH_tok_sec},
    {"tokens/sec/gpu", LB_WATCH_tok_sec},
    {"device/tokenspersecond", LB_WATCH_tok_sec},
    {"throughput/device/tokenspersecond", LB_WATCH_tok_sec},
    {"tgs", LB_WATCH_tok_sec},
    {"toks/s", LB_WATCH_tok_sec},
    {"throughputtokens/s", LB_WATCH_tok_sec},
    {"tok/s/gpu", LB_WATCH_tok_sec},
    {"ema", LB_WATCH_ema},
    {"gnormema", LB_WATCH_ema},
    {"gradnormema", LB_WATCH_ema},
    {"emagnorm", LB_WATCH_ema},
    {"shard", LB_WATCH_shard},
    {"datashard", LB_WATCH_shard},
    {"shardname", LB_WATCH_shard},
    {"datafile", LB_WATCH_shard},
    {"curriculum", LB_WATCH_curriculum},
    {"phase", LB_WATCH_curriculum},
    {"tokenhash", LB_WATCH_tokens},
    {"tokenshash", LB_WATCH_tokens},
    {"tokensha", LB_WATCH_tokens},
    {"datahash", LB_WATCH_tokens},
    {"batchhash", LB_WATCH_tokens},
    {"tokencounts", LB_WATCH_counts},
    {"tokenhistogram", LB_WATCH_counts},
    {"tokenhist", LB_WATCH_counts},
    {"checkpoint", LB_WATCH_checkpoint},
    {"ckpt", LB_WATCH_checkpoint},
    {"rank", LB_WATCH_rank},
    {"skipped", LB_WATCH_skipped},
    {"skip", LB_WATCH_skipped},
    {"skippedstep", LB_WATCH_skipped},
    {"stepskipped", LB_WATCH_skipped},
    {"foundinf", LB_WATCH_skipped},
    {"overflow", LB_WATCH_skipped},
    {"numberofskippediterations", LB_WATCH_skipped},
};

/* A folder that says no more than that it is about training. */
static size_t prefix_of(const char *name, size_t n)
{
    static const char *const prefixes[] = {"train/", "training/", "train_", "optim/", "metrics/", "perf/", "trainer/"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        const size_t length = strlen(prefixes[i]);
        if (n > length && !strncasecmp(name, prefixes[i], length)) return length;
    }
    return 0;
}

static lb_watch_field known_name(const char *name, size_t n)
{
    char bare[48];
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)name[i];
        if (!isalnum(c) && c != '/' && c != '%') continue;
        if (length == sizeof bare - 1) return LB_WATCH_FIELDS;
        bare[length++] = (char)tolower(c);
    }
    bare[length] = '\0';
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (!strcmp(KNOWN[i].name, bare)) return KNOWN[i].field;
    return LB_WATCH_FIELDS;
}

bool lb_field_is_plain(const char *name, size_t n)
{
    static const char *const words[] = {"step", "iter", "iteration", "loss", "lr", "norm", "time", "tps", "gnorm"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == n && !strncasecmp(words[i], name, n)) return true;
    return n > 5 && n < 40 && known_name(name, n) != LB_WATCH_FIELDS;
}

/* Parts that say that a number is not of a training step, and parts that say nothing. */
static bool is_one_of(const char *part, size_t n, const char *const *words, size_t n_words)
{
    for (size_t i = 0; i < n_words; i++)
        if (strlen(words[i]) == n && !strncasecmp(words[i], part, n)) return true;
    return false;
}

/* By the last part of a name in folders that says something. */
static lb_watch_field folder_name(const char *name, size_t n)
{
    static const char *const others[] = {"val", "valid",     "validation", "eval",  "evaluation", "test", "dev",
                                         "ref", "reference", "__min",      "__max", "epoch",      "ema",  "aux"};
    static const char *const empty[] = {"train", "training", "step", "total", "mean", "avg", "value"};
    lb_watch_field field = LB_WATCH_FIELDS;
    for (size_t end = n; end > 0;) {
        size_t start = end;
        while (start > 0 && name[start - 1] != '/' && name[start - 1] != '.') start--;
        const char *part = name + start;
        if (is_one_of(part, end - start, others, sizeof others / sizeof *others)) return LB_WATCH_FIELDS;
        if (field == LB_WATCH_FIELDS && !is_one_of(part, end - start, empty, sizeof empty / sizeof *empty)) {
            field = known_name(part, end - start);
            if (field == LB_WATCH_FIELDS) return field;
        }
        end = start ? start - 1 : 0;
    }
    return field == LB_WATCH_step ? LB_WATCH_FIELDS : field;
}

/* A name of Weights & Biases' table: "the run - train/loss"; its "__MIN" and "__MAX" stand beside it. */
static void pass_run(const char **name, size_t *n)
{
    for (size_t i = *n; i > 3; i--) {
        if (memcmp(*name + i - 3, " - ", 3) != 0) continue;
        *name += i, *n -= i;
        return;
    }
}

static void note(lb_watch_names *seen, lb_watch_field field, const char *name, size_t n, bool weak)
{
    if (!seen || n >= LB_WATCH_NAME || !n) return;
    if (field != LB_WATCH_FIELDS) {
        if (*seen->of[field] && (weak || !seen->weak[field])) return;
        snprintf(seen->of[field], LB_WATCH_NAME, "%.*s", (int)n, name);
        seen->weak[field] = weak;
        return;
    }
    for (uint32_t i = 0; i < seen->n_others; i++)
        if (strlen(seen->others[i]) == n && !memcmp(seen->others[i], name, n)) return;
    if (seen->n_others == LB_WATCH_OTHERS || !isalpha((unsigned char)*name)) return;
    snprintf(seen->others[seen->n_others++], LB_WATCH_NAME, "%.*s", (int)n, name);
}

void lb_field_offer(lb_watch_names *seen, const char *name, size_t n)
{
    note(seen, LB_WATCH_FIELDS, name, n, false);
}

/* Whether the log has another name for the field that is as good. */
static bool has_better(const lb_watch_names *seen, lb_watch_field field, const char *name, size_t n)
{
    return seen && field != LB_WATCH_FIELDS && *seen->of[field] &&
           (strlen(seen->of[field]) != n || memcmp(seen->of[field], name, n) != 0);
}

/* Whether the log has the name that the user gave for the field. */
static bool has_users(const lb_watch_names *seen, lb_watch_field field)
{
    return seen && field != LB_WATCH_FIELDS && seen->users[field];
}

lb_watch_field lb_field_of(const lb_field_names *names, const char *name, size_t n)
{
    lb_watch_names *seen = names ? names->seen : NULL;
    for (uint32_t i = 0; names && i < names->n; i++) {
        if (strlen(names->aliases[i].name) != n || memcmp(names->aliases[i].name, name, n) != 0) continue;
        note(seen, names->aliases[i].field, name, n, false);
        if (seen) seen->users[names->aliases[i].field] = true;
        return names->aliases[i].field;
    }
    const char *whole = name;
    const size_t bytes = n;
    pass_run(&name, &n);
    const size_t prefix = prefix_of(name, n);
    lb_watch_field field =
        n > 5 && !memcmp(name + n - 5, "__M", 3) ? LB_WATCH_FIELDS : known_name(name + prefix, n - prefix);
    if (has_users(seen, field)) field = LB_WATCH_FIELDS; /* another name is another thing */
    if (field != LB_WATCH_FIELDS) {
        note(seen, field, whole, bytes, false);
        return field;
    }
    field = memchr(name, '/', n) || memchr(name, '.', n) ? folder_name(name, n) : LB_WATCH_FIELDS;
    if (has_better(seen, field, whole, bytes)) field = LB_WATCH_FIELDS;
    note(seen, field, whole, bytes, true);
    return field;
}

lb_status lb_field_names_init(lb_field_names *names, const char *const *pairs, uint32_t n, lb_err *err)
{
    *names = (lb_field_names){calloc(n ? n : 1, sizeof(lb_field_alias)), 0, NULL};
    if (!names->aliases) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) {
        const char *equals = strchr(pairs[i], '=');
        int field = 0;
        while (equals && field < LB_WATCH_FIELDS &&
               !(strlen(lb_watch_field_name(field)) == (size_t)(equals - pairs[i]) &&
                 !strncmp(lb_watch_field_name(field), pairs[i], (size_t)(equals - pairs[i]))))
            field++;
        if (!equals || !equals[1] || field == LB_WATCH_FIELDS)
            return lb_fail(
                err, LB_ERR_INVALID,
                "`%s` is not FIELD=NAME; fields are loss, gnorm, lrm, lr, dt, tok_sec, ema, shard, curriculum, "
                "tokens, counts, checkpoint, step, rank, skipped",
                pairs[i]);
        char *name = strdup(equals + 1);
        if (!name) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        names->aliases[names->n++] = (lb_field_alias){(lb_watch_field)field, name};
    }
    return LB_OK;
}

void lb_field_names_release(lb_field_names *names)
{
    for (uint32_t i = 0; i < names->n; i++) free(names->aliases[i].name);
    free(names->aliases);
    *names = (lb_field_names){0};
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

void lb_log_field_record_clear(lb_watch_record *record)
{
    record->steps = 0, record->has = 0, record->lr_rounding = 0, record->rank = 0, record->skipped = false;
}

/* Steps beyond it are no steps: a double has them exactly up to here. */
#define LARGEST_STEP 0x1p53

void lb_log_field_record_put_number(lb_watch_record *record, lb_watch_field field, double number)
{
    if ((int)field < LB_WATCH_N_NUMBERS)
        record->number[field] = number;
    else if (field == LB_WATCH_step && number >= -LARGEST_STEP && number <= LARGEST_STEP && number == floor(number))
        record->step = (int64_t)number;
    else if (field == LB_WATCH_rank && number >= 0 && number <= INT32_MAX)
        record->rank = (int32_t)number;
    else if (field == LB_WATCH_skipped)
        record->skipped = number != 0;
    else
        return;
    record->has |= 1u << field;
}

static bool put_truth(lb_watch_record *record, const char *text, size_t n)
{
    const bool yes = (n == 4 && !strncasecmp(text, "true", 4)) || (n == 3 && !strncasecmp(text, "yes", 3));
    const bool no = (n == 5 && !strncasecmp(text, "false", 5)) || (n == 2 && !strncasecmp(text, "no", 2));
    if (yes || no) lb_log_field_record_put_number(record, LB_WATCH_skipped, yes);
    return yes || no;
}

static void put_word(lb_watch_record *record, lb_watch_field field, const char *text, size_t n)
{
    const bool nothing = n == 0 || (n == 4 && (!memcmp(text, "null", 4) || !memcmp(text, "None", 4)));
    const bool no =
        field == LB_WATCH_checkpoint && ((n == 1 && *text == '0') || (n == 5 && !strncasecmp(text, "false", 5)));
    if (nothing || no) return;
    record->word[field - LB_WATCH_shard] = (lb_watch_word){text, (uint32_t)n};
    record->has |= 1u << field;
}

/* Milliseconds where the unit says something else. */
static double in_milliseconds(double number, const char *unit, size_t n)
{
    if (n >= 2 && unit[0] == 'm' && unit[1] == 's') return number;
    if (n >= 2 && unit[0] == 'u' && unit[1] == 's') return number / 1e3;
    return n >= 1 && unit[0] == 's' ? number * 1e3 : number;
}

bool lb_log_field_record_put(lb_watch_record *record, lb_watch_field field, const char *text, size_t n)
{
    lb_log_number read;
    if (field >= LB_WATCH_shard && field < LB_WATCH_step) {
        put_word(record, field, text, n);
        return true;
    }
    if (field == LB_WATCH_skipped && put_truth(record, text, n)) return true;
    size_t taken = lb_log_number_read(text, n, &read);
    if (!taken) return false;
    if (field == LB_WATCH_step && (!(fabs(read.number) <= LARGEST_STEP) || read.number != floor(read.number)))
        return false;
    if (field == LB_WATCH_lrm || field == LB_WATCH_lr)
        record->lr_rounding = 0.5 * pow(10, -(double)(read.decimals > 30    ? 30
                                                      : read.decimals < -30 ? -30
                                                                            : read.decimals));
    if (field == LB_WATCH_step && taken < n && text[taken] == '/') {
        lb_log_number total;
        const size_t at = taken + 1 + (taken + 1 < n && text[taken + 1] == ' ');
        if (at < n && lb_log_number_read(text + at, n - at, &total) && total.number > 0 && total.number <= LARGEST_STEP)
            record->steps = (int64_t)total.number;
    }
    while (taken < n && text[taken] == ' ') taken++;
    lb_log_field_record_put_number(
        record, field, field == LB_WATCH_dt ? in_milliseconds(read.number, text + taken, n - taken) : read.number);
    return true;
}
