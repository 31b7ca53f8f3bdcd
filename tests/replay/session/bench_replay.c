/* How long chained replay of a capture takes, by family of op, and what memory it needs:
 *
 *      bench_replay CAPTURE [THREADS [REPEATS [FIRST-STEP LAST-STEP]]]
 *
 * Prints one JSON object; the times are those of the fastest repeat, without opening the capture, which the first pays
 * for. bench_replay.py sets them beside PyTorch's. `compared` is a run that also compares every result with the
 * recording, `exact` one of the exact shadow alone. */
#include <lastbit/archive.h>
#include <lastbit/replay.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_NAMES = 1024 };

/* First word of a name wins; what no word names is the rest, by its own name in `ops`. */
static const struct {
    const char *family, *words;
} FAMILIES[] = {
    {"matmul", "mm addmm bmm baddbmm matmul linear dot addmv mv _grouped_mm _scaled_mm"},
    {"attention", "_scaled_dot _flash_attention _efficient_attention"},
    {"softmax", "_softmax _log_softmax nll_loss cross_entropy logsumexp"},
    {"norm", "native_layer_norm layer_norm rms_norm _fused_rms_norm native_batch_norm native_group_norm"},
    {"optimizer", "_fused_ _foreach_ addcdiv addcmul lerp"},
    {"index", "index embedding gather scatter sort topk nonzero cumsum one_hot masked_fill"},
    {"copy", "_to_copy copy clone cat stack contiguous fill zero ones full arange _unsafe_view reshape split where"},
    {"reduce", "sum mean norm amax amin max min var std linalg_vector_norm"},
    {"transcendental", "exp log sin cos tanh sigmoid silu gelu softplus pow rsqrt sqrt erf"},
    {"elementwise",
     "add sub mul div neg abs clamp reciprocal square rsub threshold relu eq ne lt le gt ge logical bitwise"},
    {"collective", "allreduce allgather reduce_scatter broadcast _all"},
};
enum { N_FAMILIES = sizeof FAMILIES / sizeof *FAMILIES };

typedef struct named {
    const char *name;
    double seconds;
    unsigned long count;
} named;

typedef struct watch {
    named ops[MAX_NAMES];
    int n;
    double last;
} watch;

static clockid_t clock_id = CLOCK_MONOTONIC; /* of one thread: its processor time */

