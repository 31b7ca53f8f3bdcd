"""Programs that call MPI are recorded beneath: Open MPI's and MPICH's own ranks, and what each call sent and received is what the
program wrote down itself."""

import json
import pathlib
import re
import shutil
import subprocess

import numpy
import pytest
import recorded
from mpi_runs import SHIM, each_family, environment, launcher, play, program

reader = recorded.lastbit
families = pytest.mark.parametrize("family", each_family())


@pytest.fixture
def record(lastbit, tmp_path):
    def record(family, *words, ranks=3, options=(), name="run.lb", code=0, same=True, **more):
        """Its capture; what the program received is what it receives without us."""
        folder = tmp_path / name
        command = [*launcher(family, ranks), program(family), *words]
        done = lastbit.run("record", "--mpi", "-o", folder, "--force", *options, "--", *command, env=environment(**more), timeout=120)
        assert code is None or done.returncode == code, done.stderr
        if same:
            assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank ")) == play(family, *words, ranks=ranks, **more)
        return folder

    return record


def calls(folder, rank):
    """(MPI's name, what was sent, what was received) of the calls of a rank in order; None: nothing."""
    found = []
    capture = reader.open(folder)
    for step in capture.steps:
        for op in capture.step(step, rank).ops if rank in capture.ranks else ():
            if "collective" not in op.flags or "failed" in op.flags:
                continue
            out = [value for value in (op.written or op.results) if value is not None]
            sent = list(op.inputs)
            if op.written:  # a broadcast's root, and no receive, sends what is written over
                sent = [value for value in sent if value.digest and op.name == "c10d::broadcast_"]
            join = lambda values: b"".join(value.tobytes() for value in values) if values else None  # noqa: E731
            found.append((op.arguments[-1], join(sent), join(out)))
    return found


def written_down(folder, rank):
    """The same by the program's own files."""
    found = {}
    for path in sorted((folder / f"rank-{rank}").iterdir()):
        number, name, side, _ = path.name.split(".")
        found.setdefault(int(number), [name, None, None])[1 if side == "in" else 2] = numpy.load(path).tobytes()
    return [tuple(found[number]) for number in sorted(found)]


def compare(folder, files, ranks):
    total = 0
    for rank in range(ranks):
        mine, theirs = calls(folder, rank), written_down(files, rank)
        assert [name for name, _, _ in mine] == [name for name, _, _ in theirs]
        for number, (one, other) in enumerate(zip(mine, theirs)):
            assert one == other, (rank, number, one[0])
        total += len(mine)
    return total


@families
@pytest.mark.parametrize(
    "scenario, ranks",
    [("collectives", 2), ("collectives", 3), ("collectives", 5), ("later", 3), ("later", 4), ("communicators", 4), ("messages", 3), ("types", 3)],
)
def test_recorded_bytes_are_what_the_program_had(lastbit, record, tmp_path, family, scenario, ranks):
    files = tmp_path / "files"
    folder = record(family, scenario, files, ranks=ranks)
    assert compare(folder, files, ranks) > 20
    assert lastbit.run("verify", folder).returncode == 0
    listed = lastbit.run("ls", folder).stdout
    assert "skipped" not in listed and "degraded" not in listed and "unseen_write" not in listed


def rows(folder, rank):
    """(MPI's name, communicator, its members, number, reduction) of the collectives of a rank."""
    found = []
    capture = recorded.Recorded(str(folder))
    for step in sorted(capture.programs[rank]):
        p = capture.programs[rank][step]
        for row in p.collectives:
            members = tuple(p.refs[row.first_rank + i] for i in range(row.ranks))
            found.append((p.text(row.group), members, row.sequence, p.text(row.reduce)))
    return found


@families
def test_communicators_have_members_names_and_numbers(record, family):
    folder = record(family, "communicators", ranks=4)
    whole, odd, rest = (0, 1, 2, 3), (3, 1), (1, 2, 3)
    groups = {}
    for name, members, number, _ in rows(folder, 1):
        groups.setdefault((name, members), []).append(number)
    assert groups == {
        ("3,1", odd): [0, 1],  # split by keys that turn the order of the ranks
        ("0-3#2", whole): [0, 1],
        ("0-3#3", whole): [0, 1],
        ("1-3", rest): [0, 1],
        ("1-3#2", rest): [0, 1],
        ("1-3#3", rest): [0, 1],
        ("1", (1,)): [0, 1],
    }
    assert {name for name, _, _, _ in rows(folder, 0)} == {"2,0", "0-3#2", "0-3#3", "0"}


