/* lastbit bisect CAPTURE: find the cause of a failing step. The engine is inquiry.c; this prints. */
#include "command_line.h"

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
    return json_pack("{s:s,s:I,s:i,s:s,s:s,s:s}", "kind", lb_failure_kind_name(f->kind), "step",
                     (json_int_t)f->step, "rank", f->rank, "layer", f->layer, "op", f->name, "what", f->what);
}

static json_t *origin_json(const lb_origin *o)
{
    if (o->op == LB_NONE) return json_null();
    return json_pack("{s:I,s:i,s:s,s:s,s:s,s:i,s:s}", "step", (json_int_t)o->step, "rank", (int)o->rank, "phase",
                     lb_phase_name(o->phase), "layer", o->layer, "op", o->name, "index", (int)o->op, "text", o->text);
}

static json_t *culprit_json(const lb_culprit *c)
{
    json_t *ranks = json_array();
    for (uint32_t i = 0; i < c->n_ranks; i++) json_array_append_new(ranks, json_integer(c->ranks[i]));
    char block[2] = {c->block, 0};
    json_t *o = json_pack("{s:s,s:o,s:o,s:s,s:o,s:s,s:I,s:s}", "axis", lb_axis_name(c->axis), "ranks", ranks,
                          "block", text_or_null(block), "layer", c->layer, "op", text_or_null(c->op), "phase",
                          lb_phase_name(c->phase), "step", (json_int_t)c->step, "why", c->why);
    json_object_set_new(o, "index", c->row == LB_NONE ? json_null() : json_integer(c->row));
    return o;
}

static void add_command(json_t *o, const char *key, char *text)
{
    json_object_set_new(o, key, text_or_null(text));
    free(text);
}

static void print_json(const lb_bisection *b, const char *path)
{
    json_t *culprits = json_array(), *stages = json_array(), *trials = json_array();
    for (uint32_t i = 0; i < b->n_culprits; i++) json_array_append_new(culprits, culprit_json(&b->culprits[i]));
    for (uint32_t i = 0; i < b->n_stages; i++) {
        const lb_stage *s = &b->stages[i];
        json_array_append_new(stages, json_pack("{s:s,s:s,s:i,s:s}", "stage", s->name, "outcome", s->outcome,
                                                "trials", (int)s->trials, "note", s->note));
    }
    for (uint32_t i = 0; i < b->n_trials; i++) {
        const lb_trial *t = &b->trials[i];
        json_array_append_new(trials, json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:f}", "stage",
                                                b->stages[t->stage].name, "change", t->change, "description",
                                                t->description, "purpose", t->purpose, "outcome", t->outcome,
                                                "what", t->what, "seconds", t->seconds));
    }
    json_t *o = json_pack(
        "{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:f}", "outcome", lb_bisect_outcome_name(b->outcome), "failure",
        failure_json(&b->failure), "culprit", b->n_culprits ? culprit_json(&b->culprits[0]) : json_null(),
        "culprits", culprits, "stages", stages, "cure", text_or_null(b->cure), "reproducer",
        text_or_null(b->reproducer), "trials", trials, "note", text_or_null(b->note), "seconds", b->seconds);
    json_object_set_new(o, "begins", origin_json(&b->origin));
    json_object_set_new(o, "reproducer_size",
                        b->reproducer ? json_pack("{s:I,s:I}", "ops", (json_int_t)b->reproducer_ops, "bytes",
                                                  (json_int_t)b->reproducer_bytes)
                                      : json_null());
    add_command(o, "shows", lb_bisection_show(b, path));
    add_command(o, "cures", lb_bisection_cure(b, path));
    json_object_set_new(o, "record", text_or_null(b->again));
    lb_print_json("bisect", o);
}

static void say(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "%s\n", line);
}

static bool parse_range(const char *text, int64_t *first, int64_t *last)
{
    char *end;
    *first = *last = strtoll(text, &end, 10);
    if (*end == '-') *last = strtoll(end + 1, &end, 10);
    return *end == '\0' && end != text && *first <= *last;
}

static int exit_of(lb_bisect_outcome outcome)
{
    switch (outcome) {
    case LB_BISECT_CLEAN: return LB_EXIT_SAME;
    case LB_BISECT_FOUND: return LB_EXIT_DIFFERENT;
    default: return LB_EXIT_UNTESTABLE;
    }
}

static int run(const char *path, const char *against, lb_bisect_options *o, bool json)
{
    lb_err err = LB_ERR_INIT;
    lb_capture *capture = NULL, *reference = NULL;
    lb_bisection *b = NULL;
    int rc;
    lb_status status = lb_capture_open(path, &capture, &err);
    if (status == LB_OK && against) status = lb_capture_open(against, &reference, &err);
    o->against = reference;
    if (status == LB_OK) status = lb_bisect(capture, o, &b, &err);
    if (status != LB_OK)
        rc = lb_command_fail("bisect", &err);
    else {
        rc = exit_of(b->outcome);
        if (json)
            print_json(b, path);
        else {
            char *text = lb_bisection_text(b, path);
            if (text) fputs(text, stdout);
            free(text);
        }
    }
    lb_bisection_free(b);
    lb_capture_close(reference);
    lb_capture_close(capture);
    return rc;
}

