/* A rank's archive: see call_archive.h. */
#include "calls/call_archive.h"

#include "calls/member_names.h"
#include "calls/shim_settings.h"

#include <stdio.h>
#include <string.h>

static const lb_door *door;

const lb_door *lb_call_archive_door(void)
{
    return door;
}

/* A shim uses no room of the recorder but through its door: the words are those of lb_output_sync_parse. */
static uint8_t sync_of(const char *text)
{
    if (text && strcmp(text, "step") == 0) return LB_OUTPUT_SYNC_STEP;
    return text && strcmp(text, "never") == 0 ? LB_OUTPUT_SYNC_NEVER : LB_OUTPUT_SYNC_CLOSE;
}

/* Nothing of the recorder is linked, lb_fail neither. */
static lb_status no_door(lb_err *err, const char *why)
{
    if (!err) return LB_ERR_NOT_FOUND;
    err->status = LB_ERR_NOT_FOUND;
    snprintf(err->message, sizeof err->message, "%s", why);
    return LB_ERR_NOT_FOUND;
}

lb_status lb_call_archive_open(lb_call_archive *archive, int32_t rank, int32_t world, lb_err *err)
{
    char why[sizeof err->message] = "";
    const lb_shim_settings *settings = lb_shim_settings_now();
    archive->opened = true;
    if (!door) door = lb_door_open(why, sizeof why);
    if (!door) return no_door(err, why);
    lb_recorder_options options = LB_RECORDER_OPTIONS_INIT;
    options.rank = rank;
    options.world = world > rank ? world : rank + 1;
    options.keep = settings->keep;
    options.layers = settings->layers;
    options.like = settings->like;
    options.budget_bytes = settings->budget_bytes;
    options.ring = (uint32_t)settings->ring;
    options.ring_files = settings->ring_files;
    options.sync = sync_of(settings->sync);
    if (settings->level) door->lb_keep_level_parse(settings->level, &options.level);
    if (!settings->bytes) options.level = LB_LEVEL_STATS;
    return door->lb_recorder_open(settings->out, &options, &archive->recorder, err);
}

lb_status lb_call_archive_end_step(lb_call_archive *archive, lb_err *err)
{
    const bool ends = archive->in_step;
    archive->in_step = false;
    return ends ? door->lb_recorder_step_end(archive->recorder, true, err) : LB_OK;
}

lb_status lb_call_archive_enter(lb_call_archive *archive, int64_t step, lb_err *err)
{
    if (archive->in_step && step <= archive->open_step) return LB_OK;
    LB_TRY(lb_call_archive_end_step(archive, err));
    LB_TRY(door->lb_recorder_step_begin(archive->recorder, step, NULL, err));
    archive->in_step = true;
    archive->open_step = step;
    archive->n_told = 0;
    return LB_OK;
}

static bool was_told(lb_call_archive *archive, const char *text)
{
    const uint64_t hash = lb_member_names_hash(text, strlen(text));
    const uint32_t room = sizeof archive->told / sizeof *archive->told;
    for (uint32_t i = 0; i < archive->n_told; i++)
        if (archive->told[i] == hash) return true;
    if (archive->n_told < room) archive->told[archive->n_told++] = hash;
    return false;
}

void lb_call_archive_skipped(lb_call_archive *archive, const char *text)
{
    if (!was_told(archive, text)) door->lb_recorder_notice(archive->recorder, "skipped", text, NULL);
}

void lb_call_archive_close(lb_call_archive *archive)
{
    if (!archive->recorder) return;
    lb_received_bytes_drop(&archive->received, door, archive->recorder);
    door->lb_recorder_close(archive->recorder, NULL);
    archive->recorder = NULL;
}
