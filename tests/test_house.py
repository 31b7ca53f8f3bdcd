"""The house: names are those of their files, types have one definition, headers keep their macros, includes follow CMakeLists.txt, comments are whole."""

import re
import subprocess

from conftest import ROOT

AREAS = ("include", "formats", "capture", "replay", "bisect")
# Code that is included once for each element type or instruction set: its macros are its parameters.
TEMPLATES = re.compile(r"(_real|_template|_kernel|matmul_transpose)\.h$")
# json_text.h stands in jansson's place, cuda_abi.h and nccl_abi.h say what other people's headers do.
FOREIGN_MACROS = ("include/lastbit/json_text.h", "capture/cuda/cuda_abi.h", "capture/nccl/nccl_abi.h")
# Functions that are the vocabulary of the whole tree, by the file that defines them: nobody looks for `lb_exp` under another name.
VOCABULARY = {
    "formats/base/error.c": r"lb_(fail|err_\w+)",
    "formats/numbers/cast.c": r"lb_(convert|convert_strided|(to|from)_f64|(load|store)_f(32|64)_strided)",
    "formats/numbers/conversion.c": r"lb_(load|store)_f(32|64)",
    "replay/functions/elementary.c": r"lb_(cos|erfc?|exp2?|expm1|log(10|1p|2)?|pow|sigmoid|sin|softplus|tanh)(_f32|_f64)?",
}
# Words that went, and what says it better.
RETIRED = {
    r"\blb_knowns?\b|\blb_known_(?!checkpoints)": "tracked",
    r"\blb_seen\b|\blb_seen_of": "host_tensor",
    r"\blb_standing\b": "op_site",
    r"\blb_(late|loose|coming)\b|\blb_coming_": "unmeasured, unclassified, in_flight",
    r"\blb_monitor\b|\blb_monitor_": "failure_monitor",
    r"\blb_finder\b|\blb_finder_": "region_finder",
    r"\blb_gaps\b|\blb_gaps_": "output_distance",
    r"\blb_(books|walk|findings)_": "communicator_registry, diff_walk, explain_findings",
    r"recorder->(spool|backlog|late|loose|coming|beside)\b": "write_queue, measure_queue, unmeasured, unclassified, in_flight, async",
    r"\bmeetings\b(?!\W*\")": "collective_matches",
    r"\blb_report_(badness|worse)\b": "lb_verdict_severity, lb_verdict_worse",
}
# What comments said, and what to say.
THINGS = "bits?|numbers|shapes?|sizes?|dtypes?|parts|rows|ops|experts|tokens|layouts?|types?|arguments|elements|values"
RIDDLES = {
    r"\b(nobody|whoever|somebody|anybody)\b": "say who, or which file",
    r"\bheld against\b": "compared with",
    r"\b(made|cut|held?|holds|chosen|chose|called|written|masked|computed|split|pad) otherwise\b": "differently",
    rf"\b(has|have|had|with|in|into|holds?|gives?|gave|takes?|computes?|drew|received|brought|gets?) other ({THINGS})\b": "different",
}
COLUMNS = 120
DRAWN = re.compile("[─▶▼│┬┴├┤└┘┌┐╬╠═║╗╝]")


def tracked(*patterns):
    return subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def sources(kinds="ch"):
    return [path for path in tracked(*(f"{area}/**/*.[{kinds}]" for area in AREAS)) if path.startswith(AREAS)]


def code_of(path):
    """Its text with comments and literals blanked, line by line."""
    text = (ROOT / path).read_text()
    blank = lambda match: "\n" * match[0].count("\n")  # noqa: E731
    text = re.sub(r"/\*.*?\*/", blank, text, flags=re.S)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)


CODE = {path: code_of(path) for path in sources()}


def stem(path):
    return path.rsplit("/", 1)[-1].rsplit(".", 1)[0]


def words(name):
    return [word for word in name.split("_") if word]


def alike(a, b):
    """One word in two inflections: `align` and `alignment`, `matrix` and `matrices`, `step` and `steps`."""
    short = min(len(a), len(b))
    return a[:5] == b[:5] if short >= 5 else a.rstrip("s") == b.rstrip("s") or (short >= 3 and (a.startswith(b) or b.startswith(a)))


def share_a_word(name, stems):
    return any(alike(word, part) for word in words(name) for whole in stems for part in words(whole))


def declared():
    """The headers that declare a function."""
    found = {}
    for path, code in CODE.items():
        if path.endswith(".h"):
            for name in re.findall(r"\b(lb_\w+)\s*\(", code):
                found.setdefault(name, set()).add(path)
    return found


