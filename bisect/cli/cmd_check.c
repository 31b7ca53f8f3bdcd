/* lastbit check CAPTURE: what one recording proves by itself. The engine is in bisect/inspection/check. */
#include "command/command_line.h"
#include "command/command_parts.h"

#include <lastbit/check.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *steps_text, *only_text, *budget_text;

static const struct poptOption options[] = {
    {"steps", 0, POPT_ARG_STRING, &steps_text, 0, "these steps only", "A-B"},
    {"only", 0, POPT_ARG_STRING, &only_text, 0, "these parts only: gradient, step, relations, memory, digits", "LIST"},
    {"budget", 0, POPT_ARG_STRING, &budget_text, 0,
     "replays for proving, of each step by itself (20); naming a place takes more", "N"},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "check",
    .synopsis = "CAPTURE",
    .about = "Says what one recording proves by itself, without another run to compare it with: "
             "that the gradients are the\n"
             "derivative of the loss, that the optimizer read them, and that it did what its name says. "
             "The step runs in f64 with casts the identity, where\n"
             "rounding has no part in it; "
             "difference quotients along random directions over all parameters are compared with\n"
             "what backward gave. Where they differ, the op is named whose backward is wrong, with the kind: "
             "a constant factor,\n"
             "no gradient where the loss depends on a parameter, a micro-batch that is missing, "
             "another draw in a recomputation.\n"
             "Where a loss scores tokens of the input, the step runs with other tokens, too: "
             "no row may depend on a later\n"
             "token, sequences and packed documents do not meet, padding changes nothing, "
             "and each row is scored against the\n"
             "next token. An op is named that gives a finite number in the place of NaN; "
             "in a recording that was made with\n"
             "--poison, numbers that were read and never written are named, too.\n"
             "\n"
             "Then it says where digits go (--only digits): which lines of code round most, "
             "by exact runs with what they round\n"
             "and without; sums that cancel; updates that a parameter of few digits absorbed; "
             "numbers that left the range of\n"
             "f16 or of 8 bits; choices near a tie. That is a table of facts; findings are what is surely wrong.\n"
             "\n"
             "What could not be judged is said, and is not a finding. Exit code 1 when something was found.",
    .example = "  lastbit record -o run.lb --steps 3 -- python train.py\n"
               "  lastbit check run.lb",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .parts = true,
};

static json_t *finding_json(const lb_check_finding *f)
{
    return json_pack("{s:s,s:I,s:i,s:s,s:s,s:s,s:s?,s:o,s:o,s:o,s:o,s:o,s:s,s:s}", "kind", lb_check_kind_name(f->kind),
                     "step", (json_int_t)f->step, "rank", (int)f->rank, "phase", f->phase, "layer", f->layer, "op",
                     f->op, "forward", *f->forward ? f->forward : NULL, "index",
                     f->index == UINT32_MAX ? json_null() : json_integer(f->index), "source",
                     lb_command_json_line(&f->line), "source_forward", lb_command_json_line(&f->of_forward), "factor",
                     lb_command_json_number(f->factor), "effect", lb_command_json_number(f->effect), "message",
                     f->message, "command", f->command);
}

static json_t *effect_json(const lb_check_effect *e)
{
    return json_pack("{s:o,s:o,s:o,s:o}", "loss", lb_command_json_number(e->loss), "logits",
                     lb_command_json_number(e->logits), "largest_logit", lb_command_json_number(e->largest_logit),
                     "gradients", lb_command_json_number(e->gradients));
}

static json_t *digit_json(const lb_check_digit *d)
{
    const bool rounds = d->kind == LB_CHECK_DIGIT_ROUNDING;
    return json_pack("{s:s,s:I,s:i,s:s,s:s,s:s,s:o,s:i,s:s?,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:I,s:s?,s:s}", "kind",
                     lb_check_digit_kind_name(d->kind), "step", (json_int_t)d->step, "rank", (int)d->rank, "phase",
                     d->phase, "layer", d->layer, "op", d->op, "index",
                     d->index == UINT32_MAX ? json_null() : json_integer(d->index), "ops", (int)d->ops, "dtype",
                     d->dtype ? lb_dtype_name(d->dtype) : NULL, "source", lb_command_json_line(&d->line), "effect",
                     rounds ? effect_json(&d->effect) : json_null(), "cured",
                     rounds ? effect_json(&d->cured) : json_null(), "digits", lb_command_json_number(d->digits),
                     "share", lb_command_json_number(d->share), "recent", lb_command_json_number(d->recent), "bits",
                     lb_command_json_number(d->bits), "numbers", (json_int_t)d->numbers, "cure",
                     *d->cure ? d->cure : NULL, "message", d->message);
}

