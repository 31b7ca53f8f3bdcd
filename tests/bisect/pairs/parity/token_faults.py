"""Two sides' logits over the same tokens, with one fault in the second: what a trainer and a server would write of them, by NumPy alone.

A case is a base (how peaked the distributions are), a fault, rounding noise, and what the files tell: numbers alone, alternatives, logits.
"""

import json

import numpy as np

SEQUENCES, TOKENS, WORDS = 6, 24, 48
BASES = ("plain", "peaked", "flat", "zipf", "memorised")
LEVELS = ("numbers", "alternatives", "logits", "first logits", "second logits")


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def base_logits(base, ids, draw):
    """Row t speaks of token t + 1."""
    noise = draw.standard_normal((SEQUENCES, TOKENS, WORDS))
    if base == "zipf":
        return 1.5 * noise - 1.2 * np.log(np.argsort(draw.random(WORDS)) + 1.0)
    logits = noise * {"plain": 3, "peaked": 9, "flat": 0.7, "memorised": 2}[base]
    if base == "memorised":
        np.put_along_axis(logits[:, :-1], ids[:, 1:, None], 12 + draw.standard_normal(ids[:, 1:, None].shape), 2)
    return logits


def keep_most_probable(logits, count=None, mass=None, floor=None):
    order = np.argsort(-logits, -1)
    rows = np.take_along_axis(np.exp(log_softmax(logits)), order, -1)
    if count:
        kept = np.arange(rows.shape[-1]) < count
        kept = np.broadcast_to(kept, rows.shape)
    elif mass:
        kept = np.cumsum(rows, -1) - rows < mass
    else:
        kept = rows >= floor * rows[..., :1]
    back = np.empty_like(logits)
    np.put_along_axis(back, order, np.where(kept, np.take_along_axis(logits, order, -1), -np.inf), -1)
    return back


# name: (change of the second side's logits, causes that may be named). What no law describes has none.


def filtered(**how):
    return lambda logits, draw: keep_most_probable(logits, **how)


def other_weights(scale):
    return lambda logits, draw: logits + scale * draw.standard_normal(logits.shape)


def lost_shard(logits, draw):
    """Half of what was learned is gone: each row goes half way to another model's."""
    return 0.5 * logits + 0.5 * np.roll(logits, 7, -1) * draw.random(logits.shape)