@families
def test_operations_are_named_and_those_of_two_ranks_replay_to_the_same_bits(lastbit, record, family):
    folder = record(family, "types", ranks=2)
    named = [reduce for _, _, _, reduce in rows(folder, 0) if reduce]
    assert named == "sum product sum max min sum bor bxor band land lor sum sum user maxloc user".split()
    answer = lastbit.json("replay", folder)
    assert answer["verdict"] == "identical" and answer["bitwise"] == 23  # of both ranks; what replay does not know stands in
    for scenario, bitwise in (("collectives", 35), ("later", 65), ("communicators", 22), ("messages", 18)):
        answer = lastbit.json("replay", record(family, scenario, ranks=2))
        assert answer["verdict"] == "identical" and answer["bitwise"] == bitwise, scenario


@families
def test_ranks_finds_every_result_among_what_the_members_sent(lastbit, record, family):
    """It compares what each member received with what all sent: moved bytes to the bit, sums by their bound."""
    for scenario, collectives, results in (("collectives", 23, 23), ("later", 36, 36), ("communicators", 14, 14), ("messages", 0, 36)):
        answer = lastbit.json("ranks", record(family, scenario, ranks=4), expect=0)
        assert answer["verdict"] == "clean", (scenario, answer)
        assert (answer["collectives"], answer["results"]) == (collectives, results), scenario


@families
def test_elements_of_no_type_leave_ops_without_bytes(lastbit, record, family):
    folder = record(family, "strange", ranks=2)
    listed = lastbit.run("ls", folder).stdout
    assert listed.count("elements of MPI_Allreduce are not recorded") == 2
    assert [name for name, *_ in calls(folder, 0)] == ["MPI_Allreduce"] * 2


@families
def test_threads_call_at_one_time(lastbit, record, family):
    folder = record(family, "threads", ranks=2, options=("--mpi-step", "1000"))
    assert lastbit.run("verify", folder).returncode == 0
    for rank in (0, 1):
        numbers = {}
        for name, members, number, reduce in rows(folder, rank):
            if reduce:
                numbers.setdefault(name, []).append(number)
        assert {name: sorted(list) for name, list in numbers.items()} == {f"0-1#{n}": list(range(100)) for n in range(2, 6)}
        for name, sent, out in calls(folder, rank):
            assert name == "MPI_Sendrecv" or (sent and out)


@families
def test_steps_are_counted_or_said(lastbit, record, family):
    assert "5 steps (0 to 4)" in lastbit.run("ls", record(family, "steps", options=("--mpi-step", "2"))).stdout
    folder = record(family, "steps", options=("--mpi-step", "2", "--steps", "1,3", "--ranks", "1"))
    answer = json.loads(lastbit.run("ls", "--json", folder).stdout)
    assert [(row["step"], row["rank"]) for row in answer["programs"]] == [(1, 1), (3, 1)]
    folder = record(family, "marked")  # where the program wants no recording there is none
    assert {step: len(reader.open(folder).step(step, 0).ops) for step in reader.open(folder).steps} == {0: 3, 1: 3, 3: 3, 4: 3}


@families
@pytest.mark.parametrize("ends", [True, False])
def test_program_numbers_its_steps_and_forks_and_may_end_without_finalizing(record, family, ends):
    ranks = (0, 1) if ends else (0,)  # the launcher may kill the others where one ends so
    folder = record(family, "numbered", "-", 0 if ends else 1, ranks=len(ranks), code=0 if ends else None, same=ends)
    capture = reader.open(folder)
    assert list(capture.steps) == [5, 15, 25, 35]
    for rank in ranks:
        assert [capture.step(step, rank).complete for step in capture.steps] == [True, True, True, ends]
        assert all(len(capture.step(step, rank).ops) == 3 for step in capture.steps)


@families
def test_flight_recorder_writes_what_it_holds_when_a_rank_aborts(record, family):
    folder = record(family, "aborting", code=None, same=False, options=("--ring", "2"))
    capture = reader.open(folder)
    assert list(capture.steps)[-1] == 3 and not capture.step(3, 2).complete
    assert b"the program ended without MPI_Finalize" in (folder / "rank-00002.tar").read_bytes()


