"""`import lastbit` on a host that fails: each allocation and system call of the library fails in turn, once and for good. The program that reads
goes on, and has what the capture holds or an error that says why not; never less, and never other bytes."""

import subprocess
import sys

import pytest
from conftest import BUILD, FULL, ROOT
from failing_runs import KINDS, Server
from test_failing_commands import LIBRARY, pytestmark  # noqa: F401

READER = "liblastbit.so,libarchive,libjansson,libzstd,libmsgpack"
OWN_CODE = 7
REFUSED = {b"error LB_ERR_NOMEM\n", b"error LB_ERR_IO\n"}


@pytest.mark.parametrize("kind_of_input", ["folder", "packed"])
def test_what_is_read_is_whole_or_refused(kind_of_input, tmp_path):
    capture, packed = tmp_path / "run.lb", tmp_path / "run.lbz"
    subprocess.run([BUILD / "train_in_c", capture], check=True, capture_output=True)
    subprocess.run([BUILD / "lastbit", "pack", capture, "-o", packed], check=True, capture_output=True)
    words = [sys.executable, ROOT / "tests/failing/read_model.py", packed if kind_of_input == "packed" else capture]
    variables = {"PYTHONPATH": str(ROOT / "capture"), "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so")}
    wrong, refused, runs = [], 0, 0
    with Server(words, tmp_path, LIBRARY, only=READER, environment=variables, pipes="MODEL_PIPES") as server:
        whole = server.run()
        assert whole.code == OWN_CODE and not whole.out.startswith(b"error") and not whole.err, whole
        for kind in KINDS:
            for for_good in (False, True):
                for outcome in server.sweep(kind, for_good, None if FULL else 40 if kind == "alloc" else 6):
                    runs, refused = runs + 1, refused + (outcome.out in REFUSED)
                    if outcome.code != OWN_CODE or outcome.err or (outcome.out != whole.out and outcome.out not in REFUSED):
                        wrong.append(f"{outcome}\n{outcome.out.decode()}")
    assert not wrong, "\n".join(wrong[:10])
    assert runs > 60 and refused > 40