def masked_words(logits, draw):
    out = logits.copy()
    out[..., draw.permutation(WORDS)[: WORDS // 5]] = -np.inf
    return out


def padded_words(logits, draw):
    return np.concatenate([logits, logits.max() - 3 + draw.standard_normal((*logits.shape[:2], 16))], -1)


def older_policy(logits, draw):
    out = logits.copy()
    out[: SEQUENCES // 2] += 0.8 * draw.standard_normal(out[: SEQUENCES // 2].shape)
    return out


def other_prompt(logits, draw):
    decay = np.exp(-np.arange(TOKENS) / 4)[:, None]
    return logits + 2 * decay * draw.standard_normal(logits.shape)


def one_word_likelier(logits, draw):
    out = logits.copy()
    out[..., 5] += 4
    return out


def soft_capped(logits, draw):
    return 4 * np.tanh(logits / 4)


def heated_and_cut(logits, draw):
    return keep_most_probable(logits / 0.7, count=10)


LOGIT_FAULTS = {
    "none": (lambda logits, draw: logits, set()),
    **{f"temperature {t}": (lambda logits, draw, t=t: logits / t, {"temperature"}) for t in (0.5, 0.6931, 0.7, 0.9, 1.2, 2.3026)},
    **{f"top-k {k}": (filtered(count=k), {"filter", "renormalised"}) for k in (3, 10)},
    **{f"top-p {p}": (filtered(mass=p), {"filter", "renormalised"}) for p in (0.8, 0.95)},
    "min-p": (filtered(floor=0.05), {"filter", "renormalised"}),
    "temperature and top-k": (heated_and_cut, {"temperature", "filter", "renormalised"}),
    "masked words": (masked_words, {"vocabulary", "renormalised"}),
    "padded words": (padded_words, {"vocabulary", "renormalised"}),
    "other weights": (other_weights(0.6), set()),
    "quantised weights": (other_weights(0.1), set()),
    "lost shard": (lost_shard, set()),
    "older policy": (older_policy, set()),
    "other prompt": (other_prompt, set()),
    "one word likelier": (one_word_likelier, {"renormalised"}),
    "soft cap": (soft_capped, set()),
    "zeroed weights": (lambda logits, draw: np.zeros_like(logits), {"constant"}),
}

# name: (change of the second side's numbers, given its rows and the tokens; causes)


def shifted(by):
    def change(numbers, rows, ids):
        out = np.full_like(numbers, np.nan)
        if by > 0:
            out[:, 1 + by :] = numbers[:, 1:-by]
        else:
            out[:, 1:by] = numbers[:, 1 - by :]
        return out

    return change


def paired(row, token):
    """The number at token t: what the row behind token t - 1 + row says of token t + token."""

    def change(numbers, rows, ids):
        out = np.full_like(numbers, np.nan)
        for t in range(2, TOKENS - 2):
            out[:, t] = rows[np.arange(SEQUENCES), t - 1 + row, ids[:, t + token]]
        return out

    return change


NUMBER_FAULTS = {
    "one right": (shifted(1), {"shift", "labels"}),
    "two left": (shifted(-2), {"shift", "labels"}),
    "losses": (lambda numbers, rows, ids: -numbers, {"scale"}),
    "base 2": (lambda numbers, rows, ids: numbers / np.log(2), {"scale"}),
    "base 10": (lambda numbers, rows, ids: numbers / np.log(10), {"scale"}),
    "probabilities": (lambda numbers, rows, ids: np.exp(numbers), {"scale"}),
    "argmax": (lambda numbers, rows, ids: np.concatenate([numbers[:, :1], rows.max(-1)[:, :-1]], 1), {"argmax"}),
    "next token's label": (paired(0, 1), {"labels"}),
    "labels not shifted": (paired(1, 0), {"labels"}),
    "halved": (lambda numbers, rows, ids: numbers / 2, set()),
    "clamped": (lambda numbers, rows, ids: np.maximum(numbers, -1.0), set()),
}
FAULTS = {**{k: v[1] for k, v in LOGIT_FAULTS.items()}, **{k: v[1] for k, v in NUMBER_FAULTS.items()}}


def gather(rows, ids):
    numbers = np.full(ids.shape, np.nan)
    numbers[:, 1:] = np.take_along_axis(rows[:, :-1], ids[:, 1:, None], 2)[..., 0]
    return numbers


def draw_tokens(logits, draw):
    """One token of each row, from the row's own distribution."""
    return (log_softmax(logits) + draw.gumbel(size=logits.shape)).argmax(-1)


def make_case(base, fault, noise, seed):
    draw = np.random.default_rng(seed)
    ids = draw.integers(0, WORDS, (SEQUENCES, TOKENS))
    logits = base_logits(base, ids, draw)
    change = LOGIT_FAULTS[fault][0] if fault in LOGIT_FAULTS else LOGIT_FAULTS["none"][0]
    other = change(logits, draw)
    other = other + noise * draw.standard_normal(other.shape)
    if base != "memorised" or (fault in LOGIT_FAULTS and np.isneginf(other).any()):  # a sampler gives what it can
        ids[:, 1:] = draw_tokens(other[..., :WORDS], draw)[:, :-1]
    rows = log_softmax(logits), log_softmax(other)
    numbers = [gather(side, ids) for side in rows]
    if fault in NUMBER_FAULTS:
        numbers[1] = NUMBER_FAULTS[fault][0](numbers[1], rows[1], ids)
    return ids, rows, numbers


WRITTEN = {"losses": np.negative, "base 2": lambda x: x / np.log(2), "base 10": lambda x: x / np.log(10), "probabilities": np.exp}


def alternatives(rows, ids, count=8, written=lambda x: x):
    """As servers list them: the most probable words, and the token itself."""
    out = [[None] for _ in ids]
    for s, sequence in enumerate(rows):
        for t, row in enumerate(sequence[:-1]):
            best = [v for v in np.argsort(-row)[:count] if np.isfinite(row[v])]
            words = dict.fromkeys([*best, ids[s, t + 1]])
            out[s].append([dict(token_id=int(v), token=f"w{v}", logprob=float(written(row[v]))) for v in words])
    return out


def write_side(folder, name, ids, rows, numbers, level, written):
    """`level`: numbers, alternatives or logits; `written`: how the side writes its alternatives."""
    if level == "logits":
        np.savez(folder / f"{name}.npz", token_ids=ids, logprobs=numbers, logits=rows)
        return folder / f"{name}.npz"
    listed = alternatives(rows, ids, written=written) if level == "alternatives" else None
    with open(folder / f"{name}.jsonl", "w") as out:
        for s, sequence in enumerate(ids):
            scores = [None if np.isnan(x) else float(x) for x in numbers[s]]
            line = dict(id=f"s{s}", token_ids=sequence.tolist(), logprobs=scores)
            if listed:
                line["top_logprobs"] = listed[s]
            out.write(json.dumps(line) + "\n")
    return folder / f"{name}.jsonl"


def write_case(folder, base, fault, noise, level, seed):
    """Paths of both sides' files."""
    ids, rows, numbers = make_case(base, fault, noise, seed)
    levels = dict(zip(LEVELS, [("numbers",) * 2, ("alternatives",) * 2, ("logits",) * 2, ("logits", "numbers"), ("numbers", "logits")]))[level]
    plain = np.positive
    written = [plain, WRITTEN.get(fault, plain) if seed % 3 else plain]  # some write the numbers in one way and the lists in another
    return [write_side(folder, name, ids, rows[k], numbers[k], levels[k], written[k]) for k, name in enumerate("ab")]
