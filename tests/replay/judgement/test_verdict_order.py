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


def test_no_code_orders_verdicts_by_their_numbers():
    """The enum's numbers stand in captures and part files, in no order; better and worse are asked of the table."""
    compared = re.compile(r"[<>]=?\s*LB_VERDICT_(?!RANKS|COUNT)|LB_VERDICT_\w+\s*[<>]")
    folders = [ROOT / name for name in ("formats", "capture", "replay", "bisect", "include")]
    files = [path for folder in folders for path in folder.rglob("*.[ch]")]
    assert len(files) > 800
    found = [f"{path}:{i}" for path in files for i, line in enumerate(path.read_text().splitlines(), 1) if compared.search(line)]
    assert not found, found
