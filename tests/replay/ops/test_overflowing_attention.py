"""Attention on a CPU of which a score is +inf: what its row becomes depends on the processor's vectors, every other row is judged."""

import op_harness as H
import torch


def test_a_row_with_an_infinite_score_is_open_and_its_neighbours_are_not():
    row, _ = H.find("aten::_scaled_dot_product_flash_attention_for_cpu")
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 5, 8, generator=draw) for _ in range(3))
    k[0, 0, 2] = q[0, 0, 3] = 0
    k[0, 0, 2, 0], q[0, 0, 3, 0] = float("inf"), 1.0  # only queries from 2 on see key 2; 3's score is +inf
    q[0, 0, 2, 0], q[0, 0, 4, 0] = -1.0, -1.0  # 2's and 4's is -inf
    values = [q, k, v, 0.0, True, None, None]
    y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=True)
    for y_row in (float("nan"), float("inf"), 0.0):
        for lse_row in (float("nan"), float("inf")):
            y[0, 0, 3], lse[0, 0, 3] = y_row, lse_row
            found = H.ratios(row, values, [y, lse])
            assert float(found[0].max()) <= 1 and float(found[1].max()) <= 1, (y_row, lse_row)
    y[0, 0, 4, 1] += 0.01
    lse[0, 0, 1] = float("nan")
    found = H.ratios(row, values, [y, lse])
    assert float(found[0].max()) > 1 and float(found[1].max()) > 1
