"""What people train with: each is recorded, replays as itself, is found clean, and a planted fault is found.

Programs are in tests/programs/trainers. Two of them run always; LASTBIT_FULL=1 runs all. Packages beside those of
samples/requirements.txt go into a virtual environment of their own, build/trainers, which sees build/venv as well; torch is never
replaced. Where the registry does not serve them the test is skipped.
"""

import os
import subprocess
import sys

import pytest
import recorded

pytest.importorskip("torch")

ROOT = recorded.ROOT
PROGRAMS = os.path.join(ROOT, "tests", "programs", "trainers")
PINS = """lightning==2.6.6 pytorch-lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0 trl==1.16.0 datasets==5.2.0 diffusers==0.42.1
timm==1.0.31 litgpt==0.5.13 pyarrow==26.0.1 dill==0.4.1 multiprocess==0.70.19 xxhash==4.1.0 pandas==3.1.1 jsonargparse==4.53.0
python-dateutil==4.0.0 six==1.17.0 requests==2.34.2 certifi==2026.10.18 urllib3==2.8.0 charset-normalizer==3.5.2
importlib-metadata==10.2.0 zipp==4.1.2 pillow==13.0.0""".split()
# Apart, each in a folder of its own: transformers would use them. torchvision has no operators for a CPU build of torch.
APART = {"timm": "torchvision==0.28.0", "bitsandbytes": "bitsandbytes==0.50.2"}

# name: (program, its arguments, ranks, packages of its own, steps, what runs it always)
TRAINERS = {
    "Lightning": ("train_lightning.py", (), 1, True, 4, False),
    "accelerate": ("train_accelerate.py", (), 1, False, 4, True),
    "trl SFT": ("train_trl_sft.py", (), 1, True, 4, False),
    "trl GRPO": ("train_trl_grpo.py", (), 1, True, 4, False),
    "litgpt": ("train_litgpt.py", (), 1, True, 4, False),
    "Trainer with peft": ("train_hf_peft.py", (), 1, False, 4, False),
    "diffusers": ("train_diffusers.py", (), 1, True, 4, False),
    "timm": ("train_timm.py", (), 1, True, 4, False),
    "bitsandbytes": ("train_bitsandbytes.py", (), 1, True, 4, False),
    "pipelining": ("train_pipelining.py", (), 2, False, 4, True),
    "tensor parallel": ("train_parallel.py", ("tp",), 2, False, 4, False),
    "FSDP2": ("train_parallel.py", ("fsdp2",), 2, False, 4, False),
    "DDP": ("train_parallel.py", ("ddp",), 2, False, 4, False),
}


@pytest.fixture(scope="session")
def python():
    """python(own): an interpreter; `own`: with the packages that trainers bring."""
    home = os.path.join(ROOT, "build", "trainers")

    def install(*what):
        done = subprocess.run([os.path.join(home, "bin", "python"), "-m", "pip", "install", "-q", "--no-deps", *what], capture_output=True, text=True)
        if done.returncode:
            pytest.skip("the registry does not serve %s: %s" % (" ".join(what)[:60], done.stderr.strip().splitlines()[-1]))

    def get(own):
        if not own:
            return sys.executable
        interpreter = os.path.join(home, "bin", "python")
        if not os.path.exists(os.path.join(home, "complete")):
            subprocess.run([sys.executable, "-m", "venv", home], check=True)
            packages = subprocess.run(
                [interpreter, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
            )
            with open(os.path.join(packages.stdout.strip(), "lastbit.pth"), "w") as path:
                path.write(next(p for p in sys.path if p.endswith("site-packages")) + "\n")
            install(*PINS)
            open(os.path.join(home, "complete"), "w").close()
        for name, package in APART.items():
            if not os.path.exists(os.path.join(home, name)):
                install("--target", os.path.join(home, name), package)
        return interpreter

    return get


@pytest.fixture(scope="session")
def record(lastbit, python, tmp_path_factory):
    def run(name, plant=0):
        program, arguments, ranks, own, _, _ = TRAINERS[name]
        folder = tmp_path_factory.mktemp("trainers")
        env = dict(os.environ, PLANT=str(plant), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HOME=str(folder))
        paths = [PROGRAMS] + [os.path.join(ROOT, "build", "trainers", name)] * (name in APART)
        env["PYTHONPATH"] = os.pathsep.join(paths)
        start = [python(own)] + (["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else [])
        done = lastbit.run(
            "record",
            "-o",
            folder / "run.lb",
            "--level",
            "ops",
            "--",
            *start,
            os.path.join(PROGRAMS, program),
            *arguments,
            expect=(0, 1) if plant else 0,
            env=env,
            timeout=600,
        )  # some die of what is planted, as a sampler does
        assert "lastbit: recording stopped" not in done.stderr and "nothing was recorded" not in done.stderr, done.stderr
        return folder / "run.lb"

    return run


def chosen(name):
    return pytest.param(name, marks=() if TRAINERS[name][-1] else pytest.mark.full)


@pytest.mark.parametrize("name", [chosen(name) for name in TRAINERS])
def test_a_trainer_is_recorded_replays_and_is_clean(name, record, lastbit):
    path = record(name)
    capture = recorded.Recorded(path)
    _, _, ranks, _, steps, _ = TRAINERS[name]
    assert capture.steps == list(range(steps)) and len(capture.ranks) == ranks
    for rank in capture.ranks:
        for program in capture.programs[rank].values():
            phases = {recorded.PHASES[op.phase] for op in program.ops}
            assert program.complete and phases >= {"forward", "backward", "optimizer"}
            parameters = {program.text(v.name) for v in program.values if v.flags & recorded.PARAMETER and v.source}
            assert parameters and "" not in parameters
            assert {program.text(m.name) for m in program.group_params} and "?" not in {program.text(m.name) for m in program.group_params}
        coverage = capture.table("coverage", rank)
        assert coverage["unseen_writes"] == 0 and "stopped" not in coverage
    assert lastbit.json("replay", path, expect=0)["verdict"] != "diverged"
    assert lastbit.json("bisect", path, expect=0)["outcome"] == "clean"


@pytest.mark.parametrize("name", [chosen(name) for name in TRAINERS])
def test_a_fault_that_is_planted_in_a_trainer_is_found(name, record, lastbit):
    path = record(name, plant=2)
    if name == "bitsandbytes":  # what its update gives stands in: nothing cures that, and where it began is said
        found = lastbit.json("bisect", path, expect=125)
        assert found["failure"]["step"] == 2 and "embed_tokens.weight" in found["failure"]["what"], found["failure"]
    elif name == "pipelining":  # what a stage sends is not sent again by a replay: the other stage fails whatever is changed in this one
        found = lastbit.json("bisect", path, expect=(1, 125))
        assert found["outcome"] in ("found", "undecided") and found["failure"]["step"] == 2
    else:
        found = lastbit.json("bisect", path, expect=1)
        assert found["outcome"] == "found" and found["culprit"]["axis"] == "source", found["culprit"]
    capture = recorded.Recorded(path)
    notices = [
        program.text(n.message)
        for of_rank in capture.programs.values()
        for program in of_rank.values()
        for n in program.notices
        if program.text(n.kind) == "unseen_write"
    ]
    assert notices and all("weight" in message or "lora" in message for message in notices), notices
