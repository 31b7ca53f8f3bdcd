"""One case from its draw to its score: drawn by seed, confirmed in plain torch, recorded as two captures, asked of lastbit, judged.

Everything that needs PyTorch runs in a fork of a process that has it loaded, so that a case costs no import and leaves nothing behind."""

import fnmatch
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from types import MappingProxyType

import change_catalogue
import fault_models
from fault_world import OPTIMIZERS, PRECISIONS, Run

QUESTIONS = ("diff", "mirrored", "bisect", "alone")
SCORES = ("exact", "partly", "undecided", "wrong")


# ---- drawing


def kinds(innocent):
    return sorted(name for name, change in change_catalogue.TABLE.items() if change.innocent == innocent)


def draw(seed, number, only=None, programs=None, fixed=MappingProxyType({}), share=0.5):
    """The number-th case of a seed; `fixed` entries of it are given, `share` is that of the library's architectures."""
    dice = random.Random(f"{seed}/{number}")
    for _ in range(50):
        case = drawn(dice, only, programs, fixed, share)
        if case:
            return case
    return None


def programs_of(dice, programs, share):
    import fault_architectures

    return programs or (fault_architectures.names() if dice.random() < share else fault_models.OWN)


def drawn(dice, only, programs, fixed, share):
    shape = dice.random()
    if only:
        names = [only] if isinstance(only, str) else only
    elif shape < 0.55:
        names = [dice.choice(kinds(False))]
    elif shape < 0.75:
        names = [dice.choice(kinds(True))]
    elif shape < 0.85:
        names = dice.sample(kinds(True), dice.choice([2, 3]))
    else:
        names = [dice.choice(kinds(True)), dice.choice(kinds(False))]
    for _ in range(30):
        mode = "serve" if dice.random() < 0.25 else "train"
        case = {
            "seed": dice.randrange(1 << 30),
            "program": dice.choice(programs_of(dice, programs, share)),
            "optimizer": dice.choice(OPTIMIZERS),
            "precision": dice.choice(PRECISIONS),
            "mode": mode,
            "steps": dice.choice([2, 2, 3]),
            "changes": [[name, dice.randrange(1 << 30)] for name in names],
        }
        if any(change_catalogue.TABLE[name].family == "ranks" for name in names) or not only and dice.random() < 0.02:
            case.update(
                ranks=2,
                mode="train",
                steps=2,
                program=dice.choice(["tiny", "gpt", "mixer"]),
                precision=dice.choice(["fp32", "bf16"]),
                optimizer=dice.choice(["sgd", "adamw", "adamw-foreach"]),
            )
        if case["mode"] == "train" and case["steps"] == 3 and "ranks" not in case and dice.random() < 0.15:
            case["window"] = "1-2"
        case.update(fixed)
        serves = case["mode"] == "serve"
        if serves and case["precision"] == "fp16-scaler" or case["program"] == "chooser" and not serves:
            continue
        if serves:
            case.update(optimizer="adamw", steps=case["steps"] if case["program"] in ("gpt", "moe") or case["program"].startswith("causal/") else 1)
        if all(change_catalogue.TABLE[name].fits(case) for name in names):
            return case
    return None


# ---- confirming and recording, in a fork


def warm():
    """Loads what runs load late, before anything forks."""
    import transformers.modeling_utils  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    for name in OPTIMIZERS:
        Run({"seed": 0, "program": "mixer", "optimizer": name, "precision": "fp16-scaler", "mode": "train", "steps": 1, "changes": []}).execute()


def prepare(case, folder):
    """Confirms the truth and records both sides; what is true, or {"redrawn": why}."""
    import fault_truth

    changed = Run(case, changed=True)
    faults = [t for t, (name, _) in zip(changed.truths, ordered(case)) if not change_catalogue.TABLE[name].innocent]
    truth = faults[0] if faults else None
    why = fault_truth.confirm_fault(case, truth) if faults else fault_truth.confirm_innocent(case)
    if why:
        return {"redrawn": why}
    import lastbit.torch

    for side, other in (("a", False), ("b", True)):
        with lastbit.torch.capture(os.path.join(folder, side + ".lb"), level="ops", steps=case.get("window", "")):
            Run(case, changed=other).execute()
    return {"truth": seen_from(case, truth)}


def seen_from(case, truth):
    """A window that begins after the fault shows what it did to the parameters: a source that differs, and no more can be known."""
    first = int(case.get("window", "0").split("-")[0])
    if truth is None or truth["step"] >= first:
        return truth
    return change_catalogue.truth(
        first,
        "forward",
        ["*"],
        axis=["source", *truth["axis"]],
        inside=False,
        moments=[(first, phase) for phase in ("backward", "optimizer", "other")],
    )


