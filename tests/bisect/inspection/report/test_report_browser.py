"""The page in a real browser: what it shows, by keyboard too, with no complaint and no request."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from report_results import audit_result, diff_result, diff_row, large_diff, ranks_result, watch_result
from safetensors.numpy import save_file
from test_parity_files import Side, write
from test_report_files import HOSTILE

SAMPLES = ROOT / "samples"
CLEAN, DROPPED, OVERFLOW = (SAMPLES / f"{name}.lbz" for name in ("clean", "dropped-term", "scan-overflow"))


@pytest.fixture
def opened(browser):
    """opened(PATH, …): a page that was drawn whole, without a complaint or a request."""
    pages = []

    def open_page(path, odd=False, **how):
        pages.append(browser.open(path, **how))
        pages[-1].odd = odd  # its fields are of other types than commands print
        return pages[-1]

    yield open_page
    for page in pages:
        assert page.complaints == [] and page.requests == []
        assert page.odd or page.evaluate("lb.misread") == []
        page.close()


def every_row(page, caption):
    """Texts of all rows of the table of that caption, page after page by its button; the first 90 letters of each cell."""
    script = """
    (() => {
      const table = [...document.querySelectorAll(".table")].find((one) => one.querySelector("caption")?.textContent === CAPTION);
      const next = [...table.querySelectorAll("button")].find((one) => one.textContent === "Next rows");
      const rows = [];
      for (;;) {
        for (const row of table.querySelectorAll("tbody tr")) rows.push([...row.cells].map((cell) => cell.textContent.slice(0, 90)));
        if (!next || next.disabled) return rows;
        next.click();
      }
    })()"""
    return page.evaluate(script.replace("CAPTION", json.dumps(caption)))


def cards(page):
    return page.texts(".card .word")


def first_screen(page, selector):
    """Whether what is selected is seen whole before anything is scrolled."""
    return page.evaluate(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().bottom <= innerHeight && scrollY === 0")


def picture(page, name):
    """Kept where LASTBIT_PICTURES says, to be looked at."""
    if folder := os.environ.get("LASTBIT_PICTURES"):
        import pathlib

        page.picture(pathlib.Path(folder) / f"{name}.png")


def test_a_diff_shows_its_verdict_first_and_every_layer(lastbit, opened, tmp_path):
    done = lastbit.run("diff", CLEAN, DROPPED, "--html", tmp_path / "page.html", "--json", expect=1)
    answer = json.loads(done.stdout)
    page = opened(tmp_path / "page.html")
    place = f"{answer['first']['layer']}, {answer['first']['op']}"
    assert cards(page) == [f"✗ {place} diverges in step 0, backward"] == page.texts("h1")
    card = page.texts(".card")[0]
    assert answer["first"]["why"] in card and "1: different or found" in card and f"lastbit diff {CLEAN} {DROPPED}" in card
    assert first_screen(page, ".card") and first_screen(page, "canvas[role=application]"), "the answer and the map need no scrolling"
    rows = every_row(page, "Layers, values and parameters as compared")
    assert [row[0] for row in rows] == [row["layer"] or "–" for row in answer["layers"]]
    assert {row[0] for row in every_row(page, "Layers by phase: the worst over ranks and steps")} == {row["layer"] or "–" for row in answer["layers"]}
    headings = page.texts("h3")
    wanted = ["Layers and ranks", "First difference", "Drift by layer", "How large the differences are", "Routing: different experts chosen"]
    assert [h for h in headings if h in wanted] == wanted
    picture(page, "diff-light")


# Real answers, and a word that the head of the page has to hold.
FIRST_SCREENS = [
    (("diff", CLEAN, DROPPED), "diverges"),
    (("bisect", "-q", OVERFLOW), "fail"),
    (("explain", CLEAN, DROPPED, "--phase", "forward", "--steps", "0"), ""),
    (("parity", CLEAN, DROPPED), ""),
    (("ranks", SAMPLES / "poisoned-rank.lbz"), "rank"),
    (("ranks", SAMPLES / "poisoned-rank.lbz", SAMPLES / "poisoned-rank.lbz"), "poisoned-rank"),
    (("watch", OVERFLOW), "step"),
    (("audit", "CHECKPOINT"), "NaN"),
    (("check", CLEAN), "not all of it could be judged"),
    (("replay", CLEAN), ""),
]


@pytest.mark.parametrize("line, word", FIRST_SCREENS)
def test_the_answer_of_every_command_stands_in_the_first_screen(lastbit, opened, report, tmp_path, line, word):
    """Its sentence, where and why, the exit code and the command, on a small laptop, too."""
    save_file({f"layers.{i}.up": np.full((4, 4), np.nan if i == 2 else i, "f4") for i in range(4)}, tmp_path / "model.safetensors")
    args = [tmp_path / "model.safetensors" if word == "CHECKPOINT" else word for word in line]
    done = lastbit.run(args[0], "--json", *args[1:], expect=(0, 1, 125))
    page = opened(report(json.loads(done.stdout)), width=1280, height=720)
    (head,) = page.texts("h1")
    assert word in head and len(head) > 12 and first_screen(page, "h1") and first_screen(page, ".card"), head
    assert done.returncode == 125 or f"{done.returncode}: " in page.texts(".card")[0] or args[0] in ("explain", "replay")


# Programs of tests/programs/bugs_of_record.py, what `check` says of them, and a word of the head.
CHECKED = [
    ("offload_overwritten", 1, "gradients lack some of the losses"),
    ("tied_written_twice", 1, "a gradient is 2 times the derivative of the loss"),
    ("weights_do_not_move", 1, "parameters of 16 bits do not move"),
    ("offload_overwritten_mended", 0, "nothing is wrong that one run can prove"),
    ("reference_kept", 125, "not all of it could be judged: "),
]


@pytest.fixture(scope="module")
def checked(lastbit, tmp_path_factory):
    """What `check --json` says of each of them."""
    folder = tmp_path_factory.mktemp("checked")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "capture"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", ROOT / "tests/programs/bugs_of_record.py", folder, *(name for name, _, _ in CHECKED)]
    subprocess.run(command, check=True, timeout=600, env=environment)
    return {name: lastbit.json("check", folder / f"{name}.lb", expect=code) for name, code, _ in CHECKED}


@pytest.mark.parametrize("name, code, word", CHECKED)
def test_the_answer_of_a_check_stands_in_the_first_screen(opened, report, checked, name, code, word):
    answer = checked[name]
    page = opened(report(answer), width=1280, height=720)
    (head,), (card,) = page.texts("h1"), page.texts(".card")
    assert word in head and first_screen(page, "h1") and first_screen(page, ".card"), head
    assert {0: "0: same or clean", 1: "1: different or found", 125: "125: cannot be tested"}[code] in card
    for row in answer["findings"][:1]:
        assert row["command"] in card and f"step {row['step']}, rank 0" in card and row["op"] in card
        assert f"{row['source']['file']}:{row['source']['line']}" in card and row["source"]["text"][:80] in card
    for row in answer["not_judged"][: 0 if code == 1 else 3]:
        assert row["why"] in card
    picture(page, f"check-{name}")


def check_texts(page, title):
    """What stands under a heading, up to the next one."""
    script = """
    (() => {
      const texts = [];
      let node = [...document.querySelectorAll("h3")].find((one) => one.textContent === TITLE);
      while (node && (node = node.nextElementSibling) && node.tagName !== "H3") texts.push(node.textContent);
      return texts;
    })()"""
    return page.evaluate(script.replace("TITLE", json.dumps(title)))


@pytest.mark.parametrize("name, code, word", CHECKED)
def test_a_check_lists_what_is_wrong_what_is_proven_and_what_was_not_judged(opened, report, checked, name, code, word):
    answer = checked[name]
    page = opened(report(answer))
    assert "Other fields" not in page.texts("h3"), "every field has its place"
    found = check_texts(page, "Findings")
    assert len(found) == len(answer["findings"])
    for row, text in zip(answer["findings"], found):
        assert row["message"] in text and row["command"] in text and row["source"]["text"] in text and row["op"] in text
        assert row["forward"] is None or f"backward of {row['forward']}" in text
    proven = "".join(check_texts(page, "Proven"))
    assert all(line in proven for line in answer["proven"])
    assert (
        [row[:1] for row in every_row(page, "Not judged, and why")] == [[row["what"]] for row in answer["not_judged"]]
        if answer["not_judged"]
        else True
    )
    assert (page.evaluate("document.querySelectorAll('details.finding[open]').length") >= 1) == bool(answer["findings"] or answer["digits"])
    shown = [row["command"] for row in answer["findings"]]
    assert set(shown) <= set(page.texts(".command code"))


def test_a_check_shows_where_digits_go_as_its_text_does(opened, report, checked):
    answer = checked["offload_overwritten_mended"]
    page = opened(report(answer))
    rows = [row for row in answer["digits"] if row["kind"] == "rounding"]
    caption = "What costs most digits, each line of code alone"
    shown = every_row(page, caption)
    assert [row[:3] for row in shown] == [[row["layer"] or "(outside)", row["op"], row["dtype"] or "–"] for row in rows]
    headings = page.evaluate(
        f"[...[...document.querySelectorAll('caption')].find((one) => one.textContent === {json.dumps(caption)}).parentNode.tHead.rows[0].cells].map((cell) => cell.textContent)"
    )
    for heading in ("layer", "op", "dtype", "right digits", "share, %", "line", "cure", "effect on the loss", "on gradients"):
        assert heading in headings
    share = headings.index("share, %")
    assert float(shown[0][share]) == pytest.approx(100 * rows[0]["share"], rel=1e-2)
    for row, cells in zip(rows, shown):
        assert row["cure"][:60] in cells[headings.index("cure")] and row["source"]["file"] in cells[headings.index("line")]
    for name in ("offload_overwritten_mended", "weights_do_not_move"):
        moved = [row for row in checked[name]["digits"] if row["kind"] == "updates"]
        absorbed = every_row(opened(report(checked[name])), "Updates that were absorbed")
        assert [row[0] for row in absorbed] == [row["layer"] for row in moved] and moved


def many(checked):
    answer = dict(checked["tied_written_twice"])
    (row,) = answer["findings"][:1]
    answer["findings"] = [dict(row, index=i, layer=f"blocks.{i}") for i in range(45)]
    answer["proven"] = [f"sentence {i}" for i in range(30)]
    answer["not_judged"] = [dict(what=f"step {i}", why="no loss was seen") for i in range(70)]
    return answer


def test_long_lists_of_a_check_are_folded_and_whole(opened, report, checked):
    page = opened(report(many(checked)))
    assert page.evaluate("document.querySelectorAll('details.finding').length") >= 20
    assert page.evaluate("[...document.querySelectorAll('details.finding')].slice(0, 20).filter((one) => one.open).length") == 1
    assert [row[4] for row in every_row(page, "Every finding")] == [f"blocks.{i}" for i in range(45)]
    assert len(every_row(page, "Not judged, and why")) == 70
    proven = check_texts(page, "Proven")
    assert "sentence 9" in proven[0] and "sentence 10" not in proven[0] and "and 20 more" in proven[1] and "sentence 29" in proven[1]


def test_hostile_texts_in_a_check_are_text(opened, report, checked):
    answer = dict(checked["weights_do_not_move"])
    for name in ("findings", "digits"):
        answer[name] = [
            {k: name_ if isinstance(v, str) else v for k, v in row.items()} | dict(source=dict(file=name_, line=1, function=name_, text=name_))
            for row, name_ in zip(answer[name] * 20, HOSTILE)
        ]
    answer["proven"], answer["not_judged"] = HOSTILE, [dict(what=name, why=name) for name in HOSTILE]
    page = opened(report(answer))
    assert page.evaluate("document.querySelectorAll('main img, main script, main b, main iframe, main [onerror]').length") == 0
    assert HOSTILE[1] in "".join(check_texts(page, "Findings")) and HOSTILE[1] in "".join(check_texts(page, "Proven"))
    assert HOSTILE[1] in "".join(check_texts(page, "Where digits go"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "a long name does not widen the page"


@pytest.mark.parametrize("name", ["scan-overflow", "bad-expert", "polar-bf16", "stale-scale", "poisoned-rank"])
def test_a_bisection_is_an_outline_of_its_trials(lastbit, opened, tmp_path, name):
    done = lastbit.run("bisect", "-q", SAMPLES / f"{name}.lbz", "--html", tmp_path / "page.html", "--json", expect=(0, 1))
    answer = json.loads(done.stdout)
    page = opened(tmp_path / "page.html")
    assert "makes step" in cards(page)[0] and answer["culprit"]["layer"] in cards(page)[0] and answer["outcome"] in page.texts(".card")[0]
    assert first_screen(page, ".card")
    assert page.evaluate("document.querySelectorAll('.outline .trial').length") == len(answer["trials"])
    assert page.evaluate("document.querySelectorAll('.outline .stage').length") == len(answer["stages"])
    commands = page.texts(".command code")
    assert answer["shows"] in commands and answer["cures"] in commands


def test_parity_shows_both_sides_of_every_token(lastbit, opened, tmp_path):
    a, b = (write(tmp_path / f"{n}.jsonl", side.sequences()) for n, side in (("a", Side(1)), ("b", Side(1, noise=0.3))))
    again = write(tmp_path / "again.jsonl", Side(1, noise=0.01).sequences())
    done = lastbit.run("parity", a, b, "--noise", again, "--html", tmp_path / "page.html", "--json", expect=1)
    answer = json.loads(done.stdout)
    assert "heat" not in answer
    page = opened(tmp_path / "page.html")
    assert cards(page)[0].startswith("✗ fail: ") and "times the noise floor" in page.texts(".card")[0]
    assert first_screen(page, ".card") and first_screen(page, ".tokens"), "the answer and the heat map need no scrolling"
    cells = page.evaluate("[...document.querySelectorAll('.tokens .sides')].map((x) => [...x.children].map((y) => y.textContent))")
    assert len(cells) == 39 and all(x.startswith("A ") and y.startswith("B ") for x, y in cells)
    page.evaluate("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Next tokens').click()")
    assert "sequence 1, tokens 1–39 of 39" in page.texts("[role=status]")
    assert every_row(page, "Parity by kind of token")[0][0] == answer["tokens"][0]["kind"]


def test_parity_shows_losses_in_columns(lastbit, opened, tmp_path):
    """What training and serving lose on the same tokens, their ratio and the verdict, in the first screen, and by kind of token."""
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, loss in ((a, 1e-4), (b, 0.03)):
        path.write_text(json.dumps(dict(token_ids=list(range(121)), logprobs=[None] + [-loss] * 120)) + "\n")
    lastbit.run("parity", a, b, "--html", tmp_path / "page.html", expect=1)
    page = opened(tmp_path / "page.html")
    assert cards(page)[0].startswith("✗ fail: the second side's loss is 300 times the first side's")
    caption = "Losses of the same tokens on both sides"
    heads = ["training loss (first side)", "serving loss (second side)", "ratio", "verdict", "decided by"]
    assert page.texts("main table thead")[0] == "".join(heads) and first_screen(page, "main table")
    assert every_row(page, caption)[0][:4] == ["1.00e-4", "0.03", "300", "✗ fail"]
    (row,) = every_row(page, "Parity by kind of token")
    assert row[:7] == ["text", "120", "✗ fail", "loss", "1.00e-4", "0.03", "300"]
    fits = "[...document.querySelectorAll('.tokens .sides span')].every((cell) => cell.getClientRects().length === 1 && cell.offsetHeight < 30)"
    assert page.evaluate(fits), "a cell's number stands in one line"


def test_settings_of_ranks_stand_side_by_side(opened, report):
    def setting(name, factor, **more):
        steps = [dict(row, loss_std=factor * row["loss_std"]) for row in ranks_result(12)["steps"]]
        return dict(capture=name, inconsistent=factor > 1, apart=["loss"] if factor > 1 else [], loss_mean=3.0, loss_std=0.1 * factor) | dict(
            report=dict(verdict="clean", steps=steps, findings=[], **more)
        )

    result = dict(schema="lastbit.ranks/1", command="lastbit ranks s11.lb s12.lb s13.lb", verdict="found", closest="s11.lb", steps_compared=12)
    result["settings"] = [setting("s11.lb", 1), setting("s12.lb", 1), setting("s13.lb", 4)]
    page = opened(report(result))
    assert cards(page)[0].startswith("✗ s13.lb: a silent inconsistency, its workers are further apart than those of s11.lb (loss)")
    rows = every_row(page, "Settings, means over their steps")
    assert [row[:2] for row in rows] == [["s11.lb", "✓ closest"], ["s12.lb", "✓ like the closest"], ["s13.lb", "✗ further apart"]]
    assert first_screen(page, ".card") and first_screen(page, "main table")
    assert [row[:2] for row in every_row(page, "Settings by step")[:3]] == [["0", "s11.lb"], ["0", "s12.lb"], ["0", "s13.lb"]]
    assert page.evaluate("document.querySelectorAll('canvas').length") == 6, "a plot of each measure, a line for each setting"


def test_watch_ranks_and_audit_are_shown_by_their_fields(opened, report):
    watched = watch_result()
    page = opened(report(watched, ranks_result(), audit_result()))
    assert [text[:1] for text in cards(page)] == ["✗"] * 3 and page.texts("h1") == ["3 answers, the gravest first"]
    assert [row[3] for row in every_row(page, "Alarms")] == ["✗ critical", "✗ critical", "≈ warning"], "the gravest first"
    assert len(every_row(page, "Alarms")) == len(watched["alarms"]) == 3
    assert [row[1] for row in every_row(page, "Steps in which no checkpoint should be written")] == ["70\u202f100"]
    assert len(every_row(page, "Dispersion by step")) == 200
    assert every_row(page, "Collectives")[0][0] == "c10d::allreduce_"
    assert [row[0] for row in every_row(page, "Adapter: merged against online, by precision")] == ["f32", "f16", "bf16"]
    assert page.evaluate("document.querySelectorAll('canvas').length") == 2 + 4
    assert "lastbit audit 'ckpt dir'" in page.texts(".command code")
    assert "new field" in page.texts("summary"), "an unknown field is listed"


def test_every_finding_is_behind_its_kind(lastbit, opened, report):
    """All of them are there, folded, the gravest kind first; a line needs three points."""
    audited = audit_result()
    audited["findings"] = [
        *(dict(kind="dtype", tensor=f"layers.{i}.up", file="a.safetensors", ranks=[], message="is f16") for i in range(60)),
        dict(kind="nonfinite", tensor="head", file="a.safetensors", ranks=[], message="2 NaN"),
    ]
    audited["groups"] = [dict(kind=kind, note=False, findings=n, tensors=n, message="as below") for kind, n in (("nonfinite", 1), ("dtype", 60))]
    ranked = ranks_result(2)
    ranked["findings"] += [dict(kind="seed", note=True, ranks=[r], step=0, message=f"rank {r} drew alike") for r in range(40)]
    page = opened(report(audited, ranked))
    assert page.texts("details.finding > summary > strong") == ["not finite", "dtype", "same-tokens", "note: seed"]
    for caption, rows in (("Findings: dtype", 60), ("Findings: not finite", 1), ("Findings: note: seed", 40)):
        assert len(every_row(page, caption)) == rows
    assert page.evaluate("document.querySelectorAll('canvas').length") == 0


def test_explain_replay_and_a_receipt_are_shown(lastbit, opened, report):
    explained = lastbit.json("explain", CLEAN, DROPPED, expect=1)
    flip = dict(step=0, rank=0, layer="layers.1.moe", call=0, token=7, lost=2, won=3, kind="near-tie", margin=1e-7, upstream=2e-7, rounding=1e-7)
    by_layer = dict(step=0, rank=0, layer="layers.1.moe", call=0, tokens=32, choices=64, flips=1, near_ties=2, largest_margin=1e-7)
    explained["routing"] = [dict(endings=[], layers=[by_layer], flips=[flip], undecided_at="")]
    page = opened(report(explained, lastbit.json("replay", CLEAN), CLEAN))
    assert every_row(page, "Each flip, with its margin")[0][2] == "layers.1.moe" and "1.00e-7" in every_row(page, "Each flip, with its margin")[0]
    assert len(cards(page)) == 3 and cards(page)[2].startswith("✓ a recording of ")
    assert len(every_row(page, "What turns one side into the other")) == len(explained["findings"])
    assert any(row[0] == "versions.torch" for row in every_row(page, "receipt"))


def test_every_command_is_shown_whatever_its_fields_are(opened, report):
    """Other types than the command prints, too: nothing is lost, and nothing complains."""
    odd = dict(unknown=[dict(a=1)], layers="text", first=[1], findings=3, trials={}, alarms=None, steps="x", tokens=[[]], verdict=["v"])
    names = "diff bisect explain parity ranks watch audit check fingerprint replay ls show other".split()
    page = opened(report(*[dict(schema=f"lastbit.{name}/1", **more) for name in names for more in ({}, odd)]), odd=True)
    assert len(cards(page)) == 2 * len(names)


def test_hostile_names_are_shown_as_text(opened, report):
    result = diff_result([diff_row(name, why=name, pattern=name) for name in HOSTILE], verdict="<b>", command="lastbit diff '</script><b>' b")
    result[HOSTILE[0]] = HOSTILE
    page = opened(
        report(result, dict(schema="lastbit.ls/1", capture=HOSTILE[0], tables=[dict(rank=0, tables={"receipt": {HOSTILE[1]: HOSTILE[2]}})]))
    )
    rows = [row[0] for row in every_row(page, "Layers, values and parameters as compared")]
    assert rows[:4] == HOSTILE[:4] and rows[6] == HOSTILE[6] and rows[-1] == HOSTILE[-1]
    assert rows[4:6] == ["\\u{202e}evil\\u{2066}", "line\\u{2028}end\\u{2029}"], "what turns a text, or is not seen, is spelt out"
    assert rows[7].startswith("x" * 80) and page.evaluate("document.body.textContent.includes('(10000 characters)')")
    assert page.evaluate("document.querySelectorAll('main img, main script, main b, main iframe, main [onerror]').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "a long name does not widen the page"


def test_every_control_is_reached_and_works_by_keyboard(lastbit, opened, tmp_path):
    lastbit.run("diff", CLEAN, DROPPED, "--html", tmp_path / "page.html", expect=1)
    page = opened(tmp_path / "page.html")
    every = "[...document.querySelectorAll('a[href], button:not(:disabled), input, select, summary, [tabindex=\"0\"]')]"
    controls = f"{every}.filter((node) => node.checkVisibility())"  # those in closed details come when they are opened
    page.evaluate(f"{controls}.forEach((node, i) => node.dataset.order = i)")
    count = page.evaluate(f"{controls}.length")
    assert count > 40
    order = []
    for i in range(count):
        page.press("Tab")
        if i == 0:
            assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
            assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0"), "the skip link shows itself"
        order.append(int(page.evaluate("document.activeElement.dataset.order ?? '-1'")))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "focus is visible"
    assert order == list(range(count))
    page.evaluate("document.querySelector('canvas[tabindex]').focus()")
    page.press("ArrowRight")
    first = page.texts(".readout")[0]
    page.press("ArrowRight")
    assert "rank 0" in first and page.texts(".readout")[0] != first
    page.evaluate("[...document.querySelectorAll('thead button')].find((b) => b.textContent === 'relative L2').focus()")
    page.press("Enter")
    page.press("Enter")
    assert page.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')") == "descending"


def test_headings_tables_and_plots_are_named(opened, report):
    page = opened(report(diff_result([diff_row(f"layers.{i}", r) for i in range(8) for r in range(4)]), watch_result(2000, ()), ranks_result()))
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:]))
    assert page.evaluate("[...document.querySelectorAll('table')].every((t) => t.caption && t.querySelectorAll('thead th[scope=col]').length)")
    assert page.evaluate("[...document.querySelectorAll('tbody tr')].every((r) => r.querySelector('th[scope=row]'))")
    assert page.evaluate("[...document.querySelectorAll('canvas')].every((c) => c.getAttribute('role') && c.getAttribute('aria-label'))")
    assert page.evaluate("[...document.querySelectorAll('input, select')].every((c) => c.labels.length === 1)")
    ids = page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map((a) => a.getAttribute('href').slice(1))")
    assert all(page.evaluate(f"document.getElementById({json.dumps(name)}) !== null") for name in ids)


CONTRAST = """
(() => {
  const luminance = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$/.test(colour) && colour !== "transparent") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  for (const node of document.querySelectorAll("main *, header *")) {
    if (![...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()) || node.matches(":disabled, noscript, canvas, option")) continue;
    const [a, b] = [luminance(getComputedStyle(node).color), luminance(behind(node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(`${node.tagName} ${node.className} ${node.textContent.slice(0, 30)}`);
  }
  return poor;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_are_legible(lastbit, opened, tmp_path, dark):
    """WCAG's contrast of 4.5 for every text, the cells of the heat map among them."""
    a, b = (write(tmp_path / f"{n}.jsonl", side.sequences()) for n, side in (("a", Side(1)), ("b", Side(1, noise=0.3))))
    lastbit.run("parity", a, b, "--html", tmp_path / "parity.html", expect=1)
    lastbit.run("diff", CLEAN, DROPPED, "--html", tmp_path / "diff.html", expect=1)
    for name in ("parity", "diff"):
        page = opened(tmp_path / f"{name}.html", dark=dark)
        assert page.evaluate(CONTRAST) == []
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(13, 17, 23)") == dark
        picture(page, f"{name}-{'dark' if dark else 'light'}")


@pytest.mark.parametrize("dark", [False, True])
def test_a_check_is_legible_and_fits_paper(opened, report, checked, dark):
    page = opened(report(checked["weights_do_not_move"], checked["offload_overwritten_mended"], checked["reference_kept"]), dark=dark)
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert page.evaluate(CONTRAST) == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:]))
    page.call("Emulation.setEmulatedMedia", media="print")
    page.call("Emulation.setDeviceMetricsOverride", width=1030, height=700, deviceScaleFactor=1, mobile=False)
    assert page.evaluate("[...document.querySelectorAll('table')].every((t) => t.scrollWidth <= innerWidth)"), "no table is wider than the paper"


def test_it_prints_in_light_without_controls(lastbit, opened, tmp_path):
    lastbit.run("diff", CLEAN, DROPPED, "--html", tmp_path / "page.html", expect=1)
    page = opened(tmp_path / "page.html", dark=True)
    shown = "document.querySelectorAll('tbody tr').length"
    before = page.evaluate(shown)
    page.evaluate("addEventListener('beforeprint', () => (window.printed = document.querySelectorAll('tbody tr').length))")
    page.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF") and (tmp_path / "page.pdf").stat().st_size > 20000
    assert page.evaluate("window.printed") > before == page.evaluate(shown), "every row is printed, and a page of them shown again"
    page.call("Emulation.setEmulatedMedia", media="print")
    page.call("Emulation.setDeviceMetricsOverride", width=1030, height=700, deviceScaleFactor=1, mobile=False)  # what A4 has between its margins
    assert page.evaluate("[...document.querySelectorAll('table')].every((t) => t.scrollWidth <= innerWidth)"), "no table is wider than the paper"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("[...document.querySelectorAll('.controls, nav, .skip, .copy')].every((n) => getComputedStyle(n).display === 'none')")


def test_a_thousand_layers_on_64_ranks_stay_usable(opened, report):
    path = report(large_diff())
    assert path.stat().st_size < 5_000_000
    page = opened(path)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    verdict = page.evaluate("performance.getEntriesByName('text')[0].startTime")
    print(f"{path.stat().st_size} bytes, first paint after {paint:.0f} ms, text after {verdict:.0f} ms")
    assert paint < 1000 and cards(page)[0].startswith("✗ model.layers.87.mlp.up, aten::mm diverges in step 0, forward")
    assert page.evaluate("document.querySelectorAll('tbody tr').length") < 500, "tables show a page of rows"
    assert len(every_row(page, "Layers by phase: the worst over ranks and steps")) == 1000
    assert "of 64\u202f000" not in page.text() and "are left out of this page" in page.text()
    page.evaluate("document.querySelector('canvas[tabindex]').focus()")
    for key in ["ArrowDown"] * 17 + ["ArrowRight"] * 3:
        page.press(key)
    assert page.texts(".readout")[0].startswith("model.layers.0.mlp.gate, rank 17: rounding")
    page.press("End")
    assert "rank 17: diverged" in page.texts(".readout")[0]
