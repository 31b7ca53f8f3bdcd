"""Logs as other trainers print them, from the format strings of their published sources: what is read of them, and under which names."""

import json
import math
import random
import struct

import pytest
import run_logs as logs

STEPS = 200


def losses(seed=1):
    rng = random.Random(seed)
    return [3 + 7 * math.exp(-i / 80) + rng.gauss(0, 0.05) for i in range(STEPS)]


LOSS = losses()
NORM = [1.2 + 0.5 * x for x in (random.Random(2).random() for _ in range(STEPS))]


def nanogpt():
    """Evaluations stand between the steps, with a loss of their own."""
    out = "tokens per iteration will be: 491,520\nnumber of parameters: 10.65M\n"
    for i, loss in enumerate(LOSS):
        if i % 50 == 0:
            out += f"step {i}: train loss {loss + 1:.4f}, val loss {loss + 1:.4f}\nsaving checkpoint to out\n"
        out += f"iter {i}: loss {loss:.4f}, time {100 + i / 100:.2f}ms, mfu 12.34%\n"
    return out


def modded_nanogpt():
    head = "import os\nimport sys\n" + "=" * 100 + "\nRunning Python 3.12\n"
    return head + "".join(f"step:{i}/{STEPS} train_loss:{x:.4f} train_time:{100 * i}ms step_avg:100.10ms\n" for i, x in enumerate(LOSS))


def torchtitan(coloured):
    red, green, orange, yellow, reset = ("\x1b[31m", "\x1b[32m", "\x1b[38;2;180;60;0m", "\x1b[33m", "\x1b[39m") if coloured else [""] * 5
    head = "[titan] 2025-06-01 10:00:00,123 - root - INFO - Starting job: Llama 3 debug training\n"
    return head + "".join(
        f"[titan] 2025-06-01 10:00:{i % 60:02d},123 - root - INFO - {red}step: {i:2}  {green}loss: {x:8.5f}  {orange}grad_norm: {n:7.4f}  "
        f"{yellow}memory:  0.95GiB(1.00%)  tps: {12345 + i:,}  tflops: 12.34  mfu: 1.23%{reset}\n"
        for i, (x, n) in enumerate(zip(LOSS, NORM, strict=True))
    )


def torchtune():
    return "".join(
        f"Step {i} | loss:{x} lr:2e-05 tokens_per_second_per_gpu:1234.5 grad_norm:{n} peak_memory_active:12.3 \n"
        for i, (x, n) in enumerate(zip(LOSS, NORM, strict=True))
    )


def litgpt():
    head = "Seed set to 42\nTime to instantiate model: 0.05 seconds.\n"
    return head + "".join(
        f"Epoch 1 | iter {i} step {i} | loss train: {x:.3f}, val: n/a | iter time: 321.10 ms (step) remaining time: 1 day\n"
        for i, x in enumerate(LOSS)
    )


def lightning():
    """One line that is written over and over; steps begin anew with each epoch."""
    return "GPU available: True\n" + "".join(
        f"\rEpoch {i // 100}: {i % 100:3d}%|###       | {i % 100}/100 [00:01<00:09, 10.00it/s, v_num=0, train_loss={x:.3f}, grad_norm={n:.2f}]"
        for i, (x, n) in enumerate(zip(LOSS, NORM, strict=True))
    )


def deepspeed():
    """`skipped` counts all so far."""
    return "[2024-01-01 12:00:00,123] [INFO] [comm.py:637:init_distributed] cdb=None\n" + "".join(
        f"[2024-01-01 12:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={i}, skipped=2, lr=[0.0001], mom=[(0.9, 0.999)]\n"
        f"steps: {i} loss: {x:.4f} iter time (s): 0.123 samples/sec: 123.456\n"
        for i, x in enumerate(LOSS)
    )


def olmo():
    """The step has a line of its own; numbers above a thousand have commas."""
    return "".join(
        f"2024-01-01 12:00:00.123\thost:0\tolmo.train:967\tINFO\t[step={i}/{STEPS},epoch=0]\n    optim/total_grad_norm={n:.4f}\n"
        f"    train/CrossEntropyLoss={x:.3f}\n    train/Perplexity={int(math.exp(x)):,}\n    throughput/device/tokens_per_second=12,345\n"
        for i, (x, n) in enumerate(zip(LOSS, NORM, strict=True))
    )


def megatron():
    return "".join(
        f" [2024-05-01 10:00:00] iteration {i:8d}/{STEPS:8d} | consumed samples: {16 * i:12d} | elapsed time per iteration (ms): 123.4 | "
        f"learning rate: 1.000000E-04 | lm loss: {x:.6E} | loss scale: 1.0 | grad norm: {n:.3f} | number of skipped iterations:   0 |\n"
        for i, (x, n) in enumerate(zip(LOSS, NORM, strict=True))
    )


