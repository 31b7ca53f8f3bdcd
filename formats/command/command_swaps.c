/* Options that swap a part of a replay (lastbit/replay.h): their table, and what was given; see command_line.h. */
#include "command/command_line.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

static const struct swap_option {
    const char *name, *text, *argument;
} SWAPS[LB_SWAP_KINDS] = {
    [LB_SWAP_PRECISION] =
        {"precision",
         "hold and compute in f64, f32, bf16, f16, e4m3, e5m2 inside the selected region, rounding at its border; "
         "tf32, tf32:rz, tf32:rne: round what matrix products read; types each by itself and recipes of quantisation: "
         "below",
         "SEL=PRECISION"},
    [LB_SWAP_ACCUMULATE] = {"accumulate", "round every addition inside sums and products to bf16, f16, ...",
                            "SEL=DTYPE"},
    [LB_SWAP_KERNEL] = {"kernel",
                        "use a named kernel for matrix products: openblas (its bits vary from machine to machine), "
                        "tensorcore:ARCH with v100, a100, ada, h100, h100-fp8 or b200; finite: of any op, "
                        "its own with 0 for what it gives that is NaN or infinite; torch (replay): of any op, "
                        "PyTorch's in a child process",
                        "SEL=NAME"},
    [LB_SWAP_ORDER] =
        {"order",
         "of sums and products: sequential, pairwise, cascade[:LANES], blocked:K, splitk:N, streamk:C, dpbf16[:K], "
         "tdpbf16[:N], torchdot, halved:K, folded:L[,OPTION...], eights, lanes:L, butterfly:THREADS[xV], numpy, "
         "torch[:THREADS], exact, tensorcore:ARCH[:K], tree:FILE; of collectives: gloo, ring[:CHANNELS[:CHUNK]], "
         "mpi_ring, mpich_ring, nbc_ring, pairwise, tree[:G], rank, linear, wide, rotated, halving, binomial, binary, "
         "kary[:K], chain[:F], in_order_binary, nbc_chain, nbc_binomial, doubling, rabenseifner",
         "SEL=ORDER"},
    [LB_SWAP_ROUNDING] = {"rounding",
                          "round results by rne, rz, rna or stochastic:SEED; f32 results are evaluated in f64 before",
                          "SEL=MODE"},
    [LB_SWAP_SKIP] = {"skip",
                      "take modules out of the residual stream; their gradients become 0, their parameters stay",
                      "SEL"},
    [LB_SWAP_MUON] =
        {"muon", "the iteration of Muon in f32, or AdamW in Muon's place (torch's or hand-written, any coefficients)",
         "[SEL=]f32|adamw"},
    [LB_SWAP_UPDATE] =
        {"update",
         "make what optimizers do to the parameters of selected modules 0 to 1 times as large; with index=, "
         "what single ops write in place",
         "[SEL=]FACTOR"},
    [LB_SWAP_ROUTING] = {"routing",
                         "of mixtures of experts, chained: recompute (default), or force the recorded ids, "
                         "ids+weights, ids+weights+slots",
                         "[SEL=]WHAT"},
    [LB_SWAP_RANK] = {"contribution", "let selected ranks contribute zero, mean (of the others) or exclude them",
                      "SEL=WHAT"},
    [LB_SWAP_SOURCE] = {"source", "other bytes for selected sources: own, finite or step:N", "SEL=WHAT"},
    [LB_SWAP_FUSE] = {"fuse",
                      "one kernel for what several ops compute: KIND=KERNEL, KIND=on, KIND=off, or SEL=KIND[:KERNEL]; "
                      "kinds are rms_norm, attention, finalise, ...: `lastbit replay --kernels` lists them",
                      "KIND=KERNEL"},
};

static void on_swap(poptContext context, enum poptCallbackReason reason, const struct poptOption *option,
                    const char *argument, const void *data)
{
    (void)context, (void)reason;
    lb_command_swaps *list = (lb_command_swaps *)data;
    for (int kind = 0; kind < LB_SWAP_KINDS && argument && option->longName; kind++) {
        if (strcmp(option->longName, SWAPS[kind].name)) continue;
        lb_swap *grown = lb_array_grow(list->rows, list->n, sizeof *grown);
        if (!grown) {
            lb_fail(&list->err, LB_ERR_NOMEM, "out of memory");
            return;
        }
        list->rows = grown;
        if (lb_swap_parse((lb_swap_kind)kind, argument, &list->rows[list->n], &list->err) == LB_OK) list->n++;
    }
}

const struct poptOption *lb_command_swaps_table(lb_command_swaps *list)
{
    *list = (lb_command_swaps){.err = LB_ERR_INIT};
    /* popt hands repeated options over one by one, to the callback that stands first, with its description as data. */
    list->table[0] = (struct poptOption){NULL, '\0', POPT_ARG_CALLBACK, (void *)on_swap, 0, (const char *)list, NULL};
    for (int i = 0; i < LB_SWAP_KINDS; i++)
        list->table[i + 1] =
            (struct poptOption){SWAPS[i].name, '\0', POPT_ARG_STRING, NULL, 0, SWAPS[i].text, SWAPS[i].argument};
    return list->table;
}

const char *lb_command_swap_option(lb_swap_kind kind)
{
    return SWAPS[kind].name;
}

void lb_command_swaps_release(lb_command_swaps *list)
{
    for (uint32_t i = 0; i < list->n; i++) lb_swap_release(&list->rows[i]);
    free(list->rows);
    list->rows = NULL, list->n = 0;
}