def defined():
    """(function, its .c file) of all that is not static."""
    for path, code in CODE.items():
        if path.endswith(".c"):
            for match in re.finditer(r"^(?!static\b|typedef\b|return\b)[a-zA-Z_][\w \t*]*?\b(lb_\w+)\([^;{}]*\)\s*\n\{", code, re.M):
                yield match[1], path


def types():
    """type -> the files that define it."""
    found = {}
    for path, code in CODE.items():
        names = re.findall(r"^(?:typedef )?(?:struct|union|enum)\s+(lb_\w+)\s*\{", code, re.M) + re.findall(r"^\}\s*(lb_\w+);", code, re.M)
        for name in names:
            found.setdefault(name, set()).add(path)
    return found


def begins_with_a_word(name, path, homes):
    """The first word is one of its files' names, or one of its room's and the second word is."""
    first, *rest = words(name[3:])
    stems = [stem(home) for home in homes]
    return share_a_word(first, stems) or (bool(rest) and first == path.rsplit("/", 2)[1] and share_a_word(rest[0], stems))


def test_a_function_begins_with_a_word_of_its_file():
    """… of the .c file that defines it or of a header that declares it, or with a type that the header defines. In a public header any word will do."""
    headers, owners = declared(), types()
    for path, code in CODE.items():
        for name in re.findall(r"^typedef struct (lb_\w+) \1;", code, re.M):
            owners.setdefault(name, set()).add(path)  # one whose inside is private
    functions = list(defined())
    assert len(functions) > 2000
    strays = []
    for name, path in functions:
        if path in VOCABULARY and re.fullmatch(VOCABULARY[path], name):
            continue
        mine = headers.get(name, set())
        public = [header for header in mine if header.startswith("include/")]
        of_type = any(
            name == kind or name.startswith(kind + "_") or name.startswith(kind + "s_")
            for kind, homes in owners.items()
            for header in mine
            if header in homes
        )
        homes = [path, *mine]
        named = share_a_word(name[3:], [stem(home) for home in homes]) if public else begins_with_a_word(name, path, homes)
        if not of_type and not named:
            strays.append(f"{path}: {name}")
    assert not strays, "\n".join(strays)


def test_a_type_is_defined_once():
    twice = {name: sorted(homes) for name, homes in types().items() if len(homes) > 1}
    assert not twice, twice


def test_no_macro_leaves_a_header_without_prefix():
    loose = []
    for path in CODE:
        if path.endswith(".h") and not TEMPLATES.search(path) and path not in FOREIGN_MACROS:
            ended = set(re.findall(r"^\s*#\s*undef (\w+)", CODE[path], re.M))
            names = re.findall(r"^\s*#\s*define (\w+)", CODE[path], re.M)
            loose += [f"{path}: {name}" for name in names if not re.match(r"LB_|LASTBIT_|_|lb_|PY_SSIZE_T_CLEAN", name) and name not in ended]
    assert not loose, "\n".join(loose)


def test_names_of_states_are_taken_apart_in_one_place():
    """ "optimizer.exp_avg:up.weight": program/state_name.h knows what stands where."""
    apart = [
        f"{path}: {call[0]}"
        for path in sources()
        if not path.endswith("/state_name.h")
        for call in re.findall(r'(strn?n?cmp\([^;]*"optimizer\.)|(= "optimizer\.")', (ROOT / path).read_text())
    ]
    assert not apart, "\n".join(apart)


def test_what_an_op_is_is_read_off_its_name_in_one_place():
    """Casts, ops over lists and the scaler's op are known by include/lastbit/program.h; others ask there."""
    names = r'"aten::_to_copy"|"aten::_foreach_"|"_foreach_"|_amp_foreach_non_finite_check'
    own = [
        f"{path}: {call.strip()}"
        for path in sources()
        if not path.endswith(("/program_ops.c", "/op_table.c"))
        for call in re.findall(rf"str(?:n?cmp|str)\((?:lb_op_name|name)[^;]*?(?:{names})[^;]*", (ROOT / path).read_text())
    ]
    assert not own, "\n".join(own)


