/* Precision arguments: see recipe.h. One table of names, one of keys; what a key accepts stands beside it. */
#include "precision/recipe.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *suffix; /* "fp8-current", and after a type: "e4m3fn:current" */
    lb_scaling scaling;
    lb_scale_rule rule;
    lb_dtype forward, backward;
} RECIPES[] = {
    /* Transformer Engine's defaults: Float8CurrentScaling and DelayedScaling are HYBRID, the block recipes are not. */
    {"fp8-current", "current", LB_SCALING_CURRENT, LB_SCALE_F32, LB_E4M3FN, LB_E5M2},
    {"fp8-delayed", "delayed", LB_SCALING_DELAYED, LB_SCALE_F32, LB_E4M3FN, LB_E5M2},
    {"fp8-block", "block", LB_SCALING_BLOCK, LB_SCALE_POW2, LB_E4M3FN, LB_E4M3FN},
    {"mxfp8", "mx", LB_SCALING_MX, LB_SCALE_RCEIL, LB_E4M3FN, LB_E4M3FN},
    {"mxfp4", "", LB_SCALING_MX, LB_SCALE_FLOOR, LB_E2M1, LB_E2M1},
    {"nvfp4", "nv", LB_SCALING_NV, LB_SCALE_F32, LB_E2M1, LB_E2M1},
};
enum { N_RECIPES = sizeof RECIPES / sizeof *RECIPES };

static const char *const RULES[] = {"f32", "pow2", "floor", "ceil", "even", "rceil"};

static bool is(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && !strncmp(text, word, n);
}

static lb_status wrong(lb_err *err, const char *what, const char *item, size_t n)
{
    return lb_fail(err, LB_ERR_INVALID, "--precision \"%.*s\": %s", (int)n, item, what);
}

static lb_dtype grid_named(const char *text, size_t n)
{
    char word[24];
    if (n >= sizeof word) return LB_NO_DTYPE;
    memcpy(word, text, n);
    word[n] = '\0';
    return lb_dtype_grid_parse(word);
}

static void take_recipe(lb_recipe *recipe, int row, lb_dtype element)
{
    recipe->scaling = RECIPES[row].scaling;
    recipe->rule = RECIPES[row].rule;
    recipe->element[LB_ROLE_INPUT] = recipe->element[LB_ROLE_WEIGHT] = element ? element : RECIPES[row].forward;
    recipe->element[LB_ROLE_GRADIENT] = element ? element : RECIPES[row].backward;
    recipe->products_only = true;
    recipe->cast.overflow = LB_OVERFLOW_SATURATE;
    recipe->history = 1024;
    recipe->interval = 1;
    /* NVFP4BlockScaling rounds gradients stochastically and rotates what the weight gradient is made of. */
    recipe->hadamard = recipe->scaling == LB_SCALING_NV;
    recipe->gradient_cast = (lb_cast){.rounding = recipe->scaling == LB_SCALING_NV ? LB_STOCHASTIC : LB_RNE};
}

static int recipe_named(const char *text, size_t n, bool suffix)
{
    for (int i = 0; i < N_RECIPES; i++)
        if (n && is(text, n, suffix ? RECIPES[i].suffix : RECIPES[i].name)) return i;
    return -1;
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

/* KEY=VALUE as it stands in the argument: n characters, the first `key` of which are the key. */
typedef struct item {
    const char *text, *value;
    size_t n, key;
} item;

static bool key_is(const item *item, const char *word)
{
    return is(item->text, item->key, word);
}

static size_t value_length(const item *item)
{
    return item->n - item->key - 1;
}

static lb_status parse_grid(const item *item, lb_dtype *grid, lb_err *err)
{
    *grid = grid_named(item->value, value_length(item));
    if (*grid) return LB_OK;
    return wrong(err, "types are f64 f32 tf32 bf16 f16 e4m3fn e5m2 e4m3fnuz e5m2fnuz e2m1 e8m0", item->text, item->n);
}

static lb_status parse_word(const item *item, const char *const *words, int n_words, int *which, lb_err *err)
{
    char expected[160] = "expected";
    for (int i = 0; i < n_words; i++) {
        if (is(item->value, value_length(item), words[i])) {
            *which = i;
            return LB_OK;
        }
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s %s", i ? "," : "", words[i]);
    }
    return wrong(err, expected, item->text, item->n);
}
#define WORD(...)                                                                                                      \
    parse_word(item, (const char *const[]){__VA_ARGS__},                                                               \
               (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)), &which, err)