@families
def test_diff_and_explain_name_the_rank_that_sent_other_numbers(lastbit, record, family):
    one, same, other = (record(family, "steps", "-", wrong, name=f"{name}.lb", options=("--mpi-step", "2")) for name, wrong in
                        (("one", 0), ("same", 0), ("other", 1)))  # fmt: skip
    assert lastbit.json("diff", one, same, expect=0)["verdict"] == "identical"
    answer = lastbit.json("diff", one, other, expect=1)
    assert (answer["first"]["step"], answer["first"]["rank"]) == (2, 1)
    answer = lastbit.json("explain", one, other, expect=1)
    assert {row["cause"] for row in answer["findings"]} == {"input"}


@families
def test_rank_that_aborts_leaves_its_calls_until_then(lastbit, record, family):
    folder = record(family, "aborting", code=None, same=False)
    capture = reader.open(folder)
    assert capture.steps == (0, 1, 2, 3) or list(capture.steps) == [0, 1, 2, 3]
    assert not capture.step(3, 2).complete and len(capture.step(3, 2).ops) == 3
    assert all(capture.step(step, rank).complete for step in range(3) for rank in range(3))
    assert lastbit.run("verify", folder).returncode == 0


@families
def test_rank_that_is_killed_leaves_the_steps_that_ended(lastbit, record, family):
    folder = record(family, "killed", code=None, same=False)
    capture = reader.open(folder)
    assert list(capture.steps) == [0, 1, 2] and list(capture.ranks) == [0, 1, 2]
    assert all(capture.step(step, rank).complete for step in range(3) for rank in range(3))
    assert lastbit.run("verify", folder).returncode == 0


@families
def test_receive_that_is_open_from_step_to_step_is_written_where_it_ends(record, tmp_path, family):
    folder = record(family, "waiting", tmp_path / "files", ranks=2)
    capture = reader.open(folder)
    assert [len([op for op in capture.step(step, 0).ops if op.name == "c10d::recv_"]) for step in capture.steps] == [0, 0, 0, 0, 1]
    received = next(op for op in capture.step(4, 0).ops if op.name == "c10d::recv_")
    assert received.written[0].numpy().tolist() == [42.0]


@families
def test_careless_programs_go_on(lastbit, record, family):
    """Requests freed and cancelled, an intercommunicator, a call that MPI refuses: none is recorded as if it had received something."""
    folder = record(family, "careless", ranks=2)
    assert lastbit.run("verify", folder).returncode == 0
    ops = reader.open(folder).step(0, 0).ops
    assert sum("failed" in op.flags for op in ops) == 2
    assert [name for name, _, _ in calls(folder, 0)] == ["MPI_Send", "MPI_Allreduce", "MPI_Bcast"]


