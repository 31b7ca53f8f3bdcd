"""Kinds of faults, in five families. Each takes a run, chooses where it acts, plants itself there and says what is true of it.

A fault that acts from a later step on leaves everything before that step as it was."""
import torch
import torch.nn.functional as F
from torch import nn

from change_table import Unfit, fault, truth
from fault_world import first_float, with_first

train = lambda case: case["mode"] == "train"
own = lambda *names: lambda case: case["program"] in names
trained = lambda *names: lambda case: case["mode"] == "train" and case["program"] in names
wide = lambda case: case["precision"] in ("fp32", "autocast", "fp16-scaler")


def both(*tests):
    return lambda case: all(test(case) for test in tests)


# ---- where a fault takes hold


KNOWN = {}  # what was seen of a case: a run that is recorded must run nothing else


def seen(run):
    """The trace of the case without changes."""
    key = str(sorted((name, value) for name, value in run.case.items() if name != "changes"))
    if key not in KNOWN:
        from fault_truth import Trace
        from fault_world import Run

        KNOWN[key] = Trace(Run(dict(run.case, steps=1, changes=[])))
    return KNOWN[key]


def shapes(run):
    """Of the modules that run: the shapes of what they take and give."""
    return seen(run).sites


def modules(run, wanted=lambda path, module: True):
    known = shapes(run)
    return [(path, module) for path, module in run.model.named_modules() if path and path in known and wanted(path, module)]


def choose(run, draw, wanted=lambda path, module: True):
    found = modules(run, wanted)
    if not found:
        raise Unfit
    return draw.choice(found)


def having(*attributes):
    return lambda path, module: all(hasattr(module, a) for a in attributes)


def begin(run, draw):
    """The step from which the fault acts."""
    run.acts_from = draw.randrange(run.case["steps"])
    return run.acts_from


def instead(run, module, method, change):
    """`change(original, *args)` in the place of a method, once the fault acts."""
    original = getattr(module, method)
    setattr(module, method, lambda *a, **k: change(original, *a, **k) if run.acting() else original(*a, **k))


def after(run, module, change):
    """The module's first result goes through `change`."""
    instead(run, module, "forward", lambda original, *a, **k: with_first(original(*a, **k), change))


def kin(run, path):
    """The module around a place, its sisters, what it holds, and who takes its result."""
    holder = path.rpartition(".")[0]
    paths = [p for p, _ in run.model.named_modules()]
    return {holder, *seen(run).takers.get(path, ()), *(p for p in paths if p != path and (p.rpartition(".")[0] == holder or p.startswith(path + ".")))}


def forward_truth(run, path, step, **more):
    return truth(step, "forward", [path], kin(run, path), axis=["block"], **more)


def linear(path, module):
    return type(module) is nn.Linear


# ---- 1: constants and terms


@fault("constants")
def scaled_output(run, draw):
    path, module = choose(run, draw)
    factor = draw.choice([0.5, 0.9, 1.02, 1.1, 2.0])
    after(run, module, lambda y: y * factor)
    return forward_truth(run, path, begin(run, draw))


@fault("constants")
def wrong_sign(run, draw):
    path, module = choose(run, draw, linear)
    after(run, module, torch.neg)
    return forward_truth(run, path, begin(run, draw))


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
    path, module = choose(run, draw, linear)
    after(run, module, torch.abs)
    return forward_truth(run, path, begin(run, draw))


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


# ---- 1, backward: the forward is right


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return ctx.change(g), None


def backward_truth(run, path, step, **more):
    return truth(step, "backward", [path], kin(run, path), axis=["block"], inside=False, **more)


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
            x, = ctx.saved_tensors
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
    return dict(found, phase="backward", exact=sorted({*found["exact"], *owners}), moments=[*found["moments"], [step - 1, "optimizer"], [step, "forward"]])


# ---- 2: data, positions, masks, caches, buffers, seeds


