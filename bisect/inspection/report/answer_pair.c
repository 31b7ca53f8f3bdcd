/* Answers about two sides: diff, explain, parity. See answer.h. */
#include "report/answer_parts.h"

#include <math.h>
#include <string.h>

static bool is(const char *text, const char *word)
{
    return strcmp(text, word) == 0;
}

/* ---- diff ---- */

static const char *tone_of_verdict(const char *verdict)
{
    if (is(verdict, "diverged")) return "bad";
    if (is(verdict, "identical")) return "good";
    return is(verdict, "missing") || is(verdict, "undecided") || !*verdict ? "unknown" : "warn";
}

/* A longer reason stands below the head. */
enum { SHORT_WHY = 70 };

static void tell_diff(json_t *answer, const json_t *result, const char *verdict)
{
    const json_t *first = json_object_get(result, "first");
    const char *why = lb_answer_parts_text(first, "why"), *phase = lb_answer_parts_text(first, "phase");
    const char *missing = json_string_value(json_array_get(json_object_get(result, "missing"), 0));
    char site[LB_ANSWER_PARTS_TEXT];
    lb_answer_parts_site(first, site);
    if (is(verdict, "identical"))
        lb_answer_parts_tell(answer, "good", "identical: every bit that was compared is the same");
    else if (!json_is_object(first))
        lb_answer_parts_tell(answer, tone_of_verdict(verdict), "%s%s%s", *verdict ? verdict : "no verdict",
                             missing ? ": " : "", missing ? missing : "");
    else if (is(verdict, "diverged"))
        lb_answer_parts_tell(answer, "bad", "%s diverges in step %lld%s%s%s%s", site,
                             (long long)json_integer_value(json_object_get(first, "step")), *phase ? ", " : "", phase,
                             *why && strlen(why) <= SHORT_WHY ? ": " : "", strlen(why) <= SHORT_WHY ? why : "");
    else if (is(verdict, "rounding") || is(verdict, "reordered"))
        lb_answer_parts_tell(answer, "warn", "%s: both sides compute the same function; the first bits differ at %s",
                             is(verdict, "rounding") ? "rounding alone" : "another order of additions alone", site);
    else
        lb_answer_parts_tell(answer, tone_of_verdict(verdict), "%s at %s%s%s", verdict, site, *why ? ": " : "", why);
}

static void tell_count(json_t *answer, const char *name, const json_t *of)
{
    if (json_is_object(of))
        lb_answer_parts_fact(answer, name, "%lld of %lld",
                             (long long)json_integer_value(json_object_get(of, "identical")),
                             (long long)json_integer_value(json_object_get(of, "aligned")));
}

/* Other places that differ by themselves. */
static void tell_others(json_t *answer, const json_t *result)
{
    enum { SHOWN = 4 };
    const json_t *list = json_object_get(result, "differences"), *first = json_object_get(result, "first");
    size_t shown = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        char place[LB_ANSWER_PARTS_TEXT];
        if (json_equal(json_object_get(row, "layer"), json_object_get(first, "layer")) &&
            json_equal(json_object_get(row, "op"), json_object_get(first, "op")))
            continue;
        if (++shown > SHOWN) continue;
        lb_answer_parts_place(row, place);
        lb_answer_parts_fact(answer, "and", "%s: %s", place, lb_answer_parts_text(row, "why"));
    }
    if (shown > SHOWN) lb_answer_parts_fact(answer, "and", "%zu more places that differ by themselves", shown - SHOWN);
}

void lb_answer_parts_diff(json_t *answer, const json_t *result)
{
    const char *verdict = lb_answer_parts_text(result, "verdict");
    const json_t *first = json_object_get(result, "first"), *missing = json_object_get(result, "missing");
    const bool clean = !is(verdict, "diverged") && !is(verdict, "missing") && !json_array_size(missing);
    char place[LB_ANSWER_PARTS_TEXT];
    tell_diff(answer, result, verdict);
    if (json_is_object(first)) {
        lb_answer_parts_place(first, place);
        lb_answer_parts_fact(answer, "where", "%s", place);
        lb_answer_parts_fact_text(answer, "why", json_object_get(first, "why"));
        lb_answer_parts_lines(answer, first);
        lb_answer_parts_fact_text(answer, "parameter", json_object_get(first, "parameter"));
        lb_answer_parts_fact_text(answer, "means", json_object_get(first, "means"));
    }
    tell_others(answer, result);
    if (json_array_size(missing))
        lb_answer_parts_fact(answer, "not judged", "%zu place%s, which the section below names",
                             json_array_size(missing), json_array_size(missing) == 1 ? "" : "s");
    tell_count(answer, "ops equal", json_object_get(result, "ops"));
    tell_count(answer, "sources equal", json_object_get(result, "sources"));
    if (*verdict) lb_answer_parts_fact(answer, "exit code", clean ? "0: same or clean" : "1: different or found");
}

