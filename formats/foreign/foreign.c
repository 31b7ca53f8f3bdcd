/* See foreign.h. The readers gather named tensors; here they become a program, and its digests find their bytes
 * again. */
#include "foreign/foreign.h"

#include "foreign/foreign_tensors.h"
#include "foreign/foreign_torch.h"
#include "foreign/pickle_tree.h"

#include "base/array.h"
#include <lastbit/input.h>
#include <lastbit/json_text.h>
#include <lastbit/text.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct blob_row {
    lb_digest digest;
    uint32_t tensor;
} blob_row;

struct lb_foreign {
    char *path;
    lb_foreign_tensors tensors;
    pthread_mutex_t lock;
    lb_program *program; /* made on first use */
    blob_row *blobs;     /* by digest */
};

/* ---- gathering --------------------------------------------------------------------------------------------------- */

static lb_status add_memory(lb_foreign_tensors *tensors, void *bytes, size_t size, const char *mapped, lb_err *err)
{
    lb_foreign_memory *grown = lb_array_grow(tensors->memory, tensors->n_memory, sizeof *grown);
    char *path = mapped ? strdup(mapped) : NULL;
    if (grown) tensors->memory = grown;
    if (!grown || (mapped && !path)) {
        free(path);
        if (mapped)
            munmap(bytes, size);
        else
            free(bytes);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    grown[tensors->n_memory++] = (lb_foreign_memory){bytes, size, path};
    return LB_OK;
}

lb_status lb_foreign_own(lb_foreign_tensors *tensors, void *bytes, size_t size, lb_err *err)
{
    return add_memory(tensors, bytes, size, NULL, err);
}

lb_status lb_foreign_map(lb_foreign_tensors *tensors, const char *path, const char **bytes, size_t *size, lb_err *err)
{
    LB_TRY(lb_input_map(path, bytes, size, err));
    const lb_status kept = add_memory(tensors, (void *)(uintptr_t)*bytes, *size, path, err);
    if (kept != LB_OK) *bytes = NULL, *size = 0; /* it is mapped no more */
    LB_TRY(kept);
    lb_decode_limit_open(&tensors->limit, *size);
    static const char pointer[] = "version https://git-lfs.github.com/spec/";
    if (*size > sizeof pointer && memcmp(*bytes, pointer, sizeof pointer - 1) == 0)
        return lb_fail(err, LB_ERR_CORRUPT,
                       "%s: offset 0: is a pointer of Git LFS, not the file: git lfs pull fetches it", path);
    return LB_OK;
}

/* Tensors that show bytes again, expanded or one over the other, are read again: what they show beyond the bytes of the
 * files counts as decoded. */
static lb_status count_shown(lb_foreign_tensors *tensors, const char *name, lb_dtype dtype, const lb_layout *layout,
                             lb_err *err)
{
    char what[400];
    const char *file = tensors->n_memory ? tensors->memory[tensors->n_memory - 1].path : NULL;
    const uint64_t bytes = lb_dtype_bytes(dtype, (size_t)lb_layout_numel(layout)), stored = tensors->limit.stored,
                   before = tensors->shown > stored ? tensors->shown - stored : 0;
    tensors->shown = bytes > UINT64_MAX - tensors->shown ? UINT64_MAX : tensors->shown + bytes;
    if (tensors->shown <= stored) return LB_OK;
    snprintf(what, sizeof what, "%.250s: tensor '%.100s', whose bytes are shown more than once", file ? file : "",
             name);
    return lb_decode_limit_pass(&tensors->limit, tensors->shown - stored - before, what, err);
}

lb_status lb_foreign_add(lb_foreign_tensors *tensors, const char *name, size_t n, lb_dtype dtype,
                         const lb_layout *layout, const void *data, size_t size, lb_err *err)
{
    if (data) LB_TRY(count_shown(tensors, name, dtype, layout, err)); /* what is packed counts when it is unpacked */
    lb_foreign_tensor *grown = lb_array_grow(tensors->rows, tensors->n, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    tensors->rows = grown;
    lb_foreign_tensor *row = &tensors->rows[tensors->n];
    row->name = lb_text_escaped(tensors->names, name, n);
    if (!row->name) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    row->tensor = (lb_tensor){(void *)(uintptr_t)data, dtype, *layout};
    row->size = size;
    row->memory = tensors->n_memory ? tensors->n_memory - 1 : 0;
    row->part = NULL;
    row->packed = NULL;
    tensors->n++;
    return LB_OK;
}

lb_status lb_foreign_set_part(lb_foreign_tensors *tensors, const lb_layout *whole, const int64_t *start, lb_err *err)
{
    lb_foreign_part *part = (lb_foreign_part *)calloc(1, sizeof *part);
    if (!part) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    part->whole = *whole;
    memcpy(part->start, start, (size_t)whole->ndim * sizeof *start);
    tensors->rows[tensors->n - 1].part = part;
    return LB_OK;
}

/* An empty tensor may stand at the end. */
static bool lies_in(const lb_foreign_memory *memory, const char *data)
{
    const char *begin = (const char *)memory->bytes;
    return data >= begin && data <= begin + memory->size;
}

const lb_foreign_memory *lb_foreign_file(const lb_foreign_tensors *tensors, const lb_foreign_tensor *row)
{
    const char *data = (const char *)row->tensor.data;
    if (row->memory < tensors->n_memory && lies_in(&tensors->memory[row->memory], data))
        return &tensors->memory[row->memory];
    for (uint32_t i = tensors->n_memory; i-- > 0;)
        if (lies_in(&tensors->memory[i], data)) return &tensors->memory[i];
    return NULL;
}

lb_status lb_foreign_fault(const lb_foreign_tensors *tensors, lb_fault_kind kind, const char *tensor, const char *file,
                           const lb_err *why, lb_err *err)
{
    if (!tensors->listener || lb_is_refusal(why->status)) return lb_fail(err, why->status, "%s", why->message);
    char *name = tensor ? lb_text_escaped(tensors->names, tensor, strlen(tensor)) : NULL;
    if (tensor && !name) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    tensors->listener->fault(tensors->listener->context, kind, name, file, why->message);
    free(name);
    return LB_OK;
}

void lb_foreign_tensors_release(lb_foreign_tensors *tensors)
{
    for (uint32_t i = 0; i < tensors->n; i++) {
        free(tensors->rows[i].name);
        free(tensors->rows[i].part);
        free(tensors->rows[i].packed);
    }
    for (uint32_t i = 0; i < tensors->n_memory; i++) {
        if (tensors->memory[i].path)
            munmap(tensors->memory[i].bytes, tensors->memory[i].size);
        else
            free(tensors->memory[i].bytes);
        free(tensors->memory[i].path);
    }
    free(tensors->rows);
    free(tensors->memory);
    free(tensors->metadata);
    lb_decode_limit_close(&tensors->limit);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

bool lb_foreign_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Names in a folder: its safetensors index if there is one, otherwise every *.safetensors. No names when it holds
 * archives. */
static lb_status list_folder(const char *folder, lb_input_names *names, lb_err *err)
{
    LB_TRY(lb_input_list(folder, names, err));
    bool archives = false, index = false;
    for (uint32_t i = 0; i < names->n; i++) {
        archives |= strncmp(names->rows[i], "rank-", 5) == 0 && lb_foreign_ends_with(names->rows[i], ".tar");
        index |= lb_foreign_ends_with(names->rows[i], ".safetensors.index.json");
    }
    const char *end = index ? ".safetensors.index.json" : ".safetensors";
    uint32_t kept = 0;
    for (uint32_t i = 0; i < names->n; i++)
        if (archives || (index && kept) || !lb_foreign_ends_with(names->rows[i], end))
            free(names->rows[i]);
        else
            names->rows[kept++] = names->rows[i];
    names->n = kept;
    return LB_OK;
}

lb_status lb_foreign_find_metadata(const char *folder, char **path, lb_err *err)
{
    struct stat found;
    *path = (char *)malloc(strlen(folder) + sizeof "/.metadata");
    if (!*path) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", folder);
    sprintf(*path, "%s/.metadata", folder);
    lb_err why = LB_ERR_INIT;
    const lb_status status = lb_input_look(*path, &found, &why);
    if (status != LB_OK || !S_ISREG(found.st_mode)) free(*path), *path = NULL;
    return status == LB_OK || status == LB_ERR_NOT_FOUND ? LB_OK : lb_fail(err, status, "%s", why.message);
}

lb_status lb_foreign_recognises(const char *path, bool folder, bool *foreign, lb_err *err)
{
    static const char *const ends[] = {".safetensors", ".safetensors.index.json", ".npy", ".npz", ".pt", ".pth",
                                       ".gguf"};
    *foreign = false;
    if (folder) {
        char *metadata;
        LB_TRY(lb_foreign_find_metadata(path, &metadata, err));
        *foreign = metadata != NULL;
        free(metadata);
        if (*foreign) return LB_OK;
        lb_input_names names;
        const lb_status status = list_folder(path, &names, err);
        *foreign = status == LB_OK && names.n > 0;
        lb_input_names_release(&names);
        return status;
    }
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) *foreign |= lb_foreign_ends_with(path, ends[i]);
    return LB_OK;
}

lb_status lb_foreign_read_file(lb_foreign_tensors *tensors, const char *path, lb_err *err)
{
    const char *bytes, *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t size;
    if (lb_foreign_ends_with(path, ".index.json")) return lb_safetensors_read_index(tensors, path, err);
    LB_TRY(lb_foreign_map(tensors, path, &bytes, &size, err));
    if (lb_foreign_ends_with(path, ".safetensors")) return lb_safetensors_read(tensors, path, bytes, size, err);
    if (lb_foreign_ends_with(path, ".pt") || lb_foreign_ends_with(path, ".pth") || lb_foreign_ends_with(path, ".bin"))
        return lb_torch_read(tensors, path, bytes, size, err);
    if (lb_foreign_ends_with(path, ".npz")) return lb_npz_read(tensors, path, bytes, size, err);
    if (lb_foreign_ends_with(path, ".gguf")) return lb_foreign_gguf_read(tensors, path, bytes, size, err);
    if (!lb_foreign_ends_with(path, ".npy"))
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "%s: %s: safetensors, torch.save's .pt, .pth and .bin, .npy, .npz and .gguf are read", path,
                       size >= 4 && memcmp(bytes, "GGUF", 4) == 0 ? "is GGUF that is not named so; name it NAME.gguf"
                                                                  : "is of no format that is read");
    char stem[256];
    snprintf(stem, sizeof stem, "%.*s", (int)(strlen(name) - 4), name);
    return lb_foreign_npy_read(tensors, path, stem, bytes, size, err);
}

lb_fault_kind lb_foreign_damage(lb_status status, const char *path, const char *bytes, size_t size)
{
    uint64_t header = 0;
    if (status == LB_ERR_NOT_FOUND) return LB_FAULT_NO_FILE;
    if (!bytes) return LB_FAULT_TRUNCATED; /* empty */
    if (lb_foreign_ends_with(path, ".safetensors")) {
        if (size >= 8) memcpy(&header, bytes, 8);
        return size < 8 || (header > size - 8 && header < 1u << 28) ? LB_FAULT_TRUNCATED : LB_FAULT_DAMAGED;
    }
    if (lb_foreign_ends_with(path, ".json")) {
        json_error_t why = {.text = ""};
        json_decref(lb_decode_limit_json(bytes, size, 0, lb_decode_limit_room(), &why));
        const bool at_end = why.position >= 0 && (size_t)why.position >= size; /* a cut `true` is no word */
        const bool cut = json_error_code(&why) == json_error_premature_end_of_input || at_end;
        return why.text[0] && cut ? LB_FAULT_TRUNCATED : LB_FAULT_DAMAGED;
    }
    if (lb_foreign_ends_with(path, ".gguf"))
        return lb_foreign_gguf_is_cut(bytes, size) ? LB_FAULT_TRUNCATED : LB_FAULT_DAMAGED;
    if (lb_foreign_ends_with(path, ".metadata"))
        return lb_pickle_is_cut(bytes, size) ? LB_FAULT_TRUNCATED : LB_FAULT_DAMAGED;
    bool zip = size >= 4 && memcmp(bytes, "PK\3\4", 4) == 0, ended = false;
    for (size_t back = 22; zip && !ended && back <= size && back < 22 + 65536; back++)
        ended = memcmp(bytes + size - back, "PK\5\6", 4) == 0;
    return (zip && !ended) || size < 4 ? LB_FAULT_TRUNCATED : LB_FAULT_DAMAGED;
}

static lb_status read_folder(lb_foreign_tensors *tensors, const char *folder, lb_err *err)
{
    char *metadata;
    LB_TRY(lb_foreign_find_metadata(folder, &metadata, err));
    if (metadata) {
        lb_status read = lb_distributed_read(tensors, folder, metadata, err);
        free(metadata);
        return read;
    }
    lb_input_names names;
    lb_status status = list_folder(folder, &names, err);
    for (uint32_t i = 0; i < names.n && status == LB_OK; i++) {
        char *path = (char *)malloc(strlen(folder) + strlen(names.rows[i]) + 2);
        if (!path) {
            status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", folder);
            break;
        }
        sprintf(path, "%s/%s", folder, names.rows[i]);
        status = lb_foreign_read_file(tensors, path, err);
        free(path);
    }
    lb_input_names_release(&names);
    return status;
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const lb_foreign_tensor *)a)->name, ((const lb_foreign_tensor *)b)->name);
}

