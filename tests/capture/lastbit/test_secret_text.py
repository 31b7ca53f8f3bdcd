"""No secret of 200 shapes stays in what a capture keeps of a run's words, and nothing that tells runs apart goes with them."""

import json
import platform
import random
import re
import subprocess
import sys
import time

import pytest
import secret_shapes as shapes
from conftest import ROOT

sys.path.insert(0, str(ROOT / "capture"))
from lastbit import secret_text  # noqa: E402

LETTERS = {
    "A": "abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789",
    "U": "ABCDEFGHJKLMNPQRSTUVWXYZ234567",
    "H": "0123456789abcdef",
    "D": "123456789",
}


def filled(text):
    """A pattern with letters drawn for it."""
    draw = random.Random(text)
    return re.sub(r"<([AUHD])(\d+)>", lambda m: "".join(draw.choice(LETTERS[m[1]]) for _ in range(int(m[2]))), text)


def rows(text):
    return [filled(line).replace("¶", "\n") for line in text.strip().splitlines()]


def split(text):
    """A marked text as it is, its secrets, and what must stay of it."""
    return re.sub("[«»‹›]", "", text), re.findall("«(.*?)»", text), [part for part in re.split("«.*?»|‹.*?›", text) if part]


def check(said, secrets, stays):
    for secret in secrets:
        assert secret not in said.replace(secret_text.MASK, " "), said
    at = 0
    for part in stays:
        at = said.find(part, at)
        assert at >= 0, (said, part)


@pytest.mark.parametrize("row", rows(shapes.ARGUMENTS))
def test_arguments_hide_secrets(row):
    text, secrets, _ = split(row)
    masked = secret_text.mask([word.replace("~", " ") for word in text.split()])
    said = " ".join(masked)
    assert secret_text.MASK in said
    for secret in secrets:
        assert secret.replace("~", " ") not in said.replace(secret_text.MASK, " "), said
    assert len(masked) == len(text.split())
    assert masked[0].split("=")[0].split("{")[0] == text.split()[0].split("=")[0].split("{")[0]  # of which option is readable


@pytest.mark.parametrize("token", rows(shapes.TOKENS))
def test_tokens_are_hidden_wherever_they_stand(token):
    stem = re.sub("[A-Za-z0-9]{6}$", "", token)
    for text in (token, f"refused: {token} is not valid", f"--x={token}", f"a,{token};b", f'"{token}"'):
        assert stem not in secret_text.mask_text(text) and secret_text.MASK in secret_text.mask_text(text)
        assert stem not in secret_text.mask([text])[0]
    assert secret_text.mask_code(f'f(x, "{token}")') == f'f(x, "{secret_text.MASK}")'


@pytest.mark.parametrize("row", rows(shapes.TEXTS))
def test_texts_hide_secrets(row):
    text, secrets, stays = split(row)
    begin = "BEGIN" in text  # nothing of the block stays
    check(secret_text.mask_text(text), secrets, [] if begin else [re.sub(r"(?i)(bearer|basic|token)\s+$", "", part) for part in stays])


@pytest.mark.parametrize("row", rows(shapes.CODE))
def test_lines_of_code_hide_secrets(row):
    text, secrets, stays = split(row)
    said = secret_text.mask_code(text)
    check(said, secrets, [re.sub(r"Bearer $|me\", \"|\"me\", \"|https?://me:|postgres://me:", "", part).split('("me')[0] for part in stays[:1]])


@pytest.mark.parametrize("row", rows(shapes.HARMLESS))
def test_what_is_no_secret_stays(row):
    assert secret_text.mask_text(row) == secret_text.mask_code(row) == row
    assert secret_text.mask([row]) == [row] and secret_text.mask(["--x", *row.split("=", 1)]) == ["--x", *row.split("=", 1)]


@pytest.mark.parametrize("row", rows(shapes.HARMLESS_CODE))
def test_lines_without_secrets_stay(row):
    assert secret_text.mask_code(row) == row


def test_the_tables_are_as_long_as_they_are_said_to_be():
    count = sum(len(rows(table)) for table in (shapes.ARGUMENTS, shapes.TOKENS, shapes.TEXTS, shapes.CODE))
    assert count >= 200 and len(rows(shapes.HARMLESS)) + len(rows(shapes.HARMLESS_CODE)) >= 80


def test_secrets_in_secrets_places():
    """Every value after every kind of name in every kind of notation."""
    draw = random.Random(1)
    values = ["hunter2", "p@ssw0rd!", "x", "αβγ", "a" * 300, "1e-3abc", "Tr0ub4dor&3"[:9]]
    names = ["password", "db_password", "API_KEY", "apiKey", "client-secret", "HF_TOKEN", "aws.secret_access_key", "passphrase", "X-Auth-Token"]
    notations = [
        '"{n}": "{v}"',
        "'{n}':'{v}'",
        "{n}='{v}'",
        '{n} = "{v}"',
        "--{n}={v}",
        "?{n}={v}&x=1",
        '{{"a": {{"{n}": "{v}"}}}}',
        '\\"{n}\\": \\"{v}\\"',
        '("{n}", "{v}")',
    ]
    for notation in notations:
        for name in names:
            value = draw.choice(values)
            said = secret_text.mask_text("lr=0.1 " + notation.format(n=name, v=value) + " step=3")
            assert said.startswith("lr=0.1") and said.endswith("step=3") and name in said and f"{value}" not in said.replace(name, ""), (
                notation,
                name,
                value,
                said,
            )


