"""What is installed works from where it lies: a Debian package, unpacked, and a wheel."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT
from test_current_folder import check_paths, programs_of


def clean_environment(**more):
    """Without what points at the build tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LASTBIT") and name != "PYTHONPATH"}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def check_command(command, folder, python):
    """It records a program with its own package and library, and replays it."""
    env = clean_environment()
    run(command, "record", "-o", folder / "run.lb", "--", python, ROOT / "tests/programs/two_linears.py", env=env)
    assert "op" in run(command, "ls", folder / "run.lb", env=env)
    assert "identical" in run(command, "diff", folder / "run.lb", folder / "run.lb", env=env)


@pytest.mark.skipif(not shutil.which("dpkg-shlibdeps"), reason="no dpkg-dev here")
def test_a_debian_package_works_from_its_prefix(tmp_path):
    run("cpack", "-G", "DEB", "-B", tmp_path, cwd=BUILD)
    (package,) = tmp_path.glob("*.deb")
    control = run("dpkg-deb", "-f", package)
    assert re.search(r"^Depends: .*libarchive13.*libc6", control, re.M) and "Package: lastbit" in control
    assert not re.search(r"^Depends:.*mpi", control, re.M)  # the adapters of several MPIs are for the one that is there
    run("dpkg-deb", "-x", package, tmp_path / "root")
    prefix = tmp_path / "root" / "usr"
    check_paths(programs_of(prefix))
    for path in ("share/man/man1/lastbit-bisect.1", "share/bash-completion/completions/lastbit", "include/lastbit/capture.h"):
        assert (prefix / path).exists(), path
    check_command(prefix / "bin" / "lastbit", tmp_path, sys.executable)


@pytest.mark.full
def test_a_wheel_installs_command_library_and_package(tmp_path):
    if subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path, "scikit-build-core>=0.10"]).returncode:
        pytest.skip("scikit-build-core is not to be had here")
    launcher = {f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("C", "CXX") if shutil.which("ccache")}
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT / "capture", timeout=1800, env={**os.environ, **launcher})
    (wheel,) = tmp_path.glob("lastbit-*.whl")
    run(sys.executable, "-m", "zipfile", "-e", wheel, tmp_path / "unpacked")
    check_paths(programs_of(tmp_path / "unpacked"))
    run(sys.executable, "-m", "venv", "--system-site-packages", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed", wheel)
    assert "liblastbit_capture.so" in run(python, "-c", "import lastbit; print(lastbit.library_path())", env=clean_environment(), cwd=tmp_path)
    outer = re.sub(r"/bin/[^/]+$", "", sys.executable)
    (packages,) = (os.path.join(outer, "lib", name, "site-packages") for name in os.listdir(os.path.join(outer, "lib")) if name.startswith("python"))
    (tmp_path / "torch.pth").write_text(packages)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    shutil.copy(tmp_path / "torch.pth", site)  # PyTorch of the environment that runs the tests
    check_command(tmp_path / "venv" / "bin" / "lastbit", tmp_path, python)
