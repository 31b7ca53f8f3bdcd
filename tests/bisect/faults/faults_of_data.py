"""Wrong data, positions, masks, caches, buffers, seeds."""

import ctypes

import torch
from change_places import begin, choose, forward_truth, having, instead, kin, linear, own, prepared_at, shapes, train, written_truth
from change_table import Unfit, fault, truth


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
    return truth(step, "forward", ["", "input:*", "emb", first], axis=["source"], inside=False, moments=prepared_at(step))


@fault("data", fits=train)
def labels_shifted(run, draw):
    step = draw.randrange(run.case["steps"])
    labels = run.batches[step]["labels"]
    if labels is None or labels.ndim < 2:
        raise Unfit
    run.batches[step] = dict(run.batches[step], labels=labels.roll(1, -1))
    return truth(step, "forward", ["", "input:*"], axis=["source"], inside=False, moments=prepared_at(step))


@fault("data")
def batch_of_the_step_before(run, draw):
    if run.case["steps"] < 2 or run.case["mode"] == "serve":
        raise Unfit
    step = draw.randrange(1, run.case["steps"])
    run.batches[step] = run.batches[step - 1]
    return truth(step, "forward", ["", "input:*", "emb", next(iter(shapes(run)))], axis=["source"], inside=False, moments=prepared_at(step))


@fault("data", fits=train)
def label_of_one_row(run, draw):
    step = draw.randrange(run.case["steps"])
    labels = run.batches[step]["labels"]
    if labels is None:
        raise Unfit
    labels = labels.clone()
    labels[1] = (labels[1] + 1) % 8
    run.batches[step] = dict(run.batches[step], labels=labels)
    return truth(step, "forward", ["", "input:*"], axis=["source"], inside=False, moments=prepared_at(step))


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
def mask_is_not_minus_infinity(run, draw):
    """What is masked keeps a small weight."""
    path, module = choose(run, draw, having("attended"))

    def leaking(original, q, k, v):
        scores = q @ k.transpose(-1, -2) * module.scale
        return module.weights(scores.masked_fill(module.mask(q.shape[-2], k.shape[-2]), -2.0)) @ v

    instead(run, module, "attended", leaking)
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


@fault("data")
def unseen_write(run, draw):
    """A parameter is written through memory that it shares, by no op of PyTorch."""
    name = draw.choice([n for n, p in run.model.named_parameters() if p.ndim == 2])
    step, p = 0 if run.case["steps"] == 1 else draw.randrange(1, run.case["steps"]), run.model.get_parameter(name)
    run.acts_from = step

    def write():
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


texts = lambda case: case["program"].split("/")[0] in ("causal", "masked", "encoder") and case["mode"] == "train"


def given_otherwise(run, draw, name, right, wrong):
    """Both sides are given a tensor beside their tokens, and one is given another from some step on."""
    step = begin(run, draw)
    for n in range(run.case["steps"]):
        tokens = run.batches[n]["named"]["input_ids"]
        value = wrong(tokens) if run.changed and n >= step else right(tokens)
        run.batches[n] = dict(run.batches[n], named={**run.batches[n]["named"], name: value})
    return truth(step, "forward", ["", "input:*", next(iter(shapes(run)))], axis=["source"], inside=False, moments=prepared_at(step))


@fault("data", shared=True, fits=texts)
def padding_not_masked(run, draw):
    """The last tokens of a row are padding, which one side does not say."""

    def right(tokens):
        mask = torch.ones_like(tokens)
        mask[1, -2:] = 0
        return mask

    return given_otherwise(run, draw, "attention_mask", right, torch.ones_like)


@fault("data", shared=True, fits=lambda case: texts(case) and case["program"].startswith("causal/"))
def positions_of_one_row_off(run, draw):
    count = lambda tokens: torch.arange(tokens.shape[1]).expand(len(tokens), -1).clone()

    def wrong(tokens):
        positions = count(tokens)
        positions[2] += torch.arange(tokens.shape[1])
        return positions

    return given_otherwise(run, draw, "position_ids", count, wrong)
