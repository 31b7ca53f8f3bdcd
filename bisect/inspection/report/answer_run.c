/* Answers about one run or one checkpoint: bisect, watch, ranks, audit, fingerprint, replay. See answer.h. */
#include "report/answer_parts.h"

#include <math.h>
#include <string.h>

static bool is(const char *text, const char *word)
{
    return strcmp(text, word) == 0;
}

static long long integer(const json_t *row, const char *key)
{
    return (long long)json_integer_value(json_object_get(row, key));
}

/* Where a word stands in a list of them; behind all where it is none. */
static int place_in(const char *const *list, int n, const char *word)
{
    int i = 0;
    while (i < n && !is(list[i], word)) i++;
    return i;
}
#define PLACE_IN(list, word) place_in(list, sizeof(list) / sizeof *(list), word)

/* ---- bisect ---- */

/* "rank 2: loss, aten::div.Tensor", "Muon's update of layers.0.mlp" */
static void name_culprit(const json_t *culprit, char text[LB_ANSWER_PARTS_TEXT])
{
    const char *axis = lb_answer_parts_text(culprit, "axis"), *layer = lb_answer_parts_text(culprit, "layer");
    char site[LB_ANSWER_PARTS_TEXT], ranks[LB_ANSWER_PARTS_TEXT];
    lb_answer_parts_site(culprit, site);
    lb_answer_parts_ranks(culprit, ranks);
    text[0] = '\0';
    if (is(axis, "muon"))
        lb_answer_parts_append(text, LB_ANSWER_PARTS_TEXT, "Muon's update of %s", *layer ? layer : site);
    else if (is(axis, "precision"))
        lb_answer_parts_append(text, LB_ANSWER_PARTS_TEXT, "the precision of %s", site);
    else if (is(axis, "rank") && *ranks)
        lb_answer_parts_append(text, LB_ANSWER_PARTS_TEXT, "%s: %s", ranks, site);
    else if (is(axis, "order"))
        lb_answer_parts_append(text, LB_ANSWER_PARTS_TEXT, "the order of additions in %s", site);
    else
        lb_answer_parts_append(text, LB_ANSWER_PARTS_TEXT, "%s", site);
}

static void tell_culprit(json_t *answer, const json_t *result, const json_t *culprit)
{
    const json_t *failure = json_object_get(result, "failure");
    const size_t culprits = json_array_size(json_object_get(result, "culprits"));
    const char *what = lb_answer_parts_text(failure, "what"), *layer = lb_answer_parts_text(failure, "layer");
    const bool elsewhere = *layer && !strstr(what, layer);
    char name[LB_ANSWER_PARTS_TEXT], more[48] = "";
    name_culprit(culprit, name);
    if (culprits > 1) snprintf(more, sizeof more, " (and %zu more)", culprits - 1);
    if (is(lb_answer_parts_text(failure, "kind"), "difference"))
        lb_answer_parts_tell(answer, "bad", "%s%s is where the run departs from the reference, in step %lld", name,
                             more, integer(culprit, "step"));
    else if (*what)
        lb_answer_parts_tell(answer, "bad", "%s%s makes step %lld fail: %s%s%s%s", name, more, integer(failure, "step"),
                             what, elsewhere ? " (" : "", elsewhere ? layer : "", elsewhere ? ")" : "");
    else
        lb_answer_parts_tell(answer, "bad", "%s%s makes the run fail", name, more);
}

static void tell_search(json_t *answer, const json_t *result, const char *outcome)
{
    const json_t *failure = json_object_get(result, "failure"), *judged = json_object_get(result, "judged");
    const char *reason = lb_answer_parts_text(result, "reason"), *what = lb_answer_parts_text(failure, "what");
    if (is(outcome, "clean") && json_is_object(judged))
        lb_answer_parts_tell(answer, "good", "no failure: %lld ops were judged", integer(judged, "ops"));
    else if (is(outcome, "clean"))
        lb_answer_parts_tell(answer, "good", "no failure");
    else if (is(outcome, "not-reproduced"))
        lb_answer_parts_tell(answer, "unknown", "the recorded failure does not come back in replay%s%s",
                             *what ? ": " : "", what);
    else
        lb_answer_parts_tell(answer, "unknown", "%s%s%s", *outcome ? outcome : "no outcome", *reason ? ": " : "",
                             reason);
}

