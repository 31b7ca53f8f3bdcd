"""What commands print with --json is what include/lastbit/schema says, field by field; and it has the fields that other programs build on."""

import copy
import functools
import json
import re

import jsonschema
import numpy as np
import pytest
import referencing
from conftest import ROOT
from safetensors.numpy import save_file

FOLDER = ROOT / "include" / "lastbit" / "schema"
SAMPLES = ROOT / "samples"
COMMANDS = (
    "record doctor ls show verify recover pack gather replay diff explain order bisect parity watch audit fingerprint report ranks check".split()
)


def schema(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def objects(node):
    """Every schema of an object with named fields inside one."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict) and node.get("type") == "object":
            yield node
        for inner in node.values():
            yield from objects(inner)
    if isinstance(node, list):
        for inner in node:
            yield from objects(inner)


@functools.cache
def validator(command):
    """Of the schema as it is, and no field besides: what is printed is to be described. Programs that read it bear more fields."""
    strict, words = schema(command), schema("words")
    for one in [*objects(strict), *objects(words)]:
        one["additionalProperties"] = False
    registry = referencing.Registry().with_resource("words.json", referencing.Resource.from_contents(words))
    return jsonschema.Draft202012Validator(strict, registry=registry)


def check(command, answer):
    faults = [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:300]}" for e in validator(command).iter_errors(answer)]
    assert not faults, faults[:5]


@pytest.fixture(scope="module")
def inputs(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    weights = {f"layers.{i}.{n}.weight": rng.standard_normal((32, 16)).astype("f4") for i in range(6) for n in ("up", "gate")}
    save_file(weights, folder / "whole.safetensors")
    weights["layers.3.up.weight"][2, 5] = np.nan
    save_file(weights, folder / "nan.safetensors")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(dict(peft_type="LORA", r=2, lora_alpha=4, target_modules=["up"])))
    halves = {"A": (2, 16), "B": (32, 2)}
    names = {f"base_model.model.layers.{i}.up.lora_{h}.weight": rng.standard_normal(halves[h]).astype("f4") for i in range(6) for h in "AB"}
    save_file(names, folder / "adapter" / "adapter_model.safetensors")
    rows = [dict(step=i, loss=2 + 0.1 * (i % 5) + 3 * (i > 300), grad_norm=1 + 0.1 * (i % 3), lr=1e-3) for i in range(400)]
    (folder / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    token = dict(token_ids=[1, 2, 3, 4], kinds=["text", "text", "image", "image"], tokens=["a", "b", "c", "d"])
    for name, by in (("a", 0.0), ("b", 0.4)):
        (folder / f"{name}.jsonl").write_text(json.dumps(token | dict(logprobs=[None, -1.0 - by, -2.0, -0.5])) + "\n")
    lastbit.run("order", "--engine", "pairwise", "-n", "8", "-o", folder / "tree.json", expect=0)
    (folder / "result.json").write_text(json.dumps(dict(schema="lastbit.audit/1", verdict="clean", findings=[])))
    (folder / "matrix.json").write_text(
        json.dumps(dict(command=f"cp {folder}/{{side}}.jsonl {{out}}", variables=dict(side=["a", "b"]), reference=str(folder / "a.jsonl")))
    )
    cut = (SAMPLES / "clean.lbz").read_bytes()
    (folder / "cut.lbz").write_bytes(cut[: len(cut) // 2])
    return folder


# Each with the exit codes that it may have; S/ is the folder of samples, I/ that of the inputs above, O a new file.
LINES = [
    ("ls S/clean.lbz --tables --layers --ops --values", 0),
    ("ls S/poisoned-rank.lbz", 0),
    ("ls I/whole.safetensors --values", 0),
    ("ls --receipt S/clean.lbz", 0),
    ("ls --receipt S/clean.lbz S/dropped-term.lbz", 1),
    ("show S/clean.lbz aten::mm", 0),
    ("show I/nan.safetensors layers.3.up.weight --limit 4 --histogram --slice 0:4,5", 0),
    ("verify S/clean.lbz", 0),
    ("verify I/cut.lbz", 1),
    ("recover I/cut.lbz -o O.lbz", (0, 1)),
    ("pack S/clean.lbz -o O.lbz --strip data", 0),
    ("gather S/clean.lbz -o O.lb --steps 0", 0),
    ("gather S/poisoned-rank.lbz S/poisoned-rank.lbz -o O.lb --ranks 0-9999", 1),
    ("replay S/clean.lbz --coverage", (0, 125)),
    ("replay S/scan-overflow.lbz --mode chained --precision f32 --digest", (0, 1, 125)),
    ("replay S/clean.lbz --mode chained --table --precision layer=mlp=mxfp8", (0, 1, 125)),
    ("replay S/clean.lbz --kernels", 0),
    ("replay S/clean.lbz --mode chained --each --precision layer=mlp=bf16 --order op=sum=pairwise", (0, 125)),
    ("replay S/clean.lbz --routing-report", (0, 1)),
    ("diff S/clean.lbz S/dropped-term.lbz", 1),
    ("diff S/clean.lbz S/clean.lbz --all", 0),
    ("diff I/whole.safetensors I/nan.safetensors", 1),
    ("explain S/clean.lbz S/dropped-term.lbz --phase forward --steps 0", (0, 1, 125)),
    ("explain S/clean.lbz --invariance layer=head --launch splitk", (0, 1, 125)),
    ("bisect -q S/scan-overflow.lbz -o O.lb", 1),
    ("bisect -q S/poisoned-rank.lbz", 1),
    ("bisect -q S/polar-bf16.lbz", 1),
    ("bisect -q S/clean.lbz", 0),
    ("bisect -q S/dropped-term.lbz --against S/clean.lbz", 1),
    ("bisect --check S/scan-overflow.lbz", 1),
    ("bisect -q --run false --flag muon=--x", (0, 1, 125)),
    ("parity I/a.jsonl I/b.jsonl --heat --noise I/a.jsonl", (0, 1, 125)),
    ("parity S/clean.lbz S/dropped-term.lbz", (0, 1, 125)),
    ("parity --matrix I/matrix.json --work O.runs", (0, 1)),
    ("watch I/run.jsonl --checkpoint-every 100", 1),
    ("watch S/scan-overflow.lbz", 1),
    ("watch I/run.jsonl S/scan-overflow.lbz", 1),
    ("audit I/nan.safetensors", 1),
    ("audit I/nan.safetensors --against I/whole.safetensors", 1),
    ("ranks S/poisoned-rank.lbz", (0, 1, 125)),
    ("ranks S/poisoned-rank.lbz S/poisoned-rank.lbz", (0, 1, 125)),
    ("audit I/whole.safetensors --restart", 1),
    ("audit --adapter I/adapter --base I/whole.safetensors", (0, 1)),
    ("fingerprint I/whole.safetensors --rounded", 0),
    ("fingerprint I/whole.safetensors I/nan.safetensors --against I/nan.safetensors --all", 0),
    ("fingerprint I/whole.safetensors --against I/nan.safetensors", 1),
    ("check S/clean.lbz", (0, 1, 125)),
    ("check S/dropped-term.lbz", (0, 1, 125)),
    ("report I/result.json -o O.html", 0),
    ("order --engine pairwise -n 16 --expect pairwise -o O.json", 0),
    ("order --tree I/tree.json", 0),
    ("doctor", (0, 1, 125)),
]


def answer_of(lastbit, inputs, tmp_path, line, codes):
    command, *words = line.split()
    words = [re.sub("^S/", f"{SAMPLES}/", re.sub(r"^I(?=/|$)", str(inputs), re.sub(r"^O\.", f"{tmp_path}/o.", w))) for w in words]
    done = lastbit.run(command, "--json", *words, expect=codes, timeout=120, cwd=tmp_path)
    return command, json.loads(done.stdout)


@pytest.mark.parametrize("line, codes", LINES)
def test_what_is_printed_is_described(lastbit, inputs, tmp_path, line, codes):
    command, answer = answer_of(lastbit, inputs, tmp_path, line, codes)
    check(command, answer)
    assert answer["schema"] == f"lastbit.{command}/1" and answer["command"].startswith(f"lastbit {command}")


def test_a_recording_is_described(lastbit, tmp_path):
    done = lastbit.record(tmp_path / "run.lb", "tests/programs/two_linears.py", options=("--json", "--steps", "0-1"), expect=0)
    check("record", json.loads(done.stdout[done.stdout.index('{\n  "schema"') :]))


def test_lines_cover_every_command():
    assert {line.split()[0] for line, _ in LINES} | {"record"} == set(COMMANDS) == {path.stem for path in FOLDER.glob("*.json")} - {"words"}


@pytest.mark.parametrize("name", [*COMMANDS, "words"])
def test_a_schema_is_one_and_every_field_has_a_description(name):
    one = schema(name)
    jsonschema.Draft202012Validator.check_schema(one)
    assert one["description"]
    for fields in objects(one):
        for field, what in fields["properties"].items():
            assert what.get("description"), (name, field)
        assert set(fields.get("required", [])) <= set(fields["properties"])
    text = json.dumps(one)
    for word in re.findall(r'"words\.json#/\$defs/(\w+)"', text):
        assert word in schema("words")["$defs"], word


def test_a_wrong_answer_is_refused(lastbit):
    """The checks above can fail: a field that is missing, of another type, of another word, or not described."""
    answer = lastbit.json("diff", SAMPLES / "clean.lbz", SAMPLES / "dropped-term.lbz", expect=1)
    check("diff", answer)
    for spoil in (
        lambda x: x.pop("verdict"),
        lambda x: x.update(verdict="different"),
        lambda x: x["layers"][0].update(differing="many"),
        lambda x: x["first"].pop("layer"),
        lambda x: x["layers"][3].update(undescribed=1),
    ):
        spoilt = copy.deepcopy(answer)
        spoil(spoilt)
        with pytest.raises(AssertionError):
            check("diff", spoilt)


# What other programs build on: these fields stay. "a.b" is field b of the objects in field a.
PLACE = "step rank phase layer op index verdict"
PROMISED = {
    "diff": ["verdict", *(f"{a}.{b}" for a in ("first", "earliest") for b in PLACE.split())]
    + [f"layers.{b}" for b in "layer rank verdict local inherited max_abs max_rel rel_l2 cosine max_ulp differing elements bound_ratio".split()]
    + [f"differences.{b}" for b in f"{PLACE} effect arguments source".split()]
    + ["structure", "missing", "map.first", "map.second", "map.relation", "first.source", "differences.arguments.name"],
    "replay": ["mode", "ops.total", "ops.native", "ops.opaque", "verdict", "worst", "bitwise"],
    "bisect": ["outcome", "failure.kind", "failure.step", *(f"culprit.{b}" for b in "axis ranks block layer op phase step source".split())]
    + ["culprits.axis", "stages.stage", "stages.outcome", "stages.trials", "cure", "reproducer", "trials"],
    "explain": [f"findings.{b}" for b in "layer op rank cause schedule matched elements excluded source".split()],
    "ranks": ["findings"]
    + [f"steps.{b}" for b in "step loss_mean loss_std loss_range grad_norm_mean grad_norm_std grad_cosine_mean grad_cosine_min".split()],
    "parity": ["noise_floor", "verdict", "findings", *(f"tokens.{b}" for b in "kind count k3 kl top1 max_abs mean_abs".split())]
    + ["loss.first", "loss.second", "loss.ratio"],
    "audit": ["verdict", *(f"findings.{b}" for b in "kind tensor file ranks message".split())]
    + [f"precision.{b}" for b in "dtype max_abs rel_l2 rel_max".split()],
    "watch": [f"alarms.{b}" for b in "step kind level value reference ratio".split()]
    + ["holds.from", "holds.to", "pattern", "series.field", "series.rows", "series.judged_from"],
}


def fields_of(root, node):
    """Named fields of a schema, through lists, references and alternatives."""
    if "$ref" in node:
        file, _, path = node["$ref"].partition("#/$defs/")
        return fields_of(root if not file else schema("words"), (root if not file else schema("words"))["$defs"][path])
    found = dict(node.get("properties", {}))
    for inner in [*([node["items"]] if "items" in node else []), *node.get("anyOf", [])]:
        found |= fields_of(root, inner)
    return found


@pytest.mark.parametrize("command", PROMISED)
def test_promised_fields_are_in_the_schema(command):
    root = schema(command)
    for path in PROMISED[command]:
        node = root
        for name in path.split("."):
            fields = fields_of(root, node)
            assert name in fields, f"{command}: {path}"
            node = fields[name]


# Where the tables of words stand; "none" stands in some of them for what no answer says.
SAID = {
    "verdict": "include/lastbit/verdict.h",
    "bisect_outcome": "bisect/failures/trials/bisection.c",
    "axis": "bisect/failures/trials/bisection.c",
    "alarm_kind": "bisect/inspection/watch/run_alarms.c",
    "parity_verdict": "bisect/pairs/parity/parity.c",
    "audit_match": "bisect/inspection/audit/audit_report.c",
    "ranks_verdict": "bisect/inspection/workers/ranks.c",
    "cause": "include/lastbit/explain.h",
    "phase": "formats/program/program.c",
}


@pytest.mark.parametrize("name", SAID)
def test_words_are_those_of_the_program(name):
    """Enumerations stand in words.json once, and are the tables of the code: a word that is added there is to be added here."""
    text = (ROOT / SAID[name]).read_text()
    lists = re.findall(r"\{([^{}]+)\}", text) + re.findall(r"#define \w+\(X\)((?:.*\\\n)*.*\n)", text)
    tables = [set(re.findall(r'"([^"]+)"', one)) for one in lists]
    assert set(schema("words")["$defs"][name]["enum"]) in [table - {"none"} for table in tables], "the table and the enumeration differ"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_the_fields_and_gives_the_schema(lastbit, command):
    page = " ".join(lastbit.run("help", command, expect=0).stdout.split())
    (listed,) = re.findall(rf"With --json: (.*?); `lastbit help --schema {command}` describes each", page)
    wanted = [name for name in schema(command)["properties"] if name not in ("schema", "command", "inputs")]
    assert re.sub(r"\[\]|,", "", listed).split() == wanted
    assert json.loads(lastbit.run("help", "--schema", command, expect=0).stdout) == schema(command)
    man = lastbit.run("help", "--man", command, expect=0).stdout
    assert listed in man and listed in lastbit.run("help", "--markdown", expect=0).stdout


def test_the_words_are_given_too(lastbit):
    assert json.loads(lastbit.run("help", "--schema", "words", expect=0).stdout) == schema("words")
    assert "--schema" in lastbit.run("help", "--schema", "nothing", expect=129).stderr
