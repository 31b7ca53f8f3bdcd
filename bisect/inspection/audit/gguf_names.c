/* See gguf_names.h. Names as in gguf-py's tensor_mapping.py and constants.py (https://github.com/ggml-org/llama.cpp),
 * of the blocks that Llama and its like have; what is not listed meets by its numbers alone. */
#include "audit/gguf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const around[][2] = {
    {"token_embd.", "model.embed_tokens."}, {"output_norm.", "model.norm."}, {"output.", "lm_head."}};

static const char *const within[][2] = {{"attn_norm.", "input_layernorm."},
                                        {"attn_q.", "self_attn.q_proj."},
                                        {"attn_k.", "self_attn.k_proj."},
                                        {"attn_v.", "self_attn.v_proj."},
                                        {"attn_output.", "self_attn.o_proj."},
                                        {"attn_q_norm.", "self_attn.q_norm."},
                                        {"attn_k_norm.", "self_attn.k_norm."},
                                        {"ffn_norm.", "post_attention_layernorm."},
                                        {"ffn_gate.", "mlp.gate_proj."},
                                        {"ffn_up.", "mlp.up_proj."},
                                        {"ffn_down.", "mlp.down_proj."},
                                        {"ffn_gate_inp.", "mlp.gate."},
                                        {"ffn_gate_exps.", "mlp.experts.gate_proj."},
                                        {"ffn_up_exps.", "mlp.experts.up_proj."},
                                        {"ffn_down_exps.", "mlp.experts.down_proj."}};

/* The word of `words` that `name` begins with; NULL. */
static const char *const *word_of(const char *const words[][2], size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strncmp(name, words[i][0], strlen(words[i][0]))) return words[i];
    return NULL;
}

char *lb_gguf_names_spell(const char *name)
{
    const size_t digits = strncmp(name, "blk.", 4) ? 0 : strspn(name + 4, "0123456789");
    const char *rest = digits && name[4 + digits] == '.' ? name + 5 + digits : NULL;
    const char *const *word = rest ? word_of(within, sizeof within / sizeof *within, rest)
                                   : word_of(around, sizeof around / sizeof *around, name);
    if (!word && !rest) return strdup(name);
    char *made = malloc(strlen(name) + 64);
    if (!made) return NULL;
    if (!rest)
        sprintf(made, "%s%s", word[1], name + strlen(word[0]));
    else
        sprintf(made, "model.layers.%.*s.%s%s", (int)digits, name + 4, word ? word[1] : "",
                rest + (word ? strlen(word[0]) : 0));
    return made;
}

/* Whether `name` is `whole`, or a module that holds it. */
static bool is_or_holds(const char *name, const char *whole)
{
    const size_t n = strlen(name);
    return !strncmp(whole, name, n) && (whole[n] == '\0' || whole[n] == '.');
}

bool lb_gguf_names_is_unread(const lb_checkpoint *checkpoint, const char *name)
{
    bool found = false;
    for (uint32_t i = 0; checkpoint && name && i < checkpoint->n_unread && !found; i++) {
        char *spelled = lb_gguf_names_spell(checkpoint->unread[i].name);
        found = is_or_holds(name, checkpoint->unread[i].name) || (spelled && is_or_holds(name, spelled));
        free(spelled);
    }
    return found;
}

void lb_gguf_names_count(const lb_checkpoint *checkpoint, char *text, size_t room)
{
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < checkpoint->n_unread && at < room; i++) {
        uint32_t n = 0;
        bool first = true;
        for (uint32_t k = 0; k < checkpoint->n_unread; k++) {
            if (strcmp(checkpoint->unread[k].type, checkpoint->unread[i].type) != 0) continue;
            first &= k >= i, n++;
        }
        if (first)
            at += (size_t)snprintf(text + at, room - at, "%s%u %s", at ? ", " : "", n, checkpoint->unread[i].type);
    }
}
