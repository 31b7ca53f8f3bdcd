/* Masks as squares: see token_squares.h. */
#include "tokens/token_squares.h"

#include <string.h>

bool lb_token_squares_shape(const lb_layout *layout, int64_t rows, int64_t columns)
{
    int64_t shape[3] = {1, 1, 1};
    int n = 3;
    for (int d = layout->ndim - 1; d >= 0; d--) {
        if (layout->shape[d] == 1) continue;
        if (n == 0) return false;
        shape[--n] = layout->shape[d];
    }
    return columns > 2 && shape[2] == columns && shape[1] == columns && (shape[0] == 1 || shape[0] == rows);
}

/* Two numbers; the one that hides is what tokens do not have for themselves, or what a softmax makes nothing of. */
static bool find_hiding(const lb_token_squares *squares, double *hides)
{
    const int64_t n = squares->columns * squares->columns;
    int64_t others = 0, own = 0;
    double other = 0;
    for (int64_t i = 0; i < squares->n * n; i++) {
        const double x = squares->numbers[i];
        if (x != 0 && !others++) other = x;
        if (x != 0 && x != other) return false;
        own += i % n % (squares->columns + 1) == 0 && x == 0;
    }
    if (!others || others == squares->n * n || !(other == 1 || other <= -1e3)) return false;
    *hides = other;
    if (other == 1 && 2 * own < squares->n * squares->columns) *hides = 0;
    return true;
}

typedef struct square {
    const double *numbers;
    int64_t columns;
    double hides;
} square;

static bool sees(const square *q, int64_t i, int64_t j)
{
    return q->numbers[i * q->columns + j] != q->hides;
}

/* A document begins with a token that sees none before it. */
static bool read_documents(const square *q, int32_t *document)
{
    int32_t now = -1;
    for (int64_t i = 0; i < q->columns; i++) {
        bool any = false;
        for (int64_t j = 0; j < i; j++) any |= sees(q, i, j);
        document[i] = any ? now : ++now;
        for (int64_t j = 0; j <= i; j++)
            if (sees(q, i, j) != (document[j] == document[i])) return false;
    }
    return true;
}

/* Nothing but what is hidden is hidden from those that are not. */
static bool is_padding(const square *q, const uint8_t *hidden)
{
    for (int64_t i = 0; i < q->columns; i++)
        for (int64_t j = 0; j <= i && !hidden[i]; j++)
            if (sees(q, i, j) == hidden[j]) return false;
    return true;
}

/* On the left: the last token says it. On the right: tokens that do not see themselves. */
static bool read_padding(const square *q, uint8_t *hidden)
{
    for (int64_t j = 0; j < q->columns; j++) hidden[j] = !sees(q, q->columns - 1, j);
    if (is_padding(q, hidden)) return true;
    for (int64_t j = 0; j < q->columns; j++) hidden[j] = !sees(q, j, j);
    return is_padding(q, hidden);
}

static bool are_alike(const int64_t *tokens, const uint8_t *hidden, int64_t n)
{
    int64_t first = -1;
    for (int64_t i = 0; i < n; i++) {
        if (hidden[i] && first < 0) first = i;
        if (hidden[i] && tokens[i] != tokens[first]) return false;
    }
    return true;
}

lb_square_kind lb_token_squares_read(const lb_token_squares *squares, int64_t rows, const int64_t *tokens,
                                     uint8_t *hidden, int32_t *document)
{
    square q = {.columns = squares->columns};
    bool padding = true, documents = true, any = false, many = false;
    if (!find_hiding(squares, &q.hides)) return LB_SQUARE_NONE;
    for (int64_t row = 0; row < rows && (padding || documents); row++) {
        q.numbers = squares->numbers + (squares->n > 1 ? row : 0) * squares->columns * squares->columns;
        padding = padding && read_padding(&q, hidden + row * squares->columns);
        documents = documents && read_documents(&q, document + row * squares->columns);
        any |= padding && memchr(hidden + row * squares->columns, 1, (size_t)squares->columns) != NULL;
        many |= documents && document[(row + 1) * squares->columns - 1] > 0;
    }
    documents = documents && many, padding = padding && any;
    if (padding && (!documents || are_alike(tokens, hidden, rows * squares->columns))) return LB_SQUARE_PADDING;
    return documents ? LB_SQUARE_DOCUMENTS : LB_SQUARE_NONE;
}