def test_initialisers_name_what_they_set():
    """A row of zeros and NULLs says nothing, and a new field in the middle of a struct would shift it."""
    found = []
    for path in sources("h"):
        for name, values in re.findall(r"# *define (LB_\w+_INIT)\s+(?:\\\s+)?(\{.*?\})\s*(?:/\*.*)?$", (ROOT / path).read_text(), re.M | re.S):
            found.append((path, name, values))
    assert len(found) > 20
    unnamed = [f"{path}: {name}" for path, name, values in found if values.count(",") > 3 and not values.startswith("{.")]
    assert not unnamed, "\n".join(unnamed)


def test_words_that_went_stay_away():
    found = [
        f"{path}: {match[0]}: {better}"
        for path, code in CODE.items()
        for word, better in RETIRED.items()
        for match in [re.search(word, code)]
        if match
    ]
    assert not found, "\n".join(found)


def test_texts_are_printed_whole():
    """open_memstream forgets that memory ran out, and gives a text that is cut: lb_text_stream_open gives none."""
    assert not [
        path for path, code in CODE.items() if "open_memstream" in re.sub(r"/\*.*?\*/", "", code, flags=re.S) and not path.startswith("tests/")
    ]


def comments(path):
    """(line, text) of its comments, each as one line of words."""
    text = (ROOT / path).read_text()
    for match in re.finditer(r"/\*.*?\*/", text, re.S):
        yield text.count("\n", 0, match.start()) + 1, " ".join(re.sub(r"\n\s*\*", "\n", match[0]).split())


def paragraphs(path):
    """(line, text) of a document, each paragraph as one line of words."""
    text = (ROOT / path).read_text()
    for match in re.finditer(r"(?:.+\n)+", text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())


def test_comments_and_readmes_speak_plainly():
    """They say who does what, and "different" where they mean it."""
    read = [(path, comments(path)) for path in sources()] + [(path, paragraphs(path)) for path in tracked("*README.md", "include/*.md")]
    assert len(read) > 1400
    found = [
        f"{path}:{line}: {match[0]}: {better}"
        for path, texts in read
        for line, text in texts
        for riddle, better in RIDDLES.items()
        for match in re.finditer(riddle, text, re.I)
    ]
    assert not found, "\n".join(found)


def test_comments_of_headers_are_found():
    assert sum(1 for path in sources("h") for _ in comments(path)) > 4000


def test_declarations_are_whole():
    """A type and the names it declares stand on one line; what is to be said of it, above."""
    torn = []
    broken = r"^(LB_API [\w ]+\*?| +(?:const |struct |unsigned )*\w+ \**\w+(?:, \**\w+)*,| +\w[\w *]*\(\*\w+(?:\[\w+\])?\)) *\n( +[^\s()][^()]*|lb_\w+\(.*);"
    for path in CODE:
        if path.endswith(".h"):
            torn += [f"{path}: {match[0].strip()}" for match in re.finditer(broken, CODE[path], re.M)]
        lines = CODE[path].split("\n")
        for number, (first, second) in enumerate(zip(lines, lines[1:]), 1):
            if re.match(r"^ +(?!return\b|else\b|do\b|case\b|goto\b)(?:const |struct |unsigned )*\w+(?: \w+)* ?\**$", first) and re.match(
                r"^ +(\**\w+|\[\w+\]);", second
            ):
                if not re.match(r"^ +\w+$", first) or re.match(r"^ +(bool|char|int|double|float|\w+_t|lb_\w+)$", first):
                    torn.append(f"{path}:{number}: {first.strip()} {second.strip()}")
    assert not torn, "\n".join(torn)


# Rooms whose messages break where a clause ends, and whose definitions speak their headers' words; the other rooms of bisect/pairs do not yet.
SPOKEN = (
    *("capture/", "formats/", "replay/", "bisect/cli/", "bisect/failures/", "bisect/inspection/", "bisect/shell/"),
    *(f"bisect/pairs/{room}/" for room in ("compare", "contents", "exchanges", "joined", "parity", "rank_pairs", "subprogram")),
)
CLAUSE = re.compile(r"(\\n|[.;:,!?)\]] ?)$")


def texts_in_parts(path):
    """(line, parts) of the string literals of a file that stand on several lines and say something; a list of names does not."""
    text = (ROOT / path).read_text()
    code = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*\n\s*"(?:[^"\\\n]|\\.)*")+', code):
        parts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', match[0])
        if len(re.findall(r"\b(?:a|the|of|is|are|to|and|in|that|it|not|or|with|by|from|what|each|this)\b", "".join(parts))) > 1:
            yield code.count("\n", 0, match.start()) + 1, parts


