/* What the sides say of the words that could have stood at a token: rows of logits, or the alternatives that a server
 * lists.
 *
 * One number per token tells few causes apart. Several words at one token do: log p(u) - log p(v) is a difference of
 * logits, from which no normalisation is left. Only a sample of the tokens is looked at, spread evenly over all.
 */
#ifndef LB_BISECT_TOKEN_WORDS_H
#define LB_BISECT_TOKEN_WORDS_H

#include "parity/token_k3.h"

/* Words whose log-probability both sides tell at one token. -INFINITY: cut off, a side gives it no probability. */
typedef struct lb_token_words {
    double *x, *y; /* log p, log q */
    uint32_t n;
    bool whole;        /* all words of both sides' vocabularies, in order of their numbers */
    uint32_t width[2]; /* of the rows; 0: a side lists alternatives */
    double best[2];    /* log-probability of a side's most probable word; NaN: not told */
    double own[2];     /* what a side's own words say of the token that stands there; NaN: nothing */
} lb_token_words;

typedef struct lb_token_sample {
    const lb_token_scores *scores;
    uint32_t *list, n; /* rows of the scores that are looked at */
    lb_token_words words;
    uint32_t room;   /* of words.x and words.y */
    bool natural[2]; /* a side's lists are natural logarithms, although its numbers are written in another way */
    bool failed;
} lb_token_sample;

bool lb_token_sample_init(lb_token_sample *sample, const lb_token_scores *scores);
void lb_token_sample_release(lb_token_sample *sample);
/* Fills sample->words with what is said at the token list[i]. False: a side says nothing there, or memory ran out
 * (sample->failed). */
bool lb_token_sample_words(lb_token_sample *sample, uint32_t i);

/* The row of a side that speaks of the token list[i], `ahead` rows further on, as log-probabilities; NULL: there is
 * none. The caller owns it. */
double *lb_token_sample_row(lb_token_sample *sample, uint32_t i, bool second, int ahead, uint32_t *width);
/* Number of the token that stands `ahead` behind list[i] on A's side; -1: not told. */
int64_t lb_token_sample_id(const lb_token_sample *sample, uint32_t i, int ahead);

#endif
