/* Keys that are there, and keys that should be: what the readers told, what sibling layers have, what config.json says,
 * what another checkpoint has. */
#include "audit/adapter_config.h"
#include "audit/inventory.h"
#include "audit/side_file.h"

#include <lastbit/json_text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lb_audit_key_faults(lb_audit_gathering *gathering, const lb_checkpoint *checkpoint)
{
    static const lb_audit_kind kinds[] = {
        [LB_FAULT_MISSING] = LB_AUDIT_MISSING,     [LB_FAULT_UNEXPECTED] = LB_AUDIT_UNEXPECTED,
        [LB_FAULT_DUPLICATE] = LB_AUDIT_DUPLICATE, [LB_FAULT_MISPLACED] = LB_AUDIT_MISPLACED,
        [LB_FAULT_NO_FILE] = LB_AUDIT_NO_FILE,     [LB_FAULT_TRUNCATED] = LB_AUDIT_TRUNCATED,
        [LB_FAULT_DAMAGED] = LB_AUDIT_DAMAGED};
    for (uint32_t i = 0; i < checkpoint->n_faults; i++) {
        const lb_checkpoint_fault *f = &checkpoint->faults[i];
        bool of_rank = f->rank >= 0 && (checkpoint->rank_files || checkpoint->distributed);
        lb_audit_kind kind = f->kind == LB_FAULT_NO_FILE && of_rank ? LB_AUDIT_SHARD_MISSING : kinds[f->kind];
        lb_audit_find(gathering, kind, (lb_audit_where){f->tensor, f->file, &f->rank, of_rank}, "%s", f->message);
    }
}

/* ---- siblings ---------------------------------------------------------------------------------------------------- */

/* "model.layers.7.mlp.up.weight" cut at one of its numbers: container "model.layers.", number 7, suffix
 * "mlp.up.weight". */
typedef struct numbered {
    const char *name, *suffix;
    uint32_t container; /* bytes of the prefix */
    int64_t number;
} numbered;

static int by_container(const void *a, const void *b)
{
    const numbered *x = (const numbered *)a, *y = (const numbered *)b;
    uint32_t n = x->container < y->container ? x->container : y->container;
    int order = strncmp(x->name, y->name, n);
    if (order) return order;
    if (x->container != y->container) return x->container < y->container ? -1 : 1;
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    return strcmp(x->suffix, y->suffix);
}

/* Every name at every number in it. */
static numbered *cut_names(const lb_inventory *inventory, uint32_t *n)
{
    uint32_t room = 0;
    numbered *rows = NULL;
    *n = 0;
    for (uint32_t i = 0; i < inventory->n_names; i++)
        for (const char *name = inventory->names[i].name, *at = name; *at;) {
            size_t word = strcspn(at, ".");
            if (word && word < 10 && strspn(at, "0123456789") == word && at > name && at[word] == '.') {
                if (*n == room) {
                    room = room ? room * 2 : 256;
                    numbered *grown = (numbered *)realloc(rows, room * sizeof *grown);
                    if (!grown) {
                        free(rows);
                        return NULL;
                    }
                    rows = grown;
                }
                rows[(*n)++] = (numbered){name, at + word + 1, (uint32_t)(at - name), strtol(at, NULL, 10)};
            }
            at += word + (at[word] == '.');
        }
    if (*n) qsort(rows, *n, sizeof *rows, by_container);
    return rows;
}

/* One member of a container: rows [first, first + n). */
typedef struct member {
    const numbered *rows;
    uint32_t n;
    int64_t number;
} member;

static bool same_suffixes(const member *a, const member *b)
{
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (strcmp(a->rows[i].suffix, b->rows[i].suffix) != 0) return false;
    return true;
}

/* Whether b has everything that a has. */
static bool has_all(const member *a, const member *b)
{
    uint32_t j = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        while (j < b->n && strcmp(b->rows[j].suffix, a->rows[i].suffix) < 0) j++;
        if (j == b->n || strcmp(b->rows[j].suffix, a->rows[i].suffix) != 0) return false;
    }
    return true;
}

/* An adapter has no halves for a module that its configuration leaves out. */
static bool is_left_out(lb_audit_gathering *gathering, const json_t *adapter, const char *tensor)
{
    char *module = adapter ? lb_adapter_module_name(tensor) : NULL;
    const bool left_out = module && lb_adapter_config_wants(gathering, adapter, module) == 0;
    free(module);
    return left_out;
}

