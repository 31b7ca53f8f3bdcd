/* Sources of a step and their likes on the other side: see step_sources.h. */
#include "sources/step_sources.h"
#include "pair/op_kind.h"

#include "contents/content_map.h"
#include "contents/content_transform.h"
#include "sources/merged_adapters.h"
#include "sources/near_sources.h"
#include "shadow/shadow_numbers.h"

#include "base/array.h"
#include "program/state_name.h"
#include <lastbit/program.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

lb_step_source_number lb_step_source_number_in(const char *name)
{
    for (const char *word = name; *word;) {
        const size_t n = strcspn(word, ".");
        if (n && strspn(word, "0123456789") == n)
            return (lb_step_source_number){(size_t)(word - name), n, strtoll(word, NULL, 10)};
        word += n + (word[n] == '.');
    }
    return (lb_step_source_number){0};
}

/* A state that has taken something in: not all of its numbers are zero. */
static bool is_used_state(const lb_step_sources *sources, uint32_t row)
{
    const lb_tensor *t = &sources->tensors[row].tensor;
    if (!lb_step_source_is_state(&sources->list[row]) || !t->data || lb_layout_numel(&t->layout) < 2) return false;
    double *x = lb_shadow_numbers_copy(t);
    bool used = false;
    for (int64_t i = 0; x && i < lb_layout_numel(&t->layout) && !used; i++) used = x[i] != 0;
    free(x);
    return used;
}

static bool is_midway(const lb_program *program, const lb_step_sources *sources)
{
    bool learns = false, midway = program->step > 0;
    for (uint32_t i = 0; i < program->n_ops && !learns; i++) learns = program->ops[i].phase == LB_PHASE_BACKWARD;
    for (uint32_t i = 0; i < sources->n && learns && !midway; i++) midway = is_used_state(sources, i);
    return learns && midway;
}

lb_status lb_step_sources_list(const lb_program_view *view, lb_step_sources *out, lb_err *err)
{
    const lb_program *program = view->program;
    *out = (lb_step_sources){.list = malloc((program->n_ops + 1) * sizeof *out->list),
                             .tensors = calloc(program->n_ops + 1, sizeof *out->tensors),
                             .row_of = malloc((program->n_values + 1) * sizeof *out->row_of)};
    if (!out->list || !out->tensors || !out->row_of) {
        lb_step_sources_release(out);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for the sources of %u ops", program->n_ops);
    }
    memset(out->row_of, 0xFF, (program->n_values + 1) * sizeof *out->row_of);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t value =
            lb_op_is_source(program, &program->ops[i]) ? lb_op_results(program, &program->ops[i])[0] : LB_NONE;
        if (value == LB_NONE) continue;
        lb_content_tensor *t = &out->tensors[out->n];
        t->name = lb_program_text(program, program->values[value].name), t->tensor.dtype = program->values[value].dtype;
        if (lb_program_view_value(view, value, &t->tensor, NULL) != LB_OK)
            t->tensor = (lb_tensor){NULL, program->values[value].dtype, program->values[value].layout};
        lb_program_view_part_shape(view, value, &t->tensor);
        const bool learnt = program->values[value].flags & LB_VALUE_PARAMETER || lb_state_name_is(t->name);
        const bool kept = lb_op_kind_is_memory_of_update(program, &program->ops[i]);
        out->row_of[value] = out->n;
        out->list[out->n++] = (lb_step_source){i,
                                               value,
                                               t->name,
                                               program->values[value].storage,
                                               program->values[value].source,
                                               learnt,
                                               kept,
                                               lb_program_view_part_of(view, i),
                                               program->values[value].logical};
    }
    out->midway = is_midway(program, out);
    return LB_OK;
}

void lb_step_sources_release(lb_step_sources *sources)
{
    free(sources->list), free(sources->tensors), free(sources->row_of);
    *sources = (lb_step_sources){0};
}

/* ---- from step to step ---- */

#define NO_STORAGE INT64_MIN

static int64_t storage_of(const lb_step_source *source)
{
    return source->kept ? source->storage : NO_STORAGE;
}

