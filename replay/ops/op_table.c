/* Names of ops -> rows of the table.
 *
 * torch spells one operator in many ways: `add_.Tensor`, `add.out`, `_foreach_add_.List` all compute `add.Tensor`. Only
 * base rows carry kernels; this file finds the base row of any spelling, by rule where torch is regular and by the
 * list of exceptions below where it is not, and says how the interpreter must call it.
 *
 *      aten::NAME.OVERLOAD
 *           │ exact row?                    PLAIN; `NAME_` that has a row of its own: MUTATES (elementwise: INPLACE)
 *           │ in the list of aliases?       as the list says
 *           │ `_foreach_NAME[_]`            FOREACH, FOREACH_INPLACE on NAME.(overload of one element)
 *           │ overload `out`, `X_out`, …    OUT on NAME or NAME.X
 *           └ `NAME_`                       INPLACE on NAME.OVERLOAD
 *
 * Resolving takes a few hash look-ups; callers that look up the same names again and again keep the answer.
 */
#include "kernel/ops.h"

#include "base/hash.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 160

#define TABLE(FAMILY) lb_rows_##FAMILY,
static const lb_op_row *const families[] = {LB_OP_FAMILIES(TABLE)};

/* Spellings that no rule gives. Left without "aten::". */
static const struct alias {
    const char *name, *row;
    lb_op_form form;
} aliases[] = {
    /* torch's synonyms */
    {"subtract.Tensor", "sub.Tensor", LB_FORM_PLAIN},
    {"subtract.Scalar", "sub.Scalar", LB_FORM_PLAIN},
    {"multiply.Tensor", "mul.Tensor", LB_FORM_PLAIN},
    {"multiply.Scalar", "mul.Scalar", LB_FORM_PLAIN},
    {"divide.Tensor", "div.Tensor", LB_FORM_PLAIN},
    {"divide.Scalar", "div.Scalar", LB_FORM_PLAIN},
    {"true_divide.Tensor", "div.Tensor", LB_FORM_PLAIN},
    {"true_divide.Scalar", "div.Scalar", LB_FORM_PLAIN},
    {"absolute", "abs", LB_FORM_PLAIN},
    {"arccos", "acos", LB_FORM_PLAIN},
    {"arcsin", "asin", LB_FORM_PLAIN},
    {"arctan", "atan", LB_FORM_PLAIN},
    {"arctan2", "atan2", LB_FORM_PLAIN},
    {"arccosh", "acosh", LB_FORM_PLAIN},
    {"arcsinh", "asinh", LB_FORM_PLAIN},
    {"arctanh", "atanh", LB_FORM_PLAIN},
    {"special_expit", "sigmoid", LB_FORM_PLAIN},
    {"special_erf", "erf", LB_FORM_PLAIN},
    {"special_erfc", "erfc", LB_FORM_PLAIN},
    {"special_erfinv", "erfinv", LB_FORM_PLAIN},
    {"special_exp2", "exp2", LB_FORM_PLAIN},
    {"special_expm1", "expm1", LB_FORM_PLAIN},
    {"special_log1p", "log1p", LB_FORM_PLAIN},
    {"special_logsumexp", "logsumexp", LB_FORM_PLAIN},
    {"special_sinc", "sinc", LB_FORM_PLAIN},
    {"special_round", "round", LB_FORM_PLAIN},
    {"special_logit", "logit", LB_FORM_PLAIN},
    {"special_xlogy", "xlogy.Tensor", LB_FORM_PLAIN},
    {"less_equal.Tensor", "le.Tensor", LB_FORM_PLAIN},
    {"less_equal.Scalar", "le.Scalar", LB_FORM_PLAIN},
    {"greater_equal.Tensor", "ge.Tensor", LB_FORM_PLAIN},
    {"greater_equal.Scalar", "ge.Scalar", LB_FORM_PLAIN},
    {"not_equal.Tensor", "ne.Tensor", LB_FORM_PLAIN},
    {"not_equal.Scalar", "ne.Scalar", LB_FORM_PLAIN},
    {"divide.Tensor_mode", "div.Tensor_mode", LB_FORM_PLAIN},
    {"divide.Scalar_mode", "div.Scalar_mode", LB_FORM_PLAIN},
    {"concat", "cat", LB_FORM_PLAIN},
    {"concatenate", "cat", LB_FORM_PLAIN},
    {"negative", "neg", LB_FORM_PLAIN},
    {"clip", "clamp", LB_FORM_PLAIN},
    {"clip.Tensor", "clamp.Tensor", LB_FORM_PLAIN},
    {"max.other", "maximum", LB_FORM_PLAIN},
    {"min.other", "minimum", LB_FORM_PLAIN},
    {"max.out", "maximum", LB_FORM_OUT},
    {"min.out", "minimum", LB_FORM_OUT},
    {"less.Tensor", "lt.Tensor", LB_FORM_PLAIN},
    {"less.Scalar", "lt.Scalar", LB_FORM_PLAIN},
    {"greater.Tensor", "gt.Tensor", LB_FORM_PLAIN},
    {"greater.Scalar", "gt.Scalar", LB_FORM_PLAIN},
    {"__and__.Tensor", "bitwise_and.Tensor", LB_FORM_PLAIN},
    {"__and__.Scalar", "bitwise_and.Scalar", LB_FORM_PLAIN},
    {"__or__.Tensor", "bitwise_or.Tensor", LB_FORM_PLAIN},
    {"__or__.Scalar", "bitwise_or.Scalar", LB_FORM_PLAIN},
    {"__xor__.Tensor", "bitwise_xor.Tensor", LB_FORM_PLAIN},
    {"__xor__.Scalar", "bitwise_xor.Scalar", LB_FORM_PLAIN},
    {"__iand__.Tensor", "bitwise_and.Tensor", LB_FORM_INPLACE},
    {"__iand__.Scalar", "bitwise_and.Scalar", LB_FORM_INPLACE},
    {"__ior__.Tensor", "bitwise_or.Tensor", LB_FORM_INPLACE},
    {"__ior__.Scalar", "bitwise_or.Scalar", LB_FORM_INPLACE},
    {"__ixor__.Tensor", "bitwise_xor.Tensor", LB_FORM_INPLACE},
    {"__ixor__.Scalar", "bitwise_xor.Scalar", LB_FORM_INPLACE},
    {"__lshift__.Scalar", "bitwise_left_shift.Tensor_Scalar", LB_FORM_PLAIN},
    {"__lshift__.Tensor", "bitwise_left_shift.Tensor", LB_FORM_PLAIN},
    {"__rshift__.Scalar", "bitwise_right_shift.Tensor_Scalar", LB_FORM_PLAIN},
    {"__rshift__.Tensor", "bitwise_right_shift.Tensor", LB_FORM_PLAIN},
    /* random in place: the written argument is the draw */
    {"bernoulli_.float", "bernoulli.p", LB_FORM_INPLACE},
    {"bernoulli_.Tensor", "bernoulli.Tensor", LB_FORM_INPLACE},
    {"normal_", "normal_functional", LB_FORM_INPLACE},
    /* foreach forms whose single op has another name or another order of arguments */
    {"_foreach_norm.Scalar", "linalg_vector_norm", LB_FORM_FOREACH},
    {"_foreach_max", "max", LB_FORM_FOREACH},
    {"_foreach_mm", "mm", LB_FORM_FOREACH},
    {"_foreach_addcmul.Tensor", NULL, LB_FORM_PLAIN},
    {"_foreach_addcmul_.Tensor", NULL, LB_FORM_PLAIN},
    {"_foreach_addcdiv.Tensor", NULL, LB_FORM_PLAIN},
    {"_foreach_addcdiv_.Tensor", NULL, LB_FORM_PLAIN},
    {"_foreach_powsum.Scalar", NULL, LB_FORM_PLAIN},
    /* fused optimizers with the learning rate in a tensor: the kernel takes either */
    {"_fused_adamw_.tensor_lr", "_fused_adamw_", LB_FORM_MUTATES},
    {"_fused_adam_.tensor_lr", "_fused_adam_", LB_FORM_MUTATES},
    {"_fused_sgd_.tensor_lr", "_fused_sgd_", LB_FORM_MUTATES},
    {"_fused_adagrad_.tensor_lr", "_fused_adagrad_", LB_FORM_MUTATES},
    /* `out` overloads under irregular names */
    {"mean.out", "mean.dim", LB_FORM_OUT},
    {"mean.dtype_out", "mean", LB_FORM_OUT},
    {"sum.IntList_out", "sum.dim_IntList", LB_FORM_OUT},
    {"prod.int_out", "prod.dim_int", LB_FORM_OUT},
    {"any.out", "any.dim", LB_FORM_OUT},
    {"any.all_out", "any", LB_FORM_OUT},
    {"all.out", "all.dim", LB_FORM_OUT},
    {"all.all_out", "all", LB_FORM_OUT},
    {"std.out", "std.dim", LB_FORM_OUT},
    {"var.out", "var.dim", LB_FORM_OUT},
    {"max.dim_max", "max.dim", LB_FORM_OUT},
    {"min.dim_min", "min.dim", LB_FORM_OUT},
    {"max.unary_out", "max", LB_FORM_OUT},
    {"min.unary_out", "min", LB_FORM_OUT},
    {"sort.values_stable", "sort.stable", LB_FORM_OUT},
    {"arange.start_out", "arange.start_step", LB_FORM_OUT},
    {"div.out_mode", "div.Tensor_mode", LB_FORM_OUT},
    {"divide.out_mode", "div.Tensor_mode", LB_FORM_OUT},
    {"true_divide.out", "div.Tensor", LB_FORM_OUT},
    {"multiply.out", "mul.Tensor", LB_FORM_OUT},
    {"subtract.out", "sub.Tensor", LB_FORM_OUT},
    {"divide.out", "div.Tensor", LB_FORM_OUT},
    {"xlogy.OutTensor", "xlogy.Tensor", LB_FORM_OUT},
    {"xlogy.OutScalar_Self", "xlogy.Scalar_Self", LB_FORM_OUT},
    {"xlogy.OutScalar_Other", "xlogy.Scalar_Other", LB_FORM_OUT},
};

