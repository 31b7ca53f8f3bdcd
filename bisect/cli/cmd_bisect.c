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

static json_t *failure_json(const lb_failure *f)
{
    if (f->kind == LB_FAILURE_NONE) return json_null();
    return json_pack("{s:s,s:I,s:i,s:s,s:s,s:s,s:o}", "kind", lb_failure_kind_name(f->kind), "step",
                     (json_int_t)f->step, "rank", f->rank, "layer", f->layer, "op", f->name, "what", f->what, "source",
                     lb_command_json_line(&f->line));
}

static json_t *origin_json(const lb_origin *o)
{
    if (o->op == LB_NONE) return json_null();
    return json_pack("{s:I,s:i,s:s,s:s,s:s,s:i,s:s,s:o}", "step", (json_int_t)o->step, "rank", (int)o->rank, "phase",
                     lb_phase_name(o->phase), "layer", o->layer, "op", o->name, "index", (int)o->op, "text", o->text,
                     "source", lb_command_json_line(&o->line));
}

static json_t *culprit_json(const lb_culprit *c)
{
    json_t *ranks = json_array();
    for (uint32_t i = 0; i < c->n_ranks; i++) json_array_append_new(ranks, json_integer(c->ranks[i]));
    char block[2] = {c->block, 0};
    json_t *o = json_pack("{s:s,s:o,s:o,s:s,s:o,s:s,s:I,s:s}", "axis", lb_bisect_axis_name(c->axis), "ranks", ranks,
                          "block", text_or_null(block), "layer", c->layer, "op", text_or_null(c->op), "phase",
                          lb_phase_name(c->phase), "step", (json_int_t)(c->between ? c->acts : c->step), "why", c->why);
    json_object_set_new(o, "parameter", text_or_null(c->parameter));
    json_object_set_new(o, "source", lb_command_json_line(&c->lines[0]));
    json_object_set_new(o, "source_b", lb_command_json_line(&c->lines[1]));
    json_object_set_new(o, "index", c->row == LB_NONE ? json_null() : json_integer(c->row));
    return o;
}

static void add_command(json_t *o, const char *key, char *text)
{
    json_object_set_new(o, key, text_or_null(text));
    free(text);
}

static json_t *bisection_json(const lb_bisection *b, const char *path)
{
    json_t *culprits = json_array(), *stages = json_array(), *trials = json_array();
    for (uint32_t i = 0; i < b->n_culprits; i++) json_array_append_new(culprits, culprit_json(&b->culprits[i]));
    for (uint32_t i = 0; i < b->n_stages; i++) {
        const lb_bisect_stage *s = &b->stages[i];
        json_array_append_new(stages, json_pack("{s:s,s:s,s:i,s:s}", "stage", s->name, "outcome", s->outcome, "trials",
                                                (int)s->trials, "note", s->note));
    }
    for (uint32_t i = 0; i < b->n_trials; i++) {
        const lb_trial *t = &b->trials[i];
        json_array_append_new(trials,
                              json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:f}", "stage", b->stages[t->stage].name, "change",
                                        t->change, "description", t->description, "purpose", t->purpose, "outcome",
                                        t->outcome, "what", t->what, "seconds", t->seconds));
    }
    json_t *o =
        json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:f}", "outcome", lb_bisect_outcome_name(b->outcome), "failure",
                  failure_json(&b->failure), "culprit", b->n_culprits ? culprit_json(&b->culprits[0]) : json_null(),
                  "culprits", culprits, "stages", stages, "cure", text_or_null(b->cure), "reproducer",
                  text_or_null(b->reproducer), "trials", trials, "note", text_or_null(b->note), "seconds", b->seconds);
    json_object_set_new(o, "reason", text_or_null(b->reason));
    json_object_set_new(o, "begins", origin_json(&b->origin));
    json_object_set_new(o, "reproducer_size",
                        b->reproducer ? json_pack("{s:I,s:I}", "ops", (json_int_t)b->reproducer_ops, "bytes",
                                                  (json_int_t)b->reproducer_bytes)
                                      : json_null());
    if (b->outcome == LB_BISECT_CLEAN && !b->checked && !b->command)
        json_object_set_new(o, "judged",
                            json_pack("{s:I,s:I,s:I}", "ops", (json_int_t)(b->compared - b->unjudged), "not_kept",
                                      (json_int_t)b->unjudged, "opaque", (json_int_t)b->opaque));
    add_command(o, "shows", lb_bisect_show_text(b, path));
    add_command(o, "cures", lb_bisect_cure_text(b, path));
    json_object_set_new(o, "record", text_or_null(b->again));
    return o;
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

