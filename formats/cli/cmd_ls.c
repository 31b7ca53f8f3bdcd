/* lastbit ls: what a capture holds, and how much of it was kept. */
#include "cli/cmd_ls.h"

#include <lastbit/input.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static int layers, ops, values, tables, receipt;
static char *step_text, *rank_text;

static const struct poptOption options[] = {
    {"step", 0, POPT_ARG_STRING, &step_text, 0, "this step only", "N"},
    {"rank", 0, POPT_ARG_STRING, &rank_text, 0, "this rank only", "N"},
    {"layers", 'l', POPT_ARG_NONE, &layers, 0, "list layers: ops, and how many results were kept", NULL},
    {"ops", 'o', POPT_ARG_NONE, &ops, 0, "list ops with their arguments", NULL},
    {"values", 'v', POPT_ARG_NONE, &values, 0, "list values", NULL},
    {"tables", 't', POPT_ARG_NONE, &tables, 0, "print the tables: receipt, coverage, findings", NULL},
    {"receipt", 0, POPT_ARG_NONE, &receipt, 0,
     "print what the run was as one JSON object; with two captures (or such objects in .json files), "
     "what they differ in",
     NULL},
    POPT_TABLEEND,
};

static const lb_command command = {
    .name = "ls",
    .synopsis = "CAPTURE [CAPTURE2]",
    .about = "Lists the steps and ranks of a capture: ops by phase, values, and of each kind of value how many\n"
             "kept their bytes (the others are known by digest and statistics); taps, and decisions: "
             "ops whose result steered Python. Many steps are listed in a line each;\n"
             "--step and --rank show one in full. CAPTURE is a folder NAME.lb, a packed file, one archive, "
             "or weights:\n"
             "safetensors (file, index or folder), .npy, .npz, .pt, .gguf of numbers, a torch distributed checkpoint.",
    .example = "  lastbit ls run.lb\n  lastbit ls run.lb --step 3 --rank 0 --layers\n"
               "  lastbit ls --receipt good.lb bad.lb        # another library, another flag, another checkpoint?",
    .options = options,
    .min_args = 1,
    .max_args = 2,
};

const char *const ls_level_names[LS_LEVELS] = {"sources", "layers", "ops"};
const char *const ls_levels_reached[4] = {"stats", "sources", "layers", "ops"};

/* From this many programs on each gets a line, not a paragraph. */
#define MANY 9
/* So many programs are listed before what was read of the files is let go. */
#define UNLOADED 64

/* ---- counting ---------------------------------------------------------------------------------------------------- */

static uint64_t bytes_of(const lb_value *value)
{
    return lb_dtype_bytes(value->dtype, (size_t)lb_layout_numel(&value->layout));
}

static void count(ls_kept *kept, const ls_view *view, uint32_t value)
{
    kept->total++;
    if (!view->kept[value]) return;
    kept->kept++;
    kept->bytes += bytes_of(&view->p->values[value]);
}

/* The first level that keeps each value; malloc'ed. */
static uint8_t *levels_of(const lb_program *program)
{
    uint8_t *level = malloc(program->n_values + 1u);
    if (!level) return NULL;
    memset(level, LS_OPS, program->n_values + 1u);
    for (uint32_t i = 0; i < program->n_boundaries; i++) level[program->boundaries[i].value] = LS_LAYERS;
    for (uint32_t i = 0; i < program->n_values; i++)
        if (program->values[i].flags & LB_VALUE_SOURCE) level[i] = LS_SOURCES;
    return level;
}

bool ls_view_make(ls_view *view, lb_capture *capture, const lb_program *program)
{
    memset(view, 0, sizeof *view);
    view->capture = capture;
    view->p = program;
    view->kept = malloc(program->n_values + 1u);
    view->op_of = lb_program_producers(program);
    uint8_t *level = levels_of(program);
    bool made = view->kept && view->op_of && level;
    for (uint32_t i = 0; i < program->n_values && made; i++) {
        view->kept[i] = lb_capture_has_value(capture, program, i);
        count(&view->levels[level[i]], view, i);
    }
    for (uint32_t i = 0; i < program->n_ops; i++) view->phases[program->ops[i].phase]++;
    free(level);
    if (!made) ls_view_release(view);
    return made;
}

