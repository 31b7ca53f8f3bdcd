/* Who can own (names of parameters and buffers), which storages the recording says to be theirs, and what sets of them
 * are called. */
#include "program/owner_state.h"

#include "base/array.h"
#include "program/state_name.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- who can own ------------------------------------------------------------------------------------------------ */

static bool is_name(const char *name)
{
    return *name && strcmp(name, "?") != 0;
}

static uint32_t row_of_name(const lb_owners *owners, const char *name)
{
    const char **found =
        owners->n_names ? bsearch(&name, owners->names, owners->n_names, sizeof *owners->names, lb_by_text) : NULL;
    return found ? (uint32_t)(found - owners->names) : LB_NONE;
}

static bool add_name(lb_owners *owners, const char *name)
{
    if (!is_name(name)) return true;
    const char **more = lb_array_grow(owners->names, owners->n_names, sizeof *more);
    if (!more) return false;
    owners->names = more;
    owners->names[owners->n_names++] = name;
    return true;
}

/* The name that a value's storage has as a fixed point; NULL for other values. */
static const char *owner_in_recording(const lb_program *program, const lb_value *value)
{
    if (!(value->flags & (LB_VALUE_PARAMETER | LB_VALUE_GRADIENT | LB_VALUE_STATE)) || value->name == LB_NONE)
        return NULL;
    const char *name = lb_state_name_parameter(lb_program_text(program, value->name));
    return is_name(name) ? name : NULL;
}

/* Strings are interned: a name is looked at once, however many values have it. */
static bool collect_names(lb_owners *owners, const lb_program *program)
{
    uint8_t *seen = calloc((size_t)program->n_strings + 1, 1);
    bool ok = seen != NULL;
    for (uint32_t k = 0; k < program->n_group_params && ok; k++)
        ok = add_name(owners, lb_program_text(program, program->group_params[k].name));
    for (uint32_t v = 0; v < program->n_values && ok; v++) {
        const char *name = owner_in_recording(program, &program->values[v]);
        if (!name || seen[program->values[v].name]) continue;
        seen[program->values[v].name] = 1;
        ok = add_name(owners, name);
    }
    free(seen);
    return ok;
}

static void sort_names(lb_owners *owners)
{
    uint32_t n = 0;
    if (owners->n_names) qsort(owners->names, owners->n_names, sizeof *owners->names, lb_by_text);
    for (uint32_t i = 0; i < owners->n_names; i++)
        if (!n || strcmp(owners->names[n - 1], owners->names[i]) != 0) owners->names[n++] = owners->names[i];
    owners->n_names = n;
}

