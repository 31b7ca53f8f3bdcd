/* safetensors: u64 length of a JSON header, the header, the bytes. Sharded: a JSON index that names the files.
 * https://github.com/huggingface/safetensors (README, "Format"). Every size is checked against the file. */
#define _GNU_SOURCE 1 /* memmem */
#include "foreign/foreign_tensors.h"
#include "foreign/foreign_torch.h"

#include <inttypes.h>
#include <lastbit/json_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MAX 100000000u /* the format's own limit */

/* A member of the header; `at`: where its name stands in the file. */
typedef struct member {
    const char *source, *name;
    uint64_t at;
} member;

static lb_status bad(lb_err *err, const member *member, const char *what)
{
    return lb_fail(err, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": tensor '%.100s': %s", member->source, member->at,
                   member->name, what);
}

/* Where names stand in JSON text, for messages: a parsed document does not tell. Names are asked for mostly in the
 * order of the text, so that each is near the last one; others cost a pass over all of it, and only the first few get
 * one: a file may have a million of them. */
typedef struct places {
    const char *text;
    size_t size, last;
    unsigned passes;
} places;

/* 0: not found (an escaped name is not), or not looked for. */
static uint64_t place_of(places *places, const char *name)
{
    enum { NEAR = 4096, MOST_PASSES = 64 };
    const size_t n = strlen(name), left = places->size - places->last;
    const char *at = memmem(places->text + places->last, left < NEAR ? left : NEAR, name, n);
    if (!at && places->passes < MOST_PASSES) places->passes++, at = memmem(places->text, places->size, name, n);
    if (at) places->last = (size_t)(at - places->text);
    return at ? places->last : 0;
}

static bool read_shape(const json_t *shape, lb_layout *layout)
{
    int64_t sizes[LB_MAX_DIMS];
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > LB_MAX_DIMS) return false;
    for (size_t d = 0; d < n; d++) {
        const json_t *size = json_array_get(shape, d);
        if (!json_is_integer(size) || json_integer_value(size) < 0) return false;
        sizes[d] = json_integer_value(size);
    }
    *layout = lb_layout_contiguous((int)n, sizes);
    return true;
}

static lb_status read_tensor(lb_foreign_tensors *tensors, const member *member, const json_t *entry, const char *data,
                             uint64_t data_size, lb_err *err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    lb_layout layout;
    if (!type || json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1)))
        return bad(err, member, "needs dtype, shape and two data_offsets");
    if (!read_shape(json_object_get(entry, "shape"), &layout))
        return bad(err, member, "shape is not a list of at most 16 sizes");
    lb_dtype dtype = lb_dtype_parse(type);
    if (dtype == LB_NO_DTYPE)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "%s: offset %" PRIu64 ": tensor '%.100s': dtype %.20s is not known",
                       member->source, member->at, member->name, type);
    json_int_t begin = json_integer_value(json_array_get(offsets, 0)),
               end = json_integer_value(json_array_get(offsets, 1));
    int64_t n = lb_layout_numel(&layout);
    bool fits = n >= 0 && end >= begin && lb_dtype_bytes(dtype, (size_t)n) == (uint64_t)(end - begin);
    if (begin < 0 || end < begin || (uint64_t)end > data_size) {
        lb_err why = LB_ERR_INIT;
        bad(&why, member, "data_offsets leave the file");
        return lb_foreign_fault(tensors, begin >= 0 && fits ? LB_FAULT_TRUNCATED : LB_FAULT_DAMAGED, member->name,
                                member->source, &why, err);
    }
    if (n < 0) return bad(err, member, "the product of its sizes overflows");
    if (!fits) return bad(err, member, "data_offsets do not fit its dtype and shape");
    return lb_foreign_add(tensors, member->name, strlen(member->name), dtype, &layout, data + begin,
                          (size_t)(end - begin), err);
}

/* The key in jansson's "duplicate object key near '"KEY"'", or NULL. */
static const char *repeated_key(const char *text, char *key)
{
    const char *begin = strchr(text, '"'), *end = strrchr(text, '"');
    if (!begin || end <= begin) return NULL;
    memcpy(key, begin + 1, (size_t)(end - begin - 1));
    key[end - begin - 1] = '\0';
    return key;
}