typedef struct lb_remembered {
    char *name;           /* of B; "": none */
    int64_t storage;      /* its memory, which may have a name later; NO_STORAGE: not known again by it */
    uint32_t part;        /* its rank */
    char **names;         /* of A's tensors that the runs name */
    uint32_t *parts;      /* and their ranks */
    int64_t *storages;    /* and memories */
    lb_content content;   /* its runs begin at 0 */
    lb_content_run *runs; /* tensor: row of names */
    uint32_t n_names;
} lb_remembered;

void lb_source_memory_release(lb_source_memory *memory)
{
    for (uint32_t i = 0; i < memory->n; i++) {
        lb_remembered *remembered = &memory->list[i];
        for (uint32_t k = 0; k < remembered->n_names; k++) free(remembered->names[k]);
        free(remembered->name), free(remembered->names), free(remembered->parts), free(remembered->storages),
            free(remembered->runs);
    }
    for (uint32_t i = 0; i < memory->n_said; i++) free(memory->said[i]);
    free(memory->said), memory->said = NULL, memory->n_said = 0;
    free(memory->list), free(memory->left), free(memory->left_runs);
    memory->list = NULL, memory->n = 0;
    memory->left = NULL, memory->left_runs = NULL, memory->n_left = memory->n_left_runs = 0;
}

static uint32_t name_row(lb_remembered *remembered, const lb_step_source *of)
{
    for (uint32_t k = 0; k < remembered->n_names; k++)
        if (!strcmp(remembered->names[k], of->name) && remembered->parts[k] == of->part &&
            remembered->storages[k] == storage_of(of))
            return k;
    uint32_t *parts = lb_array_grow(remembered->parts, remembered->n_names, sizeof *parts);
    if (!parts) return LB_NONE;
    remembered->parts = parts, remembered->parts[remembered->n_names] = of->part;
    int64_t *storages = lb_array_grow(remembered->storages, remembered->n_names, sizeof *storages);
    if (!storages) return LB_NONE;
    remembered->storages = storages, remembered->storages[remembered->n_names] = storage_of(of);
    char **more = lb_array_grow(remembered->names, remembered->n_names, sizeof *more), *copy = strdup(of->name);
    if (more) remembered->names = more;
    if (!more || !copy) {
        free(copy);
        return LB_NONE;
    }
    remembered->names[remembered->n_names] = copy;
    return remembered->n_names++;
}

/* What has no name is known again by its memory, if the update alone reads that. */
static bool are_known(const lb_step_sources *a, const lb_content *content, const lb_content_run *runs)
{
    bool known = true;
    for (uint32_t i = 0; i < content->n; i++) {
        const lb_step_source *source = &a->list[runs[content->first + i].tensor];
        known &= *source->name || source->kept;
    }
    return known;
}

static bool remember(lb_source_memory *memory, const lb_step_sources *a, const lb_step_source *of_b,
                     const lb_content *content, const lb_content_run *runs)
{
    lb_remembered remembered = {.name = strdup(of_b->name),
                                .storage = storage_of(of_b),
                                .part = of_b->part,
                                .content = *content,
                                .runs = malloc((content->n + 1) * sizeof *remembered.runs)};
    lb_remembered *more = lb_array_grow(memory->list, memory->n, sizeof *more);
    if (more) memory->list = more;
    if (!remembered.name || !remembered.runs || !more) return free(remembered.name), free(remembered.runs), false;
    remembered.content.first = 0;
    for (uint32_t i = 0; i < content->n; i++) {
        remembered.runs[i] = runs[content->first + i];
        remembered.runs[i].tensor = name_row(&remembered, &a->list[remembered.runs[i].tensor]);
    }
    memory->list[memory->n++] = remembered;
    return true;
}

/* By its name: of that rank, else of any that an earlier step (the first `before` rows) remembered. */
static const lb_remembered *recall(const lb_source_memory *memory, uint32_t before, const char *name, uint32_t part)
{
    const lb_remembered *found = NULL;
    for (uint32_t i = 0; i < memory->n && *name; i++) {
        if (strcmp(memory->list[i].name, name)) continue;
        if (memory->list[i].part == part) return &memory->list[i];
        if (!found && i < before) found = &memory->list[i];
    }
    return found;
}

