"""Text of strangers has one gate and one door: no source goes around them (include/lastbit/text.h, json_text.h, formats/command/text_door.h)."""

import os
import re
import subprocess

from conftest import BUILD, ROOT, written_on_terminal
from spelt_names import check_streams, is_hidden

ROOMS = ("formats", "capture", "replay", "bisect")


def sources(*folders, kinds="ch"):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob(f"*.[{kinds}]"))]


def lines_with(pattern, files):
    """(path, line) of code, comments aside."""
    found = []
    for path in files:
        code = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), path.read_text(), flags=re.S)
        found += [(str(path.relative_to(ROOT)), line.strip()) for line in code.splitlines() if re.search(pattern, line)]
    return found


def test_json_has_one_door():
    assert lines_with(r"jansson\.h", sources(*ROOMS, "include")) == [("include/lastbit/json_text.h", "#include <jansson.h>")]
    assert {path for path, _ in lines_with(r"LB_JSON_TEXT_OF_JANSSON", sources(*ROOMS))} == {"formats/base/json_text.c"}
    around = lines_with(
        r"\bjson_(dump_callback|dumpb|dumpfd|dump_file|load_callback|loadf|loadfd|string_nocheck|stringn_nocheck|vpack_ex|pack_ex|object_set_new_nocheck)\b",
        sources(*ROOMS),
    )
    assert {path for path, _ in around} == {"formats/base/json_text.c"}


def test_terminals_have_one_door():
    """A command has stdio alone, and its streams are the door's."""
    ours = [path for path in sources(*ROOMS) if not re.search("capture/(calls|mpi|nccl)/", str(path))]
    past = lines_with(r"\bwritev?\s*\(\s*(1|2|STD(OUT|ERR)_FILENO)\b", ours)
    assert {path for path, _ in past} == {"formats/command/refusal.c"}, past  # a sentence of its own, where there is no memory for a stream
    assert [path for path, _ in lines_with(r"\bv?dprintf\s*\(", ours)] == ["capture/binding/python_recording.c"]  # "signal 9", in another program
    named = lines_with(r'"/dev/(tty|std|fd)|/proc/self/fd|\bfdopen\s*\(\s*(1|2|STD)|\bttyname|\bctermid', ours)
    # `-o /dev/stdout`: whoever names a descriptor as an output gets the file there.
    assert {str(path) for path, _ in named} <= {"formats/base/output.c"}, named
    assert {path for path, _ in lines_with(r"\\033|\\x1b|\\e\[", ours)} == {"formats/command/text_door.c"}
    assert lines_with(r"\b(stdout|stderr)\s*=", ours) == [("formats/command/text_door.c", "stdout = first, stderr = second;")]
    main = (ROOT / "bisect/cli/main.c").read_text()
    body = main[main.index("int main(") :]
    assert body.index("lb_text_door_open();") < body.index("(run, argc, argv)") and "print" not in body
    said = lines_with(r"fprintf\(stderr|\bputs\(|perror", sources("capture/calls", "capture/mpi", "capture/nccl"))
    assert said == [("capture/calls/shim_settings.c", 'fprintf(stderr, "lastbit: %s\\n", n ? line : "");')]


# The first keeps what the second let in.
FOREIGN = ["formats/foreign/checkpoint.c", "formats/foreign/foreign.c"]


def test_names_enter_by_one_gate():
    """A program's strings, and names of foreign tensors, are made in one place each."""
    assert {path for path, _ in lines_with(r"LB_TABLE_STRINGS, &", sources("formats", "capture", "replay", "bisect"))} == {
        "formats/program/program.c"
    }
    assert {path for path, _ in lines_with(r"\bstrings\[[^]]*\]\s*=[^=]", sources(*ROOMS))} == {
        "formats/program/program.c",
        "formats/program/program_codec.c",
    }
    assert [path for path, _ in lines_with(r"row->name = ", sources("formats/foreign"))] == FOREIGN
    own = lines_with(
        r"lb_program_string\((recorder->)?program, (?!\"|entry->(file|function|text|class_name)|text\)|kind|message)", sources("capture/recorder")
    )
    assert not own, "a name that a program gave: lb_program_name"


def test_a_terminal_gets_our_codes_and_nobody_elses(tmp_path):
    """Colours and bars are there, and an escape sequence in a name is none."""
    evil = tmp_path / "\x1b[31mevil\x1b]0;owned\x07.lbz"
    evil.write_bytes((ROOT / "samples/clean.lbz").read_bytes())
    env = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    env.pop("NO_COLOR", None)
    text = written_on_terminal([BUILD / "lastbit", "diff", evil, evil], env=env)
    assert "\x1b[32midentical\x1b[0m" in text
    rest = re.sub(r"\x1b\[(32|33|31|0)m", "", re.sub(r"\r[^\r\n]{0,80}(?=\r)|\r", "", text))
    assert not [c for c in rest if is_hidden(c) and c not in "\n\t"], rest


def test_what_is_cut_between_two_writes_is_one_character():
    """The streams are written in pieces; a character that ends in the next one is whole."""
    word = "é層\U0001f600" * 3000
    done = subprocess.run([BUILD / "lastbit", word], capture_output=True)
    assert done.returncode == 129 and word in done.stderr.decode()
    check_streams(done)
    done = subprocess.run([BUILD / "lastbit", b"\xff" * 5000 + b"\xc3"], capture_output=True)
    assert b"\\xff" * 5000 + b"\\xc3" in done.stderr
