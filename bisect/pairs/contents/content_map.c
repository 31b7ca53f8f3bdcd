/* Reading, writing and obeying the table of tensors: see content_map.h. */
#include "contents/content_map.h"

#include "contents/content_transform.h"

#include "base/array.h"
#include <lastbit/input_lines.h>
#include <lastbit/program.h>
#include <lastbit/tensor_map.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the file ---- */

void lb_tensor_map_write_head(FILE *file)
{
    fprintf(
        file,
        "# Tensors of the second side, and what the first side calls them. Lines may be changed, added and removed; "
        "--map FILE reads them.\n");
}

void lb_tensor_map_write(FILE *file, const char *second, const char *first, const char *relation, bool comment)
{
    fprintf(file, "%s%s = %s  # %s\n", comment || !*first ? "# " : "", second, first,
            *first ? relation : "no tensor of the first side has its numbers");
}

static char *trimmed(char *text)
{
    while (*text == ' ' || *text == '\t') text++;
    size_t n = strlen(text);
    while (n && strchr(" \t\r\n", text[n - 1])) text[--n] = '\0';
    return text;
}

/* A '#' in a name is none: a comment begins a line, or stands behind a space. */
static void cut_comment(char *line)
{
    for (char *at = line; *at; at++)
        if (*at == '#' && (at == line || at[-1] == ' ' || at[-1] == '\t')) {
            *at = '\0';
            return;
        }
}

static bool add_first(lb_content_map_row *row, const char *name)
{
    char **more = lb_array_grow(row->first, row->n_first, sizeof *more), *copy = strdup(name);
    if (more) row->first = more;
    if (!more || !copy) return free(copy), false;
    row->first[row->n_first++] = copy;
    return true;
}

static lb_status read_row(lb_content_map *map, char *text, uint64_t line, lb_err *err)
{
    char *equals = strstr(text, " = ");
    if (!equals && strlen(text) > 2 && !strcmp(text + strlen(text) - 2, " =")) equals = text + strlen(text) - 2;
    if (!equals)
        return lb_fail(err, LB_ERR_CORRUPT, "--map %s, line %llu: expected SECOND = FIRST, found '%.80s'", map->path,
                       (unsigned long long)line, text);
    lb_content_map_row *more = lb_array_grow(map->list, map->n, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    map->list = more;
    lb_content_map_row *row = &map->list[map->n++];
    char *rest = equals[2] ? equals + 3 : equals + 2;
    *equals = '\0';
    *row = (lb_content_map_row){.second = strdup(trimmed(text)), .line = line};
    if (!row->second) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i + 1 < map->n; i++)
        if (!strcmp(map->list[i].second, row->second))
            return lb_fail(err, LB_ERR_CORRUPT, "--map %s, line %llu: line %llu has %.100s, too: remove one of them",
                           map->path, (unsigned long long)line, (unsigned long long)map->list[i].line, row->second);
    while (rest) {
        char *plus = strstr(rest, " + ");
        if (plus) *plus = '\0';
        char *name = trimmed(rest);
        const bool plus_alone = *name == '+' && (name[1] == ' ' || !name[1]);
        if (plus_alone) *name = '\0';
        if (*name && !add_first(row, name)) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        if (!*name && (plus || plus_alone || row->n_first))
            return lb_fail(err, LB_ERR_CORRUPT, "--map %s, line %llu: a name is missing beside '+'", map->path,
                           (unsigned long long)line);
        rest = plus ? plus + 3 : NULL;
    }
    return LB_OK;
}

lb_status lb_content_map_read(const char *path, lb_content_map *map, lb_err *err)
{
    lb_input_lines lines;
    *map = (lb_content_map){.path = strdup(path)};
    if (!map->path) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = lb_input_lines_open(&lines, path, LB_INPUT_LINES_SHORT, err);
    if (status != LB_OK) {
        lb_content_map_release(map);
        return status;
    }
    while (status == LB_OK && lb_input_lines_next(&lines)) {
        cut_comment(lines.text);
        char *text = trimmed(lines.text);
        if (*text) status = read_row(map, text, lines.number, err);
    }
    const bool empty = !lines.number;
    const lb_status ended = lb_input_lines_close(&lines, status == LB_OK ? err : NULL);
    if (status == LB_OK) status = ended;
    if (status == LB_OK && empty) status = lb_fail(err, LB_ERR_CORRUPT, "--map %s: the file is empty", path);
    if (status != LB_OK) lb_content_map_release(map);
    return status;
}