static lb_status parse_number(const item *item, double least, double most, double *number, lb_err *err)
{
    char *end;
    errno = 0;
    *number = strtod(item->value, &end);
    if (end == item->text + item->n && !errno && *number >= least && *number <= most) return LB_OK;
    char expected[80];
    snprintf(expected, sizeof expected, "expected a number from %g to %g", least, most);
    return wrong(err, expected, item->text, item->n);
}

static lb_status parse_rounding(const item *item, lb_cast *cast, lb_err *err)
{
    char text[64];
    const size_t length = value_length(item);
    snprintf(text, sizeof text, "%.*s", (int)length, item->value);
    if (length < sizeof text && lb_dtype_cast_parse(text, cast)) return LB_OK;
    return wrong(err, "roundings are rne, rz, rna, stochastic:SEED", item->text, item->n);
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

/* Which keys were given: some defaults depend on others. */
typedef struct seen {
    bool round, gradients, word;
} seen;

static lb_status take_type(lb_recipe *recipe, const item *item, lb_err *err)
{
    lb_dtype *target = key_is(item, "compute")      ? &recipe->compute
                       : key_is(item, "accumulate") ? &recipe->accumulate
                       : key_is(item, "storage")    ? &recipe->storage
                                                    : &recipe->element[LB_ROLE_GRADIENT];
    if (key_is(item, "forward")) target = &recipe->element[LB_ROLE_INPUT];
    LB_TRY(parse_grid(item, target, err));
    if (key_is(item, "forward")) recipe->element[LB_ROLE_WEIGHT] = recipe->element[LB_ROLE_INPUT];
    return LB_OK;
}

/* LB_ERR_NOT_FOUND: not a key of these. */
static lb_status take_cast_key(lb_recipe *recipe, seen *given, const item *item, lb_err *err)
{
    int which = 0;
    if (key_is(item, "round")) {
        given->round = true;
        return parse_rounding(item, &recipe->cast, err);
    }
    if (key_is(item, "overflow")) {
        LB_TRY(WORD("torch", "saturate", "ieee"));
        recipe->cast.overflow = (lb_overflow)which;
        return LB_OK;
    }
    if (key_is(item, "subnormals")) {
        LB_TRY(WORD("keep", "flush"));
        recipe->cast.flush_subnormals = which;
        return LB_OK;
    }
    if (key_is(item, "products")) {
        LB_TRY(WORD("linear", "all"));
        recipe->all_products = which;
        return LB_OK;
    }
    return LB_ERR_NOT_FOUND;
}

static lb_status take_scale_rule(lb_recipe *recipe, const item *item, lb_err *err)
{
    int which = 0;
    if (recipe->scaling == LB_SCALING_MX) {
        LB_TRY(WORD("floor", "ceil", "even", "rceil"));
        which += LB_SCALE_FLOOR;
    } else if (recipe->scaling == LB_SCALING_CURRENT || recipe->scaling == LB_SCALING_BLOCK) {
        LB_TRY(WORD("f32", "pow2"));
    } else {
        return wrong(err, "only fp8-current, fp8-block and mx recipes have a choice of scales", item->text, item->n);
    }
    recipe->rule = (lb_scale_rule)which;
    return LB_OK;
}

static lb_status take_delayed_key(lb_recipe *recipe, const item *item, lb_err *err)
{
    double number = 0;
    int which = 0;
    if (key_is(item, "margin")) return parse_number(item, -64, 64, &recipe->margin, err);
    if (key_is(item, "history") || key_is(item, "interval")) {
        LB_TRY(parse_number(item, 1, 65536, &number, err));
        if (number != floor(number)) return wrong(err, "expected a whole number of steps", item->text, item->n);
        *(key_is(item, "history") ? &recipe->history : &recipe->interval) = (int64_t)number;
        return LB_OK;
    }
    if (key_is(item, "algorithm")) {
        LB_TRY(WORD("max", "most_recent"));
        recipe->most_recent = which;
        return LB_OK;
    }
    if (key_is(item, "start")) {
        LB_TRY(WORD("cold", "calibrated"));
        recipe->calibrated = which;
        return LB_OK;
    }
    return LB_ERR_NOT_FOUND;
}

static lb_status take_nv_key(lb_recipe *recipe, seen *given, const item *item, lb_err *err)
{
    int which = 0;
    if (key_is(item, "hadamard")) {
        LB_TRY(WORD("off", "on"));
        recipe->hadamard = which;
        return LB_OK;
    }
    if (key_is(item, "weights")) {
        LB_TRY(WORD("2d", "1d"));
        recipe->flat_weights = which;
        return LB_OK;
    }
    if (key_is(item, "gradients")) {
        given->gradients = true;
        return parse_rounding(item, &recipe->gradient_cast, err);
    }
    return LB_ERR_NOT_FOUND;
}

static lb_status take_key(lb_recipe *recipe, seen *given, const item *item, lb_err *err)
{
    const lb_dtype type = grid_named(item->text, item->key);
    const int suffix = recipe_named(item->value, value_length(item), true);
    if (type && suffix >= 0 && !given->word) {
        take_recipe(recipe, suffix, type);
        return LB_OK;
    }
    if (type == LB_TF32 && !given->word) {
        recipe->short_form = LB_TF32;
        given->round = true;
        LB_TRY(parse_rounding(item, &recipe->cast, err));
        return recipe->cast.rounding == LB_STOCHASTIC
                   ? wrong(err, "tf32 alone rounds by rz, rna or rne: write compute:tf32,round:...", item->text,
                           item->n)
                   : LB_OK;
    }
    if (key_is(item, "compute") || key_is(item, "accumulate") || key_is(item, "storage"))
        return take_type(recipe, item, err);
    const lb_status cast = take_cast_key(recipe, given, item, err);
    if (cast != LB_ERR_NOT_FOUND) return cast;
    if (recipe->scaling && (key_is(item, "forward") || key_is(item, "backward"))) return take_type(recipe, item, err);
    if (recipe->scaling && key_is(item, "scale")) return take_scale_rule(recipe, item, err);
    lb_status status = recipe->scaling == LB_SCALING_DELAYED ? take_delayed_key(recipe, item, err)
                       : recipe->scaling == LB_SCALING_NV    ? take_nv_key(recipe, given, item, err)
                                                             : LB_ERR_NOT_FOUND;
    if (status == LB_ERR_NOT_FOUND)
        return wrong(err,
                     recipe->scaling ? "not a key of this recipe"
                                     : "keys are compute, accumulate, storage, round, overflow, subnormals, products, "
                                       "and those of a recipe named first",
                     item->text, item->n);
    return status;
}

/* ---- the whole argument ------------------------------------------------------------------------------------------ */

static lb_status take_first_word(lb_recipe *recipe, const char *item, size_t n, lb_err *err)
{
    const int row = recipe_named(item, n, false);
    if (row >= 0) {
        take_recipe(recipe, row, LB_NO_DTYPE);
        return LB_OK;
    }
    recipe->short_form = grid_named(item, n);
    if (recipe->short_form) return LB_OK;
    return wrong(err,
                 "precisions are f64 f32 tf32 bf16 f16 e4m3fn e5m2 e4m3fnuz e5m2fnuz e2m1 e8m0, "
                 "compute:TYPE,accumulate:TYPE,storage:TYPE, or a recipe: "
                 "fp8-current fp8-delayed fp8-block mxfp8 mxfp4 nvfp4",
                 item, n);
}

static lb_status check_elements(const lb_recipe *recipe, const char *argument, lb_err *err)
{
    if (!recipe->scaling) return LB_OK;
    for (int role = 0; role < LB_ROLES; role++) {
        const lb_dtype element = recipe->element[role];
        if (element == LB_E8M0 || element == LB_F32 || element == LB_F64 || element == LB_TF32 || element == LB_BF16)
            return wrong(err, "scales are for e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e2m1 and f16", argument,
                         strlen(argument));
        if (recipe->scaling == LB_SCALING_NV && element != LB_E2M1)
            return wrong(err, "the two levels of scales are those of e2m1", argument, strlen(argument));
    }
    return LB_OK;
}

/* Defaults that depend on what was given, and what makes no sense together. */
static lb_status complete(lb_recipe *recipe, const seen *given, const char *argument, lb_err *err)
{
    const size_t n = strlen(argument);
    const bool long_form = recipe->compute || recipe->accumulate || recipe->storage;
    if (recipe->scaling && recipe->compute)
        return wrong(err, "a recipe says itself what operands are rounded to: leave compute out", argument, n);
    if (!recipe->scaling && !recipe->short_form && !long_form)
        return wrong(err, "name compute, accumulate or storage, or a recipe", argument, n);
    if (recipe->short_form == LB_TF32) {
        recipe->products_only = recipe->all_products = true;
    } else if (lb_grid_is_held_as_f32(recipe->short_form)) { /* no tensor is held in it, no kernel knows it */
        recipe->compute = recipe->storage = recipe->short_form;
        recipe->short_form = LB_NO_DTYPE;
    }
    if ((recipe->compute == LB_TF32 || recipe->short_form == LB_TF32) && !given->round) recipe->cast.rounding = LB_RNA;
    recipe->casts_operands = recipe->compute || recipe->scaling;
    recipe->casts_results = recipe->storage != LB_NO_DTYPE;
    if (given->round && !recipe->casts_operands && !recipe->casts_results && !recipe->short_form)
        return wrong(err, "round is for what compute or storage name; for results as recorded use --rounding", argument,
                     n);
    if (!recipe->scaling)
        for (int role = 0; role < LB_ROLES; role++)
            recipe->element[role] = recipe->compute ? recipe->compute : recipe->short_form;
    const lb_cast gradients = recipe->gradient_cast;
    const bool own = recipe->scaling == LB_SCALING_NV && (given->gradients || !given->round);
    recipe->gradient_cast = recipe->cast;
    if (own) recipe->gradient_cast.rounding = gradients.rounding, recipe->gradient_cast.seed = gradients.seed;
    return check_elements(recipe, argument, err);
}

lb_status lb_recipe_parse(const char *argument, lb_recipe *recipe, lb_err *err)
{
    lb_recipe parsed = {0};
    seen given = {0};
    bool first = true;
    for (const char *item = argument;; first = false) {
        const size_t n = strcspn(item, ",");
        const char *colon = memchr(item, ':', n);
        if (!n) return wrong(err, "an item is empty", argument, strlen(argument));
        if (colon)
            LB_TRY(take_key(&parsed, &given, &(struct item){item, colon + 1, n, (size_t)(colon - item)}, err));
        else if (first)
            LB_TRY(take_first_word(&parsed, item, n, err));
        else
            return wrong(err, "expected KEY:VALUE", item, n);
        given.word = true;
        if (parsed.short_form && item[n])
            return wrong(err, "a type alone takes no keys: write compute:TYPE,storage:TYPE,...", argument,
                         strlen(argument));
        if (!item[n]) break;
        item += n + 1;
    }
    LB_TRY(complete(&parsed, &given, argument, err));
    *recipe = parsed;
    return LB_OK;
}

void lb_recipe_format(const lb_recipe *recipe, lb_precision_role role, char *text, size_t size)
{
    static const char *const scalings[] = {"", " current", " delayed", " block", " mx", " nvfp4"};
    const char *rule = recipe->scaling == LB_SCALING_MX ? RULES[recipe->rule] : "";
    const lb_rounding rounding = (role == LB_ROLE_GRADIENT ? recipe->gradient_cast : recipe->cast).rounding;
    static const char *const roundings[] = {"", " rz", " rna", " stochastic"};
    snprintf(text, size, "%s%s%s%s%s", lb_dtype_name(recipe->element[role]), scalings[recipe->scaling],
             *rule ? " " : "", rule, roundings[rounding]);
}
