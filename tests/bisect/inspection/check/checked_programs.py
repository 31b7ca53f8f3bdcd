"""What the tests of this room share: programs of tests/programs that write FOLDER/NAME.lb for each NAME, and their answers, each asked for once."""

import os
import subprocess
import sys

from conftest import ROOT


def recorded(folder, program, names):
    """The folder, with a recording of each name."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "capture"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", ROOT / "tests/programs" / program, folder, *dict.fromkeys(names)]
    subprocess.run(command, check=True, timeout=900, env=environment)
    return folder


class Answers:
    """answers(NAME): what `lastbit check` with these options says of the recording."""

    def __init__(self, lastbit, folder, *options):
        self.lastbit, self.folder, self.options, self.made = lastbit, folder, options, {}

    def __call__(self, name, expect=(0, 1)):
        if name not in self.made:
            self.made[name] = self.lastbit.json("check", self.folder / f"{name}.lb", *self.options, expect=expect)
        return self.made[name]