static int print(const lb_bisection *b, const char *path, const answers *to)
{
    lb_err err = LB_ERR_INIT;
    if (to->html && lb_command_write_page("bisect", bisection_json(b, path), to->html, &err) != LB_OK)
        return lb_command_fail("bisect", &err);
    if (to->json)
        lb_command_print_json("bisect", bisection_json(b, path));
    else {
        char *text = lb_bisection_text(b, path);
        if (text) lb_command_print_text(text);
        free(text);
    }
    return exit_of(b->outcome);
}

static int run_capture(const char *path, const char *against, lb_bisect_options *o, const answers *to)
{
    lb_err err = LB_ERR_INIT;
    lb_capture *capture = NULL, *reference = NULL;
    lb_bisection *b = NULL;
    lb_status status = lb_capture_open(path, &capture, &err);
    if (status == LB_OK && against) status = lb_capture_open(against, &reference, &err);
    o->against = reference;
    if (status == LB_OK) status = lb_bisect(capture, o, &b, &err);
    int rc = status == LB_OK                ? print(b, path, to)
             : err.status == LB_ERR_INVALID ? lb_command_misused("bisect", "%s", err.message)
                                            : lb_command_fail("bisect", &err);
    lb_bisection_free(b);
    lb_capture_close(reference);
    lb_capture_close(capture);
    return rc;
}

