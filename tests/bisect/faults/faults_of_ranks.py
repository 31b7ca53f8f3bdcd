"""Wrong ranks, shards and collectives."""

import torch
import torch.distributed as dist
from change_places import after, begin, choose, linear, prepared_at, ranked, shapes
from change_table import fault, truth


def rank_truth(run, path, step, ranks, phase="backward", axis=("rank",), exact=()):
    owner = path.rpartition(".")[0]
    return truth(
        step,
        phase,
        {path, owner, *exact, *([] if phase == "forward" else [""])},
        axis=axis,
        inside=False,
        ranks=ranks,
        moments=[*((step, p) for p in ("forward", "backward", "communication", "other", "optimizer")), *prepared_at(step)],
    )


def some_weight(run, draw):
    return draw.choice([n for n, p in run.model.named_parameters() if p.ndim == 2])


@fault("ranks", fits=ranked)
def contribution_of_a_rank_scaled(run, draw):
    """One rank brings twice its gradient of one parameter to the sum."""
    rank, name, step = draw.randrange(2), some_weight(run, draw), begin(run, draw)

    def double():
        if run.acting() and run.rank == rank:
            with torch.no_grad():
                run.model.get_parameter(name).grad.mul_(2)

    run.before_reduction.append(double)
    return rank_truth(run, name, step, [rank])


@fault("ranks", fits=ranked)
def shard_of_another_rank(run, draw):
    """A rank reads the rows of its neighbour."""
    rank, step = draw.randrange(2), draw.randrange(run.case["steps"])
    run.shards = lambda number: 1 - rank if run.rank == rank and number == step else run.rank
    run.take_shards()
    return rank_truth(run, "", step, [rank], "forward", axis=("rank", "source"), exact=["input:*", next(iter(shapes(run))), "emb"])


@fault("ranks", fits=ranked)
def reduction_left_out(run, draw):
    """One parameter's gradients are not summed over the ranks."""
    name, step = some_weight(run, draw), begin(run, draw)
    reduced = run.reduced
    run.reduced = lambda n, p: None if run.acting() and n == name else reduced(n, p)
    return rank_truth(run, name, step, [0, 1], axis=("rank", "block", "source"))


@fault("ranks", fits=ranked)
def sum_for_an_average(run, draw):
    step = begin(run, draw)
    reduced = run.reduced

    def summed(n, p):
        if not run.acting():
            return reduced(n, p)
        dist.all_reduce(p.grad)

    run.reduced = summed
    names = [n for n, _ in run.model.named_parameters()]
    return rank_truth(run, names[0], step, [0, 1], axis=("rank", "block", "source"), exact=[*names, *(n.rpartition(".")[0] for n in names)])


@fault("ranks", fits=ranked)
def largest_for_a_sum(run, draw):
    name, step = some_weight(run, draw), begin(run, draw)
    reduced = run.reduced

    def largest(n, p):
        if n != name or not run.acting():
            return reduced(n, p)
        dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)
        p.grad.div_(2)

    run.reduced = largest
    return rank_truth(run, name, step, [0, 1], axis=("rank", "block", "source"))


@fault("ranks", fits=ranked)
def weights_of_a_rank_differ(run, draw):
    """A rank that was not given the first rank's weights."""
    rank, name = draw.randrange(2), some_weight(run, draw)
    if run.rank == rank:
        with torch.no_grad():
            run.model.get_parameter(name).mul_(1.1)
    return rank_truth(run, name, 0, [rank], "forward", axis=("rank", "source"))


@fault("ranks", fits=ranked)
def layer_wrong_on_one_rank(run, draw):
    rank, (path, module), step = draw.randrange(2), choose(run, draw, linear), begin(run, draw)
    if run.rank == rank:
        after(run, module, lambda y: y * 1.05)
    return dict(rank_truth(run, path + ".", step, [rank], "forward", axis=("rank", "block")), exact=[path])
