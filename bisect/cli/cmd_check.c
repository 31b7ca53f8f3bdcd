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
             "that the gradients are the derivative of the loss, that the optimizer read them, "
             "and that it did what its name says. The step runs in f64 with casts the identity, "
             "where rounding has no part in it; "
             "difference quotients along random directions over all parameters are compared with what backward gave. "
             "Where they differ, the op is named whose backward is wrong, with the kind: a constant factor, "
             "no gradient where the loss depends on a parameter, a micro-batch that is missing, "
             "a random draw that a recomputation does not repeat. Where a loss scores tokens of the input, "
             "the step runs with different tokens, too: no row may depend on a later token, "
             "sequences and packed documents do not meet, padding changes nothing, "
             "and each row is scored against the next token. "
             "An op is named that gives a finite number in the place of NaN; "
             "in a recording that was made with --poison, numbers that were read and never written are named, too.\n"
             "\n"
             "Then it says where digits go (--only digits): which lines of code round most, "
             "by exact runs with what they round and without; sums that cancel; "
             "updates that a parameter of few digits absorbed; numbers that left the range of f16 or of 8 bits; "
             "choices near a tie. That is a table of facts; findings are what is surely wrong.\n"
             "\n"
             "What could not be judged is said, and is not a finding. Exit code 1 when something was found.",
    .example = "  lastbit record -o run.lb --steps 3 -- python train.py\n"
               "  lastbit check run.lb",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .parts = true,
};

static json_t *finding_json(const lb_check_finding *finding)
{
    return json_pack("{s:s,s:I,s:i,s:s,s:s,s:s,s:s?,s:o,s:o,s:o,s:o,s:o,s:s,s:s}", "kind",
                     lb_check_kind_name(finding->kind), "step", (json_int_t)finding->step, "rank", (int)finding->rank,
                     "phase", finding->phase, "layer", finding->layer, "op", finding->op, "forward",
                     *finding->forward ? finding->forward : NULL, "index",
                     finding->index == UINT32_MAX ? json_null() : json_integer(finding->index), "source",
                     lb_command_json_line(&finding->line), "source_forward", lb_command_json_line(&finding->of_forward),
                     "factor", lb_command_json_number(finding->factor), "effect",
                     lb_command_json_number(finding->effect), "message", finding->message, "command", finding->command);
}

static json_t *effect_json(const lb_check_effect *effect)
{
    return json_pack("{s:o,s:o,s:o,s:o}", "loss", lb_command_json_number(effect->loss), "logits",
                     lb_command_json_number(effect->logits), "largest_logit",
                     lb_command_json_number(effect->largest_logit), "gradients",
                     lb_command_json_number(effect->gradients));
}

static json_t *digit_json(const lb_check_digit *digit)
{
    const bool rounds = digit->kind == LB_CHECK_DIGIT_ROUNDING;
    return json_pack("{s:s,s:I,s:i,s:s,s:s,s:s,s:o,s:i,s:s?,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:I,s:s?,s:s}", "kind",
                     lb_check_digit_kind_name(digit->kind), "step", (json_int_t)digit->step, "rank", (int)digit->rank,
                     "phase", digit->phase, "layer", digit->layer, "op", digit->op, "index",
                     digit->index == UINT32_MAX ? json_null() : json_integer(digit->index), "ops", (int)digit->ops,
                     "dtype", digit->dtype ? lb_dtype_name(digit->dtype) : NULL, "source",
                     lb_command_json_line(&digit->line), "effect", rounds ? effect_json(&digit->effect) : json_null(),
                     "cured", rounds ? effect_json(&digit->cured) : json_null(), "digits",
                     lb_command_json_number(digit->digits), "share", lb_command_json_number(digit->share), "recent",
                     lb_command_json_number(digit->recent), "bits", lb_command_json_number(digit->bits), "numbers",
                     (json_int_t)digit->numbers, "cure", *digit->cure ? digit->cure : NULL, "message", digit->message);
}

static json_t *report_json(const lb_check_report *report)
{
    json_t *findings = json_array(), *proven = json_array(), *unjudged = json_array(), *digits = json_array();
    for (uint32_t i = 0; i < report->n_findings; i++)
        json_array_append_new(findings, finding_json(&report->findings[i]));
    for (uint32_t i = 0; i < report->n_proven; i++) json_array_append_new(proven, json_string(report->proven[i]));
    for (uint32_t i = 0; i < report->n_unjudged; i++)
        json_array_append_new(unjudged, json_pack("{s:s,s:s,s:b}", "what", report->unjudged[i].what, "why",
                                                  report->unjudged[i].why, "passed", report->unjudged[i].passed));
    for (uint32_t i = 0; i < report->n_digits; i++) json_array_append_new(digits, digit_json(&report->digits[i]));
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:i}", "verdict", lb_check_verdict_name(report->verdict), "findings",
                     findings, "proven", proven, "digits", digits, "not_judged", unjudged, "replays",
                     (int)report->replays);
}

static int exit_code(const lb_check_report *report)
{
    return report->verdict == LB_CHECK_CLEAN   ? LB_EXIT_SAME
           : report->verdict == LB_CHECK_FOUND ? LB_EXIT_DIFFERENT
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
    lb_check_options options = LB_CHECK_OPTIONS_INIT;
    int64_t budget = 20;
    int rc = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (rc >= 0) return rc;
    if (steps_text && !lb_command_parse_steps(steps_text, &options.first_step, &options.last_step))
        rc = lb_command_misused("check", "--steps %s: expected a step, or the first and the last as in 100-102",
                                steps_text);
    else if (only_text && !parse_parts(only_text, &options.parts))
        rc = lb_command_misused(
            "check", "--only %s: expected gradient, step, relations, memory, digits, or several with commas between",
            only_text);
    else if (budget_text && (!lb_command_parse_integer(budget_text, &budget) || budget < 7 || budget > 1000000))
        rc = lb_command_misused("check", "--budget %s: expected a number of replays from 7 on", budget_text);
    else {
        options.replays = (uint32_t)budget;
        if (!arguments.json) options.progress = lb_command_progress;
        options.work = lb_command_parts(), options.alone = true;
        lb_command_answer answer = run(&arguments, &options);
        rc = lb_command_answer_print("check", &answer, arguments.json, NULL);
    }
    free(steps_text), free(only_text), free(budget_text);
    lb_command_arguments_release(&arguments);
    return rc;
}