void ls_view_release(ls_view *view)
{
    free(view->kept);
    free(view->op_of);
    memset(view, 0, sizeof *view);
}

ls_layer *ls_count_layers(const ls_view *view)
{
    const lb_program *program = view->p;
    ls_layer *all = calloc(program->n_scopes, sizeof *all);
    if (!all) return NULL;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        all[program->ops[i].scope].ops++;
        all[program->ops[i].scope].by_phase[program->ops[i].phase]++;
    }
    for (uint32_t v = 0; v < program->n_values; v++)
        if (view->op_of[v] != LB_NONE) count(&all[program->ops[view->op_of[v]].scope].results, view, v);
    return all;
}

/* ---- what the capture was ---------------------------------------------------------------------------------------- */

/* Of a run its archives, of weights every file in the folder. */
static uint64_t folder_bytes(const char *folder)
{
    uint64_t all = 0, archives = 0;
    struct stat st;
    lb_input_names names;
    lb_input_list(folder, &names, NULL);
    for (uint32_t i = 0; i < names.n; i++) {
        char path[4400];
        const size_t n = strlen(names.rows[i]);
        snprintf(path, sizeof path, "%s/%s", folder, names.rows[i]);
        if (lb_input_look(path, &st, NULL) != LB_OK || !S_ISREG(st.st_mode)) continue;
        all += (uint64_t)st.st_size;
        if (strncmp(names.rows[i], "rank-", 5) == 0 && n > 4 && strcmp(names.rows[i] + n - 4, ".tar") == 0)
            archives += (uint64_t)st.st_size;
    }
    lb_input_names_release(&names);
    return archives ? archives : all;
}

static uint64_t file_bytes(const lb_capture *capture)
{
    struct stat st;
    if (lb_input_look(lb_capture_path(capture), &st, NULL) != LB_OK) return 0;
    return S_ISDIR(st.st_mode) ? folder_bytes(lb_capture_path(capture)) : (uint64_t)st.st_size;
}

/* The receipt in one line: by whom, with what, when. Whatever it lacks is left out. */
static void print_receipt(lb_capture *capture, int32_t rank)
{
    const char *text = lb_capture_table(capture, rank, "receipt");
    json_t *receipt = text ? json_loads(text, 0, NULL) : NULL, *versions = json_object_get(receipt, "versions"), *word;
    json_t *argv = json_object_get(json_object_get(receipt, "process"), "argv");
    time_t seconds = (time_t)json_number_value(json_object_get(receipt, "time"));
    struct tm utc;
    size_t index;
    char when[40] = "";
    if (seconds && gmtime_r(&seconds, &utc)) strftime(when, sizeof when, " %Y-%m-%d %H:%M UTC", &utc);
    if (*when || json_array_size(argv)) printf("  recorded%s", when);
    json_array_foreach(argv, index, word)
        printf("%s%s", index ? " " : " by ", json_string_value(word) ? json_string_value(word) : "…");
    const char *key, *between = json_array_size(argv) || *when ? "; " : "  ";
    json_t *version;
    json_object_foreach(versions, key, version)
    {
        if (json_string_value(version) && strcmp(key, "implementation") != 0)
            printf("%s%s %s", between, key, json_string_value(version)), between = ", ";
    }
    if (*when || json_array_size(argv) || json_object_size(versions)) putchar('\n');
    json_decref(receipt);
}

