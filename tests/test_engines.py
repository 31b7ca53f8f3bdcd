"""What sites start programs with, the real ones: Slurm (a controller and two nodes on this machine), Open MPI, MPICH, Ray, GNU parallel. Each runs
samples/cluster over one question with four workers, of which one is killed half way, and the answer has the bytes of one process.

An engine that is not installed is passed over; `tests/setup.sh engines` installs them."""

import contextlib
import getpass
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import BUILD, ROOT

RANKS, LAYERS = 96, 20
LASTBIT = BUILD / "lastbit"
CLUSTER = ROOT / "samples" / "cluster"
RAY = ROOT / "build" / "engines" / "ray"
QUESTION = ["diff", "clean.lb", "poisoned.lb"]
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
ENV = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE"))}
ENV |= {"LASTBIT": str(LASTBIT), "PATH": f"{os.environ['PATH']}:{SBIN}"}


def needs(*programs):
    return pytest.mark.skipif(not all(shutil.which(program, path=ENV["PATH"]) for program in programs), reason=f"no {' and '.join(programs)} here")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    for name, option in (("clean", "steps=1"), ("poisoned", "poison=0:31:5")):
        subprocess.run([BUILD / "tests/make_ranks", folder / f"{name}.lb", f"ranks={RANKS}", f"layers={LAYERS}", "steps=1", option], check=True)
    return folder


@pytest.fixture(scope="module")
def alone(place):
    done = subprocess.run([LASTBIT, *QUESTION], cwd=place, env=ENV, capture_output=True)
    assert done.returncode == 1 and b"rank 31, forward, layers.5, aten::mm" in done.stdout
    return done.stdout


def workers(place):
    """The lastbit processes that run in this folder."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "exe") == str(LASTBIT.resolve()) and os.readlink(process / "cwd") == str(place):
                yield int(process.name)


def kill_one(place, begun=lambda: True):
    """A worker, once `begun` says so. Where the work was done before that, there is none, and the test has shown nothing."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        running = sorted(workers(place)) if begun() else []
        if running:
            os.kill(running[-1], signal.SIGKILL)
            return running[-1]
        time.sleep(0.002)
    raise AssertionError("no worker was seen")


def half_way(place):
    """Some records are there, and not all."""
    return any(len(list(folder.glob("*.part"))) >= 6 for folder in [*place.glob("*.parts"), *place.glob("lastbit-parts.*")])


def run_and_kill(place, words, begun, **how):
    engine = subprocess.Popen(words, cwd=place, env={**ENV, **how.pop("env", {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    kill_one(place, begun)
    out, err = engine.communicate(timeout=120)
    return engine.returncode, out, err


# ---- Slurm ----


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A controller and two nodes; the variable that names them."""
    home = tmp_path_factory.mktemp("slurm")
    controller, node, first, second = free_ports(4)
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    (home / "slurm.conf").write_text(
        f"""ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/controller.pid
SlurmdPidFile={home}/%n.pid
SlurmctldLogFile={home}/controller.log
SlurmdLogFile={home}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
NodeName=first NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4
NodeName=second NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4
PartitionName=all Nodes=first,second Default=YES State=UP
"""
    )
    (home / "state").mkdir()
    named = {"SLURM_CONF": str(home / "slurm.conf")}
    env = {**ENV, **named}
    daemons = [["slurmctld", "-D", "-c"], *(["slurmd", "-D", "-N", name] for name in ("first", "second"))]
    running = [subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for words in daemons]
    try:
        until = time.monotonic() + 30
        while subprocess.run(["srun", "-N", "2", "-n", "2", "--immediate=2", "true"], env=env, capture_output=True).returncode:
            if time.monotonic() > until or any(daemon.poll() is not None for daemon in running):
                pytest.skip("Slurm's daemons do not start here: " + (home / "controller.log").read_text()[-600:])
            time.sleep(0.3)
        yield named
    finally:
        for daemon in reversed(running):
            daemon.terminate()
        for daemon in running:
            daemon.wait()


@needs("slurmctld", "slurmd", "srun", "sbatch")
def test_srun(place, alone, slurm):
    code, out, err = run_and_kill(
        place, ["srun", "-N", "2", "-n", "4", "--kill-on-bad-exit=0", LASTBIT, *QUESTION], lambda: half_way(place), env=slurm
    )
    assert out == alone, err
    assert code in (1, 137), err  # the highest of all: diverged, or the killed one's
    shutil.rmtree(next(place.glob("*.parts")))  # one that was killed never left it


@needs("slurmctld", "slurmd", "srun", "sbatch")
@pytest.mark.parametrize("words", [["-n", "4", "-N", "2", "srun.sbatch"], ["--array=1-4", "array.sbatch"]], ids=["srun", "array"])
def test_batch_scripts(place, alone, slurm, words):
    done = subprocess.run(
        ["sbatch", "-W", *words[:-1], CLUSTER / words[-1], *QUESTION], cwd=place, env={**ENV, **slurm}, capture_output=True, timeout=120
    )
    answers = list(place.glob("lastbit-*.answer"))
    assert [answer.read_bytes() for answer in answers] == [alone], (done, [log.read_text() for log in place.glob("lastbit-*.log")])
    assert not list(place.glob("*.parts"))
    for left in place.glob("lastbit-*"):
        left.unlink()


# ---- MPI ----


def launcher_of(tmp_path, name):
    """A folder whose `mpirun` is this one, for a machine may have both."""
    (tmp_path / "mpirun").write_text(f'#!/bin/sh\nexec {shutil.which(name, path=ENV["PATH"])} "$@"\n')  # which looks for its helpers beside itself
    (tmp_path / "mpirun").chmod(0o755)
    return {"PATH": f"{tmp_path}:{ENV['PATH']}"}


@needs("mpirun.openmpi")
def test_open_mpi(place, alone, tmp_path):
    env = launcher_of(tmp_path, "mpirun.openmpi") | {"MPIRUN_OPTIONS": "--allow-run-as-root --oversubscribe"}
    code, out, err = run_and_kill(place, [CLUSTER / "mpirun.sh", "4", *QUESTION], lambda: half_way(place), env=env)
    assert (code, out) == (1, alone), err
    assert not list(place.glob("lastbit-*"))


@needs("mpirun.mpich")
def test_mpich(place, alone, tmp_path):
    env = launcher_of(tmp_path, "mpirun.mpich")
    code, out, err = run_and_kill(place, [CLUSTER / "mpirun.sh", "4", *QUESTION], lambda: half_way(place), env=env)
    assert (code, out) == (1, alone), err
    assert not list(place.glob("lastbit-*"))


# ---- parts that are started again ----


@needs("parallel")
def test_gnu_parallel(place, alone):
    code, out, err = run_and_kill(place, [CLUSTER / "parallel.sh", "4", *QUESTION], lambda: True)
    assert (code, out) == (1, alone), err


@pytest.mark.skipif(not (RAY / ".complete").exists(), reason="no Ray in build/engines")
def test_ray(place, alone):
    env = {"PYTHONPATH": str(RAY), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    code, out, err = run_and_kill(place, [sys.executable, CLUSTER / "ray_parts.py", "4", *QUESTION], lambda: True, env=env)
    assert (code, out) == (1, alone), err
