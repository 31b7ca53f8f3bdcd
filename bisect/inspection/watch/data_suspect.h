/* What a log says about the data: shards, their borders, the curriculum, tokens that two ranks share. */
#ifndef LB_DATA_SUSPECT_H
#define LB_DATA_SUSPECT_H

#include <lastbit/watch.h>

enum {
    LB_BORDER_NEAR = 20,   /* an excursion that begins within so many steps of a border belongs to it */
    LB_BORDER_SHORT = 100, /* and is over in fewer than this */
    LB_RANKS_COMPARED = 1024
};

typedef struct lb_data_place {
    char shard[80], curriculum[80];
    int64_t shard_since, curriculum_since; /* first step of it; INT64_MIN: the log began in it, or says nothing */
    uint64_t borders;                      /* shards that began */
} lb_data_place;
void lb_data_place_init(lb_data_place *place);
void lb_data_place_take(lb_data_place *place, const lb_watch_record *record);

/* Which border an excursion [from, until] belongs to: "boundary", "curriculum", or NULL. */
const char *lb_data_border(const lb_data_place *at_begin, int64_t from, int64_t until);

/* Hashes of the tokens that ranks read in one step. */
typedef struct lb_rank_tokens {
    int64_t step;
    uint32_t n;
    struct {
        int32_t rank;
        uint64_t hash;
    } row[LB_RANKS_COMPARED];
} lb_rank_tokens;
/* True when another rank read the same in this step; *other says which. */
bool lb_data_suspect_take_tokens(lb_rank_tokens *tokens, const lb_watch_record *record, int32_t *other);

#endif