/* ---- the hash, built once -------------------------------------------------------------------------------------- */

/* In static memory: a table that cannot be built would make every op unknown. */
enum { MOST = 4096 }; /* rows and aliases */
static struct entry {
    const char *name; /* with "aten::", or of an alias without */
    const lb_op_row *row;
    const struct alias *alias;
} entries[MOST];
static uint64_t slots[2 * MOST];
static lb_hash by_name = {slots, 0, 2 * MOST}; /* never more than half full, so that it does not grow */
static const lb_op_row *all_rows[MOST];
static uint32_t n_rows;
static pthread_once_t built = PTHREAD_ONCE_INIT;

static uint64_t hash_of(const char *name)
{
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    return hash;
}

static const struct entry *entry_of(const char *name)
{
    static const struct entry none = {NULL, NULL, NULL};
    const uint64_t hash = hash_of(name);
    LB_HASH_EACH(i, &by_name, hash)
    if (strcmp(entries[i].name, name) == 0) return &entries[i];
    return &none;
}

static void add_entry(struct entry entry)
{
    LB_CHECK(entry_of(entry.name)->name == NULL); /* two of one name */
    LB_CHECK(by_name.n < MOST);
    entries[by_name.n] = entry;
    LB_CHECK(lb_hash_add(&by_name, hash_of(entry.name), by_name.n));
}

