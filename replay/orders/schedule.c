/* Orders of a sum: their names, and the two instances of the engine. See schedule.h.
 *
 * exact is a superaccumulator: every term is an integer times a power of two, integers of one 32-bit window of
 * exponents add up in a 128-bit bin, and the bins are carried into one big number that is rounded once. */
#include "orders/schedule.h"
#include "orders/sum_tree.h"
#include "orders/tensor_core.h"

#include <lastbit/processor.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WIDTH 64
#define MAX_LANES 16 /* of a cascade: AVX-512 */
#define MAX_PARTIALS 2048
#define MAX_SLICES 16 /* whose order is given: four bits each */

/* One AVX2 register of each type: torch has no AVX-512 instance of its sums. */
static const lb_schedule torch_f32 = {LB_SCHEDULE_CASCADE, 8, 0}, torch_f64 = {LB_SCHEDULE_CASCADE, 4, 0};

static const struct {
    const char *name;
    lb_schedule_kind kind;
    int64_t otherwise; /* the size when none is given; 0: must be given; -1: takes none */
    int64_t max;
} names[] = {
    {"sequential", LB_SCHEDULE_SEQUENTIAL, -1, 0},
    {"pairwise", LB_SCHEDULE_PAIRWISE, -1, 0},
    {"cascade", LB_SCHEDULE_CASCADE, 8, MAX_LANES},
    {"blocked", LB_SCHEDULE_BLOCKED, 0, INT64_MAX},
    {"splitk", LB_SCHEDULE_SPLITK, 0, INT64_MAX},
    {"lanes", LB_SCHEDULE_LANES, 0, LB_SCHEDULE_MAX_SIZE},
    {"butterfly", LB_SCHEDULE_BUTTERFLY, 0, LB_SCHEDULE_MAX_SIZE},
    {"numpy", LB_SCHEDULE_NUMPY, -1, 0},
    {"torch", LB_SCHEDULE_TORCH, 1, LB_SCHEDULE_MAX_SIZE},
    {"exact", LB_SCHEDULE_EXACT, -1, 0},
    {"streamk", LB_SCHEDULE_STREAMK, 0, 65536},
    {"dpbf16", LB_SCHEDULE_DPBF16, 512, INT64_MAX},
    {"tdpbf16", LB_SCHEDULE_TDPBF16, 1, LB_SCHEDULE_MAX_SIZE},
    {"torchdot", LB_SCHEDULE_TORCHDOT, -1, 0},
    {"halved", LB_SCHEDULE_HALVED, 0, INT64_MAX},
    {"folded", LB_SCHEDULE_FOLDED, 0, LB_FOLDED_MAX_LANES},
    {"eights", LB_SCHEDULE_EIGHTS, -1, 0},
};

/* In the order in which they are written; aligned has a number. */
static const struct {
    const char *name;
    int64_t bit;
} folded_options[] = {
    {"head:1", LB_FOLDED_HEAD},           {"aligned:", LB_FOLDED_ALIGNED}, {"tail:after", LB_FOLDED_TAIL_AFTER},
    {"tail:again", LB_FOLDED_TAIL_AGAIN}, {"pairs", LB_FOLDED_PAIRS},      {"rounded", LB_FOLDED_ROUNDED},
};
enum { FOLDED_OPTIONS = sizeof folded_options / sizeof *folded_options };

static bool power_of_two(int64_t n)
{
    return n > 0 && !(n & (n - 1));
}

/* "NAME[:SIZE[xVECTOR]]" */
static bool parse_sizes(const char *text, int64_t *size, int64_t *vector)
{
    char *end;
    long long number = strtoll(text, &end, 10);
    if (end == text || number < 1) return false;
    *size = number;
    if (*end == 'x') {
        text = end + 1;
        number = strtoll(text, &end, 10);
        if (end == text || number < 1) return false;
        *vector = number;
    }
    return !*end;
}

/* "tensorcore:ARCH[:K]" */
static bool parse_tensor_core(const char *text, lb_schedule *schedule)
{
    if (strncmp(text, "tensorcore:", 11)) return false;
    const char *arch = text + 11;
    const size_t length = strcspn(arch, ":");
    lb_schedule s = {LB_SCHEDULE_TENSOR_CORE, lb_tensor_core_arch(arch, length), 0};
    int64_t none = 0;
    if (s.size < 0 || (arch[length] && (!parse_sizes(arch + length + 1, &s.vector, &none) || none))) return false;
    *schedule = s;
    return true;
}