lb_status lb_foreign_open(const char *path, lb_foreign **foreign, lb_err *err)
{
    lb_foreign *opened = (lb_foreign *)calloc(1, sizeof *opened);
    if (!opened || !(opened->path = strdup(path))) {
        free(opened);
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    }
    pthread_mutex_init(&opened->lock, NULL);
    struct stat found;
    lb_status status = lb_input_look(path, &found, err);
    if (status == LB_OK)
        status = S_ISDIR(found.st_mode) ? read_folder(&opened->tensors, path, err)
                                        : lb_foreign_read_file(&opened->tensors, path, err);
    if (status != LB_OK) {
        lb_foreign_close(opened);
        return status;
    }
    if (opened->tensors.n)
        qsort(opened->tensors.rows, opened->tensors.n, sizeof *opened->tensors.rows,
              by_tensor_name); /* JSON objects have no order */
    *foreign = opened;
    return LB_OK;
}

void lb_foreign_close(lb_foreign *foreign)
{
    if (!foreign) return;
    lb_program_free(foreign->program);
    lb_foreign_tensors_release(&foreign->tensors);
    pthread_mutex_destroy(&foreign->lock);
    free(foreign->blobs);
    free(foreign->path);
    free(foreign);
}

/* ---- as a program ------------------------------------------------------------------------------------------------ */

