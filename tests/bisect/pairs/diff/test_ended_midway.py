"""A program that ended before the other one: the steps that it did not come to are missing, whichever side it is."""

import pytest
from conftest import warm_python

TRAIN = """
import os, sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for n, batch in enumerate(torch.randn(4, 4, 8)):
    loss = model(batch).square().mean()
    if n == 2 and sys.argv[1] == "killed":
        os._exit(9)
    if n == 2 and sys.argv[1] == "raised":
        raise ValueError
    loss.backward(), optimizer.step(), optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def runs(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    (folder / "train.py").write_text(TRAIN)
    for how in ("whole", "killed", "raised"):
        lastbit.run("record", "-o", folder / f"{how}.lb", "--level", "ops", "--", *warm_python(), folder / "train.py", how)
    return folder


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_steps_of_one_side_alone_are_missing(lastbit, runs, how):
    for first, second, side in ((how, "whole", "second"), ("whole", how, "first")):
        answer = lastbit.json("diff", runs / f"{first}.lb", runs / f"{second}.lb", expect=1)
        assert answer["verdict"] == "missing", answer["first"]
        assert f"step 3 of rank 0 was captured on the {side} side only" in answer["missing"]
        ended = [text for text in answer["missing"] if text.startswith("step 2 of rank 0 ")]
        assert len(ended) == 1 and ("incomplete" in ended[0]) is (how == "raised")


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_two_that_ended_at_one_place_are_the_same(lastbit, runs, how):
    answer = lastbit.json("diff", runs / f"{how}.lb", runs / f"{how}.lb", expect=0)
    assert answer["verdict"] == "identical" and not answer["missing"]
