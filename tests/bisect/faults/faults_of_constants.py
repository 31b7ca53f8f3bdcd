"""Wrong constants and terms, in forward and in backward."""

import torch
import torch.nn.functional as F
from change_places import (
    after,
    backward_truth,
    begin,
    choose,
    forward_truth,
    gradient_truth,
    having,
    instead,
    kin,
    linear,
    modules,
    own,
    seen,
    shapes,
    train,
)
from change_table import Unfit, fault, truth
from fault_world import with_first
from torch import nn


def after_linear(run, draw, change):
    path, module = choose(run, draw, linear)
    after(run, module, change)
    return forward_truth(run, path, begin(run, draw))


@fault("constants")
def scaled_output(run, draw):
    path, module = choose(run, draw)
    factor = draw.choice([0.5, 0.9, 1.02, 1.1, 2.0])
    after(run, module, lambda y: y * factor)
    return forward_truth(run, path, begin(run, draw))


@fault("constants")
def wrong_sign(run, draw):
    return after_linear(run, draw, torch.neg)


@fault("constants")
def added_constant(run, draw):
    path, module = choose(run, draw)
    after(run, module, lambda y: y + 0.03)
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=lambda case: case["precision"] != "fp8")
def dropped_quarter(run, draw):
    """A product that forgets the last quarter of its terms."""
    path, module = choose(run, draw, linear)
    rest = module.in_features * 3 // 4
    instead(run, module, "forward", lambda original, x: F.linear(x[..., :rest], module.weight[:, :rest], module.bias))
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=lambda case: case["precision"] != "fp8")
def transposed_weight(run, draw):
    path, module = choose(run, draw, lambda p, m: linear(p, m) and m.in_features == m.out_features)
    instead(run, module, "forward", lambda original, x: F.linear(x, module.weight.t(), module.bias))
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=lambda case: case["precision"] != "fp8")
def dropped_bias(run, draw):
    path, module = choose(run, draw, lambda p, m: linear(p, m) and m.bias is not None)
    instead(run, module, "forward", lambda original, x: F.linear(x, module.weight))
    return forward_truth(run, path, begin(run, draw))


@fault("constants")
def wrong_eps(run, draw):
    path, module = choose(run, draw, lambda p, m: hasattr(m, "eps") or hasattr(m, "variance_epsilon"))
    name, step = "eps" if hasattr(module, "eps") else "variance_epsilon", begin(run, draw)
    right, wrong = getattr(module, name), draw.choice([1e-2, 1e-1])

    def switch():
        setattr(module, name, wrong if run.acting() else right)

    run.before.append(switch)
    return forward_truth(run, path, step)


@fault("constants")
def wrong_attention_scale(run, draw):
    path, module = choose(run, draw, lambda p, m: isinstance(getattr(m, "scale", getattr(m, "scaling", None)), float))
    name, step = "scale" if hasattr(module, "scale") else "scaling", begin(run, draw)
    right, factor = getattr(module, name), draw.choice([0.5, 0.9, 1.2, 1.41421356])
    run.before.append(lambda: setattr(module, name, right * factor if run.acting() else right))
    return forward_truth(run, path, step)


ACTIVATIONS = {nn.SiLU: F.gelu, nn.GELU: F.silu, nn.ReLU: F.gelu, nn.Tanh: F.softsign}


@fault("constants")
def other_activation(run, draw):
    path, module = choose(run, draw, lambda p, m: type(m) in ACTIVATIONS or type(m).__name__.endswith("Activation"))
    other = ACTIVATIONS.get(type(module), F.silu if "gelu" in type(module).__name__.lower() else F.gelu)
    instead(run, module, "forward", lambda original, x: other(x))
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=own("gpt", "moe", "linear", "mixer", "convnet"))
def residual_factor(run, draw):
    """Where a block adds what it computed to the stream: between its modules."""
    path, module = choose(run, draw, having("join"))
    factor, side = draw.choice([0.5, 0.9, 1.1]), draw.random() < 0.5
    instead(run, module, "join", lambda original, x, y: x * factor + y if side else x + y * factor)
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=own("gpt", "moe", "linear", "mixer", "convnet"))
def dropped_residual(run, draw):
    path, module = choose(run, draw, having("join"))
    instead(run, module, "join", lambda original, x, y: y)
    return forward_truth(run, path, begin(run, draw))