def test_messages_are_broken_where_a_clause_ends():
    """Who looks for a message in the code types a clause of it, and finds it on one line."""
    every = [(path, line, parts) for path in sources() if path.startswith(SPOKEN) for line, parts in texts_in_parts(path)]
    assert len(every) > 100
    torn = [
        f"{path}:{line}: {part}"
        for path, line, parts in every
        for part, after in zip(parts, parts[1:])
        if not CLAUSE.search(part) and not after.startswith("(")
    ]
    assert not torn, "\n".join(torn)


def parameters(text):
    """The names in a list of parameters; None for a function's pointer."""
    depth, names = 0, [""]
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        names = [*names, ""] if letter == "," and not depth else [*names[:-1], names[-1] + letter]
    ends = [re.search(r"\w\W*\b(\w+)(?:\[[^\]]*\])*$", " ".join(name.split())) for name in names]
    return [end[1] if end and "(" not in name else None for end, name in zip(ends, names)]


# Where a local has the header's word: what becomes `*out`, and the complete copy of the options that were given.
PLACES = {"out", "given"}
LIST = r"\(((?:[^(){};]|\((?:[^()]|\([^()]*\))*\))*)\)"


def test_a_definition_names_its_parameters_as_its_header_does():
    """What a header says of `session` is true of `session` in the code."""
    said = {}
    for path, code in CODE.items():
        if path.endswith(".h"):
            for match in re.finditer(rf"^(?!return\b)[a-zA-Z_][\w \t*]*?\b(lb_\w+){LIST};", code, re.M):
                said.setdefault(match[1], parameters(match[2]))
    differ, seen = [], 0
    for path, code in CODE.items():
        if not path.endswith(".c") or not path.startswith(SPOKEN):
            continue
        for match in re.finditer(rf"^(?!static\b|typedef\b|return\b)[a-zA-Z_][\w \t*]*?\b(lb_\w+){LIST}\s*\n\{{", code, re.M):
            seen += match[1] in said
            for mine, header in zip(parameters(match[2]), said.get(match[1], [])):
                if mine != header and mine not in PLACES:
                    differ.append(f"{path}: {match[1]}: {mine}, in its header {header}")
    assert seen > 1000
    assert not differ, "\n".join(differ)


# Rooms in which letters that live longer than ten lines are left, and how many at most: a limit that only falls. Elsewhere each has a word.
LETTERS_LEFT = {
    **{f"bisect/pairs/{room}/": n for room, n in {"contents": 45, "counterparts": 90, "exact": 70, "explain": 12, "implementations": 130}.items()},
    **{
        f"replay/{room}/": n  # mostly those of formulas: q, k, v, g for a gradient
        for room, n in {"algebra": 18, "composites": 11, "fused": 42, "kernel": 14, "ops": 43, "orders": 4, "sequence": 53}.items()
    },
}
# Indices and counts, numbers of a formula, two of one kind.
LETTERS = set("ijknxyab")


def functions(code):
    """(line of its body, name, parameters, lines of its body) of each function."""
    for match in re.finditer(r"^([^\s#/}].*(?:\n[^\n{}#]+)*)\n\{\n((?:(?!\}).*\n)*)\}", code, re.M):
        head = re.search(r"\b(\w+)\((.*)\)\s*$", match[1].replace("\n", " "))
        if head:
            yield code.count("\n", 0, match.start(2)) + 1, head[1], parameters(head[2]), match[2].split("\n")


def long_letters(body):
    """(line, letter) of locals of one letter that are used more than ten lines below their declaration."""
    for number, line in enumerate(body):
        declared = re.match(r"( +)(for \()?(?:const |unsigned |struct |static )*([a-zA-Z_]\w*)\s+([^;]*)", line)
        if not declared or declared[3] in ("return", "goto", "else", "case", "if", "while", "do", "switch"):
            continue
        indent, own_block = len(declared[1]), bool(declared[2])
        for letter in re.findall(r"(?:^|,\s*)\**([a-z])(?=\s*(?:=|,|\[|$))", declared[4]):
            for later, text in enumerate(body[number + 1 :], number + 1):
                depth = len(text) - len(text.lstrip())
                if text.strip() and (depth < indent or (own_block and depth == indent)):
                    break
                if later > number + 10 and re.search(rf"(?<![\w.>]){letter}\b(?!\s*\()", text):
                    yield number, letter
                    break


