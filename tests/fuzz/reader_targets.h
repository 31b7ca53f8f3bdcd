/* One function per reader: takes unchecked bytes and does with them whatever a command would do.
 *
 * The fuzzers and the test of their corpora are both made of these. What must hold besides "no crash, no leak": a
 * refusal names the source and the offset, memory is never what ran out, and what was accepted survives being written
 * again. */
#ifndef LB_TESTS_READER_TARGETS_H
#define LB_TESTS_READER_TARGETS_H
#include "archive/archive_reader.h"
#include "archive_repair.h"
#include "archive/coding.h"
#include "memory_files.h"
#include "base/msgpack_cursor.h"
#include "foreign/pickle_tree.h"
#include "parts/part_file.h"
#include "parts/parts_each.h"

#include <lastbit/checkpoint.h>
#include <lastbit/maintenance.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* X(name, what is put right after a mutation, what its input is) */
#define READER_TARGETS(X)                                                                                              \
    X(archive, repair_archive, "an archive")                                                                           \
    X(damaged, NULL, "an archive as it lies there")                                                                    \
    X(packed, repair_archive, "a packed capture")                                                                      \
    X(index, NULL, "a byte that chooses, then an index, pack directory, commit, descriptor or locator")                \
    X(program, NULL, "a program segment")                                                                              \
    X(table, NULL, "a table")                                                                                          \
    X(msgpack, NULL, "MessagePack of any kind")                                                                        \
    X(coding, NULL, "a coding, a size, and bytes stored so")                                                           \
    X(safetensors, NULL, "a safetensors file")                                                                         \
    X(shards, NULL, "an index over safetensors files")                                                                 \
    X(gguf, NULL, "a GGUF file")                                                                                       \
    X(npy, NULL, "a .npy file")                                                                                        \
    X(npz, NULL, "a .npz file")                                                                                        \
    X(pickle, NULL, "a pickle")                                                                                        \
    X(torch, NULL, "a .pt file")                                                                                       \
    X(distributed, NULL, "the .metadata of a distributed checkpoint, over one file of parts")                          \
    X(part, repair_part, "a part of a command: its question, and records")

static unsigned accepted_readings, refused_readings;

/* A refusal says where; these inputs are small, so memory never is the reason, and a limit says what raises it. */
static bool accepted(lb_status status, const lb_err *err, const char *source)
{
    accepted_readings += status == LB_OK;
    refused_readings += status != LB_OK;
    if (status == LB_OK) return true;
    bool says = strstr(err->message, source) &&
                (status == LB_ERR_UNSUPPORTED || status == LB_ERR_VERSION || status == LB_ERR_NOT_CAPTURED ||
                 strstr(err->message, "offset") || (status == LB_ERR_LIMIT && strstr(err->message, "--max-decoded")));
    if (says && status != LB_ERR_NOMEM && status == err->status) return false;
    fprintf(stderr, "%s: '%s'\n", lb_status_name(status), err->message);
    abort();
}

/* ---- programs and tables ----------------------------------------------------------------------------------------- */

static void count_input(void *context, uint32_t value)
{
    *(uint64_t *)context += value;
}

static void walk_program(const lb_program *p)
{
    uint64_t sum = 0;
    if (lb_program_validate(p, NULL) != LB_OK) abort();
    for (uint32_t i = 0; i < p->n_ops; i++) {
        lb_op_each_input(p, &p->ops[i], count_input, &sum);
        sum +=
            strlen(lb_op_name(p, &p->ops[i])) + strlen(lb_op_layer(p, &p->ops[i])) + strlen(lb_op_class(p, &p->ops[i]));
    }
}

static void target_program(const uint8_t *bytes, size_t size)
{
    lb_program *p, *again;
    void *out, *twice;
    size_t n, m;
    lb_err err = LB_ERR_INIT;
    if (!accepted(lb_program_decode(bytes, size, &p, &err), &err, "program")) return;
    walk_program(p);
    if (lb_program_encode(p, &out, &n, NULL) != LB_OK || lb_program_decode(out, n, &again, NULL) != LB_OK ||
        lb_program_encode(again, &twice, &m, NULL) != LB_OK || n != m || memcmp(out, twice, n) != 0)
        abort();
    free(out), free(twice);
    lb_program_free(again);
    again = lb_program_copy(p);
    walk_program(again);
    lb_program_free(again);
    lb_program_free(p);
}

