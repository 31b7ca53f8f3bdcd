"""The tensors that a row cannot do without, against torch's schemas: without them an op is opaque, and no kernel is called."""

import ctypes as C

import op_harness as H
import op_samples
import pytest
import torch

NUMERIC = sorted(n for n, r in H.rows().items() if r.contents.kernel and n.startswith("aten::"))
# Their schemas demand tensors that autograd leaves undefined all the same; kernels take them as optional.
LEFT_UNDEFINED = {
    "attn_bias",
    "cum_seq_q",
    "cum_seq_k",
    "philox_seed",
    "philox_offset",
    "rng_state",
    "unused",
    "reserve",
    "reserveSpace",
    "workspace",
}
INSTEAD = "tensor (2, 4) torch.float32 torch.sparse_bsr"  # what the recorder writes of a tensor without bytes


def complete(row, values, results):
    operands = H.Operands(values)
    mirrors = (H.Tensor * max(len(results), 1))(*[H.tensor(r) for r in results])
    message = C.create_string_buffer(512)
    status = H.LIB.harness_complete(row, operands.array, operands.count, mirrors, len(results), message)
    return None if status == 0 else message.value.decode()


def sample(name):
    """(op, values, results) of the first sample that torch takes."""
    op = H.torch_op(name)
    row = H.rows()[name]
    for args, kwargs in op_samples.samples(row.contents.text("samples"), 0) if op else []:
        values = H.in_schema_order(op, args, kwargs)
        yield op, values


@pytest.mark.parametrize("name", NUMERIC)
def test_what_a_schema_demands_is_asked_for(name):
    row, result = H.rows()[name], torch.zeros(1)
    op, values = next(sample(name), (None, None))
    if op is None:
        pytest.skip("this torch has no such op")
    assert complete(row, values, [result]) is None
    names = [arg.rstrip("!?[]") for arg in row.contents.text("args").split()]
    asked = 0
    for k, (arg, parameter) in enumerate(zip(names, op._schema.arguments)):
        if "Tensor" not in str(parameter.type):
            continue
        demanded = str(parameter.type) in ("Tensor", "List[Tensor]") and arg not in LEFT_UNDEFINED
        for other in (None, INSTEAD, [torch.zeros(1, dtype=torch.int64), torch.zeros(1)]):
            if isinstance(other, list) and "List" in str(parameter.type):
                continue
            if other is None and isinstance(values[k], (list, tuple)) and not values[k]:
                continue  # a list that may be empty
            said = complete(row, values[:k] + [other] + values[k + 1 :], [result])
            if demanded or other is not None:
                assert said is not None, f"{name} takes {other} for its argument {arg}"
                assert arg in said and said.startswith(name)
            else:
                assert said is None, said
            asked += 1
    assert asked or not any("Tensor" in str(p.type) for p in op._schema.arguments)


def test_a_result_that_was_not_recorded_is_missed():
    row = H.rows()["aten::neg"]
    assert "no dense result" in complete(row, [torch.zeros(2)], [])
