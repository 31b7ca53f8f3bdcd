"""Words that a tired reader would have to guess at stand in no message, caption or page of help."""

import re

from conftest import ROOT

# What was said, and what to say.
RIDDLES = {
    r"\bnobody\b": "say what is unknown, or who does not do it",
    r"\bwhoever\b": "say who",
    r"\bhindsight\b": "afterwards",
    r"\bheld against\b": "compared with",
    r"\b(was|were|is still|still) out\b(?! of)": "out of its usual range",
    r"\b(made|chosen|cut|called|written) otherwise\b": "differently",
    r"\bother(wise)? as it is\b": "say which differs",
    r"\bnoop\b": "does nothing",
    r"(?<!here )\bis no (?!longer\b|bound\b)": "is not a",
    r"\b(somebody|anybody)\b": "say who",
    r"\bthat are none\b": "say what is wrong with them",
}
# Values of JSON fields keep their words: other programs read them.
VALUES = {'"noop"'}


def texts():
    """String literals of the C code, with those that the formatter cut put together, and of the page."""
    for path in sorted(ROOT.glob("*/**/*.[ch]")):
        area = path.relative_to(ROOT).parts[0]
        if area not in ("bisect", "capture", "formats", "replay"):
            continue
        code = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.S)
        for match in re.finditer(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+', code):
            yield path, re.sub(r'"\s*"', "", match.group())
    for path in sorted((ROOT / "bisect" / "inspection" / "report" / "page").glob("*.js")):
        code = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.S)
        for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`', code):
            yield path, match.group()


def test_no_text_is_a_riddle():
    found = [
        f"{path.relative_to(ROOT)}: {text[:90]}: {better}"
        for path, text in texts()
        for riddle, better in RIDDLES.items()
        if re.search(riddle, text) and text.strip() not in VALUES
    ]
    assert not found, "\n".join(found)


def test_texts_are_found():
    """The check above looks at what it should: a message that the formatter cut, and a caption of the page."""
    every = [text for _, text in texts()]
    assert any("missing, unreadable" in text or "no step was found: is it a log of training? --format" in text for text in every)
    assert any("Every token, both sides" in text for text in every)