static void target_table(const uint8_t *bytes, size_t size)
{
    char *json, *again;
    void *out;
    size_t n;
    lb_err err = LB_ERR_INIT;
    if (!accepted(lb_table_decode(bytes, size, "table", 0, &json, &err), &err, "table")) return;
    if (lb_table_encode(json, &out, &n, &err) != LB_OK || lb_table_decode(out, n, "table", 0, &again, &err) != LB_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    if (strcmp(json, again) != 0) abort();
    free(json), free(again), free(out);
}

/* ---- MessagePack ------------------------------------------------------------------------------------------------- */

/* Reads one object with the readers of its type; `deep` is what is left of the depth. */
static lb_status walk_object(lb_cursor *c, int deep)
{
    const char *text;
    const void *bytes;
    uint32_t n;
    size_t size;
    int64_t integer;
    double real;
    bool truth;
    if (deep == 0) return lb_cursor_skip(c, "deep");
    switch (lb_cursor_peek(c)) {
    case LB_MSGPACK_BOOL: return lb_cursor_bool(c, "bool", &truth);
    case LB_MSGPACK_INT: return lb_cursor_int(c, "int", &integer);
    case LB_MSGPACK_FLOAT: return lb_cursor_f64(c, "float", &real);
    case LB_MSGPACK_STR:
        LB_TRY(lb_cursor_str(c, "str", &text, &n));
        return n && memchr(text, 0xc1, n) == text ? lb_cursor_fail(c, "str", "begins with c1")
                                                  : LB_OK; /* touches every byte */
    case LB_MSGPACK_BIN: LB_TRY(lb_cursor_bin(c, "bin", &bytes, &size)); return LB_OK;
    case LB_MSGPACK_ARRAY:
        LB_TRY(lb_cursor_array(c, "array", &n));
        for (uint32_t i = 0; i < n; i++) LB_TRY(walk_object(c, deep - 1));
        return LB_OK;
    case LB_MSGPACK_MAP:
        LB_TRY(lb_cursor_map(c, "map", &n));
        for (uint32_t i = 0; i < 2 * n; i++) LB_TRY(walk_object(c, deep - 1));
        return LB_OK;
    default: return lb_cursor_skip(c, "other");
    }
}

static void target_msgpack(const uint8_t *bytes, size_t size)
{
    lb_err err = LB_ERR_INIT, skipping = LB_ERR_INIT;
    lb_cursor c = lb_cursor_of(bytes, size, "bytes", 0, &err), s = lb_cursor_of(bytes, size, "bytes", 0, &skipping);
    while (c.at < c.end) {
        bool walked = accepted(walk_object(&c, 40), &err, "bytes"),
             skipped = accepted(lb_cursor_skip(&s, "object"), &skipping, "bytes");
        if (walked && (!skipped || c.at != s.at)) abort(); /* whatever can be read can be skipped, and is as long */
        if (!walked) return;
    }
}

/* ---- index, directory, commit, descriptor, locator --------------------------------------------------------------- */

static void use_index(lb_index *index)
{
    for (uint64_t i = 0; i < index->blobs.rows; i++) {
        lb_blob_row row = lb_index_blob(index, i);
        lb_index_find(index, row.digest); /* any row: the digests may not be sorted */
    }
    lb_index_release(index);
}

static void target_index(const uint8_t *bytes, size_t size)
{
    lb_err err = LB_ERR_INIT;
    lb_index index;
    lb_index_rows rows = {0};
    lb_entry_row *entries;
    lb_descriptor descriptor;
    lb_locator locator;
    const lb_directory_area area = {4096, 1u << 20, LB_NO_PACK};
    uint64_t n;
    if (size == 0) return;
    const uint8_t *rest = bytes + 1;
    size--;
    switch (bytes[0] % 5) {
    case 0:
        if (!accepted(lb_index_decode(rest, size, "index", 0, &index, &err), &err, "index")) break;
        lb_index_check(&index, rest, size, lb_digest_bytes(rest, size)); /* its leaves may lie */
        use_index(&index);
        break;
    case 1:
        accepted(lb_index_directory_decode(rest, size, "directory", 0, &area, &rows, &err), &err, "directory");
        if (lb_index_build(&rows, &index, NULL) == LB_OK) use_index(&index);
        lb_index_rows_release(&rows);
        break;
    case 2:
        if (accepted(lb_index_commit_decode(rest, size, "commit", 0, &entries, &n, &err), &err, "commit"))
            free(entries);
        break;
    case 3:
        if (!accepted(lb_record_descriptor_decode(rest, size, "descriptor", 0, &descriptor, &err), &err, "descriptor"))
            break;
        char again[LB_DESCRIPTOR_MAX];
        lb_descriptor same;
        n = lb_record_descriptor_encode(&descriptor, again);
        if (lb_record_descriptor_decode(again, n, "again", 0, &same, NULL) != LB_OK || same.kind != descriptor.kind)
            abort();
        break;
    default:
        if (size >= LB_LOCATOR_BYTES) lb_record_locator_decode((const char *)rest, &locator);
    }
}

/* ---- codings ----------------------------------------------------------------------------------------------------- */

/* One byte says the coding, four the size that is claimed. */
static void target_coding(const uint8_t *bytes, size_t size)
{
    static const lb_coding codings[] = {0, 1, 2, 4, 8, 16, 3, 255};
    uint32_t claimed;
    lb_err err = LB_ERR_INIT;
    if (size < 5) return;
    memcpy(&claimed, bytes + 1, 4);
    lb_coding coding = codings[bytes[0] % 8];
    bytes += 5, size -= 5;
    lb_status status = lb_coding_check(coding, bytes, size, claimed, "file: offset 0: coding", &err);
    if (!accepted(status, &err, "file") || claimed > 8u << 20) return; /* honest but large: no news for the price */
    char *out = (char *)malloc(claimed + 1u);
    if (coding)
        accepted(lb_coding_decode(coding, bytes, size, out, claimed, "file: offset 0: coding", &err), &err, "file");
    free(out);
}

/* ---- whole files ------------------------------------------------------------------------------------------------- */

static void read_values(lb_capture *c, const lb_program *p)
{
    for (uint32_t v = 0; v < p->n_values; v++) {
        lb_tensor t;
        lb_err err = LB_ERR_INIT;
        bool has = lb_capture_has_value(c, p, v);
        lb_status status = lb_capture_value(c, p, v, &t, &err);
        if (!accepted(status, &err, "") || !has) continue;
        if (lb_layout_numel(&t.layout) > 1 << 16) continue; /* a stride of 0 makes much out of little */
        lb_digest_tensor(&t);
        lb_statistics_of(&t);
    }
}

static void read_capture(const char *path)
{
    lb_capture *c;
    lb_err err = LB_ERR_INIT;
    const int32_t *ranks;
    const int64_t *steps;
    if (!accepted(lb_capture_open(path, &c, &err), &err, path)) return;
    uint32_t n_ranks = lb_capture_ranks(c, &ranks), n_steps = lb_capture_steps(c, &steps);
    for (uint32_t r = 0; r < n_ranks && r < 4; r++) {
        for (uint32_t s = 0; s < n_steps && s < 4; s++) {
            const lb_program *p;
            lb_err_clear(&err);
            lb_status status = lb_capture_program(c, ranks[r], steps[s], &p, &err);
            if (status == LB_ERR_NOT_FOUND || !accepted(status, &err, path)) continue;
            walk_program(p);
            read_values(c, p);
        }
        lb_capture_table(c, ranks[r], "receipt");
    }
    lb_capture_close(c);
}

static void check_damage(void *context, const lb_damage *damage)
{
    if (!strstr(damage->message, (const char *)context)) abort();
}

static void read_records(const char *path)
{
    lb_archive *a;
    lb_err err = LB_ERR_INIT;
    for (int salvage = 0; salvage < 2; salvage++) {
        lb_err_clear(&err);
        if (!accepted(lb_archive_open_scanned(path, salvage, &a, &err), &err, path)) continue;
        lb_archive_complete(a);
        lb_archive_close(a);
    }
}

static void read_blobs(const char *path)
{
    lb_archive *a;
    lb_err err = LB_ERR_INIT;
    if (!accepted(lb_archive_open(path, &a, &err), &err, path)) return;
    for (uint64_t i = 0; i < a->index.blobs.rows; i++) {
        const void *bytes;
        size_t size;
        lb_err_clear(&err);
        lb_status status = lb_archive_blob_row(a, i, &bytes, &size, &err);
        if (accepted(status, &err, path) && size) lb_digest_bytes(bytes, size);
    }
    lb_archive_close(a);
}

static void verify_capture(const char *path)
{
    lb_verification v;
    lb_err err = LB_ERR_INIT;
    accepted(lb_capture_verify(path, check_damage, (void *)(uintptr_t)path, &v, &err), &err, path);
}

/* What is done with an archive. Each opens it anew, so a mutation is read in one of the ways, which its bytes choose:
 * four times as many are read in the same time. */
static void (*const ways_to_read[])(const char *path) = {read_records, read_blobs, verify_capture, read_capture};
enum { WAYS = sizeof ways_to_read / sizeof *ways_to_read };
static bool every_way; /* for inputs as they are kept */

static void read_archive(const char *name, const uint8_t *bytes, size_t size)
{
    const char *path = memory_file(name, bytes, size);
    const unsigned chosen = (unsigned)(lb_digest_leaf(bytes, size, 0) % WAYS);
    for (unsigned way = 0; way < WAYS; way++)
        if (every_way || way == chosen) ways_to_read[way](path);
}

/* The same bytes as `audit` reads them: faults are told and reading goes on, so that more of a damaged file is
 * walked. */
static void read_checkpoint(const char *path)
{
    lb_checkpoint *c;
    lb_err err = LB_ERR_INIT;
    if (lb_checkpoint_open(path, &c, &err) != LB_OK) {
        if (err.status == LB_ERR_NOMEM || !err.message[0]) abort();
        return;
    }
    for (uint32_t i = 0; i < c->n_pieces; i++) lb_statistics_of(&c->pieces[i].tensor);
    for (uint32_t i = 0; i < c->n_faults; i++)
        if (!c->faults[i].message[0]) abort();
    lb_checkpoint_close(c);
}

static void read_both(const char *path)
{
    read_capture(path);
    read_checkpoint(path);
}

/* The bytes as one file of that name. */
#define TARGET(NAME, READ, FILE)                                                                                       \
    static void target_##NAME(const uint8_t *bytes, size_t size)                                                       \
    {                                                                                                                  \
        READ(memory_file(FILE, bytes, size));                                                                          \
    }
static void target_archive(const uint8_t *bytes, size_t size)
{
    read_archive("x.tar", bytes, size);
}
static void target_damaged(const uint8_t *bytes, size_t size)
{
    read_archive("x.tar", bytes, size);
}
static void target_packed(const uint8_t *bytes, size_t size)
{
    read_archive("x.lbz", bytes, size);
}
TARGET(safetensors, read_both, "x.safetensors")
TARGET(gguf, read_both, "x.gguf")
TARGET(npy, read_both, "x.npy")
TARGET(npz, read_both, "x.npz")

/* An index over two shards that are there: "a.safetensors" with tensor "a", "b.safetensors" with tensor "b". */
static void target_shards(const uint8_t *bytes, size_t size)
{
    for (char name = 'a'; name <= 'b'; name++) {
        static char shards[2][128];
        char file[20], *shard = shards[name - 'a'];
        uint64_t length = (uint64_t)snprintf(shard + 8, sizeof shards[0] - 8,
                                             "{\"%c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
        memcpy(shard, &length, 8);
        memset(shard + 8 + length, 0, 4);
        snprintf(file, sizeof file, "%c.safetensors", name);
        memory_file(file, (const uint8_t *)shard, 8 + length + 4);
    }
    const char *path = memory_file("x.safetensors.index.json", bytes, size);
    read_both(path);
}

TARGET(torch, read_both, "x.pt")

/* A tree may hold itself: the walk ends by depth and by count. */
static void walk_pickle(const lb_pickle *node, int deep, unsigned *left)
{
    uint32_t n;
    int64_t numbers[LB_MAX_DIMS];
    int count;
    if (!node || deep == 0 || *left == 0) return;
    --*left;
    lb_pickle_get(node, "fqn");
    lb_pickle_integers(node, numbers, LB_MAX_DIMS, &count);
    lb_pickle_is_call(node, "torch", "Size");
    struct lb_pickle *const *pairs = lb_pickle_pairs(node, &n);
    for (uint32_t i = 0; i < 2 * n; i++) walk_pickle(pairs[i], deep - 1, left);
    for (uint32_t i = 0; i < node->n && (node->type == LB_PICKLE_LIST || node->type == LB_PICKLE_CALL); i++)
        walk_pickle(node->u.items[i], deep - 1, left);
}

static void target_pickle(const uint8_t *bytes, size_t size)
{
    lb_pickle_tree tree;
    lb_err err = LB_ERR_INIT;
    unsigned left = 10000;
    if (!accepted(lb_pickle_read(bytes, size, "pickle", 0, &tree, &err), &err, "pickle")) return;
    walk_pickle(tree.root, 20, &left);
    lb_pickle_release(&tree);
}

/* The parts are those of the corpus: what a real checkpoint's "__0_0.distcp" holds. */
static void target_distributed(const uint8_t *bytes, size_t size)
{
    static char *parts;
    static size_t n;
    char path[600];
    if (!parts) {
        snprintf(path, sizeof path, "%s/tests/fuzz/corpus/parts.distcp", LB_SOURCE_DIR);
        FILE *file = fopen(path, "rb");
        if (!file || !(parts = (char *)malloc(1 << 16))) abort();
        n = fread(parts, 1, 1 << 16, file);
        fclose(file);
        memory_file("ck/__0_0.distcp", (const uint8_t *)parts, n);
    }
    memory_file("ck/.metadata", bytes, size);
    read_both(MEMORY_FOLDER "/ck");
}

/* ---- parts of a command ------------------------------------------------------------------------------------------ */

enum { PART_HEADER = 32, PART_UNITS = 5, DIGEST_WORD = 9 };

static uint8_t *put_part_word(uint8_t *to, uint64_t bits)
{
    *to++ = bits >> 63 ? 0xd3 : 0xcf;
    for (int shift = 56; shift >= 0; shift -= 8) *to++ = (uint8_t)(bits >> shift);
    return to;
}

/* Digests of the frames; and each chunk is one of the question that the first frame asks. */
static void repair_part(uint8_t *bytes, size_t size)
{
    lb_digest job = {0};
    for (size_t at = 0; size - at >= PART_HEADER;) {
        uint64_t length;
        uint8_t *body = bytes + at + PART_HEADER;
        memcpy(bytes + at, "LBPART1\n", 8);
        memcpy(&length, bytes + at + 8, 8);
        if (length > size - at - PART_HEADER) length = size - at - PART_HEADER;
        memcpy(bytes + at + 8, &length, 8);
        if (at == 0) job = lb_digest_bytes(body, (size_t)length);
        if (length > 1 + 2 * DIGEST_WORD && body[0] == 1) put_part_word(put_part_word(body + 1, job.hi), job.lo);
        digest_to_bytes(lb_digest_bytes(body, (size_t)length), bytes + at + 16);
        at += PART_HEADER + (size_t)length;
    }
}

/* A field of every kind. */
typedef struct part_fields {
    int64_t whole, place;
    uint64_t bits, total;
    int32_t small;
    uint32_t word, n;
    bool truth;
    double real;
    const char *text, *name;
    lb_statistics *rows;
} part_fields;

static void part_record(lb_part_record *r, part_fields *x)
{
    lb_part_record_i64(r, &x->whole), lb_part_record_u64(r, &x->bits), lb_part_record_i32(r, &x->small);
    lb_part_record_word(r, &x->word, 9), lb_part_record_bool(r, &x->truth), lb_part_record_f64(r, &x->real);
    lb_part_record_tally(r, &x->place, -1), lb_part_record_total(r, &x->total);
    lb_part_record_text(r, &x->text), lb_part_record_name(r, &x->name);
    x->rows = (lb_statistics *)lb_part_record_rows(r, x->rows, &x->n, sizeof *x->rows);
    for (uint32_t i = 0; i < x->n; i++) {
        lb_part_record_i64(r, &x->rows[i].elements), lb_part_record_i64(r, &x->rows[i].nan);
        lb_part_record_f64(r, &x->rows[i].min);
    }
}

static lb_status make_part(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)context;
    lb_statistics rows[2] = {{.elements = 9, .min = -1.5}, {.nan = 3}};
    part_fields x = {.whole = -(int64_t)unit, .place = -1, .bits = ~UINT64_C(0), .total = 5, .small = -7, .word = 9};
    x.real = 0.1, x.text = unit % 2 ? "text" : NULL, x.name = "name", x.rows = rows, x.n = 2;
    if (unit == PART_UNITS) return lb_fail(err, LB_ERR_CORRUPT, "the last one is damaged");
    part_record(record, &x);
    return LB_OK;
}

/* What is accepted is what its kind says, whoever wrote it. */
static lb_status fold_part(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)context, (void)unit, (void)err;
    part_fields x = {0};
    part_record(record, &x);
    if (record->status == LB_OK && (x.word > 9 || x.place < -1 || !x.name || strlen(x.name) > 1 << 16)) abort();
    if (x.text && record->status == LB_OK && strlen(x.text) > 1 << 16) abort();
    free(x.rows);
    return record->status;
}