/* "splitk:N@2,0,1": all slices, each once */
static bool parse_slices(const char *text, lb_schedule *schedule)
{
    const char *at = strchr(text, '@');
    char *end;
    if (strncmp(text, "splitk:", 7) || !at) return false;
    const long long slices = strtoll(text + 7, &end, 10);
    if (end != at || slices < 2 || slices > MAX_SLICES) return false;
    uint64_t order = 0, seen = 0;
    for (long long i = 0; i < slices; i++) {
        const long long slice = strtoll(++at, &end, 10);
        if (end == at || slice < 0 || slice >= slices || *end != (i + 1 < slices ? ',' : 0)) return false;
        order |= (uint64_t)slice << 4 * i;
        seen |= (uint64_t)1 << slice;
        at = end;
    }
    if (seen + 1 != (uint64_t)1 << slices) return false;
    *schedule = (lb_schedule){LB_SCHEDULE_SPLITK, slices, (int64_t)order, NULL};
    return true;
}

/* "folded:L[,OPTION…]" */
static bool parse_folded(const char *text, lb_schedule *schedule)
{
    char *end;
    if (strncmp(text, "folded:", 7)) return false;
    lb_schedule parsed = {LB_SCHEDULE_FOLDED, strtoll(text + 7, &end, 10), 0, NULL};
    if (end == text + 7 || parsed.size < 2 || parsed.size > LB_FOLDED_MAX_LANES || !power_of_two(parsed.size))
        return false;
    for (int i = 0; i < FOLDED_OPTIONS && *end; i++) {
        const size_t length = strlen(folded_options[i].name);
        if (*end != ',' || strncmp(end + 1, folded_options[i].name, length)) continue;
        end += 1 + length;
        parsed.vector |= folded_options[i].bit;
        if (folded_options[i].bit != LB_FOLDED_ALIGNED) continue;
        const long long offset = *end >= '0' && *end <= '9' ? strtoll(end, &end, 10) : parsed.size;
        if (offset >= parsed.size) return false;
        parsed.vector |= offset << 8;
    }
    const int64_t heads = LB_FOLDED_HEAD | LB_FOLDED_ALIGNED, tails = LB_FOLDED_TAIL_AFTER | LB_FOLDED_TAIL_AGAIN;
    if (*end || (parsed.vector & heads) == heads || (parsed.vector & tails) == tails) return false;
    *schedule = parsed;
    return true;
}

/* "tree:((0 1) 2)" or "tree:FILE" */
static lb_status parse_tree(const char *text, lb_schedule *schedule, lb_err *err)
{
    lb_schedule s = {LB_SCHEDULE_TREE, 0, 0, NULL};
    const bool written = *text == '(' || *text == '[';
    LB_TRY(written ? lb_sum_tree_parse(text, &s.tree, err) : lb_sum_tree_read(text, &s.tree, err));
    *schedule = s;
    return LB_OK;
}

void lb_schedule_release(lb_schedule *schedule)
{
    if (schedule->kind == LB_SCHEDULE_TREE) lb_sum_tree_free(schedule->tree);
    schedule->tree = NULL;
}

bool lb_schedule_applies(const lb_schedule *schedule, int64_t n)
{
    return schedule->kind != LB_SCHEDULE_TREE || schedule->tree->leaves == n;
}

bool lb_schedule_of_products(const lb_schedule *schedule)
{
    return schedule->kind == LB_SCHEDULE_TENSOR_CORE || schedule->kind == LB_SCHEDULE_STREAMK ||
           schedule->kind == LB_SCHEDULE_DPBF16 || schedule->kind == LB_SCHEDULE_TORCHDOT ||
           schedule->kind == LB_SCHEDULE_FOLDED || schedule->kind == LB_SCHEDULE_EIGHTS ||
           schedule->kind == LB_SCHEDULE_TDPBF16;
}

bool lb_schedule_rounds_products(const lb_schedule *schedule)
{
    switch (schedule->kind) {
    case LB_SCHEDULE_PAIRWISE:
    case LB_SCHEDULE_CASCADE:
    case LB_SCHEDULE_LANES:
    case LB_SCHEDULE_BUTTERFLY:
    case LB_SCHEDULE_NUMPY: return true;
    case LB_SCHEDULE_FOLDED: return schedule->vector & LB_FOLDED_ROUNDED;
    case LB_SCHEDULE_TREE: return schedule->tree->rounded;
    default: return false;
    }
}

