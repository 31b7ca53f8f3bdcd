"""Workers that launchers started, twice, beside each other, and within each other: each start gives its answer once, with its exit code."""

import itertools
import os
import random
import shutil
import subprocess

import pytest
from conftest import BUILD, FULL

LASTBIT = str(BUILD / "lastbit")
LAUNCHERS = ("SLURM_", "OMPI_", "PMI", "MPI_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC", "JOB_", "LASTBIT_PARTS")
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two captures that differ."""
    folder = tmp_path_factory.mktemp("starts")
    for name, option in (("clean", "steps=1"), ("poisoned", "poison=0:7:1")):
        subprocess.run([BUILD / "tests/make_ranks", folder / f"{name}.lb", "ranks=20", "layers=2", "steps=1", option], check=True)
    return folder


QUESTION = ["diff", "clean.lb", "poisoned.lb"]


@pytest.fixture(scope="module")
def alone(place):
    done = subprocess.run([LASTBIT, *QUESTION], cwd=place, env=PLAIN, capture_output=True)
    assert done.returncode == 1
    return done.stdout


def torchrun(rank, workers):
    """With what torchrun says where nothing is given: the same at every start."""
    return {"RANK": rank, "WORLD_SIZE": workers, "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "localhost", "MASTER_PORT": 29500}


def kubernetes(rank, workers):
    return {"JOB_COMPLETION_INDEX": rank, "JOB_COMPLETIONS": workers, "JOB_NAME": "nightly"}


def start(place, env, words=QUESTION):
    env = {**PLAIN, **{name: str(value) for name, value in env.items()}}
    return subprocess.Popen([LASTBIT, *words], cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ends(workers):
    """What was answered, and all exit codes."""
    said = [worker.communicate(timeout=120) for worker in workers]
    return [out for out, _ in said if out], sorted(worker.returncode for worker in workers), said


def once(place, environments, alone):
    answers, codes, said = ends([start(place, env) for env in environments])
    assert answers == [alone], said
    assert codes == [0] * (len(codes) - 1) + [1], said


@pytest.mark.parametrize("launcher", [torchrun, kubernetes])
@pytest.mark.parametrize("lost", range(3))
def test_a_start_that_lost_a_worker_and_the_next_each_answer(place, alone, launcher, lost):
    """The next has the name of the first, for its launcher gives no other: it goes on in that folder, and answers."""
    draw = random.Random(lost)
    for _ in range(2 if not FULL else 20):
        once(place, [launcher(rank, 3) for rank in range(3) if rank != lost], alone)
        assert len(list(place.glob("*.parts"))) == 1  # of which the lost one never left
        ranks = draw.sample(range(3), 3)
        answers, codes, said = [], [], []
        for rank in ranks:  # one after the other, in any order
            one, code, how = ends([start(place, launcher(rank, 3))])
            answers, codes, said = answers + one, codes + code, said + how
        assert (answers, sorted(codes)) == ([alone], [0, 0, 1]), said
        for left in place.glob("*.parts"):  # where the lost one came first, it has left before the others came
            shutil.rmtree(left)


def test_the_next_start_of_all_at_once(place, alone):
    for lost in range(4):
        once(place, [torchrun(rank, 4) for rank in range(4) if rank != lost], alone)
        once(place, [torchrun(rank, 4) for rank in range(4)], alone)
        for left in place.glob("*.parts"):
            shutil.rmtree(left)


def hydra_under_slurm(rank, workers, nodes):
    """Slurm's step is that of the proxies, one a node, which mpirun started by srun."""
    slurm = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 2, "SLURM_PROCID": rank * nodes // workers, "SLURM_STEP_NUM_TASKS": nodes}
    return slurm | {"PMI_RANK": rank, "PMI_SIZE": workers, "MPI_LOCALNRANKS": workers // nodes}


def prte_under_slurm(rank, workers, nodes):
    slurm = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 2, "SLURM_PROCID": rank * nodes // workers, "SLURM_STEP_NUM_TASKS": nodes}
    return slurm | {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": workers, "PMIX_NAMESPACE": "prterun-a-1@1", "PMIX_RANK": rank}


def pmi_of_srun(rank, workers, nodes):
    slurm = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 2, "SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": workers}
    return slurm | {"PMI_RANK": rank, "PMI_SIZE": workers}


def torchrun_under_srun(rank, workers, nodes):
    slurm = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 2, "SLURM_PROCID": rank * nodes // workers, "SLURM_STEP_NUM_TASKS": nodes}
    return slurm | torchrun(rank, workers) | {"LOCAL_WORLD_SIZE": workers // nodes}


def torchrun_in_kubernetes(rank, workers, nodes):
    return kubernetes(rank * nodes // workers, nodes) | torchrun(rank, workers) | {"LOCAL_WORLD_SIZE": workers // nodes}


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("nested", [hydra_under_slurm, prte_under_slurm, pmi_of_srun, torchrun_under_srun, torchrun_in_kubernetes])
def test_of_two_launchers_the_inner_one_is_believed(place, alone, nested, nodes):
    once(place, [nested(rank, 4, nodes) for rank in range(4)], alone)
    assert not list(place.glob("*.parts"))


def beside(number, rank, workers):
    """Starts that no variable of torchrun's own tells apart, but where its agent keeps what its workers report."""
    return torchrun(rank, workers) | {
        "LOCAL_WORLD_SIZE": workers,
        "TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_{number}/none_x/attempt_0/{rank}/error.json",
    }


@pytest.mark.parametrize("told_apart", [lambda number, *who: torchrun(*who) | {"SLURM_JOB_ID": number}, beside], ids=["jobs of Slurm", "agents"])
def test_two_starts_beside_each_other_answer_each(place, alone, told_apart):
    started = [start(place, told_apart(number, rank, 3)) for number, rank in itertools.product(range(3), range(3))]
    for number in range(3):
        answers, codes, said = ends(started[3 * number : 3 * number + 3])
        assert (answers, codes) == ([alone], [0, 0, 1]), said
    assert not list(place.glob("*.parts"))


def test_a_part_of_another_question_is_made_again(place, alone, tmp_path):
    """It lies in the folder under the name that a part of this one has: left there, or copied."""
    other, folder = tmp_path / "other", tmp_path / "parts"
    ends([start(place, {}, ["diff", "poisoned.lb", "clean.lb", "--parts", other])])
    first, code, _ = ends([start(place, {}, [*QUESTION, "--parts", folder])])
    assert (first, code) == ([alone], [1])
    parts = sorted(part.name for part in folder.glob("*.part"))
    assert parts and parts == sorted(part.name for part in other.glob("*.part"))
    for name in parts:
        shutil.copy(other / name, folder / name)
    (folder / "told").unlink()
    (folder / "answer").unlink()
    answers, codes, said = ends([start(place, {}, [*QUESTION, "--parts", folder])])
    assert (answers, codes) == ([alone], [1]), said
