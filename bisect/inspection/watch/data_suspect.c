/* Suspects in the data: see data_suspect.h. */
#include "watch/data_suspect.h"

#include <string.h>

void lb_data_place_init(lb_data_place *place)
{
    *place = (lb_data_place){.shard_since = INT64_MIN, .curriculum_since = INT64_MIN};
}

/* Takes a word over; true when there was another one before. */
static bool change(char current[80], lb_watch_word word)
{
    const size_t n = word.n < 79 ? word.n : 79;
    if (strlen(current) == n && !memcmp(current, word.text, n)) return false;
    const bool was = *current != '\0';
    memcpy(current, word.text, n);
    current[n] = '\0';
    return was;
}

void lb_data_place_take(lb_data_place *place, const lb_watch_record *r)
{
    if (lb_watch_has(r, LB_WATCH_shard) && change(place->shard, r->word[0])) {
        place->shard_since = r->step;
        place->borders++;
    }
    if (lb_watch_has(r, LB_WATCH_curriculum) &&
        change(place->curriculum, r->word[LB_WATCH_curriculum - LB_WATCH_shard]))
        place->curriculum_since = r->step;
}

static bool is_near(int64_t border, int64_t from)
{
    return border != INT64_MIN && from >= border && from - border <= LB_BORDER_NEAR;
}

const char *lb_data_border(const lb_data_place *at_begin, int64_t from, int64_t until)
{
    if (is_near(at_begin->curriculum_since, from)) return "curriculum";
    return is_near(at_begin->shard_since, from) && until - from < LB_BORDER_SHORT ? "boundary" : NULL;
}

static uint64_t hash_of(lb_watch_word word)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (uint32_t i = 0; i < word.n; i++) hash = (hash ^ (unsigned char)word.text[i]) * 0x100000001b3u;
    return hash;
}

bool lb_data_suspect_take_tokens(lb_rank_tokens *t, const lb_watch_record *r, int32_t *other)
{
    if (!lb_watch_has(r, LB_WATCH_tokens) || !lb_watch_has(r, LB_WATCH_rank)) return false;
    const uint64_t hash = hash_of(r->word[LB_WATCH_tokens - LB_WATCH_shard]);
    if (t->step != r->step) t->step = r->step, t->n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->row[i].hash == hash && t->row[i].rank != r->rank) return *other = t->row[i].rank, true;
    if (t->n < LB_RANKS_COMPARED) t->row[t->n].rank = r->rank, t->row[t->n++].hash = hash;
    return false;
}