lb_status lb_safetensors_read(lb_foreign_tensors *tensors, const char *source, const char *bytes, size_t size,
                              lb_err *err)
{
    uint64_t length;
    if (size < 8) return lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: %zu bytes are no safetensors file", source, size);
    memcpy(&length, bytes, 8);
    if (length > size - 8 || length > HEADER_MAX)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: header of %" PRIu64 " bytes, the file has %zu", source,
                       length, size);
    json_error_t why;
    const uint64_t most = lb_decode_limit_room();
    json_t *header = lb_decode_limit_json(bytes + 8, length, JSON_REJECT_DUPLICATES, most, &why);
    if (!header && tensors->listener && json_error_code(&why) == json_error_duplicate_key) {
        lb_err twice = LB_ERR_INIT;
        char name[JSON_ERROR_TEXT_LENGTH];
        lb_fail(&twice, LB_ERR_CORRUPT, "%s: offset %d: header: %s", source, 8 + why.position, why.text);
        LB_TRY(lb_foreign_fault(tensors, LB_FAULT_DUPLICATE, repeated_key(why.text, name), source, &twice, err));
        header = lb_decode_limit_json(bytes + 8, length, 0, most, &why);
    }
    if (!json_is_object(header)) {
        json_decref(header);
        return lb_fail(err, header ? LB_ERR_CORRUPT : lb_decode_limit_json_status(LB_ERR_CORRUPT),
                       "%s: offset %d: header: %s", source, 8 + (header ? 0 : why.position),
                       header ? "is not an object" : why.text);
    }
    const char *name;
    json_t *entry;
    lb_status status = LB_OK;
    places where = {.text = bytes + 8, .size = length};
    tensors->names = LB_TEXT_CARRIED;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            free(tensors->metadata);
            tensors->metadata = json_dumps(entry, JSON_COMPACT);
            continue;
        }
        lb_err why = LB_ERR_INIT;
        const member member = {source, name, 8 + place_of(&where, name)};
        status = read_tensor(tensors, &member, entry, bytes + 8 + length, size - 8 - length, &why);
        if (status != LB_OK) status = lb_foreign_fault(tensors, LB_FAULT_DAMAGED, name, source, &why, err);
        if (status != LB_OK) break;
    }
    tensors->names = LB_TEXT_NAME;
    json_decref(header);
    return status;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* Shard names come from a file: they must stay in its folder. */
static bool is_plain_name(const char *name)
{
    return *name && *name != '.' && !strchr(name, '/') && strlen(name) < 256;
}

/* transformers' older shards: pytorch_model-00001-of-00002.bin. */
static bool is_torch(const char *name)
{
    size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".bin") == 0;
}

static lb_status read_shard(lb_foreign_tensors *tensors, const char *index_path, uint64_t at, const char *name,
                            lb_err *err)
{
    const char *slash = strrchr(index_path, '/'), *bytes = NULL;
    size_t folder = slash ? (size_t)(slash - index_path) + 1 : 0, size = 0;
    if (!is_plain_name(name))
        return lb_fail(err, LB_ERR_CORRUPT,
                       "%s: offset %" PRIu64 ": weight_map: '%.60s' is not a file name in this folder", index_path, at,
                       name);
    char *path = (char *)malloc(folder + strlen(name) + 1);
    if (!path) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", index_path);
    sprintf(path, "%.*s%s", (int)folder, index_path, name);
    lb_err why = LB_ERR_INIT, said = LB_ERR_INIT;
    lb_status status = lb_foreign_map(tensors, path, &bytes, &size, &why);
    if (status != LB_OK)
        lb_fail(&said, status, "%s: offset %" PRIu64 ": weight_map: %s", index_path, at, why.message);
    else if (is_torch(name))
        status = lb_torch_read(tensors, path, bytes, size, &said);
    else
        status = lb_safetensors_read(tensors, path, bytes, size, &said);
    if (status != LB_OK)
        status = lb_foreign_fault(tensors, lb_foreign_damage(status, path, bytes, size), NULL, path, &said, err);
    free(path);
    return status;
}

/* Every name of the map is in a shard, and in one only. */
static lb_status check_names(const lb_foreign_tensors *tensors, const json_t *map, const char *path, places *where,
                             lb_err *err)
{
    json_t *seen = json_object();
    lb_status status = seen ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    for (uint32_t i = 0; i < tensors->n && status == LB_OK; i++) {
        const char *name = tensors->rows[i].name;
        if (json_object_get(seen, name))
            status = bad(err, &(member){path, name, place_of(where, name)}, "weight_map: is in two shards");
        json_object_set_new(seen, name, json_true());
    }
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, name, file) if (status == LB_OK && !json_object_get(seen, name))
        status = bad(err, &(member){path, name, place_of(where, name)}, "weight_map: is in no shard");
    json_decref(seen);
    return status;
}

