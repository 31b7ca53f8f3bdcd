/* make_corpus FOLDER: the first inputs of the fuzzers of our own formats, FOLDER/READER/NAME; small, and of every kind.
 *
 * tests/fuzz/corpus holds these, what make_corpus.py makes of foreign formats, and what the fuzzers found since. */
#include "archive/archive_writer.h"
#include "capture_sample.h"
#include "archive/archive_index.h"
#include "archive/coding.h"
#include "parts/part_file.h"
#include "runs/diff_record.h"

#include <lastbit/maintenance.h>

static const char *folder;
static const float numbers[6] = {1.5f, -2, 0, INFINITY, NAN, 1e-40f};

static void must(lb_status status, const lb_err *err)
{
    if (status == LB_OK) return;
    fprintf(stderr, "make_corpus: %s\n", err->message);
    exit(1);
}

static const char *path_of(const char *reader, const char *name)
{
    static char path[4400];
    snprintf(path, sizeof path, "%.4000s/%s", folder, reader);
    mkdir(path, 0700);
    snprintf(path + strlen(path), sizeof path - strlen(path), "/%s", name);
    return path;
}

static void save(const char *reader, const char *name, const void *bytes, size_t size)
{
    FILE *file = fopen(path_of(reader, name), "wb");
    if (!file || fwrite(bytes, 1, size, file) != size) exit(1);
    fclose(file);
}

/* `first` before the bytes. */
static void save_after(const char *reader, const char *name, const void *first, size_t n, const void *bytes,
                       size_t size)
{
    char *all = malloc(n + size);
    memcpy(all, first, n);
    memcpy(all + n, bytes, size);
    save(reader, name, all, n + size);
    free(all);
}

/* ---- archives ---------------------------------------------------------------------------------------------------- */

/* A step of the sample program; `large`: also a blob with an entry of its own. */
static void write_archive(const char *path, int level, bool large, bool close)
{
    lb_err err = LB_ERR_INIT;
    lb_writer *w;
    lb_writer_options how = LB_WRITER_OPTIONS_INIT;
    how.overwrite = true;
    must(lb_writer_open_coded(path, &how, level, &w, &err), &err);
    lb_program *p = sample_program(3, 0, numbers);
    must(lb_writer_blob(w, lb_digest_bytes(numbers, 24), LB_F32, numbers, 24, &err), &err);
    must(lb_writer_commit(w, &err), &err);
    must(lb_writer_blob(w, lb_digest_bytes(numbers + 1, 16), LB_F32, numbers + 1, 16, &err), &err);
    if (large) must(sample_source(w, p, LB_BF16, 7, 8200, "large", &err), &err);
    if (level) must(sample_source(w, p, LB_F64, 8, 40, "small", &err), &err);
    must(lb_writer_program(w, p, &err), &err);
    must(lb_writer_table(w, "receipt", "{\"argv\":[\"a\",1,2.5,null,true]}", &err), &err);
    if (close) {
        must(lb_writer_close(w, &err), &err);
    } else {
        must(lb_writer_commit(w, &err), &err);
        lb_writer_abandon(w);
    }
    lb_program_free(p);
}