/* By its memory. */
static const lb_remembered *recall_memory(const lb_source_memory *memory, uint32_t before, const lb_step_source *source)
{
    for (uint32_t i = 0; i < before && source->kept; i++)
        if (memory->list[i].storage == source->storage && memory->list[i].part == source->part) return &memory->list[i];
    return NULL;
}

/* Of that rank, else of any. */
static uint32_t find_named(const lb_step_sources *sources, const char *prefix, size_t n_prefix, const char *name,
                           uint32_t part)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < sources->n && *name; i++) {
        if (strncmp(sources->list[i].name, prefix, n_prefix) || strcmp(sources->list[i].name + n_prefix, name))
            continue;
        if (sources->list[i].part == part) return i;
        if (found == LB_NONE) found = i;
    }
    return found;
}

static uint32_t find_memory(const lb_step_sources *sources, int64_t storage, uint32_t part)
{
    for (uint32_t i = 0; i < sources->n && storage != NO_STORAGE; i++)
        if (sources->list[i].kept && sources->list[i].storage == storage && sources->list[i].part == part) return i;
    return LB_NONE;
}

bool lb_step_source_is_state(const lb_step_source *source)
{
    return lb_state_name_is(source->name);
}

/* A tensor of that name may have become smaller since. */
static bool lies_within(const lb_content_run *run, const lb_layout *layout)
{
    const int64_t last = run->from + (run->n - 1) * run->from_stride;
    return run->n < 1 || (run->from < lb_layout_numel(layout) && last >= 0 && last < lb_layout_numel(layout));
}

/* Where the elements of this source, by its name ("": its memory), stand now, by where they stood when the window
 * began. False when out of memory. */
static bool apply(const lb_remembered *remembered, const lb_step_sources *a, const char *name, int64_t elements,
                  lb_contents *out, uint32_t row)
{
    const size_t prefix = lb_state_name_before(name);
    const uint32_t first = out->n_runs;
    if (remembered->content.all != elements) return true;
    for (uint32_t i = 0; i < remembered->content.n; i++) {
        lb_content_run run = remembered->runs[i];
        const uint32_t of = run.tensor;
        run.tensor =
            of == LB_NONE ? LB_NONE : find_named(a, name, prefix, remembered->names[of], remembered->parts[of]);
        if (of != LB_NONE && run.tensor == LB_NONE && !prefix)
            run.tensor = find_memory(a, remembered->storages[of], remembered->parts[of]);
        if (run.tensor == LB_NONE || !lies_within(&run, &a->tensors[run.tensor].tensor.layout))
            return out->n_runs = first, true;
        lb_content_run *more = lb_array_grow(out->runs, out->n_runs, sizeof *more);
        if (!more) return false;
        out->runs = more;
        out->runs[out->n_runs++] = run;
    }
    out->list[row] = remembered->content;
    out->list[row].first = first, out->list[row].tensor = remembered->content.n ? out->runs[first].tensor : LB_NONE;
    out->list[row].found = 0;                     /* where they stand is known, their numbers have moved */
    if (prefix && remembered->content.shift != 0) /* states of w are those of 1 + w */
        out->list[row].relation = LB_CONTENT_RENAMED, out->list[row].shift = 0;
    return true;
}

/* Row of B is all of A's source `from`, element by element, in numbers that have moved since. False when out of
 * memory. */
static bool take_whole(lb_contents *out, uint32_t row, uint32_t from, int64_t elements, lb_content_relation relation)
{
    lb_content_run *more = lb_array_grow(out->runs, out->n_runs, sizeof *more);
    if (!more) return false;
    out->runs = more;
    out->runs[out->n_runs] = (lb_content_run){from, 0, 1, 0, 1, elements};
    out->list[row] = (lb_content){relation, false, from, out->n_runs++, 1, 0, elements};
    return true;
}

static bool is_claimed(const lb_contents *all, uint32_t tensor);

static bool is_vector_learnt(const lb_step_sources *sources, uint32_t row)
{
    const lb_tensor *t = &sources->tensors[row].tensor;
    return sources->list[row].learnt && !lb_step_source_is_state(&sources->list[row]) && t->data &&
           t->layout.ndim == 1 && lb_dtype_is_float(t->dtype) && lb_dtype_bits(t->dtype) >= 16 &&
           lb_layout_numel(&t->layout) > 1;
}

