/* Watch: the log of a training run, or its capture, read step by step for what goes wrong.
 *
 * Simplest use:
 *
 *     lb_watch_options options = LB_WATCH_OPTIONS_INIT;
 *     lb_watch_record record = {.step = 1, .has = 1u << LB_WATCH_loss, .number = {[LB_WATCH_loss] = 4.25}};
 *     lb_watch *watch = lb_watch_new(&options);
 *     if (watch) lb_watch_take(watch, &record);          // each step in turn; lb_watch_log reads them from a file
 *     if (watch) printf("%u alarms\n", lb_watch_now(watch).n_alarms);
 *     lb_watch_free(watch);
 *
 *      bytes ──▶ lb_watch_log ──▶ lb_watch_record ──▶ lb_watch ──▶ alarms, holds, checkpoints, pattern
 *                (any format)       (one step)        (no I/O)
 *
 * Two kinds of detector stand side by side, and an alarm says which it is of. RULE is what practitioners use: the
 * gradient norm above 10 (warning) or 100 times (critical) an average with alpha 0.01 that does not contain it yet, the
 * mean of ten losses above twice that of the hundred before, six of eight steps slower than 0.7 of the usual rate, a
 * number that is not finite. MODEL is a detector whose false alarms are stated: a run without an event has one with
 * probability LB_WATCH_FALSE_ALARMS, however long it is. The first lines of bisect/inspection/levels/level_model.h
 * derive it.
 *
 * An alarm is given once per excursion and detector, and again where it becomes critical. The excursion is over after
 * ten quiet steps. Memory is bounded: of an endless log stays what a window of steps needs, and at most LB_WATCH_ALARMS
 * alarms.
 */
#ifndef LASTBIT_WATCH_H
#define LASTBIT_WATCH_H

#include <lastbit/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LB_WATCH_FALSE_ALARMS 1e-5 /* of the model, in a run of any length without an event */
#define LB_WATCH_ALARMS 10000      /* alarms, holds and findings that are kept; later ones are counted */

/* ---- one step ---------------------------------------------------------------------------------------------------- */

/* X(name, what it is): numbers of a record. */
#define LB_WATCH_NUMBERS(X)                                                                                            \
    X(loss, "training loss")                                                                                           \
    X(gnorm, "gradient norm")                                                                                          \
    X(lrm, "multiplier of the learning rate's schedule")                                                               \
    X(lr, "learning rate")                                                                                             \
    X(dt, "milliseconds of the step")                                                                                  \
    X(tok_sec, "tokens per second")                                                                                    \
    X(ema, "the log's own average of the gradient norm")
/* X(name, what it is): words of a record. */
#define LB_WATCH_WORDS(X)                                                                                              \
    X(shard, "data shard, or the file that it came from")                                                              \
    X(curriculum, "phase of the curriculum")                                                                           \
    X(tokens, "hash of the step's tokens")                                                                             \
    X(counts, "how often each token was read: a list as long in every record")                                         \
    X(checkpoint, "a checkpoint was written: its path, or anything that is neither false nor 0")

typedef enum lb_watch_field {
#define LB_WATCH_ENUM(name, text) LB_WATCH_##name,
    LB_WATCH_NUMBERS(LB_WATCH_ENUM) LB_WATCH_WORDS(LB_WATCH_ENUM)
#undef LB_WATCH_ENUM
        LB_WATCH_step,
    LB_WATCH_rank,
    LB_WATCH_skipped, /* the optimizer's step was skipped */
    LB_WATCH_FIELDS
} lb_watch_field;
#define LB_WATCH_N_NUMBERS ((int)LB_WATCH_shard)
#define LB_WATCH_N_WORDS ((int)LB_WATCH_step - (int)LB_WATCH_shard)
LB_API const char *lb_watch_field_name(lb_watch_field field); /* "gnorm" */

/* Text that lies in the line it was read from, not NUL-terminated. */
typedef struct lb_watch_word {
    const char *text;
    uint32_t n;
} lb_watch_word;

