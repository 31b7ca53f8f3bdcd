/* Packing: the programs that are wanted and the bytes they name, of every rank, in one compressed file. */
#include "archive/archive_writer.h"
#include "captures/capture_copy.h"
#include "captures/capture_reader.h"
#include "captures/capture_strip.h"

#include <lastbit/input.h>
#include <lastbit/maintenance.h>

#include <inttypes.h>
#include <lastbit/json_text.h>
#include <sys/stat.h>

typedef struct packing {
    lb_capture *capture;
    lb_writer *writer;
    lb_pack_options options;
    lb_packing *result;
    lb_strip_list stripped;
} packing;

static bool is_wanted(const packing *packing, const lb_program_row *row)
{
    return !packing->options.want || packing->options.want(packing->options.context, row->rank, row->step);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool passes_over(void *context, const lb_value *value)
{
    packing *p = (packing *)context;
    int64_t first, last;
    bool anew;
    if (!lb_strip_list_holds(&p->stripped, value->blob, &anew)) return false;
    if (!anew) return true;
    p->result->stripped_blobs++;
    lb_layout_dense_range(&value->layout, &first, &last, NULL);
    p->result->stripped_bytes += lb_dtype_bytes(value->dtype, (size_t)(last - first));
    return true;
}

static lb_status pack_values(packing *packing, const lb_program *program, lb_err *err)
{
    lb_capture_copy copy = {
        .from = packing->capture, .to = packing->writer, .passes_over = passes_over, .context = packing};
    const lb_status status = lb_capture_copy_values(&copy, program, err);
    packing->result->blobs += copy.blobs;
    packing->result->blob_bytes += copy.bytes;
    return status;
}

static lb_status pack_programs(packing *packing, lb_err *err)
{
    const lb_capture *capture = packing->capture;
    for (uint32_t r = 0; r < capture->n_rows; r++) {
        const lb_program_row *row = &capture->rows[r];
        if (!lb_capture_reader_is_youngest(capture, r)) continue;
        if (!is_wanted(packing, row)) continue;
        const lb_program *program;
        LB_TRY(lb_capture_program(packing->capture, row->rank, row->step, &program, err));
        LB_TRY(pack_values(packing, program, err));
        LB_TRY(lb_writer_program(packing->writer, program, err));
        packing->result->programs++;
        if (packing->options.progress) packing->options.progress(packing->options.context, r + 1, capture->n_rows);
    }
    if (packing->result->programs) return LB_OK;
    if (!capture->n_rows) return lb_capture_lacks(capture, INT64_MIN, INT64_MAX, err);
    return lb_fail(err, LB_ERR_NOT_FOUND, "%s: no program fits: nothing to pack", capture->path);
}

/* A step that was left out may have been named in a table (a verdict, a schedule): tables go in whole. */
static lb_status pack_tables(packing *packing, lb_err *err)
{
    const lb_capture *capture = packing->capture;
    for (uint32_t m = 0; m < capture->n_members; m++) {
        lb_archive *archive = capture->members[m].archive;
        for (uint32_t i = 0; i < archive->index.n_tables; i++) {
            const lb_segment_row *row = &archive->index.tables[i];
            int32_t rank = row->rank != LB_NO_RANK ? row->rank : capture->members[m].rank;
            if ((packing->options.strip & LB_STRIP_RECEIPT) && !strcmp(row->name, "receipt")) continue;
            const char *json = lb_archive_rank_table(archive, row->rank, row->name);
            if (!json)
                return lb_fail(err, LB_ERR_CORRUPT, "%s: table '%s' is damaged: `lastbit verify` says where",
                               archive->path, row->name);
            bool later = false; /* the last of a name is what lb_archive_rank_table gives: once is enough */
            for (uint32_t k = i + 1; k < archive->index.n_tables && !later; k++)
                later =
                    archive->index.tables[k].rank == row->rank && strcmp(archive->index.tables[k].name, row->name) == 0;
            if (!later) LB_TRY(lb_writer_rank_table(packing->writer, rank, row->name, json, err));
        }
    }
    return LB_OK;
}

static lb_status pack_note(packing *packing, lb_err *err)
{
    static const char *const names[] = {"data", "params", "state", "results", "receipt"};
    json_t *strip = json_array();
    for (int i = 0; i < 5; i++)
        if (packing->options.strip & (1u << i)) json_array_append_new(strip, json_string(names[i]));
    json_t *note =
        json_pack("{s:o, s:I, s:I}", "strip", strip, "stripped_blobs", (json_int_t)packing->result->stripped_blobs,
                  "programs", (json_int_t)packing->result->programs);
    char *text = note ? json_dumps(note, JSON_COMPACT) : NULL;
    json_decref(note);
    lb_status status =
        text ? lb_writer_table(packing->writer, "pack", text, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    free(text);
    return status;
}

lb_status lb_capture_pack(const char *path, const char *out, const lb_pack_options *options, lb_packing *result,
                          lb_err *err)
{
    memset(result, 0, sizeof *result);
    packing packing = {.options = LB_PACK_OPTIONS_INIT, .result = result};
    if (options) memcpy(&packing.options, options, options->size < sizeof *options ? options->size : sizeof *options);
    if (packing.options.level < 1 || packing.options.level > 19)
        return lb_fail(err, LB_ERR_INVALID, "compression level %d: 1 to 19 are possible", packing.options.level);
    LB_TRY(lb_capture_open(path, &packing.capture, err));
    lb_writer_options how = LB_WRITER_OPTIONS_INIT;
    how.overwrite = packing.options.overwrite;
    how.whole = true; /* half a pack is nothing, and the one that was there may be the only one */
    how.inputs = (const char *[]){path, NULL};
    lb_status status = lb_writer_open_coded(out, &how, packing.options.level, &packing.writer, err);
    if (status == LB_OK) {
        status = lb_strip_list_make(packing.capture, packing.options.strip & ~(uint32_t)LB_STRIP_RECEIPT,
                                    &packing.stripped, err);
        if (status == LB_OK) status = pack_programs(&packing, err);
        if (status == LB_OK) status = pack_tables(&packing, err);
        if (status == LB_OK) status = pack_note(&packing, err);
        if (status == LB_OK) {
            status = lb_writer_close(packing.writer, err);
        } else {
            lb_writer_abandon(packing.writer);
        }
    }
    struct stat st;
    if (status == LB_OK) status = lb_input_look(out, &st, err);
    if (status == LB_OK) result->file_bytes = (uint64_t)st.st_size;
    lb_strip_list_release(&packing.stripped);
    lb_capture_close(packing.capture);
    return status;
}