/* ---- explain ---- */

static const json_t *find_cause(const json_t *findings, bool unexplained)
{
    for (size_t i = 0; i < json_array_size(findings); i++) {
        const json_t *row = json_array_get(findings, i);
        const char *cause = lb_answer_parts_text(row, "cause");
        if (unexplained ? is(cause, "unexplained") : *cause && !is(cause, "input")) return row;
    }
    return NULL;
}

/* "order 12, input 3", in the order in which causes first come. */
static void tell_causes(json_t *answer, const json_t *findings)
{
    json_t *counts = json_object(), *count;
    const char *cause;
    char text[LB_ANSWER_PARTS_TEXT] = "";
    for (size_t i = 0; i < json_array_size(findings); i++) {
        cause = lb_answer_parts_text(json_array_get(findings, i), "cause");
        json_object_set_new(counts, cause, json_integer(json_integer_value(json_object_get(counts, cause)) + 1));
    }
    json_object_foreach(counts, cause, count)
    {
        lb_answer_parts_append(text, sizeof text, "%s%s %lld", *text ? ", " : "", cause,
                               (long long)json_integer_value(count));
    }
    json_decref(counts);
    if (*text) lb_answer_parts_fact(answer, "places by cause", "%s", text);
}

static void tell_invariance(json_t *answer, const json_t *rows)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        char site[LB_ANSWER_PARTS_TEXT];
        if (!json_is_true(json_object_get(row, "varies"))) continue;
        lb_answer_parts_site(row, site);
        lb_answer_parts_tell(answer, "bad", "%s gives a row other bits in batches of other sizes (%s)", site,
                             lb_answer_parts_text(row, "kernel"));
        return;
    }
    lb_answer_parts_tell(answer, "good", "a row keeps its bits in batches of all sizes that were tried");
}

void lb_answer_parts_explain(json_t *answer, const json_t *result)
{
    const json_t *findings = json_object_get(result, "findings"), *missing = json_object_get(result, "missing");
    const json_t *invariance = json_object_get(result, "invariance");
    const json_t *unexplained = find_cause(findings, true), *known = find_cause(findings, false);
    const json_t *told = unexplained ? unexplained : known;
    char text[LB_ANSWER_PARTS_TEXT];
    lb_answer_parts_site(told, text);
    if (json_array_size(invariance))
        tell_invariance(answer, invariance);
    else if (told)
        lb_answer_parts_tell(answer, unexplained ? "bad" : "warn", "%s%s: %s", unexplained ? "unexplained at " : "",
                             text, lb_answer_parts_text(told, "why"));
    else if (json_array_size(findings))
        lb_answer_parts_tell(answer, "warn", "every difference came in with the inputs; none is made here");
    else if (json_array_size(missing))
        lb_answer_parts_tell(answer, "unknown", "nothing could be explained: %s",
                             json_is_string(json_array_get(missing, 0)) ? json_string_value(json_array_get(missing, 0))
                                                                        : "what was recorded does not suffice");
    else
        lb_answer_parts_tell(answer, "good", "nothing differs that needs an explanation");
    if (told) {
        lb_answer_parts_place(told, text);
        lb_answer_parts_fact(answer, "where", "%s", text);
        lb_answer_parts_lines(answer, told);
    }
    tell_causes(answer, findings);
    if (json_array_size(missing)) lb_answer_parts_fact(answer, "not judged", "%zu places", json_array_size(missing));
}

/* ---- parity ---- */

static const json_t *worst_kind(const json_t *kinds)
{
    const json_t *worst = NULL;
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        const json_t *row = json_array_get(kinds, i);
        if (!worst || !(lb_answer_parts_number(row, "k3") <= lb_answer_parts_number(worst, "k3"))) worst = row;
    }
    return worst;
}

