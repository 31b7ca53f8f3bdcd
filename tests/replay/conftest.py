"""What tests of this folder share: models recorded once per session."""
import pytest


@pytest.fixture(scope="session")
def recordings(lastbit, tmp_path_factory):
    """recordings(*ARGUMENTS, program=…): the capture, at level ops; a Hugging Face model where no program is named."""
    made = {}

    def record(*arguments, program="tests/programs/hf_architectures.py"):
        if (program, arguments) not in made:
            out = tmp_path_factory.mktemp("recordings") / "run.lb"
            lastbit.record(out, program, *arguments, options=("--level", "ops"), expect=0)
            made[program, arguments] = out
        return made[program, arguments]

    return record


@pytest.fixture(scope="session")
def steps(recordings):
    """The same, and the composites of its first step."""
    import composites

    made = {}

    def step(*arguments, **options):
        path = recordings(*arguments, **options)
        if path not in made:
            made[path] = composites.Step(path)
        return made[path]

    return step
