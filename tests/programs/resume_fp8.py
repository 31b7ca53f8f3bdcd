"""The sample in fp8, stopped after two steps and resumed in a process of its own.

resume_fp8.py CHECKPOINT --save    two steps; weights, buffers and optimizer state go into the checkpoint
resume_fp8.py CHECKPOINT           two more steps from there
resume_fp8.py CHECKPOINT --cold    the same without the amax histories, which begin as in a new run
"""

import argparse
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "samples"))
import hybrid_lm  # noqa: E402


def settings(rest):
    sys.argv = ["hybrid_lm.py", "--precision", "fp8", *rest]
    args = hybrid_lm.arguments()
    args.world = 1
    return args


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--cold", action="store_true")
    own, rest = parser.parse_known_args()
    args = settings(rest)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = hybrid_lm.HybridLM(args)
    steppers = hybrid_lm.optimizers(args, model)
    if not own.save:
        saved = torch.load(own.checkpoint)
        kept = {name: x for name, x in saved["model"].items() if not (own.cold and name.endswith("_amax"))}
        model.load_state_dict(kept, strict=not own.cold)
        for stepper, state in zip(steppers, saved["steppers"]):
            stepper.load_state_dict(state)
    documents, counts = hybrid_lm.shard(args, 0 if own.save else 1, 0)
    for batch in documents:
        loss = model(batch[:, :-1], batch[:, 1:], counts)
        loss.backward()
        for stepper in steppers:
            stepper.step()
        for stepper in steppers:
            stepper.zero_grad()
        print(f"loss {loss.item():.6f}", flush=True)
    if own.save:
        torch.save({"model": model.state_dict(), "steppers": [s.state_dict() for s in steppers]}, own.checkpoint)


if __name__ == "__main__":
    main()
