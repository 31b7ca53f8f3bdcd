/* lastbit bisect CAPTURE: find the cause of a failing step. The engine is bisect_session.c; this prints. */
#include "command/command_line.h"

#include <lastbit/bisect.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *text_or_null(const char *text)
{
    return text && *text ? json_string(text) : json_null();
}

static json_t *failure_json(const lb_failure *failure)
{
    if (failure->kind == LB_FAILURE_NONE) return json_null();
    return json_pack("{s:s,s:I,s:i,s:s,s:s,s:s,s:o}", "kind", lb_failure_kind_name(failure->kind), "step",
                     (json_int_t)failure->step, "rank", failure->rank, "layer", failure->layer, "op", failure->name,
                     "what", failure->what, "source", lb_command_json_line(&failure->line));
}

static json_t *origin_json(const lb_origin *origin)
{
    if (origin->op == LB_NONE) return json_null();
    return json_pack("{s:I,s:i,s:s,s:s,s:s,s:i,s:s,s:o}", "step", (json_int_t)origin->step, "rank", (int)origin->rank,
                     "phase", lb_phase_name(origin->phase), "layer", origin->layer, "op", origin->name, "index",
                     (int)origin->op, "text", origin->text, "source", lb_command_json_line(&origin->line));
}

static json_t *culprit_json(const lb_culprit *culprit)
{
    json_t *ranks = json_array();
    for (uint32_t i = 0; i < culprit->n_ranks; i++) json_array_append_new(ranks, json_integer(culprit->ranks[i]));
    char block[2] = {culprit->block, 0};
    json_t *object = json_pack("{s:s,s:o,s:o,s:s,s:o,s:s,s:I,s:s}", "axis", lb_bisect_axis_name(culprit->axis), "ranks",
                               ranks, "block", text_or_null(block), "layer", culprit->layer, "op",
                               text_or_null(culprit->op), "phase", lb_phase_name(culprit->phase), "step",
                               (json_int_t)(culprit->between ? culprit->acts : culprit->step), "why", culprit->why);
    json_object_set_new(object, "parameter", text_or_null(culprit->parameter));
    json_object_set_new(object, "source", lb_command_json_line(&culprit->lines[0]));
    json_object_set_new(object, "source_b", lb_command_json_line(&culprit->lines[1]));
    json_object_set_new(object, "effect", culprit->effect > 0 ? lb_command_json_number(culprit->effect) : json_null());
    json_object_set_new(object, "index", culprit->row == LB_NONE ? json_null() : json_integer(culprit->row));
    return object;
}

/* What is proven of the culprits of a difference together. */
static json_t *set_json(const lb_bisect_set *set)
{
    if (set->outcome == LB_BISECT_SET_NONE) return json_null();
    return json_pack("{s:s,s:o,s:o,s:I,s:f}", "outcome", lb_bisect_set_outcome_name(set->outcome), "why",
                     text_or_null(set->why), "cancels", text_or_null(set->cancels), "runs", (json_int_t)set->runs,
                     "replays", set->replays);
}

static void add_command(json_t *object, const char *key, char *text)
{
    json_object_set_new(object, key, text_or_null(text));
    free(text);
}

static json_t *bisection_json(const lb_bisection *bisection, const char *path)
{
    json_t *culprits = json_array(), *stages = json_array(), *trials = json_array();
    for (uint32_t i = 0; i < bisection->n_culprits; i++)
        json_array_append_new(culprits, culprit_json(&bisection->culprits[i]));
    for (uint32_t i = 0; i < bisection->n_stages; i++) {
        const lb_bisect_stage *stage = &bisection->stages[i];
        json_array_append_new(stages, json_pack("{s:s,s:s,s:i,s:s}", "stage", stage->name, "outcome", stage->outcome,
                                                "trials", (int)stage->trials, "note", stage->note));
    }
    for (uint32_t i = 0; i < bisection->n_trials; i++) {
        const lb_trial *trial = &bisection->trials[i];
        json_array_append_new(trials, json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:f}", "stage",
                                                bisection->stages[trial->stage].name, "change", trial->change,
                                                "description", trial->description, "purpose", trial->purpose, "outcome",
                                                trial->outcome, "what", trial->what, "seconds", trial->seconds));
    }
    json_t *object = json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:f}", "outcome",
                               lb_bisect_outcome_name(bisection->outcome), "failure", failure_json(&bisection->failure),
                               "culprit", bisection->n_culprits ? culprit_json(&bisection->culprits[0]) : json_null(),
                               "culprits", culprits, "stages", stages, "cure", text_or_null(bisection->cure),
                               "reproducer", text_or_null(bisection->reproducer), "trials", trials, "note",
                               text_or_null(bisection->note), "seconds", bisection->seconds);
    json_object_set_new(object, "reason", text_or_null(bisection->reason));
    json_object_set_new(object, "set", set_json(&bisection->set));
    json_object_set_new(object, "begins", origin_json(&bisection->origin));
    json_object_set_new(object, "reproducer_size",
                        bisection->reproducer ? json_pack("{s:I,s:I}", "ops", (json_int_t)bisection->reproducer_ops,
                                                          "bytes", (json_int_t)bisection->reproducer_bytes)
                                              : json_null());
    if (bisection->outcome == LB_BISECT_CLEAN && !bisection->checked && !bisection->command)
        json_object_set_new(object, "judged",
                            json_pack("{s:I,s:I,s:I}", "ops", (json_int_t)(bisection->compared - bisection->unjudged),
                                      "not_kept", (json_int_t)bisection->unjudged, "opaque",
                                      (json_int_t)bisection->opaque));
    add_command(object, "shows", lb_bisect_show_text(bisection, path));
    add_command(object, "cures", lb_bisect_cure_text(bisection, path));
    json_object_set_new(object, "record", text_or_null(bisection->again));
    return object;
}