/* "model.layers.3.mlp.weight" belongs to the layer "model.layers.3.mlp". */
static uint32_t scope_of(lb_program *program, const char *name)
{
    const char *dot = strrchr(name, '.');
    if (!dot) return 0;
    char *path = strndup(name, (size_t)(dot - name));
    uint32_t scope = path ? lb_program_scope(program, path, NULL, 0) : LB_NONE;
    free(path);
    return scope;
}

static lb_status digests_of(lb_foreign *foreign, lb_foreign_tensor *row, lb_digest *logical, lb_digest *blob,
                            lb_err *err)
{
    char where[400];
    if (row->packed) return lb_npz_digests(&foreign->tensors, row, logical, blob, err);
    const uint64_t read = lb_dtype_bytes(row->tensor.dtype, (size_t)lb_layout_numel(&row->tensor.layout));
    snprintf(where, sizeof where, "%.250s: tensor '%.100s'", foreign->path, row->name);
    LB_TRY(lb_decode_limit_pass(&foreign->tensors.limit, read, where, err));
    *logical = lb_digest_tensor(&row->tensor);
    *blob = lb_digest_bytes(row->tensor.data, row->size);
    return LB_OK;
}

static bool add_source(lb_program *program, const lb_foreign_tensor *row, int64_t storage, lb_digest logical,
                       lb_digest blob)
{
    lb_value made;
    memset(&made, 0, sizeof made);
    made.storage = storage;
    made.layout = row->tensor.layout;
    made.dtype = row->tensor.dtype;
    made.flags = LB_VALUE_SOURCE | LB_VALUE_KEPT | LB_VALUE_PARAMETER;
    made.source = LB_SOURCE_PARAMETER;
    made.name = lb_program_string(program, row->name);
    made.statistics = LB_NONE;
    made.logical = logical;
    made.blob = blob;
    uint32_t value = lb_program_add_value(program, &made);
    lb_op op = {.name = lb_program_string(program, "lb::source"),
                .scope = scope_of(program, row->name),
                .node_name = LB_NONE,
                .node = -1,
                .results = 1};
    op.first_result = lb_program_add_refs(program, &value, 1);
    return made.name != LB_NONE && value != LB_NONE && op.name != LB_NONE && op.scope != LB_NONE &&
           op.first_result != LB_NONE && lb_program_add_op(program, &op) != LB_NONE;
}