def test_what_lives_long_has_a_word():
    """A reader who comes upon `s` in the middle of a function has to go up for what it is."""
    letters, left, seen = [], dict.fromkeys(LETTERS_LEFT, 0), 0
    for path, code in CODE.items():
        if not path.endswith(".c"):
            continue
        room = path.rsplit("/", 1)[0] + "/"
        for line, name, given, body in functions(code):
            seen += 1
            short = [(0, word) for word in given if word and len(word) == 1 and len(body) > 11]
            found = [f"{path}:{line + at}: {name}: {letter}" for at, letter in [*short, *long_letters(body)] if letter not in LETTERS]
            if room in left:
                left[room] += len(found)
            else:
                letters += found
    assert seen > 9000
    assert not letters, "\n".join(letters)
    assert not [f"{room}: {left[room]} letters, at most {most}" for room, most in LETTERS_LEFT.items() if left[room] > most]


def test_lines_have_120_columns():
    """Drawings, and tables that the formatter is told to leave alone, are as wide as they are."""
    wide = []
    for path in sources() + tracked("tests/**/*.[ch]"):
        table = False
        for number, line in enumerate((ROOT / path).read_text().split("\n"), 1):
            table = (table or "clang-format off" in line) and "clang-format on" not in line
            if len(line) > COLUMNS and not table and not DRAWN.search(line) and not re.search(r"\S {3,}\S", line):
                wide.append(f"{path}:{number}: {len(line)}")
    assert not wide, "\n".join(wide)


# Tests of what many rooms do together: power cuts and kills, faults to order.
ACROSS = ("tests/bisect/faults", "tests/capture/crashes")


def test_tests_stand_in_the_folder_of_their_room():
    """tests/AREA/ROOM tests AREA/ROOM, which has sources of its own; a folder that has nothing but rooms has no tests beside theirs."""
    homes = {path.rsplit("/", 1)[0] for path in tracked(*(f"{area}/*.{kind}" for area in AREAS for kind in ("c", "h", "py", "cu")))}
    found = [path for path in tracked(*(f"tests/{area}/*" for area in AREAS)) if re.search(r"/(test|make|bench)_\w+\.(c|py)$", path)]
    assert len(found) > 380
    strays = [path for path in found if not path.startswith(ACROSS) and path.removeprefix("tests/").rsplit("/", 1)[0] not in homes]
    assert not strays, "\n".join(strays)


def rooms():
    """(library, room) -> (path, rooms that it uses), from CMakeLists.txt."""
    built, found = (ROOT / "CMakeLists.txt").read_text(), {}
    for library in AREAS[1:]:
        block = re.search(rf"lastbit_library\(lb_{library} {library}\n(.*?)\n  LINKS", built, re.S).group(1)
        for room, uses in re.findall(r'"([\w/]+): ?([^"]*)"', block):
            named = {tuple(use.split("/")) if "/" in use else (library, use) for use in uses.split()}
            found[library, room.rsplit("/", 1)[-1]] = (f"{library}/{room}", named)
    return found


def test_includes_follow_the_rows():
    """A room includes its own headers, those of the rooms in its row, and public ones; each include names the room."""
    all_rooms, wrong = rooms(), []
    assert len(all_rooms) > 50
    for (library, room), (folder, uses) in all_rooms.items():
        for path in CODE:
            if path.rsplit("/", 1)[0] != folder:
                continue
            for include in re.findall(r'#include "([^"]+)"', (ROOT / path).read_text()):
                home, _, name = include.rpartition("/")
                owners = [key for key, (place, _) in all_rooms.items() if key[1] == home and (ROOT / place / name).exists()]
                if not any(owner == (library, room) or owner in uses for owner in owners):
                    wrong.append(f"{path}: {include}")
    assert not wrong, "\n".join(wrong)


def test_rows_say_no_more_than_is_used():
    """A room in a row is included, or a public function that it defines is called."""
    all_rooms = rooms()
    homes = dict(defined())
    idle = []
    for (library, room), (folder, uses) in all_rooms.items():
        files = [path for path in CODE if path.rsplit("/", 1)[0] == folder]
        included = {include.rpartition("/")[0] for path in files for include in re.findall(r'#include "([^"]+)"', (ROOT / path).read_text())}
        called = {homes[name].rsplit("/", 1)[0] for path in files for name in set(re.findall(r"\blb_\w+", CODE[path])) if name in homes}
        if folder == "replay/ops":  # its table gathers the rows of these, which are data
            called |= {"replay/algebra", "replay/sequence", "replay/sparse"}
        idle += [f"{folder}: {use}" for use in uses if use[1] not in included and all_rooms[use][0] not in called]
    assert not idle, "\n".join(idle)