def prepare_ranks(case, folder):
    """The same by several processes: a rank that sees the fault confirms it."""
    import torch.distributed as dist

    children = []
    for rank in range(case["ranks"]):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case["ranks"]), LOCAL_WORLD_SIZE=str(case["ranks"]))
                dist.init_process_group("gloo", init_method=f"file://{folder}/door", rank=rank, world_size=case["ranks"])
                answer = prepare_rank(case, folder)
                pathlib.Path(folder, f"rank{rank}.json").write_text(json.dumps(answer))
                dist.barrier()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    if any([os.waitpid(child, 0)[1] for child in children]):
        return {"redrawn": "error: a rank failed"}
    said = [json.loads(pathlib.Path(folder, f"rank{rank}.json").read_text()) for rank in range(case["ranks"])]
    return next((answer for answer in said if "redrawn" not in answer), said[0])


def prepare_rank(case, folder):
    """Both ranks record, whatever the truth: a rank that leaves would leave the other one waiting."""
    import fault_truth
    import lastbit.torch

    changed = Run(case, changed=True)
    faults = [t for t, (name, _) in zip(changed.truths, ordered(case)) if not change_catalogue.TABLE[name].innocent]
    why = fault_truth.confirm_fault(case, faults[0]) if faults else fault_truth.confirm_innocent(case)
    for side, other in (("a", False), ("b", True)):
        with lastbit.torch.capture(os.path.join(folder, side + ".lb"), level="ops"):
            Run(case, changed=other).execute()
    return {"redrawn": why} if why else {"truth": faults[0] if faults else None}


def ordered(case):
    """Changes in the order in which a run makes them: the early ones first."""
    return sorted(case["changes"], key=lambda c: not change_catalogue.TABLE[c[0]].early)


def prepared(case, folder):
    """`prepare` in a fork."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "truth.json"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(200)  # whatever it waits for
        try:
            with open(folder / "log", "w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            try:
                answer = (prepare_ranks if case.get("ranks", 1) > 1 else prepare)(case, folder)
            except change_catalogue.Unfit:
                answer = {"redrawn": "no place for it"}
            out.write_text(json.dumps({"case": case, **answer}, indent=1))
            status = 0
        except BaseException:
            traceback.print_exc()
            out.write_text(json.dumps({"case": case, "redrawn": "error: " + traceback.format_exc().strip().splitlines()[-1]}))
        finally:
            os._exit(status)
    os.waitpid(child, 0)
    return json.loads(out.read_text()) if out.exists() else {"case": case, "redrawn": "killed"}


# ---- a process of its own


class Server:
    """`prepared` in a process that has loaded PyTorch and nothing else: a fork of a process in which other code has used PyTorch's threads
    may wait for these for ever. What takes longer than `limit` seconds is ended, and the process with it."""

    def __init__(self, limit=240):
        self.limit, self.process = limit, None

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
        )

    def stop(self):
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def prepared(self, case, folder):
        if not self.process or self.process.poll() is not None:
            self.start()
        self.process.stdin.write(json.dumps([case, str(folder)]) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], self.limit)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.stop()
            return {"case": case, "redrawn": "killed: no answer in %d s" % self.limit}
        return json.loads(line)


def serve():
    import torch

    answers = os.fdopen(os.dup(1), "w")
    torch.set_num_threads(1)
    warm()
    for line in sys.stdin:
        case, folder = json.loads(line)
        answers.write(json.dumps(prepared(case, pathlib.Path(folder))) + "\n")
        answers.flush()


# ---- asking


def ask(binary, *words):
    """(exit code, what it said as JSON)."""
    try:
        done = subprocess.run([str(binary), words[0], "--json", *map(str, words[1:])], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return 124, {"error": "timeout"}
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, {"error": (done.stderr or done.stdout)[-400:]}


def ask_all(binary, folder, truth):
    a, b = folder / "a.lb", folder / "b.lb"
    answers = {"diff": ask(binary, "diff", a, b), "mirrored": ask(binary, "diff", b, a), "bisect": ask(binary, "bisect", b, "--against", a, "-q")}
    if truth and truth["fails"]:
        answers["alone"] = ask(binary, "bisect", b, "-q")
    return answers


# ---- judging


def names_group(parameter):
    return (parameter or "").startswith(("the parameters of group", "all parameters"))


def placed(truth, layer, step, phase, parameter=None):
    """How well a place agrees: exact, partly or wrong. A fault of a whole group is in it, not in one of its parameters."""
    layer = layer or ""
    here = any(fnmatch.fnmatchcase(layer, place) for place in truth["exact"]) or (truth.get("group", False) and names_group(parameter))
    near = layer in truth["near"]
    in_time = [step, phase] in truth["moments"] or (truth["step"] < step <= truth["step"] + truth["delay"] and phase == truth["phase"])
    if here and in_time:
        return "exact"
    return "partly" if here or (near and in_time) else "wrong"


def of_rank(truth, score, ranks):
    """A place on another rank than the fault's is right in part at most."""
    wanted = truth.get("ranks") or []
    return "partly" if score == "exact" and wanted and not set(ranks) & set(wanted) else score