static void make_archives(void)
{
    write_archive(path_of("archive", "closed"), 0, false, true);
    write_archive(path_of("archive", "open"), 0, false, false);
    write_archive(path_of("archive", "large"), 0, true, true);
    write_archive(path_of("packed", "large"), 9, true, true);
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static void make_indexes(void)
{
    lb_index_rows rows = {0};
    lb_index index;
    byte_buffer b = {0};
    lb_index_add_blob(
        &rows,
        &(lb_blob_row){.digest = {1, 2}, .offset = 512, .stored = 8, .size = 8, .pack = LB_NO_PACK, .dtype = LB_F32});
    lb_index_add_blob(&rows,
                      &(lb_blob_row){.digest = {1, 1}, .offset = 64, .stored = 8, .size = 8, .pack = 0, .coding = 4});
    lb_index_add_pack(&rows, &(lb_pack_row){4096, 100, 400, 4});
    lb_index_add_program(
        &rows, &(lb_segment_row){.offset = 5000, .stored = 70, .size = 90, .step = -3, .complete = 1, .coding = 1});
    lb_index_add_table(
        &rows, &(lb_segment_row){.offset = 6000, .stored = 7, .size = 7, .rank = LB_NO_RANK, .name = "receipt"});
    lb_index_build(&rows, &index, NULL);
    lb_index_encode(&index, &b, NULL);
    save_after("index", "index", "\0", 1, b.bytes, b.size);
    lb_index_release(&index);
    buffer_clear(&b);
    lb_blob_row blobs[] = {{.digest = {9, 9}, .offset = 0, .size = 100},
                           {.digest = {8, 8}, .offset = 128, .size = 4, .dtype = LB_I8}};
    lb_index_directory_encode(blobs, 2, &b);
    save_after("index", "directory", "\1", 1, b.bytes, b.size);
    buffer_clear(&b);
    lb_entry_row entries[] = {{0, 512, 40, {1, 1}, LB_RECORD_HEAD}, {1024, 2048, 400, {2, 2}, LB_RECORD_PACK}};
    lb_index_commit_encode(0, -1, entries, 2, &b);
    save_after("index", "commit", "\2", 1, b.bytes, b.size);
    buffer_release(&b);
    for (int kind = 0; kind < LB_RECORD_KIND_COUNT; kind++) {
        char bytes[LB_DESCRIPTOR_MAX], name[40];
        lb_descriptor d = {.kind = (lb_record_kind)kind,
                           .digest = {3, 4},
                           .coding = 2,
                           .size = 70000,
                           .step = 5,
                           .rank = 1,
                           .name = "receipt"};
        size_t n = lb_record_descriptor_encode(&d, bytes);
        snprintf(name, sizeof name, "descriptor-%s", lb_record_kind_name(d.kind));
        save_after("index", name, "\3", 1, bytes, n);
    }
    char locator[LB_LOCATOR_BYTES];
    lb_record_locator_encode(&(lb_locator){1, 0, 512, 1024, 100, {5, 6}, 9999}, locator);
    save_after("index", "locator", "\4", 1, locator, sizeof locator);
}

static void make_programs_and_tables(void)
{
    lb_err err = LB_ERR_INIT;
    void *bytes;
    size_t size;
    lb_program *p = sample_program(3, 0, numbers), *shards = sharded_program(), *empty = lb_program_new();
    must(lb_program_encode(shards, &bytes, &size, &err), &err);
    save("program", "shards", bytes, size);
    free(bytes);
    must(lb_program_encode(p, &bytes, &size, &err), &err);
    save("program", "sample", bytes, size);
    free(bytes);
    must(lb_program_encode(empty, &bytes, &size, &err), &err);
    save("program", "empty", bytes, size);
    free(bytes);
    lb_program_free(p), lb_program_free(shards), lb_program_free(empty);
    static const char *const tables[] = {"{\"a\":[1,-2,2.5,null,true,false,{\"b\":\"\xc3\xa4\"}]}", "[]", "\"text\"",
                                         "[[[[[[1]]]]]]"};
    for (int i = 0; i < 4; i++) {
        char name[8] = {(char)('0' + i), 0};
        must(lb_table_encode(tables[i], &bytes, &size, &err), &err);
        save("table", name, bytes, size);
        save("msgpack", name, bytes, size);
        free(bytes);
    }
    save("msgpack", "extensions",
         "\xd4\x01x\xc7\x03\x01"
         "abc\xc4\x02hi\xcb\x3f\xf0\0\0\0\0\0\0\xca\x3f\x80\0\0\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
         37);
    save("msgpack", "bomb", "\xdd\xff\xff\xff\xff", 5);
    save("program", "bomb", "\xdf\xff\xff\xff\xff", 5);
    save("table", "bomb", "\xdf\xff\xff\xff\xff", 5);
    save("index", "bomb", "\0\xdf\xff\xff\xff\xff", 6);
}

static void make_codings(void)
{
    lb_err err = LB_ERR_INIT;
    static const uint8_t widths[] = {0, 1, 2, 4, 8, 16};
    for (uint8_t k = 0; k < 6; k++) {
        uint32_t raw[50];
        char name[8] = {(char)('0' + k), 0}, head[5] = {(char)k};
        for (uint32_t i = 0; i < 50; i++) raw[i] = i % 7;
        void *stored;
        size_t n;
        lb_coding coding = widths[k];
        uint32_t claimed = sizeof raw;
        must(lb_coding_encode(raw, sizeof raw, 3, &coding, &stored, &n, &err), &err);
        memcpy(head + 1, &claimed, 4);
        save_after("coding", name, head, 5, stored ? stored : raw, n);
        free(stored);
    }
}

/* ---- records of parts -------------------------------------------------------------------------------------------- */

/* As target_part has it: two loops, of which a unit each is one chunk. */
static void make_parts(void)
{
    static const char *const words[] = {"verify", "a.lb"};
    const lb_parts_job job = {words, 2, "/runs", {1, 2}};
    byte_buffer all = {0}, answer = {0};
    lb_part_record told = {0};
    lb_part_file_job(&all, &job);
    save("part", "question", all.bytes, all.size);
    for (uint64_t i = 0; i < 5; i++) {
        lb_part_record body = {0}, record = {0};
        const lb_part_chunk chunk = {"0-first", i, 5, i, 1};
        const char *text = "name", *none = NULL;
        int32_t said = 0, small = -7;
        int64_t whole = -(int64_t)i, place = -1;
        uint64_t bits = ~UINT64_C(0), total = 5;
        uint32_t word = 9, n = 1;
        bool truth = true;
        double real = 0.1;
        lb_part_file_chunk(&body, lb_parts_job_digest(&job), &chunk);
        lb_part_record_i64(&record, &whole), lb_part_record_u64(&record, &bits), lb_part_record_i32(&record, &small);
        lb_part_record_word(&record, &word, 9), lb_part_record_bool(&record, &truth),
            lb_part_record_f64(&record, &real);
        lb_part_record_tally(&record, &place, -1), lb_part_record_total(&record, &total);
        lb_part_record_text(&record, &none), lb_part_record_name(&record, &text);
        lb_part_record_rows(&record, NULL, &n, 8);
        lb_part_record_i64(&record, &whole), lb_part_record_i64(&record, &whole), lb_part_record_f64(&record, &real);
        const void *bytes = record.written.bytes;
        size_t size = record.written.size;
        lb_part_record_i32(&body, &said), lb_part_record_bytes(&body, &bytes, &size);
        lb_part_file_frame(&all, &body.written);
        lb_part_record_release(&body), lb_part_record_release(&record);
    }
    save("part", "first", all.bytes, all.size);
    lb_part_record failed = {0};
    const lb_part_chunk last = {"1-second", 5, 6, 5, 1};
    const char *message = "the last one is damaged";
    int32_t said = LB_ERR_CORRUPT;
    lb_part_file_chunk(&failed, lb_parts_job_digest(&job), &last);
    lb_part_record_i32(&failed, &said), lb_part_record_text(&failed, &message);
    lb_part_file_frame(&all, &failed.written);
    save("part", "failed", all.bytes, all.size);
    int32_t code = 1;
    const void *bytes = "answer\n";
    size_t size = 7;
    lb_part_record_i32(&told, &code), lb_part_record_bytes(&told, &bytes, &size);
    lb_part_file_frame(&answer, &told.written);
    save("part", "answer", answer.bytes, answer.size);
    lb_part_record_release(&failed), lb_part_record_release(&told);
    buffer_release(&all), buffer_release(&answer);
}

/* A rank with a row of every kind. */
static void make_rank(void)
{
    lb_diff_report r = {.verdict = LB_VERDICT_DIVERGED, .has_first = true, .has_undecided = true, .undecided_step = 3};
    lb_diff_exchanges exchanges = {0};
    lb_part_record empty = {0}, full = {0};
    lb_diff_row row = {.step = 1, .rank = 2, .phase = LB_PHASE_BACKWARD, .layer = "layers.0", .op = "aten::mm"};
    row.parameter = "layers.0.weight", row.index = 4, row.other = 5, row.verdict = row.local = LB_VERDICT_DIVERGED;
    row.why = "outside its bound", row.measured = true, row.bound_ratio = 2.5, row.n_arguments = 1;
    row.difference = (lb_difference){.elements = 8, .differing = 1, .first = 3, .cosine = 1, .detail = "element 3"};
    row.arguments[0] = (lb_diff_argument){"eps", "1e-5", "1e-6", ""};
    row.lines[0] = (lb_code_line){.file = "model.py", .function = "forward", .text = "x = x @ w", .number = 7};
    lb_diff_structure structure = {1, 2, LB_PHASE_FORWARD, "layers.1", "aten::bmm x2", "aten::mm"};
    lb_diff_tokens tokens = {"text", 16, true, 0.5, 0.25, 0.9, 2, 0.1};
    lb_diff_routing routing = {1, 2, "layers.0.moe", 16, 32, 2, 0.01, 1, 1};
    lb_diff_difference place = {.row = row, .layer_b = "h.0", .op_b = "aten::addmm", .effect = 1e-3, .times = 1};
    place.steps = 1, place.last_step = 1, place.ranks[0] = 4, place.lines[0] = (lb_diff_lines){{7, 9}, 2};
    lb_diff_map map = {"layers.0.weight", "h.0.weight", "renamed"};
    lb_diff_exchange exchange = {.row = row, .given = true, .differs = true, .brought = LB_VERDICT_ROUNDING};
    char *sentence = (char *)(uintptr_t) "layers.2 was not kept";
    lb_diff_report none = {0};
    lb_diff_record(&empty, &none, &exchanges, &none);
    save("rank", "empty", empty.written.bytes, empty.written.size);
    r.has_earliest = true;
    r.first = r.earliest = row, r.layers = &row, r.structures = &structure, r.missing = r.findings = &sentence,
    r.tokens = &tokens;
    r.routings = &routing, r.differences = r.places = &place, r.map = &map, exchanges.list = &exchange;
    r.n_layers = r.n_structures = r.n_missing = r.n_findings = r.n_tokens = r.n_routings = 1;
    r.n_differences = r.n_places = r.n_map = exchanges.n = 1;
    r.ops = 9, r.identical = 8, r.ulp_counts[3] = 5;
    lb_diff_record(&full, &r, &exchanges, &r);
    save("rank", "full", full.written.bytes, full.written.size);
    lb_part_record_release(&empty), lb_part_record_release(&full);
}

int main(int argc, char **argv)
{
    if (argc != 2) return 129;
    folder = argv[1];
    mkdir(folder, 0700);
    make_archives();
    make_indexes();
    make_programs_and_tables();
    make_codings();
    make_parts();
    make_rank();
    return 0;
}
