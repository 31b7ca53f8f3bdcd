/* Findings about options and environments: see worker_findings.h. */
#define _GNU_SOURCE /* asprintf */
#include "workers/worker_findings.h"

#include <lastbit/json_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one setting is on each rank; NULL: that rank says nothing of it. */
typedef struct setting {
    const char *name;
    char **values;
} setting;

/* Ranks whose value is not the most frequent one; all where none is. 0: they agree. */
static uint32_t outvoted(char *const *values, uint32_t n, bool *out, uint32_t *best)
{
    uint32_t votes = 0, told = 0, others = 0;
    for (uint32_t i = 0; i < n; i++) told += values[i] != NULL;
    for (uint32_t i = 0; i < n && 2 * votes <= told; i++) { /* more than half is most */
        uint32_t same = 0;
        if (!values[i]) continue;
        for (uint32_t k = 0; k < n; k++) same += values[k] && !strcmp(values[i], values[k]);
        if (same > votes) votes = same, *best = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        out[i] = values[i] && votes < told && (2 * votes <= told || strcmp(values[i], values[*best]) != 0);
        others += out[i];
    }
    return others;
}

/* `like`: the finding's kind, whether it is a note, and its step. */
static lb_status tell(const lb_worker_steps *steps, lb_worker_findings *findings, const lb_ranks_finding *like,
                      const setting *setting, lb_err *err)
{
    int32_t *ranks = malloc((steps->n_ranks + 1) * sizeof *ranks);
    bool *out = calloc(steps->n_ranks + 1, sizeof *out);
    uint32_t n = 0, best = 0, first = LB_NONE;
    lb_status status = ranks && out ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    if (status == LB_OK && outvoted(setting->values, steps->n_ranks, out, &best)) {
        char *message = NULL, words[96];
        for (uint32_t r = 0; r < steps->n_ranks; r++)
            if (out[r]) first = first == LB_NONE ? r : first, ranks[n++] = steps->ranks[r];
        /* Without a majority the first is told beside another one. */
        uint32_t other = best;
        for (uint32_t r = 0; r < steps->n_ranks && !strcmp(setting->values[other], setting->values[first]); r++)
            if (setting->values[r] && strcmp(setting->values[r], setting->values[first])) other = r;
        lb_ranks_finding finding = *like;
        finding.ranks = ranks, finding.n_ranks = n, finding.tensor = (char *)setting->name;
        if (asprintf(&message, "%s is %s on rank %d and %s on rank %d%s%s", setting->name, setting->values[first],
                     steps->ranks[first], setting->values[other], steps->ranks[other], n > 1 ? "; it differs on " : "",
                     n > 1 ? lb_worker_rank_words(ranks, n, words) : "") < 0)
            message = NULL;
        status = lb_worker_findings_add(findings, &finding, message, err);
    }
    free(ranks);
    free(out);
    return status;
}

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

static const lb_group *find_group(const lb_program *program, const char *optimizer, uint32_t index)
{
    for (uint32_t g = 0; program && g < program->n_groups; g++)
        if (program->groups[g].index == index &&
            !strcmp(lb_program_text(program, program->groups[g].optimizer), optimizer))
            return &program->groups[g];
    return NULL;
}

/* An option of a group, as one rank has it. */
typedef struct option {
    const lb_program *program;
    const lb_group *group;
    const lb_scalar *scalar;
} option;

