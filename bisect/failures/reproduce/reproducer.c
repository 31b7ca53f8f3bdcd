/* Reproducers on disk: see reproducer.h.
 *
 *   1  the window is replayed unchanged; results that stand in as sources are stored as they come
 *   2  excerpts are written, and the folder is opened and replayed
 *   3  the subsets are written again, with the digests and statistics of that replay
 *
 * All of it in a draft of the folder, which lb_reduce_reproducer puts in place when a candidate fails as it should.
 */
#include "reproduce/reproducer.h"

#include "trials/rerun.h"

#include <lastbit/input.h>
#include "base/array.h"
#include <lastbit/maintenance.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lastbit/json_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One step of one rank as it is written. */
typedef struct page {
    const lb_program *program;
    const uint8_t *fates;
    lb_digest *logical, *blob; /* per value of `program` */
    uint8_t *needed;
    int64_t wanted; /* storage that a later page reads, or -1 */
    lb_program *subset;
    uint32_t last; /* op of which something is kept */
    bool seen;     /* it has run */
} page;

/* A source that shows what an earlier step left, which the program subset does not have: its bytes are what the replay
 * left there. */
typedef struct left {
    page *page;
    uint32_t value;
    char *bytes; /* row-major; NULL: no step of the window wrote it, or not as one piece */
} left;

typedef struct book {
    lb_bisect_session *session;
    page *pages; /* by step, then by rank */
    uint32_t n;
    left *carried;
    uint32_t n_carried;
    lb_writer **writers; /* per rank row; NULL: nothing of that rank is kept */
    lb_status status;    /* of what the observer did */
    lb_err *err;
} book;

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static bool is_archive(const char *name)
{
    int32_t rank;
    uint32_t generation;
    return strncmp(name, "rank-", 5) == 0 || lb_ring_file_parse(name, &rank, &generation);
}

lb_status lb_reproducer_open(const lb_bisect_session *session, lb_output_folder **folder, lb_err *err)
{
    const char *inputs[] = {lb_capture_path(session->capture), NULL}, *path = session->options->reproducer;
    struct stat info;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.replace = session->options->overwrite;
    how.inputs = inputs;
    LB_TRY(lb_output_inputs_refuse(path, inputs, err));
    if (!how.replace && stat(path, &info) == 0)
        return lb_fail(err, LB_ERR_EXISTS, "%s exists (--force replaces it)", path);
    return lb_output_folder_open(path, &how, is_archive, folder, err);
}

/* What the candidate before left goes. */
static lb_status empty_draft(const char *path, lb_err *err)
{
    DIR *dir = opendir(path);
    if (!dir) return lb_fail(err, LB_ERR_IO, "%s: %s", path, strerror(errno));
    int error = 0;
    for (struct dirent *dirent; errno = 0, (dirent = readdir(dir));)
        if (is_archive(dirent->d_name) && unlinkat(dirfd(dir), dirent->d_name, 0) != 0 && !error) error = errno;
    if (!error) error = errno;
    closedir(dir);
    return error ? lb_fail(err, LB_ERR_IO, "%s: %s", path, strerror(error)) : LB_OK;
}

lb_status lb_reproducer_size(const char *path, uint64_t *ops, uint64_t *bytes, lb_err *err)
{
    lb_capture *capture;
    const int32_t *ranks;
    const int64_t *steps;
    *ops = *bytes = 0;
    LB_TRY(lb_capture_open(path, &capture, err));
    uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps);
    for (uint32_t r = 0; r < n_ranks; r++) {
        const lb_program *program;
        struct stat info;
        char *file = lb_capture_archive_path(path, ranks[r]);
        if (file && lb_input_look(file, &info, NULL) == LB_OK) *bytes += (uint64_t)info.st_size;
        free(file);
        for (uint32_t s = 0; s < n_steps; s++)
            for (uint32_t i = 0;
                 lb_capture_program(capture, ranks[r], steps[s], &program, NULL) == LB_OK && i < program->n_ops; i++)
                *ops +=
                    !(program->ops[i].flags & LB_OP_VIEW) && strncmp(lb_op_name(program, &program->ops[i]), "lb::", 4);
    }
    lb_capture_close(capture);
    return LB_OK;
}

/* Of a draft, so that one sync of all at the end will do. An archive that is there is replaced once this one is
 * complete. */
