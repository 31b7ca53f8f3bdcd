"""The page as text: what it holds, how it refuses, and that nothing of a result becomes markup. No browser is needed."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from conftest import ROOT
from report_results import audit_result, diff_result, diff_row, large_diff, watch_result
from safetensors.numpy import save_file

CLEAN, DROPPED, OVERFLOW = (ROOT / "samples" / f"{name}.lbz" for name in ("clean", "dropped-term", "scan-overflow"))


def parts(page):
    """What the page holds as data."""
    (text,) = re.findall(r'<script type="application/json" id="results">(.*?)</script>', page.read_text(), re.S)
    return json.loads(text)


def rows(table):
    """A list as the page holds it, in columns or not, as objects."""
    if isinstance(table, list):
        return table
    columns = {k: c if isinstance(c, list) else [None if i < 0 else c["words"][i] for i in c["at"]] for k, c in table["columns"].items()}
    assert all(len(c) == table["rows"] for c in columns.values())
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def test_short_ways_write_the_page_of_the_same_json(lastbit, tmp_path):
    for args in (("diff", CLEAN, DROPPED), ("bisect", "-q", OVERFLOW)):
        page = tmp_path / f"{args[0]}.html"
        done = lastbit.run(*args, "--html", page, "--json", expect=1)
        (tmp_path / "result.json").write_text(done.stdout)
        again = tmp_path / "again.html"
        lastbit.run("report", "-o", again, tmp_path / "result.json", expect=0)
        (one,), (other,) = parts(page), parts(again)
        for part in (one, other):  # where it is from, and how long it took
            part.pop("name"), part["result"].pop("seconds", None)
            for trial in part["result"].get("trials", []):
                trial.pop("seconds")
        assert one == other
        assert one["result"]["command"] == "lastbit " + " ".join(map(str, args))


@pytest.mark.parametrize("line", ["ranks poisoned-rank", "watch scan-overflow", "explain clean --invariance layer=head --launch splitk"])
def test_every_command_that_judges_writes_its_page(lastbit, tmp_path, line):
    command, name, *more = line.split()
    page = tmp_path / "page.html"
    done = lastbit.run(command, ROOT / "samples" / f"{name}.lbz", *more, "--html", page, "--json", expect=(0, 1, 125))
    (part,) = parts(page)
    answer = json.loads(done.stdout)
    assert part["command"] == command and part["result"]["command"] == answer["command"]
    assert part["result"].keys() == answer.keys() and "--html" not in answer["command"]


def test_an_audit_writes_its_page(lastbit, tmp_path):
    save_file({"head.weight": np.full((4, 4), np.nan, "f4"), "body.weight": np.ones((4, 4), "f4")}, tmp_path / "model.safetensors")
    lastbit.run("audit", tmp_path / "model.safetensors", "--html", tmp_path / "page.html", expect=1)
    (part,) = parts(tmp_path / "page.html")
    assert part["answer"]["finding"].startswith("head.weight: 16 NaN")


def test_every_layer_of_a_diff_is_there_with_its_numbers(lastbit, report):
    answer = lastbit.json("diff", CLEAN, DROPPED, expect=1)
    (part,) = parts(report(answer))
    assert part["result"]["verdict"] == answer["verdict"] and part["result"]["first"]["layer"] == answer["first"]["layer"]
    kept = rows(part["result"]["layers"])
    assert len(kept) == len(answer["layers"])
    for row, want in zip(kept, answer["layers"]):
        assert (row["layer"], row["verdict"], row["local"], row["differing"]) == (want["layer"], want["verdict"], want["local"], want["differing"])
        assert row["rel_l2"] == (want["rel_l2"] and pytest.approx(want["rel_l2"], rel=1e-5))
    histogram = part["derived"]["histograms"]["max_ulp"]
    assert sum(count for _, count in histogram) == sum(row["max_ulp"] is not None for row in answer["layers"])


def test_several_results_and_a_capture_make_one_page(lastbit, report):
    found = lastbit.json("bisect", "-q", OVERFLOW, expect=1)
    page = report(found, lastbit.json("diff", CLEAN, DROPPED, expect=1), CLEAN)
    assert [part["command"] for part in parts(page)] == ["bisect", "diff", "ls"]
    listed = lastbit.json("ls", "--tables", CLEAN, expect=0)["tables"]
    receipt = parts(page)[2]["result"]["tables"]
    assert receipt[0]["tables"]["receipt"]["versions"] == listed[0]["tables"]["receipt"]["versions"]
    assert receipt[0]["tables"]["receipt"]["time"] == round(listed[0]["tables"]["receipt"]["time"])


def test_a_result_comes_from_standard_input(lastbit, tmp_path):
    lastbit.run("report", "-o", tmp_path / "page.html", "-", input=json.dumps(audit_result()), expect=0)
    assert parts(tmp_path / "page.html")[0]["result"]["checkpoint"] == "ckpt dir"


def test_the_policy_names_what_runs_and_nothing_else(report):
    text = report(audit_result()).read_text()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
    hashes = {base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in re.findall(r"<script>(.*?)</script>", text, re.S)}
    hashes |= {base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in re.findall(r"<style>(.*?)</style>", text, re.S)}
    assert hashes == set(re.findall(r"'sha256-([^']*)'", policy)) and len(hashes) == 7
    assert "MIT License" in text and "Chart.js Contributors" in text


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"},{"layer":"',
    "<!--<script>",
    "\u202eevil\u2066",
    "line\u2028end\u2029",
    "]]>&lt;&amp;'\"`${alert(1)}",
    "x" * 10000,
    "\U0001f600" * 5000,
    "__proto__",
]


def test_hostile_names_stay_data(report):
    result = diff_result([diff_row(name) for name in HOSTILE], verdict="</noscript><b>", command="</script>'\"<b>")
    page = report(result)
    text = page.read_text()
    data = text.split('id="results">')[1].split("</script>")[0]
    assert not re.search("[<>&\u2028\u2029]", data)
    assert text.count("</script>") == 7 and "<img" not in text and "<b>" not in text
    names = [row["layer"] for row in parts(page)[0]["result"]["layers"]]
    for name, kept in zip(HOSTILE, names):
        assert kept == name if len(name) < 4000 else kept.startswith(name[:4000]) and kept.endswith(f"… ({len(name)} characters)")


def test_a_large_diff_stays_small_and_says_what_is_left_out(report):
    page = report(large_diff())
    (part,) = parts(page)
    layers = part["result"]["layers"]
    assert page.stat().st_size < 5_000_000
    assert layers["of"] == 64000 and 1000 < layers["rows"] < 64000
    assert sum(row["verdict"] == "diverged" for row in rows(layers)) == 300, "the worst rows stay"
    summary = {row["layer"]: row for row in rows(part["derived"]["by_layer"])}
    assert len(summary) == 1000 and sum(row["verdict"] == "diverged" for row in summary.values()) == 300
    assert all(row["ranks"] == 64 for row in summary.values())
    map_ = part["derived"]["map"]
    assert len(map_["layers"]) == 1000 and map_["ranks"] == list(range(64))
    assert map_["verdicts"][17 * 1000 + 700 : 18 * 1000] == "7" * 300 and map_["verdicts"].count("7") == 300


def test_a_huge_map_takes_neighbouring_layers_together(report):
    """No verdict is lost by it."""
    rows = [diff_row(f"layers.{i}", 0) for i in range(7000)] + [diff_row("layers.0", rank) for rank in range(1, 64)]
    page = report(diff_result([*rows, diff_row("layers.777", 3, verdict="diverged")]))
    map_ = parts(page)[0]["derived"]["map"]
    assert page.stat().st_size < 5_000_000
    assert map_["group"] == 2 and len(map_["layers"]) == 3500 and len(map_["verdicts"]) == 64 * 3500
    assert [i for i, letter in enumerate(map_["verdicts"]) if letter == "7"] == [3 * 3500 + 388]


def test_curves_are_thinned_and_keep_their_spikes(report):
    result = watch_result()
    curves = parts(report(result))[0]["result"]["curves"]
    assert len(curves["step"]) == len(curves["loss"]) == len(curves["grad_norm"]) <= 4000
    assert max(curves["grad_norm"]) == pytest.approx(max(result["curves"]["grad_norm"]), rel=1e-5)
    at = curves["grad_norm"].index(max(curves["grad_norm"]))
    assert abs(curves["step"][at] - 70000) <= 50


@pytest.mark.parametrize(
    "text, code, said",
    [
        ("{", 128, "no JSON"),
        ('{"verdict": "diverged"}', 128, '"schema"'),
        ('{"schema": "other/1"}', 128, '"schema"'),
        ('{"schema": "lastbit.diff/2"}', 128, "lastbit.diff/1"),
    ],
)
def test_what_is_no_result_is_refused(lastbit, tmp_path, text, code, said):
    (tmp_path / "bad.json").write_text(text)
    done = lastbit.run("report", "-o", tmp_path / "page.html", tmp_path / "bad.json", expect=code)
    assert said in done.stderr and "bad.json" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"], "nothing is left behind"


def test_only_a_page_is_written_over(lastbit, report, tmp_path):
    page = report(audit_result())
    before = page.stat().st_ino
    assert report(audit_result()).stat().st_ino != before
    source = tmp_path / "result-0.json"
    done = lastbit.run("report", "-o", source, source, expect=128)
    assert "is not a report" in done.stderr and json.loads(source.read_text())["checkpoint"] == "ckpt dir"
    assert lastbit.run("report", "-o", tmp_path / "none" / "page.html", source, expect=128).stderr
    lastbit.run("report", tmp_path / "absent.json", expect=(125, 128))
    lastbit.run("report", expect=129)


def test_missing_and_unknown_fields_are_no_obstacle(report):
    for command in "diff bisect explain parity ranks watch audit replay ls show other".split():
        (part,) = parts(report(dict(schema=f"lastbit.{command}/1", unknown=[dict(a=1)])))
        assert part["command"] == command and part["result"]["unknown"] == [{"a": 1}]