static int by_digest(const void *a, const void *b)
{
    const lb_digest *x = &((const blob_row *)a)->digest, *y = &((const blob_row *)b)->digest;
    if (x->hi != y->hi) return x->hi < y->hi ? -1 : 1;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static lb_status make_program(lb_foreign *foreign, lb_err *err)
{
    uint32_t n = foreign->tensors.n;
    lb_program *program = lb_program_new();
    blob_row *blobs = (blob_row *)malloc((n + 1u) * sizeof *blobs);
    lb_status status = program && blobs ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", foreign->path);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        lb_digest logical;
        blobs[i].tensor = i;
        status = digests_of(foreign, &foreign->tensors.rows[i], &logical, &blobs[i].digest, err);
        if (status == LB_OK &&
            !add_source(program, &foreign->tensors.rows[i], (int64_t)i + 1, logical, blobs[i].digest))
            status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", foreign->path);
    }
    if (status == LB_OK) {
        program->complete = 1;
        program->level = 1;
        qsort(blobs, n, sizeof *blobs, by_digest);
        status = lb_program_validate(program, err);
    }
    if (status != LB_OK) {
        lb_program_free(program);
        free(blobs);
        return status;
    }
    foreign->blobs = blobs;
    foreign->program = program;
    return LB_OK;
}

