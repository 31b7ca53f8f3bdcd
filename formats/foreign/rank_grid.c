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

static void add_axis(place *p, const char *path, size_t start, const char *name, size_t n)
{
    if (p->n == AXES) return;
    axis *a = &p->axes[p->n++];
    *a = (axis){.at = (int32_t)strtol(path + start, NULL, 10), .start = start, .digits = digits_at(path + start)};
    snprintf(a->name, sizeof a->name, "%.*s", (int)n, name);
}

/* "mp_rank_01_002": the second number is the pipeline stage. */
static void add_stage(place *p, const char *path)
{
    const axis *last = &p->axes[p->n - 1];
    const size_t behind = last->start + last->digits;
    if (strcmp(last->name, "mp_rank") == 0 && path[behind] == '_' && digits_at(path + behind + 1) == 3)
        add_axis(p, path, behind + 1, "pp_rank", 7);
}

/* The axis whose number begins at `start`, by the word before it. */
static void find_axis(place *p, const char *path, size_t start)
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
        add_axis(p, path, start, name, n);
        add_stage(p, path);
    } else if (n == 5 && strncmp(name, "model", 5) == 0 && strncmp(path + word - (word ? 1 : 0), "-model", 6) == 0 &&
               strstr(path, "layer_")) {
        add_axis(p, path, start, "mp_rank", 7);
    } else if (strncmp(path + start + digits_at(path + start), "-of-", 4) == 0) {
        add_axis(p, path, start, "-of-", 4);
    }
}

static place place_of(const char *path)
{
    place p = {.n = 0};
    size_t to = 0;
    for (size_t i = 0; path[i];) {
        const size_t n = !i || !isdigit((unsigned char)path[i - 1]) ? digits_at(path + i) : 0;
        bool taken = false;
        for (int a = 0; a < p.n; a++) taken |= p.axes[a].start == i;
        if (n && !taken) find_axis(&p, path, i);
        for (int a = 0; a < p.n; a++) taken |= p.axes[a].start == i;
        if (taken && to + 2 < PATTERN) p.pattern[to++] = '#';
        if (!taken && to + 2 < PATTERN) p.pattern[to++] = path[i];
        i += taken ? n : 1;
    }
    p.pattern[to] = '\0';
    return p;
}

/* ---- all axes ---------------------------------------------------------------------------------------------------- */

static void note_size(sizes *s, const char *name, int32_t size)
{
    int i = 0;
    while (i < s->n && strcmp(s->rows[i].name, name) != 0) i++;
    if (i == s->n) {
        if (s->n == (int)(sizeof s->rows / sizeof *s->rows)) return;
        snprintf(s->rows[s->n++].name, NAME, "%s", name);
        s->rows[i].size = 0;
    }
    if (size > s->rows[i].size) s->rows[i].size = size;
}

static int32_t size_of(const sizes *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->rows[i].name, name) == 0) return s->rows[i].size;
    return 1;
}

static void note_stated(sizes *s, const lb_checkpoint *c)
{
    static const struct {
        const char *entry, *axis;
    } stated[] = {{"dp_world_size", "dp_rank"}, {"mp_world_size", "mp_rank"}};
    for (uint32_t i = 0; i < c->n_entries; i++)
        for (size_t k = 0; k < sizeof stated / sizeof *stated; k++) {
            const long size = strcmp(c->entries[i].name, stated[k].entry) ? 0 : strtol(c->entries[i].text, NULL, 10);
            if (size > 0 && size <= LARGEST_GRID) note_size(s, stated[k].axis, (int32_t)size);
        }
}

static sizes sizes_of(const lb_checkpoint *c)
{
    sizes s = {.n = 0};
    for (uint32_t i = 0; i < c->n_files; i++) {
        const place p = place_of(c->files[i].path);
        for (int a = 0; a < p.n; a++) note_size(&s, p.axes[a].name, p.axes[a].at + 1);
    }
    note_stated(&s, c);
    return s;
}

static bool is_minor(const axis *a)
{
    return strcmp(a->name, "mp_rank") == 0 || strcmp(a->name, "tp_rank") == 0;
}

/* One number for the place: of what is not tensor-parallel first. */
static int32_t folded(const place *p, const sizes *s)
{
    int64_t rank = 0;
    for (int minor = 0; minor < 2; minor++)
        for (int a = 0; a < p->n; a++)
            if (is_minor(&p->axes[a]) == (minor == 1)) {
                rank = rank * size_of(s, p->axes[a].name) + p->axes[a].at;
                if (rank > INT32_MAX / LARGEST_GRID) return -1;
            }
    return (int32_t)rank;
}

