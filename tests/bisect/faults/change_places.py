"""Where a change takes hold of a run, and what is then true of it: shared by all kinds.

A change that acts from a later step on leaves everything before that step as it was."""

from change_table import Unfit, truth
from fault_truth import Trace
from fault_world import Run, with_first
from torch import nn

# ---- which cases a kind fits

train = lambda case: case["mode"] == "train"
own = lambda *names: lambda case: case["program"] in names
trained = lambda *names: lambda case: case["mode"] == "train" and case["program"] in names
wide = lambda case: case["precision"] in ("fp32", "autocast", "fp16-scaler")
several = lambda case: train(case) and case["steps"] > 1
ranked = lambda case: case.get("ranks", 1) > 1


# ---- where a change takes hold


KNOWN = {}  # what was seen of a case: a run that is recorded must run nothing else


def seen(run):
    """The trace of the case without changes."""
    key = str(sorted((name, value) for name, value in run.case.items() if name != "changes"))
    if key not in KNOWN:
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
    return {
        holder,
        *seen(run).takers.get(path, ()),
        *(p for p in paths if p != path and (p.rpartition(".")[0] == holder or p.startswith(path + "."))),
    }


def forward_truth(run, path, step, **more):
    return truth(step, "forward", [path], kin(run, path), axis=["block"], **more)


def linear(path, module):
    return type(module) is nn.Linear


# ---- what is true


def backward_truth(run, path, step, **more):
    return truth(step, "backward", [path], kin(run, path), axis=["block"], inside=False, **more)


def optimizer_truth(run, names, step, **more):
    """Either the parameters, or the modules that own them."""
    owners = {n.rpartition(".")[0] for n in names}
    states = {"optimizer.%s:%s" % (key, n) for n in names for key in ("exp_avg", "exp_avg_sq", "momentum_buffer", "step")}
    around = {".".join(owner.split(".")[:n]) for owner in owners for n in range(owner.count(".") + 1)}
    return truth(step, "optimizer", [*names, *owners, *states], ["", *around], axis=more.pop("axis", ["source"]), inside=False, **more)


def gradient_truth(run, names, step):
    """Gradients that were written after the backward."""
    places = {f"{key}:{n}" for n in names for key in ("grad", "gradient")}
    found = optimizer_truth(run, names, step, axis=["source", "block"], moments=[(step, "backward"), (step, "other")])
    return dict(found, exact=[*found["exact"], *places])


def prepared_at(step):
    """A batch may be made ready for its step, cast say, before the step begins."""
    return [(step - 1, phase) for phase in ("forward", "other")] + [(step, "other")]


def written_truth(run, name, step):
    """A parameter that was written between two steps."""
    path = name.rpartition(".")[0]
    moments = [(step - 1, "optimizer"), (step - 1, "other"), (step, "other")]
    return truth(step, "forward", [path, name], {"", *kin(run, path)}, axis=["source"], inside=False, moments=moments)