static double *numbers_of(const lb_tensor *t)
{
    double *x = malloc((size_t)lb_layout_numel(&t->layout) * sizeof *x);
    int64_t at = 0;
    for (lb_rows r = lb_rows_of(&t->layout); x && lb_rows_next(&r); at += r.count)
        lb_load_f64_strided(x + at, t->dtype, (const char *)t->data + r.offset * (int64_t)(lb_dtype_bits(t->dtype) / 8),
                            (ptrdiff_t)r.stride, (size_t)r.count);
    return x;
}

/* 1, -1: what B's vector is more than A's in all places; 0: it is not, or out of memory (`*failed`). */
static double shift_between(const lb_tensor *a, const lb_tensor *b, bool *failed)
{
    double *x = numbers_of(a), *y = numbers_of(b), shift = 0;
    *failed |= !x || !y;
    for (int sign = -1; sign <= 1 && x && y && shift == 0; sign += 2) {
        const lb_content_transform t = {LB_CONTENT_SHIFTED, sign, 0};
        if (lb_content_transform_holds(&t, x, y, lb_layout_numel(&a->layout),
                                       lb_content_transform_room(a->dtype, b->dtype)))
            shift = sign;
    }
    free(x), free(y);
    return shift;
}

/* Weights of norms that one side stores less one. False: out of memory. */
static bool find_shifted(const lb_step_sources *a, const lb_step_sources *b, lb_contents *out)
{
    bool failed = false;
    for (uint32_t i = 0; i < b->n && !failed; i++) {
        if (out->list[i].relation != LB_CONTENT_NONE || !is_vector_learnt(b, i)) continue;
        const int64_t n = lb_layout_numel(&b->tensors[i].tensor.layout);
        for (uint32_t k = 0; k < a->n && !failed && out->list[i].relation == LB_CONTENT_NONE; k++) {
            if (!is_vector_learnt(a, k) || lb_layout_numel(&a->tensors[k].tensor.layout) != n || is_claimed(out, k))
                continue;
            const double shift = shift_between(&a->tensors[k].tensor, &b->tensors[i].tensor, &failed);
            if (shift == 0) continue;
            failed |= !take_whole(out, i, k, n, LB_CONTENT_MOVED);
            if (!failed) out->list[i].shift = shift;
        }
    }
    return !failed;
}

/* What the user says of the first step, behind what numbers and names do. */
static lb_status take_map(lb_source_memory *memory, const lb_step_sources *a, const lb_step_sources *b,
                          lb_contents *out, lb_err *err)
{
    lb_content_disagreement *list = NULL;
    uint32_t n = 0;
    if (!memory->map || memory->mapped) return LB_OK;
    LB_TRY(lb_content_map_apply(memory->map, a->tensors, a->n, b->tensors, b->n, out, &list, &n, err));
    memory->mapped = true, memory->said = calloc(n + 1u, sizeof *memory->said);
    bool room = memory->said != NULL;
    for (uint32_t i = 0; i < n && room; i++) {
        char text[600];
        lb_content_map_disagreement_text(memory->map, &list[i], a->tensors, b->tensors, text);
        room = (memory->said[i] = strdup(text)) != NULL, memory->n_said += room;
    }
    free(list);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a table of tensors");
}

/* Names alone speak where most parameters hold different numbers than those of their name. */
static void settle_names(const lb_step_sources *b, lb_contents *out)
{
    uint32_t named = 0, parameters = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        const bool parameter = b->list[i].learnt && !lb_step_source_is_state(&b->list[i]);
        parameters += parameter, named += parameter && out->list[i].relation == LB_CONTENT_NAMED;
    }
    const bool moved = 2 * named > parameters;
    for (uint32_t i = 0; i < b->n; i++)
        if (out->list[i].relation == LB_CONTENT_NAMED && !(moved && b->list[i].learnt))
            out->list[i] = (lb_content){.tensor = LB_NONE, .all = out->list[i].all};
}

