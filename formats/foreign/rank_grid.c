/* See rank_grid.h. Names are those that these programs give:
 *
 *   DeepSpeed    mp_rank_MM_model_states.pt, [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt (D: the data-parallel
 *                place, whatever it is called), layer_LL-model_MM-model_states.pt
 *                (deepspeed/runtime/engine.py and pipe/module.py)
 *   Megatron     mp_rank_TT/… and mp_rank_TT_PPP/…: tensor, then pipeline      (megatron/training/checkpointing.py)
 *   others       tp_rank_T_pp_rank_P, rank-R, X-NNNNN-of-MMMMM
 *
 * Layers and experts are no axes: a stage holds those that it holds. */
#include "foreign/rank_grid.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AXES = 4, NAME = 24, PATTERN = 512, LARGEST_GRID = 4096, MOST_TOLD = 64 };

typedef struct axis {
    char name[NAME];
    int32_t at;
    size_t start, digits; /* where its number stands in the path */
} axis;

typedef struct place {
    axis axes[AXES];
    int n;
    char pattern[PATTERN]; /* the path with "#" for each number of an axis */
} place;

typedef struct grid_size {
    char name[NAME];
    int32_t size;
} grid_size;

typedef struct sizes {
    grid_size rows[32];
    int n;
} sizes;

/* ---- one path ---------------------------------------------------------------------------------------------------- */

