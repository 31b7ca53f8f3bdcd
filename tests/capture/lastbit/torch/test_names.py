"""What tensors are called: by the module, the optimizer or the variable that holds them; and what has no value at all."""

import textwrap

import pytest
import recorded

torch = pytest.importorskip("torch")

HEAD = """
import ctypes, copy, torch
torch.set_num_threads(1)
torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)
        self.register_buffer("scale", torch.ones(4))
    def forward(self, x): return x + self.down(torch.relu(self.up(x))) * self.scale
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        self.gains = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(4)) for _ in range(3))
        self.table = torch.nn.ParameterDict({"bias": torch.nn.Parameter(torch.zeros(4))})
    def forward(self, x):
        for layer, gain in zip(self.layers, self.gains): x = layer(x) * gain
        return x + self.table["bias"]
model = Net()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = lambda: torch.randn(3, 4)
def step(model=model): model(data()).square().mean().backward(); opt.step(); opt.zero_grad()
def spoil(t): ctypes.memset(t.data_ptr(), 0x7f, 4)
"""


@pytest.fixture
def record(tmp_path):
    def run(code, **settings):
        recorded.run(HEAD + textwrap.dedent(code), tmp_path / "run.lb", **settings)
        return recorded.Recorded(tmp_path / "run.lb")

    return run


HIT = {
    "layers.1.up.weight": ("model.layers[1].up.weight", "layers.1.up"),
    "layers.2.scale": ("model.layers[2].scale", "layers.2"),
    "gains.1": ("model.gains[1]", None),
    "table.bias": ("model.table['bias']", None),
    "optimizer.exp_avg:layers.0.down.bias": ("opt.state[model.layers[0].down.bias]['exp_avg']", "layers.0.down"),
    "optimizer.exp_avg_sq:gains.2": ("opt.state[model.gains[2]]['exp_avg_sq']", None),
}
WAYS = {"past everything": "spoil({0})", "by NumPy": "{0}.detach().numpy().reshape(-1)[0] = 1e30"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HIT)
def test_an_unseen_write_names_what_it_hit_and_whose_it_is(name, way, record):
    tensor, layer = HIT[name]
    capture = record("step(); step(); %s; step()" % WAYS[way].format(tensor), level="sources")
    step = capture.programs[0][2]
    (notice,) = [n for n in step.notices if step.text(n.kind) == "unseen_write"]
    assert step.text(step.values[notice.value].name) == name
    assert name in step.text(notice.message)
    source = step.ops[notice.op]
    assert step.name(source) == "lb::source" and (layer is None or step.layer(source) == layer)


def named_sources(program):
    return {program.text(v.name) for v in program.values if v.source}


NAMED = {
    "a module that nobody calls": (
        """
        average = copy.deepcopy(model)
        for _ in range(2):
            step()
            with torch.no_grad():
                for a, p in zip(average.parameters(), model.parameters()): a.lerp_(p, 0.1)""",
        {"Net.layers.0.up.weight", "Net.table.bias", "layers.0.up.weight"},
    ),
    "parts of a module that is not called": (
        """
        class Agent(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.actor, self.critic = torch.nn.Sequential(Block()), torch.nn.Linear(4, 1)
        agent = Agent()
        opt = torch.optim.Adam(agent.parameters())
        for _ in range(2):
            x = data(); (agent.actor(x).sum() + agent.critic(x).sum()).backward(); opt.step(); opt.zero_grad()""",
        {"actor.0.up.weight", "critic.weight", "critic.bias"},
    ),
    "a trainer around one model": (
        """
        class Trainer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model, self.loss = Net(), torch.nn.MSELoss()
        trainer = Trainer()
        opt = torch.optim.Adam(trainer.parameters())
        for _ in range(2): x = data(); trainer.loss(trainer.model(x), x).backward(); opt.step(); opt.zero_grad()""",
        {"layers.0.up.weight", "gains.1", "optimizer.exp_avg:gains.1"},
    ),
    "functional_call": (
        """
        values = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
        opt = torch.optim.SGD(values.values(), lr=0.1)
        for _ in range(2):
            torch.func.functional_call(model, values, (data(),)).square().sum().backward(); opt.step(); opt.zero_grad()""",
        {"layers.1.down.bias", "gains.0"},
    ),
    "tensors of a program's own": (
        """
        weights = {"a": torch.randn(4, 4, requires_grad=True)}
        bias = torch.zeros(4, requires_grad=True)
        opt = torch.optim.Adam([*weights.values(), bias], lr=0.1)
        for _ in range(3): (model(data()) @ weights["a"] + bias).square().mean().backward(); opt.step(); opt.zero_grad()""",
        {"weights.a", "bias", "optimizer.exp_avg:weights.a"},
    ),
    "tied weights": (
        """
        model.layers[2].up.weight = model.layers[0].up.weight
        opt = torch.optim.AdamW(model.parameters())
        step(); step()""",
        {"layers.0.up.weight", "optimizer.exp_avg:layers.0.up.weight"},
    ),
    "a compiled wrapper": (
        """
        compiled = torch.compile(model, backend="eager")
        step(compiled); step(compiled)""",
        {"layers.0.up.weight", "gains.0"},
    ),
}