/* W0 of one side and W of the other may have one name; they are no pair. */
static void part_merged(const lb_merged_adapter *merged, uint32_t n, lb_contents *out)
{
    for (uint32_t i = 0; i < n; i++) {
        lb_content *content = &out->list[merged[i].online ? merged[i].base : merged[i].whole];
        if (content->relation == LB_CONTENT_NAMED) *content = (lb_content){.tensor = LB_NONE, .all = content->all};
    }
}

/* A vector of few different numbers (ones that a first update moved up or down by one amount) is made up of pieces of
 * any other such one. Which element is which was known when the window began. */
static bool is_pieced_by_chance(const lb_content *content, const lb_remembered *known)
{
    const lb_content_relation r = content->relation;
    return r != known->content.relation &&
           (r == LB_CONTENT_PERMUTED || r == LB_CONTENT_FUSED || r == LB_CONTENT_SPLIT || r == LB_CONTENT_PADDED);
}

/* Nor are a model's weights in bf16 the f32 ones of the other side, to which they are rounded, too. */
static bool is_cast_by_chance(const lb_content *content, const lb_remembered *known)
{
    return content->cast && !known->content.cast;
}

static uint32_t find_by_digest(const lb_step_sources *sources, lb_digest digest)
{
    for (uint32_t i = 0; i < sources->n; i++)
        if (lb_digest_equal(sources->list[i].digest, digest)) return i;
    return LB_NONE;
}

/* Where the elements of B's value stand in the sources of A that an earlier step left beside it; nothing is added where
 * one of these is not there. False when out of memory. */
static bool take_left(const lb_source_memory *memory, const lb_left_value *left, const lb_step_sources *a,
                      lb_contents *out, uint32_t row)
{
    const uint32_t first = out->n_runs;
    for (uint32_t i = 0; i < left->n; i++) {
        const lb_left_run *run = &memory->left_runs[left->first + i];
        const uint32_t from = find_by_digest(a, run->of_a);
        if (from == LB_NONE) return out->n_runs = first, true;
        lb_content_run *more = lb_array_grow(out->runs, out->n_runs, sizeof *more);
        if (!more) return false;
        out->runs = more;
        out->runs[out->n_runs++] = (lb_content_run){from, run->from, run->from_stride, run->to, run->to_stride, run->n};
    }
    const lb_content_relation relation = left->n > 1 ? LB_CONTENT_FUSED : LB_CONTENT_RENAMED;
    out->list[row] = (lb_content){relation, false, out->runs[first].tensor, first, left->n, 0, out->list[row].all};
    return true;
}

/* Have its numbers no like, or one that is put together of others? A vector of few different numbers is made up of
 * pieces of any other such one. */
static bool is_free(const lb_content *content)
{
    switch (content->relation) {
    case LB_CONTENT_NONE:
    case LB_CONTENT_PERMUTED:
    case LB_CONTENT_FUSED:
    case LB_CONTENT_SPLIT:
    case LB_CONTENT_PADDED:
        return content->relation == LB_CONTENT_NONE || content->found > 0; /* 0: by where its parameter stood */
    default: return false;
    }
}

/* Sources that have no like by their numbers and that an earlier step left beside sources of A. False when out of
 * memory. */
static bool apply_left(const lb_source_memory *memory, const lb_step_sources *a, const lb_step_sources *b,
                       lb_contents *contents)
{
    for (uint32_t i = 0; i < b->n; i++)
        for (uint32_t k = memory->n_left; k-- > 0;) {
            if (!is_free(&contents->list[i]) || b->list[i].kind != LB_SOURCE_CARRIED) break;
            if (lb_digest_equal(memory->left[k].of_b, b->list[i].digest) &&
                !take_left(memory, &memory->left[k], a, contents, i))
                return false;
        }
    return true;
}

static bool is_claimed(const lb_contents *all, uint32_t tensor)
{
    for (uint32_t i = 0; i < all->n; i++)
        for (uint32_t k = 0; k < all->list[i].n; k++)
            if (all->runs[all->list[i].first + k].tensor == tensor) return true;
    return false;
}