lb_status lb_schedule_parse(const char *text, lb_schedule *schedule, lb_err *err)
{
    if (!strncmp(text, "tree:", 5)) return parse_tree(text + 5, schedule, err);
    if (parse_tensor_core(text, schedule) || parse_slices(text, schedule) || parse_folded(text, schedule)) return LB_OK;
    size_t length = strcspn(text, ":");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i].name) != length || strncmp(names[i].name, text, length)) continue;
        lb_schedule parsed = {names[i].kind, names[i].otherwise, 0};
        if (text[length] && (parsed.size < 0 || !parse_sizes(text + length + 1, &parsed.size, &parsed.vector))) break;
        if (parsed.size == 0 || (parsed.size > 0 && parsed.size > names[i].max) || parsed.kind == LB_SCHEDULE_FOLDED)
            break;
        if (parsed.kind != LB_SCHEDULE_BUTTERFLY && parsed.kind != LB_SCHEDULE_STREAMK && parsed.vector) break;
        if (parsed.kind == LB_SCHEDULE_STREAMK && !parsed.vector) parsed.vector = 128;
        if (parsed.kind == LB_SCHEDULE_DPBF16 && parsed.size % 2) break;
        if (parsed.kind == LB_SCHEDULE_CASCADE && !power_of_two(parsed.size)) break;
        if (parsed.kind == LB_SCHEDULE_BUTTERFLY) {
            if (!parsed.vector) parsed.vector = 1;
            if (parsed.size > 32 ? parsed.size % 32 != 0 : !power_of_two(parsed.size)) break;
        }
        if (parsed.size < 0) parsed.size = 0;
        *schedule = parsed;
        return LB_OK;
    }
    return lb_fail(
        err, LB_ERR_INVALID,
        "\"%s\" is not an order of a sum; one of sequential, pairwise, cascade[:LANES], blocked:K, splitk:N, "
        "streamk:C[xTILE], dpbf16[:K], tdpbf16[:N], torchdot, halved:K, "
        "folded:L[,head:1|aligned:O][,tail:after|again][,pairs][,rounded], eights, lanes:L, "
        "butterfly:THREADS[xVECTOR], numpy, torch[:THREADS], exact, tensorcore:ARCH[:K] "
        "(v100 a100 ada h100 h100-fp8 b200), tree:FILE",
        text);
}

const char *lb_schedule_print(const lb_schedule *schedule, char *text)
{
    enum { ROOM = 96 };
    const long long size = schedule->size, vector = schedule->vector;
    if (schedule->kind == LB_SCHEDULE_TREE) snprintf(text, ROOM, "tree");
    if (schedule->kind == LB_SCHEDULE_TENSOR_CORE) {
        const char *arch = lb_tensor_core_name((int)size);
        snprintf(text, ROOM, vector ? "tensorcore:%s:%lld" : "tensorcore:%s", arch, vector);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].kind != schedule->kind) continue;
        int n = snprintf(text, ROOM, "%s", names[i].name);
        if (names[i].otherwise >= 0) n += snprintf(text + n, ROOM - (size_t)n, ":%lld", size);
        if (schedule->kind == LB_SCHEDULE_BUTTERFLY || schedule->kind == LB_SCHEDULE_STREAMK)
            snprintf(text + n, ROOM - (size_t)n, "x%lld", vector);
        for (int k = 0; schedule->kind == LB_SCHEDULE_SPLITK && vector && k < size; k++)
            n += snprintf(text + n, ROOM - (size_t)n, "%c%d", k ? ',' : '@', (int)((uint64_t)vector >> 4 * k & 15));
        for (int k = 0; schedule->kind == LB_SCHEDULE_FOLDED && k < FOLDED_OPTIONS; k++) {
            if (!(vector & folded_options[k].bit)) continue;
            n += snprintf(text + n, ROOM - (size_t)n, ",%s", folded_options[k].name);
            if (folded_options[k].bit == LB_FOLDED_ALIGNED)
                n += snprintf(text + n, ROOM - (size_t)n, "%d", (int)LB_FOLDED_OFFSET(vector));
        }
    }
    return text;
}

int64_t lb_schedule_block(int64_t left)
{
    enum { MOST = 384 };
    return left > 2 * MOST ? MOST : left > MOST ? (left + 1) / 2 : left;
}

int64_t lb_schedule_share(int64_t shares, int64_t terms)
{
    enum { MOST = 32 };
    const int64_t each = terms / shares + (terms % shares != 0);
    return shares == 1 || !terms ? terms : (each + MOST - 1) / MOST * MOST;
}

int64_t lb_schedule_tile(int64_t terms)
{
    enum { MOST = 32 };
    const int64_t tiles = (terms + MOST - 1) / MOST;
    return tiles && terms % tiles == 0 && terms / tiles % 2 == 0 ? terms / tiles : MOST;
}

int64_t lb_schedule_halved(int64_t most, int64_t terms)
{
    return terms <= most ? (terms ? terms : 1) : terms - most > most ? most : terms / 2;
}