lb_status lb_owners_list_names(lb_owners *owners, const lb_program *const programs[2], lb_err *err)
{
    const bool ok = collect_names(owners, programs[0]) && (!programs[1] || collect_names(owners, programs[1]));
    sort_names(owners);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

static void anchor(lb_owners *owners, int64_t storage, const char *name, bool *given)
{
    const uint32_t s = storage < 0 ? LB_NONE : lb_slice_flow_storage(owners->flow, storage),
                   row = row_of_name(owners, name);
    if (s == LB_NONE || row == LB_NONE) return;
    owners->anchors[s] = lb_owner_set_join(&owners->sets, owners->anchors[s], lb_owner_set_of(&owners->sets, row));
    if (given) given[s] = true;
}

/* A bucket of gradients is one storage of many: the groups name them all, a value's own name but one. */
lb_status lb_owners_anchor(lb_owners *owners, const lb_program *const programs[2], lb_err *err)
{
    bool *given = calloc(owners->flow->n_storages + 1, sizeof *given);
    if (!given) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (int n = 0; n < 2 && programs[n]; n++)
        for (uint32_t k = 0; k < programs[n]->n_group_params; k++) {
            const lb_group_param *param = &programs[n]->group_params[k];
            anchor(owners, param->storage, lb_program_text(programs[n], param->name), given);
            anchor(owners, param->gradient, lb_program_text(programs[n], param->name), given);
        }
    for (int n = 0; n < 2 && programs[n]; n++)
        for (uint32_t v = 0; v < programs[n]->n_values; v++) {
            const char *name = owner_in_recording(programs[n], &programs[n]->values[v]);
            const uint32_t s = name ? lb_slice_flow_storage(owners->flow, programs[n]->values[v].storage) : LB_NONE;
            if (s != LB_NONE && !given[s] && !owners->anchors[s])
                anchor(owners, programs[n]->values[v].storage, name, NULL);
        }
    free(given);
    return LB_OK;
}

/* ---- as text ---------------------------------------------------------------------------------------------------- */

static uint32_t set_of_params(lb_owners *owners, const lb_program *program, const lb_group *group)
{
    uint32_t set = 0;
    for (uint32_t k = 0; k < group->params; k++) {
        const uint32_t row =
            row_of_name(owners, lb_program_text(program, program->group_params[group->first_param + k].name));
        if (row != LB_NONE) lb_owners_join(owners, &set, lb_owner_set_of(&owners->sets, row));
    }
    return set;
}

/* What the optimizers step; where the recording knows of none, what is marked as a parameter. */
static uint32_t set_of_all(lb_owners *owners)
{
    const lb_program *program = owners->program;
    uint32_t set = 0;
    for (uint32_t g = 0; g < program->n_groups; g++)
        lb_owners_join(owners, &set, set_of_params(owners, program, &program->groups[g]));
    for (uint32_t v = 0; v < program->n_values && !program->n_groups; v++) {
        const char *name =
            program->values[v].flags & LB_VALUE_GRADIENT ? owner_in_recording(program, &program->values[v]) : NULL;
        if (name) lb_owners_join(owners, &set, lb_owner_set_of(&owners->sets, row_of_name(owners, name)));
    }
    return set;
}

static size_t module_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

/* The innermost module that holds all of a set. */
static char *module_of_set(const lb_owners *owners, uint32_t set)
{
    uint32_t i = lb_owner_set_next(&owners->sets, set, 0);
    char *module = i == LB_NONE ? strdup("") : strndup(owners->names[i], module_length(owners->names[i]));
    while (module && i != LB_NONE && (i = lb_owner_set_next(&owners->sets, set, i + 1)) != LB_NONE) {
        const size_t n = module_length(owners->names[i]);
        size_t same = 0, whole = 0;
        for (;; same++) {
            const bool ends = !module[same], over = same == n;
            if ((ends || module[same] == '.') && (over || owners->names[i][same] == '.')) whole = same;
            if (ends || over || module[same] != owners->names[i][same]) break;
        }
        module[whole] = '\0';
    }
    return module;
}

static char *name_of_set(lb_owners *owners, uint32_t set)
{
    const lb_program *program = owners->program;
    const uint32_t n = lb_owner_set_count(&owners->sets, set), first = lb_owner_set_next(&owners->sets, set, 0);
    char text[400] = "";
    if (n == 1) snprintf(text, sizeof text, "%s", owners->names[first]);
    if (n > 1 && set == owners->all) snprintf(text, sizeof text, "all parameters");
    for (uint32_t g = 0; n > 1 && !*text && g < program->n_groups; g++)
        if (set_of_params(owners, program, &program->groups[g]) == set)
            snprintf(text, sizeof text, "the parameters of group %u of %s", program->groups[g].index,
                     lb_program_text(program, program->groups[g].optimizer));
    if (n > 1 && !*text) snprintf(text, sizeof text, "%s and %u more", owners->names[first], n - 1);
    return strdup(text);
}

lb_status lb_owners_write_texts(lb_owners *owners, lb_err *err)
{
    const uint32_t n = owners->program->n_ops;
    uint8_t *seen = NULL;
    owners->all = set_of_all(owners);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = owners->first_node[i]; k < owners->first_node[i + 1]; k++)
            lb_owners_join(owners, &owners->whole[i], owners->owner[k]);
    const uint32_t n_sets = owners->sets.n;
    seen = calloc((size_t)n_sets + 1, 1);
    owners->texts = calloc((size_t)n_sets + 1, sizeof *owners->texts);
    if (!seen || !owners->texts || owners->sets.failed) {
        free(seen);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < n; i++) seen[owners->whole[i]] = 1;
    for (uint32_t k = 0; k < owners->first_node[n]; k++) seen[owners->owner[k]] = 1;
    for (uint32_t s = 0; s < owners->flow->n_storages; s++) seen[owners->anchors[s]] = 1;
    bool ok = true;
    for (uint32_t s = 0; s < n_sets; s++)
        if (seen[s]) {
            owners->texts[owners->n_texts] = (lb_owner_text){s, name_of_set(owners, s), module_of_set(owners, s)};
            ok &= owners->texts[owners->n_texts].name && owners->texts[owners->n_texts].module;
            owners->n_texts++;
        }
    free(seen);
    return ok ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

static int by_set(const void *a, const void *b)
{
    const uint32_t x = ((const lb_owner_text *)a)->set, y = ((const lb_owner_text *)b)->set;
    return x < y ? -1 : x > y;
}

const lb_owner_text *lb_owners_text(const lb_owners *owners, uint32_t set)
{
    const lb_owner_text key = {.set = set};
    return bsearch(&key, owners->texts, owners->n_texts, sizeof key, by_set);
}
