"""Help: by command and by topic, on one screen each; versions; misuse."""
import re

import pytest

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
