"""Rollouts as vLLM, SGLang, TRL, verl and slime write them, and the bugs of record between a trainer and a server (NeMo-RL#3297, trl#5312,
miles#2722), of models that transformers runs."""

import json

import numpy as np
import pytest
import torch
import transformers

PROMPT, ANSWER, SEQUENCES, WORDS = 6, 26, 6, 160


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    size = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=WORDS, initializer_range=0.25, **size)).eval()


@torch.no_grad()
def rows_of(model, ids):
    """log p of all words, [sequences, tokens - 1, words]: row t is of token t + 1."""
    return torch.log_softmax(model(input_ids=ids, use_cache=False).logits[:, :-1].double(), -1)


@pytest.fixture(scope="module")
def sampled(model):
    """Sequences that the model sampled token by token, and its rows."""
    torch.manual_seed(1)
    ids = torch.randint(3, WORDS, (SEQUENCES, PROMPT))
    for _ in range(ANSWER):
        with torch.no_grad():
            last = torch.softmax(model(input_ids=ids, use_cache=False).logits[:, -1].double(), -1)
        ids = torch.cat([ids, torch.multinomial(last, 1)], 1)
    return ids, rows_of(model, ids)


def gather(rows, ids):
    return rows.gather(2, ids[:, 1:, None])[..., 0].numpy()


def listed(row, token, count=3):
    """A position as vLLM lists it: the sampled token, then the most probable ones."""
    order = row.argsort(descending=True).tolist()
    words = dict.fromkeys([int(token), *order[:count]])
    return {str(w): dict(logprob=row[w].item(), rank=order.index(w) + 1, decoded_token=f"w{w}") for w in words}


def positions(rows, ids, begin, end):
    return [listed(rows[t - 1], ids[t]) for t in range(begin, end)]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def trainer(sampled, tmp_path_factory):
    ids, rows = sampled
    path = tmp_path_factory.mktemp("trainer") / "trainer.npz"
    np.savez(path, token_ids=ids.numpy(), logprobs=gather(rows, ids))
    return path


def k3(p, q):
    d = p - q
    return (np.expm1(d) - d).mean()


def request_output(n, ids, rows, take=lambda entries, token: entries):
    answer = positions(rows, ids, PROMPT, len(ids))
    return dict(
        request_id=str(n),
        prompt_token_ids=ids[:PROMPT].tolist(),
        prompt_logprobs=[None, *positions(rows, ids, 1, PROMPT)],
        outputs=[dict(index=0, token_ids=ids[PROMPT:].tolist(), logprobs=[take(e, str(int(t))) for e, t in zip(answer, ids[PROMPT:])])],
    )


def slime_sample(n, ids, rows):
    numbers = rows.gather(1, ids[1:, None])[PROMPT - 1 :, 0]
    return dict(
        index=n, tokens=ids.tolist(), response_length=ANSWER, rollout_log_probs=numbers.tolist(), loss_mask=[1] * ANSWER, weight_versions=["4"]
    )


def sglang_answer(n, ids, rows):
    numbers = rows.gather(1, ids[1:, None])[:, 0].tolist()
    triples = [[None, int(ids[0]), None]] + [[x, int(i), None] for x, i in zip(numbers, ids[1:])]
    meta = dict(id=str(n), weight_version="4", input_token_logprobs=triples[:PROMPT], output_token_logprobs=triples[PROMPT:])
    return dict(text="", output_ids=ids[PROMPT:].tolist(), meta_info=meta)


@pytest.mark.parametrize("shape", [request_output, slime_sample, sglang_answer])
def test_what_servers_and_trainers_dump_is_read(lastbit, sampled, trainer, tmp_path, shape):
    ids, rows = sampled
    noisy = torch.log_softmax(rows + 0.01 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(2)), -1)
    server = write(tmp_path / "server.jsonl", [shape(n, ids[n], noisy[n]) for n in range(SEQUENCES)])
    answer = lastbit.json("parity", trainer, server, expect=0)
    first = PROMPT if shape is slime_sample else 1
    assert answer["all"]["count"] == SEQUENCES * (PROMPT + ANSWER - first) and not answer["findings"]
    assert answer["all"]["k3"] == pytest.approx(k3(gather(rows, ids)[:, first - 1 :], gather(noisy, ids)[:, first - 1 :]), rel=1e-9)
    assert answer["coverage"]["second"]["unscored"] == (SEQUENCES * (PROMPT - 1) if shape is slime_sample else 0)


def test_completions_alone_and_tensors_of_trainers_are_read(lastbit, sampled, tmp_path):
    ids, rows = sampled
    answer, numbers = ids[:, PROMPT:], gather(rows, ids)[:, PROMPT - 1 :]
    trl = write(tmp_path / "trl.json", [dict(prompt_ids=ids[:, :PROMPT].tolist(), completion_ids=answer.tolist(), logprobs=numbers.tolist())])
    later = dict(completion_ids=answer.tolist(), logprobs=numbers[..., None].tolist(), logprob_token_ids=answer[..., None].tolist())
    np.savez(tmp_path / "verl.npz", responses=answer.numpy(), old_log_probs=numbers, response_mask=np.ones(answer.shape))
    for other in (tmp_path / "verl.npz", write(tmp_path / "later.json", [later])):
        compared = lastbit.json("parity", trl, other, expect=0)
        assert compared["all"]["count"] == SEQUENCES * ANSWER and compared["all"]["k3"] == 0