@families
def test_every_rank_may_be_a_record_of_its_own(lastbit, tmp_path, family):
    folder = tmp_path / "run.lb"
    command = [*launcher(family, 2), lastbit.path, "record", "--mpi", "-o", folder, "--", program(family), "collectives"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank ")) == play(family, "collectives", ranks=2)
    assert lastbit.json("replay", folder)["bitwise"] == 35


@families
def test_receipt_names_the_library_and_what_chooses_algorithms(lastbit, record, family):
    folder = record(family, "steps", MPIR_CVAR_BCAST_SHORT_MSG_SIZE=99, OMPI_MCA_coll_tuned_priority=31, MPIR_CVAR_CH3_INTERFACE_HOSTNAME="here")
    receipt = json.loads(lastbit.run("ls", "--receipt", folder).stdout)
    named = {"openmpi": r"Open MPI v\d", "mpich": r"MPICH Version: \d"}[family]
    assert re.match(named, receipt["versions"]["mpi"]) and len(receipt["versions"]["mpi"]) < 160
    assert receipt["environment"]["MPIR_CVAR_BCAST_SHORT_MSG_SIZE"] == "99" and receipt["environment"]["OMPI_MCA_coll_tuned_priority"] == "31"
    assert not any("HOST" in name for name in receipt["environment"])


@families
@pytest.mark.parametrize("binding", ["mpi", "mpi_f08"])
def test_programs_in_fortran(lastbit, tmp_path, family, binding):
    """Both bindings of both families end in C functions that are wrapped; Open MPI's in PMPI's."""
    if not shutil.which(f"mpif90.{family}") or not shutil.which("gfortran"):
        pytest.skip("no compiler for Fortran")
    text = (pathlib.Path(__file__).parent / "mpi_fortran.f90").read_text()
    if binding == "mpi_f08":
        text = re.sub("use mpi$", "use mpi_f08", text, flags=re.M)
        text = text.replace("integer :: rank, ranks, error, request,", "type(MPI_Request) :: request\n  integer :: rank, ranks, error,")
        text = text.replace("integer :: status(MPI_STATUS_SIZE)", "type(MPI_Status) :: status")
    source, built = tmp_path / "program.f90", tmp_path / "program"
    source.write_text(text)
    subprocess.run([f"mpif90.{family}", "-w", source, "-o", built], check=True, cwd=tmp_path)
    alone = subprocess.run([*launcher(family, 2), built], capture_output=True, text=True, timeout=60, env=environment())
    folder = tmp_path / "run.lb"
    done = lastbit.run("record", "--mpi", "-o", folder, "--", *launcher(family, 2), built, env=environment(), timeout=60)
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == sorted(alone.stdout.splitlines()), done.stderr
    names = [[name for name, _, _ in calls(folder, rank)] for rank in (0, 1)]
    assert names[0] == names[1] == ["MPI_" + name for name in "Allreduce Allreduce Iallreduce Allgather Sendrecv Sendrecv Allreduce Bcast".split()]
    capture = reader.open(folder)
    assert list(capture.steps) == [0, 1] and len(capture.step(1, 0).ops) == 2
    first = capture.step(0, 1).ops[0].results[0].numpy()
    assert first.dtype == numpy.float64 and first.tolist() == [(7 + i) / 3 for i in range(1, 7)]
    assert lastbit.json("replay", folder)["verdict"] == "identical"


# ---- what goes wrong ends the recording, is said once by each rank, and the program goes on


def shimmed(family, tmp_path, words, ranks=2, **more):
    """The program under the library alone; (its lines, what lastbit said)."""
    command = [*launcher(family, ranks), program(family), *words]
    env = environment(LD_PRELOAD=SHIM, LASTBIT_OUT=tmp_path / "run.lb", LASTBIT_MPI_STEP=2)
    env.update({name: str(text) for name, text in more.items()})
    (tmp_path / "run.lb").mkdir(exist_ok=True)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank ")) == play(family, *words, ranks=ranks)
    return [line for line in done.stderr.splitlines() if line.startswith("lastbit: ")]


@families
def test_recorder_that_is_missing_is_said_once(tmp_path, family):
    said = shimmed(family, tmp_path, ["steps"], LASTBIT_LIB=tmp_path / "none.so")
    assert len(said) == 2 and all("MPI calls of rank" in line and "none.so" in line for line in said)


@families
def test_archive_that_is_there_already_stays_as_it_is(tmp_path, family):
    (tmp_path / "run.lb").mkdir()
    (tmp_path / "run.lb" / "rank-00001.tar").write_bytes(b"another's")
    said = shimmed(family, tmp_path, ["steps"])
    assert len(said) == 1 and "rank 1" in said[0] and (tmp_path / "run.lb" / "rank-00001.tar").read_bytes() == b"another's"
    assert reader.open(tmp_path / "run.lb" / "rank-00000.tar").steps


@families
def test_library_without_an_adapter_hands_calls_on(tmp_path, family):
    shutil.copy(SHIM, tmp_path / SHIM.name)
    said = shimmed(family, tmp_path, ["collectives"], LD_PRELOAD=tmp_path / SHIM.name)
    assert len(said) == 2 and all(f"liblastbit_mpi_{family}.so" in line for line in said)
    assert not list((tmp_path / "run.lb").iterdir())


@families
def test_disabled_library_records_nothing_and_says_nothing(tmp_path, family):
    assert shimmed(family, tmp_path, ["collectives"], LASTBIT_DISABLE=1) == []
    assert not list((tmp_path / "run.lb").iterdir())


@families
def test_folder_that_cannot_be_written_is_said_once(tmp_path, family):
    (tmp_path / "file").write_text("")
    said = shimmed(family, tmp_path, ["threads"], LASTBIT_OUT=tmp_path / "file")
    assert len(said) == 2 and all("are not recorded" in line for line in said)


def test_options_that_do_not_go_together_are_misuse(lastbit):
    for options, why in (
        (("--mpi-step", "3"), "--mpi-step goes with --mpi"),
        (("--mpi", "--mpi-step", "0"), "is not a number of calls"),
        (("--mpi", "--nccl", "calls"), "do not go with it"),
    ):
        done = lastbit.run("record", *options, "--", "true")
        assert done.returncode == 129 and why in done.stderr


def test_program_that_calls_no_mpi_is_told_so(lastbit, tmp_path):
    done = lastbit.run("record", "--mpi", "-o", tmp_path / "run.lb", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7 and "no call of MPI was seen" in done.stderr
    assert not (tmp_path / "run.lb").exists()
