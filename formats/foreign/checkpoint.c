/* See lastbit/checkpoint.h. The readers of this room gather tensors and tell faults; here the files of a folder are
 * chosen, and each tensor gets its file, its place and its rank. */
#include "base/array.h"
#include "base/hash.h"
#include <lastbit/checkpoint.h>
#include <lastbit/digest.h>
#include <lastbit/input.h>

#include "foreign/foreign_tensors.h"
#include "foreign/foreign_torch.h"
#include "foreign/rank_grid.h"
#include "foreign/rank_name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct reading {
    lb_checkpoint *c;
    bool failed;  /* out of memory while gathering */
    bool indexed; /* an index says which files there are */
} reading;

const char *lb_checkpoint_fault_kind_name(lb_fault_kind kind)
{
    static const char *const words[] = {
#define LB_FAULT_WORD(name, word, text) word,
        LB_FAULTS(LB_FAULT_WORD)
#undef LB_FAULT_WORD
    };
    return kind < sizeof words / sizeof *words ? words[kind] : "damaged";
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- what the readers tell --------------------------------------------------------------------------------------- */

static char *copy(const char *text)
{
    return text ? strdup(text) : NULL;
}

static void tell_fault(void *context, lb_fault_kind kind, const char *tensor, const char *file, const char *message)
{
    reading *r = (reading *)context;
    lb_checkpoint *c = r->c;
    lb_checkpoint_fault *grown = (lb_checkpoint_fault *)realloc(c->faults, (c->n_faults + 1u) * sizeof *grown);
    if (!grown) {
        r->failed = true;
        return;
    }
    c->faults = grown;
    int32_t stated;
    size_t folder = strlen(c->path);
    if (file && strncmp(file, c->path, folder) == 0 && file[folder] == '/') file += folder + 1;
    lb_checkpoint_fault *f = &grown[c->n_faults++];
    *f = (lb_checkpoint_fault){kind, copy(tensor), copy(file), file ? lb_rank_in_name(file, &stated) : -1,
                               strdup(message)};
    r->failed |= !f->message;
}

static void tell_entry(void *context, const char *name, const char *text)
{
    reading *r = (reading *)context;
    lb_checkpoint *c = r->c;
    lb_checkpoint_entry *grown = (lb_checkpoint_entry *)realloc(c->entries, (c->n_entries + 1u) * sizeof *grown);
    if (!grown) {
        r->failed = true;
        return;
    }
    c->entries = grown;
    lb_checkpoint_entry *e = &grown[c->n_entries++];
    *e = (lb_checkpoint_entry){strdup(name), strdup(text), c->tensors->n_memory ? c->tensors->n_memory - 1 : 0};
    r->failed |= !e->name || !e->text;
}

static void tell_unread(void *context, const char *name, const char *type, const lb_layout *shape)
{
    reading *r = (reading *)context;
    lb_checkpoint *c = r->c;
    lb_checkpoint_unread *grown = lb_array_grow(c->unread, c->n_unread, sizeof *grown);
    if (!grown) {
        r->failed = true;
        return;
    }
    c->unread = grown;
    lb_checkpoint_unread *u = &grown[c->n_unread++];
    *u = (lb_checkpoint_unread){strdup(name), strdup(type), *shape, c->tensors->n_memory - 1};
    r->failed |= !u->name || !u->type;
}

/* ---- which files ------------------------------------------------------------------------------------------------- */

/* `path` becomes the list's. */
static lb_status add_path(lb_input_names *list, char *path, lb_err *err)
{
    char **grown = lb_array_grow(list->rows, list->n, sizeof *grown);
    if (!grown) {
        free(path);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    list->rows = grown;
    list->rows[list->n++] = path;
    return LB_OK;
}

static bool is_tensor_file(const char *name)
{
    static const char *const ends[] = {".safetensors", ".pt", ".pth", ".bin", ".gguf"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (lb_foreign_ends_with(name, ends[i])) return true;
    return false;
}

static lb_status list_files(const char *folder, int depth, lb_input_names *files, lb_input_names *indexes, lb_err *err);

/* What one name of a folder is: a file, an index, the folder of a rank; others are passed over. */
static lb_status list_name(const char *folder, const char *name, int depth, lb_input_names *files,
                           lb_input_names *indexes, lb_err *err)
{
    int32_t stated;
    struct stat st;
    if (name[0] == '.') return LB_OK;
    const bool index = lb_foreign_ends_with(name, ".index.json"), file = index || is_tensor_file(name),
               rank = depth < 2 && lb_rank_in_name(name, &stated) >= 0;
    if (!file && !rank) return LB_OK;
    char *path = (char *)malloc(strlen(folder) + strlen(name) + 2);
    if (!path) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", folder);
    sprintf(path, "%s/%s", folder, name);
    lb_status status = lb_input_look(path, &st, err);
    if (status == LB_OK && S_ISREG(st.st_mode) && file) return add_path(index ? indexes : files, path, err);
    if (status == LB_OK && S_ISDIR(st.st_mode) && rank) status = list_files(path, depth + 1, files, indexes, err);
    free(path);
    return status == LB_ERR_NOT_FOUND ? LB_OK : status; /* a link to nothing */
}

/* Tensor files and indexes, those of ranks' folders among them. */
static lb_status list_files(const char *folder, int depth, lb_input_names *files, lb_input_names *indexes, lb_err *err)
{
    lb_input_names names;
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_input_list(folder, &names, &why);
    for (uint32_t i = 0; i < names.n && status == LB_OK; i++)
        status = list_name(folder, names.rows[i], depth, files, indexes, &why);
    lb_input_names_release(&names);
    if (files->n) qsort(files->rows, files->n, sizeof *files->rows, lb_by_text);
    return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", why.message);
}

static bool is_read(const lb_checkpoint *c, const char *path)
{
    for (uint32_t i = 0; i < c->tensors->n_memory; i++)
        if (c->tensors->memory[i].path && strcmp(c->tensors->memory[i].path, path) == 0) return true;
    for (uint32_t i = 0; i < c->n_faults; i++)
        if (c->faults[i].file && strcmp(base_name(c->faults[i].file), base_name(path)) == 0) return true;
    return false;
}

/* "model.safetensors" beside "model.safetensors.index.json": transformers loads it, and not the shards. */
static bool is_single_form(const char *name, const char *index, size_t stem)
{
    const size_t n = strlen(name);
    return n > stem && strncmp(index, name, n) == 0 && strcmp(index + n, ".index.json") == 0;
}

/* A file beside an index that it does not name: a shard of another save. An index that is damaged itself names
 * nothing. */
static bool is_left_over(const lb_checkpoint *c, const char *path, const lb_input_names *indexes)
{
    const char *name = base_name(path);
    for (uint32_t i = 0; i < indexes->n; i++) {
        const char *index = base_name(indexes->rows[i]);
        size_t stem = strcspn(index, ".");
        bool damaged = false;
        for (uint32_t k = 0; k < c->n_faults; k++)
            damaged |= c->faults[k].file && !c->faults[k].tensor && strcmp(base_name(c->faults[k].file), index) == 0;
        if (!damaged && strncmp(name, index, stem) == 0 && (strstr(name, "-of-") || is_single_form(name, index, stem)))
            return true;
    }
    return false;
}

/* "model.fp16.safetensors", "model-00001-of-00002.fp16.safetensors": the bytes behind the stem that name a variant; 0:
 * none do. */
static size_t variant_in(const char *name)
{
    static const char *const stems[] = {"diffusion_pytorch_model", "pytorch_model", "adapter_model", "model"};
    static const char *const ends[] = {"safetensors", "bin", "pt", "pth", "index"};
    for (size_t i = 0; i < sizeof stems / sizeof *stems; i++) {
        const size_t n = strlen(stems[i]);
        if (strncmp(name, stems[i], n) != 0) continue;
        const char *at = name + n + (name[n] == '-' ? strspn(name + n, "-of0123456789") : 0);
        const size_t word = *at == '.' ? strcspn(at + 1, ".-") : 0;
        bool end = word == 0;
        for (size_t k = 0; k < sizeof ends / sizeof *ends; k++)
            end |= strlen(ends[k]) == word && strncmp(at + 1, ends[k], word) == 0;
        return end ? 0 : n;
    }
    return 0;
}

/* The same weights in another dtype, beside them. */
static bool is_other_variant(const char *name, const lb_input_names *files)
{
    const size_t stem = variant_in(name);
    for (uint32_t i = 0; i < files->n && stem; i++) {
        const char *other = base_name(files->rows[i]);
        if (strncmp(other, name, stem) == 0 && (other[stem] == '.' || other[stem] == '-') && !variant_in(other))
            return true;
    }
    return false;
}

static bool is_other_format(const char *path, const lb_input_names *files, const lb_input_names *indexes)
{
    const char *name = base_name(path);
    if (is_other_variant(name, files)) return true;
    if (lb_foreign_ends_with(name, ".gguf")) {
        bool others = indexes->n > 0;
        for (uint32_t i = 0; i < files->n; i++) others |= !lb_foreign_ends_with(files->rows[i], ".gguf");
        return others;
    }
    if (strncmp(name, "consolidated", 12) == 0) return indexes->n > 0;
    if (strncmp(name, "pytorch_model", 13) != 0) return false;
    for (uint32_t i = 0; i < files->n; i++)
        if (strncmp(base_name(files->rows[i]), "model", 5) == 0 && lb_foreign_ends_with(files->rows[i], ".safetensors"))
            return true;
    return false;
}

/* A failure to read `path`, mapped as memory row `row` if it was mapped at all, is told. What is valid but not read is
 * not, and a refusal of the system is passed on. */
static lb_status tell_failure(const reading *r, const char *path, uint32_t row, const lb_err *why, lb_err *err)
{
    if (lb_is_refusal(why->status)) return lb_fail(err, why->status, "%s", why->message);
    const lb_foreign_tensors *t = r->c->tensors;
    const lb_foreign_memory *map = t->n_memory > row ? &t->memory[row] : NULL;
    return lb_foreign_fault(
        t, lb_foreign_damage(why->status, path, map ? (const char *)map->bytes : NULL, map ? map->size : 0), NULL, path,
        why, err);
}

/* A file of a known kind that cannot be read here is no checkpoint of ours; one of no known kind is none at all. */
static bool is_known_kind(const char *path)
{
    static const char *const kinds[] = {".safetensors", ".pt", ".pth", ".bin", ".npy", ".npz", ".gguf"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (lb_foreign_ends_with(path, kinds[i])) return true;
    return false;
}

/* A file by itself; what is wrong with it is told. Pickles without tensors (options, schedules) have told their
 * entries; a file of another format is passed over in a folder. */
static lb_status read_one(reading *r, const char *path, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const uint32_t before = r->c->tensors->n_memory;
    lb_status status = lb_foreign_read_file(r->c->tensors, path, &why);
    if (status == LB_ERR_UNSUPPORTED && strcmp(path, r->c->path) == 0 && !r->c->n_entries)
        return lb_fail(err, is_known_kind(path) ? status : LB_ERR_CORRUPT, "%s", why.message);
    return status == LB_OK || status == LB_ERR_UNSUPPORTED ? LB_OK : tell_failure(r, path, before, &why, err);
}

/* An index or a .metadata: files behind it cannot be understood without it. */
static lb_status read_description(reading *r, const char *folder, const char *path, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const uint32_t before = r->c->tensors->n_memory;
    lb_status status = folder ? lb_distributed_read(r->c->tensors, folder, path, &why)
                              : lb_safetensors_read_index(r->c->tensors, path, &why);
    if (status == LB_OK) return LB_OK;
    return status == LB_ERR_CORRUPT ? tell_failure(r, path, before, &why, err)
                                    : lb_fail(err, status, "%s", why.message);
}

static lb_status read_folder(reading *r, const char *folder, lb_err *err)
{
    char *metadata;
    LB_TRY(lb_foreign_find_metadata(folder, &metadata, err));
    if (metadata) {
        r->c->distributed = true;
        const lb_status described = read_description(r, folder, metadata, err);
        free(metadata);
        return described;
    }
    lb_input_names files = {NULL, 0}, indexes = {NULL, 0};
    lb_status status = list_files(folder, 0, &files, &indexes, err);
    if (status == LB_OK && !files.n && !indexes.n)
        status = lb_fail(err, LB_ERR_NOT_FOUND,
                         "%s: holds no .metadata, no *.index.json, no .safetensors, .pt, .bin or .gguf: "
                         "name the folder of a checkpoint",
                         folder);
    for (uint32_t i = 0; i < indexes.n && status == LB_OK; i++)
        if (!strstr(indexes.rows[i], ".bin.index.json") || indexes.n == 1) {
            status = read_description(r, NULL, indexes.rows[i], err);
            r->indexed = true;
        }
    for (uint32_t i = 0; i < files.n && status == LB_OK; i++) {
        const char *path = files.rows[i];
        if (is_read(r->c, path) || is_other_format(path, &files, &indexes)) continue;
        if (!is_left_over(r->c, path, &indexes)) {
            status = read_one(r, path, err);
            continue;
        }
        char message[512];
        snprintf(message, sizeof message, "%.200s is not named by the index beside it: left from another save?",
                 base_name(path));
        tell_fault(r, LB_FAULT_UNEXPECTED, NULL, path, message);
    }
    lb_input_names_release(&files);
    lb_input_names_release(&indexes);
    return status;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static int by_name_and_place(const void *a, const void *b)
{
    const lb_checkpoint_piece *x = (const lb_checkpoint_piece *)a, *y = (const lb_checkpoint_piece *)b;
    int order = strcmp(x->name, y->name);
    if (order) return order;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    for (int d = 0; d < x->whole.ndim && d < y->whole.ndim; d++)
        if (x->start[d] != y->start[d]) return x->start[d] < y->start[d] ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* In a file of one layer the layer's number is put before a tensor's name. */
static bool name_layer(lb_foreign_tensor *row, const lb_foreign_memory *m)
{
    const long layer = m && m->path ? lb_rank_grid_layer(m->path) : -1;
    if (layer < 0) return true;
    char *name = (char *)malloc(strlen(row->name) + 32);
    if (!name) return false;
    sprintf(name, "layers.%ld.%s", layer, row->name);
    free(row->name);
    row->name = name;
    return true;
}

static lb_status list_pieces(lb_checkpoint *c, lb_err *err)
{
    lb_foreign_tensors *t = c->tensors;
    size_t folder = strlen(c->path);
    c->files = (lb_checkpoint_file *)calloc(t->n_memory + 1u, sizeof *c->files);
    c->pieces = (lb_checkpoint_piece *)calloc(t->n + 1u, sizeof *c->pieces);
    if (!c->files || !c->pieces) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", c->path);
    for (c->n_files = 0; c->n_files < t->n_memory; c->n_files++) {
        const lb_foreign_memory *m = &t->memory[c->n_files];
        lb_checkpoint_file *f = &c->files[c->n_files];
        const char *path = m->path ? m->path : c->n_files ? c->files[c->n_files - 1].path : "";
        if (m->path && strncmp(path, c->path, folder) == 0 && path[folder]) path += folder + (path[folder] == '/');
        int32_t stated = 0;
        *f = (lb_checkpoint_file){strdup(path), lb_rank_in_name(path, &stated), m->size, -1, c->n_files};
        if (!f->path) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", c->path);
        if (stated > c->ranks_stated) c->ranks_stated = stated;
    }
    if (!c->distributed && !lb_rank_grid_place(c)) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", c->path);
    for (uint32_t i = 0; i < t->n; i++) {
        if (!name_layer(&t->rows[i], lb_foreign_file(t, &t->rows[i])))
            return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", c->path);
        const lb_foreign_tensor *row = &t->rows[i];
        const lb_foreign_memory *m = lb_foreign_file(t, row);
        lb_checkpoint_piece *p = &c->pieces[c->n_pieces++];
        p->name = row->name;
        p->tensor = row->tensor;
        p->file = m ? (uint32_t)(m - t->memory) : 0;
        p->rank = c->files[p->file].rank;
        p->offset = m && m->path ? (uint64_t)((const char *)row->tensor.data - (const char *)m->bytes) : 0;
        p->placed = row->part != NULL;
        p->whole = row->part ? row->part->whole : row->tensor.layout;
        if (row->part) memcpy(p->start, row->part->start, sizeof p->start);
    }
    return LB_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const lb_checkpoint_piece *)a)->name, ((const lb_checkpoint_piece *)b)->name);
}

/* "X-00000-of-00002" numbers shards of a list of tensors, or ranks: then most names are in several of the files. */
static bool names_are_shared(lb_checkpoint *c)
{
    uint32_t shared = 0, names = 0;
    qsort(c->pieces, c->n_pieces, sizeof *c->pieces, by_name);
    for (uint32_t i = 0, behind; i < c->n_pieces; i = behind) {
        bool several = false;
        for (behind = i + 1; behind < c->n_pieces && strcmp(c->pieces[i].name, c->pieces[behind].name) == 0; behind++)
            several |= c->pieces[behind].file != c->pieces[i].file;
        names++;
        shared += several;
    }
    return shared * 2 > names;
}

/* The lowest number that files carry, so that ranks begin at 0. */
static void number_ranks(lb_checkpoint *c)
{
    bool numbered = c->ranks_stated > 0;
    c->rank_files = c->n_pieces && !c->distributed && (!numbered || names_are_shared(c));
    int32_t top = -1, low = INT32_MAX;
    for (uint32_t i = 0; i < c->n_pieces; i++) {
        if (c->pieces[i].rank > top) top = c->pieces[i].rank;
        if (c->pieces[i].rank >= 0 && c->pieces[i].rank < low) low = c->pieces[i].rank;
    }
    const int32_t first = numbered && low > 0 && top == c->ranks_stated ? 1 : 0;
    bool several = false;
    for (uint32_t i = 1; i < c->n_pieces; i++) several |= c->pieces[i].file != c->pieces[0].file;
    for (uint32_t i = 0; i < c->n_faults; i++) several |= c->faults[i].rank >= 0 && c->faults[i].rank != top;
    c->rank_files &= top >= 0 && (several || numbered);
    for (uint32_t i = 0; i < c->n_pieces; i++)
        c->pieces[i].rank =
            c->rank_files || c->distributed ? c->pieces[i].rank - (c->pieces[i].rank >= 0 ? first : 0) : -1;
    for (uint32_t i = 0; i < c->n_files; i++)
        if (!c->rank_files && !c->distributed) c->files[i].rank = -1;
    for (uint32_t i = 0; i < c->n_faults && c->rank_files; i++)
        if (c->faults[i].rank > top) top = c->faults[i].rank;
    if (c->rank_files || c->distributed) c->ranks = top + 1 - first;
    if (c->rank_files && c->ranks_stated > c->ranks) c->ranks = c->ranks_stated;
}

/* Faults that others follow from, by the name of their file or of their tensor. */
typedef struct causes {
    const lb_checkpoint *c;
    lb_hash files, tensors;
} causes;

static uint64_t text_hash(const char *text)
{
    return lb_digest_bytes(text, strlen(text)).lo;
}

static bool is_file_at_fault(const causes *x, const char *file)
{
    LB_HASH_EACH(k, &x->files, text_hash(file))
    if (strcmp(base_name(x->c->faults[k].file), file) == 0) return true;
    return false;
}

static bool is_tensor_at_fault(const causes *x, const char *tensor)
{
    LB_HASH_EACH(k, &x->tensors, text_hash(tensor))
    if (strcmp(x->c->faults[k].tensor, tensor) == 0) return true;
    return false;
}

/* Each name once: rows of one hash follow each other in the table. */
static bool gather_causes(causes *x)
{
    for (uint32_t k = 0; k < x->c->n_faults; k++) {
        const lb_checkpoint_fault *o = &x->c->faults[k];
        const bool of_file = o->file && !o->tensor;
        if (o->kind == LB_FAULT_MISSING || (!of_file && !o->tensor)) continue;
        const char *name = of_file ? base_name(o->file) : o->tensor;
        if (of_file ? is_file_at_fault(x, name) : is_tensor_at_fault(x, name)) continue;
        if (!lb_hash_add(of_file ? &x->files : &x->tensors, text_hash(name), k)) return false;
    }
    return true;
}

/* Whether a missing name follows from another fault: its file, or the tensor in it, has one of its own. */
static bool is_consequence(const causes *x, const lb_checkpoint_fault *f)
{
    if (f->kind != LB_FAULT_MISSING) return false;
    return (f->file && is_file_at_fault(x, base_name(f->file))) || (f->tensor && is_tensor_at_fault(x, f->tensor));
}

/* False when out of memory. */
static bool drop_consequences(lb_checkpoint *c)
{
    uint32_t n = 0;
    causes x = {.c = c};
    bool *dropped = (bool *)malloc(c->n_faults + 1u);
    const bool made = dropped && gather_causes(&x);
    for (uint32_t i = 0; made && i < c->n_faults; i++) dropped[i] = is_consequence(&x, &c->faults[i]);
    lb_hash_release(&x.files), lb_hash_release(&x.tensors);
    if (!made) {
        free(dropped);
        return false;
    }
    for (uint32_t i = 0; i < c->n_faults; i++) {
        lb_checkpoint_fault *f = &c->faults[i];
        if (!dropped[i]) {
            c->faults[n++] = *f;
            continue;
        }
        free(f->tensor);
        free(f->file);
        free(f->message);
    }
    c->n_faults = n;
    free(dropped);
    return true;
}

/* A file of this rank, whatever its name tells. */
static void tell_no_file(reading *r, const char *path, int32_t rank, const char *message)
{
    const uint32_t before = r->c->n_faults;
    tell_fault(r, LB_FAULT_NO_FILE, NULL, path, message);
    if (r->c->n_faults > before) r->c->faults[before].rank = rank;
}

/* Files of a numbered row ("-of-00004") that are not there, where no index told it. */
static void tell_absent(reading *r)
{
    lb_checkpoint *c = r->c;
    for (uint32_t i = 0; i < c->n_files; i++) {
        if (i && strcmp(c->files[i].path, c->files[i - 1].path) == 0) continue; /* members of one archive */
        const char *of = strstr(c->files[i].path, "-of-");
        int32_t stated = 0, number = lb_rank_in_name(c->files[i].path, &stated);
        if (!of || stated < 2 || number < 0 || of - c->files[i].path < 6) continue;
        bool there[1024] = {false}, first = true;
        if (stated > 1000) return;
        for (uint32_t k = 0; k < c->n_files; k++) {
            int32_t other_stated = 0, other = lb_rank_in_name(c->files[k].path, &other_stated);
            if (other_stated == stated && other >= 0 && other <= stated) {
                there[other] = true;
                first &= k >= i;
            }
        }
        for (uint32_t k = 0; k < c->n_faults; k++) {
            int32_t other_stated = 0,
                    other = c->faults[k].file ? lb_rank_in_name(c->faults[k].file, &other_stated) : -1;
            if (other_stated == stated && other >= 0 && other <= stated) there[other] = true;
        }
        const int begin = there[0] || !there[stated] ? 0 : 1;
        for (int n = begin; first && n < begin + stated; n++) {
            char path[512], message[600];
            if (there[n] || (begin == 0 && n == 0 && !c->rank_files)) continue;
            snprintf(path, sizeof path, "%.*s%05d%s", (int)(of - c->files[i].path) - 5, c->files[i].path, n, of);
            snprintf(message, sizeof message, "%s is not there: %s belongs to a row of %d files", path,
                     c->files[i].path, stated);
            tell_no_file(r, path, c->rank_files ? n - begin : -1, message);
        }
        if (first) return;
    }
}

/* A file that the grid of ranks' files lacks. */
static void tell_absent_place(void *context, const char *path, int32_t rank, const char *like)
{
    reading *r = (reading *)context;
    char message[700];
    snprintf(message, sizeof message, "%s is not there: %s is one of the files that each rank writes", path, like);
    tell_no_file(r, path, rank, message);
    if (rank >= r->c->ranks) r->c->ranks = rank + 1;
}

lb_status lb_checkpoint_open(const char *path, lb_checkpoint **checkpoint, lb_err *err)
{
    lb_checkpoint *c = (lb_checkpoint *)calloc(1, sizeof *c);
    if (!c || !(c->path = strdup(path)) || !(c->tensors = (lb_foreign_tensors *)calloc(1, sizeof *c->tensors))) {
        lb_checkpoint_close(c);
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    }
    for (size_t n = strlen(c->path); n > 1 && c->path[n - 1] == '/'; n--) c->path[n - 1] = '\0';
    reading r = {c, false, false};
    const lb_foreign_listener listener = {&r, tell_fault, tell_entry, tell_unread};
    c->tensors->listener = &listener;
    struct stat st;
    lb_status status = LB_OK;
    lb_err why = LB_ERR_INIT;
    if (lb_input_look(c->path, &st, &why) == LB_ERR_NOT_FOUND)
        status = lb_fail(err, LB_ERR_NOT_FOUND, "%s: is not there: name a checkpoint, a file or a folder", path);
    else if (why.status != LB_OK)
        status = lb_fail(err, why.status, "%s", why.message);
    else if (!S_ISDIR(st.st_mode) && (!S_ISREG(st.st_mode) || st.st_size == 0))
        status = lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: is empty or no regular file", path);
    else if (access(c->path, R_OK) != 0)
        status = lb_fail(err, LB_ERR_IO, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        status = read_folder(&r, c->path, err);
    else if (lb_foreign_ends_with(c->path, ".index.json"))
        status = read_description(&r, NULL, c->path, err), r.indexed = true;
    else
        status = read_one(&r, c->path, err);
    if (status == LB_OK) status = list_pieces(c, err);
    if (status == LB_OK) {
        number_ranks(c);
        if (!r.indexed) tell_absent(&r);
        if (!r.indexed && c->rank_files) lb_rank_grid_absent(c, tell_absent_place, &r);
        r.failed |= !drop_consequences(c);
        if (c->n_pieces) qsort(c->pieces, c->n_pieces, sizeof *c->pieces, by_name_and_place);
        if (!c->n_pieces && !c->n_faults && !c->n_unread)
            status = lb_fail(err, LB_ERR_UNSUPPORTED, "%s: holds no tensors that are read", path);
        if (r.failed) status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    }
    c->tensors->listener = NULL;
    if (status != LB_OK) {
        lb_checkpoint_close(c);
        return status;
    }
    *checkpoint = c;
    return LB_OK;
}

void lb_checkpoint_close(lb_checkpoint *c)
{
    if (!c) return;
    for (uint32_t i = 0; i < c->n_faults; i++) {
        free(c->faults[i].tensor);
        free(c->faults[i].file);
        free(c->faults[i].message);
    }
    for (uint32_t i = 0; i < c->n_entries; i++) {
        free(c->entries[i].name);
        free(c->entries[i].text);
    }
    for (uint32_t i = 0; i < c->n_unread; i++) {
        free(c->unread[i].name);
        free(c->unread[i].type);
    }
    for (uint32_t i = 0; c->files && i < c->n_files; i++) free(c->files[i].path);
    if (c->tensors) lb_foreign_tensors_release(c->tensors);
    free(c->tensors);
    free(c->faults);
    free(c->entries);
    free(c->unread);
    free(c->files);
    free(c->pieces);
    free(c->path);
    free(c);
}