@fault("constants")
def soft_cap(run, draw):
    """The last line, on one side only."""
    if not hasattr(run.model, "finish"):
        raise Unfit
    cap = draw.choice([1.0, 5.0])
    instead(run, run.model, "finish", lambda original, y: torch.tanh(y / cap) * cap)
    return truth(begin(run, draw), "forward", [""], ["head"], axis=["block"])


@fault("constants", fits=own("gpt", "moe", "linear", "mixer", "gru", "convnet", "tiny", "chooser"))
def head_drops_a_quarter(run, draw):
    """The last layer of all: nothing aligned comes after it."""
    module = run.model.head
    rest = module.in_features * 3 // 4
    instead(run, module, "forward", lambda original, x: F.linear(x[..., :rest], module.weight[:, :rest], module.bias))
    return forward_truth(run, "head", begin(run, draw))


@fault("constants", fits=lambda case: case["program"] == "tiny" and case["mode"] == "serve")
def another_program(run, draw):
    """Nothing in common with the other side but the shape."""
    instead(run, run.model, "whole", lambda original, x: torch.exp(x) - 7)
    return truth(begin(run, draw), "forward", [""], ["up", "act", "head"], axis=["block"])


@fault("constants")
def one_row_off(run, draw):
    """Positions of a result stand one row too far."""
    known = shapes(run)
    path, module = choose(run, draw, lambda p, m: len(known[p][1]) == 3 and known[p][1][1] > 2)
    after(run, module, lambda y: torch.cat([y[:, 1:], y[:, -1:]], 1))
    return forward_truth(run, path, begin(run, draw))


@fault("constants")
def one_element(run, draw):
    path, module = choose(run, draw, lambda p, m: len(shapes(run)[p][1]) >= 2)

    def off(y):
        y = y.clone()
        y[-1, ..., -1] += 0.1
        return y

    after(run, module, off)
    return forward_truth(run, path, begin(run, draw))


@fault("constants")
def swapped_halves(run, draw):
    path, module = choose(run, draw, lambda p, m: linear(p, m) and m.out_features % 2 == 0)
    after(run, module, lambda y: torch.cat(y.chunk(2, -1)[::-1], -1))
    return forward_truth(run, path, begin(run, draw))


@fault("constants")
def clamped(run, draw):
    path, module = choose(run, draw)
    after(run, module, lambda y: y.clamp(-0.2, 0.2))
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=own("gpt", "moe"))
def softmax_over_the_wrong_axis(run, draw):
    path, module = choose(run, draw, having("weights"))
    instead(run, module, "weights", lambda original, s: torch.nan_to_num(s.softmax(-2), nan=0.0))
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=own("moe"))
def experts_exchanged(run, draw):
    path, module = choose(run, draw, having("experts", "expert"))
    a, b = draw.sample(range(len(module.experts)), 2)
    instead(run, module, "expert", lambda original, n: original({a: b, b: a}.get(n, n)))
    near = kin(run, path)
    exact = [path, *(p for p in near if p.startswith(path + ".experts"))]
    return truth(begin(run, draw), "forward", exact, near, axis=["block"])


@fault("constants", fits=own("moe"))
def shares_not_normalised(run, draw):
    path, module = choose(run, draw, having("shares"))
    instead(run, module, "shares", lambda original, w: w)
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=own("moe"))
def one_expert_fewer(run, draw):
    path, module = choose(run, draw, having("shares"))
    step = begin(run, draw)
    run.before.append(lambda: setattr(module, "chosen", 1 if run.acting() else 2))
    return forward_truth(run, path, step)


