/* A checkpoint's tensors by name and by what they are alike: "layers.3.mlp.up.weight" and "layers.5.mlp.up.weight"
 * are siblings. Each piece has been read once: its statistics, its digest, and the place of its first element that
 * is not finite. */
#ifndef LB_BISECT_AUDIT_INVENTORY_H
#define LB_BISECT_AUDIT_INVENTORY_H

#include "audit/audit_report.h"
#include "audit/piece_measure.h"
#include "audit/profile.h"

/* A name, and the pieces that carry it. */
typedef struct lb_inventory_name {
    const char *name;
    char *pattern; /* numbers between dots are "*" */
    uint32_t first, n;
} lb_inventory_name;

typedef struct lb_inventory {
    const lb_checkpoint *checkpoint;
    lb_piece_measured *measured; /* by piece */
    lb_profile *profiles;        /* by piece; NULL: not asked for */
    lb_inventory_name *names;    /* by name */
    uint32_t n_names;
    uint32_t *siblings; /* names by pattern */
} lb_inventory;

/* `read`: every byte is read; otherwise names and shapes alone. LB_ERR_PARTIAL: there is one, and other parts have
 * measured the rest. */
lb_status lb_inventory_new(const lb_checkpoint *checkpoint, bool read, const lb_audit_gathering *gathering,
                           lb_inventory **inventory, lb_err *err);
/* Reads rows and columns, too; `head`: rows of an attention head, 0: not known. */
lb_status lb_inventory_profile(lb_inventory *inventory, int64_t head, const lb_audit_gathering *gathering, lb_err *err);
void lb_inventory_free(lb_inventory *inventory);
const lb_inventory_name *lb_inventory_find(const lb_inventory *inventory, const char *name);
/* Siblings stand side by side: siblings[i] up to but not siblings[the result]. */
uint32_t lb_inventory_group(const lb_inventory *inventory, uint32_t i);

/* One number everywhere; zero among them. */
static inline bool lb_inventory_is_constant(const lb_piece_measured *m)
{
    return m->statistics.elements > 0 && m->first_bad < 0 && m->statistics.min == m->statistics.max;
}
static inline bool lb_inventory_is_zero(const lb_piece_measured *m)
{
    return m->statistics.elements > 0 && m->statistics.zero == m->statistics.elements;
}
/* Optimizer slots and other state: whose sizes mean nothing beside its siblings'. */
bool lb_inventory_is_state(const char *name);
/* The state of a run, by its name or its file's: no weight, and no statistic of a layer that inference reads. */
bool lb_inventory_is_run_state(const lb_inventory *inventory, const lb_inventory_name *name);
/* Which of "o_proj", "down_proj" … a name has as a word between dots, or NULL. */
const char *lb_inventory_word_of(const char *name, const char *const *words);
/* What is computed and kept beside the weights: masks, angles of positions, filters of a spectrum. */
bool lb_inventory_is_buffer(const char *name);
bool lb_inventory_is_table(const char *name);    /* a row for each token or position, or a head over tokens */
bool lb_inventory_is_stacked(const char *name);  /* experts in one tensor */
bool lb_inventory_is_outgoing(const char *name); /* what a block adds to the residual stream comes from it */
/* How tensor parallelism cuts a module, as its usual name tells: by rows of its weight, by columns, or not known. */
typedef enum lb_inventory_cut { LB_CUT_UNKNOWN, LB_CUT_COLUMN_PARALLEL, LB_CUT_ROW_PARALLEL } lb_inventory_cut;
lb_inventory_cut lb_inventory_cut_of(const char *name);
/* "lora_A" or "lora_B" in it: 'A' or 'B', else 0. */
char lb_inventory_lora_half(const char *name);

/* Row-major index as text, "[3, 17]"; gives `text`. */
const char *lb_inventory_index_text(const lb_layout *layout, int64_t index, char text[160]);
const char *lb_inventory_shape_text(const lb_layout *layout, char text[160]);
static inline lb_audit_where lb_inventory_where(const lb_inventory *inventory, const lb_checkpoint_piece *piece)
{
    return (lb_audit_where){piece->name, inventory->checkpoint->files[piece->file].path, &piece->rank, 1};
}

/* ---- findings, by subject ---- */
void lb_audit_key_faults(lb_audit_gathering *gathering, const lb_checkpoint *checkpoint); /* what the readers told */
void lb_audit_key_names(lb_audit_gathering *gathering,
                        const lb_inventory *inventory); /* siblings, numbered layers, slots */
void lb_audit_key_config(lb_audit_gathering *gathering,
                         const lb_inventory *inventory); /* config.json: layers, tied weights */
int64_t lb_audit_key_head_rows(const char *path);        /* rows of a head, as config.json says; 0: it does not */
void lb_audit_key_expected(lb_audit_gathering *gathering, const lb_inventory *inventory, const lb_inventory *expected);
void lb_audit_shards(lb_audit_gathering *gathering, const lb_inventory *inventory); /* ranks' files */
void lb_audit_shard_tiles(lb_audit_gathering *gathering,
                          const lb_inventory *inventory); /* parts of placed tensors, ranges in files */
void lb_audit_sibling_shapes(lb_audit_gathering *gathering, const lb_inventory *inventory);
void lb_audit_lost_shards(lb_audit_gathering *gathering, const lb_inventory *inventory); /* in whole tensors */
void lb_audit_outliers(lb_audit_gathering *gathering, const lb_inventory *inventory);    /* off their siblings */
void lb_audit_health(lb_audit_gathering *gathering, const lb_inventory *inventory); /* what the numbers look like */
void lb_audit_health_scales(lb_audit_gathering *gathering, const lb_inventory *inventory);
void lb_audit_restart(lb_audit_gathering *gathering, const lb_inventory *inventory);

#endif
