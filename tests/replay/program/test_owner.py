"""Which parameter each op serves, on recorded programs whose parameters all have shapes of their own: an op, or an element of one, that
gives a tensor of a parameter's shape belongs to that parameter."""

import socket

import pytest
import recorded  # noqa: E402
from owners import WHOLE, Owners  # noqa: E402

NAMES = {
    (9, 6): "blocks.0.up.weight",
    (9,): "blocks.0.up.bias",
    (6, 9): "blocks.0.down.weight",
    (13, 6): "blocks.1.up.weight",
    (6, 13): "blocks.1.down.weight",
    (17, 6): "head.weight",
    (17,): "head.bias",
}
CASES = [
    "adamw-single",
    "adamw-foreach",
    "adamw-fused",
    "sgd-momentum",
    "lion-by-hand",
    "averaged-list",
    "adamw-foreach+clip",
    *(
        pytest.param(name, marks=pytest.mark.full)
        for name in ("adamw-tensor-rate", "amsgrad", "lion", "new-tensors", "averaged", "rmsprop", "adamw-fused+clip", "lion-by-hand+clip")
    ),
]
MUONS = ["muon", "muon-by-hand", "adafactor"]


@pytest.fixture(scope="module")
def steps(lastbit, tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            path = tmp_path_factory.mktemp("owned") / "run.lb"
            lastbit.record(path, "tests/programs/ranks/owned_updates.py", name, options=["--level", "ops"], expect=0, env=meeting())
            program = recorded.Recorded(path).programs[0]
            made[name] = program[1], Owners(path, 1, following=2)
        return made[name]

    return get


def meeting():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def outside(q):
    """What optimizers do: their phase, and what code without a class does after the backward."""
    last = max(i for i, op in enumerate(q.ops) if recorded.PHASES[op.phase] == "backward")
    return [i for i, op in enumerate(q.ops) if i > last and not q.name(op).startswith("profiler::")]


def outputs(q, owners, i):
    """(element, value) of everything that an op writes or gives."""
    op = q.ops[i]
    for v in dict.fromkeys(q.results(op) + q.written(op)):
        if v != recorded.NONE:
            yield owners.element(i, v), v


@pytest.mark.parametrize("case", CASES)
def test_what_has_the_shape_of_a_parameter_is_that_parameters(steps, case):
    q, owners = steps(case)
    seen = set()
    for i in outside(q):
        for element, v in outputs(q, owners, i):
            name = NAMES.get(tuple(q.shape(v)))
            if name and q.name(q.ops[i]) != "aten::empty_like":
                assert owners.of(i, element) == name, (i, q.name(q.ops[i]), element)
                assert owners.module(i, element) == name.rpartition(".")[0]
                seen.add(name)
    assert seen == set(NAMES.values())


@pytest.mark.parametrize("case", CASES + MUONS)
def test_nothing_after_the_backward_is_without_an_owner(steps, case):
    q, owners = steps(case)
    for i in outside(q):
        for element in range(owners.elements(i)):
            assert owners.of(i, element), (i, q.name(q.ops[i]), element)


@pytest.mark.parametrize("case", MUONS)
def test_all_of_an_iteration_belongs_to_the_parameter_that_it_ends_in(steps, case):
    """These step one parameter after the other: what stands before a write of a parameter is that parameter's."""
    q, owners = steps(case)
    writes = {i: q.text(q.values[v].name) for i in outside(q) for v in q.written(q.ops[i]) if q.values[v].flags & recorded.PARAMETER}
    lists = q.groups[-1].first_op if case == "muon" else len(q.ops)  # AdamW beside it takes all its vectors at once
    for i in [i for i in outside(q) if i < lists]:
        shared = owners.elements(i) > 1 or q.name(q.ops[i]) in ("lb::source", "aten::lift_fresh")
        following = min((w for w in writes if w >= i), default=None)
        assert shared or following is None or owners.of(i) == writes[following], (i, q.name(q.ops[i]), owners.of(i))
        for element, v in outputs(q, owners, i):
            if owners.elements(i) > 1 and tuple(q.shape(v)) in NAMES:
                assert owners.of(i, element) == NAMES[tuple(q.shape(v))]


def test_a_norm_of_all_gradients_serves_all_parameters(steps):
    q, owners = steps("adamw-foreach+clip")
    ops = [i for i in outside(q) if q.name(q.ops[i]) in ("aten::stack", "aten::linalg_vector_norm", "aten::reciprocal", "aten::clamp")]
    assert len(ops) >= 3
    for i in ops:
        assert owners.of(i) == "all parameters" and owners.module(i) == "", q.name(q.ops[i])


def test_groups_are_called_by_their_optimizer(steps):
    """Muon's matrices and AdamW's vectors: what serves a whole list is called by the group."""
    q, owners = steps("muon")
    lists = [i for i in outside(q) if owners.elements(i) > 1]
    assert lists
    for i in lists:
        assert owners.of(i, WHOLE) == "the parameters of group 0 of AdamW"


def test_modules_keep_their_ops_and_buffers_their_names(steps):
    q, owners = steps("adamw-single")
    forward = [i for i, op in enumerate(q.ops) if recorded.PHASES[op.phase] == "forward"]
    counts = [i for i in forward if q.name(q.ops[i]) == "aten::add_.Tensor"]
    assert [owners.of(i) for i in counts] == ["blocks.0.calls", "blocks.1.calls"]
    for i in forward:
        assert owners.module(i) == q.layer(q.ops[i]) or not q.ops[i].scope


def test_gradients_are_the_parameters_they_are_of(steps):
    q, owners = steps("adamw-single")
    found = {owners.of_value(v) for v, value in enumerate(q.values) if value.flags & recorded.GRADIENT}
    assert found == set(NAMES.values())


def test_buckets_belong_to_the_parameters_in_them(steps):
    q, owners = steps("ddp")
    reduced = [i for i, op in enumerate(q.ops) if op.flags & recorded.COLLECTIVE and "allreduce" in q.name(op)]
    assert reduced
    assert all(owners.of(i) == "all parameters" for i in reduced)
    copied = [
        i
        for i, op in enumerate(q.ops)
        if q.name(op) in ("aten::mul.out", "aten::div.out", "aten::copy_") and recorded.PHASES[op.phase] in ("backward", "communication")
    ]
    for i in copied:
        for element, v in outputs(q, owners, i):
            name = NAMES.get(tuple(q.shape(v)))
            assert not name or owners.of(i, element) == name, (i, q.name(q.ops[i]))