void lb_answer_parts_bisect(json_t *answer, const json_t *result)
{
    const json_t *culprit = json_object_get(result, "culprit"), *begins = json_object_get(result, "begins");
    const char *outcome = lb_answer_parts_text(result, "outcome");
    char place[LB_ANSWER_PARTS_TEXT], begin[LB_ANSWER_PARTS_TEXT];
    lb_answer_parts_place(begins, begin);
    lb_answer_parts_place(culprit, place);
    if (json_object_size(culprit))
        tell_culprit(answer, result, culprit);
    else
        tell_search(answer, result, outcome);
    if (json_object_size(begins))
        lb_answer_parts_fact(answer, "begins at", "%s: %s", begin, lb_answer_parts_text(begins, "text"));
    if (json_object_size(culprit)) {
        if (!is(begin, place)) lb_answer_parts_fact(answer, "culprit", "%s", place);
        lb_answer_parts_lines(answer, culprit);
        lb_answer_parts_fact_text(answer, "why", json_object_get(culprit, "why"));
    }
    lb_answer_parts_fact_text(answer, "cured by", json_object_get(result, "cure"));
    lb_answer_parts_fact_text(answer, "reproducer", json_object_get(result, "reproducer"));
    lb_answer_parts_fact_text(answer, "record again", json_object_get(result, "record"));
    if (*outcome)
        lb_answer_parts_fact(answer, "exit code", "%s",
                             is(outcome, "found")   ? "1: different or found"
                             : is(outcome, "clean") ? "0: same or clean"
                                                    : "125: cannot be tested");
}

/* ---- watch ---- */

/* Whether alarm `a` is graver than `b`: by level, by kind, the earlier one. */
static bool is_graver_alarm(const json_t *a, const json_t *b)
{
    static const char *const kinds[] = {"nonfinite", "loss", "grad_norm", "data", "schedule", "throughput"};
    const bool critical = is(lb_answer_parts_text(a, "level"), "critical");
    const int kind_a = PLACE_IN(kinds, lb_answer_parts_text(a, "kind")),
              kind_b = PLACE_IN(kinds, lb_answer_parts_text(b, "kind"));
    if (critical != is(lb_answer_parts_text(b, "level"), "critical")) return critical;
    if (kind_a != kind_b) return kind_a < kind_b;
    return integer(a, "step") < integer(b, "step");
}

static const json_t *gravest_alarm(const json_t *alarms, size_t *critical)
{
    const json_t *gravest = NULL;
    for (size_t i = 0; i < json_array_size(alarms); i++) {
        const json_t *alarm = json_array_get(alarms, i);
        *critical += is(lb_answer_parts_text(alarm, "level"), "critical");
        if (!gravest || is_graver_alarm(alarm, gravest)) gravest = alarm;
    }
    return gravest;
}

