/* Exact restart: what has to be in a checkpoint for the next step to be the one that would have come. */
#include "inventory.h"

#include <dirent.h>
#include <string.h>
#include <stdio.h>

typedef struct need {
    const char *what;
    const char *words[10]; /* any of them, in a name or in the name of a file beside it */
} need;

static bool named(const lb_inventory *v, const char *word)
{
    for (uint32_t i = 0; i < v->n_names; i++)
        if (strstr(v->names[i].name, word)) return true;
    for (uint32_t i = 0; i < v->checkpoint->n_entries; i++)
        if (strstr(v->checkpoint->entries[i].name, word)) return true;
    return false;
}

static bool beside(const char *folder, const char *word)
{
    DIR *listing = opendir(folder);
    bool found = false;
    for (struct dirent *entry; listing && !found && (entry = readdir(listing));)
        found = entry->d_name[0] != '.' && strstr(entry->d_name, word);
    if (listing) closedir(listing);
    return found;
}

static bool is_narrow(const lb_inventory *v)
{
    for (uint32_t i = 0; i < v->checkpoint->n_pieces; i++)
        if (lb_dtype_is_float(v->checkpoint->pieces[i].tensor.dtype) &&
            lb_dtype_bits(v->checkpoint->pieces[i].tensor.dtype) <= 8)
            return true;
    return named(v, "_extra_state") || named(v, "amax");
}

void lb_audit_restart(lb_audit_gathering *g, const lb_inventory *v)
{
    static const need needs[] = {
        {"optimizer slots", {"exp_avg", "momentum", "optim", "state.0.", NULL}},
        {"the step it stands at", {"step", "iteration", "trainer_state", "epoch", NULL}},
        {"the schedule", {"scheduler", "last_epoch", "_last_lr", "base_lrs", NULL}},
        {"seeds and states of random numbers", {"rng", "random", "seed", NULL}},
        {"sampler state and data position",
         {"sampler", "dataloader", "data_loader", "data_state", "consumed", "data_position", "trainer_state", NULL}},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        bool found = false;
        for (const char *const *word = needs[i].words; *word && !found; word++)
            found = named(v, *word) || beside(v->checkpoint->path, *word);
        if (!found)
            lb_audit_find(g, LB_AUDIT_RESTART_MISSING, (lb_audit_where){NULL, NULL, NULL, 0},
                          "%s: nothing in it is named so; the next step will not be the one that would have come",
                          needs[i].what);
    }
    if (is_narrow(v) && !named(v, "amax") && !named(v, "_extra_state") && !named(v, "scale"))
        lb_audit_find(g, LB_AUDIT_RESTART_MISSING, (lb_audit_where){NULL, NULL, NULL, 0},
                      "scale state: weights restored with cold scales are a fresh calibration, no continuation");
}
