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
    reading *read = (reading *)context;
    lb_checkpoint *checkpoint = read->c;
    lb_checkpoint_fault *grown =
        (lb_checkpoint_fault *)realloc(checkpoint->faults, (checkpoint->n_faults + 1u) * sizeof *grown);
    if (!grown) {
        read->failed = true;
        return;
    }
    checkpoint->faults = grown;
    int32_t stated;
    size_t folder = strlen(checkpoint->path);
    if (file && strncmp(file, checkpoint->path, folder) == 0 && file[folder] == '/') file += folder + 1;
    lb_checkpoint_fault *f = &grown[checkpoint->n_faults++];
    *f = (lb_checkpoint_fault){kind, copy(tensor), copy(file), file ? lb_rank_in_name(file, &stated) : -1,
                               strdup(message)};
    read->failed |= !f->message;
}

static void tell_entry(void *context, const char *name, const char *text)
{
    reading *read = (reading *)context;
    lb_checkpoint *checkpoint = read->c;
    lb_checkpoint_entry *grown =
        (lb_checkpoint_entry *)realloc(checkpoint->entries, (checkpoint->n_entries + 1u) * sizeof *grown);
    if (!grown) {
        read->failed = true;
        return;
    }
    checkpoint->entries = grown;
    lb_checkpoint_entry *e = &grown[checkpoint->n_entries++];
    *e = (lb_checkpoint_entry){strdup(name), strdup(text),
                               checkpoint->tensors->n_memory ? checkpoint->tensors->n_memory - 1 : 0};
    read->failed |= !e->name || !e->text;
}

