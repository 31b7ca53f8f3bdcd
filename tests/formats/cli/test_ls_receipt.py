"""`ls --receipt`: what a run was in one object, and what two runs differ in."""

import json

from conftest import ROOT

CLEAN, FAULTY = ROOT / "samples" / "clean.lbz", ROOT / "samples" / "scan-overflow.lbz"
FIELDS = {"schema", "lane", "time", "code", "versions", "environment", "precision", "window", "health", "checkpoint", "data", "links"}


def test_a_receipt_says_what_a_run_was(lastbit):
    receipt = json.loads(lastbit.run("ls", "--receipt", FAULTY, expect=0).stdout)
    assert set(receipt) == FIELDS and receipt["schema"] == "lastbit.receipt/1"
    assert receipt["lane"] == "samples/hybrid_lm.py --fault scan-overflow"
    listed = lastbit.json("ls", FAULTY, "--tables", "--values", expect=0)
    tables, program = listed["tables"][0]["tables"], listed["programs"][0]
    assert receipt["code"] == tables["receipt"]["code"]["sha256"] and receipt["versions"] == tables["receipt"]["versions"]
    assert receipt["window"] == {"first": listed["steps"][0], "last": listed["steps"][-1], "steps": 1, "ranks": 1}
    assert sum(receipt["precision"]["dtypes"].values()) == len(program["value_list"])
    assert receipt["health"]["nonfinite_values"] > 0 and receipt["health"]["losses"] == [{"step": 2, "rank": 0, "loss": "not finite"}]
    assert receipt["checkpoint"]["parameters"] > 10 and len(receipt["checkpoint"]["digest"]) == 32
    assert lastbit.json("ls", "--receipt", FAULTY, expect=0)["receipt"] == receipt


def test_two_receipts(lastbit, tmp_path):
    assert "no difference" in lastbit.run("ls", "--receipt", CLEAN, CLEAN, expect=0).stdout
    differences = lastbit.json("ls", "--receipt", CLEAN, FAULTY, expect=1)["differences"]
    fields = {d["field"]: (d["first"], d["second"]) for d in differences}
    assert fields["health.nonfinite_values"][0] != fields["health.nonfinite_values"][1]
    assert fields["lane"][1] == "samples/hybrid_lm.py --fault scan-overflow"
    assert not [f for f in fields if f == "time" or f.startswith("links")]
    kept = tmp_path / "receipt.json"
    kept.write_text(lastbit.run("ls", "--receipt", CLEAN, expect=0).stdout)
    lastbit.run("ls", "--receipt", kept, CLEAN, expect=0)
    changed = json.loads(kept.read_text())
    changed["versions"]["torch"] = "1.0"
    del changed["environment"]["OMP_NUM_THREADS"]
    kept.write_text(json.dumps(changed))
    differences = lastbit.json("ls", "--receipt", kept, CLEAN, expect=1)["differences"]
    assert [d["field"] for d in differences] == ["versions.torch", "environment.OMP_NUM_THREADS"]


def test_what_is_no_receipt(lastbit, tmp_path):
    (tmp_path / "x.json").write_text('{"schema": "lastbit.receipt/9"}')
    said = lastbit.run("ls", "--receipt", tmp_path / "x.json", expect=(125, 128)).stderr
    assert "schema is 'lastbit.receipt/9', lastbit.receipt/1 is read" in said
    (tmp_path / "y.json").write_text("{")
    lastbit.run("ls", "--receipt", tmp_path / "y.json", expect=128)
    lastbit.run("ls", CLEAN, CLEAN, expect=129)