int64_t lb_schedule_head(const lb_schedule *folded, int64_t terms)
{
    const int64_t lanes = folded->size, boundary = terms - 1 - LB_FOLDED_OFFSET(folded->vector) + lanes;
    if (!terms) return 0;
    if (folded->vector & LB_FOLDED_HEAD) return 1;
    const int64_t head = folded->vector & LB_FOLDED_ALIGNED ? boundary % lanes + 1 : 0;
    return head < terms ? head : terms;
}

/* torch's CeilLog2 */
static int ceil_log2(int64_t n)
{
    return n <= 2 ? 1 : 64 - __builtin_clzll((uint64_t)(n - 1));
}

/* ---- the exact sum ---------------------------------------------------------------------------------------------- */

#define BINS 70 /* of 32 bits: from 2^-1126 over the largest double, with room for carries */
#define BIAS 1126

typedef struct accumulator {
    __int128 bin[BINS];
    double special; /* sum of infinities and NaNs; 0: none seen */
    bool seen;
} accumulator;

static void accumulator_add(accumulator *accumulator, double x)
{
    if (!isfinite(x)) {
        accumulator->special = accumulator->seen ? accumulator->special + x : x;
        accumulator->seen = true;
        return;
    }
    int exponent;
    int64_t significand = (int64_t)ldexp(frexp(x, &exponent), 53); /* exact, also for subnormals */
    int position = exponent - 53 + BIAS;
    if (significand) accumulator->bin[position / 32] += (__int128)significand * ((int64_t)1 << position % 32);
}

/* Carries, so that every bin but the top one lies in [0, 2^32); returns the sign. Negative sums are negated first. */
static bool accumulator_carry(accumulator *accumulator)
{
    for (int round = 0; round < 2; round++) {
        __int128 carry = 0;
        for (int i = 0; i < BINS - 1; i++) {
            __int128 value = accumulator->bin[i] + carry;
            accumulator->bin[i] = value & 0xFFFFFFFF;
            carry = value >> 32;
        }
        accumulator->bin[BINS - 1] += carry;
        if (accumulator->bin[BINS - 1] >= 0) return round == 1;
        for (int i = 0; i < BINS; i++) accumulator->bin[i] = -accumulator->bin[i];
    }
    return true;
}

/* Rounded to nearest even with `precision` bits, and to the subnormal grid 2^min_exponent. */
static double accumulator_round(accumulator *accumulator, int precision, int min_exponent)
{
    if (accumulator->seen) return accumulator->special;
    bool negative = accumulator_carry(accumulator);
    int top = BINS - 1;
    while (top >= 0 && !accumulator->bin[top]) top--;
    if (top < 0) return 0;
    /* the leading 96 bits, a sticky bit for the rest */
    unsigned __int128 lead = 0;
    for (int i = top; i > top - 3; i--) lead = lead << 32 | (i >= 0 ? (uint32_t)accumulator->bin[i] : 0);
    bool sticky = false;
    for (int i = top - 3; i >= 0; i--) sticky |= accumulator->bin[i] != 0;
    int low = (top - 2) * 32 - BIAS; /* weight of bit 0 of lead */
    int length = lead >> 64 ? 128 - __builtin_clzll((uint64_t)(lead >> 64)) : 64 - __builtin_clzll((uint64_t)lead);
    int drop = length - precision;
    if (low + drop < min_exponent) drop = min_exponent - low;
    if (drop > 0) {
        if (drop > length + 1) return negative ? -0.0 : 0.0;
        unsigned __int128 rest = lead & (((unsigned __int128)1 << drop) - 1), half = (unsigned __int128)1 << (drop - 1);
        lead >>= drop;
        low += drop;
        if (rest > half || (rest == half && (sticky || (lead & 1)))) lead++;
    }
    double y = ldexp((double)lead, low);
    return negative ? -y : y;
}

static float exact_f32(const float *x, int64_t stride, int64_t n)
{
    accumulator accumulator = {0};
    for (int64_t i = 0; i < n; i++) accumulator_add(&accumulator, x[i * stride]);
    return (float)accumulator_round(&accumulator, 24, -149);
}

static double exact_f64(const double *x, int64_t stride, int64_t n)
{
    accumulator accumulator = {0};
    for (int64_t i = 0; i < n; i++) accumulator_add(&accumulator, x[i * stride]);
    return accumulator_round(&accumulator, 53, -1074);
}

/* ---- the engine -------------------------------------------------------------------------------------------------- */

#define PER_ISA(...) LB_PER_ISA(__VA_ARGS__) /* expands NAME before the name is pasted */
#define REAL_TEMPLATE "orders/schedule_real.h"
#include "functions/real_template.h"

float lb_schedule_cascade_f32(const float *x, int64_t vectors, int lanes, const float *tail, int64_t n_tail,
                              lb_dtype accumulate)
{
    return cascade_row_f32(x, vectors, lanes, tail, n_tail, accumulate);
}