@fault("data")
def batch_row(run, draw):
    step, row = draw.randrange(run.case["steps"]), 2
    batch = run.batches[step]
    named = batch.get("named", {})
    inputs = batch["inputs"][0] if batch["inputs"] else next(iter(named.values()))
    changed = inputs.clone()
    changed[row] = changed[row].flip(-1) if len(inputs[row].unique()) > 1 else (changed[row] + 1) % 8
    if batch["inputs"]:
        run.batches[step] = dict(batch, inputs=(changed, *batch["inputs"][1:]))
    else:
        run.batches[step] = dict(batch, named={**named, next(iter(named)): changed})
    first = next(iter(shapes(run)))
    return truth(step, "forward", ["", "input:*", "emb", first], axis=["source"],
                 inside=False)


@fault("data", fits=train)
def labels_shifted(run, draw):
    step = draw.randrange(run.case["steps"])
    labels = run.batches[step]["labels"]
    if labels is None or labels.ndim < 2:
        raise Unfit
    run.batches[step] = dict(run.batches[step], labels=labels.roll(1, -1))
    return truth(step, "forward", ["", "input:*"], axis=["source"], inside=False)


@fault("data")
def batch_of_the_step_before(run, draw):
    if run.case["steps"] < 2 or run.case["mode"] == "serve":
        raise Unfit
    step = draw.randrange(1, run.case["steps"])
    run.batches[step] = run.batches[step - 1]
    return truth(step, "forward", ["", "input:*", "emb", next(iter(shapes(run)))], axis=["source"], inside=False)


@fault("data", fits=train)
def label_of_one_row(run, draw):
    step = draw.randrange(run.case["steps"])
    labels = run.batches[step]["labels"]
    if labels is None:
        raise Unfit
    labels = labels.clone()
    labels[1] = (labels[1] + 1) % 8
    run.batches[step] = dict(run.batches[step], labels=labels)
    return truth(step, "forward", ["", "input:*"], axis=["source"], inside=False)


@fault("data", shared=True, fits=lambda case: case["precision"] != "fp8")
def other_seed(run, draw):
    """Both sides drop a tenth of a result at random; one draws from another seed."""
    path, module = choose(run, draw, linear)
    module.forward = lambda *a, original=module.forward: dropped(original(*a))
    step = begin(run, draw)

    def dropped(y):
        return y * (torch.rand(y.shape) > 0.1).to(y.dtype)

    if run.changed:
        run.before.append(lambda: torch.manual_seed(99) if run.now == step else None)
    return dict(forward_truth(run, path, step), axis=["source"])


@fault("data", shared=True)
def buffer_written(run, draw):
    """A buffer by which both sides multiply is another on one of them."""
    path, module = choose(run, draw, lambda p, m: linear(p, m) and "shift" not in dict(m.named_buffers()))
    module.register_buffer("shift", torch.linspace(0.5, 1.5, module.out_features).to(next(module.parameters()).dtype))
    module.forward = lambda *a, original=module.forward: original(*a) * module.shift
    step = begin(run, draw)
    if run.changed and step == 0:
        module.shift = module.shift.flip(0)
    elif run.changed:
        run.before.append(lambda: module.shift.copy_(module.shift.flip(0)) if run.now == step else None)
    moments = [(step - 1, "optimizer"), (step - 1, "other"), (step - 1, "forward"), (step, "other")]
    return truth(step, "forward", [path, path + ".shift"], {"", *kin(run, path)}, axis=["source"], moments=moments, inside=False)


@fault("data", fits=own("gpt", "moe"))
def positions_of_keys_reversed(run, draw):
    path, module = choose(run, draw, having("positions"))

    def reversed_(original, past, count):
        rows, columns = original(past, count)
        return rows, columns.flip(0) if len(columns) > 1 else columns + 2

    instead(run, module, "positions", reversed_)
    return forward_truth(run, path, begin(run, draw))


