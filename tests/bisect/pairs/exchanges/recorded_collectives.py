"""Captures of what real libraries gave (tests/replay/orders/judged_mpi.py), and of what was changed in it: one step per collective."""

import ctypes as C

import judged_mpi as J
import numpy as np
from conftest import BUILD

NAMES = {
    "allreduce": "c10d::allreduce_",
    "reduce": "c10d::reduce_",
    "iallreduce": "c10d::allreduce_",
    "ireduce": "c10d::reduce_",
    "reduce_scatter_block": "c10d::_reduce_scatter_base_",
}
REDUCTIONS = {"prod": "product"}

_recorder = C.CDLL(str(BUILD / "tests" / "libcollective_recorder.so"))
_recorder.recording_open.restype = C.c_void_p


def call(recording, name, reduction, root, dtype, given, received):
    given, received = np.ascontiguousarray(given), np.ascontiguousarray(received)
    status = _recorder.recording_call(
        C.c_void_p(recording),
        name.encode(),
        reduction.encode(),
        root,
        J.DTYPES[dtype][0],
        C.c_int64(len(given)),
        C.c_void_p(given.ctypes.data),
        C.c_int64(len(received)),
        C.c_void_p(received.ctypes.data),
    )
    assert status == 0, status


def write(folder, ranks, steps):
    """`steps`: lists of results; those of fewer ranks than there are have no call on the others. A result may name another collective, or
    reduction, on some ranks: `{rank: case}` in place of its case."""
    for rank in range(ranks):
        recording = _recorder.recording_open(str(folder).encode(), rank, ranks)
        assert recording
        for step, results in enumerate(steps):
            assert _recorder.recording_begin(C.c_void_p(recording), C.c_int64(step)) == 0
            for result in results:
                case = result.case[rank] if isinstance(result.case, dict) else result.case
                reduction = REDUCTIONS.get(case.reduction, case.reduction)
                call(recording, NAMES[case.collective], reduction, case.root, case.dtype, result.inputs[rank], result.outputs[rank])
            assert _recorder.recording_end(C.c_void_p(recording)) == 0
        assert _recorder.recording_close(C.c_void_p(recording)) == 0
    return folder