static const lb_op_row *added[4];
static size_t n_added;

void lb_op_family_add(const lb_op_row *rows)
{
    LB_CHECK(n_added < sizeof added / sizeof *added);
    added[n_added++] = rows;
}

static const lb_op_row *family(size_t f)
{
    const size_t own = sizeof families / sizeof *families;
    return f < own ? families[f] : added[f - own];
}

static void build(void)
{
    const size_t n_families = sizeof families / sizeof *families + n_added;
    for (size_t f = 0; f < n_families; f++)
        for (const lb_op_row *row = family(f); row->name; row++) {
            add_entry((struct entry){row->name, row, NULL});
            all_rows[n_rows++] = row;
        }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        add_entry((struct entry){aliases[i].name, NULL, &aliases[i]});
}

static const lb_op_row *exact_row(const char *name)
{
    return entry_of(name)->row;
}

/* The row of `base` with overload `overload` ("": default), both without "aten::". */
static const lb_op_row *row_of(const char *base, const char *overload)
{
    char name[NAME_MAX_BYTES + 16];
    snprintf(name, sizeof name, *overload ? "aten::%s.%s" : "aten::%s", base, overload);
    return exact_row(name);
}

/* ---- rules ------------------------------------------------------------------------------------------------------ */

/* The overload of the single-tensor op that a foreach overload calls for each element. */
static const lb_op_row *foreach_row(const char *base, const char *overload)
{
    static const char *const tensor[] = {"Tensor", "Tensor_Tensor", "", NULL};
    static const char *const scalar[] = {"Scalar", "Tensor_Scalar", "", NULL};
    static const char *const plain[] = {"", NULL};
    const char *const *tries = plain;
    if (!strcmp(overload, "List") || !strcmp(overload, "Tensor"))
        tries = tensor;
    else if (!strncmp(overload, "Scalar", 6))
        tries = scalar;
    for (; *tries; tries++) {
        const lb_op_row *row = row_of(base, *tries);
        if (row) return row;
    }
    return NULL;
}

