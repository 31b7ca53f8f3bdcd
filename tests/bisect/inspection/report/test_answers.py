"""The answer of a page as text, before any script runs: title, head, the first facts, in that order. No browser is needed."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from conftest import ROOT
from report_results import audit_result, diff_result, diff_row, ranks_result, watch_result
from safetensors.numpy import save_file
from test_report_files import HOSTILE

SAMPLES = ROOT / "samples"
FAILING = ["scan-overflow", "bad-expert", "polar-bf16", "stale-scale", "poisoned-rank"]


class Static(HTMLParser):
    """What a page shows without scripts: title, headings, and each card as [class, head, facts, command]."""

    def __init__(self, page):
        super().__init__()
        self.title, self.headings, self.cards, self.within, self.fact = "", [], [], [], ""
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "article":
            self.cards.append([attributes["class"], "", [], ""])
        if tag in ("h1", "h2"):
            self.headings.append("")
        if tag == "dt":
            self.cards[-1][2].append(["", ""])
        if tag not in ("meta", "br", "input"):
            self.within.append(tag)

    def handle_endtag(self, tag):
        if tag in self.within:
            while self.within.pop() != tag:
                pass

    def handle_data(self, text):
        if "script" in self.within or "style" in self.within:
            return
        if "title" in self.within:
            self.title += text
        if {"h1", "h2"} & set(self.within):
            self.headings[-1] += text
            if "article" in self.within:
                self.cards[-1][1] += text
        if "dt" in self.within:
            self.cards[-1][2][-1][0] += text
        if "dd" in self.within:
            self.cards[-1][2][-1][1] += text
        if "code" in self.within:
            self.cards[-1][3] += text


def only(page):
    static = Static(page)
    ((tone, head, facts, command),) = static.cards
    assert static.headings == [head], "one result: its finding is the head of the page"
    return static.title, tone.split()[1], head[2:], dict(reversed(facts)), command


@pytest.mark.parametrize("name", FAILING)
def test_a_bisection_says_who_makes_which_step_fail(lastbit, tmp_path, name):
    path = SAMPLES / f"{name}.lbz"
    answer = json.loads(lastbit.run("bisect", "-q", path, "--html", tmp_path / "page.html", "--json", expect=1).stdout)
    title, tone, head, facts, command = only(tmp_path / "page.html")
    culprit, failure = answer["culprit"], answer["failure"]
    assert tone == "bad" and f" makes step {failure['step']} fail: {failure['what']}" in head
    who = head.split(" makes step ")[0]
    assert culprit["layer"] in who
    if culprit["axis"] == "rank":
        assert who.startswith("rank " + ", ".join(map(str, culprit["ranks"])))
    if culprit["axis"] == "muon":
        assert who.startswith("Muon's update of ")
    assert failure["layer"] in head and facts["why"] == culprit["why"] and facts["cured by"] == answer["cure"]
    assert answer["begins"]["text"] in facts["begins at"] and facts["exit code"] == "1: different or found"
    recorded = lastbit.json("ls", "--tables", path)["tables"][0]["tables"]["receipt"]
    (given,) = answer["inputs"]
    assert given == {"path": str(path), "recorded": int(recorded["time"]), "program": " ".join(recorded["process"]["argv"])}
    assert re.fullmatch(rf"{name}, \d{{4}}-\d\d-\d\d: {re.escape(head[:120])}.*", title), "run, date, answer"
    assert command.startswith("lastbit bisect -q ")


def test_a_clean_run_says_what_was_judged(lastbit, tmp_path):
    lastbit.run("bisect", "-q", SAMPLES / "clean.lbz", "--html", tmp_path / "page.html", expect=0)
    title, tone, head, facts, _ = only(tmp_path / "page.html")
    assert tone == "good" and re.fullmatch(r"no failure: \d+ ops were judged", head) and title.endswith(head)
    assert facts["exit code"] == "0: same or clean"


def test_a_diff_says_where_it_diverges(lastbit, tmp_path):
    a, b = SAMPLES / "clean.lbz", SAMPLES / "dropped-term.lbz"
    first = json.loads(lastbit.run("diff", a, b, "--html", tmp_path / "page.html", "--json", expect=1).stdout)["first"]
    title, tone, head, facts, _ = only(tmp_path / "page.html")
    assert tone == "bad" and head == f"{first['layer']}, {first['op']} diverges in step {first['step']}, {first['phase']}"
    assert facts["why"] == first["why"] and title.startswith("clean and dropped-term, ")


def test_words_of_verdicts_become_sentences(report):
    for verdict, tone, said in (
        ("identical", "good", "every bit"),
        ("rounding", "warn", "the same function"),
        ("reordered", "warn", "another order"),
        ("missing", "unknown", "missing at layers.3"),
    ):
        page = report(diff_result([diff_row("layers.3", verdict=verdict)], verdict=verdict))
        assert only(page)[1] == tone and said in only(page)[2]


def test_the_critical_loss_stands_before_an_earlier_warning(lastbit, report, tmp_path):
    """And before it the step to restart from: a throughput that falls is neither."""
    rows = [dict(step=i, loss=2.0 + 0.01 * (i % 7), tokens_per_sec=50000 - 30000 * (300 <= i < 330)) for i in range(1700)]
    rows += [dict(step=i, loss=5.0 + (i - 1700) / 50, tokens_per_sec=50000) for i in range(1700, 2000)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = json.loads(lastbit.run("watch", tmp_path / "train.jsonl", "--checkpoint-every", "500", "--json", expect=1).stdout)
    assert answer["alarms"][0]["kind"] == "throughput", "it comes first in time"
    text = lastbit.run("watch", tmp_path / "train.jsonl", expect=1).stdout
    assert text.index("critical loss") < text.index("warning  throughput"), "in the text, too"
    title, tone, head, facts, _ = only(report(answer))
    loss = next(row for row in answer["alarms"] if row["kind"] == "loss" and row["level"] == "critical")
    assert tone == "bad" and head == f"step {loss['step']}: {loss['why']}" and title.startswith("train.jsonl, ")
    assert next(iter(facts)) == "exit code" and list(facts)[-1] == "restart from"  # facts were read from the last to the first
    assert facts["restart from"] == "the checkpoint of step 1500" and "2000 rows" in facts["read"]


@pytest.mark.parametrize("order", [1, -1])
def test_alarms_are_ranked_by_level_then_kind_then_step(report, order):
    alarms = [
        (5, "throughput", "warning"), (9, "loss", "warning"), (10, "data", "critical"), (20, "grad_norm", "critical"), (40, "loss", "critical"),
        (30, "loss", "critical"),
    ]  # fmt: skip
    result = watch_result(50, alarms[::order])
    assert only(report(result))[2].startswith("step 30: loss")


def test_the_gravest_kind_of_an_audit_is_its_head(lastbit, report, tmp_path):
    """On the page, in the JSON and in the text, whatever was found first: a NaN before a shard that lacks, before a tensor off its siblings."""
    draw = np.random.default_rng(0)
    state = {f"layers.{i}.{n}.weight": (draw.standard_normal((64, 64)) * 0.02).astype("f4") for i in range(8) for n in ("q", "v", "o")}
    state["layers.0.o.weight"] *= 1000
    state["layers.2.v.weight"][32:] = 0
    state["layers.5.q.weight"][7, 3] = np.nan
    save_file(state, tmp_path / "model.safetensors")
    answer = json.loads(lastbit.run("audit", tmp_path / "model.safetensors", "--json", expect=1).stdout)
    assert [group["kind"] for group in answer["groups"]] == ["nonfinite", "shard_missing", "outlier"]
    text = lastbit.run("audit", tmp_path / "model.safetensors", expect=1).stdout
    assert text.index("nonfinite") < text.index("shard missing") < text.index("outlier")
    page = report(answer)
    _, tone, head, facts, _ = only(page)
    assert tone == "bad" and head == "layers.5.q.weight: " + answer["groups"][0]["message"] and facts["findings"].startswith("3,")
    also = [text for name, text in Static(page).cards[0][2] if name == "and"]
    assert [text.split(":")[0] for text in also] == ["layers.2.v.weight", "layers.0.o.weight"]
    assert only(report(dict(answer, findings=[], groups=[], verdict="clean")))[1] == "good"


def test_ranks_are_named_in_the_head(report):
    result = ranks_result()
    row = result["findings"][0]
    assert only(report(result))[2] == row["message"] == "ranks 2 and 5 read the same tokens from step 3 on"
    result["findings"] = [dict(row, message="drew the same masks")]
    assert only(report(result))[2] == "ranks 2, 5: drew the same masks"
    result["findings"] = [dict(row, note=True)]
    assert only(report(dict(result, verdict="clean")))[1] == "good"


def test_the_gravest_answer_is_the_first_of_a_page(lastbit, report):
    clean = diff_result([diff_row("layers.0", verdict="identical")], verdict="identical")
    static = Static(report(clean, audit_result(), SAMPLES / "clean.lbz"))
    assert [card[0] for card in static.cards] == ["card bad", "card good", "card good"]
    assert static.headings[0] == "3 answers, the gravest first" and static.headings[1:] == [card[1] for card in static.cards]
    assert static.title.endswith("(and 2 more answers)") and "bit-equal to the shard of rank 0" in static.title


CHECKED = dict(schema="lastbit.check/1", verdict="found", findings=[], proven=["it holds"], not_judged=[], digits=[], replays=7)
LEAK = dict(
    kind="future",
    step=0,
    rank=0,
    phase="forward",
    layer="blocks.1",
    op="aten::bmm",
    forward=None,
    index=7,
    source_forward=None,
    factor=None,
    effect=0.1,
)
LEAK |= dict(
    source=dict(file="model.py", line=3, function="forward", text="y = w @ v"), message="12 of 14 rows change", command="lastbit ls run.lb --ops"
)


def test_a_check_says_what_one_run_proves(report):
    _, tone, head, facts, _ = only(report(dict(CHECKED, findings=[LEAK, LEAK])))
    assert tone == "bad" and head.startswith("blocks.1") and head.endswith("scores depend on the tokens that they are to predict (and 1 more)")
    assert facts["proof"] == "12 of 14 rows change" and facts["line"] == "model.py:3 in forward: y = w @ v"
    assert (facts["where"], facts["op"], facts["see"]) == ("step 0, rank 0, forward, op 7", "aten::bmm", "lastbit ls run.lb --ops")
    assert facts["proven"] == "1, all of them below" and facts["exit code"] == "1: different or found" and "line of forward" not in facts
    _, tone, head, facts, _ = only(report(dict(CHECKED, verdict="clean")))
    assert (tone, head) == ("good", "nothing is wrong that one run can prove")
    assert facts == {"proven": "it holds", "exit code": "0: same or clean"}
    left = dict(CHECKED, verdict="undecided", not_judged=[dict(what="step 0", why="no loss was seen")])
    _, tone, head, facts, _ = only(report(left))
    assert (tone, head) == ("unknown", "not all of it could be judged: no loss was seen")
    assert facts["not judged"] == "step 0: no loss was seen" and facts["exit code"] == "125: cannot be tested"


def test_a_wrong_backward_has_both_its_lines_and_both_its_ops(report):
    line = dict(file="model.py", line=9, function="forward", text="y = x @ w")
    _, _, _, facts, _ = only(report(dict(CHECKED, findings=[dict(LEAK, kind="gradient", forward="aten::mm", source_forward=line)])))
    assert facts["op"] == "aten::bmm, backward of aten::mm"
    assert (facts["line"], facts["line of forward"]) == ("model.py:3 in forward: y = w @ v", "model.py:9 in forward: y = x @ w")
    _, _, _, facts, _ = only(report(dict(CHECKED, findings=[dict(LEAK, kind="gradient", source_forward=LEAK["source"])])))
    assert "line of forward" not in facts, "one line is told once"


FACTORS = [
    ("scale", 2, "a gradient is 2 times the derivative of the loss"),
    ("scale", 0.25, "a gradient is 1/4 of the derivative of the loss"),
    ("scale", -1, "a gradient is -1 times the derivative of the loss"),
    ("read", 2, "an optimizer read 2 times what backward gave"),
    ("read", None, "an optimizer read something else than backward gave"),
    ("weights", 0.25, "micro-batches were divided once too often: the loss is 1/4 of what a mean gives"),
    (
        "means",
        2.5,
        "micro-batches were each divided by their own number of tokens: those of the shortest weigh 2.5 times those of the longest",
    ),
    ("gradient", 0, "a gradient is not the derivative of the loss"),
    ("scale", "inf", "a gradient is the derivative of the loss times a constant"),
]


@pytest.mark.parametrize("kind, factor, words", FACTORS)
def test_the_head_of_a_check_says_the_factor(report, kind, factor, words):
    assert only(report(dict(CHECKED, findings=[dict(LEAK, kind=kind, factor=factor)])))[2] == f"blocks.1, aten::bmm: {words}"


def test_every_kind_of_finding_has_words(report):
    words = json.loads((ROOT / "include/lastbit/schema/words.json").read_text())
    for kind in words["$defs"]["check_kind"]["enum"]:
        head = only(report(dict(CHECKED, findings=[dict(LEAK, kind=kind)])))[2]
        assert head.startswith("blocks.1") and not head.endswith(f": {kind}"), head


def test_a_bisection_without_a_failure_offers_what_one_run_can_prove(lastbit):
    text = lastbit.run("bisect", "-q", SAMPLES / "clean.lbz", expect=0).stdout
    asked = text[text.index("not asked") :]
    assert "gradients" in asked and "derivative" in asked and "tokens" in asked and "digits" in asked
    assert re.search(r"\n +lastbit check \S*clean\.lbz\n", asked)
    assert lastbit.json("bisect", "-q", SAMPLES / "clean.lbz", expect=0)["shows"].startswith("lastbit check ")


def test_a_replay_says_what_could_not_be_judged(lastbit, report):
    answer = json.loads(lastbit.run("replay", SAMPLES / "clean.lbz", "--json").stdout)
    _, tone, head, facts, _ = only(report(answer))
    assert tone == "unknown" and head == f"{answer['verdicts']['missing']} ops could not be judged: what they gave was not kept"
    assert facts["bit-equal"] == f"{answer['bitwise']} of {answer['compared']} ops"
    same = dict(answer, verdict="identical")
    assert only(report(same))[1:3] == ("good", f"the replay gives the recorded bits: {answer['bitwise']} of {answer['compared']} ops")


def test_hostile_names_in_an_answer_are_text_and_cut(report):
    for name in HOSTILE:
        page = report(diff_result([diff_row(name, why=name)], verdict="diverged", command=f"lastbit diff '{name}'"))
        static = Static(page)
        shown = name.replace("\u202e", "\\u{202e}").replace("\u2066", "\\u{2066}").replace("\u2028", "\\u{2028}").replace("\u2029", "\\u{2029}")
        assert shown[:100] in static.cards[0][1] and len(static.cards[0][1]) < 500 and len(static.title) < 400
        assert len(static.cards) == 1 and not {"img", "b", "iframe"} & set(re.findall(r"<(\w+)", page.read_text().split("results")[0]))