typedef struct lb_watch_record {
    int64_t step, steps; /* `steps`: of the whole run where the log says so, else 0 */
    uint32_t has;        /* bit 1 << lb_watch_field */
    double number[LB_WATCH_N_NUMBERS];
    lb_watch_word word[LB_WATCH_N_WORDS]; /* valid during the call that passes the record */
    double lr_rounding; /* by how much lrm or lr may be off because of the digits shown, relative or absolute */
    int32_t rank;
    bool skipped;
    uint64_t line;
} lb_watch_record;

static inline bool lb_watch_has(const lb_watch_record *record, lb_watch_field field)
{
    return record->has >> field & 1;
}

/* ---- reading logs ------------------------------------------------------------------------------------------------ */

typedef enum lb_watch_format {
    LB_WATCH_AUTO,    /* from the first bytes */
    LB_WATCH_LINE,    /* "step 00050/30000 (0.17%) | loss: 4.2371 | lrm: 0.55 | …" */
    LB_WATCH_JSONL,   /* one object a line; objects inside it are joined by "/"; NaN and Infinity are taken */
    LB_WATCH_PAIRS,   /* any line that names its numbers: "iter 10: loss 4.23", "loss=2.3 step=7", progress bars */
    LB_WATCH_CSV,     /* a header of names, separated by comma, semicolon or tab */
    LB_WATCH_EVENTS,  /* TensorBoard's event file: scalars, as simple_value or as tensor */
    LB_WATCH_PATTERN, /* lines that match `pattern`, whose named groups are fields */
    LB_WATCH_CAPTURE,
    LB_WATCH_MLFLOW, /* MLflow's folder of a run, or a file of its metrics: "TIMESTAMP VALUE STEP" */
    LB_WATCH_TRAINER /* trainer_state.json of transformers: its log_history; a copy with more gives what is new */
} lb_watch_format;
LB_API const char *lb_watch_format_name(lb_watch_format format); /* "line", "jsonl", … */
LB_API bool lb_watch_format_parse(const char *text, lb_watch_format *format);

/* What reading gives, each in the order of the log. */
typedef struct lb_watch_sink {
    void *context;
    void (*record)(void *context, const lb_watch_record *record);
    /* A line (a record of an event file) that was skipped, and why. */
    void (*complaint)(void *context, uint64_t line, const char *why);
    /* A line that speaks of a checkpoint written at that step. */
    void (*checkpoint)(void *context, int64_t step, const char *text);
} lb_watch_sink;

typedef struct lb_watch_log_options {
    size_t size; /* sizeof(lb_watch_log_options) */
    lb_watch_format format;
    const char *pattern;       /* of LB_WATCH_PATTERN: PCRE2 */
    const char *const *fields; /* "gnorm=NAME": the log's own names, before the known ones */
    uint32_t n_fields;
} lb_watch_log_options;
#define LB_WATCH_LOG_OPTIONS_INIT {.size = sizeof(lb_watch_log_options)}

/* What the log calls the fields that were read, and names of numbers that were not. */
enum { LB_WATCH_NAME = 64, LB_WATCH_OTHERS = 32 };
typedef struct lb_watch_names {
    char of[LB_WATCH_FIELDS][LB_WATCH_NAME]; /* "": the log has none */
    bool weak[LB_WATCH_FIELDS];              /* known by the last part of its name alone */
    bool users[LB_WATCH_FIELDS];             /* the user said so */
    char others[LB_WATCH_OTHERS][LB_WATCH_NAME];
    uint32_t n_others;
} lb_watch_names;

typedef struct lb_watch_counts {
    uint64_t bytes, lines, records, complaints;
    uint64_t numbered;      /* records without a step, which were counted instead */
    lb_watch_format format; /* found; AUTO: nothing has come yet */
    lb_watch_names names;
} lb_watch_counts;

typedef struct lb_watch_log lb_watch_log;
/* LB_ERR_INVALID: a field that is none, a pattern that is wrong or names no field. */
LB_API lb_status lb_watch_log_new(const lb_watch_log_options *options, const lb_watch_sink *sink, lb_watch_log **log,
                                  lb_err *err);
