"""What is measured while the program goes on is what would have been measured had it waited: every row of the archive is the
same, whatever the program does to the bytes meanwhile."""

import pytest
import recorded

pytest.importorskip("torch")

PROGRAM = """
import os
os.environ["LASTBIT_THREADS"] = "%d"
import torch
torch.set_num_threads(1)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.GELU(), torch.nn.Linear(400, 300))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
batch = torch.randn(512, 300)

def careless(y):
    for _ in range(3):
        y.mul_(1.5)                            # written as soon as it was computed
    z = y.t().contiguous() + 1
    del y
    z = (z.view(-1, 2).t().contiguous() * 2).relu_()
    z[1:].add_(z[:-1].clone())                 # parts of a storage
    flat = z.flatten()
    flat[7] = float("nan")
    a = (flat * 3).nan_to_num_()
    a.numpy()[:] = 5                           # by code that nobody sees
    b = a + 1
    b.untyped_storage().fill_(0)
    c = (a + 2).reshape(300, 512)
    c.share_memory_()                          # its bytes move
    d = c * c
    d.untyped_storage().resize_(0)             # and go
    d.untyped_storage().resize_(4 * d.numel())
    d.fill_(2)
    e = torch.empty(1000, 200).uniform_() + 1
    e.resize_(40)
    return (c + d).sum() + b.sum() * 0 + e.sum() * 0

for step in range(3):
    y = model(batch)
    loss = y.pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    print(loss.item(), careless(y.detach() * 2).item())
"""


def rows(path):
    """Every row of every step as bytes; statistics with the values they belong to."""
    capture = recorded.Recorded(path)
    found = {}
    for step, program in capture.programs[0].items():
        found[step] = {
            name: [bytes(row) for row in getattr(program, name)] if name != "refs" else list(program.refs) for name, _ in recorded.TABLES[1:]
        }
    capture.close()
    return found


@pytest.mark.parametrize("level", ["stats", "sources", "layers"])
def test_rows_do_not_depend_on_the_thread_beside(tmp_path, level):
    outs = {}
    for threads in (1, 2):
        folder = tmp_path / str(threads) / "run.lb"
        folder.parent.mkdir()
        outs[threads] = recorded.run(PROGRAM % threads, folder, quiet=False, level=level)[0]
    plain = recorded.run(PROGRAM % 1)[0]
    assert outs[1] == plain and outs[2] == plain and "nan" not in plain
    alone, beside = (rows(tmp_path / str(threads) / "run.lb") for threads in (1, 2))
    assert len(alone) == 3 and alone.keys() == beside.keys()
    for step in alone:
        for table in alone[step]:
            assert len(alone[step][table]) == len(beside[step][table]), table
            different = [i for i, (a, b) in enumerate(zip(alone[step][table], beside[step][table])) if a != b]
            assert not different, "step %d, %s: rows %s" % (step, table, different[:8])
