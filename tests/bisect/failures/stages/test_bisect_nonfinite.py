"""What is not finite has no size: it has not grown, and no norm is below a limit."""

import pytest

# The loss takes a root of what its largest output leaves over; in step 2 that is negative, where the second block's part is added.
PROGRAM = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
    def forward(self, h):
        return h + self.down(torch.relu(self.up(h)))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        with torch.no_grad():
            for p in self.layers[1].parameters():
                p.mul_(4)
    def forward(self, h):
        for block in self.layers:
            h = block(h)
        return h

torch.manual_seed(0)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(4):
    x = torch.randn(4, 16) * (10 if step == 2 else 1)
    torch.sqrt(40 - net(x).abs().amax()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def root(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    (folder / "train.py").write_text(PROGRAM)
    lastbit.record(folder / "run.lb", folder / "train.py", expect=0)
    return folder / "run.lb"


def test_an_optimizer_that_was_given_nan_made_nothing_grow(lastbit, root):
    verdict = lastbit.json("bisect", root, "-q", expect=1)
    assert [(c["axis"], c["layer"], c["op"], c["step"]) for c in verdict["culprits"]] == [("block", "layers.1", None, 2)]
    assert "grew" not in verdict["culprit"]["why"]
    assert verdict["begins"]["op"] == "aten::sqrt" and verdict["begins"]["step"] == 2


def test_a_gradient_of_nan_is_above_every_limit(lastbit, root):
    answer = lastbit.json("bisect", root, "-q", "--predicate", "grad_norm>1000", expect=1)
    assert (answer["failure"]["kind"], answer["failure"]["step"]) == ("predicate", 2)
    assert "not finite" in answer["failure"]["what"]
    assert lastbit.json("bisect", root, "-q", "--steps", "0-1", "--predicate", "grad_norm>1000", expect=0)["outcome"] == "clean"