static void say(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "%s\n", line);
}

static int exit_of(lb_bisect_outcome outcome)
{
    switch (outcome) {
    case LB_BISECT_CLEAN: return LB_EXIT_SAME;
    case LB_BISECT_FOUND: return LB_EXIT_DIFFERENT;
    default: return LB_EXIT_UNTESTABLE;
    }
}

/* Where the answer goes: on stdout as JSON or text, and into a page (NULL: none). */
typedef struct answers {
    bool json;
    const char *html;
} answers;

static int print(const lb_bisection *bisection, const char *path, const answers *to)
{
    lb_err err = LB_ERR_INIT;
    if (to->html && lb_command_write_page("bisect", bisection_json(bisection, path), to->html, &err) != LB_OK)
        return lb_command_fail("bisect", &err);
    if (to->json)
        lb_command_print_json("bisect", bisection_json(bisection, path));
    else {
        char *text = lb_bisection_text(bisection, path);
        if (text) lb_command_print_text(text);
        free(text);
    }
    return exit_of(bisection->outcome);
}

static int run_capture(const char *path, const char *against, lb_bisect_options *options, const answers *to)
{
    lb_err err = LB_ERR_INIT;
    lb_capture *capture = NULL, *reference = NULL;
    lb_bisection *bisection = NULL;
    lb_status status = lb_capture_open(path, &capture, &err);
    if (status == LB_OK && against) status = lb_capture_open(against, &reference, &err);
    options->against = reference;
    if (status == LB_OK) status = lb_bisect(capture, options, &bisection, &err);
    int rc = status == LB_OK                ? print(bisection, path, to)
             : err.status == LB_ERR_INVALID ? lb_command_misused("bisect", "%s", err.message)
                                            : lb_command_fail("bisect", &err);
    lb_bisection_free(bisection);
    lb_capture_close(reference);
    lb_capture_close(capture);
    return rc;
}