static void tell_unread(void *context, const char *name, const char *type, const lb_layout *shape)
{
    reading *read = (reading *)context;
    lb_checkpoint *checkpoint = read->c;
    lb_checkpoint_unread *grown = lb_array_grow(checkpoint->unread, checkpoint->n_unread, sizeof *grown);
    if (!grown) {
        read->failed = true;
        return;
    }
    checkpoint->unread = grown;
    lb_checkpoint_unread *u = &grown[checkpoint->n_unread++];
    *u = (lb_checkpoint_unread){strdup(name), strdup(type), *shape, checkpoint->tensors->n_memory - 1};
    read->failed |= !u->name || !u->type;
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

static bool is_read(const lb_checkpoint *checkpoint, const char *path)
{
    for (uint32_t i = 0; i < checkpoint->tensors->n_memory; i++)
        if (checkpoint->tensors->memory[i].path && strcmp(checkpoint->tensors->memory[i].path, path) == 0) return true;
    for (uint32_t i = 0; i < checkpoint->n_faults; i++)
        if (checkpoint->faults[i].file && strcmp(base_name(checkpoint->faults[i].file), base_name(path)) == 0)
            return true;
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
static bool is_left_over(const lb_checkpoint *checkpoint, const char *path, const lb_input_names *indexes)
{
    const char *name = base_name(path);
    for (uint32_t i = 0; i < indexes->n; i++) {
        const char *index = base_name(indexes->rows[i]);
        size_t stem = strcspn(index, ".");
        bool damaged = false;
        for (uint32_t k = 0; k < checkpoint->n_faults; k++)
            damaged |= checkpoint->faults[k].file && !checkpoint->faults[k].tensor &&
                       strcmp(base_name(checkpoint->faults[k].file), index) == 0;
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
static lb_status tell_failure(const reading *read, const char *path, uint32_t row, const lb_err *why, lb_err *err)
{
    if (lb_is_refusal(why->status)) return lb_fail(err, why->status, "%s", why->message);
    const lb_foreign_tensors *tensors = read->c->tensors;
    const lb_foreign_memory *map = tensors->n_memory > row ? &tensors->memory[row] : NULL;
    return lb_foreign_fault(
        tensors, lb_foreign_damage(why->status, path, map ? (const char *)map->bytes : NULL, map ? map->size : 0), NULL,
        path, why, err);
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
static lb_status read_one(reading *read, const char *path, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const uint32_t before = read->c->tensors->n_memory;
    lb_status status = lb_foreign_read_file(read->c->tensors, path, &why);
    if (status == LB_ERR_UNSUPPORTED && strcmp(path, read->c->path) == 0 && !read->c->n_entries)
        return lb_fail(err, is_known_kind(path) ? status : LB_ERR_CORRUPT, "%s", why.message);
    return status == LB_OK || status == LB_ERR_UNSUPPORTED ? LB_OK : tell_failure(read, path, before, &why, err);
}

/* An index or a .metadata: files behind it cannot be understood without it. */
static lb_status read_description(reading *read, const char *folder, const char *path, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const uint32_t before = read->c->tensors->n_memory;
    lb_status status = folder ? lb_distributed_read(read->c->tensors, folder, path, &why)
                              : lb_safetensors_read_index(read->c->tensors, path, &why);
    if (status == LB_OK) return LB_OK;
    return status == LB_ERR_CORRUPT ? tell_failure(read, path, before, &why, err)
                                    : lb_fail(err, status, "%s", why.message);
}

static lb_status read_folder(reading *read, const char *folder, lb_err *err)
{
    char *metadata;
    LB_TRY(lb_foreign_find_metadata(folder, &metadata, err));
    if (metadata) {
        read->c->distributed = true;
        const lb_status described = read_description(read, folder, metadata, err);
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
            status = read_description(read, NULL, indexes.rows[i], err);
            read->indexed = true;
        }
    for (uint32_t i = 0; i < files.n && status == LB_OK; i++) {
        const char *path = files.rows[i];
        if (is_read(read->c, path) || is_other_format(path, &files, &indexes)) continue;
        if (!is_left_over(read->c, path, &indexes)) {
            status = read_one(read, path, err);
            continue;
        }
        char message[512];
        snprintf(message, sizeof message, "%.200s is not named by the index beside it: left from another save?",
                 base_name(path));
        tell_fault(read, LB_FAULT_UNEXPECTED, NULL, path, message);
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

static lb_status list_pieces(lb_checkpoint *checkpoint, lb_err *err)
{
    lb_foreign_tensors *tensors = checkpoint->tensors;
    size_t folder = strlen(checkpoint->path);
    checkpoint->files = (lb_checkpoint_file *)calloc(tensors->n_memory + 1u, sizeof *checkpoint->files);
    checkpoint->pieces = (lb_checkpoint_piece *)calloc(tensors->n + 1u, sizeof *checkpoint->pieces);
    if (!checkpoint->files || !checkpoint->pieces)
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    for (checkpoint->n_files = 0; checkpoint->n_files < tensors->n_memory; checkpoint->n_files++) {
        const lb_foreign_memory *m = &tensors->memory[checkpoint->n_files];
        lb_checkpoint_file *f = &checkpoint->files[checkpoint->n_files];
        const char *path = m->path               ? m->path
                           : checkpoint->n_files ? checkpoint->files[checkpoint->n_files - 1].path
                                                 : "";
        if (m->path && strncmp(path, checkpoint->path, folder) == 0 && path[folder])
            path += folder + (path[folder] == '/');
        int32_t stated = 0;
        *f = (lb_checkpoint_file){strdup(path), lb_rank_in_name(path, &stated), m->size, -1, checkpoint->n_files};
        if (!f->path) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
        if (stated > checkpoint->ranks_stated) checkpoint->ranks_stated = stated;
    }
    if (!checkpoint->distributed && !lb_rank_grid_place(checkpoint))
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
    for (uint32_t i = 0; i < tensors->n; i++) {
        if (!name_layer(&tensors->rows[i], lb_foreign_file(tensors, &tensors->rows[i])))
            return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", checkpoint->path);
        const lb_foreign_tensor *row = &tensors->rows[i];
        const lb_foreign_memory *m = lb_foreign_file(tensors, row);
        lb_checkpoint_piece *p = &checkpoint->pieces[checkpoint->n_pieces++];
        p->name = row->name;
        p->tensor = row->tensor;
        p->file = m ? (uint32_t)(m - tensors->memory) : 0;
        p->rank = checkpoint->files[p->file].rank;
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
static bool names_are_shared(lb_checkpoint *checkpoint)
{
    uint32_t shared = 0, names = 0;
    qsort(checkpoint->pieces, checkpoint->n_pieces, sizeof *checkpoint->pieces, by_name);
    for (uint32_t i = 0, behind; i < checkpoint->n_pieces; i = behind) {
        bool several = false;
        for (behind = i + 1;
             behind < checkpoint->n_pieces && strcmp(checkpoint->pieces[i].name, checkpoint->pieces[behind].name) == 0;
             behind++)
            several |= checkpoint->pieces[behind].file != checkpoint->pieces[i].file;
        names++;
        shared += several;
    }
    return shared * 2 > names;
}

/* The lowest number that files carry, so that ranks begin at 0. */
static void number_ranks(lb_checkpoint *checkpoint)
{
    bool numbered = checkpoint->ranks_stated > 0;
    checkpoint->rank_files =
        checkpoint->n_pieces && !checkpoint->distributed && (!numbered || names_are_shared(checkpoint));
    int32_t top = -1, low = INT32_MAX;
    for (uint32_t i = 0; i < checkpoint->n_pieces; i++) {
        if (checkpoint->pieces[i].rank > top) top = checkpoint->pieces[i].rank;
        if (checkpoint->pieces[i].rank >= 0 && checkpoint->pieces[i].rank < low) low = checkpoint->pieces[i].rank;
    }
    const int32_t first = numbered && low > 0 && top == checkpoint->ranks_stated ? 1 : 0;
    bool several = false;
    for (uint32_t i = 1; i < checkpoint->n_pieces; i++)
        several |= checkpoint->pieces[i].file != checkpoint->pieces[0].file;
    for (uint32_t i = 0; i < checkpoint->n_faults; i++)
        several |= checkpoint->faults[i].rank >= 0 && checkpoint->faults[i].rank != top;
    checkpoint->rank_files &= top >= 0 && (several || numbered);
    for (uint32_t i = 0; i < checkpoint->n_pieces; i++)
        checkpoint->pieces[i].rank = checkpoint->rank_files || checkpoint->distributed
                                         ? checkpoint->pieces[i].rank - (checkpoint->pieces[i].rank >= 0 ? first : 0)
                                         : -1;
    for (uint32_t i = 0; i < checkpoint->n_files; i++)
        if (!checkpoint->rank_files && !checkpoint->distributed) checkpoint->files[i].rank = -1;
    for (uint32_t i = 0; i < checkpoint->n_faults && checkpoint->rank_files; i++)
        if (checkpoint->faults[i].rank > top) top = checkpoint->faults[i].rank;
    if (checkpoint->rank_files || checkpoint->distributed) checkpoint->ranks = top + 1 - first;
    if (checkpoint->rank_files && checkpoint->ranks_stated > checkpoint->ranks)
        checkpoint->ranks = checkpoint->ranks_stated;
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
static bool drop_consequences(lb_checkpoint *checkpoint)
{
    uint32_t n = 0;
    causes x = {.c = checkpoint};
    bool *dropped = (bool *)malloc(checkpoint->n_faults + 1u);
    const bool made = dropped && gather_causes(&x);
    for (uint32_t i = 0; made && i < checkpoint->n_faults; i++) dropped[i] = is_consequence(&x, &checkpoint->faults[i]);
    lb_hash_release(&x.files), lb_hash_release(&x.tensors);
    if (!made) {
        free(dropped);
        return false;
    }
    for (uint32_t i = 0; i < checkpoint->n_faults; i++) {
        lb_checkpoint_fault *f = &checkpoint->faults[i];
        if (!dropped[i]) {
            checkpoint->faults[n++] = *f;
            continue;
        }
        free(f->tensor);
        free(f->file);
        free(f->message);
    }
    checkpoint->n_faults = n;
    free(dropped);
    return true;
}

/* A file of this rank, whatever its name tells. */
static void tell_no_file(reading *read, const char *path, int32_t rank, const char *message)
{
    const uint32_t before = read->c->n_faults;
    tell_fault(read, LB_FAULT_NO_FILE, NULL, path, message);
    if (read->c->n_faults > before) read->c->faults[before].rank = rank;
}

/* Files of a numbered row ("-of-00004") that are not there, where no index told it. */
static void tell_absent(reading *read)
{
    lb_checkpoint *checkpoint = read->c;
    for (uint32_t i = 0; i < checkpoint->n_files; i++) {
        if (i && strcmp(checkpoint->files[i].path, checkpoint->files[i - 1].path) == 0)
            continue; /* members of one archive */
        const char *of = strstr(checkpoint->files[i].path, "-of-");
        int32_t stated = 0, number = lb_rank_in_name(checkpoint->files[i].path, &stated);
        if (!of || stated < 2 || number < 0 || of - checkpoint->files[i].path < 6) continue;
        bool there[1024] = {false}, first = true;
        if (stated > 1000) return;
        for (uint32_t k = 0; k < checkpoint->n_files; k++) {
            int32_t other_stated = 0, other = lb_rank_in_name(checkpoint->files[k].path, &other_stated);
            if (other_stated == stated && other >= 0 && other <= stated) {
                there[other] = true;
                first &= k >= i;
            }
        }
        for (uint32_t k = 0; k < checkpoint->n_faults; k++) {
            int32_t other_stated = 0, other = checkpoint->faults[k].file
                                                  ? lb_rank_in_name(checkpoint->faults[k].file, &other_stated)
                                                  : -1;
            if (other_stated == stated && other >= 0 && other <= stated) there[other] = true;
        }
        const int begin = there[0] || !there[stated] ? 0 : 1;
        for (int n = begin; first && n < begin + stated; n++) {
            char path[512], message[600];
            if (there[n] || (begin == 0 && n == 0 && !checkpoint->rank_files)) continue;
            snprintf(path, sizeof path, "%.*s%05d%s", (int)(of - checkpoint->files[i].path) - 5,
                     checkpoint->files[i].path, n, of);
            snprintf(message, sizeof message, "%s is not there: %s belongs to a row of %d files", path,
                     checkpoint->files[i].path, stated);
            tell_no_file(read, path, checkpoint->rank_files ? n - begin : -1, message);
        }
        if (first) return;
    }
}

/* A file that the grid of ranks' files lacks. */
static void tell_absent_place(void *context, const char *path, int32_t rank, const char *like)
{
    reading *read = (reading *)context;
    char message[700];
    snprintf(message, sizeof message, "%s is not there: %s is one of the files that each rank writes", path, like);
    tell_no_file(read, path, rank, message);
    if (rank >= read->c->ranks) read->c->ranks = rank + 1;
}

lb_status lb_checkpoint_open(const char *path, lb_checkpoint **checkpoint, lb_err *err)
{
    lb_checkpoint *opened = (lb_checkpoint *)calloc(1, sizeof *opened);
    if (!opened || !(opened->path = strdup(path)) ||
        !(opened->tensors = (lb_foreign_tensors *)calloc(1, sizeof *opened->tensors))) {
        lb_checkpoint_close(opened);
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    }
    for (size_t n = strlen(opened->path); n > 1 && opened->path[n - 1] == '/'; n--) opened->path[n - 1] = '\0';
    reading read = {opened, false, false};
    const lb_foreign_listener listener = {&read, tell_fault, tell_entry, tell_unread};
    opened->tensors->listener = &listener;
    struct stat st;
    lb_status status = LB_OK;
    lb_err why = LB_ERR_INIT;
    if (lb_input_look(opened->path, &st, &why) == LB_ERR_NOT_FOUND)
        status = lb_fail(err, LB_ERR_NOT_FOUND, "%s: is not there: name a checkpoint, a file or a folder", path);
    else if (why.status != LB_OK)
        status = lb_fail(err, why.status, "%s", why.message);
    else if (!S_ISDIR(st.st_mode) && (!S_ISREG(st.st_mode) || st.st_size == 0))
        status = lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: is empty or no regular file", path);
    else if (access(opened->path, R_OK) != 0)
        status = lb_fail(err, LB_ERR_IO, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        status = read_folder(&read, opened->path, err);
    else if (lb_foreign_ends_with(opened->path, ".index.json"))
        status = read_description(&read, NULL, opened->path, err), read.indexed = true;
    else
        status = read_one(&read, opened->path, err);
    if (status == LB_OK) status = list_pieces(opened, err);
    if (status == LB_OK) {
        number_ranks(opened);
        if (!read.indexed) tell_absent(&read);
        if (!read.indexed && opened->rank_files) lb_rank_grid_absent(opened, tell_absent_place, &read);
        read.failed |= !drop_consequences(opened);
        if (opened->n_pieces) qsort(opened->pieces, opened->n_pieces, sizeof *opened->pieces, by_name_and_place);
        if (!opened->n_pieces && !opened->n_faults && !opened->n_unread)
            status = lb_fail(err, LB_ERR_UNSUPPORTED, "%s: holds no tensors that are read", path);
        if (read.failed) status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    }
    opened->tensors->listener = NULL;
    if (status != LB_OK) {
        lb_checkpoint_close(opened);
        return status;
    }
    *checkpoint = opened;
    return LB_OK;
}

void lb_checkpoint_close(lb_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    for (uint32_t i = 0; i < checkpoint->n_faults; i++) {
        free(checkpoint->faults[i].tensor);
        free(checkpoint->faults[i].file);
        free(checkpoint->faults[i].message);
    }
    for (uint32_t i = 0; i < checkpoint->n_entries; i++) {
        free(checkpoint->entries[i].name);
        free(checkpoint->entries[i].text);
    }
    for (uint32_t i = 0; i < checkpoint->n_unread; i++) {
        free(checkpoint->unread[i].name);
        free(checkpoint->unread[i].type);
    }
    for (uint32_t i = 0; checkpoint->files && i < checkpoint->n_files; i++) free(checkpoint->files[i].path);
    if (checkpoint->tensors) lb_foreign_tensors_release(checkpoint->tensors);
    free(checkpoint->tensors);
    free(checkpoint->faults);
    free(checkpoint->entries);
    free(checkpoint->unread);
    free(checkpoint->files);
    free(checkpoint->pieces);
    free(checkpoint->path);
    free(checkpoint);
}