LB_API void lb_watch_log_free(lb_watch_log *log);
/* More bytes, cut anywhere; a line is read when its end has come. Fails for want of memory alone. */
LB_API lb_status lb_watch_log_bytes(lb_watch_log *log, const void *bytes, size_t n, lb_err *err);
/* No more will come of this file: a last line without an end is read; another file may follow. */
LB_API lb_status lb_watch_log_end(lb_watch_log *log, lb_err *err);
LB_API lb_watch_counts lb_watch_log_counts(const lb_watch_log *log);

typedef struct lb_watch_source {
    size_t size;                 /* sizeof(lb_watch_source) */
    bool follow;                 /* wait for more, also when the file is cut or replaced by another of its name */
    double idle_seconds;         /* with `follow`: stop when nothing has come for so long; 0: never */
    bool (*stop)(void *context); /* asked after every read and while waiting; NULL: never */
    void *context;
    void (*absent)(void *context, const char *why); /* with `follow`: what is waited for; told once; NULL: not told */
} lb_watch_source;
#define LB_WATCH_SOURCE_INIT {.size = sizeof(lb_watch_source)}
/* Reads "-" (stdin), a file, a folder of event files, MLflow's folder of a run (as it is: it is not followed), a folder
 * of transformers' checkpoints (checkpoint-500/trainer_state.json, each of them a checkpoint that is known), or a
 * capture into `log`. What is not there is waited for with `follow`. */
LB_API lb_status lb_watch_log_read(lb_watch_log *log, const char *path, const lb_watch_source *source, lb_err *err);

/* ---- the schedule ------------------------------------------------------------------------------------------------ */

typedef enum lb_watch_schedule_kind {
    LB_SCHEDULE_NONE,
    LB_SCHEDULE_COSINE,
    LB_SCHEDULE_WSD, /* warm-up, stable, linear decay over the last `decay_ratio` of the iterations */
    LB_SCHEDULE_LINEAR,
    LB_SCHEDULE_CONSTANT
} lb_watch_schedule_kind;
LB_API bool lb_watch_schedule_parse(const char *text, lb_watch_schedule_kind *kind);

/* Multiplier at iteration `it`. Warm-up: w = round(warmup_ratio * iterations), (it + 1) / max(1, w) while it < w. Then
 * cosine and linear fall from 1 to final_frac over the whole range (it / iterations, as the playbook has it) or, with
 * `behind_warmup`, over what is left of it ((it - w) / (iterations - w)). */
typedef struct lb_watch_schedule {
    lb_watch_schedule_kind kind;
    int64_t iterations;
    double warmup_ratio, final_frac, decay_ratio;
    bool behind_warmup;
} lb_watch_schedule;
LB_API double lb_schedule_multiplier(const lb_watch_schedule *schedule, int64_t it);

/* ---- watching ---------------------------------------------------------------------------------------------------- */

typedef enum lb_alarm_kind {
    LB_ALARM_GRAD_NORM,
    LB_ALARM_NONFINITE,
    LB_ALARM_LOSS,
    LB_ALARM_THROUGHPUT,
    LB_ALARM_SCHEDULE,
    LB_ALARM_DATA,
    LB_ALARM_KINDS
} lb_alarm_kind;
typedef enum lb_alarm_level { LB_ALARM_WARNING = 1, LB_ALARM_CRITICAL, LB_ALARM_OFF } lb_alarm_level;
typedef enum lb_alarm_detector { LB_DETECTOR_RULE, LB_DETECTOR_MODEL, LB_DETECTOR_HINDSIGHT } lb_alarm_detector;
LB_API const char *lb_alarm_kind_name(lb_alarm_kind kind);             /* "grad_norm" */
LB_API const char *lb_alarm_level_name(lb_alarm_level level);          /* "warning" */
LB_API const char *lb_alarm_detector_name(lb_alarm_detector detector); /* "rule", "model", "afterwards" */

typedef struct lb_watch_alarm {
    int64_t step, until; /* first step, and the last one that was out so far */
    lb_alarm_kind kind;
    lb_alarm_level level;
    lb_alarm_detector detector;
    double value, reference, ratio; /* may be NaN or infinite */
    char shard[80];                 /* that the step read, "" unknown */
    char why[200];                  /* one sentence without its stop */
} lb_watch_alarm;