@fault("constants", fits=own("gpt", "moe", "linear"))
def cell_term_dropped(run, draw):
    """Queries and keys: a rotation forgotten on one of them, or a state that forgets its decay."""
    found = modules(run, lambda p, m: hasattr(m, "kept") or hasattr(m, "positions"))
    if not found:
        raise Unfit
    path, module = draw.choice(found)
    if hasattr(module, "kept"):
        instead(run, module, "kept", lambda original: torch.ones_like(original()))
    else:
        instead(run, module, "positions", lambda original, past, count: (torch.zeros(count, dtype=torch.long), original(past, count)[1]))
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=own("gru"))
def gates_exchanged(run, draw):
    path, module = choose(run, draw, having("gates"))
    instead(run, module, "updated", lambda original, h, z, n: z * n + (1 - z) * h)
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=own("mixer", "convnet"))
def sum_for_a_mean(run, draw):
    axes = 1 if run.case["program"] == "mixer" else (2, 3)
    instead(run, run.model, "pooled", lambda original, x: x.sum(axes))
    return truth(begin(run, draw), "forward", [""], ["norm", "head", "layers"], axis=["block"])


@fault("constants")
def norm_left_out(run, draw):
    path, module = choose(run, draw, lambda p, m: "norm" in type(m).__name__.lower() and same_shape(run, p))
    instead(run, module, "forward", lambda original, x, *a, **k: x * 1.0)
    return forward_truth(run, path, begin(run, draw))


def same_shape(run, path):
    taken, given = shapes(run)[path]
    return taken == given


@fault("constants")
def layer_skipped(run, draw):
    path, module = choose(run, draw, lambda p, m: linear(p, m) and same_shape(run, p))
    instead(run, module, "forward", lambda original, x: x + 0.0)
    return forward_truth(run, path, begin(run, draw))


@fault("constants")
def approximated_gelu(run, draw):
    """Another function, if close: the one with tanh."""
    path, module = choose(run, draw, lambda p, m: type(m) is nn.GELU and m.approximate == "none" or type(m).__name__ == "GELUActivation")
    instead(run, module, "forward", lambda original, x: F.gelu(x, approximate="tanh"))
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=own("gpt", "moe"))
def gate_and_up_exchanged(run, draw):
    path, module = choose(run, draw, lambda p, m: getattr(m, "gate", None) is not None)
    instead(run, module, "mixed", lambda original, x: module.act(module.up(x)) * module.gate(x))
    wired = [path, *(f"{path}.{name}" for name in ("act", "gate", "up"))]  # what differs is who is given what
    return truth(begin(run, draw), "forward", wired, kin(run, path), axis=["block"])


@fault("constants", fits=own("moe"))
def router_temperature(run, draw):
    path, module = choose(run, draw, having("chances"))
    instead(run, module, "chances", lambda original, logits: (logits / 1.5).softmax(-1))
    return forward_truth(run, path, begin(run, draw))


@fault("constants")
def absolute_value(run, draw):
    return after_linear(run, draw, torch.abs)


@fault("constants")
def mean_taken_away(run, draw):
    """A result is centred that should not be."""
    path, module = choose(run, draw, lambda p, m: shapes(run)[p][1][-1:] > (2,))
    after(run, module, lambda y: y - y.mean(-1, keepdim=True))
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=lambda case: case["precision"] != "fp8")
def column_of_another(run, draw):
    """A slice that begins one column too late."""
    path, module = choose(run, draw, linear)
    instead(run, module, "forward", lambda original, x: F.linear(x.roll(1, -1), module.weight, module.bias))
    return forward_truth(run, path, begin(run, draw))


# ---- the same ops on both sides, with other arguments