def test_long_and_odd_texts_are_read_in_time():
    begin = time.process_time()
    for text in (
        "a" * 100_000,
        "a:" * 50_000,
        "password=" * 9000,
        "/a/b" * 20_000,
        '\\"' * 30_000,
        "token: a " * 9000,
        "://" * 30_000,
        "-----BEGIN A KEY" * 5000,
        "docker login -x " * 5000,
        "machine a password " * 5000,
        "name: A value " * 5000,
        "password: |\n  a\n" * 5000,
        "Digest a=b," * 5000,
        "<token>" * 9000,
        "%22token%22%3A" * 5000,
        "https://a:b" * 5000,
        "jdbc:oracle:a:" * 5000,
    ):
        assert len(secret_text.mask_text(text)) <= 3 * len(text) and len(secret_text.mask([text])[0]) <= 2000
        secret_text.mask_code(text)
    assert time.process_time() - begin < 6  # some milliseconds each; what goes back over a text takes seconds of each


@pytest.fixture(scope="module")
def leaky(lastbit, tmp_path_factory):
    """A run that has its secret in arguments, a variable, a line that computes, and the text of an exception."""
    folder = tmp_path_factory.mktemp("leaky")
    (folder / "leaky.py").write_text(
        "import torch, lastbit.torch\n"
        "class Scale(torch.nn.Linear):\n    def forward(self, x, token=None):\n        return super().forward(x)\n"
        "model = Scale(2, 2)\n"
        "with lastbit.torch.capture('run.lb', level='ops') as cap:\n    with cap.step(0):\n"
        '        model(torch.ones(2, 2), token="c0ffee-in-code").sum().backward()\n'
        "        cap._session.noticed('note', 'could not reach https://me:c0ffee-in-message@host/x')\n"
    )
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "capture"), "OMP_NUM_THREADS": "1", "NCCL_AUTH": "c0ffee-in-variable"}
    env["XLA_FLAGS"] = "--xla_dump_to=https://me:c0ffee-in-flag@host/x"
    words = [sys.executable, "leaky.py", "--pwd", "c0ffee-in-argument", '--json={"api_key": "c0ffee-in-json"}', "--lr=0.1"]
    subprocess.run(words, cwd=folder, env=env, check=True, timeout=120)
    return folder / "run.lb"


def test_no_byte_of_a_capture_holds_a_secret(lastbit, leaky):
    for path in leaky.rglob("*"):
        assert not path.is_file() or b"c0ffee" not in path.read_bytes(), path
    receipt = lastbit.json("ls", leaky, "--tables", expect=0)["tables"][0]["tables"]["receipt"]
    assert receipt["process"]["argv"] == ["leaky.py", "--pwd", "***", '--json={"api_key": "***"}', "--lr=0.1"]
    assert receipt["environment"]["OMP_NUM_THREADS"] == "1" and "NCCL_AUTH" not in receipt["environment"]
    assert "could not reach https://***@host/x" in lastbit.run("ls", leaky, expect=0).stdout
    assert 'token="***"' in json.dumps(lastbit.json("ls", leaky, "--ops", expect=0)).replace('\\"', '"')


def test_an_answer_keeps_no_address_of_a_webhook(lastbit, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    for words in (["--webhook", "https://host/c0ffee"], ["--webhook=https://host/c0ffee"]):
        answer = lastbit.run("watch", "--json", *words, tmp_path / "log.jsonl").stdout
        assert "c0ffee" not in answer and "--webhook …" in json.loads(answer)["command"] and "log.jsonl" in json.loads(answer)["command"]


def test_a_packed_capture_can_be_without_its_receipt(lastbit, leaky, tmp_path):
    out = tmp_path / "out.lbz"
    lastbit.run("pack", leaky, "--strip", "receipt", "-o", out, expect=0)
    tables = lastbit.json("ls", out, "--tables", expect=0)["tables"][0]["tables"]
    assert "receipt" not in tables and tables["pack"]["strip"] == ["receipt"] and "coverage" in tables
    assert "packed without: receipt" in lastbit.run("ls", out, expect=0).stdout
    lastbit.run("verify", out, expect=0)
    assert lastbit.json("diff", leaky, out, expect=0)["verdict"] == "identical"


def test_the_hosts_name_is_kept_only_when_asked_for(lastbit, leaky, tmp_path):
    def process(path):
        return lastbit.json("ls", path, "--tables", expect=0)["tables"][0]["tables"]["receipt"]["process"]

    lastbit.record(tmp_path / "run.lb", "tests/programs/two_linears.py", options=("--receipt-host",), expect=0)
    assert process(tmp_path / "run.lb")["host"] == platform.node() and "host" not in process(leaky)