static lb_status tell_option(const lb_worker_steps *steps, const lb_worker_step *step, const option *option,
                             lb_worker_findings *findings, lb_err *err)
{
    const lb_group *group = option->group;
    const char *optimizer = lb_program_text(option->program, group->optimizer),
               *name = lb_program_text(option->program, option->scalar->name);
    char *text = NULL, **values = calloc(steps->n_ranks + 1, sizeof *values);
    bool room = values && asprintf(&text, "%s of group %u of %s", name, group->index, optimizer) >= 0;
    for (uint32_t r = 0; room && r < steps->n_ranks; r++) {
        const lb_program *program = step->workers[r].program;
        const lb_group *g = find_group(program, optimizer, group->index);
        for (uint32_t o = 0; g && o < g->options && !values[r]; o++) {
            const lb_scalar *scalar = &program->scalars[g->first_option + o];
            if (!strcmp(lb_program_text(program, scalar->name), name) &&
                asprintf(&values[r], "%.15g", scalar->number) < 0)
                values[r] = NULL, room = false;
        }
    }
    const setting setting = {text, values};
    const lb_ranks_finding like = {.kind = LB_RANKS_OPTION, .step = step->step};
    lb_status status =
        room ? tell(steps, findings, &like, &setting, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory for options");
    for (uint32_t r = 0; values && r < steps->n_ranks; r++) free(values[r]);
    free(values), free(text);
    return status;
}

/* Groups by those of the first rank that has any. */
static lb_status tell_options(const lb_worker_steps *steps, const lb_worker_step *step, lb_worker_findings *findings,
                              lb_err *err)
{
    const lb_program *program = NULL;
    for (uint32_t r = 0; r < steps->n_ranks && !(program && program->n_groups); r++) program = step->workers[r].program;
    for (uint32_t g = 0; program && g < program->n_groups; g++)
        for (uint32_t o = 0; o < program->groups[g].options; o++) {
            const lb_group *group = &program->groups[g];
            const option option = {program, group, &program->scalars[group->first_option + o]};
            LB_TRY(tell_option(steps, step, &option, findings, err));
        }
    return LB_OK;
}

/* ---- receipts ---------------------------------------------------------------------------------------------------- */

/* Things that differ between healthy machines, and may change bits: a note. */
static bool only_a_note(const char *part, const char *key)
{
    return !strcmp(part, "machine") || !strcmp(key, "cpu_capability") || strstr(key, "threads") != NULL;
}

static bool is_of_the_rank(const char *key)
{
    return !strcmp(key, "affinity") || !strcmp(key, "processors");
}

/* Every key that any rank has in this part of its receipt. */
static lb_status tell_part(const lb_worker_steps *steps, json_t *const *receipts, const char *part,
                           lb_worker_findings *findings, lb_err *err)
{
    json_t *seen = json_object(), *value;
    const char *key;
    lb_status status = seen ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for receipts");
    for (uint32_t r = 0; r < steps->n_ranks && status == LB_OK; r++) {
        json_t *of = json_object_get(receipts[r], part);
        json_object_foreach(of, key, value)
        {
            char *name = NULL, **values = NULL;
            if (status != LB_OK || json_object_get(seen, key) || is_of_the_rank(key)) continue;
            if (!strcmp(part, "code") && strcmp(key, "sha256") != 0) continue;
            json_object_set_new(seen, key, json_true());
            values = calloc(steps->n_ranks + 1, sizeof *values);
            bool room = values && asprintf(&name, "%s.%s", part, key) >= 0;
            for (uint32_t q = 0; room && q < steps->n_ranks; q++) {
                json_t *other = json_object_get(json_object_get(receipts[q], part), key);
                if (!json_object_get(receipts[q], part)) continue; /* that rank says nothing of it */
                values[q] =
                    other ? json_dumps(other, JSON_ENCODE_ANY | JSON_SORT_KEYS | JSON_COMPACT) : strdup("absent");
            }
            const setting setting = {name, values};
            const lb_ranks_finding like = {.kind = LB_RANKS_VERSION, .note = only_a_note(part, key), .step = INT64_MIN};
            status = room ? tell(steps, findings, &like, &setting, err)
                          : lb_fail(err, LB_ERR_NOMEM, "out of memory for receipts");
            for (uint32_t q = 0; values && q < steps->n_ranks; q++) free(values[q]);
            free(values), free(name);
        }
    }
    json_decref(seen);
    return status;
}

lb_status lb_worker_findings_of_settings(const lb_worker_steps *steps, lb_worker_findings *findings, lb_err *err)
{
    static const char *const parts[] = {"versions", "torch", "code", "machine"};
    json_t **receipts = calloc(steps->n_ranks + 1, sizeof *receipts);
    lb_status status = receipts ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for receipts");
    for (uint32_t r = 0; receipts && r < steps->n_ranks; r++) {
        const char *text = lb_capture_table(steps->capture, steps->ranks[r], "receipt");
        receipts[r] = text ? json_loads(text, 0, NULL) : NULL;
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts && status == LB_OK; i++)
        status = tell_part(steps, receipts, parts[i], findings, err);
    for (uint32_t i = 0; i < steps->n_steps && status == LB_OK; i++)
        status = tell_options(steps, &steps->steps[i], findings, err);
    for (uint32_t r = 0; receipts && r < steps->n_ranks; r++) json_decref(receipts[r]);
    free(receipts);
    return status;
}