@fault("data", fits=own("gpt", "moe"))
def mask_sees_the_future(run, draw):
    path, module = choose(run, draw, having("mask"))
    instead(run, module, "mask", lambda original, r, c: torch.ones(r, c, dtype=torch.bool).triu(2 + c - r))
    return forward_truth(run, path, begin(run, draw))


@fault("data", fits=own("gpt", "moe"))
def mask_hides_a_neighbour(run, draw):
    path, module = choose(run, draw, having("mask"))

    def hiding(original, r, c):
        mask = original(r, c)
        mask[-1, max(0, c - 2)] = True
        return mask

    instead(run, module, "mask", hiding)
    return forward_truth(run, path, begin(run, draw))


@fault("data", fits=own("gpt", "moe"))
def queries_one_position_behind(run, draw):
    path, module = choose(run, draw, having("positions"))

    def behind(original, past, count):
        rows, columns = original(past, count)
        return rows + 1, columns

    instead(run, module, "positions", behind)
    return forward_truth(run, path, begin(run, draw))


@fault("data", fits=lambda case: case["mode"] == "serve" and case["program"] in ("gpt", "moe"))
def stale_cache(run, draw):
    """One key of the past is that of another token."""
    path, module = choose(run, draw, having("cached"))

    def stale(original, cache, k, v):
        k, v = original(cache, k, v)
        return torch.cat([k[:, :, 1:2], k[:, :, 1:]], 2) if k.shape[2] > 1 else k, v

    instead(run, module, "cached", stale)
    return forward_truth(run, path, begin(run, draw))


@fault("data", fits=own("gpt", "moe", "linear", "gru"))
def wrong_token_row(run, draw):
    """An embedding that looks one row too far."""
    module = run.model.emb
    instead(run, module, "forward", lambda original, t: original((t + 1) % module.num_embeddings))
    return forward_truth(run, "emb", begin(run, draw))


@fault("data", early=True)
def other_initial_weights(run, draw):
    names = [n for n, p in run.model.named_parameters() if p.ndim == 2]
    name = draw.choice(names)
    with torch.no_grad():
        run.model.get_parameter(name).mul_(1.25)
    return truth(0, "forward", [name.rpartition(".")[0], name], kin(run, name.rpartition(".")[0]), axis=["source"], inside=False)


def written_truth(run, name, step):
    """A parameter that was written between two steps."""
    path = name.rpartition(".")[0]
    moments = [(step - 1, "optimizer"), (step - 1, "other"), (step, "other")]
    return truth(step, "forward", [path, name], {"", *kin(run, path)}, axis=["source"], inside=False, moments=moments)