def judge_diff(truth, code, answer):
    verdict = answer.get("verdict")
    if verdict is None or code not in (0, 1, 125):
        return "undecided" if code == 125 else "wrong", "exit code %d: %s" % (code, answer.get("error"))
    first = answer.get("first") or {}
    said = "%s at %s %s, %s of step %s" % (verdict, first.get("layer"), first.get("op"), first.get("phase"), first.get("step"))
    if truth is None:
        return ("wrong" if verdict == "diverged" else "undecided" if code == 125 or verdict in ("missing", "opaque") else "exact"), said
    if (code == 125 or verdict in ("missing", "opaque")) and verdict not in truth["verdict"]:
        return "undecided", said
    if verdict not in truth["verdict"]:
        return "wrong", said
    return of_rank(
        truth, placed(truth, first.get("layer"), first.get("step", -1), first.get("phase"), first.get("parameter")), [first.get("rank")]
    ), said


def judge_bisect(truth, code, answer):
    outcome, culprit = answer.get("outcome"), answer.get("culprit") or {}
    said = "%s %s at %s %s, %s of step %s" % (
        outcome,
        culprit.get("axis"),
        culprit.get("layer"),
        culprit.get("op"),
        culprit.get("phase"),
        culprit.get("step"),
    )
    if outcome is None:
        return "undecided" if code == 125 else "wrong", "exit code %d: %s" % (code, answer.get("error"))
    if code == 125 or outcome in ("undecided", "not-reproduced"):
        return "exact" if truth and "missing" in truth["verdict"] else "undecided", said
    harmless = outcome == "clean" or culprit.get("axis") in ("kernel", "order", "precision")
    if truth is None:
        return "exact" if harmless else "wrong", said
    if outcome == "clean" or (harmless and culprit.get("axis") not in truth["axis"]):
        return "wrong", said
    place = of_rank(
        truth,
        placed(truth, culprit.get("layer"), culprit.get("step", -1), culprit.get("phase"), culprit.get("parameter")),
        culprit.get("ranks") or [],
    )
    return ("partly" if place == "exact" and truth["axis"] and culprit["axis"] not in truth["axis"] else place), said


def undecidable(case, answers):
    """A window that begins with other parameters on either side: what made them differ lies before it, and "missing" is the answer."""
    first = answers["diff"][1].get("first") or {}
    return (
        "window" in case
        and first.get("verdict") == "missing"
        and first.get("op") == "lb::source"
        and (first.get("step") == int(case["window"].split("-")[0]))
    )


def judge(case, truth, answers):
    """Of each question its score and what was said."""
    scores, honest = {}, undecidable(case, answers)
    for question, (code, answer) in answers.items():
        score, said = (judge_bisect if question in ("bisect", "alone") else judge_diff)(truth, code, answer)
        scores[question] = ("exact" if score == "undecided" and honest else score), said
    one, other = (answers[question][1] for question in ("diff", "mirrored"))
    if one.get("verdict") != other.get("verdict"):
        scores["mirrored"] = "wrong", scores["mirrored"][1] + " (the other way round another verdict)"
    elif place(one) != place(other) and scores["mirrored"][0] == "exact":
        scores["mirrored"] = "partly", scores["mirrored"][1] + " (the other way round another place)"
    return scores


def place(answer):
    """Of a divergence; where a difference of rounding begins may be said in either side's ops."""
    first = answer.get("first") or {}
    return [first.get(key) for key in ("step", "phase", "layer")] if answer.get("verdict") == "diverged" else None


LARGEST = 2 << 30  # bytes of both recordings: some references of fused kernels write intermediates of gigabytes


def trial(binary, case, folder, prepared=prepared):
    """The whole of it: {"case", "redrawn"} or {"case", "truth", "scores": {question: [score, said]}, "seconds"}."""
    began, folder = time.time(), pathlib.Path(folder)
    known = prepared(case, folder)
    if "redrawn" in known:
        return known
    if sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) > LARGEST:
        return {"case": case, "redrawn": "its recordings are larger than %d bytes" % LARGEST}
    between = time.time()
    answers = ask_all(binary, folder, known["truth"])
    known["scores"] = judge(case, known["truth"], answers)
    known["seconds"] = [round(between - began, 2), round(time.time() - between, 2)]
    (folder / "truth.json").write_text(json.dumps(known, indent=1))
    return known


def kind_of(case):
    """The name under which a case is counted: its fault's, or its innocent changes'."""
    names = [name for name, _ in case["changes"]]
    faults = [name for name in names if not change_catalogue.TABLE[name].innocent]
    return faults[0] if faults else names[0] if len(names) == 1 else "composed"


if __name__ == "__main__":
    serve()