static int run_live(const lb_live_options *options, const answers *to)
{
    lb_err err = LB_ERR_INIT;
    lb_bisection *bisection = NULL;
    lb_status status = lb_bisect_live(options, &bisection, &err);
    int rc = status == LB_OK                ? print(bisection, "", to)
             : err.status == LB_ERR_INVALID ? lb_command_misused("bisect", "%s", err.message)
                                            : lb_command_fail("bisect", &err);
    lb_bisection_free(bisection);
    return rc;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

typedef struct asked {
    char *steps, *predicate, *against, *table, *journal, *reproducer, *run, *log, *noise, *memory, *html;
    const char **flags;
    int resume, force, quiet, check, from_start, threads, max_trials;
    double timeout;
    lb_command_swaps swaps;
} asked;

/* "0.1" or "0.1,0.02" */
static bool parse_noise(const char *text, double *miss, double *alarm)
{
    char *end;
    *miss = strtod(text, &end);
    if (end == text) return false;
    if (*end == ',') *alarm = strtod(end + 1, &end);
    return !*end && *miss >= 0 && *miss < 0.95 && *alarm >= 0 && *alarm < 0.5;
}

/* What does not go together; -1: nothing. */
static int refuse(const asked *asked, int n_args)
{
    if (asked->resume && !asked->journal) return lb_command_misused("bisect", "--resume needs --journal FILE");
    if (asked->swaps.err.status != LB_OK) return lb_command_misused("bisect", "%s", asked->swaps.err.message);
    if (asked->max_trials < 0 || asked->threads < 0 || asked->timeout < 0)
        return lb_command_misused("bisect", "a count cannot be negative");
    if (asked->run) {
        if (n_args) return lb_command_misused("bisect", "--run bisects a live job: no CAPTURE with it");
        if (asked->check || asked->swaps.n || asked->against || asked->reproducer || asked->predicate || asked->steps)
            return lb_command_misused("bisect",
                                      "--run goes with --flag, --log, --noise, --timeout and --journal alone");
        return -1;
    }
    if (n_args != 1) return lb_command_misused("bisect", "expected one CAPTURE or --run CMD, got %d arguments", n_args);
    if (asked->flags || asked->log || asked->noise || asked->timeout > 0)
        return lb_command_misused("bisect", "--flag, --log, --noise and --timeout belong to --run CMD");
    if (asked->table && !asked->against) return lb_command_misused("bisect", "--map FILE goes with --against REF");
    if (asked->swaps.n && !asked->check)
        return lb_command_misused("bisect", "a change is given without --check: the search makes its own");
    if (asked->check && (asked->against || asked->reproducer || asked->journal))
        return lb_command_misused("bisect", "--check searches nothing: no --against, --output or --journal with it");
    return -1;
}

static int start_live(const asked *asked, const answers *to)
{
    lb_live_options options = LB_LIVE_OPTIONS_INIT;
    options.command = asked->run, options.flags = asked->flags, options.log = asked->log,
    options.timeout_seconds = asked->timeout;
    options.journal = asked->journal, options.resume = asked->resume, options.max_trials = (uint32_t)asked->max_trials;
    while (asked->flags && asked->flags[options.n_flags]) options.n_flags++;
    if (!asked->quiet) options.say = say;
    if (asked->noise && !parse_noise(asked->noise, &options.miss, &options.alarm))
        return lb_command_misused("bisect", "--noise %s: expected MISS or MISS,ALARM, probabilities like 0.1,0.02",
                                  asked->noise);
    return run_live(&options, to);
}

static int start_capture(const asked *asked, const char *path, const answers *to)
{
    lb_bisect_options options = LB_BISECT_OPTIONS_INIT;
    lb_err err = LB_ERR_INIT;
    if (lb_command_parse_memory(asked->memory, &options.memory_bytes, &err) != LB_OK)
        return lb_command_misused("bisect", "%s", err.message);
    options.predicate = asked->predicate, options.table = asked->table, options.journal = asked->journal,
    options.resume = asked->resume;
    options.reproducer = asked->reproducer, options.overwrite = asked->force, options.threads = asked->threads;
    options.max_trials = (uint32_t)asked->max_trials;
    options.from_start = asked->from_start;
    options.check = asked->check, options.changes = asked->swaps.rows, options.n_changes = asked->swaps.n;
    if (!asked->quiet && !asked->check && !asked->against)
        options.say = say; /* against a reference there is one stage, and the answer says it */
    if (asked->steps && !lb_command_parse_steps(asked->steps, &options.first_step, &options.last_step))
        return lb_command_misused("bisect", "--steps %s: expected N or A-B", asked->steps);
    return run_capture(path, asked->against, &options, to);
}

int lb_cmd_bisect(int argc, const char **argv)
{
    asked asked = {0};
    const struct poptOption *changes = lb_command_swaps_table(&asked.swaps);
    const struct poptOption on_live[] = {
        {"run", 0, POPT_ARG_STRING, &asked.run, 0,
         "bisect this shell command, a short run of a live job, instead of a capture", "CMD"},
        {"flag", 0, POPT_ARG_ARGV, &asked.flags, 0,
         "what to add to CMD (where {} stands, or at its end) so that a suspect is switched off, e.g. "
         "'muon=--optimizer adamw', 'block:E=--no-experts'; may be given several times",
         "STAGE[:LABEL]=FLAGS"},
        {"log", 0, POPT_ARG_STRING, &asked.log, 0,
         "a run fails when a line that it prints matches; otherwise exit code 0 is good, 125 skipped, "
         "others below 126 bad",
         "PCRE2"},
        {"noise", 0, POPT_ARG_STRING, &asked.noise, 0,
         "how often a failing run looks good, and a good one failing: answers are repeated until they are sound",
         "MISS[,ALARM]"},
        {"timeout", 0, POPT_ARG_DOUBLE, &asked.timeout, 0, "kill a run after that; it counts as skipped", "SECONDS"},
        POPT_TABLEEND,
    };
    const struct poptOption options[] = {
        {"predicate", 0, POPT_ARG_STRING, &asked.predicate, 0,
         "another failure: nonfinite, max>X, loss>X, grad_norm>X, with @SELECTOR", "WHAT"},
        {"against", 0, POPT_ARG_STRING, &asked.against, 0,
         "bisect the difference from this capture instead of a failure: which places, each needed, part the two",
         "REF"},
        {"map", 0, POPT_ARG_STRING, &asked.table, 0,
         "with --against: read which tensor is which, as `diff --map-out` wrote it", "FILE"},
        {"steps", 0, POPT_ARG_STRING, &asked.steps, 0, "only these steps", "A-B"},
        {"output", 'o', POPT_ARG_STRING, &asked.reproducer, 0, "write the smallest capture that still fails",
         "REPRODUCER"},
        {"force", 0, POPT_ARG_NONE, &asked.force, 0, "replace REPRODUCER if it is there", NULL},
        {"journal", 0, POPT_ARG_STRING, &asked.journal, 0, "write every trial there as it ends", "FILE"},
        {"resume", 0, POPT_ARG_NONE, &asked.resume, 0, "go on with the journal: its trials are not run again", NULL},
        {"max-trials", 0, POPT_ARG_INT, &asked.max_trials, 0, "per search", "N"},
        {"threads", 0, POPT_ARG_INT, &asked.threads, 0, "of one replay", "N"},
        {"memory", 0, POPT_ARG_STRING, &asked.memory, 0, "keep at most this much", "512M"},
        {"html", 0, POPT_ARG_STRING, &asked.html, 0, "also write the page of `lastbit report`", "FILE"},
        {"from-start", 0, POPT_ARG_NONE, &asked.from_start, 0,
         "replay every trial from the window's first step instead of the latest step that its change leaves as it was: "
         "slower, the same verdict",
         NULL},
        {"quiet", 'q', POPT_ARG_NONE, &asked.quiet, 0, "no line per trial", NULL},
        {"check", 0, POPT_ARG_NONE, &asked.check, 0,
         "search nothing: replay once, with the changes given, and say whether it fails", NULL},
        {NULL, 0, POPT_ARG_INCLUDE_TABLE, (void *)changes, 0, "Changes for --check, as for `lastbit replay`:", NULL},
        {NULL, 0, POPT_ARG_INCLUDE_TABLE, (void *)on_live, 0, "A live job instead of a capture", NULL},
        POPT_TABLEEND,
    };
    const lb_command command = {
        .name = "bisect",
        .synopsis = "CAPTURE | --run CMD --flag ...",
        .about = "Finds why a recorded window fails: it replays the window with one thing changed at a time, "
                 "Muon first, then\n"
                 "every precision below f32, then ranks, then classes of residual blocks, "
                 "and narrows the first change that\n"
                 "cures down to layer, op and step. With --run it does the same to a live job, "
                 "a flag for each suspect.\n"
                 "With --against it names the smallest set of places that part the run from another one, "
                 "and proves it by exchanging them.\n"
                 "Exit code: 0 clean, 1 found, 125 not reproduced or undecided.",
        .example = "  lastbit bisect samples/polar-bf16.lbz -o smallest.lb\n"
                   "  lastbit bisect --run 'python train.py --steps 4' --log 'loss nan' --flag "
                   "'muon=--optimizer adamw' \\\n"
                   "      --flag 'precision=--dtype fp32' --flag 'block:E=--no-experts'",
        .options = options,
        .min_args = 0,
        .max_args = -1,
    };
    lb_command_arguments arguments;
    int rc = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (rc < 0) {
        rc = refuse(&asked, arguments.n_args);
        const answers to = {arguments.json, asked.html};
        if (rc < 0) rc = asked.run ? start_live(&asked, &to) : start_capture(&asked, arguments.args[0], &to);
        lb_command_arguments_release(&arguments);
    }
    lb_command_swaps_release(&asked.swaps);
    for (uint32_t i = 0; asked.flags && asked.flags[i]; i++) free((char *)asked.flags[i]);
    free(asked.flags);
    free(asked.steps), free(asked.predicate), free(asked.against), free(asked.table), free(asked.journal),
        free(asked.reproducer);
    free(asked.run), free(asked.log), free(asked.noise), free(asked.memory), free(asked.html);
    return rc;
}
