/* Exact restart: what has to be in a checkpoint for the next step to be the one that would have come. Each is asked for
 * by itself: a seed of a sampler is no state of random numbers, Python's state is not NumPy's, and a sampler that knows
 * its epoch does not know its place in it.
 *
 * What is there is known by names: of tensors, of what is no tensor, of files beside them. Python's own pickles
 * (random_states_0.pkl) are not read, their bytes are searched for the names that they hold. Torch's state of random
 * numbers is known by its size as well. */
#define _GNU_SOURCE /* memmem */
#include "audit/inventory.h"
#include "audit/side_file.h"

#include <lastbit/input.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A name, and the file that it is in. */
typedef bool named_fn(const char *name, const char *file);

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool has_any(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strstr(text, *words)) return true;
    return false;
}

/* ---- what a name is of ------------------------------------------------------------------------------------------- */

static bool is_optimizer(const char *name, const char *file)
{
    static const char *const words[] = {"exp_avg", "momentum", "optim", "state.0.", NULL};
    return has_any(name, words) || has_any(file, words);
}

static bool is_step(const char *name, const char *file)
{
    static const char *const words[] = {"step", "iteration", "epoch", NULL};
    return has_any(name, words) || strstr(file, "trainer_state") || strstr(file, "latest_checkpointed_iteration");
}

static bool is_schedule(const char *name, const char *file)
{
    static const char *const words[] = {"scheduler", "last_epoch", "_last_lr", "base_lrs", NULL};
    return has_any(name, words) || strstr(file, "scheduler");
}

static bool is_scaler(const char *name, const char *file)
{
    static const char *const words[] = {"scaler", "loss_scale", "growth_tracker", "growth_factor", "cur_scale", NULL};
    return has_any(name, words) || strstr(file, "scaler");
}

/* Where the next batch begins: a step of a run whose loader skips batches, or a loader's own count; not what it was
 * made with. */
static bool is_position(const char *name, const char *file)
{
    static const char *const data[] = {"sampler", "dataloader", "data_loader", "data_state", "dataset", "loader", NULL};
    static const char *const place[] = {"position", "index",  "offset", "cursor", "consumed", "yielded",
                                        "batch",    "sample", "next",   "iter",   "step",     "count",
                                        "progress", "seen",   "state",  NULL};
    static const char *const made[] = {"batch_size", "num_samples", "total_size", "drop_last", "num_replicas", NULL};
    const char *dot = strrchr(name, '.'), *leaf = dot ? dot + 1 : name;
    if (strstr(file, "trainer_state") || strstr(name, "consumed") || strstr(name, "data_position")) return true;
    const bool of_data = has_any(name, data), of_file = has_any(file, data);
    if ((!of_data && !of_file) || has_any(leaf, made)) return false;
    return has_any(leaf, place) && (!has_any(leaf, data) || strlen(leaf) > 12);
}

static bool is_random(const char *name, const char *file)
{
    static const char *const words[] = {"rng", "random", "generator_state", "manual_seed", NULL};
    return has_any(name, words) || has_any(file, words);
}

static bool is_of_numpy(const char *name)
{
    return strstr(name, "numpy") || strncmp(name, "np_", 3) == 0 || strstr(name, ".np_") || strstr(name, "_np_");
}

static bool is_of_device(const char *name)
{
    return strstr(name, "cuda") || strstr(name, "xpu") || strstr(name, "hip") || strstr(name, "tracker");
}

static bool is_python_state(const char *name, const char *file)
{
    static const char *const words[] = {"python", "py_rng", "random_state", "random_rng_state", NULL};
    return is_random(name, file) && !is_of_numpy(name) && !is_of_device(name) && !strstr(name, "torch") &&
           has_any(name, words);
}

static bool is_numpy_state(const char *name, const char *file)
{
    return is_random(name, file) && is_of_numpy(name);
}

static bool is_torch_state(const char *name, const char *file)
{
    const char *dot = strrchr(name, '.'), *leaf = dot ? dot + 1 : name;
    if (!is_random(name, file) || is_of_numpy(name) || is_of_device(name)) return false;
    return strstr(name, "torch") || strcmp(leaf, "cpu") == 0 || strstr(name, "cpu_rng") ||
           strcmp(leaf, "rng_state") == 0;
}

static bool is_device_state(const char *name, const char *file)
{
    return is_random(name, file) && is_of_device(name);
}

/* ---- where names are --------------------------------------------------------------------------------------------- */

/* A file whose bytes hold one of these names; Python writes them as they are. */
static bool pickle_holds(const char *path, const char *file, named_fn *is)
{
    static const char *const names[] = {"random_state",
                                        "numpy_random_seed",
                                        "torch_manual_seed",
                                        "torch_cuda_manual_seed",
                                        "python",
                                        "numpy",
                                        "cpu",
                                        "cuda",
                                        "last_epoch",
                                        "_growth_tracker",
                                        NULL};
    const char *bytes;
    size_t size;
    bool found = false;
    if (lb_input_map(path, &bytes, &size, NULL) != LB_OK) return false;
    for (const char *const *name = names; *name && !found; name++)
        found = memmem(bytes, size, *name, strlen(*name)) && is(*name, file);
    munmap((void *)(uintptr_t)bytes, size);
    return found;
}