typedef struct lb_watch_hold {
    int64_t from, to; /* first and last step that were out */
    bool open;        /* it lasts still */
} lb_watch_hold;

typedef struct lb_watch_checkpoint {
    int64_t step;
    int64_t from, to; /* the excursion that it was written in */
    char text[160];   /* its path or the log's line; "" from --checkpoint-every */
} lb_watch_checkpoint;

/* What is worth knowing and is no alarm. Kinds: "skips", "ema", "restart", "determinism", "boundary", "shard",
 * "curriculum", … */
typedef struct lb_watch_finding {
    char kind[16];
    int64_t step; /* INT64_MIN: about no step */
    char text[300];
} lb_watch_finding;

typedef enum lb_watch_pattern {
    LB_SPIKE_NONE,
    LB_SPIKE_IMMEDIATE_NAN,
    LB_SPIKE_EARLY,
    LB_SPIKE_LATE_TRANSIENT
} lb_watch_pattern;
LB_API const char *lb_watch_pattern_name(lb_watch_pattern pattern); /* "none", "immediate-nan", … */

typedef struct lb_watch_report {
    const lb_watch_alarm *alarms;
    const lb_watch_hold *holds;
    const lb_watch_checkpoint *checkpoints; /* written inside an excursion */
    const lb_watch_finding *findings;
    uint32_t n_alarms, n_holds, n_checkpoints, n_findings;
    uint64_t dropped; /* over LB_WATCH_ALARMS */
    lb_watch_pattern pattern;
    uint64_t records;
    int64_t first_step, last_step;
    int64_t restart_from;           /* the last checkpoint known before the first hold; -1: none is known */
    uint64_t nonfinite, skipped;    /* steps */
    int schedule_stood;             /* over skipped steps: 1 it stood still, 0 it went on, -1 nothing shows it */
    int64_t loss_since, norm_since; /* first step that the model could judge, -1: it has not seen enough */
    const uint64_t *rows;           /* of each lb_watch_field: records that had it */
} lb_watch_report;

typedef struct lb_watch_options {
    size_t size; /* sizeof(lb_watch_options) */
    lb_watch_schedule schedule;
    int64_t checkpoint_every;   /* 0: not known */
    const int64_t *checkpoints; /* steps of those that are there, any order */
    uint32_t n_checkpoints;
    /* 0: every alarm of the kind counts; what is below is a finding ("below-level") */
    lb_alarm_level least[LB_ALARM_KINDS];
    void *context;
    void (*alarm)(void *context, const lb_watch_alarm *alarm); /* as it is raised; may be NULL */
    void (*hold)(void *context, const lb_watch_hold *hold);    /* begins (`open`), ends; may be NULL */
} lb_watch_options;
#define LB_WATCH_OPTIONS_INIT                                                                                          \
    {                                                                                                                  \
        .size = sizeof(lb_watch_options), .schedule = {.warmup_ratio = 0.03, .decay_ratio = 0.2 }                      \
    }

typedef struct lb_watch lb_watch;                               /* one run; one thread */
LB_API lb_watch *lb_watch_new(const lb_watch_options *options); /* NULL when out of memory */
LB_API void lb_watch_free(lb_watch *watch);
LB_API void lb_watch_take(lb_watch *watch, const lb_watch_record *record);
LB_API void lb_watch_checkpoint_written(lb_watch *watch, int64_t step, const char *text);
/* What is known so far; valid until the next call. Reports of a run that goes on may be asked for at any time. */
LB_API lb_watch_report lb_watch_now(lb_watch *watch);

/* Several logs of one run, repeated: a spike that comes back with its shard (an alarm of kind data), whether the losses
 * of the first 20 steps agree (a finding; an alarm where `same_seed`). Writes at most `room` alarms, and one finding;
 * gives how many alarms. */
LB_API uint32_t lb_watch_reruns(lb_watch *const *runs, uint32_t n, bool same_seed, lb_watch_alarm *alarms,
                                uint32_t room, lb_watch_finding *finding);

#ifdef __cplusplus
}
#endif
#endif