static const json_t *first_finding(const json_t *result)
{
    const json_t *list = json_object_get(result, "findings");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (*lb_answer_parts_text(json_array_get(list, i), "message")) return json_array_get(list, i);
    return NULL;
}

/* Of `--matrix` and `--swap-block`. */
static bool tell_runs(json_t *answer, const json_t *result)
{
    const json_t *cells = json_object_get(result, "cells"), *matters = json_object_get(result, "matters");
    const json_t *swaps = json_object_get(result, "swaps");
    if (json_array_size(swaps)) {
        lb_answer_parts_tell(answer, "warn", "blocks exchanged between the two models: %zu runs",
                             json_array_size(swaps));
        return true;
    }
    if (!json_array_size(cells)) return false;
    const char *first = json_string_value(json_array_get(matters, 0));
    bool failing = false;
    for (size_t i = 0; i < json_array_size(cells); i++)
        failing |= !is(lb_answer_parts_text(json_array_get(cells, i), "verdict"), "pass");
    if (first)
        lb_answer_parts_tell(answer, "bad", "%s moves the log-probabilities%s", first,
                             json_array_size(matters) > 1 ? ", and others do" : "");
    else
        lb_answer_parts_tell(answer, failing ? "bad" : "good", "no variable moves the log-probabilities%s",
                             failing ? ", but not every run passes" : "");
    lb_answer_parts_fact(answer, "runs", "%zu", json_array_size(cells));
    return true;
}

void lb_answer_parts_parity(json_t *answer, const json_t *result)
{
    const json_t *worst = worst_kind(json_object_get(result, "tokens")), *said = first_finding(result);
    const json_t *loss = json_object_get(result, "loss");
    const char *verdict = lb_answer_parts_text(result, "verdict");
    const double above = lb_answer_parts_number(worst, "above_noise"),
                 floor = lb_answer_parts_number(result, "noise_floor");
    const char *tone = is(verdict, "pass") ? "good" : is(verdict, "fail") ? "bad" : "unknown";
    if (tell_runs(answer, result)) return;
    const char *decided = lb_answer_parts_text(result, "decided");
    if (*decided && is(verdict, "fail"))
        lb_answer_parts_tell(answer, tone, "fail: %s", decided);
    else if (said && !is(verdict, "pass"))
        lb_answer_parts_tell(answer, tone, "%s: %s", *verdict ? verdict : "undecided",
                             lb_answer_parts_text(said, "message"));
    else if (worst)
        lb_answer_parts_tell(answer, tone, "%s: k3 of %s tokens is %.4g, the threshold %.4g",
                             *verdict ? verdict : "undecided", lb_answer_parts_text(worst, "kind"),
                             lb_answer_parts_number(worst, "k3"), lb_answer_parts_number(result, "threshold"));
    else
        lb_answer_parts_tell(answer, tone, "%s", *verdict ? verdict : "undecided: no token was compared");
    if (*decided && is(verdict, "fail") && said)
        lb_answer_parts_fact_text(answer, "cause", json_object_get(said, "message"));
    if (worst)
        lb_answer_parts_fact(answer, "worst tokens", "%lld of kind %s: k3 %.4g, threshold %.4g",
                             (long long)json_integer_value(json_object_get(worst, "count")),
                             lb_answer_parts_text(worst, "kind"), lb_answer_parts_number(worst, "k3"),
                             lb_answer_parts_number(result, "threshold"));
    if (above > 0)
        lb_answer_parts_fact(answer, "noise floor", "%.4g: k3 is %.3g times the noise floor", floor, above);
    else
        lb_answer_parts_fact(answer, "noise floor", floor > 0 ? "%.4g" : "not measured (--noise FILE)", floor);
    if (json_is_object(loss))
        lb_answer_parts_fact(answer, "loss", "training (first side) %.5g, serving (second side) %.5g, ratio %.4g",
                             lb_answer_parts_number(loss, "first"), lb_answer_parts_number(loss, "second"),
                             lb_answer_parts_number(loss, "ratio"));
    if (*verdict)
        lb_answer_parts_fact(answer, "exit code", "%s",
                             is(verdict, "pass")   ? "0: same or clean"
                             : is(verdict, "fail") ? "1: different or found"
                                                   : "125: cannot be tested");
}
