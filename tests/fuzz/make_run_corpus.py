"""make_run_corpus.py FOLDER: the first inputs of the fuzzers of run_targets.h: logs, tokens, results, adapters, journals, and what is typed."""

import json
import pathlib
import struct
import sys

import torch
from safetensors.torch import save

KINDS = ["precision", "kernel", "order", "rounding", "skip", "muon", "contribution", "source", "routing", "accumulate", "update", "fuse"]

TEXTS = {
    "log": {
        "line": "step 00001/30000 (0.17%) | loss: 4.2371 | lrm: 0.55 | dt: 412.10ms | tok/sec: 254,128 | gnorm: 1.4231\n"
        "saved checkpoint ckpt/step_00001.pt\nstep 00002/30000 (0.17%) | loss: nan | lrm: 1e-3 | gnorm: inf\n",
        "objects": '{"step": 1, "train": {"loss": 2.5, "grad_norm": 1.0}, "lr": 1e-4, "shard": "a.bin", "token_counts": [5, 0, 3]}\n'
        "{'step': 2, 'loss': nan, 'grad_norm': Infinity, 'checkpoint': 'ckpt/2', 'token_counts': [0, 4]}\n",
        "table": 'step,loss,"grad_norm",lr,shard\n1,2.5,1.0,1e-4,"a,b"\n2,nan,,1e-4,"c""d"\n',
        "history": '{"global_step": 20, "log_history": [{"loss": 2.5, "grad_norm": 1.5, "step": 10}, {"loss": NaN, "step": 20}], "max_steps": 20}\n',
        "pairs": "iter 10: loss 4.23 lr=2e-4\niter 11: loss 4.20\r\n\x1b[32miter 12\x1b[0m: loss 4.1\n 50%|#####     | 5/10 [00:01<00:01, loss=2.3]\n",
    },
    "pattern": {
        "named": "step (?<step>\\d+).*loss: (?<loss>\\S+)\nstep 1 loss: 2.5\nstep 2 loss: nan\n",
        "plain": "^(?<step>[0-9]+) (?<loss>[0-9.]+)$\n1 2.5\n2 2.4\n",
        "broken": "(?<step>\n1\n",
    },
    "tokens": {
        "sequences": '{"id": "a", "token_ids": [1, 2, 3], "logprobs": [null, -0.1, -2.5], "kinds": ["text", "image", 4], "mask": [1, 1, 0]}\n'
        '{"id": 2, "tokens": ["<s>", "a", "b"], "logprobs": [-0.1, -Infinity, NaN], "loss_mask": [0, 1, 1]}\n',
        "lines": '{"sequence": "s", "position": 0, "token_id": 5, "token": "x", "logprob": -1.5}\n'
        '{"sequence": "s", "token_id": 6, "logprob": -0.5, "top_logprobs": [[-0.5, 6, "y"], [-3, 7, "z"]]}\n',
        "openai": '{"id": "c", "choices": [{"logprobs": {"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.5], "top_logprobs": [{"a": -0.5}, null]}}]}',
        "chat": '{"choices": [{"logprobs": {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}]}]}}]}',
        "vllm": '{"prompt_token_ids": [17], "prompt_logprobs": [null, {"17": {"logprob": -0.25, "rank": 1, "decoded_token": "q"}}], '
        '"outputs": [{"token_ids": [4], "logprobs": [{"4": {"logprob": -1.0}}]}]}',
        "sglang": '{"meta_info": {"input_token_logprobs": [[null, 1, "a"], [-0.5, 2, "b"]], "output_token_logprobs": [[-0.5, 3, "c"]], '
        '"output_top_logprobs": [[[-0.5, 3, "c"]]]}}',
        "trl": '{"prompt_ids": [[1]], "completion_ids": [[2, 3]], "logprobs": [[-0.5, -0.25]]}',
    },
    "result": {
        "diff": '{"schema": "lastbit.diff/1", "verdict": "diverged", "first": {"step": 0, "layer": "l", "op": "aten::mm", "verdict": "diverged"}, '
        '"layers": [{"step": 0, "rank": 0, "layer": "l.0", "verdict": "rounding", "rel_l2": 1e-6}, {"rank": 1, "rel_l2": "inf", "max_ulp": null}], '
        '"tokens": [{"kind": "text", "k3": 0.5}], "structure": ["x"], "missing": []}',
        "watch": '{"schema": "lastbit.watch/1", "pattern": "none", "alarms": [{"step": 1, "kind": "loss"}], "curves": {"step": [1, 2], "loss": [1.5, "nan"]}}',
        "ranks": '{"schema": "lastbit.ranks/1", "steps": [{"step": 0, "loss_mean": 1.0, "loss_range": null}], "findings": [{"rank": 1, "message": "x"}]}',
        "none": '{"verdict": "identical"}',
    },
    "fingerprints": {
        "table": '{"schema": "lastbit.fingerprint/1", "tables": [{"path": "x", "step": 3, "sum": "%s", "tensors": [{"name": "model.layers.0.a.weight", '
        '"dtype": "f32", "shape": [2, 3], "fingerprint": "%s", "numbers": "%s", "rounded": [{"dtype": "bf16", "numbers": "%s"}], "constant": true, '
        '"lacks": null}, {"name": "module.b", "dtype": "bf16", "shape": [], "fingerprint": null, "numbers": null, "lacks": "not kept"}, {"name": '
        '"b", "dtype": "i64", "shape": [0], "fingerprint": "%s", "numbers": "%s", "rounded": []}]}]}' % (("0123456789abcdef" * 2,) * 6),
        "none": '{"schema": "lastbit.fingerprint/1", "tables": [{"tensors": []}]}',
        "other": '{"schema": "lastbit.audit/1"}',
    },
    "journal": {
        "head": '{"schema":"lastbit.journal/1","bisect":"run.lb, steps 0-2"}\n{"change":"skip=a","outcome":"cured","what":"x"}\n{"change":"skip=b","outc',
        "other": '{"schema":"lastbit.journal/1","bisect":"other.lb"}\n',
    },
    "selector": {
        "all": "",
        "terms": "layer=^model\\.layers\\.[01](\\.|$)&op=mm|add&phase=forward,backward&rank=0,2-5&step=1&index=0-1&block=E,A&class=Linear",
        "plain": "mlp/aten::(add)?mm",
        "bad": "phase=sideways",
    },
    "tree": {
        "text": "((0 1) (2 3))",
        "json": '{"schema": "lastbit.tree/1", "leaves": 4, "nodes": [[0, 1], [2, 3], [4, 5]]}',
        "bad": "(0 0)",
    },
    "order": {
        "ring": "ring:2:64",
        "tree": "tree:4",
        "names": "doubling",
        "rotated": "rotated",
        "bad": "ring:0",
        "huge": "ring:2:9223372036854775807",
    },
    "map": {
        "rule": "s/^model\\.(.*)$/transformer.\\1/\nmodel.layers.3.self_attn.o_proj",
        "all": "s/layers/h/g\ntransformer.layers.3.layers",
        "bad": "s/(/x/",
    },
    "swap": {
        "precision": "layer=mlp=e4m3:fp8-delayed,history:16",
        "order": "op=sum=splitk:4",
        "kernel": "op=mm=tensorcore:h100",
        "rounding": "op=mm=stochastic:7",
        "routing": "ids+weights",
        "contribution": "rank=1=mean",
        "fuse": "attention=splitkv:4",
        "skip": "layer=mlp",
        "muon": "f32",
        "update": "layer=mlp=0.5",
        "accumulate": "op=mm=bf16",
        "source": "layer=mlp=step:3",
    },
}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def framed(event):
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", crc32c(length)) + event + struct.pack("<I", crc32c(event))