/* The base name of the file that the bytes at `data` are mapped from, or NULL. */
static const char *file_of(const lb_foreign_tensors *tensors, const lb_foreign_tensor *row)
{
    const lb_foreign_memory *file = lb_foreign_file(tensors, row);
    const char *slash = file && file->path ? strrchr(file->path, '/') : NULL;
    return slash ? slash + 1 : file ? file->path : NULL;
}

/* As check_names, but everything is told: in no shard, in two, in another than the map says, in none of the map's. */
static lb_status tell_names(const lb_foreign_tensors *tensors, const json_t *map, const char *path, places *where,
                            lb_err *err)
{
    json_t *seen = json_object(), *counts = json_object();
    lb_status status = seen && counts ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    for (uint32_t i = 0; i < tensors->n && status == LB_OK; i++) {
        const char *name = tensors->rows[i].name;
        json_object_set_new(counts, name, json_integer(json_integer_value(json_object_get(counts, name)) + 1));
    }
    for (uint32_t i = 0; i < tensors->n && status == LB_OK; i++) {
        lb_err why = LB_ERR_INIT;
        const char *name = tensors->rows[i].name, *file = file_of(tensors, &tensors->rows[i]);
        const char *first = json_string_value(json_object_get(seen, name)),
                   *said = json_string_value(json_object_get(map, name));
        bool again =
            json_integer_value(json_object_get(counts, name)) > 1; /* a duplicate, wherever the map says it is */
        lb_fault_kind kind = first ? LB_FAULT_DUPLICATE : said ? LB_FAULT_MISPLACED : LB_FAULT_UNEXPECTED;
        bool elsewhere = said && !again && file && strcmp(said, file) != 0;
        if (!first && said && !elsewhere) {
            json_object_set_new(seen, name, json_string(file ? file : ""));
            continue;
        }
        const uint64_t at = first || said ? place_of(where, name) : 0;
        if (first)
            lb_fail(&why, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": '%.100s' is in %s and in %s", path, at, name, first,
                    file ? file : "?");
        else if (!said)
            lb_fail(&why, LB_ERR_CORRUPT, "%s: '%.100s' is in %s, and not in the weight_map", path, name,
                    file ? file : "?");
        else
            lb_fail(&why, LB_ERR_CORRUPT, "%s: offset %" PRIu64 ": '%.100s' is in %s, weight_map says %s", path, at,
                    name, file, said);
        status = lb_foreign_fault(tensors, kind, name, file, &why, err);
        if (!first) json_object_set_new(seen, name, json_string(file ? file : ""));
    }
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, name, file)
    {
        lb_err why = LB_ERR_INIT;
        if (status != LB_OK || json_object_get(seen, name)) continue;
        bad(&why, &(member){path, name, place_of(where, name)}, "weight_map: is in no shard");
        status = lb_foreign_fault(tensors, LB_FAULT_MISSING, name, json_string_value(file), &why, err);
    }
    json_decref(counts);
    json_decref(seen);
    return status;
}

lb_status lb_safetensors_read_index(lb_foreign_tensors *tensors, const char *path, lb_err *err)
{
    const char *bytes, *name;
    size_t size;
    json_t *file;
    json_error_t why;
    LB_TRY(lb_foreign_map(tensors, path, &bytes, &size, err));
    json_t *index = lb_decode_limit_json(bytes, size, 0, lb_decode_limit_room(), &why),
           *map = json_object_get(index, "weight_map"), *done = json_object();
    places where = {.text = bytes, .size = size};
    lb_status status = LB_OK;
    if (!index)
        status = lb_fail(err, lb_decode_limit_json_status(LB_ERR_CORRUPT), "%s: offset %d: %s", path, why.position,
                         why.text);
    else if (!json_is_object(map) || !done)
        status = lb_fail(err, LB_ERR_CORRUPT, "%s: offset 0: has no weight_map", path);
    json_object_foreach(map, name, file)
    {
        const char *shard = json_string_value(file);
        if (status == LB_OK && !shard)
            status = bad(err, &(member){path, name, place_of(&where, name)}, "weight_map: names no file");
        if (status != LB_OK || json_object_get(done, shard)) continue;
        json_object_set_new(done, shard, json_true());
        status = read_shard(tensors, path, place_of(&where, shard), shard, err);
    }
    if (status == LB_OK)
        status = tensors->listener ? tell_names(tensors, map, path, &where, err)
                                   : check_names(tensors, map, path, &where, err);
    json_decref(done);
    json_decref(index);
    return status;
}