static lb_status open_archive(const book *book, uint32_t rank_row, lb_writer **writer)
{
    lb_writer_options options = LB_WRITER_OPTIONS_INIT;
    char *path = lb_capture_archive_path(book->session->draft, book->session->ranks[rank_row]);
    options.overwrite = options.whole = true;
    options.sync = LB_OUTPUT_SYNC_NEVER;
    lb_status status =
        path ? lb_writer_open(path, &options, writer, book->err) : lb_fail(book->err, LB_ERR_NOMEM, "out of memory");
    free(path);
    return status;
}

static lb_status close_archives(book *book, lb_status status)
{
    const char *path = lb_capture_path(book->session->capture), *name = strrchr(path, '/');
    json_t *receipt =
        json_pack("{s:s, s:s}", "reproducer_of", name && name[1] ? name + 1 : path, "made_by", "lastbit bisect");
    char *table = receipt ? json_dumps(receipt, JSON_COMPACT) : NULL;
    for (uint32_t r = 0; r < book->session->n_ranks; r++) {
        if (!book->writers[r]) continue;
        if (status == LB_OK && table) status = lb_writer_table(book->writers[r], "receipt", table, book->err);
        lb_status closed = lb_writer_close(book->writers[r], status == LB_OK ? book->err : NULL);
        if (status == LB_OK) status = closed;
        book->writers[r] = NULL;
    }
    free(table);
    json_decref(receipt);
    return status;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static uint32_t rank_row(const book *book, int32_t rank)
{
    uint32_t row = 0;
    while (row < book->session->n_ranks && book->session->ranks[row] != rank) row++;
    return row;
}

/* Stores the dense range of a tensor; gaps between its elements are 0. */
static lb_status store(book *book, page *page, uint32_t value, const lb_tensor *tensor)
{
    const lb_value *row = &page->program->values[value];
    lb_writer *writer = book->writers[rank_row(book, page->program->rank)];
    int64_t first, last;
    LB_TRY(lb_layout_dense_range(&row->layout, &first, &last, book->err));
    size_t size = lb_dtype_bytes(row->dtype, (size_t)(last - first)),
           elements = lb_dtype_bytes(row->dtype, (size_t)lb_layout_numel(&row->layout));
    char *dense = calloc(1, size + 1), *packed = malloc(elements + 1);
    lb_status status = dense && packed ? LB_OK : lb_fail(book->err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = lb_tensor_gather(tensor, packed, book->err);
    if (status == LB_OK) {
        lb_tensor window = {dense + lb_dtype_bytes(row->dtype, (size_t)(row->layout.offset - first)), row->dtype,
                            row->layout};
        status = lb_tensor_scatter(&window, packed, book->err);
    }
    if (status == LB_OK && size) {
        page->blob[value] = lb_digest_bytes(dense, size);
        status = lb_writer_blob(writer, page->blob[value], row->dtype, dense, size, book->err);
    }
    if (status == LB_OK) page->logical[value] = lb_digest_tensor(tensor);
    free(dense);
    free(packed);
    return status;
}

static page *page_of(const book *book, int32_t rank, int64_t step)
{
    for (uint32_t k = 0; k < book->n; k++)
        if (book->pages[k].program->step == step && book->pages[k].program->rank == rank) return &book->pages[k];
    return NULL;
}

static bool is_carried(const lb_value *value)
{
    return value->source == LB_SOURCE_CARRIED;
}

static lb_status list_carried(book *book)
{
    for (uint32_t k = 0; k < book->n; k++) {
        page *page = &book->pages[k];
        const lb_program *program = page->program;
        for (uint32_t i = 0; i < program->n_ops; i++) {
            if (page->fates[i] != LB_PROGRAM_SUBSET_SOURCE || !lb_op_is_source(program, &program->ops[i])) continue;
            uint32_t v = lb_op_results(program, &program->ops[i])[0];
            if (!is_carried(&program->values[v]) || !page->needed[v]) continue;
            left *more = lb_array_grow(book->carried, book->n_carried, sizeof *more);
            if (!more) return lb_fail(book->err, LB_ERR_NOMEM, "out of memory");
            book->carried = more;
            book->carried[book->n_carried++] = (left){.page = page, .value = v};
        }
    }
    return LB_OK;
}

/* What the op left in a storage that a later step shows as a source. */
static void keep_carried(book *book, const lb_event *event, uint32_t row)
{
    const lb_tensor *tensor = &event->computed[row];
    const lb_value *written = &event->program->values[event->values[row]];
    for (uint32_t i = 0; i < book->n_carried; i++) {
        left *left = &book->carried[i];
        const lb_value *value = &left->page->program->values[left->value];
        if (value->storage != written->storage || left->page->program->rank != event->rank ||
            left->page->program->step <= event->step)
            continue;
        bool whole = tensor->data && tensor->dtype == value->dtype && value->layout.offset == written->layout.offset &&
                     lb_layout_same_shape(&tensor->layout, &value->layout);
        size_t size = lb_dtype_bytes(value->dtype, (size_t)lb_layout_numel(&value->layout));
        if (whole && !left->bytes) left->bytes = malloc(size + 1);
        if (!whole || !left->bytes || lb_tensor_gather(tensor, left->bytes, NULL) != LB_OK) {
            free(left->bytes);
            left->bytes = NULL;
        }
    }
}

static lb_status store_carried(book *book)
{
    for (uint32_t i = 0; i < book->n_carried; i++) {
        left *left = &book->carried[i];
        const lb_program *program = left->page->program;
        const lb_value *value = &program->values[left->value];
        lb_tensor tensor = {left->bytes, value->dtype, lb_layout_contiguous(value->layout.ndim, value->layout.shape)};
        if (!left->bytes) LB_TRY(lb_capture_value(book->session->capture, program, left->value, &tensor, book->err));
        LB_TRY(store(book, left->page, left->value, &tensor));
    }
    return LB_OK;
}

/* The replay begins at a checkpoint: what earlier steps left is there. */
static void take_checkpoint(void *context, uint32_t checkpoint)
{
    book *book = context;
    for (uint32_t i = 0; i < book->n_carried; i++) {
        left *left = &book->carried[i];
        const lb_value *value = &left->page->program->values[left->value];
        lb_tensor tensor;
        if (!lb_checkpoint_contents(book->session->past.checkpoints, checkpoint, left->page->program->rank, value,
                                    &tensor))
            continue;
        free(left->bytes);
        left->bytes = malloc(lb_dtype_bytes(value->dtype, (size_t)lb_layout_numel(&value->layout)) + 1);
        if (left->bytes && lb_tensor_gather(&tensor, left->bytes, NULL) == LB_OK) continue;
        free(left->bytes);
        left->bytes = NULL;
    }
}

static void find_last(page *page)
{
    const lb_program *program = page->program;
    page->seen = true; /* sources tell no event */
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (page->fates[i] != LB_PROGRAM_SUBSET_DROP && !lb_op_is_source(program, &program->ops[i]))
            page->last = i, page->seen = false;
}

/* Whether everything that is kept has been seen by now. */
static bool all_seen(const book *book, page *page, uint32_t op)
{
    if (op < page->last) return false;
    page->seen = true;
    for (uint32_t k = 0; k < book->n; k++)
        if (!book->pages[k].seen) return false;
    return true;
}

static bool take_result(void *context, const lb_event *event)
{
    book *book = context;
    for (uint32_t i = 0; i < event->n_results; i++)
        if (event->values[i] != LB_NONE && event->values[i] < event->program->n_values) keep_carried(book, event, i);
    page *page = page_of(book, event->rank, event->step);
    if (!page || event->op >= page->program->n_ops) return true;
    if (page->fates[event->op] == LB_PROGRAM_SUBSET_DROP) return !all_seen(book, page, event->op);
    for (uint32_t i = 0; i < event->n_results && book->status == LB_OK; i++) {
        uint32_t v = event->values[i];
        if (v == LB_NONE || v >= page->program->n_values || !event->computed[i].data ||
            event->computed[i].dtype != page->program->values[v].dtype || !page->needed[v])
            continue;
        /* What was decided stands in where a change would decide otherwise. */
        if (page->fates[event->op] == LB_PROGRAM_SUBSET_SOURCE || !lb_dtype_is_float(page->program->values[v].dtype))
            book->status = store(book, page, v, &event->computed[i]);
    }
    return book->status == LB_OK && !all_seen(book, page, event->op);
}

static lb_status take_results(book *book)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    lb_observer observer = {.context = book, .op = take_result, .resumed = take_checkpoint};
    lb_rerun_plan(book->session, &plan);
    plan.last_step = book->session->failure.step;
    if (plan.memory_bytes) lb_rerun_release(book->session); /* nothing runs after this that needs it */
    plan.from_by = book->n ? book->pages[0].program->step : INT64_MAX;
    lb_rerun_resume(book->session, &plan);
    LB_TRY(lb_replay_run(book->session->replay, &plan, &observer, &summary, book->err));
    return book->status;
}

/* Sources tell no event: their bytes are the recorded ones. `all`: results of opaque ops, too. */
static lb_status take_recorded(book *book, bool all)
{
    for (uint32_t k = 0; k < book->n; k++) {
        page *page = &book->pages[k];
        const lb_program *program = page->program;
        for (uint32_t i = 0; i < program->n_ops; i++) {
            bool source = lb_op_is_source(program, &program->ops[i]);
            if (page->fates[i] != LB_PROGRAM_SUBSET_SOURCE || !(source || all)) continue;
            for (uint32_t r = 0; r < program->ops[i].results; r++) {
                uint32_t v = lb_op_results(program, &program->ops[i])[r];
                lb_tensor tensor;
                if (v == LB_NONE || program->values[v].flags & LB_VALUE_UNDEFINED || !page->needed[v]) continue;
                if (source && is_carried(&program->values[v])) continue;
                LB_TRY(lb_capture_value(book->session->capture, program, v, &tensor, book->err));
                LB_TRY(store(book, page, v, &tensor));
            }
        }
    }
    return LB_OK;
}

/* ---- subsets ----------------------------------------------------------------------------------------------------- */

static lb_status write_excerpts(book *book)
{
    for (uint32_t k = 0; k < book->n; k++) {
        page *page = &book->pages[k];
        lb_writer *writer = book->writers[rank_row(book, page->program->rank)];
        if (!page->subset)
            LB_TRY(lb_program_subset(page->program, page->fates, page->needed, page->logical, page->blob, &page->subset,
                                     book->err));
        LB_TRY(lb_writer_program(writer, page->subset, book->err));
    }
    return LB_OK;
}

static void note_value(page *page, uint32_t v, const lb_tensor *tensor)
{
    lb_value *row = &page->subset->values[v];
    if (tensor->dtype != row->dtype) return;
    row->logical = lb_digest_tensor(tensor);
    lb_statistics statistics = lb_statistics_of(tensor);
    if (row->statistics == LB_NONE)
        row->statistics = lb_program_add_statistics(page->subset, &statistics);
    else
        page->subset->statistics[row->statistics] = statistics;
}

static bool note_result(void *context, const lb_event *event)
{
    book *book = context;
    page *page = page_of(book, event->rank, event->step);
    for (uint32_t i = 0; page && i < event->n_results; i++)
        if (event->values[i] != LB_NONE && event->values[i] < page->subset->n_values && event->computed[i].data)
            note_value(page, event->values[i], &event->computed[i]);
    return true;
}

static void note_sources(const page *page, lb_capture *capture)
{
    const lb_program *program = page->subset;
    for (uint32_t v = 0; v < program->n_values; v++) {
        lb_tensor tensor;
        if (program->values[v].flags & LB_VALUE_SOURCE && lb_capture_value(capture, program, v, &tensor, NULL) == LB_OK)
            note_value((struct page *)page, v, &tensor);
    }
}

static lb_status copy_blobs(const page *page, lb_capture *capture, lb_writer *writer, lb_err *err)
{
    const lb_program *program = page->subset;
    for (uint32_t v = 0; v < program->n_values; v++) {
        const void *bytes;
        size_t size;
        if (!(program->values[v].flags & LB_VALUE_KEPT)) continue;
        LB_TRY(lb_capture_blob(capture, program->rank, program->values[v].blob, &bytes, &size, err));
        LB_TRY(lb_writer_blob(writer, program->values[v].blob, program->values[v].dtype, bytes, size, err));
    }
    return LB_OK;
}

/* Writes everything again, with what the first writing computes when it is replayed. */
static lb_status write_again(book *book, const bool *used)
{
    lb_capture *capture = NULL;
    lb_replay *replay = NULL;
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    lb_observer observer = {.context = book, .op = note_result};
    plan.mode = LB_REPLAY_CHAINED;
    plan.compare = false;
    plan.force_decisions = true;
    lb_status status = lb_capture_open(book->session->draft, &capture, book->err);
    if (status == LB_OK) status = lb_replay_open(capture, &replay, book->err);
    if (status == LB_OK) status = lb_replay_run(replay, &plan, &observer, &summary, book->err);
    for (uint32_t r = 0; r < book->session->n_ranks && status == LB_OK; r++)
        if (used[r]) status = open_archive(book, r, &book->writers[r]);
    for (uint32_t k = 0; k < book->n && status == LB_OK; k++) {
        note_sources(&book->pages[k], capture);
        status = copy_blobs(&book->pages[k], capture, book->writers[rank_row(book, book->pages[k].program->rank)],
                            book->err);
    }
    if (status == LB_OK) status = write_excerpts(book);
    status = close_archives(book, status);
    lb_replay_close(replay);
    lb_capture_close(capture);
    return status;
}

/* Pages are set; what stands in comes from a replay (`computed`), or as far as it can from the recording. */
static lb_status write_book(book *book, bool computed)
{
    bool *used = calloc(book->session->n_ranks + 1, sizeof *used);
    book->writers = calloc(book->session->n_ranks + 1, sizeof *book->writers);
    lb_status status = used && book->writers ? empty_draft(book->session->draft, book->err)
                                             : lb_fail(book->err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t k = 0; k < book->n && status == LB_OK; k++) {
        page *page = &book->pages[k];
        uint32_t row = rank_row(book, page->program->rank);
        page->logical = calloc(page->program->n_values + 1, sizeof *page->logical);
        page->blob = calloc(page->program->n_values + 1, sizeof *page->blob);
        page->needed = malloc(page->program->n_values + 1);
        if (!page->logical || !page->blob || !page->needed)
            status = lb_fail(book->err, LB_ERR_NOMEM, "out of memory");
        else
            status = lb_program_subset_needs(page->program, page->fates, page->wanted, page->needed, book->err);
        find_last(page);
        if (status == LB_OK && !used[row]) status = open_archive(book, row, &book->writers[row]);
        used[row] = true;
    }
    if (status == LB_OK) status = take_recorded(book, !computed);
    if (status == LB_OK) status = list_carried(book);
    if (status == LB_OK) status = take_results(book);
    if (status == LB_OK) status = store_carried(book);
    if (status == LB_OK) status = write_excerpts(book);
    if (book->writers) status = close_archives(book, status);
    if (status == LB_OK) status = write_again(book, used);
    free(used);
    return status;
}

static void release(book *book)
{
    for (uint32_t k = 0; k < book->n; k++) {
        free(book->pages[k].logical);
        free(book->pages[k].blob);
        free(book->pages[k].needed);
        lb_program_free(book->pages[k].subset);
    }
    for (uint32_t i = 0; i < book->n_carried; i++) free(book->carried[i].bytes);
    free(book->carried);
    free(book->pages);
    free(book->writers);
}

lb_status lb_reproducer_write(lb_dependency_slice *slice, lb_err *err)
{
    book book = {.session = slice->session, .err = err};
    book.pages = calloc(slice->n + 1, sizeof *book.pages);
    if (!book.pages) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t k = 0; k < slice->n; k++)
        if (slice->parts[k].used)
            book.pages[book.n++] = (page){
                .program = slice->parts[k].program, .fates = slice->parts[k].fates, .wanted = slice->parts[k].wanted};
    lb_status status = write_book(&book, true);
    release(&book);
    return status;
}