static int run_live(const lb_live_options *o, const answers *to)
{
    lb_err err = LB_ERR_INIT;
    lb_bisection *b = NULL;
    lb_status status = lb_bisect_live(o, &b, &err);
    int rc = status == LB_OK                ? print(b, "", to)
             : err.status == LB_ERR_INVALID ? lb_command_misused("bisect", "%s", err.message)
                                            : lb_command_fail("bisect", &err);
    lb_bisection_free(b);
    return rc;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

typedef struct asked {
    char *steps, *predicate, *against, *journal, *reproducer, *run, *log, *noise, *memory, *html;
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
static int refuse(const asked *a, int n_args)
{
    if (a->resume && !a->journal) return lb_command_misused("bisect", "--resume needs --journal FILE");
    if (a->swaps.err.status != LB_OK) return lb_command_misused("bisect", "%s", a->swaps.err.message);
    if (a->max_trials < 0 || a->threads < 0 || a->timeout < 0)
        return lb_command_misused("bisect", "a count cannot be negative");
    if (a->run) {
        if (n_args) return lb_command_misused("bisect", "--run bisects a live job: no CAPTURE with it");
        if (a->check || a->swaps.n || a->against || a->reproducer || a->predicate || a->steps)
            return lb_command_misused("bisect",
                                      "--run goes with --flag, --log, --noise, --timeout and --journal alone");
        return -1;
    }
    if (n_args != 1) return lb_command_misused("bisect", "expected one CAPTURE or --run CMD, got %d arguments", n_args);
    if (a->flags || a->log || a->noise || a->timeout > 0)
        return lb_command_misused("bisect", "--flag, --log, --noise and --timeout belong to --run CMD");
    if (a->swaps.n && !a->check)
        return lb_command_misused("bisect", "a change is given without --check: the search makes its own");
    if (a->check && (a->against || a->reproducer || a->journal))
        return lb_command_misused("bisect", "--check searches nothing: no --against, --output or --journal with it");
    return -1;
}

static int start_live(const asked *a, const answers *to)
{
    lb_live_options o = LB_LIVE_OPTIONS_INIT;
    o.command = a->run, o.flags = a->flags, o.log = a->log, o.timeout_seconds = a->timeout;
    o.journal = a->journal, o.resume = a->resume, o.max_trials = (uint32_t)a->max_trials;
    while (a->flags && a->flags[o.n_flags]) o.n_flags++;
    if (!a->quiet) o.say = say;
    if (a->noise && !parse_noise(a->noise, &o.miss, &o.alarm))
        return lb_command_misused("bisect", "--noise %s: expected MISS or MISS,ALARM, probabilities like 0.1,0.02",
                                  a->noise);
    return run_live(&o, to);
}

static int start_capture(const asked *a, const char *path, const answers *to)
{
    lb_bisect_options o = LB_BISECT_OPTIONS_INIT;
    lb_err err = LB_ERR_INIT;
    if (lb_command_parse_memory(a->memory, &o.memory_bytes, &err) != LB_OK)
        return lb_command_misused("bisect", "%s", err.message);
    o.predicate = a->predicate, o.journal = a->journal, o.resume = a->resume;
    o.reproducer = a->reproducer, o.overwrite = a->force, o.threads = a->threads;
    o.max_trials = (uint32_t)a->max_trials;
    o.from_start = a->from_start;
    o.check = a->check, o.changes = a->swaps.rows, o.n_changes = a->swaps.n;
    if (!a->quiet && !a->check && !a->against)
        o.say = say; /* against a reference there is one stage, and the answer says it */
    if (a->steps && !lb_command_parse_steps(a->steps, &o.first_step, &o.last_step))
        return lb_command_misused("bisect", "--steps %s: expected N or A-B", a->steps);
    return run_capture(path, a->against, &o, to);
}

int lb_cmd_bisect(int argc, const char **argv)
{
    asked a = {0};
    const struct poptOption *changes = lb_command_swaps_table(&a.swaps);
    const struct poptOption on_live[] = {
        {"run", 0, POPT_ARG_STRING, &a.run, 0,
         "bisect this shell command, a short run of a live job, instead of a capture", "CMD"},
        {"flag", 0, POPT_ARG_ARGV, &a.flags, 0,
         "what to add to CMD (where {} stands, or at its end) so that a suspect is switched off, e.g. "
         "'muon=--optimizer adamw', 'block:E=--no-experts'; may be given several times",
         "STAGE[:LABEL]=FLAGS"},
        {"log", 0, POPT_ARG_STRING, &a.log, 0,
         "a run fails when a line that it prints matches; otherwise exit code 0 is good, 125 skipped, others below 126 "
         "bad",
         "PCRE2"},
        {"noise", 0, POPT_ARG_STRING, &a.noise, 0,
         "how often a failing run looks good, and a good one failing: answers are repeated until they are sound",
         "MISS[,ALARM]"},
        {"timeout", 0, POPT_ARG_DOUBLE, &a.timeout, 0, "kill a run after that; it counts as skipped", "SECONDS"},
        POPT_TABLEEND,
    };
    const struct poptOption options[] = {
        {"predicate", 0, POPT_ARG_STRING, &a.predicate, 0,
         "another failure: nonfinite, max>X, loss>X, grad_norm>X, with @SELECTOR", "WHAT"},
        {"against", 0, POPT_ARG_STRING, &a.against, 0, "bisect the difference from this capture instead of a failure",
         "REF"},
        {"steps", 0, POPT_ARG_STRING, &a.steps, 0, "only these steps", "A-B"},
        {"output", 'o', POPT_ARG_STRING, &a.reproducer, 0, "write the smallest capture that still fails", "REPRODUCER"},
        {"force", 0, POPT_ARG_NONE, &a.force, 0, "the reproducer may replace one", NULL},
        {"journal", 0, POPT_ARG_STRING, &a.journal, 0, "write every trial there as it ends", "FILE"},
        {"resume", 0, POPT_ARG_NONE, &a.resume, 0, "go on with the journal: its trials are not run again", NULL},
        {"max-trials", 0, POPT_ARG_INT, &a.max_trials, 0, "per search", "N"},
        {"threads", 0, POPT_ARG_INT, &a.threads, 0, "of one replay", "N"},
        {"memory", 0, POPT_ARG_STRING, &a.memory, 0, "keep at most this much", "512M"},
        {"html", 0, POPT_ARG_STRING, &a.html, 0, "also write the page of `lastbit report`", "FILE"},
        {"from-start", 0, POPT_ARG_NONE, &a.from_start, 0,
         "replay every trial from the window's first step instead of the latest step that its change leaves as it was: "
         "slower, the same verdict",
         NULL},
        {"quiet", 'q', POPT_ARG_NONE, &a.quiet, 0, "no line per trial", NULL},
        {"check", 0, POPT_ARG_NONE, &a.check, 0,
         "search nothing: replay once, with the changes given, and say whether it fails", NULL},
        {NULL, 0, POPT_ARG_INCLUDE_TABLE, (void *)changes, 0, "Changes for --check, as for `lastbit replay`:", NULL},
        {NULL, 0, POPT_ARG_INCLUDE_TABLE, (void *)on_live, 0, "A live job instead of a capture", NULL},
        POPT_TABLEEND,
    };
    const lb_command command = {
        .name = "bisect",
        .synopsis = "CAPTURE | --run CMD --flag ...",
        .about = "Finds why a recorded window fails: it replays the window with one thing changed at a time, Muon "
                 "first, then\n"
                 "every precision below f32, then ranks, then classes of residual blocks, and narrows the first change "
                 "that\n"
                 "cures down to layer, op and step. With --run it does the same to a live job, a flag for each "
                 "suspect.\n"
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
        rc = refuse(&a, arguments.n_args);
        const answers to = {arguments.json, a.html};
        if (rc < 0) rc = a.run ? start_live(&a, &to) : start_capture(&a, arguments.args[0], &to);
        lb_command_arguments_release(&arguments);
    }
    lb_command_swaps_release(&a.swaps);
    for (uint32_t i = 0; a.flags && a.flags[i]; i++) free((char *)a.flags[i]);
    free(a.flags);
    free(a.steps), free(a.predicate), free(a.against), free(a.journal), free(a.reproducer);
    free(a.run), free(a.log), free(a.noise), free(a.memory), free(a.html);
    return rc;
}