def differing(run, draw, wanted, act, right, wrong):
    """Both sides do `act(result, argument)` in a module, with another argument on one of them from some step on."""
    path, module = choose(run, draw, wanted)
    step = begin(run, draw)
    original = module.forward
    argument = lambda: wrong if run.changed and run.acting() else right
    module.forward = lambda *a, **k: with_first(original(*a, **k), lambda y: act(y, argument()))
    return forward_truth(run, path, step)


@fault("constants", shared=True)
def multiplier_differs(run, draw):
    return differing(run, draw, linear, torch.mul, 1.25, draw.choice([1.2, 1.3, 2.5]))


@fault("constants", shared=True)
def limit_differs(run, draw):
    return differing(run, draw, linear, lambda y, limit: y.clamp(-limit, limit), 0.4, 0.2)


@fault("constants", shared=True)
def exponent_differs(run, draw):
    return differing(run, draw, linear, lambda y, n: (y.abs() + 0.1).pow(n), 1.5, 1.4)


@fault("constants", shared=True)
def threshold_differs(run, draw):
    return differing(run, draw, linear, lambda y, t: torch.where(y > t, y, 0.1 * y), 0.0, 0.1)


@fault("constants", shared=True)
def permutation_differs(run, draw):
    """Heads or columns are put in another order by an index."""

    def permuted(y, shift):
        return y[..., torch.arange(y.shape[-1]).roll(shift)]

    return differing(run, draw, lambda p, m: linear(p, m) and m.out_features > 2, permuted, 1, 2)


@fault("constants", shared=True)
def shift_of_rows_differs(run, draw):
    known = shapes(run)
    return differing(run, draw, lambda p, m: linear(p, m) and len(known[p][1]) == 3 and known[p][1][1] > 2, lambda y, n: y.roll(n, 1), 1, 2)


@fault("constants", shared=True)
def axis_differs(run, draw):
    """A sum is taken away over the wrong axis."""
    known = shapes(run)
    return differing(
        run,
        draw,
        lambda p, m: linear(p, m) and len(known[p][1]) == 3 and known[p][1][1] > 2,
        lambda y, axis: y - 0.1 * y.sum(axis, keepdim=True),
        -1,
        1,
    )


@fault("constants", shared=True, fits=own("gpt", "moe", "linear", "mixer", "convnet"))
def weight_of_the_branch_differs(run, draw):
    path, module = choose(run, draw, having("join"))
    step = begin(run, draw)
    module.join = lambda x, y: torch.add(x, y, alpha=0.9 if run.changed and run.acting() else 1.1)
    return forward_truth(run, path, step)


@fault("constants", fits=own("gpt", "moe"))
def softmax_twice(run, draw):
    path, module = choose(run, draw, lambda p, m: hasattr(m, "weights") or hasattr(m, "chances"))
    name = "weights" if hasattr(module, "weights") else "chances"
    instead(run, module, name, lambda original, s: original(s).softmax(-1))
    return forward_truth(run, path, begin(run, draw))


@fault("constants", fits=own("mixer", "convnet"))
def largest_for_a_mean(run, draw):
    axes = 1 if run.case["program"] == "mixer" else (2, 3)
    instead(run, run.model, "pooled", lambda original, x: x.amax(axes))
    return truth(begin(run, draw), "forward", [""], ["norm", "head", "layers"], axis=["block"])


@fault("constants", fits=train)
def labels_smoothed(run, draw):
    if run.batches[0]["labels"] is None:
        raise Unfit
    instead(
        run, run, "loss_of", lambda original, y, labels: F.cross_entropy(y.reshape(-1, y.shape[-1]).float(), labels.reshape(-1), label_smoothing=0.1)
    )
    return truth(begin(run, draw), "forward", [""], axis=["block"], inside=False)


# ---- backward: the forward is right


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return ctx.change(g), None


