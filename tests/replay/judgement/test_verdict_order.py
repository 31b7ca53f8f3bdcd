"""One order of verdicts: C, JSON and the page say it by the table in include/lastbit/verdict.h."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def severities():
    """Each word of the table, with its severity."""
    rows = re.findall(r'X\(\w+, "(\w+)", (\d)\)', (ROOT / "include/lastbit/verdict.h").read_text())
    assert len(rows) == 8
    return {word: int(severity) for word, severity in rows}


def words_in(path, pattern):
    (found,) = re.findall(pattern, (ROOT / path).read_text())
    return re.findall(r'"(\w+)"', found)


def test_the_schema_lists_verdicts_from_best_to_worst():
    words = json.loads((ROOT / "include/lastbit/schema/words.json").read_text())["$defs"]["verdict"]["enum"]
    assert words == sorted(severities(), key=severities().get)


def test_the_page_has_the_order_of_the_table():
    """The page has one word more, `undecided`, of commands that judge no values; an opaque row counts as a missing one there."""
    packed = words_in("bisect/inspection/report/column_table.c", r"lb_verdict_words\[LB_VERDICT_RANKS\] = \{([^}]*)\}")
    shown = words_in("bisect/inspection/report/page/data.js", r"lb\.verdicts = \[([^\]]*)\]")
    assert packed == shown
    order = [word for word in shown if word != "undecided"]
    assert order == sorted(order, key=severities().get) and set(severities()) - set(order) == {"opaque"}


def test_a_diff_ranks_verdicts_by_the_order_of_the_table():
    """Of a diff no row is opaque or swapped: those two stand beside `missing` in its own scale."""
    text = (ROOT / "bisect/pairs/diff/diff_report.c").read_text()
    (body,) = re.findall(r"int lb_report_badness\(lb_verdict v\)\n\{(.*?)\n\}", text, re.S)
    scale, waiting = {}, []
    for name, number in re.findall(r"case LB_VERDICT_(\w+):(?:[^\n]*?return (\d))?", body):
        waiting.append(name.lower())
        if number:
            scale |= dict.fromkeys(waiting, int(number))
            waiting = []
    assert set(scale) == set(severities()) and scale["opaque"] == scale["swapped"] == scale["missing"]
    given = [word for word in severities() if word not in ("opaque", "swapped")]
    assert sorted(given, key=scale.get) == sorted(given, key=severities().get)
