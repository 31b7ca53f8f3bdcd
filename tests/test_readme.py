"""README tells the truth: its map has every source file once, its commands and options exist, its output is what comes out."""
import re
import subprocess

from conftest import BUILD, ROOT

TEXT = (ROOT / "README.md").read_text()
FOLDERS = ["include/lastbit", "formats", "capture", "replay", "bisect"]


def sources():
    listed = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {path for path in listed.split() if re.search(r"\.(c|h|cu|py)$", path)}


def mapped():
    """Paths that the map names: `a.{h,c}` is two files, `op_*.c` a family."""
    found, folder = [], None
    section = TEXT.split("## The source tree", 1)[1].split("\n## ", 1)[0]
    for line in section.splitlines():
        heading = re.match(r"\*\*`([\w/]+)/`", line)
        if heading:
            folder = heading.group(1)
        elif line.startswith("    ") and folder:
            for word in re.split(r"\s{2,}", line.strip())[0].split():
                both = re.fullmatch(r"(.+)\.\{h,c\}", word)
                names = [f"{both.group(1)}.h", f"{both.group(1)}.c"] if both else [word]
                found += [f"{folder}/{name}" for name in names]
    return found


def test_the_map_has_every_source_file_once():
    families = [path for path in mapped() if "*" in path]
    names = [path for path in mapped() if "*" not in path]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
    missing = {path for path in sources() - set(names) if not any(re.fullmatch(f.replace("*", "[a-z_]+"), path) for f in families)}
    assert not missing, f"not in README's map: {sorted(missing)}"
    assert not set(names) - sources(), f"README's map names what is not there: {sorted(set(names) - sources())}"


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