/* A source stays one; an opaque op becomes one. */
static lb_status whole_step(const lb_program *program, bool first, uint8_t **fates, lb_err *err)
{
    *fates = malloc((size_t)program->n_ops + 1);
    if (!*fates) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const char *name = lb_op_name(program, &program->ops[i]);
        bool stands = program->ops[i].flags & (LB_OP_RANDOM | LB_OP_COMPOSITE) || !lb_replay_knows(name);
        (*fates)[i] = stands ? LB_PROGRAM_SUBSET_SOURCE : LB_PROGRAM_SUBSET_KEEP;
        if (strcmp(name, "lb::source")) continue;
        bool carried = program->values[lb_op_results(program, &program->ops[i])[0]].source == LB_SOURCE_CARRIED;
        (*fates)[i] = carried && !first ? LB_PROGRAM_SUBSET_CARRIED : LB_PROGRAM_SUBSET_SOURCE;
    }
    return LB_OK;
}

lb_status lb_reproducer_write_steps(lb_bisect_session *session, int64_t first_step, lb_err *err)
{
    book book = {.session = session, .err = err};
    lb_status status = LB_OK;
    book.pages = calloc((size_t)session->n_steps * session->n_ranks + 1, sizeof *book.pages);
    if (!book.pages) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < session->n_steps; s++)
        for (uint32_t r = 0; r < session->n_ranks && status == LB_OK; r++) {
            const lb_program *program = lb_trial_program(session, session->ranks[r], session->steps[s]);
            uint8_t *fates = NULL;
            if (!program || session->steps[s] < first_step || session->steps[s] > session->failure.step) continue;
            status = whole_step(program, session->steps[s] == first_step, &fates, err);
            book.pages[book.n++] = (page){.program = program, .fates = fates, .wanted = -1};
        }
    if (status == LB_OK) status = write_book(&book, false);
    for (uint32_t k = 0; k < book.n; k++) free((uint8_t *)book.pages[k].fates);
    release(&book);
    return status;
}
