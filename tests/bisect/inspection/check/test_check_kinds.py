"""Every kind of finding has a plant of its own, and so has every kind of row about digits: none can be added without."""

import importlib
import json
import re

import pytest
from conftest import ROOT

WORDS = json.loads((ROOT / "include/lastbit/schema/words.json").read_text())["$defs"]
# kind: a test file, its table of plants, one of them. The table says the kind, or the file's tests do.
PLANTS = {
    "gradient": ("test_check", "FAULTS", "heads_exchanged"),
    "scale": ("test_check", "FAULTS", "custom_twice"),
    "detached": ("test_check", "FAULTS", "rope_detached"),
    "redrawn": ("test_check", "FAULTS", "drop_checkpoint_redrawn"),
    "lost": ("test_check", "FAULTS", "gas_lost"),
    "read": ("test_check", "FAULTS", "one_halved"),
    "update": ("test_updates", "FAULTS", "coupled"),
    "future": ("test_relations", "FAULTS", "sdpa_not_causal"),
    "target": ("test_relations", "FAULTS", "target_twice"),
    "rows": ("test_relations", "FAULTS", "rows_mean_of_batch"),
    "documents": ("test_relations", "FAULTS", "documents_meet"),
    "padding": ("test_relations", "FAULTS", "padding_once"),
    "carried": ("test_relations", "FAULTS", "carried_cache"),
    "positions": ("test_relations", "FAULTS", "padding_shifts"),
    "weights": ("test_relations", "FAULTS", "divided_twice"),
    "unwritten": ("test_unwritten", "LOST", "tail_lost"),
    "dropped": ("test_dropped_nan", "DROPPED", "scale_by_fmax"),
    "means": ("test_relations", "FAULTS", "means"),
    "rounded": ("test_digits", "FAULTS", "rope_bf16"),
    "absorbed": ("test_digits", "FAULTS", "adamw_small_rate"),
    "saturated": ("test_digits", "FAULTS", "scale_high"),
    "underflow": ("test_digits", "FAULTS", "scale_low"),
}


def test_every_kind_of_finding_is_listed():
    assert sorted(PLANTS) == sorted(WORDS["check_kind"]["enum"])


@pytest.mark.parametrize("kind", PLANTS)
def test_a_kind_of_finding_has_its_plant(kind):
    """Its row in a table of plants, which a test of that file records and finds."""
    file, table, name = PLANTS[kind]
    module = importlib.import_module(file)
    plants, text = getattr(module, table), (ROOT / f"tests/bisect/inspection/check/{file}.py").read_text()
    assert name in plants
    said = plants[name] if isinstance(plants[name], tuple) else ()
    assert kind in said or re.search(rf'\["kind"\] == "{kind}"|{{"{kind}"}}|"kind"\] for row in [^\n]* == \["{kind}"\]', text), (kind, said)


@pytest.mark.parametrize("kind", WORDS["check_digit_kind"]["enum"])
def test_a_kind_of_row_about_digits_is_looked_for(kind):
    assert f'"{kind}")' in (ROOT / "tests/bisect/inspection/check/test_digits.py").read_text()