/* The one state of a parameter that has no like yet; LB_NONE where there is none, or several. */
static uint32_t lone_state(const lb_step_sources *sources, const lb_contents *all, const char *parameter, bool of_b)
{
    uint32_t found = LB_NONE;
    for (uint32_t i = 0; i < sources->n; i++) {
        const size_t prefix = lb_state_name_before(sources->list[i].name);
        if (!prefix || strcmp(sources->list[i].name + prefix, parameter)) continue;
        if (lb_layout_numel(&sources->tensors[i].tensor.layout) < 2) continue; /* how often it was stepped */
        if (of_b ? all->list[i].relation != LB_CONTENT_NONE : is_claimed(all, i)) continue;
        if (found != LB_NONE) return LB_NONE;
        found = i;
    }
    return found;
}

/* Of the states of one parameter all but one have their like: that one stands beside the one that is left, whatever the
 * two hold. False when out of memory. */
static bool pair_last_states(const lb_source_memory *memory, const lb_step_sources *a, const lb_step_sources *b,
                             lb_contents *out)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const size_t prefix = lb_state_name_before(b->list[i].name);
        if (!prefix || out->list[i].relation != LB_CONTENT_NONE || b->list[i].kind == LB_SOURCE_UNSEEN) continue;
        const lb_remembered *known = recall(memory, memory->n, b->list[i].name + prefix, b->list[i].part);
        if (!known || known->n_names != 1 || lone_state(b, out, b->list[i].name + prefix, true) != i) continue;
        const uint32_t from = lone_state(a, out, known->names[0], false);
        const int64_t elements = lb_layout_numel(&b->tensors[i].tensor.layout);
        if (from == LB_NONE || lb_layout_numel(&a->tensors[from].tensor.layout) != elements) continue;
        if (!take_whole(out, i, from, elements, LB_CONTENT_RENAMED)) return false;
    }
    return true;
}

/* One source by where it stood when the window began; else that is kept. False when out of memory. */
static bool recall_or_remember(lb_source_memory *memory, uint32_t before, const lb_step_sources *a,
                               const lb_step_sources *b, uint32_t row, lb_contents *out)
{
    const lb_step_source *source = &b->list[row];
    const size_t prefix = lb_state_name_before(source->name);
    const lb_content *content = &out->list[row];
    const lb_remembered *const of_memory = recall_memory(memory, before, source),
                               *const of_name = recall(memory, before, source->name + prefix, source->part),
                               *const known = of_memory ? of_memory : of_name;
    const int64_t elements = lb_layout_numel(&b->tensors[row].tensor.layout);
    if (known && source->kind != LB_SOURCE_UNSEEN &&
        (content->relation == LB_CONTENT_NONE || content->relation == LB_CONTENT_NAMED ||
         content->found < content->all || is_pieced_by_chance(content, known) || is_cast_by_chance(content, known))) {
        const uint32_t runs = out->n_runs;
        if (of_memory && !apply(of_memory, a, "", elements, out, row)) return false;
        return out->n_runs > runs || !of_name || apply(of_name, a, source->name, elements, out, row);
    }
    const bool is_new = source->kept
                            ? !of_memory
                            : source->learnt && *source->name && !prefix && (!of_name || of_name->part != source->part);
    return !is_new || content->relation == LB_CONTENT_NONE || !are_known(a, content, out->runs) ||
           remember(memory, a, source, content, out->runs);
}

/* What names and near numbers say of the step that the window begins with. False when out of memory. */
static bool begin(const lb_step_sources *a, const lb_step_sources *b, lb_contents *out)
{
    bool failed = false;
    if (a->midway || b->midway)
        lb_near_sources_find(a, b, out, &failed);
    else
        settle_names(b, out);
    return !failed;
}

