"""Names that strangers give, and how the gate for text spells them: written from include/lastbit/text.h, with Python's own tables of Unicode."""

import random
import re
import unicodedata

# Of Unicode's Default_Ignorable_Code_Point what is no control and no format character, the separators of lines, and a blank pattern of Braille.
INVISIBLE = {
    0x34F,
    0x115F,
    0x1160,
    0x17B4,
    0x17B5,
    *range(0x180B, 0x1810),
    0x2028,
    0x2029,
    0x2065,
    0x2800,
    0x3164,
    *range(0xFE00, 0xFE10),
    0xFFA0,
    *range(0xFFF0, 0xFFF9),
}
# Format characters that are seen: signs of Arabic, Syriac, Kaithi and of hieroglyphs, and shorthand.
SEEN = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13440)}


def is_hidden(character):
    code = ord(character)
    return (
        code in INVISIBLE or 0xE0000 <= code <= 0xE0FFF or 0x10FF00 <= code or (unicodedata.category(character) in ("Cc", "Cf") and code not in SEEN)
    )


def spelt(name):
    """The form of a name: of str, or of its bytes. Python's lone surrogates are the bytes that UTF-8 would have for them."""
    raw = name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")
    text, parts = raw.decode("utf-8", "surrogateescape"), []
    for i, character in enumerate(text):
        code = ord(character)
        if 0xDC80 <= code <= 0xDCFF:
            parts.append("\\x%02x" % (code - 0xDC00))
        elif code >= 0x10FF00:
            parts += ["\\x%02x" % byte for byte in character.encode()]
        elif is_hidden(character):
            parts.append("\\x%02x" % code if code < 0x80 else "\\u{%x}" % code)
        elif character == "\\" and re.match(r"x[0-9a-fA-F]{2}|u\{", text[i + 1 :]):
            parts.append("\\x5c")
        else:
            parts.append(character)
    return "".join(parts)


# Bytes of names, alone and in front of others.
PIECES = [
    b"weight",
    "größe".encode(),
    "層".encode(),
    b"\xff",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe4\xb8",
    b"\x1b[31m",
    b"\x1b]0;owned\x07",
    b"\x1b[2J\x1b[H",
    b"\nverdict: identical",
    b"\r",
    b"\t",
    b"\x08\x08",
    b"\x7f",
    "\x9b31m".encode(),
    "\x85".encode(),
    "\u202egnp.exe".encode(),
    "\u2066x\u2069".encode(),
    "\u200b".encode(),
    "\ufeff".encode(),
    "\u2028".encode(),
    "\U000e0041".encode(),
    "\U0010ff41".encode(),
    "\ufe0f".encode(),
    b"\\xff",
    b"\\x1b",
    b"\\u{202e}",
    b"\\",
    b'"',
    b"'",
    b"<b>",
    b"%s%n",
    b"$(reboot)",
    b"`x`",
]


def hostile_names(seed, count, *, nul=True, longest=0, text=False):
    """Different names of these pieces; `text`: as str, where bytes that are no UTF-8 are lone surrogates."""
    draw, names = random.Random(seed), []
    pieces = PIECES + ([b"\x00"] if nul else [])
    while len(names) < count:
        raw = b"".join(draw.choice(pieces) for _ in range(draw.randint(1, 4))) if len(names) >= len(pieces) else pieces[len(names)]
        if raw not in names:
            names.append(raw)
    if longest:
        names.append(b"long" + b"x" * longest + b"\xff")
    return [raw.decode("utf-8", "surrogateescape") for raw in names] if text else names


def check_streams(done):
    """What a command printed, as bytes: UTF-8, and nothing that a terminal would obey or could not show."""
    for stream, text in (("stdout", done.stdout), ("stderr", done.stderr)):
        wrong = [(i, c) for i, c in enumerate(text.decode("utf-8")) if is_hidden(c) and c not in "\n\t"]
        assert not wrong, (stream, wrong[:5], text[max(0, wrong[0][0] - 60) :][:120])


# Of the modules of tests/programs/hostile_names.py: PyTorch takes no name with a dot.
LAYERS = [name for name in hostile_names(7, 44, longest=700, text=True) if "." not in name]
BAD_LAYER = LAYERS[len(LAYERS) // 2]