static bool is_beside(const char *folder, named_fn *is)
{
    lb_input_names names;
    bool found = false;
    lb_input_list(folder, &names, NULL);
    for (uint32_t i = 0; i < names.n && !found; i++) {
        const char *name = names.rows[i], *dot = strrchr(name, '.');
        char path[4400];
        if (name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, name);
        found = dot && strcmp(dot, ".pkl") == 0 ? pickle_holds(path, name, is) : is("", name);
    }
    lb_input_names_release(&names);
    return found;
}

static bool is_there(const lb_inventory *inventory, named_fn *is)
{
    const lb_checkpoint *checkpoint = inventory->checkpoint;
    for (uint32_t i = 0; i < checkpoint->n_pieces; i++)
        if (is(checkpoint->pieces[i].name, base_of(checkpoint->files[checkpoint->pieces[i].file].path))) return true;
    for (uint32_t i = 0; i < checkpoint->n_entries; i++)
        if (is(checkpoint->entries[i].name, base_of(checkpoint->files[checkpoint->entries[i].file].path))) return true;
    return is_beside(checkpoint->path, is);
}

/* Torch's generator of the host has a state of 5056 bytes, whatever it is called. */
static bool holds_torch_state(const lb_inventory *inventory)
{
    for (uint32_t i = 0; i < inventory->checkpoint->n_pieces; i++) {
        const lb_tensor *tensor = &inventory->checkpoint->pieces[i].tensor;
        if (tensor->dtype == LB_U8 && lb_layout_numel(&tensor->layout) == 5056) return true;
    }
    return is_there(inventory, is_torch_state);
}

/* ---- what a run needs -------------------------------------------------------------------------------------------- */

static bool is_narrow(const lb_inventory *inventory)
{
    for (uint32_t i = 0; i < inventory->checkpoint->n_pieces; i++)
        if (lb_dtype_is_float(inventory->checkpoint->pieces[i].tensor.dtype) &&
            lb_dtype_bits(inventory->checkpoint->pieces[i].tensor.dtype) <= 8)
            return true;
    for (uint32_t i = 0; i < inventory->n_names; i++)
        if (strstr(inventory->names[i].name, "_extra_state") || strstr(inventory->names[i].name, "amax")) return true;
    return false;
}

static bool has_scales(const lb_inventory *inventory)
{
    for (uint32_t i = 0; i < inventory->n_names; i++)
        if (strstr(inventory->names[i].name, "_extra_state") || strstr(inventory->names[i].name, "amax") ||
            strstr(inventory->names[i].name, "scale"))
            return true;
    return false;
}

/* Whether f16 took part: weights, a configuration. */
static bool is_half(const lb_inventory *inventory)
{
    bool half = false;
    for (uint32_t i = 0; i < inventory->checkpoint->n_pieces; i++)
        half |= inventory->checkpoint->pieces[i].tensor.dtype == LB_F16;
    json_t *config = lb_side_file_load(inventory->checkpoint->path, "config.json");
    const char *dtype = json_string_value(json_object_get(config, "torch_dtype"));
    if (!dtype) dtype = json_string_value(json_object_get(config, "dtype"));
    half |= dtype && strcmp(dtype, "float16") == 0;
    json_decref(config);
    return half;
}

static void tell(lb_audit_gathering *gathering, bool note, const char *what, const char *why)
{
    if (note)
        lb_audit_note(gathering, LB_AUDIT_RESTART_MISSING, (lb_audit_where){NULL, NULL, NULL, 0},
                      "%s: nothing in it is named so; %s", what, why);
    else
        lb_audit_find(gathering, LB_AUDIT_RESTART_MISSING, (lb_audit_where){NULL, NULL, NULL, 0},
                      "%s: nothing in it is named so; %s", what, why);
}

void lb_audit_restart(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    static const struct {
        const char *what, *why;
        named_fn *is;
    } needs[] = {
        {"optimizer slots", "the first update begins with moments of zero", is_optimizer},
        {"the step it stands at", "the schedule and the optimizer's bias correction begin anew", is_step},
        {"the schedule (scheduler)", "the next step has another learning rate", is_schedule},
        {"the sampler's position", "batches that were seen come again; a seed or an epoch says no place in it",
         is_position},
        {"Python's state of random numbers", "shuffling and augmentation by `random` go another way", is_python_state},
        {"NumPy's state of random numbers", "shuffling and augmentation by `numpy.random` go another way",
         is_numpy_state},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (!is_there(inventory, needs[i].is)) tell(gathering, false, needs[i].what, needs[i].why);
    if (!holds_torch_state(inventory))
        tell(gathering, false, "Torch's state of random numbers", "dropout and sampling on the host go another way");
    if (!is_there(inventory, is_device_state))
        tell(gathering, true, "the device's state of random numbers", "on a GPU dropout goes another way");
    if (!is_there(inventory, is_scaler))
        tell(gathering, !is_half(inventory), "the gradient scaler",
             "a run in f16 begins with its first scale and skips steps");
    if (is_narrow(inventory) && !has_scales(inventory))
        lb_audit_find(gathering, LB_AUDIT_RESTART_MISSING, (lb_audit_where){NULL, NULL, NULL, 0},
                      "scale state: weights restored with cold scales are a fresh calibration, no continuation");
}
