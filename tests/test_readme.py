"""README tells the truth: its map and those of the rooms have every source file once, its commands and options exist, its output is what comes out."""
import re
import subprocess

from conftest import BUILD, ROOT

TEXT = (ROOT / "README.md").read_text()
FOLDERS = ["include/lastbit", "formats", "capture", "replay", "bisect"]


def sources():
    listed = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {path for path in listed.split() if re.search(r"\.(c|h|cu|py)$", path)}


ROOMS = sorted(path.parent for folder in FOLDERS[1:] for path in (ROOT / folder).glob("*/README.md"))


def listed(folder, text):
    """Paths that an indented list names: `a.{h,c}` is two files, `op_*.c` a family."""
    for line in re.findall(r"^    (\S.*)$", text, re.M):
        for word in re.split(r"\s{2,}", line.strip())[0].split():
            both = re.fullmatch(r"(.+)\.\{h,c\}", word)
            yield from [f"{folder}/{both.group(1)}.h", f"{folder}/{both.group(1)}.c"] if both else [f"{folder}/{word}"]


def mapped():
    """README lists the public headers, the README of each room its files."""
    public = TEXT.split("**`include/lastbit/`", 1)[1].split("**`formats/`", 1)[0]
    return [*listed("include/lastbit", public), *(path for room in ROOMS for path in listed(room.relative_to(ROOT), (room / "README.md").read_text()))]


def test_every_source_file_is_listed_once():
    families = [path for path in mapped() if "*" in path]
    names = [path for path in mapped() if "*" not in path]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
    missing = {path for path in sources() - set(names) if not any(re.fullmatch(f.replace("*", "[a-z_]+"), path) for f in families)}
    assert not missing, f"in no README: {sorted(missing)}"
    assert not set(names) - sources(), f"a README names what is not there: {sorted(set(names) - sources())}"


def test_every_room_is_in_the_map_and_in_the_build():
    """… in the order from the ground up; `cli` and the Python package are built by other rules."""
    built = (ROOT / "CMakeLists.txt").read_text()
    for folder in FOLDERS[1:]:
        section = TEXT.split(f"**`{folder}/`", 1)[1].split("\n**", 1)[0].split("\n## ", 1)[0]
        rooms = re.findall(r"^    (\w+)/ ", section, re.M)
        assert sorted(rooms) == sorted(room.name for room in ROOMS if room.parent.name == folder)
        order = re.search(rf"lastbit_library\(lb_{folder} {folder}\s+ROOMS ([\w ]+)", built).group(1).split()
        assert order == [room for room in rooms if room not in ("cli", "lastbit")], folder


def test_no_folder_holds_more_than_fifty_sources():
    folders = [path.rsplit("/", 1)[0] for path in sources()]
    assert max((folders.count(folder), folder) for folder in set(folders))[0] <= 50


def test_commands_and_options_exist():
    lines = re.findall(r"^(?:\$ |    )(lastbit .*)$", TEXT, re.M)
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
