/* lastbit verify: reads every byte of a capture and says what is damaged. */
#include "command/command_line.h"
#include "command/command_parts.h"

#include <lastbit/maintenance.h>

#include <inttypes.h>
#include <stdio.h>

static int quiet;

static const struct poptOption options[] = {
    {"quiet", 'q', POPT_ARG_NONE, &quiet, 0, "print nothing; the exit code says it", NULL},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "verify",
    .synopsis = "CAPTURE",
    .about = "Reads every record of a capture, whatever its index says: checksums, sizes, the rules of programs, "
             "and whether the bytes that programs call kept are there. "
             "What a killed writer left after its last commit is not damage. "
             "An archive that was never closed may still grow; it does not say which steps it lacks. "
             "Exit code 1 when something is damaged, or nothing was committed.",
    .example = "  lastbit verify run.lb || lastbit recover run.lb -o whole.lb",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .parts = true,
};

/* Of missing bytes a whole pack may be stripped: a few lines say as much as a million. */
#define MISSING_SHOWN 5

typedef struct findings {
    json_t *list; /* NULL: as text */
    uint64_t missing;
} findings;

static void found(void *context, const lb_damage *damage)
{
    findings *f = (findings *)context;
    bool many = damage->kind == LB_DAMAGE_MISSING && f->missing++ >= MISSING_SHOWN;
    if (f->list && !many)
        json_array_append_new(f->list, json_pack("{s:s, s:s, s:I, s:s}", "kind",
                                                 lb_verify_damage_kind_name(damage->kind), "file", damage->file,
                                                 "offset", (json_int_t)damage->offset, "message", damage->message));
    else if (!f->list && !quiet && !many)
        printf("%s: %s\n", lb_verify_damage_kind_name(damage->kind), damage->message);
}

/* Records, and none of them part of the capture: stopped before its first commit, or cut off before it. */
static bool is_empty(const lb_verification *verification)
{
    return !verification->programs && !verification->blobs && !verification->tables;
}

static const char *verdict_of(const lb_verification *verification)
{
    return verification->damages ? "damaged" : is_empty(verification) ? "empty" : "whole";
}

static void print_json(const char *path, const lb_verification *verification, findings *findings)
{
    lb_command_print_json(
        "verify", json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "capture", path,
                            "verdict", verdict_of(verification), "archives", (json_int_t)verification->archives,
                            "closed", (json_int_t)verification->closed, "may_go_on",
                            (json_int_t)(verification->archives - verification->closed), "records",
                            (json_int_t)verification->records, "blobs", (json_int_t)verification->blobs, "programs",
                            (json_int_t)verification->programs, "tables", (json_int_t)verification->tables, "bytes",
                            (json_int_t)verification->bytes, "uncommitted", (json_int_t)verification->uncommitted,
                            "damages", (json_int_t)verification->damages, "missing", (json_int_t)verification->missing,
                            "findings", findings->list));
}

static void print_text(const char *path, const lb_verification *verification)
{
    char bytes[16];
    if (verification->missing > MISSING_SHOWN)
        printf("missing: %" PRIu64 " more; `lastbit ls` says whether `pack --strip` left them out\n",
               verification->missing - MISSING_SHOWN);
    printf(
        "%s: %s%s: %" PRIu32 " archive%s (%" PRIu32 " closed), %" PRIu64 " records, %" PRIu64 " blobs of %s, %" PRIu64
        " programs, %" PRIu64 " tables; %" PRIu64 " uncommitted, %" PRIu64 " damaged, %" PRIu64 " missing\n",
        path, verdict_of(verification),
        verification->damages || is_empty(verification) || verification->closed == verification->archives ? ""
                                                                                                          : " so far",
        verification->archives, verification->archives == 1 ? "" : "s", verification->closed, verification->records,
        verification->blobs, lb_command_bytes_text(verification->bytes, bytes), verification->programs,
        verification->tables, verification->uncommitted, verification->damages, verification->missing);
    if (verification->closed < verification->archives)
        printf("%" PRIu32 " may go on: not closed, so it records still, its process was ended, "
               "or the file was cut behind a commit; whether there were more steps it does not tell, "
               "and what stands behind the last commit is not part of it\n",
               verification->archives - verification->closed);
    if (verification->minor > LB_FORMAT_MINOR)
        printf("written in format %d.%" PRIu32 ", and this lastbit knows %d.%d: what that added is not read\n",
               LB_FORMAT_MAJOR, verification->minor, LB_FORMAT_MAJOR, LB_FORMAT_MINOR);
    if (verification->damages || verification->uncommitted)
        printf("next: `lastbit recover %s` writes what is whole into a new capture\n", path);
}

int lb_cmd_verify(int argc, const char **argv)
{
    lb_command_arguments arguments;
    lb_err err = LB_ERR_INIT;
    lb_verification verification;
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    findings findings = {arguments.json ? json_array() : NULL, 0};
    if (lb_capture_verify_in_parts(arguments.args[0], lb_command_parts(), found, &findings, &verification, &err) !=
        LB_OK) {
        json_decref(findings.list);
        code = lb_command_fail("verify", &err);
    } else {
        code = verification.damages || is_empty(&verification) ? LB_EXIT_DIFFERENT : LB_EXIT_SAME;
        if (arguments.json)
            print_json(arguments.args[0], &verification, &findings);
        else if (!quiet)
            print_text(arguments.args[0], &verification);
    }
    lb_command_arguments_release(&arguments);
    return code;
}