/* What is not whole: a process that ended early, bytes that were dropped or stripped. */
static void print_gaps(lb_capture *capture, const int32_t *ranks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const char *text = lb_capture_table(capture, ranks[i], "coverage");
        json_t *coverage = text ? json_loads(text, 0, NULL) : NULL, *closed = json_object_get(coverage, "closed");
        json_int_t skipped = json_integer_value(json_object_get(coverage, "skipped_values")),
                   unseen = json_integer_value(json_object_get(coverage, "unseen_writes"));
        const char *stopped = json_string_value(json_object_get(coverage, "stopped"));
        if (stopped)
            printf("  rank %" PRId32 " stopped recording before its program ended: %s; every step listed is whole\n",
                   ranks[i], stopped);
        else if (json_is_false(closed))
            printf("  rank %" PRId32
                   " did not end its recording: it records still, or was cut off; every step listed is whole\n",
                   ranks[i]);
        if (skipped)
            printf("  rank %" PRId32 ": %lld values were not kept for lack of room\n", ranks[i], (long long)skipped);
        if (unseen) printf("  rank %" PRId32 ": %lld unseen writes\n", ranks[i], (long long)unseen);
        json_decref(coverage);
    }
    const char *text = n ? lb_capture_table(capture, ranks[0], "pack") : NULL;
    json_t *pack = text ? json_loads(text, 0, NULL) : NULL, *kind;
    size_t index;
    json_array_foreach(json_object_get(pack, "strip"), index, kind)
        printf("%s%s", index ? ", " : "  packed without: ", json_string_value(kind));
    if (json_array_size(json_object_get(pack, "strip"))) putchar('\n');
    json_decref(pack);
}

