/* See step_list.h. */
#include "step_list.h"

#include <stdlib.h>

const step *step_list_find(const step_list *in, int32_t rank, int64_t number)
{
    for (int i = 0; i < in->n; i++)
        if (in->list[i].rank == rank && in->list[i].number == number) return &in->list[i];
    return NULL;
}

void step_list_add(step_list *to, const step *one)
{
    if (to->n == MOST_STEPS) abort();
    to->list[to->n++] = *one;
}

static bool holds_its_bytes(lb_capture *capture, const lb_program *p, const char **wrong)
{
    bool whole = true;
    for (uint32_t v = 0; v < p->n_values; v++) {
        const void *bytes;
        size_t size;
        if (!(p->values[v].flags & LB_VALUE_KEPT) || lb_digest_is_none(p->values[v].blob)) continue;
        if (lb_capture_blob(capture, p->rank, p->values[v].blob, &bytes, &size, NULL) == LB_OK) {
            if (!lb_digest_equal(lb_digest_bytes(bytes, size), p->values[v].blob)) *wrong = "wrong bytes";
        } else {
            lb_tensor tensor;
            whole = lb_capture_value(capture, p, v, &tensor, NULL) == LB_OK && whole;
        }
    }
    return whole;
}

static lb_digest values_of(const lb_program *p)
{
    lb_digest *all = calloc(p->n_values + 1, sizeof *all);
    if (!all) abort();
    for (uint32_t v = 0; v < p->n_values; v++) all[v] = p->values[v].logical;
    const lb_digest digest = lb_digest_bytes(all, p->n_values * sizeof *all);
    free(all);
    return digest;
}

bool step_list_read(const char *path, step_list *to, const char **wrong)
{
    lb_capture *capture;
    const int32_t *ranks;
    const int64_t *numbers;
    if (lb_capture_open(path, &capture, NULL) != LB_OK) return false;
    const uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n = lb_capture_steps(capture, &numbers);
    for (uint32_t r = 0; r < n_ranks; r++)
        for (uint32_t i = 0; i < n; i++) {
            const lb_program *p;
            void *bytes = NULL;
            size_t size = 0;
            if (step_list_find(to, ranks[r], numbers[i])) continue;
            if (lb_capture_program(capture, ranks[r], numbers[i], &p, NULL) != LB_OK) continue;
            if (lb_program_encode(p, &bytes, &size, NULL) != LB_OK) *wrong = "a program that cannot be encoded";
            step_list_add(to, &(step){ranks[r], numbers[i], lb_digest_bytes(bytes, size), values_of(p),
                                      holds_its_bytes(capture, p, wrong)});
            free(bytes);
        }
    lb_capture_close(capture);
    return true;
}