long lb_rank_grid_layer(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strncmp(name, "layer_", 6) == 0 && strstr(name, "-model_") ? strtol(name + 6, NULL, 10) : -1;
}

bool lb_rank_grid_place(lb_checkpoint *c)
{
    const sizes s = sizes_of(c);
    char **patterns = (char **)calloc(c->n_files + 1u, sizeof *patterns);
    bool made = patterns != NULL;
    for (uint32_t i = 0; made && i < c->n_files; i++) {
        const place p = place_of(c->files[i].path);
        lb_checkpoint_file *f = &c->files[i];
        patterns[i] = strdup(p.pattern);
        made = patterns[i] != NULL;
        f->stage = -1, f->kind = i;
        for (uint32_t k = 0; made && k < i && f->kind == i; k++)
            if (strcmp(patterns[k], patterns[i]) == 0) f->kind = c->files[k].kind;
        for (int a = 0; a < p.n; a++)
            if (strcmp(p.axes[a].name, "pp_rank") == 0) f->stage = p.axes[a].at;
        if (p.n > 1 || (p.n == 1 && f->rank < 0)) f->rank = folded(&p, &s);
    }
    for (uint32_t i = 0; patterns && i < c->n_files; i++) free(patterns[i]);
    free(patterns);
    return made;
}

/* ---- what is absent ---------------------------------------------------------------------------------------------- */

/* The path with different numbers on its axes, as wide as they were. */
static void path_at(const place *p, const char *path, char *to, size_t room)
{
    size_t n = 0, from = 0;
    for (int a = 0; a < p->n && n < room; a++) {
        n += (size_t)snprintf(to + n, room - n, "%.*s%0*d", (int)(p->axes[a].start - from), path + from,
                              (int)p->axes[a].digits, p->axes[a].at);
        from = p->axes[a].start + p->axes[a].digits;
    }
    if (n < room) snprintf(to + n, room - n, "%s", path + from);
}

static bool has_file(const lb_checkpoint *c, const char *path)
{
    for (uint32_t i = 0; i < c->n_files; i++)
        if (strcmp(c->files[i].path, path) == 0) return true;
    for (uint32_t i = 0; i < c->n_faults; i++)
        if (c->faults[i].file && strcmp(c->faults[i].file, path) == 0) return true;
    return false;
}

/* A kind of one file, where no program is known that would write more of it, is what one rank writes for all. */
static bool may_be_alone(const lb_checkpoint *c, uint32_t file, const place *p)
{
    static const char *const known[] = {"mp_rank", "tp_rank", "pp_rank", "dp_rank"};
    for (int a = 0; a < p->n; a++)
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (strcmp(p->axes[a].name, known[k]) == 0) return false;
    for (uint32_t i = file + 1; i < c->n_files; i++)
        if (c->files[i].kind == file) return false;
    return true;
}

void lb_rank_grid_absent(const lb_checkpoint *c, lb_rank_grid_tell *tell, void *context)
{
    const sizes s = sizes_of(c);
    for (uint32_t i = 0; i < c->n_files; i++) {
        const char *path = c->files[i].path;
        place p = place_of(path);
        int64_t cells = 1;
        bool of = false;
        for (int a = 0; a < p.n; a++) {
            cells *= size_of(&s, p.axes[a].name);
            of |= strcmp(p.axes[a].name, "-of-") == 0;
            if (cells > LARGEST_GRID) break;
        }
        if (c->files[i].kind != i || of || !p.n || cells > LARGEST_GRID || may_be_alone(c, i, &p)) continue;
        for (int64_t cell = 0, told = 0; cell < cells && told < MOST_TOLD; cell++) {
            char absent[PATTERN];
            int64_t rest = cell;
            for (int a = p.n - 1; a >= 0; a--) {
                p.axes[a].at = (int32_t)(rest % size_of(&s, p.axes[a].name));
                rest /= size_of(&s, p.axes[a].name);
            }
            path_at(&p, path, absent, sizeof absent);
            if (has_file(c, absent)) continue;
            tell(context, absent, p.n > 1 ? folded(&p, &s) : p.axes[0].at, path);
            told++;
        }
    }
}
