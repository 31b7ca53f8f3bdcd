"""Answers of the commands as objects: `diff`, `bisect` and `replay` run `lastbit COMMAND --json` and hand back what it
prints, whose fields include/lastbit/schema describes.

The command is a process of its own: an interrupt ends it, it uses all cores without holding this interpreter, and what
it does to memory it does to itself.
"""

import json
import os
import subprocess
from typing import Any, Dict, Iterator, List, Mapping, Protocol, Sequence, Tuple, Union

from .. import library_path
from .layout import Error


class Located(Protocol):
    """A Capture, or what else knows where it lies."""

    location: str


Path = Union[str, "os.PathLike[str]"]
Side = Union[Path, Located]
Word = Union[str, int, float, "os.PathLike[str]", Located]
Option = Union[None, bool, Word, Sequence[Word]]


class Answer(Mapping[str, Any]):
    """A JSON object, read-only: `answer.first.layer` is `answer["first"]["layer"]`. Objects in it are Answers, arrays
    are tuples, null is None. A field that a Mapping has by itself (`keys`, `items`) or that is a word of Python
    (`from`) is read by its name in brackets. `answer.exit_code` is the command's: 0 same or clean, 1 different or found,
    125 cannot be told; only of the answer itself, not of objects in it."""

    __slots__ = ("_fields", "exit_code")
    _fields: Dict[str, Any]
    exit_code: int

    def __init__(self, fields: Mapping[str, Any], exit_code: int = 0) -> None:
        object.__setattr__(self, "_fields", {name: _frozen(field) for name, field in fields.items()})
        object.__setattr__(self, "exit_code", exit_code)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._fields:
            return self._fields[name]
        raise AttributeError("the answer has no field %r; it has %s" % (name, ", ".join(self._fields) if not name.startswith("_") else "…"))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an answer cannot be changed; json.loads(str(answer)) is a copy that can")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __dir__(self) -> List[str]:
        return sorted({*super().__dir__(), *(name for name in self._fields if name.isidentifier())})

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> Tuple[Any, ...]:
        return Answer, (self._fields, self.exit_code)

    def __str__(self) -> str:
        """The JSON text."""
        return json.dumps(self, default=dict, ensure_ascii=False, sort_keys=True)

    def __repr__(self) -> str:
        return "Answer(%s)" % ", ".join("%s=%r" % field for field in self._fields.items())


def _frozen(field: Any) -> Any:
    if isinstance(field, dict):
        return Answer(field)
    return tuple(map(_frozen, field)) if isinstance(field, (list, tuple)) else field


def _command() -> str:
    """The program `lastbit` of the library's build or prefix."""
    folder = os.path.dirname(library_path("liblastbit.so"))
    places = [os.path.join(folder, *name) for name in (("lastbit",), ("bin", "lastbit"), ("..", "bin", "lastbit"), ("..", "..", "bin", "lastbit"))]
    for path in places:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise OSError("the program lastbit is not found beside %s or in its prefix; install it from the same build" % folder)


def _word(word: Any) -> str:
    text = os.fspath(getattr(word, "location", word) if not isinstance(word, (int, float)) else str(word))
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if "\0" in text:
        raise Error("%r holds a NUL character, which no path and no option has" % text)
    return str(text)


def _side(side: Any) -> str:
    if isinstance(side, (int, float)) or not hasattr(side, "location") and not isinstance(side, (str, bytes, os.PathLike)):
        raise TypeError("a capture or its path is expected, not %r" % (side,))
    text = _word(side)
    return os.path.join(".", text) if text.startswith("-") else text


def _options(options: Mapping[str, Option]) -> List[str]:
    words = []
    for name, option in options.items():
        many = option if isinstance(option, (list, tuple)) else [option]
        for one in many:
            if one is None or one is False:
                continue
            words.append("--" + name.strip("_").replace("_", "-"))
            if one is not True:
                words[-1] += "=" + _word(one)
    return words


# The command's exit codes that are not an answer.
_STATUS = {125: "LB_ERR_NOT_CAPTURED", 129: "LB_ERR_INVALID"}


def ask(command: str, sides: Sequence[Any], options: Mapping[str, Option]) -> Answer:
    """`lastbit COMMAND --json --OPTION=… SIDES`, as an object. Raises Error where the command prints no answer."""
    try:
        program = _command()
    except OSError as error:
        raise Error(str(error), "LB_ERR_NOT_FOUND") from None
    words = [program, command, "--json", *_options(options), *map(_side, sides)]
    # A trainer that torchrun started asks for itself: the others need not ask the same, and each wants the answer.
    alone = {**os.environ, "LASTBIT_PARTS": "off"}
    child = subprocess.Popen(words, env=alone, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        printed, said = child.communicate()
    except BaseException:  # an interrupt: the command must not go on behind it
        child.kill()
        child.communicate()
        raise
    try:
        answer = json.loads(printed)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and child.returncode in (0, 1, 125):
        return Answer(answer, child.returncode)
    message = said.decode("utf-8", "replace").strip()
    if child.returncode < 0:
        message = "%s was ended by signal %d %s" % (" ".join(words), -child.returncode, message)
    message = message or "%s ended with %d" % (" ".join(words), child.returncode)
    raise Error(message, _STATUS.get(child.returncode, ""), child.returncode)


def diff(first: Side, second: Side, **options: Option) -> Answer:
    """Where two captures (or their paths) part, and whether that is rounding or a bug.

        answer = lastbit.diff("good.lb", "bad.lb")
        print(answer.verdict, answer.first and answer.first.layer)

    Options are those of `lastbit diff`: `steps="2-4"`, `map=["s/a/b/", …]`, `exact=True` (`--exact`). The fields are
    those of schema/diff.json. Raises Error (a file is missing or damaged, an unknown option)."""
    return ask("diff", [first, second], options)


def bisect(capture: Side, **options: Option) -> Answer:
    """Which single change cures the window that fails.

        answer = lastbit.bisect("run.lb")
        print(answer.outcome, answer.culprit and answer.culprit.layer)

    Options are those of `lastbit bisect`: `against="good.lb"`, `steps="1-3"`, `output="smallest.lb"`. The fields are those
    of schema/bisect.json. Raises Error."""
    return ask("bisect", [capture], options)


def replay(capture: Side, **options: Option) -> Answer:
    """The recorded steps executed again, as they were or under swaps.

        answer = lastbit.replay("run.lb", mode="chained", precision="layer=mlp=f32")
        print(answer.bitwise, "of", answer.ops.total)

    Options are those of `lastbit replay`; a list gives an option several times. The fields are those of
    schema/replay.json. Raises Error."""
    return ask("replay", [capture], options)