@pytest.mark.parametrize("first_listed", ["sampled", "most probable"])
def test_the_number_of_the_first_entry_is_named(lastbit, sampled, trainer, tmp_path, first_listed):
    """NeMo-RL#3297: a position lists several words, and the worker takes the first one. Whatever the order, the dump itself is read right."""
    ids, rows = sampled

    def order(entries, token):
        ranked = sorted(entries.items(), key=lambda e: e[1]["rank"])
        return dict(ranked if first_listed == "most probable" else entries.items())

    dumps = [request_output(n, ids[n], rows[n], order) for n in range(SEQUENCES)]
    assert lastbit.json("parity", trainer, write(tmp_path / "dump.jsonl", dumps), expect=0)["all"]["k3"] < 1e-20
    taken = [[next(iter(e.values()))["logprob"] for e in d["outputs"][0]["logprobs"]] for d in dumps]
    lines = [dict(token_ids=ids[n, PROMPT:].tolist(), logprobs=taken[n]) for n in range(SEQUENCES)]
    for line, d in zip(lines, dumps):
        line["top_logprobs"] = [[dict(token_id=int(i), logprob=e["logprob"]) for i, e in p.items()] for p in d["outputs"][0]["logprobs"]]
    worker = write(tmp_path / "worker.jsonl", lines)
    np.savez(tmp_path / "answers.npz", token_ids=ids[:, PROMPT:].numpy(), logprobs=gather(rows, ids)[:, PROMPT - 1 :])
    answer = lastbit.json("parity", tmp_path / "answers.npz", worker, expect=0 if first_listed == "sampled" else 1)
    assert {f["kind"] for f in answer["findings"]} == (set() if first_listed == "sampled" else {"argmax"})


def weights_dropped(model, sampled):
    """trl#5312: sleep level 2 drops the weights, and nothing loads them again."""
    broken = transformers.LlamaForCausalLM(model.config).eval()
    with torch.no_grad():
        for weight in broken.parameters():
            weight.zero_()
    return broken


def weights_old(model, sampled):
    """The same bug when the memory still holds what was loaded at start."""
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(model.config).eval()


@pytest.mark.parametrize("fault, cause", [(weights_dropped, "constant"), (weights_old, "untold")])
def test_weights_that_were_dropped_are_told_from_old_ones(lastbit, model, sampled, trainer, tmp_path, fault, cause):
    ids, _ = sampled
    rows = rows_of(fault(model, sampled), ids)
    np.savez(tmp_path / "server.npz", token_ids=ids.numpy(), logprobs=gather(rows, ids))
    answer = lastbit.json("parity", trainer, tmp_path / "server.npz", expect=1)
    (finding,) = answer["findings"]
    assert finding["kind"] == cause
    assert ("1 of 160" if cause == "constant" else "no other logarithm, no shift") in finding["message"]


@pytest.mark.parametrize("told", [True, False])
def test_a_policy_version_that_lags_is_found_by_its_sequences(lastbit, model, sampled, trainer, tmp_path, told):
    """miles#2722, of its causes the one that sequences show: some were sampled by an older policy."""
    ids, rows = sampled
    older = transformers.LlamaForCausalLM(model.config).eval()
    older.load_state_dict(model.state_dict())
    with torch.no_grad():
        generator = torch.Generator().manual_seed(4)
        for weight in older.parameters():
            weight += 0.03 * torch.randn(weight.shape, generator=generator)
    old = rows_of(older, ids)
    lines = []
    for n in range(SEQUENCES):
        line = sglang_answer(n, ids[n], old[n] if n % 3 == 0 else rows[n] + 1e-4 * torch.randn(rows[n].shape, generator=generator))
        line["meta_info"]["weight_version"] = ("3" if n % 3 == 0 else "4") if told else "4"
        lines.append(line)
    answer = lastbit.json("parity", trainer, write(tmp_path / "server.jsonl", lines), expect=1)
    (finding,) = answer["findings"]
    assert finding["kind"] == ("version" if told else "sequences")
    assert ("version 4 of the weights agree (4 of them" if told else "4 of 6 sequences agree") in finding["message"]


def test_several_causes_at_once_leave_no_wrong_name(lastbit, model, sampled, tmp_path):
    """miles#2722: a checkpoint read wrongly, other kernels and token semantics together. What explains a part alone is not called the cause."""
    ids, rows = sampled
    torch.manual_seed(5)
    other = torch.log_softmax((rows + 0.4 * torch.randn_like(rows)) / 0.95, -1)
    np.savez(tmp_path / "a.npz", token_ids=ids.numpy(), logits=np.pad(rows.numpy(), ((0, 0), (0, 1), (0, 0))))
    np.savez(tmp_path / "b.npz", token_ids=ids.numpy(), logits=np.pad(other.numpy(), ((0, 0), (0, 1), (0, 0))))
    answer = lastbit.json("parity", tmp_path / "a.npz", tmp_path / "b.npz", expect=1)
    assert [f["kind"] for f in answer["findings"]] == ["untold"]
