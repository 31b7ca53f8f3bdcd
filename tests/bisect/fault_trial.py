"""One case from its draw to its score: drawn by seed, confirmed in plain torch, recorded as two captures, asked of lastbit, judged.

Everything that needs PyTorch runs in a fork of a process that has it loaded, so that a case costs no import and leaves nothing behind."""
import fnmatch
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import traceback

import change_table
import fault_models
from fault_world import OPTIMIZERS, PRECISIONS, Run

QUESTIONS = ("diff", "mirrored", "bisect", "alone")
SCORES = ("exact", "partly", "undecided", "wrong")


# ---- drawing


def kinds(innocent):
    return sorted(name for name, change in change_table.TABLE.items() if change.innocent == innocent)


def draw(seed, number, only=None, programs=None, fixed={}):
    """The number-th case of a seed; `fixed` entries of it are given."""
    dice = random.Random(f"{seed}/{number}")
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
    for _ in range(500):
        mode = "serve" if dice.random() < 0.15 else "train"
        case = {"seed": dice.randrange(1 << 30), "program": dice.choice(programs or fault_models.OWN), "optimizer": dice.choice(OPTIMIZERS),
                "precision": dice.choice(PRECISIONS), "mode": mode, "steps": dice.choice([2, 2, 3]),
                "changes": [[name, dice.randrange(1 << 30)] for name in names]}
        case.update(fixed)
        serves = case["mode"] == "serve"
        if serves and case["precision"] == "fp16-scaler" or case["program"] == "chooser" and not serves:
            continue
        if serves:
            case.update(optimizer="adamw", steps=case["steps"] if case["program"] in ("gpt", "moe") else 1)
        if all(change_table.TABLE[name].fits(case) for name in names):
            return case
    return None


# ---- confirming and recording, in a fork


def warm():
    """Loads what runs load late, before anything forks."""
    for name in OPTIMIZERS:
        Run({"seed": 0, "program": "mixer", "optimizer": name, "precision": "fp16-scaler", "mode": "train", "steps": 1, "changes": []}).execute()


def prepare(case, folder):
    """Confirms the truth and records both sides; what is true, or {"redrawn": why}."""
    import fault_truth

    changed = Run(case, changed=True)
    faults = [t for t, (name, _) in zip(changed.truths, ordered(case)) if not change_table.TABLE[name].innocent]
    truth = faults[0] if faults else None
    why = fault_truth.confirm_fault(case, truth) if faults else fault_truth.confirm_innocent(case)
    if why:
        return {"redrawn": why}
    import lastbit.torch

    for side, other in (("a", False), ("b", True)):
        with lastbit.torch.capture(os.path.join(folder, side + ".lb"), level="ops", steps=case.get("window", "")):
            Run(case, changed=other).execute()
    return {"truth": truth}


def ordered(case):
    """Changes in the order in which a run makes them: the early ones first."""
    return sorted(case["changes"], key=lambda c: not change_table.TABLE[c[0]].early)


def prepared(case, folder):
    """`prepare` in a fork."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "truth.json"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with open(folder / "log", "w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            try:
                answer = prepare(case, folder)
            except change_table.Unfit:
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


def placed(truth, layer, step, phase):
    """How well a place agrees: exact, partly or wrong."""
    layer = layer or ""
    here = any(fnmatch.fnmatchcase(layer, place) for place in truth["exact"])
    near = layer in truth["near"]
    in_time = [step, phase] in truth["moments"] or (truth["step"] < step <= truth["step"] + truth["delay"] and phase == truth["phase"])
    if here and in_time:
        return "exact"
    return "partly" if here or (near and in_time) else "wrong"


def judge_diff(truth, code, answer):
    verdict = answer.get("verdict")
    if verdict is None or code not in (0, 1, 125):
        return "undecided" if code == 125 else "wrong", "exit code %d: %s" % (code, answer.get("error"))
    first = answer.get("first") or {}
    said = "%s at %s %s, %s of step %s" % (verdict, first.get("layer"), first.get("op"), first.get("phase"), first.get("step"))
    if truth is None:
        return ("wrong" if verdict == "diverged" else "undecided" if code == 125 or verdict in ("missing", "opaque") else "exact"), said
    if code == 125 or verdict in ("missing", "opaque"):
        return "undecided", said
    if verdict not in truth["verdict"]:
        return "wrong", said
    return placed(truth, first.get("layer"), first.get("step", -1), first.get("phase")), said


def judge_bisect(truth, code, answer):
    outcome, culprit = answer.get("outcome"), answer.get("culprit") or {}
    said = "%s %s at %s %s, %s of step %s" % (outcome, culprit.get("axis"), culprit.get("layer"), culprit.get("op"), culprit.get("phase"),
                                              culprit.get("step"))
    if outcome is None:
        return "undecided" if code == 125 else "wrong", "exit code %d: %s" % (code, answer.get("error"))
    if code == 125 or outcome in ("undecided", "not-reproduced"):
        return "undecided", said
    harmless = outcome == "clean" or culprit.get("axis") in ("kernel", "order", "precision")
    if truth is None:
        return "exact" if harmless else "wrong", said
    if outcome == "clean" or (harmless and culprit.get("axis") not in truth["axis"]):
        return "wrong", said
    place = placed(truth, culprit.get("layer"), culprit.get("step", -1), culprit.get("phase"))
    return ("partly" if place == "exact" and truth["axis"] and culprit["axis"] not in truth["axis"] else place), said


def judge(truth, answers):
    """Of each question its score and what was said."""
    scores = {}
    for question, (code, answer) in answers.items():
        scores[question] = (judge_bisect if question in ("bisect", "alone") else judge_diff)(truth, code, answer)
    if answers["diff"][1].get("verdict") != answers["mirrored"][1].get("verdict"):
        scores["mirrored"] = "wrong", scores["mirrored"][1] + " (the other way round another verdict)"
    return scores


def trial(binary, case, folder):
    """The whole of it: {"case", "redrawn"} or {"case", "truth", "scores": {question: [score, said]}, "seconds"}."""
    began, folder = time.time(), pathlib.Path(folder)
    known = prepared(case, folder)
    if "redrawn" in known:
        return known
    between = time.time()
    answers = ask_all(binary, folder, known["truth"])
    known["scores"] = judge(known["truth"], answers)
    known["seconds"] = [round(between - began, 2), round(time.time() - between, 2)]
    (folder / "truth.json").write_text(json.dumps(known, indent=1))
    return known


def kind_of(case):
    """The name under which a case is counted: its fault's, or its innocent changes'."""
    names = [name for name, _ in case["changes"]]
    faults = [name for name in names if not change_table.TABLE[name].innocent]
    return faults[0] if faults else names[0] if len(names) == 1 else "composed"
