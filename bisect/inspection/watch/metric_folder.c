/* See metric_folder.h. A file's name below "metrics" is the metric's. */
#define _GNU_SOURCE
#include "watch/metric_folder.h"

#include "watch/log_number.h"
#include "watch/log_reader.h"

#include <lastbit/input.h>

#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct metric_number {
    int64_t step;
    lb_watch_field field;
    size_t at; /* order of reading */
    double value;
} metric_number;

typedef struct metric_list {
    metric_number *rows;
    size_t n, room;
} metric_list;

/* "…/metrics/train/loss": what stands behind the last "metrics/". */
static const char *metric_name(const char *path)
{
    const char *name = NULL;
    for (const char *at = path; (at = strstr(at, "/metrics/")); at += 8) name = at + 9;
    return name && *name ? name : NULL;
}

static bool read_numbers(const char *line, metric_number *row)
{
    lb_log_number part[3];
    size_t at = 0;
    const size_t n = strcspn(line, "\r\n");
    for (int i = 0; i < 3; i++) {
        const size_t taken = lb_log_number_read(line + at, n - at, &part[i]);
        if (!taken) return false;
        at += taken;
        if (i < 2 && (at >= n || line[at++] != ' ')) return false;
    }
    if (at != n || !part[0].is_integer || !part[2].is_integer || part[2].number < 0) return false;
    row->value = part[1].number, row->step = (int64_t)part[2].number;
    return true;
}

static bool is_metric_file(const char *path)
{
    char line[256] = "";
    metric_number row;
    FILE *file;
    if (!metric_name(path) || lb_input_stream(path, &file, NULL) != LB_OK) return false;
    const bool is = fgets(line, sizeof line, file) && read_numbers(line, &row);
    return lb_input_stream_end(file, path, NULL) == LB_OK && is;
}

/* The folder "metrics" of a run's folder, or the path itself. */
static void folder_of(const char *path, char *out, size_t room)
{
    snprintf(out, room, "%s/metrics", path);
    if (!lb_input_is_folder(out)) snprintf(out, room, "%s", path);
}

/* The next file or folder in it; what the system did not let fts read is remembered (lastbit/input.h). */
static FTSENT *next_entry(FTS *tree)
{
    errno = 0;
    FTSENT *entry = fts_read(tree);
    if (!entry && errno) lb_input_refuse("a folder of metrics", "list", errno, NULL);
    if (entry && (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS))
        lb_input_refuse(entry->fts_path, "read", entry->fts_errno, NULL);
    return entry;
}

bool lb_metric_folder_is(const char *path)
{
    char folder[4096];
    folder_of(path, folder, sizeof folder);
    char *const paths[] = {folder, NULL};
    FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    bool is = false;
    for (FTSENT *entry; tree && !is && (entry = next_entry(tree)) && entry->fts_level < 5;)
        is = entry->fts_info == FTS_F && is_metric_file(entry->fts_path);
    if (tree) fts_close(tree);
    return is;
}

static lb_status read_metric(metric_list *list, const char *path, lb_watch_field field, lb_err *err)
{
    char line[256];
    FILE *file;
    LB_TRY(lb_input_stream(path, &file, err));
    lb_status status = LB_OK;
    while (status == LB_OK && fgets(line, sizeof line, file)) {
        metric_number row = {.field = field, .at = list->n};
        if (!read_numbers(line, &row)) continue;
        if (list->n == list->room) {
            const size_t room = list->room ? 2 * list->room : 1024;
            metric_number *grown = realloc(list->rows, room * sizeof *grown);
            if (!grown) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
            if (grown) list->rows = grown, list->room = room;
        }
        if (status == LB_OK) list->rows[list->n++] = row;
    }
    const lb_status ended = lb_input_stream_end(file, path, err);
    return status == LB_OK ? ended : status;
}

static int by_step(const void *a, const void *b)
{
    const metric_number *x = a, *y = b;
    return x->step != y->step ? (x->step > y->step) - (x->step < y->step) : (x->at > y->at) - (x->at < y->at);
}

static void give(lb_watch_log *log, metric_list *list)
{
    if (list->n) qsort(list->rows, list->n, sizeof *list->rows, by_step);
    for (size_t i = 0; i < list->n;) {
        lb_watch_record record = {0};
        lb_log_field_record_clear(&record);
        lb_log_field_record_put_number(&record, LB_WATCH_step, (double)list->rows[i].step);
        const int64_t step = list->rows[i].step;
        for (; i < list->n && list->rows[i].step == step; i++)
            lb_log_field_record_put_number(&record, list->rows[i].field, list->rows[i].value);
        lb_watch_log_give(log, &record);
    }
}

lb_status lb_metric_folder_read(lb_watch_log *log, const char *path, lb_err *err)
{
    char folder[4096];
    folder_of(path, folder, sizeof folder);
    char *const paths[] = {folder, NULL};
    metric_list list = {0};
    lb_status status = LB_OK;
    FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    lb_watch_log_is(log, LB_WATCH_MLFLOW);
    for (FTSENT *entry; tree && status == LB_OK && (entry = next_entry(tree));) {
        if (entry->fts_info != FTS_F || !is_metric_file(entry->fts_path)) continue;
        const char *name = metric_name(entry->fts_path);
        const lb_watch_field field = lb_field_of(lb_watch_log_names(log), name, strlen(name));
        if ((int)field < LB_WATCH_N_NUMBERS) status = read_metric(&list, entry->fts_path, field, err);
    }
    if (tree) fts_close(tree);
    if (status == LB_OK) give(log, &list);
    free(list.rows);
    return status;
}