void lb_content_map_release(lb_content_map *map)
{
    for (uint32_t i = 0; i < map->n; i++) {
        for (uint32_t k = 0; k < map->list[i].n_first; k++) free(map->list[i].first[k]);
        free(map->list[i].first), free(map->list[i].second);
    }
    free(map->list), free(map->path);
    *map = (lb_content_map){0};
}

/* ---- obeying it ---- */

typedef struct user {
    const lb_content_map *map;
    const lb_content_tensor *a, *b;
    uint32_t n_a, n_b;
    lb_contents *out;
    lb_content_disagreement *list;
    uint32_t n;
    bool turned; /* the first side's names are B's */
} user;

static uint32_t named(const lb_content_tensor *list, uint32_t n, const char *name, uint32_t from)
{
    for (uint32_t i = from; i < n; i++)
        if (!strcmp(list[i].name, name)) return i;
    return LB_NONE;
}

static bool is_of(const lb_content_tensor *list, uint32_t n, const lb_content_map_row *row, bool second)
{
    if (second) return named(list, n, row->second, 0) != LB_NONE;
    for (uint32_t k = 0; k < row->n_first; k++)
        if (named(list, n, row->first[k], 0) == LB_NONE) return false;
    return row->n_first > 0;
}

/* Do more lines name the sides the other way round? */
static bool are_turned(const user *u)
{
    uint32_t straight = 0, turned = 0;
    for (uint32_t i = 0; i < u->map->n; i++) {
        const lb_content_map_row *row = &u->map->list[i];
        straight += is_of(u->b, u->n_b, row, true) && (is_of(u->a, u->n_a, row, false) || !row->n_first);
        turned += is_of(u->a, u->n_a, row, true) && (is_of(u->b, u->n_b, row, false) || !row->n_first);
    }
    return turned > straight;
}

static lb_status refuse_name(const user *u, const lb_content_map_row *row, const char *name, bool of_b, lb_err *err)
{
    return lb_fail(err, LB_ERR_INVALID,
                   "--map %s, line %llu: the %s side has no tensor '%.200s': correct the name, or remove the line",
                   u->map->path, (unsigned long long)row->line, of_b != u->turned ? "second" : "first", name);
}

static lb_status refuse_size(const user *u, const lb_content_map_row *row, const char *name, int64_t all, int64_t held,
                             lb_err *err)
{
    return lb_fail(err, LB_ERR_INVALID,
                   "--map %s, line %llu: %.200s has %lld numbers, and what it is to be made of has %lld, "
                   "and its numbers are not among these: "
                   "name every tensor that it is made of, joined by ' + ', or remove the line",
                   u->map->path, (unsigned long long)row->line, name, (long long)all, (long long)held);
}

static bool is_made_of(const user *u, const lb_content *c, const uint32_t *list, uint32_t n)
{
    uint32_t met = 0;
    for (uint32_t k = 0; k < n; k++) {
        bool there = false;
        for (uint32_t i = 0; i < c->n && !there; i++) there = u->out->runs[c->first + i].tensor == list[k];
        met += there;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        bool listed = false;
        for (uint32_t k = 0; k < n && !listed; k++) listed = u->out->runs[c->first + i].tensor == list[k];
        if (!listed) return false;
    }
    return n && met == n;
}

