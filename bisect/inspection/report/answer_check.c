/* Answers of `check`: what one run alone proves. See answer.h. */
#include "report/answer_parts.h"

#include <math.h>
#include <string.h>

static bool is(const char *text, const char *word)
{
    return strcmp(text, word) == 0;
}

/* What is wrong, by its kind, and the same where one number tells it; the proof in figures stands below. */
static const struct {
    const char *kind, *text, *by_factor;
} WORDS[] = {{"gradient", "a gradient is not the derivative of the loss", NULL},
             {"scale", "a gradient is the derivative of the loss times a constant",
              "a gradient is %s the derivative of the loss"},
             {"detached", "the loss depends on a parameter that gets no gradient", NULL},
             {"redrawn", "a recomputation drew other numbers than the forward", NULL},
             {"lost", "gradients lack some of the losses that were differentiated", NULL},
             {"read", "an optimizer read something else than backward gave", "an optimizer read %s what backward gave"},
             {"update", "an optimizer does something else than the rule of its name",
              "an optimizer moves parameters %s as far as the rule of its name"},
             {"future", "scores depend on the tokens that they are to predict", NULL},
             {"target", "scores are compared with a token further on than the next", NULL},
             {"rows", "sequences of the batch meet", NULL},
             {"documents", "packed documents meet", NULL},
             {"padding", "what the attention mask hides is seen", NULL},
             {"carried", "a micro-batch depends on one before it", NULL},
             {"positions", "padding shifts the positions behind it", NULL},
             {"weights", "micro-batches were divided once too often",
              "micro-batches were divided once too often: the loss is %s what a mean gives"},
             {"means", "micro-batches were each divided by their own number of tokens",
              "micro-batches were each divided by their own number of tokens: "
              "those of the shortest weigh %s those of the longest"},
             {"unwritten", "numbers were read that no op wrote", NULL},
             {"dropped", "NaN goes in, and finite numbers come out that follow from it", NULL},
             {"rounded", "one line rounds more than all others together", NULL},
             {"absorbed", "parameters of 16 bits do not move", NULL},
             {"saturated", "numbers lie beyond the range of their dtype", NULL},
             {"underflow", "numbers became zero", NULL}};

/* "2 times", "1/4 of" */
static void say_factor(double factor, char *text, size_t size)
{
    const double parts = nearbyint(1 / factor);
    if (factor > 0 && factor < 0.75 && fabs(1 / factor - parts) < 1e-4 * parts)
        snprintf(text, size, "1/%.0f of", parts);
    else
        snprintf(text, size, "%.4g times", factor);
}

/* "layers.2.attn, aten::bmm: a gradient is 2 times the derivative of the loss" */
static json_t *head_of(const json_t *finding)
{
    const char *kind = lb_answer_parts_text(finding, "kind");
    const double factor = lb_answer_parts_number(finding, "factor");
    char site[LB_ANSWER_PARTS_TEXT], times[40], words[240];
    size_t i = 0;
    while (i < sizeof WORDS / sizeof *WORDS && !is(WORDS[i].kind, kind)) i++;
    lb_answer_parts_site(finding, site);
    if (i == sizeof WORDS / sizeof *WORDS) return json_sprintf("%s: %s", site, kind);
    snprintf(words, sizeof words, "%s", WORDS[i].text);
    if (isfinite(factor) && WORDS[i].by_factor) {
        const char *at = strstr(WORDS[i].by_factor, "%s");
        say_factor(factor, times, sizeof times);
        snprintf(words, sizeof words, "%.*s%s%s", (int)(at - WORDS[i].by_factor), WORDS[i].by_factor, times, at + 2);
    }
    return json_sprintf("%s: %s", site, words);
}

/* "step 0, rank 0, backward, op 212"; the op itself has a fact of its own. */
static void tell_place(json_t *answer, const json_t *finding)
{
    const json_t *index = json_object_get(finding, "index");
    const char *phase = lb_answer_parts_text(finding, "phase"), *op = lb_answer_parts_text(finding, "op"),
               *forward = lb_answer_parts_text(finding, "forward");
    char number[40] = "";
    if (json_is_integer(index)) snprintf(number, sizeof number, ", op %lld", (long long)json_integer_value(index));
    lb_answer_parts_fact(
        answer, "where", "step %lld, rank %lld%s%s%s", (long long)json_integer_value(json_object_get(finding, "step")),
        (long long)json_integer_value(json_object_get(finding, "rank")), *phase ? ", " : "", phase, number);
    if (*op) lb_answer_parts_fact(answer, "op", "%s%s%s", op, *forward ? ", backward of " : "", forward);
}

static void tell_finding(json_t *answer, const json_t *result, const json_t *first)
{
    const size_t n = json_array_size(json_object_get(result, "findings"));
    json_t *head = head_of(first);
    char more[48] = "";
    if (n > 1) snprintf(more, sizeof more, " (and %zu more)", n - 1);
    lb_answer_parts_tell(answer, "bad", "%s%s", head ? json_string_value(head) : "", more);
    json_decref(head);
    lb_answer_parts_fact_text(answer, "proof", json_object_get(first, "message"));
    tell_place(answer, first);
    lb_answer_parts_lines(answer, first);
    lb_answer_parts_fact_text(answer, "see", json_object_get(first, "command"));
}

/* The first few of a list, each as a fact of that name, and how many there are. */
static void tell_list(json_t *answer, const char *name, const json_t *list, size_t shown)
{
    const size_t n = json_array_size(list);
    for (size_t i = 0; i < n && i < shown; i++) {
        const json_t *row = json_array_get(list, i);
        const char *what = lb_answer_parts_text(row, "what"), *why = lb_answer_parts_text(row, "why");
        if (json_is_string(row))
            lb_answer_parts_fact_text(answer, name, row);
        else
            lb_answer_parts_fact(answer, name, "%s%s%s", what, *what && *why ? ": " : "", why);
    }
    if (n > shown) lb_answer_parts_fact(answer, name, "%zu%s, all of them below", n - shown, shown ? " more" : "");
}

/* The heads of findings as the page lists them one by one. */
static json_t *heads_of(const json_t *findings)
{
    enum { ONE_BY_ONE = 20 };
    json_t *heads = json_array();
    for (size_t i = 0; i < json_array_size(findings) && i < ONE_BY_ONE; i++)
        json_array_append_new(heads, head_of(json_array_get(findings, i)));
    return heads;
}

void lb_answer_parts_check(json_t *answer, const json_t *result)
{
    enum { SHOWN = 3 };
    const json_t *findings = json_object_get(result, "findings"), *first = json_array_get(findings, 0);
    const json_t *proven = json_object_get(result, "proven"), *left = json_object_get(result, "not_judged");
    const bool clean = is(lb_answer_parts_text(result, "verdict"), "clean");
    if (first)
        tell_finding(answer, result, first);
    else if (clean)
        lb_answer_parts_tell(answer, "good", "nothing is wrong that one run can prove");
    else
        lb_answer_parts_tell(answer, "unknown", "not all of it could be judged: %s",
                             lb_answer_parts_text(json_array_get(left, 0), "why"));
    tell_list(answer, "proven", proven, first ? 0 : SHOWN);
    tell_list(answer, "not judged", left, first ? 0 : SHOWN);
    lb_answer_parts_fact(answer, "exit code", "%s",
                         first   ? "1: different or found"
                         : clean ? "0: same or clean"
                                 : "125: cannot be tested");
    json_object_set_new(answer, "heads", heads_of(findings));
}
