/* Which answer a result gives, and which runs it is about: see answer.h. */
#include "report/answer.h"

#include "report/answer_parts.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- the answer ---- */

static void tell_receipt(json_t *answer, const json_t *result)
{
    const json_t *ranks = json_object_get(result, "ranks"), *steps = json_object_get(result, "steps");
    const size_t n = json_array_size(steps);
    lb_answer_parts_tell(answer, "good", "a recording of %zu step%s on %zu rank%s", n, n == 1 ? "" : "s",
                         json_array_size(ranks), json_array_size(ranks) == 1 ? "" : "s");
    lb_answer_parts_fact_text(answer, "capture", json_object_get(result, "capture"));
    if (n)
        lb_answer_parts_fact(answer, "steps", "%lld to %lld", (long long)json_integer_value(json_array_get(steps, 0)),
                             (long long)json_integer_value(json_array_get(steps, n - 1)));
}

static void tell_other(json_t *answer, const json_t *result)
{
    const char *verdict = lb_answer_parts_text(result, "verdict"), *outcome = lb_answer_parts_text(result, "outcome");
    lb_answer_parts_tell(answer, "unknown", "%s", *verdict ? verdict : *outcome ? outcome : "done");
}

static const struct {
    const char *command;
    void (*tell)(json_t *answer, const json_t *result);
} ANSWERS[] = {{"diff", lb_answer_parts_diff},
               {"bisect", lb_answer_parts_bisect},
               {"explain", lb_answer_parts_explain},
               {"parity", lb_answer_parts_parity},
               {"watch", lb_answer_parts_watch},
               {"ranks", lb_answer_parts_ranks_result},
               {"audit", lb_answer_parts_audit},
               {"replay", lb_answer_parts_replay},
               {"ls", tell_receipt},
               {"fingerprint", lb_answer_parts_fingerprint},
               {"check", lb_answer_parts_check}};

json_t *lb_answer_of(const char *command, const json_t *result)
{
    const char *verdict = lb_answer_parts_text(result, "verdict");
    json_t *answer = json_pack("{s:s, s:s, s:s, s:[]}", "tone", "unknown", "word",
                               *verdict ? verdict : lb_answer_parts_text(result, "outcome"), "finding", "", "facts");
    size_t i = 0;
    while (i < sizeof ANSWERS / sizeof *ANSWERS && strcmp(ANSWERS[i].command, command) != 0) i++;
    if (answer) (i < sizeof ANSWERS / sizeof *ANSWERS ? ANSWERS[i].tell : tell_other)(answer, result);
    return answer;
}

int lb_answer_gravity(const json_t *answer)
{
    static const char *const tones[] = {"good", "warn", "unknown", "bad"};
    int i = 3;
    while (i > 0 && strcmp(tones[i], lb_answer_parts_text(answer, "tone")) != 0) i--;
    return i;
}

/* ---- the runs ---- */

enum { NAME = 120 };

/* "runs/good.lb/" -> "good" */
static void name_of(const char *path, char name[NAME])
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    size_t end = n;
    if (n - from > 4 && !strncmp(path + n - 4, ".lbz", 4)) end = n - 4;
    if (n - from > 3 && !strncmp(path + n - 3, ".lb", 3)) end = n - 3;
    name[0] = '\0';
    lb_answer_parts_append(name, NAME, "%.*s", (int)(end - from), path + from);
}

/* What a result of an older program says of what it read. */
static const char *path_of(const json_t *result, const char *name)
{
    static const char *const keys[] = {"capture", "checkpoint", "log"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (*lb_answer_parts_text(result, keys[i])) return lb_answer_parts_text(result, keys[i]);
    return name;
}

static bool recorded_at(const json_t *input, char day[32])
{
    const json_t *time = json_object_get(input, "recorded");
    const time_t seconds = (time_t)json_number_value(time);
    struct tm utc;
    return json_is_number(time) && gmtime_r(&seconds, &utc) && strftime(day, 32, "%Y-%m-%d %H:%M UTC", &utc);
}

json_t *lb_answer_runs(const json_t *result, const char *name)
{
    enum { SHOWN = 4 };
    const json_t *inputs = json_object_get(result, "inputs");
    const size_t n = json_array_size(inputs);
    char text[4 * LB_ANSWER_PARTS_TEXT] = "", short_name[NAME], day[32];
    for (size_t i = 0; i < n && i < SHOWN; i++) {
        const json_t *input = json_array_get(inputs, i);
        const char *program = lb_answer_parts_text(input, "program");
        name_of(lb_answer_parts_text(input, "path"), short_name);
        lb_answer_parts_append(text, sizeof text, "%s%s", i == 0 ? "" : i + 1 == n ? " and " : ", ", short_name);
        if (recorded_at(input, day)) lb_answer_parts_append(text, sizeof text, ", recorded %s", day);
        if (*program) lb_answer_parts_append(text, sizeof text, " (%s)", program);
    }
    if (n > SHOWN) lb_answer_parts_append(text, sizeof text, " and %zu more", n - SHOWN);
    if (!n) name_of(path_of(result, name), short_name);
    return json_string(n ? text : short_name);
}

json_t *lb_answer_run_title(const json_t *result, const char *name, const char *now)
{
    const json_t *inputs = json_object_get(result, "inputs");
    const size_t n = json_array_size(inputs);
    char first[NAME], second[NAME], day[32], latest[32] = "";
    name_of(n ? lb_answer_parts_text(json_array_get(inputs, 0), "path") : path_of(result, name), first);
    for (size_t i = 0; i < n; i++)
        if (recorded_at(json_array_get(inputs, i), day) && strcmp(day, latest) > 0) memcpy(latest, day, sizeof day);
    latest[10] = '\0'; /* the day alone */
    const char *date = *latest ? latest : now;
    if (n == 2) name_of(lb_answer_parts_text(json_array_get(inputs, 1), "path"), second);
    if (n == 2) return json_sprintf("%s and %s, %s", first, second, date);
    if (n > 2) return json_sprintf("%s and %zu more, %s", first, n - 1, date);
    return json_sprintf("%s, %s", first, date);
}
