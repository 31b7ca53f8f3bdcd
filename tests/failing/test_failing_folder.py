"""A folder that `record --force` must not touch, for it holds what lastbit did not write, stays as it is whatever call fails while it is
looked through."""

import os
import pathlib

import pytest
from conftest import ROOT
from failing_runs import Server

BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
HOST = BUILD / "tests" / "libfailing_host.so"
pytestmark = pytest.mark.skipif(not HOST.exists(), reason="this C library's allocator has no other names to be called by")


def test_what_is_no_capture_is_never_cleared(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    for rank in range(40):  # so that the folder is listed in several pieces, and the stranger comes late in one order or another
        (folder / f"rank-{rank:05d}.tar").write_bytes(b"an archive")
    (folder / "notes.txt").write_bytes(b"mine")
    (folder / "a.txt").write_bytes(b"mine, too")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    failed = 0
    with Server([BUILD / "lastbit", "record", "--force", "-o", folder, "--", "/bin/true"], tmp_path, HOST) as server:
        assert server.run().code not in (0, 1) and {path.name: path.read_bytes() for path in folder.iterdir()} == before
        for kind in ("folder", "stat", "open", "path", "alloc"):
            for for_good in (False, True):
                for outcome in server.sweep(kind, for_good, some=120):
                    failed += 1
                    assert outcome.code not in (0, 1), outcome
                    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, outcome
    assert failed > 50
