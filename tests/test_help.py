"""Help: by command and by topic, on one screen each; versions; misuse. Colour, on a terminal alone."""

import os
import re
import subprocess

import pytest
from conftest import ROOT, written_on_terminal

COMMANDS = "record doctor ls show verify recover pack gather replay diff explain order bisect parity watch audit fingerprint report ranks".split()
TOPICS = ["selectors", "swaps", "tokens"]


def test_help_lists_commands_and_topics(lastbit):
    text = lastbit.run("help", expect=0).stdout
    for name in COMMANDS + TOPICS:
        assert re.search(rf"^  {name} +\w", text, re.M), name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_its_page_and_fits_a_screen(lastbit, command):
    text = lastbit.run("help", command, expect=0).stdout
    assert text == lastbit.run(command, "--help", expect=0).stdout
    assert text.startswith(f"usage: lastbit {command} ") and "  -h, --help " in text
    assert len(text.splitlines()) <= 65, len(text.splitlines())  # 60, and the fields of its JSON


@pytest.mark.parametrize("command", ["audit", "fingerprint"])
def test_a_command_that_reads_checkpoints_names_each_kind(lastbit, command):
    text = lastbit.run("help", command, expect=0).stdout
    assert [kind for kind in ("safetensors", "index", "distributed checkpoint", "torch.save", "GGUF") if kind not in text] == []


@pytest.mark.parametrize("topic", TOPICS)
def test_topics_fit_a_screen(lastbit, topic):
    text = lastbit.run("help", topic, expect=0).stdout
    assert len(text.splitlines()) <= 60 and max(map(len, text.splitlines())) <= 120


def test_pages_with_swaps_name_each_and_point_to_the_topics(lastbit):
    every = set(re.findall(r"^ +(--\w+)", lastbit.run("help", "swaps", expect=0).stdout, re.M))
    assert len(every) == 12 and "--fuse" in every
    for command in ("replay", "bisect"):
        text = lastbit.run(command, "--help", expect=0).stdout
        assert every <= set(re.findall(r"--\w+", text))
        assert "lastbit help swaps" in text and "lastbit help selectors" in text


def test_what_is_neither_command_nor_topic_is_misuse(lastbit):
    assert "no command and no topic `swap`" in lastbit.run("help", "swap", expect=129).stderr


def test_the_version_has_a_short_option(lastbit):
    assert lastbit.run("-V", expect=0).stdout == lastbit.run("--version", expect=0).stdout != ""


def test_options_with_a_short_name_alone_are_listed(lastbit):
    assert re.search(r"^  -n N +\w", lastbit.run("help", "order", expect=0).stdout, re.M)


def on_terminal(lastbit, *args, **environment):
    return written_on_terminal([lastbit.path, *map(str, args)], env={**os.environ, **environment}, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("args", [("diff", "clean.lbz", "dropped-term.lbz"), ("replay", "clean.lbz"), ("bisect", "-q", "clean.lbz")])
def test_verdicts_have_a_colour_on_a_terminal_alone(lastbit, args):
    args = [ROOT / "samples" / word if word.endswith(".lbz") else word for word in args]
    bare = lastbit.run(*args, env={**os.environ, "TERM": "xterm"}).stdout
    assert "\033" not in bare
    coloured = on_terminal(lastbit, *args, TERM="xterm", NO_COLOR="")

    def settled(text):  # a replay says how long it took
        return re.sub(r"in [0-9.]+ s$", "", text, flags=re.M)

    assert re.search(r"\033\[3\dm[a-z]+\033\[0m", coloured)
    assert settled(re.sub(r"\033\[\d+m", "", coloured)) == settled(bare)
    for environment in ({"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert settled(on_terminal(lastbit, *args, **environment)) == settled(bare)
    assert "\033" not in on_terminal(lastbit, args[0], "--json", *args[1:], TERM="xterm")


# ---- man pages, completions and the reference are the same tables


def options_of(text):
    """Options as a page of help lists them at the left."""
    return set(re.findall(r"(?:^ +|, )(--[\w-]+)", text, re.M))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_form_has_every_option(lastbit, command):
    page = lastbit.run("help", command, expect=0).stdout
    options = options_of(page)
    if "lastbit help swaps" in page:
        options |= options_of(lastbit.run("help", "swaps", expect=0).stdout)
    man = lastbit.run("help", "--man", command, expect=0).stdout.replace("\\-", "-")
    assert set(re.findall(r"\\fB(--[\w-]+)", man)) == options
    bash = re.search(rf"^    {command}\) options=\"(.*)\" ;;$", lastbit.run("help", "--complete", "bash", expect=0).stdout, re.M).group(1)
    assert {word for word in bash.split() if word.startswith("--")} == options
    fish = lastbit.run("help", "--complete", "fish", expect=0).stdout
    assert {f"--{name}" for name in re.findall(rf"seen_subcommand_from {command}'.* -l ([\w-]+)", fish)} == options
    markdown = lastbit.run("help", "--markdown", expect=0).stdout.split(f"\n## lastbit {command}\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(?:-\w, )?(--[\w-]+)", markdown, re.M)) == options
    zsh = lastbit.run("help", "--complete", "zsh", expect=0).stdout.split(f"\n    {command}) ")[1].split(" ;;\n")[0]
    assert set(re.findall(r"'\*(--[\w-]+)\[", zsh)) == options


def test_completions_are_programs_of_their_shells(lastbit, tmp_path):
    script = tmp_path / "lastbit"
    script.write_text(lastbit.run("help", "--complete", "bash", expect=0).stdout)
    ask = f"source {script}; COMP_WORDS=(lastbit parity --no); COMP_CWORD=2; _lastbit; echo ${{COMPREPLY[@]}}"
    assert subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split() == ["--noise"]
    first = f"source {script}; COMP_WORDS=(lastbit par); COMP_CWORD=1; _lastbit; echo ${{COMPREPLY[@]}}"
    assert subprocess.run(["bash", "-c", first], capture_output=True, text=True, check=True).stdout.split() == ["parity"]


def test_man_pages_lie_beside_the_build_and_name_every_command(lastbit):
    folder = lastbit.path.parent / "reference" / "man1"
    names = re.findall(r"^  (\w+) ", lastbit.run("--help", expect=0).stdout, re.M)
    assert {page.name for page in folder.iterdir()} == {"lastbit.1", *(f"lastbit-{name}.1" for name in names)}
    for page in folder.iterdir():
        text = page.read_text()
        assert text.startswith(".TH LASTBIT") and ".SH NAME" in text and not re.search(r"^'", text, re.M)


def test_unknown_forms_are_misuse(lastbit):
    for words in (["--man", "nothing"], ["--complete", "tcsh"], ["--complete"], ["--paper"]):
        assert "expected --man" in lastbit.run("help", *words, expect=129).stderr
