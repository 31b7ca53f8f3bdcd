"""`bisect --against` over runs of which one to three places were edited: does it name all of them, and prove that it does?

python bench_against.py [-n RUNS] [--seed SEED] [--train]: half of them of the reference's structure, half of another one.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[4]
LASTBIT = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release")) / "lastbit"
EDITS = ("eps", "act", "scale", "gain", "residual", "query", "mask", "low+least", "weight")
MODULES = dict(post_attention_layernorm="norm", between="norm", self_attn="attention", mix="attention", mlp="feed", feed="feed")
LIES_IN = dict(
    eps="norm", act="feed", gain="feed", low="feed", residual="feed", scale="attention", query="attention", mask="attention", weight="attention"
)


def drawn(draw, structure):
    edits = sorted({(draw.randrange(3), draw.choice(EDITS)) for _ in range(draw.choice((1, 2, 2, 3, 3)))})
    return "+".join([structure, *(f"{word}.{layer}" for layer, words in edits for word in words.split("+"))])


def wanted(name):
    words = [edit.split(".") for edit in name.split("+")[1:]]
    return collections.Counter((layer, LIES_IN[word]) for word, layer in words if word != "least")


def found(answer):
    """The sum with the residual stream stands between two blocks, in the module around it."""
    places = collections.Counter()
    for culprit in answer["culprits"]:
        path = culprit["layer"].split(".")
        kind = next((MODULES[word] for word in path if word in MODULES), "feed")
        places[next((word for word in path if word.isdigit()), ""), kind] += 1
    return places


def judged(answer, name):
    want, got = wanted(name), found(answer)
    places = "all" if got == want else "one region" if got == collections.Counter(set(want)) else "some" if got else "none"
    return places, (answer.get("set") or {}).get("outcome", "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", action="store_true")
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    names = sorted({drawn(draw, structure) for _ in range(asked.n // 2) for structure in ("llama", "decoder")})
    counts, replays = collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, ROOT / "tests" / "programs" / "several_edits.py", folder, *["--train"] * asked.train, "llama", *names]
        subprocess.run(words, check=True, env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
        for name in names:
            words = [LASTBIT, "bisect", "-q", "--json", f"{folder}/{name}.lb", "--against", f"{folder}/llama.lb"]
            answer = json.loads(subprocess.run(words, capture_output=True, text=True).stdout)
            counts[name.split("+")[0], sum(wanted(name).values()), *judged(answer, name)] += 1
            replays += [answer["set"]["replays"]] if answer.get("set") else []
    for (structure, edits, places, proven), n in sorted(counts.items()):
        print(f"{structure:8} {edits} edited: {n:3} {places} named, {proven or 'nothing proven'}")
    if replays:
        print(f"replays of both sides that a proof took: {sorted(replays)[len(replays) // 2]:.2g} in the middle, {max(replays):.2g} at most")


if __name__ == "__main__":
    main()