static const char *name_of_field(const char *field)
{
    static const struct {
        const char *field, *name;
    } names[] = {{"gnorm", "gradient norm"}, {"tok_sec", "tokens per second"}, {"dt", "time of a step"},
                 {"lr", "learning rate"},    {"lrm", "schedule's multiplier"}, {"ema", "average of the norm"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is(names[i].field, field)) return names[i].name;
    return field;
}

static void tell_pattern(json_t *answer, const char *pattern)
{
    static const struct {
        const char *pattern, *text;
    } texts[] = {
        {"immediate-nan", "not finite from the start: look at the optimizer and the precision, not at the data"},
        {"early", "a spike in the first steps that settles: mostly harmless"},
        {"late-transient", "the loss rises late: look at the data shard, a border between shards, the schedule"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strstr(pattern, texts[i].pattern))
            lb_answer_parts_fact(answer, "pattern", "%s: %s", pattern, texts[i].text);
}

/* "loss: 800 rows from train/loss; gradient norm: none in this log" */
static void tell_series(json_t *answer, const json_t *series)
{
    char text[LB_ANSWER_PARTS_TEXT] = "";
    for (size_t i = 0; i < json_array_size(series); i++) {
        const json_t *row = json_array_get(series, i);
        const char *name = lb_answer_parts_text(row, "name"),
                   *field = name_of_field(lb_answer_parts_text(row, "field"));
        if (!integer(row, "rows"))
            lb_answer_parts_append(text, sizeof text, "%s%s: none in this log", *text ? "; " : "", field);
        else
            lb_answer_parts_append(text, sizeof text, "%s%s: %lld row%s%s%s", *text ? "; " : "", field,
                                   integer(row, "rows"), integer(row, "rows") == 1 ? "" : "s",
                                   *name && !is(name, field) ? " from " : "", *name && !is(name, field) ? name : "");
    }
    if (*text) lb_answer_parts_fact(answer, "read", "%s", text);
}

void lb_answer_parts_watch(json_t *answer, const json_t *result)
{
    const json_t *alarms = json_object_get(result, "alarms"), *restart = json_object_get(result, "restart_from");
    const json_t *runs = json_object_get(result, "runs");
    size_t critical = 0;
    const json_t *alarm = gravest_alarm(alarms, &critical);
    const char *verdict = lb_answer_parts_text(result, "verdict"), *log = lb_answer_parts_text(alarm, "log");
    const bool found = alarm != NULL;
    if (found)
        lb_answer_parts_tell(answer, "bad", "%s%sstep %lld: %s", log, *log ? ", " : "", integer(alarm, "step"),
                             lb_answer_parts_text(alarm, "why"));
    else if (is(verdict, "undecided"))
        lb_answer_parts_tell(answer, "unknown", "undecided: this log has too little that can be judged");
    else
        lb_answer_parts_tell(answer, "good", "no alarm in %lld steps", integer(result, "steps"));
    if (json_is_integer(restart))
        lb_answer_parts_fact(answer, "restart from", "the checkpoint of step %lld", integer(result, "restart_from"));
    for (size_t i = 0; i < json_array_size(runs); i++) {
        const json_t *run = json_array_get(runs, i);
        if (json_is_integer(json_object_get(run, "restart_from")))
            lb_answer_parts_fact(answer, "restart from", "the checkpoint of step %lld (%s)",
                                 integer(run, "restart_from"), lb_answer_parts_text(run, "log"));
    }
    if (found) lb_answer_parts_fact(answer, "alarms", "%zu, %zu of them critical", json_array_size(alarms), critical);
    if (found) tell_pattern(answer, lb_answer_parts_text(result, "pattern"));
    tell_series(answer, json_object_get(result, "series"));
    lb_answer_parts_fact(answer, "exit code", "%s",
                         found                      ? "1: different or found"
                         : is(verdict, "undecided") ? "125: cannot be tested"
                                                    : "0: same or clean");
}

/* ---- ranks ---- */

/* The first finding that is no note; NULL: there is none. `n`: how many there are. */
static const json_t *first_fault(const json_t *findings, size_t *n)
{
    const json_t *first = NULL;
    for (size_t i = 0; i < json_array_size(findings); i++) {
        const json_t *row = json_array_get(findings, i);
        if (json_is_true(json_object_get(row, "note")) || !*lb_answer_parts_text(row, "message")) continue;
        if (!first) first = row;
        ++*n;
    }
    return first;
}

/* "ranks 2, 5: drew the same masks"; a message that begins with them says them already. */
static json_t *text_of_finding(const json_t *finding)
{
    const char *message = lb_answer_parts_text(finding, "message");
    char ranks[LB_ANSWER_PARTS_TEXT];
    lb_answer_parts_ranks(finding, ranks);
    const bool said = !*ranks || !strncmp(message, "rank", 4);
    return json_sprintf("%s%s%s", said ? "" : ranks, said ? "" : ": ", message);
}

/* Several settings: those whose workers are further apart than the closest ones' come first, then findings of their
 * own. */
static void tell_settings(json_t *answer, const json_t *result, const json_t *settings)
{
    const json_t *told = NULL;
    const char *closest = lb_answer_parts_text(result, "closest");
    size_t inconsistent = 0;
    for (size_t i = 0; i < json_array_size(settings); i++) {
        const json_t *s = json_array_get(settings, i);
        const json_t *apart = json_object_get(s, "apart");
        if (!json_is_true(json_object_get(s, "inconsistent"))) continue;
        inconsistent++;
        if (told) continue;
        told = s;
        lb_answer_parts_tell(answer, "bad",
                             "%s: a silent inconsistency, its workers are further apart than those of %s (%s)",
                             lb_answer_parts_text(s, "capture"), closest,
                             json_array_size(apart) ? json_string_value(json_array_get(apart, 0)) : "by chance");
    }
    for (size_t i = 0; i < json_array_size(settings); i++) {
        const json_t *s = json_array_get(settings, i), *report = json_object_get(s, "report");
        size_t n = 0;
        const json_t *first = first_fault(json_object_get(report, "findings"), &n);
        if (!first) continue;
        json_t *text = text_of_finding(first);
        if (!told)
            lb_answer_parts_tell(answer, "bad", "%s: %s", lb_answer_parts_text(s, "capture"), json_string_value(text));
        else
            lb_answer_parts_fact(answer, "and", "%s: %s", lb_answer_parts_text(s, "capture"), json_string_value(text));
        told = s;
        json_decref(text);
    }
    if (!told) lb_answer_parts_tell(answer, "good", "no setting's workers are further apart than chance lets them be");
    if (*closest) lb_answer_parts_fact(answer, "closest", "the workers of %s", closest);
    lb_answer_parts_fact(answer, "settings", "%zu, %zu of them inconsistent, over %lld steps",
                         json_array_size(settings), inconsistent, integer(result, "steps_compared"));
    lb_answer_parts_fact(answer, "exit code", told ? "1: different or found" : "0: same or clean");
}

void lb_answer_parts_ranks_result(json_t *answer, const json_t *result)
{
    enum { SHOWN = 3 };
    const json_t *settings = json_object_get(result, "settings");
    if (json_array_size(settings)) {
        tell_settings(answer, result, settings);
        return;
    }
    const json_t *findings = json_object_get(result, "findings"), *steps = json_object_get(result, "steps");
    const char *verdict = lb_answer_parts_text(result, "verdict");
    size_t faults = 0, shown = 0;
    const json_t *first = first_fault(findings, &faults);
    json_t *text = first ? text_of_finding(first) : NULL;
    if (text)
        lb_answer_parts_tell(answer, "bad", "%s", json_string_value(text));
    else if (is(verdict, "clean"))
        lb_answer_parts_tell(answer, "good", "no worker does anything that the others do not, in %zu step%s",
                             json_array_size(steps), json_array_size(steps) == 1 ? "" : "s");
    else
        lb_answer_parts_tell(answer, "unknown", "%s", *verdict ? verdict : "no verdict");
    for (size_t i = 0; i < json_array_size(findings) && shown < SHOWN; i++) {
        const json_t *row = json_array_get(findings, i);
        if (row == first || !*lb_answer_parts_text(row, "message")) continue;
        json_t *other = text_of_finding(row);
        lb_answer_parts_fact_text(answer, json_is_true(json_object_get(row, "note")) ? "note" : "and", other);
        json_decref(other);
        shown++;
    }
    if (json_array_size(findings) > shown + 1)
        lb_answer_parts_fact(answer, "findings", "%zu, all of them below", json_array_size(findings));
    json_decref(text);
    lb_answer_parts_fact_text(answer, "record again", json_object_get(result, "record"));
    if (*verdict)
        lb_answer_parts_fact(answer, "exit code", "%s",
                             is(verdict, "clean")   ? "0: same or clean"
                             : is(verdict, "found") ? "1: different or found"
                                                    : "125: cannot be tested");
}

/* ---- audit ---- */

/* "12 of 72 tensors (layers.*.down_proj.weight): its columns …"; of one finding: its tensor. */
static json_t *text_of_group(const json_t *group, const json_t *findings)
{
    const char *kind = lb_answer_parts_text(group, "kind"), *message = lb_answer_parts_text(group, "message");
    const char *pattern = json_string_value(json_array_get(json_object_get(group, "patterns"), 0));
    if (integer(group, "findings") > 1)
        return json_sprintf("%lld of %lld tensors%s%s%s: %s", integer(group, "tensors"), integer(group, "of"),
                            pattern ? " (" : "", pattern ? pattern : "", pattern ? ")" : "", message);
    for (size_t i = 0; i < json_array_size(findings); i++) {
        const json_t *row = json_array_get(findings, i);
        const char *tensor = lb_answer_parts_text(row, "tensor"), *file = lb_answer_parts_text(row, "file");
        if (is(lb_answer_parts_text(row, "kind"), kind) && is(lb_answer_parts_text(row, "message"), message))
            return json_sprintf("%s%s%s", *tensor ? tensor : file, *tensor || *file ? ": " : "", message);
    }
    return json_string(message);
}

/* Groups of findings, the gravest first; findings one by one where a result has no groups. */
static const json_t *groups_of(const json_t *result)
{
    const json_t *groups = json_object_get(result, "groups");
    return json_array_size(groups) ? groups : json_object_get(result, "findings");
}

/* Texts of those that are no notes. */
static json_t *texts_of_groups(const json_t *result)
{
    const json_t *rows = groups_of(result);
    json_t *texts = json_array();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (json_is_true(json_object_get(row, "note")) || !*lb_answer_parts_text(row, "message")) continue;
        json_array_append_new(texts, text_of_group(row, json_object_get(result, "findings")));
    }
    return texts;
}

/* Their kinds, each once: the order in which the page lists findings. */
static json_t *kinds_of_groups(const json_t *result)
{
    const json_t *rows = groups_of(result);
    json_t *names = json_array(), *seen = json_object();
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const char *kind = lb_answer_parts_text(json_array_get(rows, i), "kind");
        if (json_object_get(seen, kind)) continue;
        json_object_set_new(seen, kind, json_null());
        json_array_append_new(names, json_string(kind));
    }
    json_decref(seen);
    return names;
}

