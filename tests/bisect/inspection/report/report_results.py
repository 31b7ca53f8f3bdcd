"""Results as commands print them, of any size."""

import math


def diff_row(layer, rank=0, phase="forward", verdict="rounding", local="identical", inherited=None, rel_l2=1e-6, step=0, **more):
    row = dict(step=step, rank=rank, phase=phase, layer=layer, verdict=verdict, local=local, inherited=inherited or verdict, why="", value=False)
    row |= dict(
        max_abs=rel_l2 * 3,
        max_rel=rel_l2 * 7,
        rel_l2=rel_l2,
        cosine=1 - rel_l2**2,
        max_ulp=1e7 * rel_l2,
        differing=10,
        elements=4096,
        bound_ratio=None,
    )
    return row | more


def diff_result(rows, verdict="diverged", first=None, **more):
    first = first or dict(rows[0], op="aten::mm", index=3, why="the two sides multiply in another order")
    result = dict(schema="lastbit.diff/1", command="lastbit diff a.lb b.lb", verdict=verdict, first=first, earliest=first, layers=rows)
    return result | dict(structure=[], missing=[], findings=[], ops=dict(aligned=100, identical=40), sources=dict(aligned=9, identical=9)) | more


def large_diff(layers=1000, ranks=64):
    """Rounding that grows by layer, and a bug on rank 17 from layer 700 on."""
    rows = []
    for rank in range(ranks):
        for layer in range(layers):
            bad = rank == 17 and layer >= 700
            size = 1e-7 * (1 + layer / 50) * (1 + 0.3 * math.sin(rank + layer)) * (1e4 if bad else 1)
            name = (
                f"model.layers.{layer // 8}.{['attn.qkv', 'attn.out', 'norm1', 'mlp.gate', 'mlp.up', 'mlp.down', 'norm2', 'moe.router'][layer % 8]}"
            )
            rows.append(
                diff_row(name, rank, verdict="diverged" if bad else "rounding", local="diverged" if bad and layer == 700 else "rounding", rel_l2=size)
                | dict(pattern=f"scattered: {rank + layer} of 4096 elements", why="its inputs already differ in exact arithmetic" if bad else "")
            )
    return diff_result(rows, first=dict(rows[17 * layers + 700], op="aten::mm", index=4211))


def watch_result(steps=100000, alarms=((70000, "grad_norm", "critical"), (70003, "loss", "warning"), (70010, "nonfinite", "critical"))):
    curves = dict(
        step=list(range(steps)),
        loss=[2 + 3 / (1 + i / 500) + (4 if 70000 <= i < 70012 else 0) for i in range(steps)],
        grad_norm=[1 + 0.1 * math.sin(i) + (150 if i == 70000 else 0) for i in range(steps)],
    )
    rows = [
        dict(
            step=s,
            until=s,
            kind=k,
            level=level,
            detector="rule",
            value=curves.get(k, curves["loss"])[s],
            reference=1.0,
            ratio=151.0,
            why=f"{k} is out",
        )
        for s, k, level in alarms
    ]
    holds = [{"from": 70000, "to": 70100, "open": False}]
    return dict(
        schema="lastbit.watch/1", log="run.log", verdict="found", alarms=rows, holds=holds, pattern="late-transient", curves=curves, findings=[]
    )


def ranks_result(steps=200):
    rows = [
        dict(step=i, loss_mean=3 - i / 100, loss_std=0.1 + i / 1000, loss_range=0.3, grad_norm_mean=1.0, grad_norm_std=0.05)
        | dict(grad_cosine_mean=0.8, grad_cosine_min=0.5)
        for i in range(steps)
    ]
    findings = [dict(kind="same-tokens", ranks=[2, 5], step=3, message="ranks 2 and 5 read the same tokens from step 3 on")]
    collectives = [dict(op="c10d::allreduce_", sequence=4, ranks=[0, 1], called="all_reduce of f32[1024]", other="all_gather of f32[512]")]
    return dict(schema="lastbit.ranks/1", steps=rows, findings=findings, collectives=collectives, verdict="found")


def audit_result():
    findings = [
        dict(kind="duplicate-shards", tensor="layers.0.lora_A", file="rank-1.safetensors", ranks=[1], message="bit-equal to the shard of rank 0")
    ]
    precision = [dict(dtype=d, max_abs=m, rel_l2=m / 2, rel_max=m) for d, m in (("f32", 1e-6), ("f16", 4e-3), ("bf16", 3e-2))]
    return dict(
        schema="lastbit.audit/1", checkpoint="ckpt dir", verdict="found", findings=findings, precision=precision, pairs=[], new_field={"deep": [1, 2]}
    )