int lb_cmd_bisect(int argc, const char **argv)
{
    char *steps = NULL, *predicate = NULL, *against = NULL, *journal = NULL, *reproducer = NULL;
    int resume = 0, force = 0, quiet = 0, check = 0, threads = 0, max_trials = 0;
    long memory_mb = 0;
    lb_swap_list swaps;
    const struct poptOption *changes = lb_swap_options(&swaps);
    const struct poptOption options[] = {
        {"predicate", 0, POPT_ARG_STRING, &predicate, 0,
         "another failure: nonfinite, max>X, loss>X, grad_norm>X, with @SELECTOR", "WHAT"},
        {"against", 0, POPT_ARG_STRING, &against, 0,
         "bisect the difference from this capture instead of a failure", "REF"},
        {"steps", 0, POPT_ARG_STRING, &steps, 0, "only these steps", "A-B"},
        {"output", 'o', POPT_ARG_STRING, &reproducer, 0, "write the smallest capture that still fails",
         "REPRODUCER"},
        {"force", 0, POPT_ARG_NONE, &force, 0, "the reproducer may replace one", NULL},
        {"journal", 0, POPT_ARG_STRING, &journal, 0, "write every trial there as it ends", "FILE"},
        {"resume", 0, POPT_ARG_NONE, &resume, 0, "go on with the journal: its trials are not run again", NULL},
        {"max-trials", 0, POPT_ARG_INT, &max_trials, 0, "per search", "N"},
        {"threads", 0, POPT_ARG_INT, &threads, 0, "of one replay", "N"},
        {"memory", 0, POPT_ARG_LONG, &memory_mb, 0, "keep at most this much", "MB"},
        {"check", 0, POPT_ARG_NONE, &check, 0,
         "search nothing: replay once, with the changes given, and say whether it fails", NULL},
        {"quiet", 'q', POPT_ARG_NONE, &quiet, 0, "no line per trial", NULL},
        {NULL, 0, POPT_ARG_INCLUDE_TABLE, (void *)changes, 0, "Changes for --check, as for `lastbit replay`",
         NULL},
        POPT_TABLEEND,
    };
    const lb_command command = {
        .name = "bisect",
        .synopsis = "CAPTURE",
        .about = "Finds why a recorded window fails: it replays the window with one thing changed at a time, "
                 "Muon first, then\n"
                 "every precision below f32, then ranks, then classes of residual blocks, and narrows the "
                 "first change that\n"
                 "cures down to layer, op and step.\n"
                 "Exit code: 0 clean, 1 found, 125 not reproduced or undecided.",
        .example = "  lastbit bisect samples/polar-bf16.lbz -o smallest.lb",
        .options = options,
        .min_args = 1,
        .max_args = 1,
    };
    lb_arguments arguments;
    int rc = lb_arguments_parse(&command, argc, argv, &arguments);
    if (rc >= 0) {
        lb_swap_list_release(&swaps);
        return rc;
    }
    lb_bisect_options o = LB_BISECT_OPTIONS_INIT;
    o.predicate = predicate, o.journal = journal, o.resume = resume, o.reproducer = reproducer,
    o.overwrite = force;
    o.threads = threads, o.memory_bytes = (uint64_t)memory_mb << 20, o.max_trials = (uint32_t)max_trials;
    o.check = check, o.changes = swaps.rows, o.n_changes = swaps.n;
    if (!quiet && !check) o.say = say;
    if (steps && !parse_range(steps, &o.first_step, &o.last_step))
        rc = lb_command_misused("bisect", "--steps %s: expected N or A-B", steps);
    else if (resume && !journal)
        rc = lb_command_misused("bisect", "--resume needs --journal FILE");
    else if (swaps.err.status != LB_OK)
        rc = lb_command_misused("bisect", "%s", swaps.err.message);
    else if (swaps.n && !check)
        rc = lb_command_misused("bisect", "a change is given without --check: the search makes its own");
    else if (check && (against || reproducer || journal))
        rc = lb_command_misused("bisect",
                                "--check searches nothing: no --against, --output or --journal with it");
    else if (max_trials < 0 || threads < 0 || memory_mb < 0)
        rc = lb_command_misused("bisect", "a count cannot be negative");
    else
        rc = run(arguments.args[0], against, &o, arguments.json);
    lb_arguments_release(&arguments);
    lb_swap_list_release(&swaps);
    free(steps), free(predicate), free(against), free(journal), free(reproducer);
    return rc;
}