def llama_factory():
    return "".join(
        json.dumps({"current_steps": i, "total_steps": STEPS, "loss": round(x, 4), "lr": 5e-5, "epoch": i / 10, "elapsed_time": "0:00:10"}) + "\n"
        for i, x in enumerate(LOSS)
    )


def colons():
    return "".join(f"epoch: 0 step: {i} loss: {x:.4f} grad_norm: {n:.3f} lr: 1e-4\n" for i, (x, n) in enumerate(zip(LOSS, NORM, strict=True)))


def equals():
    return "".join(f'2025-01-01T00:00:00Z level=info msg="train step" step={i} loss={x:.4f} lr=1e-4\n' for i, x in enumerate(LOSS))


def wandb_table():
    head = '"Step","brisk-sun-3 - train/loss","brisk-sun-3 - train/loss__MIN","brisk-sun-3 - train/loss__MAX"\n'
    return head + "".join(f'"{i}","{x}","{x - 9}","{x + 9}"\n' for i, x in enumerate(LOSS))


def wandb_history():
    return "".join(
        json.dumps({"_step": i, "_runtime": 1.5 * i, "_timestamp": 1.7e9 + i, "eval/loss": 99.0, "train/loss": x, "train/grad_norm": n}) + "\n"
        for i, (x, n) in enumerate(zip(LOSS, NORM, strict=True))
    )


@pytest.mark.parametrize(
    "log, loss, norm",
    [
        (nanogpt, "loss", None),
        (modded_nanogpt, "train_loss", None),
        (lambda: torchtitan(False), "loss", "grad_norm"),
        (lambda: torchtitan(True), "loss", "grad_norm"),
        (torchtune, "loss", "grad_norm"),
        (litgpt, "loss train", None),
        (lightning, "train_loss", "grad_norm"),
        (deepspeed, "loss", None),
        (olmo, "train/CrossEntropyLoss", "optim/total_grad_norm"),
        (megatron, "lm loss", "grad norm"),
        (llama_factory, "loss", None),
        (colons, "loss", "grad_norm"),
        (equals, "loss", None),
        (wandb_table, "brisk-sun-3 - train/loss", None),
        (wandb_history, "train/loss", "train/grad_norm"),
    ],
    ids="nanogpt modded titan coloured torchtune litgpt lightning deepspeed olmo megatron factory colons equals wandb-table wandb".split(),
)
def test_a_log_is_read_as_it_was_written(lastbit, tmp_path, log, loss, norm):
    path = tmp_path / "train.log"
    path.write_text(log())
    answer = lastbit.json("watch", path, expect=0)
    assert (answer["steps"], answer["first_step"], answer["last_step"], answer["numbered"]) == (STEPS, 0, STEPS - 1, 0)
    series = {s["field"]: s for s in answer["series"]}
    assert (series["loss"]["name"], series["loss"]["rows"]) == (loss, STEPS) and series["loss"]["judged_from"] == 63
    assert (series["gnorm"]["name"], series["gnorm"]["rows"]) == (norm, STEPS if norm else 0)
    assert answer["curves"]["loss"] == pytest.approx(LOSS, abs=6e-4)
    if norm:
        assert answer["curves"]["grad_norm"] == pytest.approx(NORM, abs=6e-3)
    read = lastbit.run("watch", path, expect=0).stdout.splitlines()[1]
    assert read.startswith(f"read      loss from {loss}, {STEPS} rows; gradient norm") and read.endswith("the model judges from step 63")


def test_lines_of_a_console_without_steps_are_counted(lastbit, tmp_path):
    """transformers prints dictionaries, between bars; newer versions quote the numbers."""
    head = "Some weights were not initialized\n***** Running training *****\n  Num examples = 1,000\n"
    rows = "".join(
        f"\r {i // 2}%|#     | {i}/{STEPS} [00:10<10:00]\n{{'loss': '{x:.4f}', 'grad_norm': '1.5', 'epoch': '0.1'}}\n" for i, x in enumerate(LOSS)
    )
    path = tmp_path / "console.log"
    path.write_text(head + rows)
    answer = lastbit.json("watch", path, expect=0)
    assert (answer["steps"], answer["numbered"], answer["bad_lines"]) == (STEPS, STEPS, 0)
    assert f"no step in {STEPS} of {STEPS} rows: rows are counted instead" in lastbit.run("watch", path).stdout


def test_metrics_of_mlflow(lastbit, tmp_path):
    run = tmp_path / "mlruns" / "0" / "abc"
    (run / "metrics" / "train").mkdir(parents=True)
    for name, numbers in {"train/loss": LOSS, "grad_norm": NORM, "val_loss": NORM}.items():
        (run / "metrics" / name).write_text("".join(f"{1700000000000 + i} {x} {i}\n" for i, x in enumerate(numbers)))
    for path in (run, run / "metrics"):
        answer = lastbit.json("watch", path, expect=0)
        assert (answer["format"], answer["steps"]) == ("mlflow", STEPS)
        series = {s["field"]: (s["name"], s["rows"]) for s in answer["series"]}
        assert (series["loss"], series["gnorm"]) == (("train/loss", STEPS), ("grad_norm", STEPS))
    assert lastbit.json("watch", run / "metrics" / "train" / "loss", expect=0)["steps"] == STEPS