static void tell_lacking(lb_audit_gathering *gathering, const member *lacking, const member *full, uint32_t like,
                         const json_t *adapter)
{
    for (uint32_t i = 0, j = 0; i < full->n; i++) {
        const char *suffix = full->rows[i].suffix;
        while (j < lacking->n && strcmp(lacking->rows[j].suffix, suffix) < 0) j++;
        if (j < lacking->n && strcmp(lacking->rows[j].suffix, suffix) == 0) continue;
        char name[1024], container[512];
        snprintf(container, sizeof container, "%.*s", (int)full->rows->container, full->rows->name);
        snprintf(name, sizeof name, "%s%lld.%s", container, (long long)lacking->number, suffix);
        if (lb_audit_is_found(gathering, name) || is_left_out(gathering, adapter, name)) continue;
        lb_audit_find(gathering, lb_inventory_is_state(name) ? LB_AUDIT_OPTIMIZER_MISSING : LB_AUDIT_MISSING,
                      (lb_audit_where){name, NULL, NULL, 0},
                      "%s%lld lacks %s, which %u of its siblings have that are like it in everything else", container,
                      (long long)lacking->number, suffix, like);
    }
}

static const lb_layout *shape_in(const lb_inventory *inventory, const member *member, const char *suffix)
{
    char name[1200];
    snprintf(name, sizeof name, "%.*s%lld.%s", (int)member->rows->container, member->rows->name,
             (long long)member->number, suffix);
    const lb_inventory_name *found = lb_inventory_find(inventory, name);
    return found ? &inventory->checkpoint->pieces[found->first].whole : NULL;
}

/* Stages of a vision model: what both have is of different shapes in most cases, and the first or the last lacks what
 * leads to the next one. */
static bool are_stages(const lb_inventory *inventory, const member *a, const member *b)
{
    uint32_t both = 0, differ = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        const lb_layout *x = shape_in(inventory, a, a->rows[i].suffix), *y = shape_in(inventory, b, a->rows[i].suffix);
        if (!x || !y || x->ndim < 2) continue;
        both++, differ += !lb_layout_same_shape(x, y);
    }
    return differ * 2 > both && !lb_inventory_is_state(a->rows->name);
}

/* Layers that are all of one kind agree in their suffixes. A member whose own set no other has, and which a set that
 * several have contains, lost what is between them; a hybrid's kinds of layers contain each other neither way. */
static void compare_members(lb_audit_gathering *gathering, const lb_inventory *inventory, const member *members,
                            uint32_t n, const json_t *adapter)
{
    for (uint32_t i = 0; i < n; i++) {
        const member *full = NULL;
        uint32_t like = 0;
        bool alone = true;
        for (uint32_t k = 0; k < n && alone; k++) alone = k == i || !same_suffixes(&members[i], &members[k]);
        for (uint32_t k = 0; k < n && alone; k++) {
            if (k == i || members[k].n <= members[i].n || !has_all(&members[i], &members[k])) continue;
            uint32_t same = 0;
            for (uint32_t j = 0; j < n; j++) same += same_suffixes(&members[k], &members[j]);
            if (same > like || (same == like && full && members[k].n < full->n)) full = &members[k], like = same;
        }
        if (full && like >= 2 && (full->n - members[i].n) * 2 <= full->n + 1 &&
            !are_stages(inventory, &members[i], full))
            tell_lacking(gathering, &members[i], full, like, adapter);
    }
}

/* Whether an adapter's configuration leaves out everything that a neighbour has. */
static bool all_left_out(lb_audit_gathering *gathering, const json_t *adapter, const member *neighbour,
                         const char *name)
{
    char tensor[1200];
    for (uint32_t i = 0; adapter && i < neighbour->n; i++) {
        snprintf(tensor, sizeof tensor, "%s.%s", name, neighbour->rows[i].suffix);
        if (!is_left_out(gathering, adapter, tensor)) return false;
    }
    return adapter != NULL;
}

/* 0 1 2 4 5 6: a hole in a long row of like members is a layer that was lost; Sequential's numbers have many holes. */
static void find_holes(lb_audit_gathering *gathering, const member *members, uint32_t n, const json_t *adapter)
{
    int64_t holes = members[n - 1].number + 1 - (int64_t)n;
    if (n < 4 || members[0].number > 1 || holes <= 0 || holes * 4 > (int64_t)n) return;
    if (members[0].number == 1 && holes == 1) return; /* numbered from 1 */
    uint32_t like = 0;
    for (uint32_t i = 0; i < n; i++) like += same_suffixes(&members[0], &members[i]);
    if (like * 2 < n && members[0].n < 2) return;
    for (uint32_t i = 0; i < n; i++)
        for (int64_t k = i ? members[i - 1].number + 1 : 0; k < members[i].number; k++) {
            char name[600];
            snprintf(name, sizeof name, "%.*s%lld", (int)members[i].rows->container, members[i].rows->name,
                     (long long)k);
            if (all_left_out(gathering, adapter, &members[i], name)) continue;
            lb_audit_find(gathering, lb_inventory_is_state(name) ? LB_AUDIT_OPTIMIZER_MISSING : LB_AUDIT_MISSING,
                          (lb_audit_where){name, NULL, NULL, 0},
                          "%s is not there, and its neighbours up to number %lld are", name,
                          (long long)members[n - 1].number);
        }
}