@fault("data")
def unseen_write(run, draw):
    """A parameter is written through memory that it shares, by no op of PyTorch."""
    name = draw.choice([n for n, p in run.model.named_parameters() if p.ndim == 2])
    step, p = 0 if run.case["steps"] == 1 else draw.randrange(1, run.case["steps"]), run.model.get_parameter(name)
    run.acts_from = step

    def write():
        import ctypes

        if run.now == step:
            size = p.element_size() * (p.numel() // 2)
            ctypes.memset(p.data_ptr(), 0, size)

    run.before.append(write)
    return written_truth(run, name, step)


@fault("data")
def parameter_overwritten(run, draw):
    """Between two steps, by an op: a stale tensor is loaded back."""
    name = draw.choice([n for n, p in run.model.named_parameters() if p.ndim == 2])
    step, p = 0 if run.case["steps"] == 1 else draw.randrange(1, run.case["steps"]), run.model.get_parameter(name)

    def write():
        if run.now == step:
            with torch.no_grad():
                p.copy_(p.roll(1, 0))

    run.before.append(write)
    return written_truth(run, name, step)


# ---- 3: optimizers


def optimizer_truth(run, names, step, **more):
    """Either the parameters, or the modules that own them."""
    owners = {n.rpartition(".")[0] for n in names}
    states = {"optimizer.%s:%s" % (key, n) for n in names for key in ("exp_avg", "exp_avg_sq", "momentum_buffer", "step")}
    return truth(step, "optimizer", [*names, *owners, *states], [""], axis=more.pop("axis", ["source"]), inside=False, **more)


def gradient_truth(run, names, step):
    """Gradients that were written after the backward."""
    places = {f"{key}:{n}" for n in names for key in ("grad", "gradient")}
    found = optimizer_truth(run, names, step, axis=["source", "block"], moments=[(step, "backward"), (step, "other")])
    return dict(found, exact=[*found["exact"], *places])


def group_of(run, draw):
    optimizer = draw.choice(run.optimizers)
    return optimizer, draw.choice(optimizer.param_groups)


def names_in(run, group):
    wanted = {id(p) for p in group["params"]}
    return [n for n, p in run.model.named_parameters() if id(p) in wanted]


def group_option(run, draw, key, change, first=0, **more):
    """An option of one group has another value from some step on."""
    run.acts_from = step = draw.randrange(first, run.case["steps"])
    made = {}

    def plant():
        made["group"] = group_of(run, draw)[1]
        made["right"] = made["group"].get(key)
        found.update(optimizer_truth(run, names_in(run, made["group"]), step, **more))

    def switch():
        if made["right"] is not None:
            made["group"][key] = change(made["right"]) if run.acting() else made["right"]

    found = {}
    run.ready.append(plant)
    run.before_update.append(switch)
    return found


@fault("optimizer", fits=train)
def learning_rate_of_one_group(run, draw):
    factor = draw.choice([0.1, 0.5, 2.0, 10.0])
    return group_option(run, draw, "lr", lambda lr: lr * factor)


@fault("optimizer", fits=train)
def schedule_off(run, draw):
    return group_option(run, draw, "lr", lambda lr: lr * 0.9)


@fault("optimizer", fits=lambda case: train(case) and case["optimizer"] != "sgd")
def decay_forgotten(run, draw):
    return group_option(run, draw, "weight_decay", lambda w: 0.0 if w else 0.1)


@fault("optimizer", fits=lambda case: train(case) and case["optimizer"] in ("adamw", "adamw-foreach", "adamw-fused", "lion") and case["steps"] > 1)
def wrong_betas(run, draw):
    return group_option(run, draw, "betas", lambda b: (0.8, b[1]))


@fault("optimizer", fits=lambda case: train(case) and case["optimizer"] in ("sgd", "muon") and case["steps"] > 1)
def wrong_momentum(run, draw):
    return group_option(run, draw, "momentum", lambda m: m * 0.5, first=1)


def on_parameter(run, draw, act, first=0, true=None):
    """`act(p, optimizer)` before the update of that step."""
    step = draw.randrange(first, run.case["steps"])
    name = draw.choice([n for n, p in run.model.named_parameters() if p.requires_grad and p.ndim == 2])
    p = run.model.get_parameter(name)

    def now():
        if run.now == step and p.grad is not None:
            with torch.no_grad():
                act(p, next(o for o in run.optimizers if any(p is q for g in o.param_groups for q in g["params"])))

    run.before_update.append(now)
    # It stands between the backward and the optimizer's step.
    return true(run, [name], step) if true else optimizer_truth(run, [name], step, moments=[(step, "other")])


several = lambda case: train(case) and case["steps"] > 1


@fault("optimizer", fits=several)
def state_forgotten(run, draw):
    """A parameter's moments are zero again, as after a resume without its optimizer."""

    def forget(p, optimizer):
        for value in optimizer.state[p].values():
            if isinstance(value, torch.Tensor) and value.shape == p.shape:
                value.zero_()

    return on_parameter(run, draw, forget, first=1)


@fault("optimizer", fits=lambda case: several(case) and case["optimizer"] in ("adamw", "adamw-foreach", "adamw-fused"))
def bias_correction_off(run, draw):
    """The count of steps of one parameter starts anew."""
    return on_parameter(run, draw, lambda p, optimizer: optimizer.state[p]["step"].zero_(), first=1)


@fault("optimizer", fits=several)
def stale_gradient(run, draw):
    """A parameter is stepped with the gradient of the step before."""
    step = draw.randrange(1, run.case["steps"])
    name = draw.choice([n for n, p in run.model.named_parameters() if p.requires_grad and p.ndim == 2])
    p, kept = run.model.get_parameter(name), []

    def exchange():
        if p.grad is None:
            return
        now = p.grad.detach().clone()
        if run.now == step and kept:
            p.grad.copy_(kept[-1])
        kept.append(now)

    run.before_update.append(exchange)
    return gradient_truth(run, [name], step)


@fault("optimizer", fits=train)
def parameter_not_stepped(run, draw):
    """A frozen parameter that should learn."""
    step = draw.randrange(run.case["steps"])
    name = draw.choice([n for n, p in run.model.named_parameters() if p.requires_grad])
    p = run.model.get_parameter(name)

    def lose():
        if run.now == step:
            p.grad = None

    run.before_update.append(lose)
    return optimizer_truth(run, [name], step)


@fault("optimizer", fits=train, early=True)
def not_clipped(run, draw):
    run.options["clip"] = None
    return optimizer_truth(run, [n for n, _ in run.model.named_parameters()], 0, axis=["source", "block"])


@fault("optimizer", fits=train)
def gradient_scaled(run, draw):
    """An average over the wrong number of micro-batches, for one parameter."""
    return on_parameter(run, draw, lambda p, optimizer: p.grad.mul_(0.5), true=gradient_truth)


@fault("optimizer", fits=train, early=True)
def clipped_at_another_norm(run, draw):
    run.options["clip"] = draw.choice([0.1, 0.3])
    return optimizer_truth(run, [n for n, _ in run.model.named_parameters()], 0, axis=["source", "block"])


@fault("optimizer", fits=lambda case: train(case) and case["optimizer"] in ("adamw", "adamw-foreach", "adamw-fused"))
def wrong_epsilon(run, draw):
    return group_option(run, draw, "eps", lambda eps: 1e-2)


@fault("optimizer", fits=lambda case: train(case) and case["optimizer"] == "sgd")
def nesterov(run, draw):
    return group_option(run, draw, "nesterov", lambda n: True, first=0)


@fault("optimizer", fits=several)
def stepped_twice(run, draw):
    """An optimizer's step is called twice in one iteration."""
    step = draw.randrange(run.case["steps"])
    stepped = run.stepped
    if run.case["precision"] == "fp16-scaler":
        raise Unfit

    def twice(optimizer):
        stepped(optimizer)
        if run.now == step:
            stepped(optimizer)

    run.stepped = twice
    return optimizer_truth(run, [n for n, _ in run.model.named_parameters()], step, axis=["source", "block"])


@fault("optimizer", fits=several)
def weight_restored(run, draw):
    """After an update one parameter is what it was before."""
    step = draw.randrange(run.case["steps"] - 1)
    name = draw.choice([n for n, p in run.model.named_parameters() if p.requires_grad and p.ndim == 2])
    p, kept = run.model.get_parameter(name), []

    def restore():
        with torch.no_grad():
            if run.now == step:
                p.copy_(kept[-1])

    run.before_update.append(lambda: kept.append(p.detach().clone()))
    run.after_update.append(restore)
    moments = [(step, "other"), (step + 1, "forward")]
    return optimizer_truth(run, [name], step, moments=moments)


@fault("optimizer", fits=lambda case: train(case) and case["optimizer"] == "adamw")
def decay_in_the_gradient(run, draw):
    """L2 in place of decoupled decay."""
    names = [n for n, p in run.model.named_parameters() if p.ndim >= 2]
    step = begin(run, draw)

    def add():
        if not run.acting():
            return
        with torch.no_grad():
            for n in names:
                p = run.model.get_parameter(n)
                if p.grad is not None:
                    p.grad.add_(p, alpha=0.1)

    run.before_update.append(add)
    return gradient_truth(run, names, step)


@fault("optimizer", fits=lambda case: train(case) and case["precision"] == "fp16-scaler")
def clipped_before_unscaling(run, draw):
    """Gradients are clipped while they still carry the scale of the loss."""
    clipped = run.clipped
    run.after_backward.append(clipped)
    run.clipped = lambda: None
    found = gradient_truth(run, [n for n, _ in run.model.named_parameters()], 0)
    return dict(found, axis=["source", "block"])


@fault("optimizer", fits=lambda case: train(case) and case["optimizer"] == "muon")
def too_few_iterations(run, draw):
    return group_option(run, draw, "iterations", lambda n: 2, axis=["muon", "source", "block"])


@fault("optimizer", fits=lambda case: train(case) and case["optimizer"] == "muon")
def wrong_polynomial(run, draw):
    def plant():
        run.optimizers[0].coefficients = (3.4445, -4.7750, 1.5)

    run.ready.append(plant)
    return dict(optimizer_truth(run, [n for n, p in run.model.named_parameters() if p.ndim == 2], 0), axis=["muon", "source", "block"])


# ---- 4: precision, scales, casts, overflow and underflow


@fault("precision", fits=wide)
def fp8_scale_forgotten(run, draw):
    """A cast to eight bits whose scale is not undone."""
    path, module = choose(run, draw, linear)

    def cast(original, x):
        scale = x.detach().abs().amax() / 448
        return original((x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale * 1.0625)

    instead(run, module, "forward", cast)
    return forward_truth(run, path, begin(run, draw))


@fault("precision", fits=wide)
def rounded_to_integers(run, draw):
    path, module = choose(run, draw)
    after(run, module, lambda y: (y * 64).detach().to(torch.int32).to(y.dtype) / 64 + (y - y.detach()))
    return forward_truth(run, path, begin(run, draw))


@fault("precision", fits=lambda case: case["precision"] in ("fp32", "bf16"))
def saturated(run, draw):
    """A cast that clips at the largest number of its format, with a scale too large."""
    path, module = choose(run, draw)
    after(run, module, lambda y: (y * 1e4).clamp(-448, 448) / 1e4)
    return forward_truth(run, path, begin(run, draw))


@fault("precision", fits=lambda case: case["precision"] == "fp32")
def underflow_in_half(run, draw):
    """Numbers too small for float16 become zero: in exact arithmetic nothing is wrong, so it is a matter of precision."""
    path, module = choose(run, draw, linear)
    after(run, module, lambda y: (y * 1e-8).to(torch.float16).to(y.dtype) / 1e-8)
    step = begin(run, draw)
    return truth(step, "forward", [path], kin(run, path), verdict=("rounding", "diverged"), axis=["precision"], inside=False, same=True)


@fault("precision", fits=lambda case: case["precision"] == "fp32")
def scale_of_the_step_before(run, draw):
    """Delayed scaling whose scale is too small for what comes: it saturates."""
    path, module = choose(run, draw, linear)
    after(run, module, lambda y: y.clamp(-0.3, 0.3))
    return forward_truth(run, path, begin(run, draw))


@fault("precision", fits=lambda case: case["precision"] in ("fp32", "bf16"))
def scale_applied_twice(run, draw):
    """A weight in int8 whose scale is applied once too often for one row."""
    path, module = choose(run, draw, lambda p, m: linear(p, m) and m.out_features > 2)

    def scaled(y):
        factor = torch.ones(y.shape[-1], dtype=y.dtype)
        factor[1] = 0.5
        return y * factor

    after(run, module, scaled)
    return forward_truth(run, path, begin(run, draw))


@fault("precision", fits=lambda case: case["precision"] == "fp32")
def truncated_mantissa(run, draw):
    """Bits cut off by hand, not by a cast: the integer view of the numbers."""
    path, module = choose(run, draw, linear)
    if run.exact:
        cut = lambda y: y + ((y.detach().float().view(torch.int32) & -65536).view(torch.float32).to(y.dtype) - y.detach())
    else:
        cut = lambda y: y + ((y.detach().view(torch.int32) & -65536).view(torch.float32) - y.detach())
    after(run, module, cut)
    return forward_truth(run, path, begin(run, draw))


def failing_truth(run, path, step, axis):
    return truth(step, "forward", [path], kin(run, path), verdict=("diverged", "rounding"), axis=axis, fails="nonfinite", inside=False)


@fault("precision", fits=lambda case: case["precision"] == "fp32" and train(case))
def overflow_in_half(run, draw):
    """An activation in float16 that no longer fits."""
    path, module = choose(run, draw, linear)
    after(run, module, lambda y: ((y * 3e6).to(torch.float16).to(y.dtype) / 3e6))
    return failing_truth(run, path, begin(run, draw), ["precision", "block"])


@fault("precision", fits=lambda case: case["precision"] == "fp32" and train(case))
def logarithm_of_zero(run, draw):
    path, module = choose(run, draw, lambda p, m: len(shapes(run)[p][1]) > 1)
    after(run, module, lambda y: y + 1e-3 * torch.log((y.softmax(-1) - 0.5).clamp(min=0)))
    return failing_truth(run, path, begin(run, draw), ["block"])


@fault("precision", fits=lambda case: case["precision"] == "fp32" and train(case))
def division_by_zero(run, draw):
    path, module = choose(run, draw, lambda p, m: len(shapes(run)[p][1]) > 1)
    after(run, module, lambda y: y / (y - y.amax(-1, keepdim=True)))
    return failing_truth(run, path, begin(run, draw), ["block"])


@fault("precision", fits=own("gpt", "moe"))
def row_without_keys(run, draw):
    """A mask that leaves one query nothing to look at."""
    path, module = choose(run, draw, having("mask"))

    def hiding(original, r, c):
        mask = original(r, c)
        mask[0, :] = True
        return mask

    instead(run, module, "mask", hiding)
    found = failing_truth(run, path, begin(run, draw), ["block", "source"])
    return found


@fault("precision", fits=lambda case: train(case) and case["steps"] > 1 and case["precision"] in ("fp32", "bf16"))
def infinite_weight(run, draw):
    """One element of a parameter is overwritten behind PyTorch's back."""
    name = draw.choice([n for n, p in run.model.named_parameters() if p.ndim == 2 and "emb" not in n])
    p, step = run.model.get_parameter(name), draw.randrange(1, run.case["steps"])

    def write():
        if run.now == step:
            import ctypes

            pattern = {torch.float32: b"\x00\x00\x80\x7f", torch.bfloat16: b"\x80\x7f", torch.float64: b"\x00" * 6 + b"\xf0\x7f"}[p.dtype]
            ctypes.memmove(p.data_ptr() + 3 * p.element_size(), pattern, p.element_size())

    run.before.append(write)
    found = written_truth(run, name, step)
    return dict(found, fails="nonfinite")


@fault("precision", fits=lambda case: train(case) and case["steps"] > 2 and case["precision"] == "fp32" and case["optimizer"] == "sgd")
def learning_rate_that_blows_up(run, draw):
    """The update is what fails, and the next forward where it shows."""
    return group_option(run, draw, "lr", lambda lr: 1e36, fails="nonfinite")


# ---- 5: ranks, shards, collectives


ranked = lambda case: case.get("ranks", 1) > 1


def rank_truth(run, path, step, ranks, phase="backward", axis=("rank",), exact=()):
    owner = path.rpartition(".")[0]
    return truth(step, phase, {path, owner, *exact, *([] if phase == "forward" else [""])}, axis=axis, inside=False, ranks=ranks,
                 moments=[(step, p) for p in ("forward", "backward", "communication", "other", "optimizer")])


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
        import torch.distributed as dist

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
        import torch.distributed as dist

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
