"""The families of tests whose answers depend on the processor, as another processor would run them. PyTorch's libraries choose their kernels by
what they believe the processor to be: MKL asks `mkl_serv_intel_cpu_true`, which a library that is loaded first answers; oneDNN and ATen read
variables. Each environment is a processor that showed a fault which this one hid."""

import os
import platform
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

FAMILIES = [
    "tests/replay/fused/test_fused_attention.py::test_flash_cpu_is_torch",
    "tests/bisect/pairs/explain/test_explain_rows.py::test_a_training_step_on_other_rows_besides",
    "tests/bisect/pairs/explain/test_explain_rows.py::test_tokens_sorted_by_expert_are_followed",
    "tests/bisect/pairs/explain/test_explain_models.py::test_chunks_and_steps_of_a_gated_delta_rule",
    "tests/bisect/pairs/explain/test_explain_routing.py::test_what_follows_from_a_flip_in_a_mixture_written_by_hand",
]
INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
PROCESSORS = {
    "Intel with AVX-512 alone": (True, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}),
    "AMD with AVX2": (False, {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}),
}


@pytest.mark.full
@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("cc"), reason="emulated on x86-64, with a compiler")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_families_hold_on_another_processor(tmp_path, processor):
    intel, variables = PROCESSORS[processor]
    env = {**os.environ, **variables, "LASTBIT_FULL": "0"}
    if intel:
        (tmp_path / "intel.c").write_text(INTEL)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "intel.so", tmp_path / "intel.c"], check=True)
        env["LD_PRELOAD"] = str(tmp_path / "intel.so")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FAMILIES], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
