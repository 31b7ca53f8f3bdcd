"""`lastbit bisect --run CMD`: the playbook on a live job, a flag for each suspect, judged by exit code or by its log."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

# A job that reads its flags, prints a log and ends as `judge` says of the set of flags that it got.
JOB = """
import os, random, sys, time
given = set(sys.argv[1:])
with open("runs", "a") as f:
    f.write(" ".join(sys.argv[1:]) + "\\n")
run = sum(1 for _ in open("runs"))
{body}
"""


@pytest.fixture
def job(tmp_path):
    """Writes the job, returns a function that bisects it in its own folder."""

    def write(body):
        (tmp_path / "job.py").write_text(JOB.format(body=body))
        return f"{sys.executable} job.py"

    return write


def bisect(lastbit, folder, command, *options, expect=1):
    return lastbit.json("bisect", "-q", "--run", command, *options, expect=expect, cwd=folder)


def runs(folder):
    return (folder / "runs").read_text().splitlines()


FLAGS = [
    "--flag",
    "block:E=--no-experts",
    "--flag",
    "muon=--adamw",
    "--flag",
    "precision=--fp32",
    "--flag",
    "rank:2=--without-2",
    "--flag",
    "block:R=--no-rnn",
]


def test_the_first_stage_whose_flags_cure_is_the_axis(lastbit, job, tmp_path):
    verdict = bisect(lastbit, tmp_path, job("sys.exit(not {'--fp32', '--no-rnn'} & given)"), *FLAGS)
    assert verdict["outcome"] == "found"
    assert verdict["failure"]["kind"] == "predicate" and "exit code 1" in verdict["failure"]["what"]
    assert [(c["axis"], c["block"]) for c in verdict["culprits"]] == [("precision", None)]
    # The playbook's order, not that of the options; nothing is tried once a cure is found.
    assert runs(tmp_path) == ["", "--adamw", "--fp32"]
    assert [s["stage"] for s in verdict["stages"]] == ["run", "muon", "precision"]
    assert [s["outcome"] for s in verdict["stages"]] == ["fails", "cleared", "cured"]
    shown = subprocess.run(verdict["shows"], shell=True, cwd=tmp_path)
    cured = subprocess.run(verdict["cures"], shell=True, cwd=tmp_path)
    assert (shown.returncode, cured.returncode) == (1, 0)


def test_of_one_stage_the_flags_that_it_takes_are_found(lastbit, job, tmp_path):
    verdict = bisect(lastbit, tmp_path, job("sys.exit('--no-rnn' not in given)"), *FLAGS)
    assert [(c["axis"], c["block"]) for c in verdict["culprits"]] == [("block", "R")]
    assert "--no-experts" not in verdict["cures"]


def test_a_rank_is_named_by_its_label(lastbit, job, tmp_path):
    verdict = bisect(lastbit, tmp_path, job("sys.exit('--without-2' not in given)"), *FLAGS)
    assert verdict["culprit"]["axis"] == "rank" and verdict["culprit"]["ranks"] == [2]


def test_culprits_on_several_axes_are_found_together(lastbit, job, tmp_path):
    verdict = bisect(lastbit, tmp_path, job("sys.exit(not {'--adamw', '--no-experts'} <= given)"), *FLAGS)
    assert [c["axis"] for c in verdict["culprits"]] == ["muon", "block"]
    assert subprocess.run(verdict["cures"], shell=True, cwd=tmp_path).returncode == 0
    assert all("the other culprits cured" in c["why"] for c in verdict["culprits"])


def test_flags_go_where_the_braces_are(lastbit, job, tmp_path):
    command = job("sys.exit('--fp32' not in given or sys.argv[-1] != 'last')") + " {} last"
    verdict = bisect(lastbit, tmp_path, command, *FLAGS)
    assert verdict["culprit"]["axis"] == "precision"
    assert verdict["shows"] == command.replace("{}", "")
    assert "--fp32 last" in verdict["cures"]


def test_a_log_tells_failures_by_its_lines(lastbit, job, tmp_path):
    body = "print('step 0 loss 3.2'); print('step 1 loss', 'nan' if '--fp32' not in given else 3.1)"
    verdict = bisect(lastbit, tmp_path, job(body), *FLAGS, "--log", r"loss (nan|inf)")
    assert verdict["culprit"]["axis"] == "precision"
    assert verdict["failure"]["what"] == "it says: step 1 loss nan"


def test_what_cannot_be_tested_is_skipped(lastbit, job, tmp_path):
    # 125, and with --log any other end without the line that would say it.
    verdict = bisect(lastbit, tmp_path, job("sys.exit(125 if '--adamw' in given else '--fp32' not in given)"), *FLAGS)
    assert verdict["culprit"]["axis"] == "precision"
    assert [s["outcome"] for s in verdict["stages"]] == ["fails", "undecided", "cured"]
    body = "print('loss nan') if not given else sys.exit(3 if '--adamw' in given else 0)"
    verdict = bisect(lastbit, tmp_path, job(body), *FLAGS, "--log", "nan")
    assert verdict["culprit"]["axis"] == "precision"
    assert [t["outcome"] for t in verdict["trials"]] == ["fails-same", "invalid", "cured"]


def test_a_job_that_succeeds_has_nothing_to_find(lastbit, job, tmp_path):
    verdict = bisect(lastbit, tmp_path, job("pass"), *FLAGS, expect=0)
    assert verdict["outcome"] == "clean" and verdict["failure"] is None and runs(tmp_path) == [""]


def test_a_job_that_no_flag_cures_is_undecided(lastbit, job, tmp_path):
    verdict = bisect(lastbit, tmp_path, job("sys.exit(1)"), *FLAGS, expect=125)
    assert verdict["outcome"] == "undecided" and verdict["culprits"] == []
    assert [s["stage"] for s in verdict["stages"]] == ["run", "muon", "precision", "rank", "block", "several"]


def test_a_job_killed_by_a_signal_ends_the_search(lastbit, job, tmp_path):
    done = lastbit.run("bisect", "--run", job("os.kill(os.getpid(), 9)"), *FLAGS, cwd=tmp_path, expect=(125, 128))
    assert "137" in done.stderr and "--log" in done.stderr


@pytest.mark.parametrize("options", [(), ("--log", "loss nan")])
@pytest.mark.parametrize("command, code, words", [("./nosuch-job", 127, "is not found"), ("./job.txt", 126, "cannot be executed")])
def test_a_job_that_cannot_be_started_ends_the_search(lastbit, tmp_path, command, code, words, options):
    (tmp_path / "job.txt").write_text("no program")
    done = lastbit.run("bisect", "--run", command, *FLAGS, *options, cwd=tmp_path, expect=125)
    assert f"exit code {code}" in done.stderr and words in done.stderr and done.stdout == ""


def test_a_live_job_has_no_origin(lastbit, job, tmp_path):
    verdict = bisect(lastbit, tmp_path, job("sys.exit('--fp32' not in given)"), *FLAGS)
    assert verdict["begins"] is None
    text = lastbit.run("bisect", "-q", "--run", job("sys.exit('--fp32' not in given)"), *FLAGS, cwd=tmp_path, expect=1).stdout
    assert "begins" not in text and not [line for line in text.splitlines() if line.strip() in ("", ".")]


def test_a_job_that_hangs_is_killed_with_what_it_started(lastbit, job, tmp_path):
    body = "if '--adamw' in given: os.system('sleep 600; echo late >> late')\nsys.exit('--fp32' not in given)"
    start = time.monotonic()
    verdict = bisect(lastbit, tmp_path, job(body), *FLAGS, "--timeout", "4")
    assert time.monotonic() - start < 120
    assert [t["what"] for t in verdict["trials"]][1] == "killed after 4 s"
    assert verdict["culprit"]["axis"] == "precision"


@pytest.mark.full
def test_noisy_answers_are_repeated_until_they_are_sound(lastbit, job, tmp_path):
    # A failing run looks good one time in four.
    body = "random.seed(run); sys.exit('--no-rnn' not in given and random.random() > 0.25)"
    blocks = [word for i in range(8) for word in ("--flag", f"block:layers.{i}=--skip-{i}")]
    verdict = bisect(lastbit, tmp_path, job(body.replace("--no-rnn", "--skip-5")), *blocks, "--noise", "0.25")
    assert [c["layer"] for c in verdict["culprits"]] == ["layers.5"]
    whole = " ".join(f"--skip-{i}" for i in range(8))
    assert runs(tmp_path).count(whole) > 1  # one good run is no proof


def test_a_wrong_assumption_is_said(lastbit, job, tmp_path):
    # --skip-5 cures; --skip-3 undoes that, unless --skip-7 is there too, which nobody else needs.
    body = "sys.exit(not ('--skip-5' in given and ('--skip-3' not in given or '--skip-7' in given)))"
    blocks = [word for i in range(8) for word in ("--flag", f"block:layers.{i}=--skip-{i}")]
    verdict = bisect(lastbit, tmp_path, job(body), *blocks)
    assert [c["layer"] for c in verdict["culprits"]] == ["layers.5"]
    assert subprocess.run(verdict["cures"], shell=True, cwd=tmp_path).returncode == 0
    assert "changing more undid a cure" in verdict["stages"][-1]["note"]


def test_a_killed_search_goes_on_where_it_was(lastbit, job, tmp_path):
    body = "time.sleep(0.2); sys.exit('--skip-5' not in given)"
    blocks = [word for i in range(8) for word in ("--flag", f"block:layers.{i}=--skip-{i}")]
    command = [str(lastbit.path), "bisect", "--run", job(body), *blocks, "--journal", "journal"]
    first = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not (tmp_path / "journal").exists() or len((tmp_path / "journal").read_text().splitlines()) < 4:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    time.sleep(0.5)
    told = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()[1:] if line.endswith("}")]
    before = len(runs(tmp_path))
    again = lastbit.json("bisect", "-q", "--run", job(body), *blocks, "--journal", "journal", "--resume", expect=1, cwd=tmp_path)
    assert [c["layer"] for c in again["culprits"]] == ["layers.5"]
    assert [t["seconds"] == 0 for t in again["trials"]] == [i < len(told) for i in range(len(again["trials"]))]
    assert len(runs(tmp_path)) - before == len(again["trials"]) - len(told)


@pytest.mark.parametrize(
    "options, message",
    [
        ((), "at least one flag"),
        (("--flag", "muon"), "expected STAGE=FLAGS"),
        (("--flag", "colour=--red"), "the stage being muon, precision"),
        (("--flag", "muon=--adamw", "--log", "("), 'log pattern "("'),
        (("--flag", "muon=--adamw", "--noise", "2"), "--noise 2"),
        (("--flag", "muon=--adamw", "--against", "x.lb"), "--run goes with"),
        (("--flag", "muon=--adamw", "run.lb"), "no CAPTURE"),
    ],
)
def test_misuse_is_explained(options, message, lastbit, tmp_path):
    done = lastbit.run("bisect", "--run", "true", *options, cwd=tmp_path, expect=129)
    assert message in done.stderr
    assert lastbit.run("bisect", "x.lb", "--flag", "muon=y", cwd=tmp_path, expect=129).stderr.count("belong to --run")


def test_the_verdict_reads_like_the_others(lastbit, job, tmp_path):
    command = job("sys.exit('--fp32' not in given)")
    done = lastbit.run("bisect", "--run", command, *FLAGS, cwd=tmp_path, expect=1)
    lines = {line[:10].strip(): line[10:] for line in done.stdout.splitlines() if not line.startswith(" ")}
    assert lines["failure"] == "exit code 1"
    assert lines["culprit"] == "precision"
    assert lines["why"] == 'With "--fp32", and nothing else changed, the command succeeds.'
    assert lines["shows it"] == command and lines["cures it"] == command + " --fp32"
    assert "fails-same" in done.stderr and "cured" in done.stderr


@pytest.mark.full
def test_a_real_training_run_is_bisected_live(lastbit, tmp_path):
    sample = os.path.join(os.path.dirname(__file__), "..", "..", "..", "samples", "hybrid_lm.py")
    command = shlex.join([sys.executable, sample, "--fault", "polar-bf16", "--steps", "4"])
    verdict = bisect(
        lastbit,
        tmp_path,
        command,
        "--log",
        "loss nan",
        "--flag",
        "precision=--precision bf16",
        "--flag",
        "muon:f32=--muon-dtype float32",
        "--flag",
        "muon:adamw=--optimizer adamw",
        "--flag",
        "block:M=--pattern AERAD",
    )
    assert verdict["culprit"]["axis"] == "muon"
    assert verdict["culprit"]["layer"] in ("f32", "adamw")
    assert "it says: step 3 loss nan" in verdict["failure"]["what"]