static double now(void)
{
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Views and sources raise no event: their time falls to the op after them. */
static bool on_op(void *context, const lb_event *event)
{
    watch *watch = context;
    const double t = now();
    const char *name = lb_op_name(event->program, &event->program->ops[event->op]);
    int i = 0;
    while (i < watch->n && strcmp(watch->ops[i].name, name)) i++;
    if (i == watch->n && watch->n < MAX_NAMES) watch->ops[watch->n++] = (named){name, 0, 0};
    if (i < watch->n) watch->ops[i].seconds += t - watch->last, watch->ops[i].count++;
    watch->last = now();
    return true;
}

static bool starts_with_word(const char *words, const char *name)
{
    for (const char *p = words; *p;) {
        const size_t n = strcspn(p, " ");
        if (!strncmp(p, name, n) && (name[n] == '\0' || p[n - 1] == '_' || strchr("._", name[n]))) return true;
        p += n, p += *p == ' ';
    }
    return false;
}

static int family_of(const char *name)
{
    const char *colons = strstr(name, "::");
    name = colons ? colons + 2 : name;
    for (int f = 0; f < N_FAMILIES; f++)
        if (starts_with_word(FAMILIES[f].words, name)) return f;
    return N_FAMILIES;
}

static int slower_first(const void *a, const void *b)
{
    const double x = ((const named *)a)->seconds, y = ((const named *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void print_families(watch *watch)
{
    double seconds[N_FAMILIES + 1] = {0};
    unsigned long count[N_FAMILIES + 1] = {0};
    for (int i = 0; i < watch->n; i++) {
        const int f = family_of(watch->ops[i].name);
        seconds[f] += watch->ops[i].seconds, count[f] += watch->ops[i].count;
    }
    printf(", \"families\": {");
    for (int f = 0; f <= N_FAMILIES; f++)
        printf("%s\"%s\": [%.6f, %lu]", f ? ", " : "", f < N_FAMILIES ? FAMILIES[f].family : "rest", seconds[f],
               count[f]);
    qsort(watch->ops, (size_t)watch->n, sizeof *watch->ops, slower_first);
    printf("}, \"ops\": {");
    for (int i = 0; i < watch->n && i < 24; i++)
        printf("%s\"%s\": [%.6f, %lu]", i ? ", " : "", watch->ops[i].name, watch->ops[i].seconds, watch->ops[i].count);
    printf("}");
}

typedef struct result {
    double seconds;
    lb_replay_summary summary;
    watch watch;
} result;

static lb_status fastest(lb_replay *replay, lb_plan *plan, bool compare, bool watched, int repeats, result *best,
                         lb_err *err)
{
    plan->compare = compare;
    best->seconds = 1e30;
    for (int i = 0; i < repeats; i++) {
        static watch watch;
        watch.n = 0;
        const lb_observer observer = {.context = &watch, .op = on_op};
        lb_replay_summary summary;
        const double start = watch.last = now();
        LB_TRY(lb_replay_run(replay, plan, watched ? &observer : NULL, &summary, err));
        const double took = now() - start;
        if (took >= best->seconds) continue;
        best->seconds = took, best->summary = summary, best->watch = watch;
    }
    return LB_OK;
}

int main(int argc, char **argv)
{
#ifdef __GLIBC__ /* as the command does */
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 128 << 20);
#endif
    if (argc < 2 || argc == 5 || argc > 6) {
        fprintf(stderr, "usage: bench_replay CAPTURE [THREADS [REPEATS [FIRST LAST]]]\n");
        return 129;
    }
    static result plain, watched, compared, exact;
    lb_err err = LB_ERR_INIT;
    lb_capture *capture = NULL;
    lb_replay *replay = NULL;
    lb_plan plan = LB_PLAN_INIT;
    plan.mode = LB_REPLAY_CHAINED;
    plan.force_decisions = true;
    plan.threads = argc > 2 ? atoi(argv[2]) : 1;
    if (plan.threads == 1) clock_id = CLOCK_PROCESS_CPUTIME_ID;
    const int repeats = argc > 3 ? atoi(argv[3]) : 3;
    if (argc == 6) plan.first_step = atol(argv[4]), plan.last_step = atol(argv[5]);
    lb_status status = lb_capture_open(argv[1], &capture, &err);
    if (status == LB_OK) status = lb_replay_open(capture, &replay, &err);
    if (status == LB_OK) status = fastest(replay, &plan, false, false, repeats, &plain, &err);
    struct rusage usage; /* before a comparison maps the recorded results in */
    getrusage(RUSAGE_SELF, &usage);
    if (status == LB_OK) status = fastest(replay, &plan, false, true, repeats, &watched, &err);
    if (status == LB_OK) status = fastest(replay, &plan, true, false, repeats, &compared, &err);
    plan.shadow = plan.shadow_only = true;
    if (status == LB_OK) status = fastest(replay, &plan, false, false, repeats, &exact, &err);
    if (status != LB_OK) {
        fprintf(stderr, "bench_replay: %s\n", err.message);
        return 128;
    }
    const int64_t *steps;
    uint32_t n = lb_capture_steps(capture, &steps), ran = 0;
    for (uint32_t i = 0; i < n; i++) ran += steps[i] >= plan.first_step && steps[i] <= plan.last_step;
    const lb_replay_summary *summary = &plain.summary;
    printf("{\"steps\": %u, \"ops\": %llu, \"opaque\": %llu, \"views\": %llu, \"undecided\": %d, \"seconds\": "
           "%.6f, \"compared\": %.6f, \"exact\": %.6f, "
           "\"peak_bytes\": %llu, \"live_bytes\": %llu, \"max_rss_bytes\": %llu",
           ran, (unsigned long long)summary->ops, (unsigned long long)summary->opaque,
           (unsigned long long)summary->views, summary->undecided, plain.seconds, compared.seconds, exact.seconds,
           (unsigned long long)summary->peak_bytes, (unsigned long long)summary->live_bytes,
           (unsigned long long)usage.ru_maxrss * 1024);
    print_families(&watched.watch);
    printf("}\n");
    lb_replay_close(replay);
    lb_capture_close(capture);
    return 0;
}
