/* Pages of help: see help_page.h. */
#include "command/help_page.h"

#include "command/command_line.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS = 104, TEXT_COLUMN = 30 };

/* ---- lines ------------------------------------------------------------------------------------------------------ */

/* Adds words to the line being filled; gives its new length. Lines that it begins are indented, and a line that is no
 * longer than that has no word yet. */
static size_t fill(const char *words, size_t n, size_t column, size_t indent)
{
    for (size_t at = 0; at < n;) {
        const size_t word = strcspn(words + at, " \n");
        if (column > indent && column + 1 + word > COLUMNS) {
            printf("\n%*s", (int)indent, "");
            column = indent;
        }
        column += (size_t)printf("%s%.*s", column > indent ? " " : "", (int)word, words + at);
        at += word + strspn(words + at + word, " ");
    }
    return column;
}

void lb_help_filled(const char *text)
{
    size_t column = 0;
    while (*text) {
        const size_t line = strcspn(text, "\n");
        if (line == 0 || *text == ' ') {
            printf("%s%.*s\n", column > 0 ? "\n" : "", (int)line, text);
            column = 0;
        } else {
            column = fill(text, line, column, 0);
        }
        text += line + (text[line] == '\n');
    }
    if (column > 0) putchar('\n');
}

/* ---- options ---------------------------------------------------------------------------------------------------- */

static void print_option(const struct poptOption *option)
{
    int column =
        option->shortName ? printf("  -%c%s", option->shortName, option->longName ? ", " : "") : printf("      ");
    if (option->longName) column += printf("--%s", option->longName);
    if (option->argDescrip) column += printf(" %s", option->argDescrip);
    if (column + 2 > TEXT_COLUMN) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", TEXT_COLUMN - column, "");
    fill(option->descrip, strlen(option->descrip), TEXT_COLUMN, TEXT_COLUMN);
    putchar('\n');
}

static unsigned kind_of(const struct poptOption *option)
{
    return option->argInfo & POPT_ARG_MASK;
}

static bool is_end(const struct poptOption *option)
{
    return !option->longName && !option->shortName && !option->arg;
}

/* The table that lb_command_swaps_table gives begins with what gathers swaps. */
static bool is_of_swaps(const struct poptOption *table)
{
    return kind_of(table) == POPT_ARG_CALLBACK;
}

static void print_names(const struct poptOption *table)
{
    size_t column = (size_t)printf("      ");
    for (; !is_end(table); table++) {
        char name[40];
        if (table->longName)
            column = fill(name, (size_t)snprintf(name, sizeof name, "--%s", table->longName), column, 6);
    }
    printf("\n      What each takes: `lastbit help swaps`; what they apply to: `lastbit help selectors`.\n");
}

void lb_help_options(const struct poptOption *table, bool swaps_too)
{
    if (is_of_swaps(table) && !swaps_too) {
        print_names(table);
        return;
    }
    for (; !is_end(table); table++) {
        if (kind_of(table) == POPT_ARG_INCLUDE_TABLE) {
            if (table->descrip) printf("\n%s\n", table->descrip);
            lb_help_options(table->arg, swaps_too);
        } else if (table->descrip && !(table->argInfo & POPT_ARGFLAG_DOC_HIDDEN)) {
            print_option(table);
        }
    }
}

/* ---- topics ----------------------------------------------------------------------------------------------------- */

static const char SELECTORS[] =
    "A selector (SEL) says which ops a swap, or a question, applies to. It is a PCRE2 pattern, "
    "or terms joined by \"&\", all of which must hold:\n"
    "\n"
    "  PATTERN        searched anywhere in \"layer/op\": 'mlp/aten::(add)?mm'\n"
    "  layer=PATTERN  searched anywhere in the path of the module, unless it is anchored: layer=mlp;\n"
    "                 'layer=^model\\.layers\\.3(\\.|$)' is that module and what is in it, 'layer=layers.3' layers.31, "
    "too\n"
    "  op=PATTERN     the whole name of the op, with or without namespace and overload: op=mm, op=aten::add.Tensor\n"
    "  class=PATTERN  the whole class name of the innermost module\n"
    "  phase=LIST     forward, backward, optimizer, communication, other\n"
    "  rank=LIST      numbers and ranges: 0,3-5\n"
    "  step=LIST      the same\n"
    "  index=LIST     rows of ops in the recorded step, as `lastbit ls --ops` numbers them: 12-40,77\n"
    "  block=LETTERS  classes of residual blocks: A attention, D dense MLP, E mixture of experts, M Mamba or SSM, "
    "R recurrent\n"
    "\n"
    "Empty or left out it selects everything. \"\\&\" is an ampersand in a pattern. "
    "The shell leaves a selector alone between single quotes. `lastbit ls CAPTURE --layers` lists paths and classes, "
    "`--ops` the names of ops.\n"
    "\n"
    "Examples:\n"
    "  lastbit replay run.lb --mode chained --precision 'block=E&phase=forward=f32'\n"
    "  lastbit replay run.lb --order 'op=sum&step=2-3=pairwise'\n"
    "  lastbit explain a.lb b.lb --select 'layer=model.layers.3&op=mm'\n";

static const char SWAPS[] = "A swap changes one thing in replay: SEL=WHAT, "
                            "for the ops that SEL selects (`lastbit help selectors`). Without SEL it applies to all. "
                            "A swap that means nothing to an op leaves it alone. "
                            "Of two swaps that ask an op for the same thing the later counts. `replay` takes them, "
                            "and `bisect --check`; each may be given several times.\n";

