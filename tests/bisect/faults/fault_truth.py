"""What is true of a case, confirmed in plain PyTorch before it counts: nothing of lastbit runs here.

A run leaves a trace: what every module gave, the gradients of all parameters, parameters and optimizer states after each step, in
the order in which they came about. Of a fault it is asked that the exact traces (float64, casts the identity) part, that they part
first at the place, step and phase that the fault names, and that the recorded precision shows it there, too; of an innocent change
that the exact traces agree wherever both have the value."""

import torch
from fault_world import Run, first_float

AGREE = 1e-9  # exact values of one function differ by less, relative to the largest
LEAVE = 1e-8  # what a fault must change of a value that leaves the step
PHASES = ["forward", "backward", "optimizer"]


class Trace:
    """Events of a run by (step, phase, kind, path, count), in order."""

    def __init__(self, run):
        self.run, self.events, self.calls = run, {}, {}
        self.sites, self.takers, self.given = {}, {}, {}  # shapes by path; who takes a module's result; that result
        for path, module in run.model.named_modules():
            module.register_forward_pre_hook(lambda m, args, path=path: self.entered(path, args))
            module.register_forward_hook(lambda m, args, out, path=path: self.left(path, m, args, out))
        run.after_backward.append(self.gradients)
        run.after_update.append(self.parameters)
        run.execute()
        for n, loss in enumerate(run.losses):
            self.events[n, "forward", "result", "", 0] = loss.clone()

    def entered(self, path, args):
        for value in args:
            giver = self.given.get(id(value))
            if giver is not None:
                self.takers.setdefault(giver[0], set()).add(path)

    def left(self, path, module, args, output):
        value = first_float(output)
        self.given.setdefault(id(value), (path, value))
        key = (self.run.now, "forward", "module", path)
        count = self.calls[key] = self.calls.get(key, -1) + 1
        if value is not None:
            self.events[(*key, count)] = value.detach().clone()
            taken = first_float(args)
            self.sites.setdefault(path, (None if taken is None else tuple(taken.shape), tuple(value.shape)))

    def gradients(self):
        for name, p in self.run.model.named_parameters():
            if p.grad is not None:
                self.events[self.run.now, "backward", "gradient", name, 0] = p.grad.detach().clone()

    def is_used(self, name, p):
        """Does some module that ran hold it, or did it get a gradient? What no step reads leaves none."""
        return p.grad is not None or any(key[3] == name.rpartition(".")[0] for key in self.calls)

    def parameters(self):
        for name, p in self.run.model.named_parameters():
            if not self.is_used(name, p):
                continue
            self.events[self.run.now, "optimizer", "parameter", name, 0] = p.detach().clone()
        names = {id(p): n for n, p in self.run.model.named_parameters()}
        for optimizer in self.run.optimizers:
            for p, state in optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        self.events[self.run.now, "optimizer", key, names[id(p)], 0] = value.detach().clone().float()


def apart(a, b):
    """By how much two values differ, relative to the larger."""
    if a.shape != b.shape:
        return float("inf")
    a, b = a.double(), b.double()
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        return 0.0 if torch.equal(torch.nan_to_num(a, nan=7e77), torch.nan_to_num(b, nan=7e77)) else float("inf")
    most = max(float(a.abs().max()) if a.numel() else 0.0, float(b.abs().max()) if b.numel() else 0.0)
    return float((a - b).abs().max()) / max(most, 1e-30) if a.numel() else 0.0


def moment(key):
    return key[0], PHASES.index(key[1])


def partings(a, b, limit):
    """Keys of both traces that differ by more, in the order of the second."""
    return [
        key
        for key, value in b.events.items()
        if (key not in a.events and key[1] != "forward") or (key in a.events and apart(a.events[key], value) > limit)
    ]


def leaves(key):
    """A value of this kind outlives its step; gradients are zeroed at its end."""
    return key[2] not in ("module", "gradient")


def without_gradient(trace):
    """Parameters whose gradient is 0 but for rounding, which an optimizer magnifies: the biases of keys."""
    most = {}
    for key, value in trace.events.items():
        if key[2] == "gradient" and value.numel():
            most[key[3]] = max(most.get(key[3], 0.0), float(value.abs().max()))
    return {name for name, size in most.items() if size < 1e-12 * max(1.0, *most.values())}


def lost(a, b):
    return [key for key in a.events if key not in b.events and key[1] == "backward"]


def parents(path):
    parts = path.split(".")
    return {".".join(parts[:n]) for n in range(len(parts))}


def around(truth, key):
    """The first value that parts is the place's own, or that of a module that holds it, or inside it."""
    path = key[3]
    return any(path == place or place in parents(path) or path in parents(place) for place in truth["exact"])


def confirm_fault(case, truth):
    """None when the fault is what it says; else why this case does not count."""
    wide = [Trace(Run(case, changed=c, exact=True)) for c in (False, True)]
    parted = partings(*wide, AGREE) or lost(*wide)
    if truth["same"] and parted:
        return "exact values differ"
    if truth["fails"] is None and not truth["same"]:
        if not parted:
            return "exact values agree"
        idle = without_gradient(wide[0])
        if not any(leaves(key) and key[3] not in idle for key in partings(*wide, LEAVE)):
            return "what leaves the step agrees"
        moments = {(step, PHASES.index(phase)) for step, phase in truth["moments"] if phase in PHASES}
        if moment(min(parted, key=moment)) < min(moments):
            return "exact values part before"
        if moment(min(parted, key=moment))[0] > truth["step"] + truth["delay"]:
            return "exact values part later"
        if truth["phase"] == "forward" and truth["inside"] and parted[0][1] == "forward" and not around(truth, parted[0]):
            return "exact values part elsewhere: " + parted[0][3]
    plain = [Trace(Run(case, changed=c)) for c in (False, True)]
    shown = partings(*plain, 0.0) or lost(*plain)
    if not shown:
        return "not visible in this precision"
    first = min(shown, key=moment)
    if truth["fails"] is None and len(case["changes"]) == 1:
        if moment(first)[0] > truth["step"] + truth["delay"] or (truth["phase"] == "forward" and first[1] != "forward"):
            return "visible later than it happens"
        if truth["phase"] == "forward" and truth["inside"] and not around(truth, first):
            return "first visible elsewhere: " + first[3]
    bad = lambda t: any(not torch.isfinite(v.double()).all() for key, v in t.events.items() if key[2] != "module")
    if truth["fails"] is not None:
        return None if bad(plain[1]) and not bad(plain[0]) else "does not fail"
    return "fails" if bad(plain[0]) or bad(plain[1]) else None


def confirm_innocent(case):
    wide = [Trace(Run(case, changed=c, exact=True)) for c in (False, True)]
    shared = [k for k, v in wide[1].events.items() if k in wide[0].events and k[2] in ("result", "gradient", "parameter")]
    for key in shared:
        a, b = wide[0].events[key], wide[1].events[key]
        if key[2] == "gradient" and max(float(a.abs().max()), float(b.abs().max())) < 1e-12:
            continue  # exactly zero but for rounding: the biases of keys
        if apart(a, b) > AGREE * (1e3 if key[0] else 1):
            return "exact values differ by %.3g at %s" % (apart(a, b), key)
    return None if any(k[2] == "result" for k in shared) else "nothing to compare"