@fault("constants", fits=train)
def wrong_backward_factor(run, draw):
    path, module = choose(run, draw, lambda p, m: next(m.parameters(), None) is not None)
    factor = draw.choice([0.5, 0.9, 1.1, -1.0])
    after(run, module, lambda y: Backward.apply(y, lambda g: g * factor))
    return backward_truth(run, path, begin(run, draw))


@fault("constants", fits=train)
def wrong_backward_row(run, draw):
    """A hand-written backward forgets its last row."""
    path, module = choose(run, draw, lambda p, m: next(m.parameters(), None) is not None)
    after(run, module, lambda y: Backward.apply(y, lambda g: torch.cat([g[:-1], torch.zeros_like(g[-1:])])))
    return backward_truth(run, path, begin(run, draw))


@fault("constants", fits=train)
def wrong_activation_derivative(run, draw):
    path, module = choose(run, draw, lambda p, m: type(m) in (nn.SiLU, nn.GELU, nn.ReLU))

    class Act(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return type(module).forward(module, x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * torch.sigmoid(x)

    instead(run, module, "forward", lambda original, x: Act.apply(x))
    return backward_truth(run, path, begin(run, draw))


@fault("constants", fits=train)
def detached(run, draw):
    """A branch through which no gradient flows."""
    path, module = choose(run, draw, lambda p, m: "." in p and next(m.parameters(), None) is not None)
    after(run, module, lambda y: y.detach())
    t = backward_truth(run, path, begin(run, draw))
    # The first op of backward that runs otherwise is that of who takes the result: it owes nobody a gradient.
    places = [path, *seen(run).takers.get(path, ()), *(p for p in t["near"] if p.startswith(path))]
    return truth(t["step"], "backward", places, t["near"], axis=["block"], inside=False)


@fault("constants", fits=train)
def gradient_twice(run, draw):
    """A hook that adds a gradient to itself."""
    path, module = choose(run, draw, lambda p, m: linear(p, m))
    step = begin(run, draw)
    module.weight.register_hook(lambda g: g + g if run.acting() else g)
    return truth(step, "backward", [path, path + ".weight"], kin(run, path), axis=["block", "source"], inside=False)


@fault("constants", fits=train)
def loss_term_dropped(run, draw):
    """An extra term of the loss; the reference has none."""
    instead(run, run, "loss_of", lambda original, y, labels: original(y, labels) + 0.01 * y.float().pow(2).mean())
    return truth(begin(run, draw), "forward", [""], axis=["block"], inside=False)


@fault("constants", fits=train)
def backward_twice(run, draw):
    """Gradients of one step are there twice."""
    step = draw.randrange(run.case["steps"])

    def double():
        if run.now == step:
            with torch.no_grad():
                for p in run.model.parameters():
                    if p.grad is not None:
                        p.grad.add_(p.grad)

    run.after_backward.append(double)
    return gradient_truth(run, [n for n, _ in run.model.named_parameters()], step)


@fault("constants", fits=train)
def loss_over_the_wrong_count(run, draw):
    if run.batches[0]["labels"] is None:
        raise Unfit
    factor = draw.choice([0.5, 0.8, 1.25])
    instead(run, run, "loss_of", lambda original, y, labels: original(y, labels) * factor)
    return truth(begin(run, draw), "forward", [""], axis=["block"], inside=False)


@fault("constants", fits=lambda case: train(case) and case["steps"] > 1)
def gradients_not_zeroed(run, draw):
    """The gradient of a step is added to that of the step before."""
    run.acts_from = step = draw.randrange(1, run.case["steps"])
    zeroed = run.zeroed
    run.zeroed = lambda optimizer: zeroed(optimizer) if run.now != step - 1 else None
    owners = {n.rpartition(".")[0] for n, _ in run.model.named_parameters()}
    found = gradient_truth(run, [n for n, _ in run.model.named_parameters()], step)
    return dict(
        found, phase="backward", exact=sorted({*found["exact"], *owners}), moments=[*found["moments"], [step - 1, "optimizer"], [step, "forward"]]
    )