@pytest.mark.parametrize("case", NAMED)
def test_sources_have_the_names_of_who_holds_them(case, record):
    code, expected = NAMED[case]
    capture = record(code, level="stats")
    assert named_sources(capture.programs[0][max(capture.steps)]) >= expected
    assert capture.table("coverage")["unseen_writes"] == 0


def test_of_nothing_comes_nothing(record):
    capture = record("""
        for _ in range(2):
            step()
            a = torch.empty(3, 4); a.add_(1.0); a.mul_(2); b = a.clone() + 1
            c = torch.empty(2, 4); torch._foreach_add_([c], 1.0); d = c.sum()
            e = torch.empty(4); e.copy_(torch.ones(4)).mul_(3); f = e.clone() - 1
            g = torch.empty(4); g.numpy()[:] = 2.0; h = g.clone() * 5
    """)
    program = capture.programs[0][1]

    def flags(name):
        return [
            bool(program.values[v].flags & recorded.UNDEFINED)
            for op in program.ops
            if program.name(op) == name and program.layer(op) == "" and recorded.PHASES[op.phase] != "backward"
            for v in program.results(op)[:1]
        ]

    clones = flags("aten::clone")
    assert clones == [True, False, False]
    assert flags("aten::sum")[-1:] == [True]
    last = [op for op in program.ops if program.name(op) == "aten::mul.Tensor"][-1]
    assert program.tensor(program.results(last)[0]).tolist() == [10.0] * 4
    assert capture.table("coverage")["unseen_writes"] == 0


def test_layers_that_know_their_own_path_are_called_by_it(record):
    """Keras holds its layers where torch does not see them; without a path of their own all of one class were one place."""
    capture = record("""
        import sys, types
        keras = sys.modules["keras"] = types.ModuleType("keras")
        class Layer(torch.nn.Module):
            def __init__(self, path):
                super().__init__()
                self.path, self.weight = path, torch.nn.Parameter(torch.randn(4, 4))
            def forward(self, x): return x @ self.weight
        keras.Layer = Layer
        class Dense(Layer): pass
        class Holder(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.held, self.out = [Dense("block_0/query"), Dense("block_1/query")], torch.nn.Linear(4, 4)
                self.unheld = [torch.nn.ReLU()]
            def forward(self, x):
                for layer in self.held: x = layer(x)
                return self.out(self.unheld[0](x))
        model = Holder()
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        step(model)
    """)
    program = capture.programs[0][0]
    products = [program.layer(op) for op in program.ops if program.name(op) == "aten::mm"]
    assert products[:2] == ["block_0.query", "block_1.query"]
    assert "ReLU" in {program.layer(op) for op in program.ops}
