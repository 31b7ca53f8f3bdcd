"""One of two FSDP2 ranks goes wrong: what the others get from it comes through a reduce-scatter."""

from conftest import ROOT, warm_python


def test_the_rank_that_spoils_the_shards_of_all_is_named(lastbit, tmp_path):
    command = [*warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", ROOT / "tests/programs/ranks/fsdp_bad_rank.py"]
    lastbit.run("record", "-o", tmp_path / "run.lb", "--", *command, expect=0)
    replayed = lastbit.json("replay", tmp_path / "run.lb", "--mode", "chained", expect=(0, 1))
    assert replayed["ops"]["opaque"] == 0
    # gloo copies the result of a reduce-scatter out once more when the program waits: that is no op of the program.
    ops = lastbit.run("ls", tmp_path / "run.lb", "--step", "1", "--rank", "0", "--ops", expect=0).stdout.splitlines()
    scatters = [i for i, line in enumerate(ops) if "_reduce_scatter_base_" in line]
    assert scatters and not any("lb::source" in ops[i + 1] and "split" in ops[i + 2] for i in scatters)
    answer = lastbit.json("bisect", tmp_path / "run.lb", "-q", expect=1)
    assert answer["culprit"]["axis"] == "rank" and answer["culprit"]["ranks"] == [1]
    assert answer["culprit"]["op"] == "aten::mul.Tensor" and answer["culprit"]["step"] == 2
    assert "--contribution rank=1=exclude" in answer["cures"]
