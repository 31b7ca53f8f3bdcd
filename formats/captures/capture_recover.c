/* Recovering: whatever is whole in an archive, in a new archive. */
#include "archive/archive_writer.h"
#include "captures/capture_reader.h"

#include <lastbit/input.h>
#include <lastbit/maintenance.h>

#include <stdlib.h>
#include <string.h>

/* Damaged bytes are lost; what could not be read for another reason (memory, the disk) may be there the next time. */
static bool is_lost(lb_status status)
{
    return status != LB_OK && !lb_is_refusal(status);
}

static lb_status copy_blobs(lb_archive *archive, lb_writer *writer, lb_recovery *result, lb_err *err)
{
    for (uint64_t i = 0; i < archive->index.blobs.rows; i++) {
        const void *bytes;
        size_t size;
        lb_blob_row row = lb_index_blob(&archive->index, i);
        lb_err why = LB_ERR_INIT;
        lb_status status = lb_archive_blob_row(archive, i, &bytes, &size, &why);
        if (is_lost(status)) {
            result->lost_blobs++;
            continue;
        }
        if (status != LB_OK) return lb_fail(err, status, "%s", why.message);
        status = lb_writer_blob(writer, row.digest, row.dtype, bytes, size, err);
        lb_archive_drop_row(archive, i);
        LB_TRY(status);
        result->blobs++;
    }
    return LB_OK;
}

static lb_status copy_programs(lb_archive *archive, lb_writer *writer, lb_recovery *result, lb_err *err)
{
    for (uint32_t i = 0; i < archive->index.n_programs; i++) {
        const lb_program *program;
        lb_err why = LB_ERR_INIT;
        const lb_status read = lb_archive_program(archive, i, &program, &why);
        if (is_lost(read)) {
            result->lost_programs++;
            continue;
        }
        if (read != LB_OK) return lb_fail(err, read, "%s", why.message);
        LB_TRY(lb_writer_program(writer, program, err));
        result->programs++;
    }
    for (uint32_t i = 0; i < archive->index.n_tables; i++) {
        const lb_segment_row *row = &archive->index.tables[i];
        char *json;
        lb_err why = LB_ERR_INIT;
        const lb_status read = lb_archive_read_table(archive, row, &json, &why);
        if (is_lost(read)) {
            result->lost_tables++;
            continue;
        }
        if (read != LB_OK) return lb_fail(err, read, "%s", why.message);
        lb_status status = lb_writer_rank_table(writer, row->rank, row->name, json, err);
        free(json);
        LB_TRY(status);
        result->tables++;
    }
    return LB_OK;
}

static bool is_coded(const lb_archive *archive)
{
    bool coded = archive->index.n_packs > 0;
    for (uint64_t i = 0; i < archive->index.blobs.rows && !coded; i++) coded = archive->index.blobs.coding[i] != 0;
    return coded;
}

static lb_status recover_archive(const char *path, const char *out, lb_recovery *result, lb_err *err)
{
    lb_archive *archive;
    lb_writer *writer;
    LB_TRY(lb_archive_open_scanned(path, true, &archive, err));
    result->places += archive->places;
    result->salvaged += archive->salvaged;
    result->lost_packs += archive->left_out.packs;
    result->lost_programs += archive->left_out.programs;
    result->lost_tables += archive->left_out.tables;
    lb_writer_options how = LB_WRITER_OPTIONS_INIT;
    how.whole = true;
    lb_status status = lb_writer_open_coded(out, &how, is_coded(archive) ? 9 : 0, &writer, err);
    if (status == LB_OK) {
        status = copy_blobs(archive, writer, result, err);
        if (status == LB_OK) status = copy_programs(archive, writer, result, err);
        if (status == LB_OK)
            status = lb_writer_close(writer, err);
        else
            lb_writer_abandon(writer);
    }
    lb_archive_close(archive);
    return status;
}

/* Every rank, into the folder `out`, which is there. */
static lb_status recover_folder(const char *path, const char *out, lb_recovery *result, lb_err *err)
{
    lb_archive_name *names;
    uint32_t n, recovered = 0;
    LB_TRY(lb_capture_reader_list_folder(path, &names, &n, err));
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        char *from = lb_capture_reader_path(path, &names[i]), *to = lb_capture_reader_path(out, &names[i]);
        lb_err why = LB_ERR_INIT;
        status = from && to ? recover_archive(from, to, result, &why) : lb_fail(&why, LB_ERR_NOMEM, "out of memory");
        if (status == LB_ERR_CORRUPT) { /* nothing whole in this one; the others may do better */
            result->places++;
            status = LB_OK;
        } else if (status == LB_OK) {
            recovered++;
        } else {
            lb_fail(err, status, "%s", why.message);
        }
        free(from);
        free(to);
    }
    free(names);
    uint32_t from_ring = 0;
    if (status == LB_OK)
        status = lb_ring_files_assemble(path, out, "the process ended without closing its flight recorder", &from_ring,
                                        NULL, err);
    result->programs += from_ring;
    if (status == LB_OK && recovered == 0)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: no archive in it holds a whole record", path);
    return status;
}

lb_status lb_capture_recover(const char *path, const char *out, lb_recovery *result, lb_err *err)
{
    memset(result, 0, sizeof *result);
    struct stat st;
    LB_TRY(lb_input_look(path, &st, err));
    if (!S_ISDIR(st.st_mode)) return recover_archive(path, out, result, err);
    lb_output_folder *folder;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.inputs = (const char *[]){path, NULL};
    LB_TRY(lb_output_folder_open(out, &how, NULL, &folder, err));
    lb_status status = recover_folder(path, lb_output_folder_path(folder), result, err);
    if (status == LB_OK) return lb_output_folder_close(folder, err);
    lb_output_folder_abandon(folder);
    return status;
}