static const char PRECISIONS[] =
    "\n"
    "PRECISION is a type: f64, f32, tf32, bf16, f16, e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e2m1, "
    "e8m0 (f32 and f64 never narrow); or KEY:VALUE joined by \",\": compute, accumulate and storage, each a type; "
    "round: rne, rz, rna, stochastic:SEED; overflow: saturate, ieee, torch; subnormals: keep, flush; "
    "or a recipe for the products of linear layers, with keys of its own after it: fp8-current (scale:f32|pow2), "
    "fp8-delayed (history:N, margin:N, interval:N, algorithm:max|most_recent, start:cold|calibrated), "
    "fp8-block (scale:f32|pow2), mxfp8, mxfp4 (scale:floor|ceil|even|rceil), nvfp4 (hadamard:on|off, weights:1d|2d, "
    "gradients:ROUND); forward: and backward: set their element types, products:all takes those of attention too. "
    "Scales live from step to step of a replay.\n"
    "\n"
    "--fuse KIND=KERNEL computes what several recorded ops do together by one kernel, with its own order of additions, "
    "accumulator and rounding points; KIND=on takes the usual one, KIND=off (or a later --fuse) leaves or changes it, "
    "and SEL=KIND[:KERNEL] takes the composites whose last op SEL selects. "
    "`lastbit replay CAPTURE --kernels` lists kinds, kernels and their options.\n";

static const char TOKENS[] =
    "`lastbit parity` reads tokens with their log-probabilities from JSON, safetensors and .npz. "
    "Logarithms are natural, of the token given those before it; the first token of a sequence has none (null, NaN, "
    "or one entry less than there are tokens).\n"
    "\n"
    "JSON, a value a line or one document. A value is a sequence:\n"
    "\n"
    "  id              name of the sequence; both sides' are paired by it, else by their tokens, else in order\n"
    "  token_ids       numbers of the tokens (also: input_ids, completion_ids, responses)\n"
    "  tokens          their pieces of text, for heat maps and other vocabularies\n"
    "  logprobs        a number or null per token (also: token_logprobs, rollout_log_probs, old_log_probs,\n"
    "                  per_token_logps)\n"
    "  response_length where numbers and masks are of so many tokens at the end alone\n"
    "  weight_version  of the weights that scored it (also: policy_version)\n"
    "  kinds           a name or number per token: text, image, system, tool, generated ...\n"
    "  mask            0 leaves a token out as padding (also: attention_mask)\n"
    "  loss_mask       0: kind prompt, 1: kind generated, where there are no kinds (also: response_mask)\n"
    "  top1            number of the most probable token\n"
    "  top_logprobs    alternatives per token: {\"text\": logprob, ...} or [{\"token\", \"token_id\", \"logprob\"}, "
    "...]\n"
    "\n"
    "or one token: {\"sequence\", \"position\", \"token_id\", \"token\", \"logprob\", \"kind\"}; "
    "or what a server answers: OpenAI's completions and chat completions with logprobs, "
    "vLLM's prompt_logprobs and dumped RequestOutput, SGLang's meta_info, TRL's vllm-serve.\n"
    "\n"
    "safetensors and .npz: token_ids, logprobs, kinds, mask, loss_mask, top1 as [sequences, tokens]; "
    "logits as [sequences, tokens, vocabulary], row t being of token t + 1, as models return them. "
    "Logits on both sides give KL and top-1; where logprobs are left out, they follow from logits and token_ids.\n"
    "\n"
    "`lastbit parity --matrix FILE` runs a command over variables, one at a time: "
    "the baseline (all at their first value) twice, which gives the noise floor, then every other value by itself. "
    "{out} is the token file that the command writes. Runs that ended well are not run again. FILE:\n"
    "\n"
    "  {\"command\": \"python serve.py --precision {precision} --adapter {adapter} --out {out}\",\n"
    "   \"variables\": {\"precision\": [\"bf16\", \"fp32\"], \"adapter\": [\"online\", \"merged\"]},\n"
    "   \"reference\": \"trainer.jsonl\", \"seconds\": 600}\n";

static void print_tokens(void)
{
    lb_help_filled(TOKENS);
}

static void print_selectors(void)
{
    lb_help_filled(SELECTORS);
}

static void print_swaps(void)
{
    lb_command_swaps list;
    lb_help_filled(SWAPS);
    putchar('\n');
    lb_help_options(lb_command_swaps_table(&list), true);
    lb_help_filled(PRECISIONS);
    lb_command_swaps_release(&list);
}

static const struct topic {
    const char *name, *text;
    void (*print)(void);
} topics[] = {
    {"selectors", "which ops a swap or a question applies to: layer= op= phase= ...", print_selectors},
    {"swaps", "what replay can change: precisions, kernels, orders, fusions ...", print_swaps},
    {"tokens", "the files that parity reads: fields of tokens and their log-probabilities", print_tokens},
};
enum { TOPICS = sizeof topics / sizeof *topics };

void lb_help_list_topics(void)
{
    for (int i = 0; i < TOPICS; i++) printf("  %-9s  %s\n", topics[i].name, topics[i].text);
}

bool lb_help_topic(const char *name)
{
    for (int i = 0; i < TOPICS; i++) {
        if (strcmp(topics[i].name, name)) continue;
        topics[i].print();
        return true;
    }
    return false;
}