lb_status lb_step_sources_match(const lb_step_sources *a, const lb_step_sources *b,
                                const struct lb_merged_adapter *merged, uint32_t n_merged, lb_source_memory *memory,
                                lb_contents *out, bool *begins, lb_err *err)
{
    LB_TRY(lb_contents_match(a->tensors, a->n, b->tensors, b->n, out, err));
    bool room = true;
    const uint32_t before = memory->n;
    *begins = !before;
    part_merged(merged, n_merged, out);
    room = !*begins || find_shifted(a, b, out);
    if (*begins && room) room = begin(a, b, out);
    const lb_status mapped = take_map(memory, a, b, out, err);
    if (mapped != LB_OK) {
        lb_contents_release(out);
        return mapped;
    }
    for (uint32_t i = 0; i < b->n && room; i++) room = recall_or_remember(memory, before, a, b, i, out);
    if (room && apply_left(memory, a, b, out) && pair_last_states(memory, a, b, out)) return LB_OK;
    lb_contents_release(out);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for the sources of a step");
}

double *lb_step_sources_taken(const lb_step_sources *a, const lb_step_sources *b, const lb_contents *contents,
                              uint32_t row)
{
    const lb_content *content = &contents->list[row];
    const lb_tensor *mine = &b->tensors[row].tensor;
    if (content->relation == LB_CONTENT_NONE ||
        (content->found >= content->all && !content->cast && content->relation != LB_CONTENT_NAMED) || !mine->data ||
        !lb_dtype_is_float(mine->dtype))
        return NULL;
    double *numbers = lb_shadow_numbers_copy(mine), *from = NULL;
    uint32_t loaded = LB_NONE;
    for (uint32_t k = 0; k < content->n && numbers; k++) {
        const lb_content_run *r = &contents->runs[content->first + k];
        const lb_tensor *t = &a->tensors[r->tensor].tensor;
        if (!t->data) continue;
        if (r->tensor != loaded) free(from), from = lb_shadow_numbers_copy(t), loaded = r->tensor;
        for (int64_t i = 0; i < r->n && from; i++)
            numbers[r->to + i * r->to_stride] = from[r->from + i * r->from_stride] + content->shift;
    }
    free(from);
    return numbers;
}

uint8_t *lb_step_sources_held(const lb_contents *contents, int side, uint32_t n, bool named)
{
    uint8_t *held = calloc(n + 1, 1);
    for (uint32_t i = 0; i < contents->n && held; i++) {
        const lb_content *content = &contents->list[i];
        if (content->relation == LB_CONTENT_NONE || (content->relation == LB_CONTENT_NAMED && !named)) continue;
        if (side) held[i] = 1;
        for (uint32_t k = 0; k < content->n && !side; k++) held[contents->runs[content->first + k].tensor] = 1;
    }
    return held;
}

static void forget(lb_source_memory *memory, const lb_step_source *source)
{
    for (uint32_t i = 0; i < memory->n; i++) {
        lb_remembered *remembered = &memory->list[i];
        if (remembered->part != source->part) continue;
        if (!strcmp(remembered->name, source->name)) *remembered->name = '\0';
        if (remembered->storage == storage_of(source)) remembered->storage = NO_STORAGE;
    }
}

lb_status lb_step_sources_settle(const lb_step_sources *a, const lb_step_sources *b, uint32_t row,
                                 const lb_content_run *runs, uint32_t n, lb_source_memory *memory, lb_contents *out,
                                 lb_err *err)
{
    const int64_t elements = lb_layout_numel(&b->tensors[row].tensor.layout);
    lb_content content = {.tensor = runs[0].tensor, .first = out->n_runs, .n = n, .found = elements, .all = elements};
    bool several = false;
    for (uint32_t i = 0; i < n; i++) {
        lb_content_run *more = lb_array_grow(out->runs, out->n_runs, sizeof *more);
        if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the sources of a step");
        out->runs = more, out->runs[out->n_runs++] = runs[i];
        several |= runs[i].tensor != runs[0].tensor;
    }
    const bool part = lb_layout_numel(&a->tensors[content.tensor].tensor.layout) != elements;
    content.relation = several ? LB_CONTENT_FUSED
                       : part  ? LB_CONTENT_SPLIT
                       : n > 1 ? LB_CONTENT_PERMUTED
                               : LB_CONTENT_RENAMED;
    out->list[row] = content;
    forget(memory, &b->list[row]);
    if (((*b->list[row].name && b->list[row].learnt) || b->list[row].kept) &&
        !remember(memory, a, &b->list[row], &content, out->runs))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for the sources of a step");
    return LB_OK;
}