static lb_status fold_parts(lb_parts *parts, lb_err *err)
{
    const lb_parts_loop first = {"first", PART_UNITS, make_part, fold_part, NULL, NULL};
    const lb_parts_loop second = {"second", PART_UNITS + 1, make_part, fold_part, NULL, NULL};
    LB_TRY(lb_parts_each(parts, &first, err));
    return lb_parts_each(parts, &second, err);
}

/* A failure may be what a record says, in words of its own. */
static bool part_accepted(lb_status status, const lb_err *err)
{
    accepted_readings += status == LB_OK, refused_readings += status != LB_OK;
    if (status == LB_OK) return true;
    if (status == err->status && err->message[0] && !lb_is_refusal(status)) return false;
    fprintf(stderr, "%s: '%s'\n", lb_status_name(status), err->message);
    abort();
}

static void merge_part(const char *path, const lb_parts_job *job)
{
    lb_err err = LB_ERR_INIT;
    lb_parts_options how = LB_PARTS_OPTIONS_INIT;
    lb_parts *parts;
    how.job = job, how.files = &path, how.n_files = 1;
    if (!part_accepted(lb_parts_open(&how, &parts, &err), &err)) return;
    part_accepted(fold_parts(parts, &err), &err);
    lb_parts_close(parts, false);
}

/* The same bytes are read as an answer, too, which is a frame of another kind. */
static void target_part(const uint8_t *bytes, size_t size)
{
    const char *path = memory_file("x.part", bytes, size);
    lb_err err = LB_ERR_INIT;
    lb_parts_job job;
    byte_buffer again = {0};
    void *answer;
    size_t n;
    int code;
    if (accepted(lb_parts_job_read(path, &job, &err), &err, path)) {
        merge_part(path, &job);
        lb_part_file_job(&again, &job);
        lb_parts_job_release(&job);
        path = memory_file("again.part", again.bytes, again.size);
        if (lb_parts_job_read(path, &job, NULL) != LB_OK) abort();
        lb_parts_job_release(&job), buffer_release(&again);
    }
    lb_err_clear(&err);
    memory_file("meet/answer", bytes, size);
    if (!accepted(lb_parts_answer_read(MEMORY_FOLDER "/meet", &answer, &n, &code, &err), &err, "answer")) return;
    if (code < 0 || code > 255 || n > size) abort();
    free(answer);
}

#endif