/* A state that torch.optim numbers: frozen parameters leave holes. */
static bool numbers_parameters(const char *name, uint32_t container)
{
    return container >= 6 && strncmp(name + container - 6, "state.", 6) == 0;
}

/* A file that could not be read took tensors with it: the file is the finding. */
static bool lost_a_file(const lb_checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint->n_faults; i++) {
        const lb_fault_kind kind = checkpoint->faults[i].kind;
        if (!checkpoint->faults[i].tensor &&
            (kind == LB_FAULT_NO_FILE || kind == LB_FAULT_TRUNCATED || kind == LB_FAULT_DAMAGED))
            return true;
    }
    return false;
}

void lb_audit_key_names(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    if (lost_a_file(inventory->checkpoint)) return;
    uint32_t n;
    numbered *rows = cut_names(inventory, &n);
    json_t *adapter = lb_side_file_load(inventory->checkpoint->path, "adapter_config.json");
    member *members = (member *)malloc((n + 1u) * sizeof *members);
    gathering->failed |= n && (!rows || !members);
    for (uint32_t first = 0, end; rows && members && first < n; first = end) {
        uint32_t count = 0;
        for (end = first; end < n && rows[end].container == rows[first].container &&
                          strncmp(rows[end].name, rows[first].name, rows[first].container) == 0;
             end++) {
            if (!count || members[count - 1].number != rows[end].number)
                members[count++] = (member){&rows[end], 0, rows[end].number};
            members[count - 1].n++;
        }
        if (count >= 3 && count < 4096) compare_members(gathering, inventory, members, count, adapter);
        if (!numbers_parameters(rows[first].name, rows[first].container))
            find_holes(gathering, members, count, adapter);
    }
    json_decref(adapter);
    free(members);
    free(rows);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static const lb_inventory_name *ending(const lb_inventory *inventory, const char *const *ends)
{
    for (uint32_t i = 0; i < inventory->n_names; i++)
        for (const char *const *end = ends; *end; end++) {
            size_t n = strlen(inventory->names[i].name), m = strlen(*end);
            if (n >= m && strcmp(inventory->names[i].name + n - m, *end) == 0 &&
                (n == m || inventory->names[i].name[n - m - 1] == '.') &&
                !lb_inventory_is_state(inventory->names[i].name))
                return &inventory->names[i];
        }
    return NULL;
}

static void check_tied(lb_audit_gathering *gathering, const lb_inventory *inventory, const json_t *config,
                       const json_t *text)
{
    static const char *const ins[] = {"embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight",
                                      NULL},
                             *const outs[] = {"lm_head.weight", "embed_out.weight", "output_layer.weight", NULL};
    const json_t *tied = json_object_get(config, "tie_word_embeddings");
    if (!tied) tied = json_object_get(text, "tie_word_embeddings");
    const lb_inventory_name *in = ending(inventory, ins), *out = ending(inventory, outs);
    if (!tied || !in || !inventory->measured) return;
    if (json_is_true(tied) && out && out->n == in->n)
        for (uint32_t i = 0; i < in->n; i++)
            if (!lb_digest_equal(inventory->measured[in->first + i].digest,
                                 inventory->measured[out->first + i].digest)) {
                lb_audit_find(gathering, LB_AUDIT_UNTIED,
                              lb_inventory_where(inventory, &inventory->checkpoint->pieces[out->first + i]),
                              "config.json ties it to %s, and their bits differ", in->name);
                break;
            }
    const json_t *kind = json_array_get(json_object_get(config, "architectures"), 0);
    const char *word = json_string_value(kind), *causal = word ? strstr(word, "ForCausalLM") : NULL;
    if (json_is_false(tied) && causal && !out && strncmp(in->name, "model.", 6) == 0 &&
        !lb_audit_is_found(gathering, "lm_head.weight"))
        lb_audit_find(gathering, LB_AUDIT_MISSING, (lb_audit_where){"lm_head.weight", NULL, NULL, 0},
                      "config.json says that it is not tied to %s, and it is not there", in->name);
}

static void check_layers(lb_audit_gathering *gathering, const lb_inventory *inventory, const json_t *config)
{
    static const char *const keys[] = {"num_hidden_layers", "n_layer", "num_layers", "n_layers", NULL};
    int64_t stated = 0, top = -1;
    const char *container = NULL;
    size_t length = 0;
    for (const char *const *key = keys; *key && !stated; key++)
        stated = json_integer_value(json_object_get(config, *key));
    for (uint32_t i = 0; i < inventory->n_names && stated > 0; i++) {
        static const char *const words[] = {".layers.", ".h.", ".layer.", ".blocks."};
        const char *name = inventory->names[i].name;
        if (strstr(name, "encoder.") || strstr(name, "decoder.") || lb_inventory_is_state(name))
            return; /* several stacks */
        for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
            const char *at = strstr(name, words[k]);
            if (!at) continue;
            size_t n = (size_t)(at - name) + strlen(words[k]);
            if (container && (n != length || strncmp(name, container, n) != 0)) return;
            container = name, length = n;
            int64_t number = strtol(name + n, NULL, 10);
            if (number > top) top = number;
        }
    }
    for (int64_t k = top + 1; container && k < stated && stated - top < 1000; k++) {
        char name[600];
        snprintf(name, sizeof name, "%.*s%lld", (int)length, container, (long long)k);
        lb_audit_find(gathering, LB_AUDIT_MISSING, (lb_audit_where){name, NULL, NULL, 0},
                      "config.json says %lld layers, and %s is not there", (long long)stated, name);
    }
}

