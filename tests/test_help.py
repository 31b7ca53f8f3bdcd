"""Help: by command and by topic, on one screen each; versions; misuse. Colour, on a terminal alone."""

import os
import pty
import re
import subprocess

import pytest
from conftest import ROOT

COMMANDS = "record doctor ls show verify recover pack replay diff explain order bisect".split()
TOPICS = ["selectors", "swaps"]


def test_help_lists_commands_and_topics(lastbit):
    text = lastbit.run("help", expect=0).stdout
    for name in COMMANDS + TOPICS:
        assert re.search(rf"^  {name} +\w", text, re.M), name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_its_page_and_fits_a_screen(lastbit, command):
    text = lastbit.run("help", command, expect=0).stdout
    assert text == lastbit.run(command, "--help", expect=0).stdout
    assert text.startswith(f"usage: lastbit {command} ") and "  -h, --help " in text
    assert len(text.splitlines()) <= 60, len(text.splitlines())


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
    ours, theirs = pty.openpty()
    process = subprocess.Popen([lastbit.path, *map(str, args)], stdout=theirs, stderr=subprocess.DEVNULL, env={**os.environ, **environment})
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 65536):
            text += piece
    except OSError:  # the other end is closed
        pass
    process.wait()
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


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
