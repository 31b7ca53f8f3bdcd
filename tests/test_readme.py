"""The documents tell the truth: every source file is listed once, commands and options exist, printed output is what comes out, paths are there."""

import re
import subprocess

from conftest import BUILD, ROOT

TEXT = (ROOT / "README.md").read_text()
FOLDERS = ["include/lastbit", "formats", "capture", "replay", "bisect"]


def tracked(*folders):
    return subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def sources():
    return {path for path in tracked(*FOLDERS) if re.search(r"\.(c|h|cuh?|py)$", path)}


ROOMS = sorted(path.parent for folder in FOLDERS[1:] for path in (ROOT / folder).glob("**/README.md"))
PUBLIC = ROOT / "include" / "lastbit"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "include" / "ARCHITECTURE.md",
    ROOT / ".github" / "CONTRIBUTING.md",
    *(room / "README.md" for room in [PUBLIC, *ROOMS]),
]


def rows(text):
    """An indented list as (names, description)."""
    for line in re.findall(r"^    (\S.*)$", text, re.M):
        names, _, description = re.match(r"(.+?)(\s{2,}|$)(.*)", line.strip()).groups()
        yield names.split(), description


def listed(folder, text):
    """Paths that an indented list names: `a.{h,c}` is two files, `op_*.c` a family."""
    for names, _ in rows(text):
        for word in names:
            both = re.fullmatch(r"(.+)\.\{h,c\}", word)
            yield from [f"{folder}/{both.group(1)}.h", f"{folder}/{both.group(1)}.c"] if both else [f"{folder}/{word}"]


def mapped():
    """The README of each room lists its files, that of include/lastbit the public headers."""
    return [path for room in [PUBLIC, *ROOMS] for path in listed(room.relative_to(ROOT), (room / "README.md").read_text())]


def rooms_built(library):
    """{"pairs/diff": the rooms that it uses} of a library, in the order of CMakeLists.txt."""
    built = (ROOT / "CMakeLists.txt").read_text()
    block = re.search(rf"lastbit_library\(lb_{library} {library}\n(.*?)\n  LINKS", built, re.S).group(1)
    return {room: uses.split() for room, uses in re.findall(r'"([\w/]+): ?([^"]*)"', block)}


def test_every_source_file_is_listed_once():
    families = [path for path in mapped() if "*" in path]
    names = [path for path in mapped() if "*" not in path]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
    missing = {path for path in sources() - set(names) if not any(re.fullmatch(f.replace("*", "[a-z_]+"), path) for f in families)}
    assert not missing, f"in no README: {sorted(missing)}"
    assert not set(names) - sources(), f"a README names what is not there: {sorted(set(names) - sources())}"


def test_every_listed_file_is_described():
    for room in [PUBLIC, *ROOMS]:
        bare = [names for names, description in rows((room / "README.md").read_text()) if not description]
        assert not bare, f"{room.relative_to(ROOT)}/README.md does not describe {bare}"


def rooms_of_map(library):
    """The rooms of a library as README's map has them; a house holds rooms and is none."""
    section = re.search(rf"^    {library}/ .*\n((?:      .*\n)+)", TEXT, re.M).group(1)
    rooms, house = [], ""
    for indent, name in re.findall(r"^      ( *)(\w+)/ ", section, re.M):
        if not indent:
            house = name if not (ROOT / library / name / "README.md").exists() else ""
        if indent or not house:
            rooms.append(f"{house}/{name}" if indent else name)
    return rooms


def test_every_room_is_in_the_map_and_in_the_build():
    """… in the same order; `cli`, `command`, the Python package and the libraries beneath NCCL and MPI are built by other rules."""
    for folder in FOLDERS[1:]:
        rooms = rooms_of_map(folder)
        assert sorted(rooms) == sorted(str(room.relative_to(ROOT / folder)) for room in ROOMS if ROOT / folder in room.parents)
        assert sorted(rooms_built(folder)) == sorted(room for room in rooms if room not in ("calls", "cli", "command", "lastbit", "mpi", "nccl")), (
            folder
        )


def test_every_room_says_what_it_uses():
    for library in FOLDERS[1:]:
        for room, uses in rooms_built(library).items():
            text = " ".join((ROOT / library / room / "README.md").read_text().split())
            names = [f"`{use}`" for use in uses]
            said = "It uses " + (", ".join(names[:-1]) + " and " if names[1:] else "") + names[-1] + "." if names else "It uses no other room"
            assert said in text, f"{library}/{room}/README.md does not say: {said}"


def test_no_folder_holds_more_than_fifty_sources():
    folders = [path.rsplit("/", 1)[0] for path in sources()]
    assert max((folders.count(folder), folder) for folder in set(folders))[0] <= 50


def test_the_readme_is_short():
    text, tree = TEXT.split("## The source tree")
    assert len(text.splitlines()) <= 90
    assert len(tree.splitlines()) <= 90


def test_limits_are_lists():
    """No paragraph of a document is longer than a reader takes in at once: what says more is a list, or has a heading."""
    long = []
    for document in DOCUMENTS:
        for match in re.finditer(r"(?:^(?![ \-#|>`]).+\n)+", document.read_text(), re.M):
            if match[0].count("\n") > 10:
                long.append(f"{document.relative_to(ROOT)}: {match[0][:60]}")
    assert not long, "\n".join(long)


def test_paths_in_documents_exist():
    """`folder/file.c`, `folder/file.{h,c}` and links. A path with AREA, NAME, KIND, FAMILY or a brace in it is a pattern."""
    there = {*tracked(), *(parent.as_posix() for path in tracked() for parent in (ROOT / path).relative_to(ROOT).parents)}
    for document in DOCUMENTS:
        text = document.read_text()
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (document.parent / link).exists(), f"{document.relative_to(ROOT)} links to {link}"
        for word in re.findall(r"`([\w.{},/-]+)`", text):
            if not re.match(r"(include|formats|capture|replay|bisect|tests|samples)/", word) or re.search(
                "AREA|NAME|KIND|FAMILY|[{]", word.replace(".{h,c}", "")
            ):
                continue
            both = re.fullmatch(r"(.+)\.\{h,c\}", word)
            for path in [f"{both.group(1)}.h", f"{both.group(1)}.c"] if both else [word.rstrip("/")]:
                assert path in there, f"{document.relative_to(ROOT)} names {path}"


def test_commands_and_options_exist():
    lines = [line for document in DOCUMENTS for line in re.findall(r"^(?:\$ |    )(lastbit .*)$", document.read_text(), re.M)]
    assert len(lines) >= 5
    for line in lines:
        line = re.sub(r"^lastbit ", "", line).split("#")[0].split(" -- ")[0]
        command = line.split()[0]
        usage = subprocess.run([BUILD / "lastbit", command, "--help"], capture_output=True, text=True)
        assert usage.returncode == 0, command
        for option in re.findall(r"\s--?[\w-]+", line):
            assert re.search(re.escape(option.strip()) + r"\b", usage.stdout), f"{command} has no {option}"


def test_the_worked_case_prints_what_it_says():
    blocks = re.findall(r"^    \$ lastbit (.*)\n((?:    .*\n|\n)+?)(?=\n\S)", TEXT, re.M)
    assert blocks
    for command, shown in blocks:
        done = subprocess.run([BUILD / "lastbit", *command.split()], cwd=ROOT, capture_output=True, text=True)
        assert [line.strip() for line in done.stdout.splitlines()] == [line.strip() for line in shown.strip("\n").splitlines()]
