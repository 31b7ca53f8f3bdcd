"""Parity of token files, against NumPy, and what is commonly wrong with one side's file."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

SEQUENCES, TOKENS, WORDS = 6, 40, 50
RNG = np.random.default_rng


def log_softmax(logits):
    return torch.log_softmax(torch.from_numpy(np.asarray(logits, np.float64)), -1).numpy()


class Side:
    """Logits of a model over random sequences; row t speaks of token t + 1."""

    def __init__(self, seed=0, noise=0.0):
        draw = RNG(seed)
        self.ids = draw.integers(3, WORDS, (SEQUENCES, TOKENS))
        self.logits = 3 * draw.standard_normal((SEQUENCES, TOKENS, WORDS))
        if noise:
            self.logits += noise * RNG(seed + 100).standard_normal(self.logits.shape)

    @property
    def rows(self):
        return log_softmax(self.logits)

    @property
    def logprobs(self):
        """[N, T - 1]: of tokens 1, 2, …"""
        return np.take_along_axis(self.rows[:, :-1], self.ids[:, 1:, None], 2)[..., 0]

    def sequences(self):
        return [
            dict(id=f"s{n}", token_ids=ids.tolist(), tokens=[f"w{i} " for i in ids], logprobs=[None, *scores])
            for n, (ids, scores) in enumerate(zip(self.ids, self.logprobs.tolist()))
        ]


def write(path, sequences):
    path.write_text("".join(json.dumps(s) + "\n" for s in sequences))
    return path


def expected(d):
    return dict(k3=(np.expm1(d) - d).mean(), mean_abs=np.abs(d).mean(), max_abs=np.abs(d).max())


def kinds_of(answer):
    return [f["kind"] for f in answer["findings"]]


def test_words_that_json_lacks_are_numbers_wherever_they_stand(lastbit, tmp_path):
    """Python writes NaN and -Infinity; several of them in one file."""
    lines = [dict(id=str(n), token_ids=[1, 2, 3, 4], logprobs=[float("nan"), -1.5, float("-inf"), -0.5 - n]) for n in range(3)]
    path = write(tmp_path / "a.jsonl", lines)
    answer = lastbit.json("parity", path, path, expect=0)
    assert [row["count"] for row in answer["tokens"]] == [9]


@pytest.fixture
def pair(tmp_path):
    """The same tokens scored with a little noise."""
    a, b = Side(1), Side(1, noise=0.01)
    return write(tmp_path / "a.jsonl", a.sequences()), b


def test_numbers_are_what_numpy_says(lastbit, tmp_path):
    a, b = Side(1), Side(1, noise=0.02)
    for name, side in (("a", a), ("b", b)):
        save_file(dict(token_ids=side.ids, logits=side.logits.astype(np.float32)), tmp_path / f"{name}.safetensors")
        side.logits = side.logits.astype(np.float32)
    answer = lastbit.json("parity", tmp_path / "a.safetensors", tmp_path / "b.safetensors", expect=0)
    (row,) = answer["tokens"]
    assert answer["verdict"] == "pass" and row["count"] == SEQUENCES * (TOKENS - 1)
    p, q = a.rows[:, :-1], b.rows[:, :-1]
    want = expected(a.logprobs - b.logprobs)
    want |= dict(kl=(np.exp(p) * (p - q)).sum(-1).mean(), top1=(p.argmax(-1) == q.argmax(-1)).mean())
    want |= dict(perplexity_a=math.exp(-a.logprobs.mean()), perplexity_b=math.exp(-b.logprobs.mean()))
    for name, number in want.items():
        assert row[name] == pytest.approx(number, rel=1e-9), name


def test_formats_of_one_run_give_the_same_answer(lastbit, tmp_path):
    a, b = Side(2), Side(2, noise=0.01)
    first = write(tmp_path / "a.jsonl", a.sequences())
    np.savez(tmp_path / "b.npz", token_ids=b.ids, logprobs=b.logprobs)
    save_file(dict(input_ids=b.ids, logprobs=np.pad(b.logprobs, ((0, 0), (1, 0)), constant_values=np.nan)), tmp_path / "b.safetensors")
    write(tmp_path / "b.jsonl", b.sequences())
    (tmp_path / "b.json").write_text(json.dumps(b.sequences(), indent=1))
    rows = [
        dict(sequence=s["id"], position=t, token_id=i, logprob=p)
        for s in b.sequences()
        for t, (i, p) in enumerate(zip(s["token_ids"], s["logprobs"]))
    ]
    write(tmp_path / "tokens.jsonl", rows)
    answers = [lastbit.json("parity", first, tmp_path / name, expect=0) for name in ("b.jsonl", "b.json", "b.npz", "b.safetensors", "tokens.jsonl")]
    want = expected(a.logprobs - b.logprobs)
    for answer in answers:
        assert not answer["findings"]
        for name, number in want.items():
            assert answer["all"][name] == pytest.approx(number, rel=1e-9), name


def test_answers_of_servers_are_read(lastbit, tmp_path):
    a, b = Side(3), Side(3, noise=0.01)
    first, cut = write(tmp_path / "a.jsonl", a.sequences()), 10
    openai, chat, vllm, sglang = [], [], [], []
    for s in b.sequences():
        ids, texts, scores = s["token_ids"], s["tokens"], s["logprobs"]
        openai.append(dict(id=s["id"], choices=[dict(index=0, logprobs=dict(tokens=texts, token_logprobs=scores, top_logprobs=None))]))
        content = [dict(token=t, logprob=p, bytes=None, top_logprobs=[]) for t, p in zip(texts, scores)]
        chat.append(dict(id=s["id"], choices=[dict(logprobs=dict(content=content))]))
        prompt = [
            None,
            *(
                {str(i): dict(logprob=p, rank=3, decoded_token=t), "2": dict(logprob=-0.1, rank=1)}
                for i, t, p in zip(ids[1:cut], texts[1:cut], scores[1:cut])
            ),
        ]
        rest = dict(token_ids=ids[cut:], tokens=texts[cut:], token_logprobs=scores[cut:])
        vllm.append(dict(id=s["id"], choices=[dict(prompt_token_ids=ids[:cut], prompt_logprobs=prompt, logprobs=rest)]))
        rows = [[p, i, t] for i, t, p in zip(ids, texts, scores)]
        sglang.append(dict(id=s["id"], meta_info=dict(input_token_logprobs=rows[:cut], output_token_logprobs=rows[cut:])))
    want = expected(a.logprobs - b.logprobs)
    for name, lines in dict(openai=openai, chat=chat, vllm=vllm, sglang=sglang).items():
        answer = lastbit.json("parity", first, write(tmp_path / f"{name}.jsonl", lines), expect=0)
        assert answer["all"]["count"] == SEQUENCES * (TOKENS - 1), name
        assert answer["all"]["k3"] == pytest.approx(want["k3"], rel=1e-9), name
        if name in ("vllm", "sglang"):
            assert {row["kind"] for row in answer["tokens"]} == {"prompt", "generated"}


def test_a_kind_that_is_apart_fails_alone(lastbit, tmp_path):
    """The mean hides what the image tokens show."""
    a, b = Side(4), Side(4, noise=0.005)
    kinds = ["image" if 8 <= t < 12 else "text" for t in range(TOKENS)]
    sides = [side.sequences() for side in (a, b)]
    for sequences in sides:
        for s in sequences:
            s["kinds"] = kinds
    for s in sides[1]:
        for t in range(8, 12):
            s["logprobs"][t] -= 0.7
    answer = lastbit.json("parity", write(tmp_path / "a.jsonl", sides[0]), write(tmp_path / "b.jsonl", sides[1]), expect=1)
    rows = {row["kind"]: row for row in answer["tokens"]}
    assert rows["text"]["k3"] < 1e-3 < 0.1 < rows["image"]["k3"]
    assert kinds_of(answer) == ["kind"] and "image" in answer["findings"][0]["message"]


def test_numbers_stand_above_the_noise_of_two_runs(lastbit, tmp_path):
    a, again, b = Side(5), Side(5, noise=0.001), Side(5, noise=0.01)
    paths = [write(tmp_path / f"{n}.jsonl", side.sequences()) for n, side in enumerate((a, b, again))]
    answer = lastbit.json("parity", *paths[:2], "--noise", paths[2], expect=0)
    floor = expected(a.logprobs - again.logprobs)["k3"]
    assert answer["noise_floor"] == pytest.approx(floor, rel=1e-9)
    assert answer["all"]["above_noise"] == pytest.approx(expected(a.logprobs - b.logprobs)["k3"] / floor, rel=1e-9)


def test_diff_of_tokens_is_parity(lastbit, pair, tmp_path):
    second = write(tmp_path / "b.jsonl", pair[1].sequences())
    said = json.loads(lastbit.run("diff", "--tokens", pair[0], second, "--json", expect=0).stdout)
    said.pop("command"), said.pop("inputs")
    assert said == lastbit.json("parity", pair[0], second, expect=0)
    assert lastbit.run("diff", "--tokens", pair[0], second, expect=0).stdout == lastbit.run("parity", pair[0], second, expect=0).stdout


# What is wrong with one file, as a change of its sequences; the finding; whether what is left passes.


def shifted(by):
    def change(s, _):
        scores = s["logprobs"][1:]
        s["logprobs"] = [None] * (by + 1) + scores[:-by] if by > 0 else [None] + scores[-by:] + [None] * -by

    return change


def with_begin(s, _):
    s["token_ids"], s["tokens"], s["logprobs"] = [1, *s["token_ids"]], ["<s>", *s["tokens"]], [None, -3.0, *s["logprobs"][1:]]


def with_end(s, _):
    s["token_ids"], s["tokens"], s["logprobs"] = [*s["token_ids"], 2], [*s["tokens"], "</s>"], [*s["logprobs"], -0.5]


def padded(left):
    def change(s, n):
        pad = 2 + n
        for field, fill in (("token_ids", 0), ("tokens", "<pad>"), ("logprobs", -9.0)):
            s[field] = [fill] * pad + s[field] if left else s[field] + [fill] * pad

    return change


def repeated(s, n):
    if n == 3:
        for field in ("token_ids", "tokens", "logprobs"):
            s[field] = s[field][:20] + s[field][19:]


def dropped(s, n):
    if n == 2:
        for field in ("token_ids", "tokens", "logprobs"):
            s[field] = s[field][:15] + s[field][18:]


def template(s, _):
    for at in (30, 10):
        for field, extra in (("token_ids", [90, 91, 92]), ("tokens", ["<|im_start|>", "assistant", "\n"]), ("logprobs", [-0.1, -0.2, -0.1])):
            s[field] = s[field][:at] + extra + s[field][at:]


def retokenised(s, _):
    """Tokens 20 and 21 as one, token 30 as two; the text is the same, and so is its probability."""
    texts, scores = s["tokens"], s["logprobs"]
    s["tokens"] = texts[:20] + [texts[20] + texts[21]] + texts[22:30] + [texts[30][:1], texts[30][1:]] + texts[31:]
    s["logprobs"] = scores[:20] + [scores[20] + scores[21]] + scores[22:30] + [scores[30] - 0.5, 0.5] + scores[31:]
    s["token_ids"] = s["token_ids"][:20] + [70] + s["token_ids"][22:30] + [71, 72] + s["token_ids"][31:]


def scaled(factor):
    def change(s, _):
        s["logprobs"] = [None] + [factor * x for x in s["logprobs"][1:]]

    return change


def exponentiated(s, _):
    s["logprobs"] = [None] + [math.exp(x) for x in s["logprobs"][1:]]


FAULTS = {
    "one-right": (shifted(1), "shift", True),
    "one-left": (shifted(-1), "shift", True),
    "two-right": (shifted(2), "shift", True),
    "begin": (with_begin, "special-token", True),
    "end": (with_end, "special-token", True),
    "pad-left": (padded(True), "padding", True),
    "pad-right": (padded(False), "padding", True),
    "repeated": (repeated, "repeated", False),
    "dropped": (dropped, "dropped", False),
    "template": (template, "chat-template", False),
    "retokenised": (retokenised, "tokenisation", True),
    "losses": (scaled(-1), "scale", True),
    "base-2": (scaled(1 / math.log(2)), "scale", True),
    "base-10": (scaled(1 / math.log(10)), "scale", True),
    "probabilities": (exponentiated, "scale", True),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("exchanged", [False, True])
def test_a_common_mistake_is_named(lastbit, pair, tmp_path, name, exchanged):
    change, kind, passes = FAULTS[name]
    first, side = pair
    sequences = side.sequences()
    for n, s in enumerate(sequences):
        change(s, n)
    second = write(tmp_path / "b.jsonl", sequences)
    answer = lastbit.json("parity", *((second, first) if exchanged else (first, second)), expect=0 if passes else 1)
    assert set(kinds_of(answer)) == {kind}
    assert answer["all"]["k3"] < 1e-3 and answer["all"]["count"] > SEQUENCES * (TOKENS - 8)


@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("full", [True, False])
def test_a_temperature_on_one_side_is_named(lastbit, tmp_path, temperature, full):
    a, b = Side(7), Side(7, noise=0.001)
    b.logits = b.logits / temperature
    paths = []
    for name, side in (("a", a), ("b", b)):
        if full:
            paths.append(tmp_path / f"{name}.safetensors")
            save_file(dict(token_ids=side.ids, logits=side.logits.astype(np.float32)), paths[-1])
            continue
        sequences = side.sequences()
        for s, rows in zip(sequences, side.rows):
            best = np.argsort(-rows, axis=1)[:, :4]
            s["top_logprobs"] = [None] + [{f"w{i} ": row[i] for i in top} for row, top in zip(rows[:-1], best[:-1])]
        paths.append(write(tmp_path / f"{name}.jsonl", sequences))
    answer = lastbit.json("parity", *paths, expect=1)
    (finding,) = [f for f in answer["findings"] if f["kind"] == "temperature"]
    assert float(finding["message"].split("divided by ")[1].split()[0]) == pytest.approx(temperature, abs=0.01)


@pytest.mark.parametrize("listed", [True, False])
def test_a_cut_distribution_is_named_where_the_server_lists_words(lastbit, tmp_path, listed):
    """top-k 10, renormalised, of tokens that were drawn from it. Numbers alone do not prove a filter: other weights raise all tokens, too."""
    a = Side(8)
    rows = a.rows
    best = np.argsort(-rows, axis=2)[..., :10]
    pick = RNG(3).integers(0, 4, (SEQUENCES, TOKENS - 1))
    a.ids[:, 1:] = np.take_along_axis(best[:, :-1], pick[..., None], 2)[..., 0]
    kept = np.log(np.exp(np.take_along_axis(rows, best, 2)).sum(2))[:, :-1]
    sequences = a.sequences()
    cut = [dict(s, logprobs=[None, *(np.array(s["logprobs"][1:]) - k).tolist()]) for s, k in zip(sequences, kept)]
    for n in range(SEQUENCES if listed else 0):
        for side, shift, count in ((sequences, 0 * kept, 12), (cut, kept, 10)):
            side[n]["top_logprobs"] = [None] + [{f"w{i} ": row[i] - k for i in np.argsort(-row)[:count]} for row, k in zip(rows[n], shift[n])]
    answer = lastbit.json("parity", write(tmp_path / "a.jsonl", sequences), write(tmp_path / "b.jsonl", cut), expect=1)
    assert kinds_of(answer) == (["filter"] if listed else ["untold"])
    (finding,) = answer["findings"]
    assert ("top-k 10" if listed else "all 234 tokens are more probable on the second side") in finding["message"]
    assert answer["causes"]["renormalised"] == ("found" if listed else "unknown")


def test_sequences_in_another_order_meet_by_their_tokens(lastbit, pair, tmp_path):
    first, side = pair
    plain = [{k: v for k, v in s.items() if k != "id"} for s in side.sequences()]
    answer = lastbit.json("parity", first, write(tmp_path / "b.jsonl", plain[::-1]), expect=0)
    assert not answer["findings"] and answer["all"]["k3"] < 1e-3
    lacking = lastbit.json("parity", first, write(tmp_path / "c.jsonl", side.sequences()[:-1]), expect=1)
    assert kinds_of(lacking) == ["sequence"]


def test_impossible_and_far_tokens_are_counted_apart(lastbit, tmp_path):
    a, b = Side(9).sequences(), Side(9).sequences()
    b[0]["logprobs"][5], b[1]["logprobs"][6] = -math.inf, a[1]["logprobs"][6] - 50
    answer = lastbit.json("parity", write(tmp_path / "a.jsonl", a), write(tmp_path / "b.jsonl", b), expect=1)
    assert answer["all"]["impossible"] == 1 and answer["all"]["held"] == 1
    n = SEQUENCES * (TOKENS - 1) - 1
    assert answer["all"]["k3"] == pytest.approx(10 / n, rel=1e-12)  # d = 50 is held to 20, its k3 to 10; the rest is equal


def test_differences_that_grow_along_the_sequence_are_said(lastbit, tmp_path):
    a = Side(10)
    grown = [dict(s, logprobs=[None, *(p + 0.002 * 1.12**t * (-1) ** t for t, p in enumerate(s["logprobs"][1:]))]) for s in a.sequences()]
    answer = lastbit.json("parity", write(tmp_path / "a.jsonl", a.sequences()), write(tmp_path / "b.jsonl", grown), expect=1)
    assert "position" in kinds_of(answer)


def test_heat_map_and_worst_tokens(lastbit, pair, tmp_path):
    first, side = pair
    sequences = side.sequences()
    sequences[2]["logprobs"][17] = -12.0
    second = write(tmp_path / "b.jsonl", sequences)
    answer = lastbit.json("parity", first, second, "--heat", "--worst", 3, expect=1)
    assert (answer["worst"][0]["sequence"], answer["worst"][0]["token"]) == (2, 17) and len(answer["worst"]) == 3
    (row,) = [m for m in answer["heat"] if m["sequence"] == 2]
    assert row["tokens"][16]["log_q"] == -12 and row["tokens"][16]["text"] == sequences[2]["tokens"][17]
    text = lastbit.run("parity", first, second, "--heat", expect=1).stdout
    assert text.startswith("verdict: fail") and "sequence 2" in text and sequences[2]["tokens"][17] in text


HOSTILE = {
    "{": "line 1",
    '{"token_ids": [1, 2], "logprobs": [0.5, "x"]}': "logprobs",
    '{"token_ids": [1, 2, 3], "logprobs": [0.5]}': "logprobs",
    '{"token_ids": {"a": 1}}': "token_ids",
    '{"other": 1}': "logprobs",
    "[1, 2]": "value",
    '{"token_ids": [1, 2], "logprobs": [null, null]}': "no log-probability",
    '{"token_ids": [1, 2], "logprobs": [null, -1]}\n{"token_ids": [1, 2], "logprobs": [null, -1, -2]}': "line 2",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_bad_files_are_named(lastbit, pair, tmp_path, text):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(text)
    done = lastbit.run("parity", pair[0], bad)
    assert done.returncode in (125, 128) and "bad.jsonl" in done.stderr and HOSTILE[text] in done.stderr


def test_a_missing_file_and_bad_options_are_said(lastbit, pair, tmp_path):
    assert "nowhere.jsonl" in lastbit.run("parity", pair[0], tmp_path / "nowhere.jsonl", expect=(125, 128)).stderr
    assert lastbit.run("parity", pair[0], pair[0], "--threshold", "-1").returncode == 129
    assert lastbit.run("parity", pair[0]).returncode == 129


def nan_at(logprobs, places):
    """The same numbers, NaN at (sequence, token)s."""
    return [dict(s, logprobs=[math.nan if (n, t) in places else p for t, p in enumerate(s["logprobs"])]) for n, s in enumerate(logprobs)]


@pytest.mark.parametrize(
    "places",
    [
        {(2, 17)},
        {(1, t) for t in range(20, TOKENS)},  # a cache that broke
        {(3, t) for t in range(TOKENS)},  # a sequence by itself
        {(n, t) for n in range(SEQUENCES) for t in range(TOKENS)},
    ],
    ids=["one token", "from a token on", "a sequence", "all"],
)
@pytest.mark.parametrize("second", [False, True])
def test_nan_on_one_side_fails_and_is_named(lastbit, tmp_path, places, second):
    whole, broken = Side().sequences(), nan_at(Side().sequences(), places)
    a, b = write(tmp_path / "a", broken), write(tmp_path / "b", whole)
    answer = lastbit.json("parity", *((b, a) if second else (a, b)), expect=1)
    assert answer["verdict"] == "fail" and "nan" in kinds_of(answer)
    (finding,) = [f for f in answer["findings"] if f["kind"] == "nan"]
    expected = sorted((n, t) for n, t in places if t > 0)
    assert f"{'second' if second else 'first'} side's log-probability of {len(expected)} token" in finding["message"]
    assert "sequence %d (s%d), token %d;" % (expected[0][0], expected[0][0], expected[0][1]) in finding["message"]


def test_nan_of_tensors_is_named_too(lastbit, tmp_path):
    side = Side()
    broken = side.logprobs.astype(np.float32)
    broken[2, 10:] = np.nan
    np.savez(tmp_path / "a.npz", token_ids=side.ids, logprobs=side.logprobs)
    np.savez(tmp_path / "b.npz", token_ids=side.ids, logprobs=broken)
    answer = lastbit.json("parity", tmp_path / "a.npz", tmp_path / "b.npz", expect=1)
    assert kinds_of(answer) == ["nan"] and f"of {TOKENS - 11} tokens" in answer["findings"][0]["message"]


def test_nan_of_what_nobody_scored_is_no_finding(lastbit, tmp_path):
    """The prompt before the first number, a kind that a side scores nowhere, and what is NaN on both sides."""
    whole = Side().sequences()
    prompt = write(tmp_path / "prompt", nan_at(whole, {(n, t) for n in range(SEQUENCES) for t in range(9)}))
    kinds = [dict(s, kinds=["user" if t % 10 < 4 else "generated" for t in range(TOKENS)]) for s in whole]
    turns = write(tmp_path / "turns", nan_at(kinds, {(n, t) for n in range(SEQUENCES) for t in range(TOKENS) if t % 10 < 4}))
    both = write(tmp_path / "both", nan_at(whole, {(1, 20), (4, 5)}))
    for a, b in [(prompt, write(tmp_path / "whole", whole)), (turns, write(tmp_path / "kinds", kinds)), (both, both)]:
        assert kinds_of(lastbit.json("parity", a, b, expect=0)) == []
