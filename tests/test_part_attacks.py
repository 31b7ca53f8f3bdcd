"""What may become of workers and of the folder in which they meet: killed at any instant, two with one number, parts of another build of lastbit or of
files that changed, clocks that are ahead, calls that fail. The answer has the bytes of one process, or there is none and an error says why."""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from conftest import BUILD, FULL, ROOT

sys.path.insert(0, str(ROOT / "tests" / "failing"))
from failing_runs import Server  # noqa: E402

LASTBIT = str(BUILD / "lastbit")
HOST = BUILD / "tests" / "libfailing_host.so"
QUESTION = ["diff", "clean.lb", "poisoned.lb", "--json"]
STARTED = ("SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE", "LASTBIT_PARTS")
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(STARTED)} | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    for name, option in {"clean": "steps=1", "poisoned": "poison=0:13:2"}.items():
        made = [BUILD / "tests/make_ranks", folder / f"{name}.lb", "ranks=20", "layers=3", "steps=1", option]
        subprocess.run(made, check=True, capture_output=True)
    return folder


def run(place, *words, lastbit=LASTBIT, env=PLAIN):
    return subprocess.run([lastbit, *words], cwd=place, env=env, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def alone(place):
    done = run(place, *QUESTION)
    assert done.returncode == 1, done.stderr
    return done.stdout


def merged(place, folder):
    return run(place, "diff", "--merge", folder, "--json").stdout


def test_killed_at_any_instant(place, alone, tmp_path):
    """From before its first instruction to behind its last, in equal steps; what it leaves is enough for the next, and never too much."""
    began = time.monotonic()
    assert run(place, *QUESTION, "--parts", tmp_path / "whole").stdout == alone
    took = time.monotonic() - began
    instants, killed = 240 if FULL else 24, 0
    for i in range(instants):
        folder = tmp_path / f"{i}"
        words = [LASTBIT, *QUESTION, "--parts", folder]
        worker = subprocess.Popen(words, cwd=place, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        time.sleep(took * 1.1 * i / instants)
        worker.kill()
        out, _ = worker.communicate()
        killed += worker.returncode == -9
        assert alone.startswith(out)
        after = run(place, *QUESTION, "--parts", folder)
        told = (folder / "told").exists() and after.stdout == b""  # by the one that was killed as it said so: the folder has it
        assert after.stdout == alone or told, after.stderr
        assert after.returncode in (0, 1) and merged(place, folder) == alone
        shutil.rmtree(folder)
    assert killed > instants // 4


@pytest.mark.parametrize("way", ["at once", "one after the other"])
def test_two_workers_with_one_number(place, alone, way):
    """A launcher that counts wrongly: each of the two may take the other for a start before, and then both answer, with the same bytes."""
    env = PLAIN | {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "twice", "MASTER_PORT": "1"}
    if way == "at once":
        started = [subprocess.Popen([LASTBIT, *QUESTION], cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        said = [(*worker.communicate(timeout=120), worker.returncode) for worker in started]
    else:
        done = [run(place, *QUESTION, env=env) for _ in range(2)]
        said = [(one.stdout, one.stderr, one.returncode) for one in done]
    answers = [out for out, _, _ in said if out]
    assert answers and set(answers) == {alone}, said
    assert [code for out, _, code in said if out] == [1] * len(answers) and {code for out, _, code in said if not out} <= {0}
    for left in place.glob("*.parts"):
        shutil.rmtree(left)


def test_one_part_made_twice(place, alone, tmp_path):
    """Two files of part 1, and none of part 3: each record counts once, and what lacks is made."""
    names = [tmp_path / name for name in ("one", "two", "one again")]
    for name, part in zip(names, ("1/3", "2/3", "1/3"), strict=True):
        assert run(place, *QUESTION, "--part", part, "-o", name).returncode == 0
    assert names[0].read_bytes() == names[2].read_bytes()
    done = run(place, "diff", "--merge", *names, "--json")
    assert (done.returncode, done.stdout) == (1, alone)


def another_build(tmp_path):
    """This lastbit with another build ID, as a linker gives a program with other code."""
    notes = subprocess.run(["readelf", "-n", LASTBIT], capture_output=True, text=True, check=True).stdout
    build = bytes.fromhex(notes.split("Build ID:")[1].split()[0])
    program, binary = tmp_path / "lastbit", pathlib.Path(LASTBIT).read_bytes()
    assert binary.count(build) == 1
    program.write_bytes(binary.replace(build, bytes(byte ^ 0x55 for byte in build)))
    program.chmod(0o755)
    return str(program)


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf here")
def test_parts_of_another_build_are_refused(place, alone, tmp_path):
    """Its records may be of other numbers, or mean something else."""
    other, folder = another_build(tmp_path), tmp_path / "parts"
    assert run(place, *QUESTION, "--parts", folder, lastbit=other).stdout == alone
    refused = run(place, *QUESTION, "--parts", folder)
    assert (refused.returncode, refused.stdout) == (129, b"") and b"another build of lastbit" in refused.stderr
    assert run(place, *QUESTION, "--part", "1/2", "-o", tmp_path / "part", lastbit=other).returncode == 0
    refused = run(place, "diff", "--merge", tmp_path / "part", "--json")
    assert (refused.returncode, refused.stdout) == (129, b"") and b"another build of lastbit" in refused.stderr
    assert merged(place, folder) == b""


def test_parts_of_an_archive_that_changed_in_its_place_are_refused(place, tmp_path):
    """The folder of the capture has the time and the names of before."""
    for name in ("clean.lb", "poisoned.lb"):
        shutil.copytree(place / name, tmp_path / name)
    assert run(tmp_path, *QUESTION, "--part", "1/2", "-o", "part").returncode == 0
    changed = (place / "poisoned.lb" / "rank-00013.tar").read_bytes()
    with (tmp_path / "clean.lb" / "rank-00013.tar").open("r+b") as archive:
        archive.write(changed), archive.truncate()
    refused = run(tmp_path, "diff", "--merge", "part", "--json")
    assert (refused.returncode, refused.stdout) == (129, b"") and b"changed since" in refused.stderr


def stale_claims(place, alone, tmp_path, seconds):
    """A folder with a job and claims of a host that is not here, touched so many seconds from now."""
    folder = tmp_path / "parts"
    assert run(place, *QUESTION, "--parts", folder).stdout == alone
    for name in ("told", "answer"):
        (folder / name).unlink()
    for part in list(folder.glob("*.part")):
        claim = part.with_suffix(".claim")
        part.unlink()
        claim.write_text("elsewhere-01234567 4242\n")
        os.utime(claim, (time.time() + seconds,) * 2)
    return folder


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_claims_of_a_clock_that_is_wrong(place, alone, tmp_path, seconds):
    """Of a worker that is gone: an hour behind, and an hour ahead. It is waited for as long as a claim lasts, and no longer."""
    folder = stale_claims(place, alone, tmp_path, seconds)
    began = time.monotonic()
    done = run(place, *QUESTION, "--parts", folder)
    assert (done.returncode, done.stdout) == (1, alone), done.stderr
    assert time.monotonic() - began < 60


def test_a_folder_on_another_file_system(place, alone):
    """Than the captures and TMPDIR."""
    other = pathlib.Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == place.stat().st_dev or not os.access(other, os.W_OK):
        pytest.skip("no other file system here")
    folder = other / f"lastbit-parts-{os.getpid()}"
    try:
        started = [subprocess.Popen([LASTBIT, *QUESTION, "--parts", folder], cwd=place, env=PLAIN, stdout=subprocess.PIPE) for _ in range(3)]
        assert b"".join(worker.communicate(timeout=120)[0] for worker in started) == alone
        assert merged(place, folder) == alone
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(not HOST.exists(), reason="this C library's allocator has no other names to be called by")
@pytest.mark.parametrize("kind", ["rename", "open", "read", "mmap", "write", "unlink", "stat", "folder", "thread", "close", "alloc"])
def test_calls_that_fail(place, alone, tmp_path, kind):
    """One, or all from one on, as in a folder that may only be read: the answer, or none and a reason; and what is left in the folder misleads no later worker."""
    folder, failed = tmp_path / "parts", 0
    with Server([LASTBIT, *QUESTION, "--parts", folder], tmp_path, HOST, cwd=place) as server:
        whole = server.run(kind)
        assert (whole.code, whole.out) == (1, alone), whole
        for for_good in (False, True):
            for first in Server.chosen(whole.calls, 120 if FULL else 14):
                shutil.rmtree(folder, ignore_errors=True)
                outcome = server.run(kind, first, for_good)
                failed += outcome.failed > 0
                assert outcome.code in (1, 128), outcome
                assert outcome.out == alone if outcome.code == 1 else alone.startswith(outcome.out), outcome
                assert outcome.code == 1 or b"lastbit diff: " in outcome.err or (kind, for_good) == ("write", True), outcome
                assert kind == "write" or outcome.code == 1 or not outcome.out, outcome  # stdout itself may be what could not be written
                told = (folder / "told").exists()
                after = run(place, *QUESTION, "--parts", folder)
                assert (told and (after.returncode, after.stdout) == (0, b"")) or (after.returncode, after.stdout) == (1, alone), (outcome, after)
                assert merged(place, folder) == alone
    assert failed


def test_parts_that_are_cut_short(place, alone, tmp_path):
    """At any length: the file is refused by its name, or, where it is cut between two records, what lacks is made."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert run(place, *QUESTION, "--part", "1/2", "-o", whole).returncode == 0
    bytes_of, refused = whole.read_bytes(), 0
    lengths = [*range(0, len(bytes_of), max(1, len(bytes_of) // (400 if FULL else 40))), len(bytes_of) - 1]
    for n in lengths:
        part.write_bytes(bytes_of[:n])
        done = run(place, "diff", "--merge", part, "--json")
        if done.returncode == 1:
            assert done.stdout == alone
            continue
        assert (done.returncode, done.stdout) == (128, b"") and str(part).encode() in done.stderr, (n, done)
        refused += 1
    assert refused > 20


def records_of(folder):
    return sorted(folder.glob("*.part"))


@pytest.mark.parametrize("way", ["exchanged", "copied", "cut", "empty"])
def test_records_in_a_folder_that_are_not_what_their_names_say(place, alone, tmp_path, way):
    """One stands under the name of another, or is not whole: it is refused by its name or made anew, and never taken for what it is not."""
    folder = tmp_path / "parts"
    assert run(place, *QUESTION, "--parts", folder).stdout == alone
    for name in ("told", "answer"):
        (folder / name).unlink()
    one, *_, other = records_of(folder)
    mine, theirs = one.read_bytes(), other.read_bytes()
    if way == "exchanged":
        one.write_bytes(theirs), other.write_bytes(mine)
    else:
        one.write_bytes({"copied": theirs, "cut": mine[: len(mine) // 2], "empty": b""}[way])
    broken = way in ("cut", "empty")
    joined = run(place, "diff", "--merge", folder, "--json")
    after = run(place, *QUESTION, "--parts", folder)
    answers, refuses = (after, joined) if broken else (joined, after)  # a worker makes anew what is not whole, and refuses what is of other units
    assert (answers.returncode, answers.stdout) == (1, alone), answers
    assert (refuses.returncode, refuses.stdout) == (128, b"") and str(one).encode() in refuses.stderr, refuses


@pytest.mark.parametrize("round", range(2 if not FULL else 30))
def test_two_commands_in_one_folder_at_once(place, alone, tmp_path, round):
    """One of them has the folder; the other is refused and leaves nothing that misleads the first."""
    folder, questions = tmp_path / "parts", [QUESTION, ["diff", "poisoned.lb", "clean.lb", "--json"], ["verify", "clean.lb", "--json"]]
    expected = [(1, alone), *((done.returncode, done.stdout) for done in (run(place, *words) for words in questions[1:]))]
    order = [(round + k) % 3 for k in range(3)] * 2
    started = [(k, subprocess.Popen([LASTBIT, *questions[k], "--parts", folder], cwd=place, env=PLAIN, stdout=-1, stderr=-1)) for k in order]
    ends = [(k, *worker.communicate(timeout=120), worker.returncode) for k, worker in started]
    served = {k for k, _, _, code in ends if code in (0, 1)}
    assert len(served) == 1, ends
    [first] = served
    assert b"".join(out for k, out, _, _ in ends if k == first) == expected[first][1], ends
    assert all((code, out) == (129, b"") and b"another" in err for k, out, err, code in ends if k != first), ends
    again = run(place, questions[first][0], "--merge", folder, "--json")
    assert (again.returncode, again.stdout) == expected[first]


CAN_MOUNT = (
    subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
    if shutil.which("unshare")
    else False
)


@pytest.mark.skipif(not CAN_MOUNT, reason="no file system can be mounted here")
@pytest.mark.parametrize("disk", ["full", "nearly full", "that may only be read"])
def test_a_folder_on_a_disk_that_is(place, alone, tmp_path, disk):
    """An error that says so, and no answer that is not whole; once there is room the same folder serves."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    room = {"full": 4, "nearly full": 24, "that may only be read": 4096}[disk]
    lock = f"mount -o remount,ro {mounted};" if disk == "that may only be read" else ""
    free = f"mount -o remount,rw,size=8m {mounted};"
    worker = f"{LASTBIT} {' '.join(QUESTION)} --parts {mounted}/parts"
    script = f"mount -t tmpfs -o size={room}k none {mounted}; {lock} {worker}; echo $? >{tmp_path}/code; {free} {worker} >{tmp_path}/after"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], cwd=place, env=PLAIN, capture_output=True, timeout=120)
    code = int((tmp_path / "code").read_text())
    assert (code, done.stdout) == (1, alone) or (code == 128 and not done.stdout and b"lastbit diff: " in done.stderr), done
    assert code == 128 or disk == "nearly full"
    assert (tmp_path / "after").read_bytes() == (alone if code == 128 else b""), done.stderr
    part = subprocess.run(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            f"mount -t tmpfs -o size=4k none {mounted}; {lock} {LASTBIT} {' '.join(QUESTION)} --part 1/2 -o {mounted}/part; ls {mounted}",
        ],
        cwd=place,
        env=PLAIN,
        capture_output=True,
        timeout=120,
    )
    assert part.stdout == b"" and b"lastbit diff: " in part.stderr, part  # nor is a draft left