/* `X.out` -> X or X.Tensor, `X.OV_out` -> X.OV, and names of the out argument itself. */
static const lb_op_row *out_row(const char *base, const char *overload)
{
    static const char *const arguments[] = {"out", "output", "grad_input", "values", "result"};
    const size_t length = strlen(overload);
    if (length > 4 && !strcmp(overload + length - 4, "_out")) {
        char shorter[NAME_MAX_BYTES];
        snprintf(shorter, sizeof shorter, "%.*s", (int)(length - 4), overload);
        return row_of(base, shorter);
    }
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++)
        if (!strcmp(overload, arguments[i])) {
            const lb_op_row *row = row_of(base, "");
            if (!row) row = row_of(base, "Tensor");
            if (!row) row = row_of(base, "self");
            return row;
        }
    return NULL;
}

/* Of torch's primitives: those whose args are the first ones of an aten op. Elementwise ones have its name. */
static const lb_op_row *prims_row(const char *base)
{
    static const struct spelling {
        const char *prim, *base, *overload;
    } spellings[] = {{"convert_element_type", "_to_copy", ""},
                     {"device_put", "lift_fresh_copy", ""},
                     {"clone", "clone", ""},
                     {"copy_strided", "lift_fresh_copy", ""},
                     {"inductor_force_stride_order", "lift_fresh_copy", ""},
                     {"full", "full", ""},
                     {"full_like", "full_like", ""},
                     {"fill", "fill", "Scalar"},
                     {"scalar_tensor", "scalar_tensor", ""},
                     {"empty", "empty", "memory_format"},
                     {"empty_strided", "empty_strided", ""},
                     {"empty_permuted", "empty_permuted", ""},
                     {"where", "where", "self"},
                     {"pow", "pow", "Tensor_Tensor"},
                     {"erf_inv", "erfinv", ""},
                     {"cat", "cat", ""},
                     {"rev", "flip", ""},
                     {"sum", "sum", "dim_IntList"},
                     {"amax", "amax", ""},
                     {"amin", "amin", ""},
                     {"var", "var", "correction"}};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        if (!strcmp(base, spellings[i].prim)) return row_of(spellings[i].base, spellings[i].overload);
    const lb_op_row *row = row_of(base, "");
    if (!row || !(row->flags & LB_ROW_ELEMENTWISE)) row = row_of(base, "Tensor");
    return row && row->flags & LB_ROW_ELEMENTWISE ? row : NULL;
}