void lb_answer_parts_audit(json_t *answer, const json_t *result)
{
    enum { SHOWN = 5 };
    json_t *texts = texts_of_groups(result);
    const size_t n = json_array_size(texts), findings = json_array_size(json_object_get(result, "findings"));
    if (n)
        lb_answer_parts_tell(answer, "bad", "%s", json_string_value(json_array_get(texts, 0)));
    else
        lb_answer_parts_tell(answer, "good", "nothing is wrong with the %lld tensors that were read",
                             integer(result, "tensors"));
    for (size_t i = 1; i < n && i < SHOWN; i++) lb_answer_parts_fact_text(answer, "and", json_array_get(texts, i));
    if (n > SHOWN) lb_answer_parts_fact(answer, "and", "%zu more kinds of finding", n - SHOWN);
    if (findings) lb_answer_parts_fact(answer, "findings", "%zu, all of them below", findings);
    lb_answer_parts_fact_text(answer, "checkpoint", json_object_get(result, "checkpoint"));
    lb_answer_parts_fact(answer, "exit code", n ? "1: different or found" : "0: same or clean");
    json_object_set_new(answer, "kinds", kinds_of_groups(result));
    json_decref(texts);
}

/* ---- fingerprint ---- */

void lb_answer_parts_fingerprint(json_t *answer, const json_t *result)
{
    const json_t *matches = json_object_get(result, "matches"), *match, *first = NULL;
    const bool compared = json_is_object(json_object_get(result, "counts"));
    size_t i, findings = 0;
    json_array_foreach(matches, i, match)
    {
        if (!json_is_true(json_object_get(match, "finding"))) continue;
        if (!findings++) first = match;
    }
    if (findings)
        lb_answer_parts_tell(answer, "bad", "%zu tensor%s not as sent; the first is %s (%s)", findings,
                             findings == 1 ? " is" : "s are", lb_answer_parts_text(first, "tensor"),
                             lb_answer_parts_text(first, "kind"));
    else if (is(lb_answer_parts_text(result, "verdict"), "undecided"))
        lb_answer_parts_tell(answer, "unknown", "a side has no fingerprint of some tensors");
    else
        lb_answer_parts_tell(answer, "good",
                             compared ? "every tensor is there as it was sent" : "fingerprints were made");
    match = json_array_get(json_object_get(result, "tables"), 0);
    lb_answer_parts_fact_text(answer, "file", json_object_get(match, "path"));
    lb_answer_parts_fact(answer, "tensors", "%lld", integer(match, "count"));
    if (compared) lb_answer_parts_fact(answer, "exit code", findings ? "1: different or found" : "0: same or clean");
}