def field(number, wire, payload):
    return bytes([number << 3 | wire]) + payload


def delimited(number, payload):
    return field(number, 2, bytes([len(payload)]) + payload)


def event_file():
    tensor = delimited(8, field(1, 0, b"\1") + delimited(4, struct.pack("<f", 2.25)))
    values = [delimited(1, b"train/loss") + field(2, 5, struct.pack("<f", 2.5)), delimited(1, b"grad_norm") + tensor]
    out = framed(field(1, 1, struct.pack("<d", 1.0)) + delimited(3, b"brain.Event:2"))
    for step in (1, 2):
        out += framed(field(1, 1, struct.pack("<d", 2.0)) + field(2, 0, bytes([step])) + delimited(5, b"".join(delimited(1, v) for v in values)))
    return out


def adapter():
    names = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    tensors = {names + "A.weight": torch.ones(2, 4), names + "B.weight": torch.ones(4, 2), "base_model.model.lm_head.weight": torch.ones(4, 4)}
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "rank_pattern": {"q_proj": 2}, "use_rslora": False}
    return save(tensors) + b"\0" + json.dumps(config).encode()


def main(folder):
    for target, inputs in TEXTS.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for name, text in inputs.items():
            kind = bytes([KINDS.index(name)]) if target == "swap" else b""
            (folder / target / name).write_bytes(kind + text.encode())
    for target, inputs in {"events": {"scalars": event_file(), "cut": event_file()[:-7]}, "adapter": {"lora": adapter()}}.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (folder / target / name).write_bytes(data)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