def test_a_detector_without_a_series_or_with_few_rows_is_not_silent(lastbit, tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(f"iter {i}: loss {x:.4f}, time 100.00ms\n" for i, x in enumerate(LOSS[:20])))
    text = lastbit.run("watch", path, expect=0).stdout
    assert "gradient norm: none in this log" in text and "the model cannot judge yet: it needs 64 rows of a loss or a norm" in text
    assert "grad_norm rule has nothing to read; model has nothing to read" in text and "model cannot judge yet, after 20 rows" in text
    assert "silent" not in text


def test_names_are_offered_where_no_line_is_known_for_a_step(lastbit, tmp_path):
    pairs, table = tmp_path / "train.log", tmp_path / "train.csv"
    pairs.write_text("Loading 3 shards\n" + "".join(f"round={i} objective={x:.4f} size_of_g=1.0\n" for i, x in enumerate(LOSS)))
    table.write_text("round,objective,size_of_g\n" + "".join(f"{i},{x:.4f},1.0\n" for i, x in enumerate(LOSS)))
    for path in (pairs, table):
        text = lastbit.run("watch", path, expect=128).stdout
        assert "--field step=NAME and --field loss=NAME, where NAME is one of round, objective, size_of_g\n" in text, text
        answer = lastbit.json("watch", path, "--field", "step=round", "--field", "loss=objective", expect=0)
        assert answer["series"][0]["name"] == "objective" and answer["series"][0]["rows"] == len(LOSS)


def test_names_that_were_not_read_are_offered(lastbit, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"step": i, "objective": x, "norm_of_g": 1.0}) + "\n" for i, x in enumerate(LOSS)))
    done = lastbit.run("watch", path, expect=125)
    assert "--field loss=NAME, where NAME is one of objective, norm_of_g" in done.stdout and "undecided" in done.stdout
    assert lastbit.json("watch", path, expect=125)["unread"] == ["objective", "norm_of_g"]
    answer = lastbit.json("watch", path, "--field", "loss=objective", "--field", "gnorm=norm_of_g", expect=0)
    assert [(s["field"], s["name"]) for s in answer["series"][:2]] == [("loss", "objective"), ("gnorm", "norm_of_g")]


def test_half_of_the_lines_unreadable_is_not_clean(lastbit, tmp_path):
    path = tmp_path / "train.log"
    good = [f"step {i}/200 | loss: {x:.4f} | gnorm: 1.0" for i, x in enumerate(LOSS)]
    path.write_text("".join(line + "\n@@ %#$ corrupted\n" for line in good))
    done = lastbit.run("watch", path, expect=125)
    assert "200 of its lines could not be read, 200 could" in done.stderr and "undecided" in done.stdout
    path.write_text("".join(json.dumps({"step": i, "loss": x}) + ("\n" if i % 2 else '\n{"step": 5, "los\n{"step\n') for i, x in enumerate(LOSS)))
    assert lastbit.json("watch", path, expect=125)["verdict"] == "undecided"


def test_tags_in_folders(lastbit, tmp_path):
    out = b""
    for i, x in enumerate(LOSS):
        head = struct.pack("<Bd", 1 << 3 | 1, 1.0e9 + i) + bytes([2 << 3]) + bytes([i] if i < 128 else [i & 127 | 128, i >> 7])
        for tag, value in (("Loss/val", 99.0), ("Loss/train", x), ("opt/groups/grad_norm", NORM[i])):
            body = logs.scalar(tag, value, None)
            out += logs.frame(head + logs._bytes(5, logs._bytes(1, body)))
    (tmp_path / "events.out.tfevents.1.host").write_bytes(out)
    answer = lastbit.json("watch", tmp_path, expect=0)
    series = {s["field"]: s for s in answer["series"]}
    assert (series["loss"]["name"], series["gnorm"]["name"]) == ("Loss/train", "opt/groups/grad_norm")
    assert answer["curves"]["loss"] == pytest.approx(LOSS, abs=1e-5)


def test_half_of_the_lines_being_no_text_is_undecided(lastbit, tmp_path):
    """Bytes that are none of a terminal's, from the first line on; a coloured preamble is text."""
    steps = [f"step {i} | loss: {2 + 0.01 * (i % 7):.4f} | lr: 1e-3".encode() for i in range(200)]
    log = tmp_path / "run.log"
    log.write_bytes(b"".join(b"\xff\x00\x81 torn\n" + line + b"\n" for line in steps))
    assert lastbit.json("watch", log, expect=125)["verdict"] == "undecided"
    log.write_bytes(b"\x1b[32mstarting\x1b[0m\nreading the data\n" * 120 + b"\n".join(steps) + b"\n")
    assert lastbit.json("watch", log, expect=0)["verdict"] == "clean"
