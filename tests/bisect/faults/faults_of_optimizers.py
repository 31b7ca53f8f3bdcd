"""Wrong optimizer states, groups and schedules."""

import torch
from change_places import begin, gradient_truth, optimizer_truth, several, train
from change_table import Unfit, fault


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
        found.update(optimizer_truth(run, names_in(run, made["group"]), step, **more), group=True)

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


def clip_truth(run):
    """Clipping is of all parameters together, outside every module."""
    found = optimizer_truth(run, [n for n, _ in run.model.named_parameters()], 0, axis=["source", "block"])
    return dict(found, exact=["", *found["exact"]])


@fault("optimizer", fits=train, early=True)
def not_clipped(run, draw):
    run.options["clip"] = None
    return clip_truth(run)


@fault("optimizer", fits=train)
def gradient_scaled(run, draw):
    """An average over the wrong number of micro-batches, for one parameter."""
    return on_parameter(run, draw, lambda p, optimizer: p.grad.mul_(0.5), true=gradient_truth)


@fault("optimizer", fits=train, early=True)
def clipped_at_another_norm(run, draw):
    run.options["clip"] = draw.choice([0.1, 0.3])
    return clip_truth(run)


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
    return dict(clip_truth(run), moments=gradient_truth(run, [], 0)["moments"])


@fault("optimizer", fits=lambda case: train(case) and case["optimizer"] == "muon")
def too_few_iterations(run, draw):
    return group_option(run, draw, "iterations", lambda n: 2, axis=["muon", "source", "block"])


@fault("optimizer", fits=lambda case: train(case) and case["optimizer"] == "muon")
def wrong_polynomial(run, draw):
    def plant():
        run.optimizers[0].coefficients = (3.4445, -4.7750, 1.5)

    run.ready.append(plant)
    return dict(optimizer_truth(run, [n for n, p in run.model.named_parameters() if p.ndim == 2], 0), axis=["muon", "source", "block"])


@fault("optimizer", fits=lambda case: train(case) and case["steps"] > 2 and case["precision"] == "fp32" and case["optimizer"] == "sgd")
def learning_rate_that_blows_up(run, draw):
    """The update is what fails, and the next forward where it shows."""
    return group_option(run, draw, "lr", lambda lr: 1e36, fails="nonfinite")