const char *lb_foreign_metadata(const lb_foreign *foreign)
{
    return foreign->tensors.metadata;
}

lb_status lb_foreign_program(lb_foreign *foreign, const lb_program **program, lb_err *err)
{
    pthread_mutex_lock(&foreign->lock);
    lb_status status = foreign->program ? LB_OK : make_program(foreign, err);
    *program = foreign->program;
    pthread_mutex_unlock(&foreign->lock);
    return status;
}

static lb_foreign_tensor *find(lb_foreign *foreign, lb_digest digest)
{
    /* A caller that knows a digest has asked for the program before; if not, it is made now. */
    const lb_program *program;
    if (lb_foreign_program(foreign, &program, NULL) != LB_OK) return NULL;
    blob_row wanted = {digest, 0};
    const blob_row *row =
        (const blob_row *)bsearch(&wanted, foreign->blobs, foreign->tensors.n, sizeof *foreign->blobs, by_digest);
    return row ? &foreign->tensors.rows[row->tensor] : NULL;
}

bool lb_foreign_has_blob(lb_foreign *foreign, lb_digest digest)
{
    return find(foreign, digest) != NULL;
}

lb_status lb_foreign_blob(lb_foreign *foreign, lb_digest digest, const void **bytes, size_t *size, lb_err *err)
{
    lb_foreign_tensor *row = find(foreign, digest);
    if (!row) return lb_fail(err, LB_ERR_NOT_CAPTURED, "%s: holds no such bytes", foreign->path);
    pthread_mutex_lock(&foreign->lock);
    const lb_status status = row->packed ? lb_npz_unpack(&foreign->tensors, row, err) : LB_OK;
    pthread_mutex_unlock(&foreign->lock);
    LB_TRY(status);
    *bytes = row->tensor.data;
    *size = row->size;
    return LB_OK;
}