static void print_capture(lb_capture *capture, const int32_t *ranks, uint32_t n_ranks, const int64_t *steps,
                          uint32_t n_steps)
{
    char text[16];
    printf("%s: %u rank%s, %u step%s", lb_capture_path(capture), n_ranks, ls_plural(n_ranks), n_steps,
           ls_plural(n_steps));
    if (n_steps > 1) printf(" (%" PRId64 " to %" PRId64 ")", steps[0], steps[n_steps - 1]);
    printf(", %s\n", lb_command_bytes_text(file_bytes(capture), text));
    if (n_steps == 0) printf("  no step was committed; `lastbit recover` may find some\n");
    if (n_ranks) print_receipt(capture, ranks[0]);
    print_gaps(capture, ranks, n_ranks);
    for (uint32_t r = 0; r < n_ranks && tables; r++) {
        json_t *all = ls_tables_json(capture, ranks[r]);
        printf("tables of rank %" PRId32 ": ", ranks[r]);
        json_dumpf(all, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(all);
    }
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

typedef struct listing {
    lb_capture *capture;
    const int32_t *ranks;
    const int64_t *steps;
    uint32_t n_ranks, n_steps;
    int64_t step, rank; /* where chosen */
    json_t *programs;   /* NULL: as text */
    uint32_t shown;
} listing;

static bool is_chosen(const listing *listing, uint32_t s, uint32_t r)
{
    return (!step_text || listing->steps[s] == listing->step) && (!rank_text || listing->ranks[r] == listing->rank);
}

static lb_status list_program(listing *listing, uint32_t step, uint32_t rank, bool brief, lb_err *err)
{
    const lb_program *program;
    ls_view view;
    ls_options lists = {layers, ops, values};
    lb_status status = lb_capture_program(listing->capture, listing->ranks[rank], listing->steps[step], &program, err);
    if (status == LB_ERR_NOT_FOUND) { /* not every rank records every step */
        lb_err_clear(err);
        return LB_OK;
    }
    LB_TRY(status);
    if (!ls_view_make(&view, listing->capture, program)) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (listing->programs)
        json_array_append_new(listing->programs, ls_program_json(&view, &lists));
    else if (brief)
        ls_print_line(&view, listing->shown == 0);
    else
        ls_print_program(&view, &lists);
    ls_view_release(&view);
    lb_capture_drop_program(listing->capture, listing->ranks[rank], listing->steps[step]);
    if (++listing->shown % UNLOADED == 0) lb_capture_unload(listing->capture);
    return LB_OK;
}

static lb_status list(listing *listing, lb_err *err)
{
    uint64_t chosen = 0;
    for (uint32_t s = 0; s < listing->n_steps; s++)
        for (uint32_t r = 0; r < listing->n_ranks; r++) chosen += is_chosen(listing, s, r);
    if (chosen == 0 && (step_text || rank_text))
        return lb_fail(err, LB_ERR_NOT_FOUND,
                       "%s: no such step or rank was recorded; `lastbit ls` lists those that were",
                       lb_capture_path(listing->capture));
    bool brief = chosen >= MANY && !layers && !ops && !values;
    if (!listing->programs)
        print_capture(listing->capture, listing->ranks, listing->n_ranks, listing->steps, listing->n_steps);
    for (uint32_t s = 0; s < listing->n_steps; s++)
        for (uint32_t r = 0; r < listing->n_ranks; r++)
            if (is_chosen(listing, s, r)) LB_TRY(list_program(listing, s, r, brief, err));
    if (listing->shown || (!step_text && !rank_text)) return LB_OK;
    return lb_fail(err, LB_ERR_NOT_FOUND, "%s: no such step or rank was recorded; `lastbit ls` lists those that were",
                   lb_capture_path(listing->capture));
}

static void print_listing(listing *listing)
{
    json_t *all = json_pack("{s:s, s:[], s:[], s:O}", "capture", lb_capture_path(listing->capture), "ranks", "steps",
                            "programs", listing->programs);
    for (uint32_t r = 0; r < listing->n_ranks; r++)
        json_array_append_new(json_object_get(all, "ranks"), json_integer(listing->ranks[r]));
    for (uint32_t s = 0; s < listing->n_steps; s++)
        json_array_append_new(json_object_get(all, "steps"), json_integer(listing->steps[s]));
    json_t *by_rank = tables ? json_array() : NULL;
    for (uint32_t r = 0; r < listing->n_ranks && tables; r++)
        json_array_append_new(by_rank, json_pack("{s:i, s:o}", "rank", (int)listing->ranks[r], "tables",
                                                 ls_tables_json(listing->capture, listing->ranks[r])));
    if (tables) json_object_set_new(all, "tables", by_rank);
    lb_command_print_json("ls", all);
}

int lb_cmd_ls(int argc, const char **argv)
{
    lb_command_arguments arguments;
    lb_err err = LB_ERR_INIT;
    listing listing = {.step = 0};
    int code = lb_command_arguments_parse(&command, argc, argv, &arguments);
    if (code >= 0) return code;
    if ((step_text && !lb_command_parse_integer(step_text, &listing.step)) ||
        (rank_text && !lb_command_parse_integer(rank_text, &listing.rank))) {
        code = lb_command_misused("ls", "--step and --rank take a number");
    } else if (arguments.n_args > 1 && !receipt) {
        code = lb_command_misused("ls", "expected CAPTURE, got 2 arguments; two are taken with --receipt");
    } else if (receipt) {
        code = ls_receipt(&arguments);
    } else if (lb_capture_open(arguments.args[0], &listing.capture, &err) != LB_OK) {
        code = lb_command_fail("ls", &err);
    } else {
        listing.n_ranks = lb_capture_ranks(listing.capture, &listing.ranks);
        listing.n_steps = lb_capture_steps(listing.capture, &listing.steps);
        listing.programs = arguments.json ? json_array() : NULL;
        code = list(&listing, &err) == LB_OK ? LB_EXIT_SAME : lb_command_fail("ls", &err);
        if (listing.programs && code == LB_EXIT_SAME) print_listing(&listing);
        json_decref(listing.programs);
        lb_capture_close(listing.capture);
    }
    lb_command_arguments_release(&arguments);
    return code;
}