static json_t *report_json(const lb_check_report *r)
{
    json_t *findings = json_array(), *proven = json_array(), *unjudged = json_array(), *digits = json_array();
    for (uint32_t i = 0; i < r->n_findings; i++) json_array_append_new(findings, finding_json(&r->findings[i]));
    for (uint32_t i = 0; i < r->n_proven; i++) json_array_append_new(proven, json_string(r->proven[i]));
    for (uint32_t i = 0; i < r->n_unjudged; i++)
        json_array_append_new(unjudged, json_pack("{s:s,s:s,s:b}", "what", r->unjudged[i].what, "why",
                                                  r->unjudged[i].why, "passed", r->unjudged[i].passed));
    for (uint32_t i = 0; i < r->n_digits; i++) json_array_append_new(digits, digit_json(&r->digits[i]));
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:i}", "verdict", lb_check_verdict_name(r->verdict), "findings", findings,
                     "proven", proven, "digits", digits, "not_judged", unjudged, "replays", (int)r->replays);
}

static int exit_code(const lb_check_report *r)
{
    return r->verdict == LB_CHECK_CLEAN   ? LB_EXIT_SAME
           : r->verdict == LB_CHECK_FOUND ? LB_EXIT_DIFFERENT
                                          : LB_EXIT_UNTESTABLE;
}

static lb_command_answer run(const lb_command_arguments *arguments, const lb_check_options *options)
{
    lb_err err = LB_ERR_INIT;
    lb_capture *capture = NULL;
    lb_check_report *report = NULL;
    lb_command_answer answer = {0};
    lb_status status = lb_capture_open(arguments->args[0], &capture, &err);
    if (status == LB_OK) status = lb_check_run(capture, options, &report, &err);
    lb_capture_close(capture);
    lb_command_progress_end();
    if (status == LB_OK && !(answer.text = lb_check_text(report)))
        status = lb_fail(&err, LB_ERR_NOMEM, "out of memory for the text");
    if (status == LB_OK) answer.object = report_json(report);
    answer.code = status == LB_OK            ? exit_code(report)
                  : status == LB_ERR_PARTIAL ? lb_command_parts_partial()
                                             : lb_command_fail("check", &err);
    lb_check_report_free(report);
    return answer;
}

static bool parse_parts(const char *text, uint32_t *parts)
{
    static const struct {
        const char *name;
        uint32_t part;
    } parts_named[] = {{"gradient", LB_CHECK_PART_GRADIENT},
                       {"step", LB_CHECK_PART_STEP},
                       {"relations", LB_CHECK_PART_RELATIONS},
                       {"memory", LB_CHECK_PART_MEMORY},
                       {"digits", LB_CHECK_PART_DIGITS}};
    for (const char *at = text; *at;) {
        const size_t n = strcspn(at, ",");
        uint32_t part = 0;
        for (size_t i = 0; i < sizeof parts_named / sizeof *parts_named; i++)
            if (strlen(parts_named[i].name) == n && strncmp(parts_named[i].name, at, n) == 0)
                part = parts_named[i].part;
        if (!part) return false;
        *parts |= part, at += n + (at[n] == ',');
    }
    return *parts != 0;
}

int lb_cmd_check(int argc, const char **argv)
{
    lb_command_arguments arguments;
    lb_check_options o = LB_CHECK_OPTIONS_INIT;
    int64_t budget = 20;
    int rc = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (rc >= 0) return rc;
    if (steps_text && !lb_command_parse_steps(steps_text, &o.first_step, &o.last_step))
        rc = lb_command_misused("check", "--steps %s: expected a step, or the first and the last as in 100-102",
                                steps_text);
    else if (only_text && !parse_parts(only_text, &o.parts))
        rc = lb_command_misused(
            "check", "--only %s: expected gradient, step, relations, memory, digits, or several with commas between",
            only_text);
    else if (budget_text && (!lb_command_parse_integer(budget_text, &budget) || budget < 7 || budget > 1000000))
        rc = lb_command_misused("check", "--budget %s: expected a number of replays from 7 on", budget_text);
    else {
        o.replays = (uint32_t)budget;
        if (!arguments.json) o.progress = lb_command_progress;
        o.work = lb_command_parts(), o.alone = true;
        lb_command_answer answer = run(&arguments, &o);
        rc = lb_command_answer_print("check", &answer, arguments.json, NULL);
    }
    free(steps_text), free(only_text), free(budget_text);
    lb_command_arguments_release(&arguments);
    return rc;
}