static bool is_name(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

static size_t digits_at(const char *text)
{
    size_t n = 0;
    while (isdigit((unsigned char)text[n])) n++;
    return n > 0 && n < 7 ? n : 0;
}

static void add_axis(place *place, const char *path, size_t start, const char *name, size_t n)
{
    if (place->n == AXES) return;
    axis *a = &place->axes[place->n++];
    *a = (axis){.at = (int32_t)strtol(path + start, NULL, 10), .start = start, .digits = digits_at(path + start)};
    snprintf(a->name, sizeof a->name, "%.*s", (int)n, name);
}

/* "mp_rank_01_002": the second number is the pipeline stage. */
static void add_stage(place *place, const char *path)
{
    const axis *last = &place->axes[place->n - 1];
    const size_t behind = last->start + last->digits;
    if (strcmp(last->name, "mp_rank") == 0 && path[behind] == '_' && digits_at(path + behind + 1) == 3)
        add_axis(place, path, behind + 1, "pp_rank", 7);
}

/* The axis whose number begins at `start`, by the word before it. */
static void find_axis(place *place, const char *path, size_t start)
{
    size_t word = start, end = start;
    if (end && (path[end - 1] == '_' || path[end - 1] == '-')) end--;
    for (word = end; word && is_name(path[word - 1]);) word--;
    while (word < end && path[word] == '_') word++;
    const char *name = path + word;
    size_t n = end - word;
    if (n >= 4 && strncmp(path + end - 4, "rank", 4) == 0) {
        const bool zero = n >= 12 && strncmp(path + end - 12, "zero_pp_rank", 12) == 0;
        if (zero) name = "dp_rank", n = 7;
        add_axis(place, path, start, name, n);
        add_stage(place, path);
    } else if (n == 5 && strncmp(name, "model", 5) == 0 && strncmp(path + word - (word ? 1 : 0), "-model", 6) == 0 &&
               strstr(path, "layer_")) {
        add_axis(place, path, start, "mp_rank", 7);
    } else if (strncmp(path + start + digits_at(path + start), "-of-", 4) == 0) {
        add_axis(place, path, start, "-of-", 4);
    }
}

static place place_of(const char *path)
{
    place found = {.n = 0};
    size_t to = 0;
    for (size_t i = 0; path[i];) {
        const size_t n = !i || !isdigit((unsigned char)path[i - 1]) ? digits_at(path + i) : 0;
        bool taken = false;
        for (int a = 0; a < found.n; a++) taken |= found.axes[a].start == i;
        if (n && !taken) find_axis(&found, path, i);
        for (int a = 0; a < found.n; a++) taken |= found.axes[a].start == i;
        if (taken && to + 2 < PATTERN) found.pattern[to++] = '#';
        if (!taken && to + 2 < PATTERN) found.pattern[to++] = path[i];
        i += taken ? n : 1;
    }
    found.pattern[to] = '\0';
    return found;
}

/* ---- all axes ---------------------------------------------------------------------------------------------------- */

static void note_size(sizes *sizes, const char *name, int32_t size)
{
    int i = 0;
    while (i < sizes->n && strcmp(sizes->rows[i].name, name) != 0) i++;
    if (i == sizes->n) {
        if (sizes->n == (int)(sizeof sizes->rows / sizeof *sizes->rows)) return;
        snprintf(sizes->rows[sizes->n++].name, NAME, "%s", name);
        sizes->rows[i].size = 0;
    }
    if (size > sizes->rows[i].size) sizes->rows[i].size = size;
}

static int32_t size_of(const sizes *sizes, const char *name)
{
    for (int i = 0; i < sizes->n; i++)
        if (strcmp(sizes->rows[i].name, name) == 0) return sizes->rows[i].size;
    return 1;
}

static void note_stated(sizes *sizes, const lb_checkpoint *checkpoint)
{
    static const struct {
        const char *entry, *axis;
    } stated[] = {{"dp_world_size", "dp_rank"}, {"mp_world_size", "mp_rank"}};
    for (uint32_t i = 0; i < checkpoint->n_entries; i++)
        for (size_t k = 0; k < sizeof stated / sizeof *stated; k++) {
            const long size = strcmp(checkpoint->entries[i].name, stated[k].entry)
                                  ? 0
                                  : strtol(checkpoint->entries[i].text, NULL, 10);
            if (size > 0 && size <= LARGEST_GRID) note_size(sizes, stated[k].axis, (int32_t)size);
        }
}

static sizes sizes_of(const lb_checkpoint *checkpoint)
{
    sizes s = {.n = 0};
    for (uint32_t i = 0; i < checkpoint->n_files; i++) {
        const place place = place_of(checkpoint->files[i].path);
        for (int a = 0; a < place.n; a++) note_size(&s, place.axes[a].name, place.axes[a].at + 1);
    }
    note_stated(&s, checkpoint);
    return s;
}

static bool is_minor(const axis *axis)
{
    return strcmp(axis->name, "mp_rank") == 0 || strcmp(axis->name, "tp_rank") == 0;
}

/* One number for the place: of what is not tensor-parallel first. */
static int32_t folded(const place *place, const sizes *sizes)
{
    int64_t rank = 0;
    for (int minor = 0; minor < 2; minor++)
        for (int a = 0; a < place->n; a++)
            if (is_minor(&place->axes[a]) == (minor == 1)) {
                rank = rank * size_of(sizes, place->axes[a].name) + place->axes[a].at;
                if (rank > INT32_MAX / LARGEST_GRID) return -1;
            }
    return (int32_t)rank;
}

long lb_rank_grid_layer(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strncmp(name, "layer_", 6) == 0 && strstr(name, "-model_") ? strtol(name + 6, NULL, 10) : -1;
}

bool lb_rank_grid_place(lb_checkpoint *checkpoint)
{
    const sizes sizes = sizes_of(checkpoint);
    char **patterns = (char **)calloc(checkpoint->n_files + 1u, sizeof *patterns);
    bool made = patterns != NULL;
    for (uint32_t i = 0; made && i < checkpoint->n_files; i++) {
        const place place = place_of(checkpoint->files[i].path);
        lb_checkpoint_file *file = &checkpoint->files[i];
        patterns[i] = strdup(place.pattern);
        made = patterns[i] != NULL;
        file->stage = -1, file->kind = i;
        for (uint32_t k = 0; made && k < i && file->kind == i; k++)
            if (strcmp(patterns[k], patterns[i]) == 0) file->kind = checkpoint->files[k].kind;
        for (int a = 0; a < place.n; a++)
            if (strcmp(place.axes[a].name, "pp_rank") == 0) file->stage = place.axes[a].at;
        if (place.n > 1 || (place.n == 1 && file->rank < 0)) file->rank = folded(&place, &sizes);
    }
    for (uint32_t i = 0; patterns && i < checkpoint->n_files; i++) free(patterns[i]);
    free(patterns);
    return made;
}

/* ---- what is absent ---------------------------------------------------------------------------------------------- */

/* The path with different numbers on its axes, as wide as they were. */
static void path_at(const place *place, const char *path, char *to, size_t room)
{
    size_t n = 0, from = 0;
    for (int a = 0; a < place->n && n < room; a++) {
        n += (size_t)snprintf(to + n, room - n, "%.*s%0*d", (int)(place->axes[a].start - from), path + from,
                              (int)place->axes[a].digits, place->axes[a].at);
        from = place->axes[a].start + place->axes[a].digits;
    }
    if (n < room) snprintf(to + n, room - n, "%s", path + from);
}

static bool has_file(const lb_checkpoint *checkpoint, const char *path)
{
    for (uint32_t i = 0; i < checkpoint->n_files; i++)
        if (strcmp(checkpoint->files[i].path, path) == 0) return true;
    for (uint32_t i = 0; i < checkpoint->n_faults; i++)
        if (checkpoint->faults[i].file && strcmp(checkpoint->faults[i].file, path) == 0) return true;
    return false;
}

/* A kind of one file, where no program is known that would write more of it, is what one rank writes for all. */
static bool may_be_alone(const lb_checkpoint *checkpoint, uint32_t file, const place *place)
{
    static const char *const known[] = {"mp_rank", "tp_rank", "pp_rank", "dp_rank"};
    for (int a = 0; a < place->n; a++)
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (strcmp(place->axes[a].name, known[k]) == 0) return false;
    for (uint32_t i = file + 1; i < checkpoint->n_files; i++)
        if (checkpoint->files[i].kind == file) return false;
    return true;
}

void lb_rank_grid_absent(const lb_checkpoint *checkpoint, lb_rank_grid_tell *tell, void *context)
{
    const sizes sizes = sizes_of(checkpoint);
    for (uint32_t i = 0; i < checkpoint->n_files; i++) {
        const char *path = checkpoint->files[i].path;
        place place = place_of(path);
        int64_t cells = 1;
        bool of = false;
        for (int a = 0; a < place.n; a++) {
            cells *= size_of(&sizes, place.axes[a].name);
            of |= strcmp(place.axes[a].name, "-of-") == 0;
            if (cells > LARGEST_GRID) break;
        }
        if (checkpoint->files[i].kind != i || of || !place.n || cells > LARGEST_GRID ||
            may_be_alone(checkpoint, i, &place))
            continue;
        for (int64_t cell = 0, told = 0; cell < cells && told < MOST_TOLD; cell++) {
            char absent[PATTERN];
            int64_t rest = cell;
            for (int a = place.n - 1; a >= 0; a--) {
                place.axes[a].at = (int32_t)(rest % size_of(&sizes, place.axes[a].name));
                rest /= size_of(&sizes, place.axes[a].name);
            }
            path_at(&place, path, absent, sizeof absent);
            if (has_file(checkpoint, absent)) continue;
            tell(context, absent, place.n > 1 ? folded(&place, &sizes) : place.axes[0].at, path);
            told++;
        }
    }
}