void lb_audit_key_config(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    json_t *config = lb_side_file_load(inventory->checkpoint->path, "config.json"),
           *text = json_object_get(config, "text_config");
    if (config) {
        uint32_t before = gathering->report->n_findings;
        check_tied(gathering, inventory, config, text);
        bool whole = inventory->checkpoint->n_faults == 0 &&
                     !inventory->checkpoint->rank_files; /* else files tell what is lost */
        if (whole && before == gathering->report->n_findings) check_layers(gathering, inventory, text ? text : config);
    }
    json_decref(config);
}

int64_t lb_audit_key_head_rows(const char *path)
{
    json_t *config = lb_side_file_load(path, "config.json"), *text = json_object_get(config, "text_config");
    const json_t *c = text ? text : config;
    int64_t head = json_integer_value(json_object_get(c, "head_dim"));
    const int64_t wide = json_integer_value(json_object_get(c, "hidden_size")),
                  heads = json_integer_value(json_object_get(c, "num_attention_heads"));
    if (head <= 0 && wide > 0 && heads > 0 && wide % heads == 0) head = wide / heads;
    json_decref(config);
    return head > 0 ? head : 0;
}

/* ---- another checkpoint's names ---------------------------------------------------------------------------------- */

void lb_audit_key_expected(lb_audit_gathering *gathering, const lb_inventory *inventory, const lb_inventory *expected)
{
    char has[160], wants[160];
    for (uint32_t i = 0; i < expected->n_names; i++) {
        const lb_inventory_name *want = &expected->names[i], *have = lb_inventory_find(inventory, want->name);
        if (!have && !lb_audit_is_found(gathering, want->name))
            lb_audit_find(gathering, LB_AUDIT_MISSING, (lb_audit_where){want->name, NULL, NULL, 0},
                          "%s has it, %s does not", expected->checkpoint->path, inventory->checkpoint->path);
        if (!have) continue;
        const lb_checkpoint_piece *p = &inventory->checkpoint->pieces[have->first],
                                  *e = &expected->checkpoint->pieces[want->first];
        if (!inventory->checkpoint->rank_files && !expected->checkpoint->rank_files &&
            !lb_layout_same_shape(&p->whole, &e->whole))
            lb_audit_find(gathering, LB_AUDIT_SHAPE, lb_inventory_where(inventory, p), "is %s, %s has %s",
                          lb_inventory_shape_text(&p->whole, has), expected->checkpoint->path,
                          lb_inventory_shape_text(&e->whole, wants));
    }
    for (uint32_t i = 0; i < inventory->n_names; i++)
        if (!lb_inventory_find(expected, inventory->names[i].name))
            lb_audit_find(gathering, LB_AUDIT_UNEXPECTED,
                          lb_inventory_where(inventory, &inventory->checkpoint->pieces[inventory->names[i].first]),
                          "%s has no tensor of this name", expected->checkpoint->path);
}