static bool ends_with_underscore(const char *base)
{
    const size_t length = strlen(base);
    return length > 1 && base[length - 1] == '_' && strncmp(base, "__", 2) != 0;
}

/* How a row that stands under the whole name is called. */
static lb_op_form own_form(const lb_op_row *row, bool inplace)
{
    if (row->flags & LB_ROW_WRITES) return LB_FORM_MUTATES;
    if (row->flags & LB_ROW_OUT) return LB_FORM_OUT;
    if (!inplace || row->flags & (LB_ROW_VIEW | LB_ROW_HOST)) return LB_FORM_PLAIN;
    return row->flags & (LB_ROW_RANDOM | LB_ROW_ELEMENTWISE) ? LB_FORM_INPLACE : LB_FORM_MUTATES;
}

/* The row of an op in place, `base` without its underscore; or of its synonym: multiply_.Tensor. */
static const lb_op_row *inplace_row(const char *base, const char *overload)
{
    const lb_op_row *row = row_of(base, overload);
    char synonym[NAME_MAX_BYTES];
    if (row) return row;
    snprintf(synonym, sizeof synonym, *overload ? "%s.%s" : "%s", base, overload);
    const struct alias *alias = entry_of(synonym)->alias;
    if (!alias || !alias->row || alias->form != LB_FORM_PLAIN) return NULL;
    snprintf(synonym, sizeof synonym, "aten::%s", alias->row);
    return exact_row(synonym);
}

const lb_op_row *lb_op_find(const char *name, lb_op_form *form)
{
    lb_op_form ignored;
    if (!form) form = &ignored;
    *form = LB_FORM_PLAIN;
    pthread_once(&built, build);

    const char *colons = strstr(name, "::");
    char base[NAME_MAX_BYTES];
    if (!colons || strlen(colons) >= sizeof base) return NULL;
    snprintf(base, sizeof base, "%s", colons + 2);
    char *dot = strchr(base, '.');
    if (dot) *dot = '\0';
    const char *overload = dot ? dot + 1 : "";
    bool inplace = ends_with_underscore(base);

    const lb_op_row *row = exact_row(name);
    if (row) return *form = own_form(row, inplace), row;
    if (!strncmp(name, "prims::", 7)) return prims_row(base);
    if (strncmp(name, "aten::", 6) != 0) return NULL;

    const struct alias *alias = entry_of(name + 6)->alias;
    if (alias) {
        char full[NAME_MAX_BYTES + 16];
        snprintf(full, sizeof full, "aten::%s", alias->row ? alias->row : "");
        *form = alias->form;
        return alias->row ? exact_row(full) : NULL;
    }
    if (inplace) base[strlen(base) - 1] = '\0';
    if (!strncmp(base, "_foreach_", 9)) {
        *form = inplace ? LB_FORM_FOREACH_INPLACE : LB_FORM_FOREACH;
        if (inplace && !strncmp(base + 9, "mul", 4) && !strncmp(overload, "Scalar", 6)) return row_of("mul_", "Scalar");
        return foreach_row(base + 9, overload);
    }
    *form = LB_FORM_OUT;
    if (!inplace) return out_row(base, overload);
    row = inplace_row(base, overload);
    *form = row && row->flags & LB_ROW_VIEW ? LB_FORM_PLAIN : LB_FORM_INPLACE;
    return row;
}