/* ---- replay ---- */

void lb_answer_parts_replay(json_t *answer, const json_t *result)
{
    const json_t *worst = json_array_get(json_object_get(result, "worst"), 0), *ops = json_object_get(result, "ops");
    const char *verdict = lb_answer_parts_text(result, "verdict");
    const char *tone = is(verdict, "identical")                             ? "good"
                       : is(verdict, "diverged")                            ? "bad"
                       : is(verdict, "missing") || is(verdict, "undecided") ? "unknown"
                                                                            : "warn";
    const bool compared = json_is_integer(json_object_get(result, "compared"));
    char place[LB_ANSWER_PARTS_TEXT];
    lb_answer_parts_place(worst, place);
    if (is(verdict, "identical"))
        lb_answer_parts_tell(answer, tone, "the replay gives the recorded bits: %lld of %lld ops",
                             integer(result, "bitwise"), integer(result, "compared"));
    else if (is(verdict, "missing") && integer(json_object_get(result, "verdicts"), "missing"))
        lb_answer_parts_tell(answer, tone, "%lld ops could not be judged: what they gave was not kept",
                             integer(json_object_get(result, "verdicts"), "missing"));
    else if (json_is_object(worst) && is(verdict, "diverged"))
        lb_answer_parts_tell(answer, tone, "the replay diverges at %s", place);
    else
        lb_answer_parts_tell(answer, tone, "%s%s%s", *verdict ? verdict : "replayed",
                             json_is_object(worst) ? ", the worst at " : "", json_is_object(worst) ? place : "");
    lb_answer_parts_fact_text(answer, "mode", json_object_get(result, "mode"));
    if (compared)
        lb_answer_parts_fact(answer, "bit-equal", "%lld of %lld ops", integer(result, "bitwise"),
                             integer(result, "compared"));
    if (json_is_object(ops)) lb_answer_parts_fact(answer, "ops", "%lld", integer(ops, "total"));
    lb_answer_parts_fact_text(answer, "not judged", json_object_get(result, "missing"));
}