static lb_status add_run(user *u, lb_content_run run, lb_err *err)
{
    lb_content_run *more = lb_array_grow(u->out->runs, u->out->n_runs, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a table of tensors");
    u->out->runs = more, u->out->runs[u->out->n_runs++] = run;
    return LB_OK;
}

/* Where the numbers of these tensors alone are B's. */
static lb_status find_among(user *u, uint32_t b, const uint32_t *list, uint32_t n, bool *found, lb_err *err)
{
    lb_content_tensor *some = malloc((n + 1) * sizeof *some);
    lb_contents contents;
    if (!some) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a table of tensors");
    for (uint32_t k = 0; k < n; k++) some[k] = u->a[list[k]];
    lb_status status = lb_contents_match(some, n, &u->b[b], 1, &contents, err);
    free(some);
    if (status != LB_OK) return status;
    lb_content c = contents.list[0];
    *found = c.relation != LB_CONTENT_NONE && c.relation != LB_CONTENT_NAMED;
    const uint32_t first = u->out->n_runs;
    for (uint32_t i = 0; i < c.n && *found && status == LB_OK; i++) {
        lb_content_run run = contents.runs[c.first + i];
        run.tensor = list[run.tensor];
        status = add_run(u, run, err);
    }
    if (*found && status == LB_OK) {
        c.first = first, c.tensor = u->out->runs[first].tensor;
        u->out->list[b] = c;
    }
    lb_contents_release(&contents);
    return status;
}

static double *numbers(const lb_tensor *t)
{
    double *x = t->data ? malloc((size_t)lb_layout_numel(&t->layout) * sizeof *x + 1) : NULL;
    int64_t at = 0;
    for (lb_rows r = lb_rows_of(&t->layout); x && lb_rows_next(&r); at += r.count)
        lb_load_f64_strided(x + at, t->dtype, (const char *)t->data + r.offset * (int64_t)(lb_dtype_bits(t->dtype) / 8),
                            (ptrdiff_t)r.stride, (size_t)r.count);
    return x;
}

static double room_of(lb_dtype dtype)
{
    return lb_dtype_is_float(dtype) ? 1.5 * lb_dtype_unit_roundoff(dtype) : 0;
}

/* The elements from `to` on against all of `a`, as their dtypes hold them. */
static lb_status compare(user *u, const lb_content_map_row *row, uint32_t a, uint32_t b, int64_t to, lb_err *err)
{
    const lb_tensor *s = &u->a[a].tensor, *t = &u->b[b].tensor;
    if (!s->data || !t->data || lb_dtype_bits(s->dtype) < 8 || lb_dtype_bits(t->dtype) < 8) return LB_OK;
    double *x = numbers(s), *y = numbers(t);
    lb_content_disagreement d = {row->line, a, b, {-1, -1}, 0, {0, 0}};
    const double room = fmax(room_of(s->dtype), room_of(t->dtype));
    for (int64_t i = 0; x && y && i < lb_layout_numel(&s->layout); i++) {
        if (fabs(x[i] - y[to + i]) <= room * fmax(fabs(x[i]), fabs(y[to + i])) || x[i] == y[to + i]) continue;
        if (!d.apart++) d.at[0] = i, d.at[1] = to + i, d.is[0] = x[i], d.is[1] = y[to + i];
    }
    const bool room_left = x && y;
    free(x), free(y);
    lb_content_disagreement *more = room_left && d.apart ? lb_array_grow(u->list, u->n, sizeof *more) : u->list;
    if (!room_left || (d.apart && !more)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a table of tensors");
    if (d.apart) u->list = more, u->list[u->n++] = d;
    return LB_OK;
}

/* Elements of B's tensor behind those that the row's earlier ones gave. */
static lb_status stand_beside(user *u, const lb_content_map_row *row, uint32_t b, const uint32_t *list, uint32_t n,
                              lb_err *err)
{
    const int64_t all = lb_layout_numel(&u->b[b].tensor.layout);
    int64_t held = 0;
    for (uint32_t k = 0; k < n; k++) held += lb_layout_numel(&u->a[list[k]].tensor.layout);
    if (held != all) return refuse_size(u, row, u->b[b].name, all, held, err);
    const uint32_t first = u->out->n_runs;
    held = 0;
    for (uint32_t k = 0; k < n; k++) {
        const int64_t each = lb_layout_numel(&u->a[list[k]].tensor.layout);
        LB_TRY(add_run(u, (lb_content_run){list[k], 0, 1, held, 1, each}, err));
        LB_TRY(compare(u, row, list[k], b, held, err));
        held += each;
    }
    u->out->list[b] = (lb_content){LB_CONTENT_NAMED, false, list[0], first, n, 0, all, false};
    return LB_OK;
}

static lb_status obey(user *u, const lb_content_map_row *row, uint32_t b, const uint32_t *list, uint32_t n, lb_err *err)
{
    bool found = false;
    if (!n) {
        u->out->list[b] = (lb_content){.tensor = LB_NONE, .all = u->out->list[b].all};
        return LB_OK;
    }
    if (is_made_of(u, &u->out->list[b], list, n)) return LB_OK;
    LB_TRY(find_among(u, b, list, n, &found, err));
    return found ? LB_OK : stand_beside(u, row, b, list, n, err);
}

/* Of several tensors by one name (ranks, a state and its parameter) each is meant. */
static lb_status obey_row(user *u, const lb_content_map_row *row, lb_err *err)
{
    uint32_t *list = malloc((row->n_first + 1) * sizeof *list), b;
    if (!list) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a table of tensors");
    lb_status status = LB_OK;
    for (uint32_t k = 0; k < row->n_first && status == LB_OK; k++)
        if ((list[k] = named(u->a, u->n_a, row->first[k], 0)) == LB_NONE)
            status = refuse_name(u, row, row->first[k], false, err);
    b = named(u->b, u->n_b, row->second, 0);
    if (status == LB_OK && b == LB_NONE) status = refuse_name(u, row, row->second, true, err);
    for (; status == LB_OK && b != LB_NONE; b = named(u->b, u->n_b, row->second, b + 1))
        status = obey(u, row, b, list, row->n_first, err);
    free(list);
    return status;
}

/* The same question as the other way round: do these parts of B make up all of A's tensor? */
static lb_status check_whole(const user *u, const lb_content_map_row *row, uint32_t a, lb_err *err)
{
    int64_t held = 0;
    const int64_t all = lb_layout_numel(&u->a[a].tensor.layout);
    lb_content_tensor *parts = malloc((row->n_first + 1) * sizeof *parts);
    lb_contents contents;
    if (!parts) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a table of tensors");
    for (uint32_t k = 0; k < row->n_first; k++) {
        parts[k] = u->b[named(u->b, u->n_b, row->first[k], 0)];
        held += lb_layout_numel(&parts[k].tensor.layout);
    }
    lb_status status = held == all ? LB_OK : lb_contents_match(parts, row->n_first, &u->a[a], 1, &contents, err);
    if (held != all && status == LB_OK) {
        const lb_content_relation found = contents.list[0].relation;
        lb_contents_release(&contents);
        if (found == LB_CONTENT_NONE || found == LB_CONTENT_NAMED)
            status = refuse_size(u, row, u->a[a].name, all, held, err);
    }
    free(parts);
    return status;
}

/* A row for each tensor of B that is a part of A's. */
static lb_status obey_turned(user *u, const lb_content_map_row *row, lb_err *err)
{
    const uint32_t a = named(u->a, u->n_a, row->second, 0);
    if (a == LB_NONE) return refuse_name(u, row, row->second, false, err);
    for (uint32_t k = 0; k < row->n_first; k++) {
        const uint32_t b = named(u->b, u->n_b, row->first[k], 0);
        if (b == LB_NONE) return refuse_name(u, row, row->first[k], true, err);
        LB_TRY(obey(u, row, b, &a, 1, err));
    }
    return row->n_first ? check_whole(u, row, a, err) : LB_OK;
}

lb_status lb_content_map_apply(const lb_content_map *map, const lb_content_tensor *a, uint32_t n_a,
                               const lb_content_tensor *b, uint32_t n_b, lb_contents *contents,
                               lb_content_disagreement **disagreements, uint32_t *n, lb_err *err)
{
    user u = {.map = map, .a = a, .b = b, .n_a = n_a, .n_b = n_b, .out = contents};
    lb_status status = LB_OK;
    *disagreements = NULL, *n = 0;
    u.turned = are_turned(&u);
    for (uint32_t i = 0; i < map->n && status == LB_OK; i++)
        status = u.turned ? obey_turned(&u, &map->list[i], err) : obey_row(&u, &map->list[i], err);
    if (status == LB_OK)
        *disagreements = u.list, *n = u.n;
    else
        free(u.list);
    return status;
}

void lb_content_map_disagreement_text(const lb_content_map *map, const lb_content_disagreement *d,
                                      const lb_content_tensor *a, const lb_content_tensor *b, char text[600])
{
    snprintf(text, 600,
             "--map %.120s, line %llu: the numbers of %.120s are not those of %.120s: "
             "element %lld is %.9g, and element %lld there is %.9g (%lld disagree); it was taken as the line says",
             map->path, (unsigned long long)d->line, b[d->b].name, a[d->a].name, (long long)d->at[1], d->is[1],
             (long long)d->at[0], d->is[0], (long long)d->apart);
}