const lb_op_row *lb_op_find_of_parts(const char *name, lb_op_form *form)
{
    char full[NAME_MAX_BYTES + 16];
    const size_t length = strlen(name);
    *form = LB_FORM_PLAIN;
    if (strncmp(name, "aten::", 6) != 0 || length >= NAME_MAX_BYTES) return NULL;
    pthread_once(&built, build);
    snprintf(full, sizeof full, "parts::%s", name + 6);
    const lb_op_row *row = exact_row(full);
    if (row) return row;
    const size_t base = strcspn(full, "."); /* NAME_.OVERLOAD */
    if (full[base - 1] != '_') return NULL;
    memmove(full + base - 1, full + base, strlen(full + base) + 1);
    *form = LB_FORM_INPLACE;
    return exact_row(full);
}

const char *lb_op_known_as(const char *name)
{
    return strcmp(name, LB_OP_TAP) ? name : "aten::clone";
}

bool lb_op_known_is(const lb_program *program, const lb_op *op, const char *base)
{
    const char *name = lb_op_known_as(lb_op_name(program, op));
    return strncmp(name, "aten::", 6) == 0 && lb_program_name_extends(name + 6, base);
}

/* Sources: vllm-project/vllm vllm/attention/layer.py, vllm/model_executor/layers/fused_moe/layer.py,
 * csrc/torch_bindings.cpp, csrc/moe/moe_align_sum_kernels.cu; sgl-project/sglang
 * sgl-kernel/csrc/common_extension.cc. */
#define NO_CACHE                                                                                                       \
    "the cache of keys and values that it reads is not an argument of it, but an object of vLLM found by the layer's " \
    "name"
#define NO_STATES                                                                                                      \
    "the states that it reads and writes are no arguments of it, but of an object of vLLM found by the layer's name"
#define NO_RANKS                                                                                                       \
    "it reads the other ranks' inputs through memory that is not an argument of it, and the record names no group"
#define OF_COMPILED_CODE "what a compiled kernel gave stands in the place of what its graph gave op by op"
#define BY_ARRIVAL "tokens of one expert stand in the order in which threads of the GPU arrived"
static const struct unknown {
    const char *name, *why;
} unknown[] = {
    {"aten::_cudnn_rnn_flatten_weight",
     "where each weight lies in the buffer is cuDNN's to say; nothing reads the buffer in its place"},
    {"vllm::unified_attention", NO_CACHE},
    {"vllm::unified_attention_with_output", NO_CACHE},
    {"vllm::unified_mla_attention", NO_CACHE},
    {"vllm::unified_mla_attention_with_output", NO_CACHE},
    {"vllm::unified_kv_cache_update", NO_CACHE},
    {"vllm::mamba_mixer", NO_STATES},
    {"vllm::mamba_mixer2", NO_STATES},
    {"vllm::short_conv", NO_STATES},
    {"vllm::linear_attention", NO_STATES},
    {"vllm::gdn_attention", NO_STATES},
    {"vllm::gdn_attention_core", NO_STATES},
    {"vllm::moe_forward",
     "the experts' weights are no arguments of it, but of an object of vLLM found by the layer's name"},
    {"compiled::output", OF_COMPILED_CODE},
    {"compiled::changed", OF_COMPILED_CODE},
    {"_C_custom_ar::all_reduce", NO_RANKS},
    {"sgl_kernel::all_reduce", NO_RANKS},
    {"_moe_C::moe_align_block_size", BY_ARRIVAL},
    {"sgl_kernel::moe_align_block_size", BY_ARRIVAL},
};

const char *lb_op_unknown_why(const char *name)
{
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (!strcmp(unknown[i].name, name)) return unknown[i].why;
    return NULL;
}

uint32_t lb_op_rows(const lb_op_row *const **rows)
{
    pthread_once(&built, build);
    *rows = all_rows;
    return n_rows;
}
