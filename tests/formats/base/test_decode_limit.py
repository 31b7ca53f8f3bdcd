"""Small files that decode to much: bounded memory and time, a message that says what to do, and no refusal of what is honest.

Memory is the largest resident set of the command, by getrusage of a process that runs it alone."""

import io
import json
import pickle
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as checkpoint
from conftest import BUILD

MB = 2**20
CHILD = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, timeout=120)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
print(done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace"))
"""


@pytest.fixture
def measured(lastbit):
    """Runs a command; its exit code, its memory in MB, and what it said."""

    def run(*words):
        child = subprocess.run([sys.executable, "-c", CHILD, str(lastbit.path), *map(str, words)], capture_output=True, text=True, check=True)
        numbers, said = child.stdout.split("\n", 1)
        return (*map(int, numbers.split()), said)

    return run


def deflated_zeros(megabytes, head=b""):
    """Raw deflate of `head` and so many MB of zeros, and their CRC: one MB is compressed, and repeated."""
    whole = zlib.compressobj(9, zlib.DEFLATED, -15)
    begin = whole.compress(head) + whole.flush(zlib.Z_FULL_FLUSH)
    again = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = again.compress(bytes(MB)) + again.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    crc = zlib.crc32(head)
    for _ in range(megabytes):
        crc = zlib.crc32(bytes(MB), crc)
    return begin + piece * megabytes + end, crc


def zip_of(members):
    """[(name, data, crc, unpacked, place of another one's data)] as a zip of deflated members."""
    out, directory = io.BytesIO(), io.BytesIO()
    for name, data, crc, unpacked, at in members:
        if at is None:
            at = out.tell()
            out.write(struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 0, crc, len(data), unpacked, len(name), 0) + name + data)
        directory.write(struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 0, crc, len(data), unpacked, len(name), 0, 0, 0, 0, 0, at) + name)
    start = out.tell()
    out.write(directory.getvalue())
    out.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(members), len(members), len(directory.getvalue()), start, 0))
    return out.getvalue()


def npz_of_zeros(path, megabytes):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (megabytes * MB // 4,)})
    data, crc = deflated_zeros(megabytes, head.getvalue())
    path.write_bytes(zip_of([(b"w.npy", data, crc, len(head.getvalue()) + megabytes * MB, None)]))
    return path


def test_npz_that_unpacks_to_half_a_gigabyte_is_listed_in_little_memory(measured, tmp_path):
    path = npz_of_zeros(tmp_path / "zeros.npz", 512)
    assert path.stat().st_size < MB
    with zipfile.ZipFile(path) as written, written.open("w.npy") as member:
        assert np.lib.format.read_magic(member) == (1, 0)  # Python takes it for an .npz, too
    code, memory, said = measured("ls", "--values", path)
    assert code == 0 and "[134217728]" in said and memory < 100, (code, memory, said)
    code, memory, said = measured("show", path, "--name", "w", "--max-decoded", "256M")
    assert code == 128 and memory < 100, (code, memory, said)
    assert all(word in said for word in (str(path), "member 'w.npy'", "512.0 MB", "limit is ", "--max-decoded"))


def test_honest_zeros_are_read_by_default(lastbit, tmp_path):
    np.savez_compressed(tmp_path / "x.npz", w=np.zeros(24 * MB, "<f4"), b=np.arange(6))
    assert lastbit.json("show", tmp_path / "x.npz", "--name", "w", "--limit", "1", expect=0)["values"][0]["statistics"]["sum"] == 0
    lastbit.run("pack", tmp_path / "x.npz", "-o", tmp_path / "x.lbz", expect=0)
    assert (tmp_path / "x.lbz").stat().st_size * 1000 < 24 * MB * 4
    lastbit.run("verify", tmp_path / "x.lbz", expect=0)
    shown = lastbit.json("show", tmp_path / "x.lbz", "--name", "w", "--limit", "1", expect=0)["values"][0]
    assert shown["shape"] == [24 * MB] and shown["statistics"]["max"] == 0
    tight = lastbit.json("show", tmp_path / "x.lbz", "--name", "w", "--limit", "1", "--max-decoded", "100M", expect=0)["values"][0]
    assert tight["statistics"] == shown["statistics"] and tight["digest"] == shown["digest"]  # planes without room for a copy


def test_members_of_a_zip_that_share_their_bytes_are_refused(measured, tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (4 * MB,)})
    data, crc = deflated_zeros(4, head.getvalue())
    unpacked = len(head.getvalue()) + 4 * MB
    members = [(b"a.npy", data, crc, unpacked, None)] + [(b"b%04d.npy" % i, data, crc, unpacked, 0) for i in range(500)]
    members = [(name.rjust(9, b"x"), *rest) for name, *rest in members]
    path = tmp_path / "overlap.npz"
    path.write_bytes(zip_of(members))
    code, memory, said = measured("ls", path)
    assert code == 128 and memory < 100 and "two members share bytes" in said, (code, memory, said)


@pytest.fixture(scope="module")
def packed_zeros(lastbit, tmp_path_factory):
    """400 MB of zeros in f32, packed: a few KB."""
    folder = tmp_path_factory.mktemp("packed")
    head = json.dumps({"w": {"dtype": "F32", "shape": [100 * MB], "data_offsets": [0, 400 * MB]}}).encode()
    with open(folder / "z.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + 400 * MB)
    lastbit.run("pack", folder / "z.safetensors", "-o", folder / "z.lbz", expect=0)
    (folder / "z.safetensors").unlink()
    return folder / "z.lbz"


def test_verify_streams_what_it_decodes(measured, packed_zeros):
    code, memory, said = measured("verify", packed_zeros)
    assert code == 0 and memory < 100 and "blobs of 400 MB" in said, (code, memory, said)


def test_limit_is_no_damage(measured, packed_zeros, tmp_path):
    for command in (("verify",), ("recover", "-o", tmp_path / "out.lb"), ("show", "--name", "w")):
        code, memory, said = measured(*command, packed_zeros, "--max-decoded", "8M")
        assert code == 128 and memory < 100 and "--max-decoded" in said and "limit is" in said, (command, code, memory, said)
    code, memory, said = measured("show", packed_zeros, "--name", "w", "--max-decoded", "none")
    assert code == 0


def test_expanded_tensor_of_a_few_bytes_ends_in_no_time(measured, tmp_path):
    torch.save({"w": torch.zeros(1).expand(10**12)}, tmp_path / "x.pt")
    for command in ("ls", "audit"):
        code, memory, said = measured(command, tmp_path / "x.pt")
        assert code == 128 and memory < 200 and "--max-decoded" in said and f"{tmp_path / 'x.pt'}: tensor 'w'" in said, (code, memory, said)


def safetensors_of_one_range(path, n, size):
    """n tensors, all of them the same bytes: read one by one they are n times the file."""
    rows = {f"w{i}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]} for i in range(n)}
    head = json.dumps(rows).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(size))


def torch_of_one_storage(path, n, size):
    one = torch.zeros(size, dtype=torch.uint8)
    torch.save({f"w{i}": one for i in range(n)}, path)


def gguf_of_one_range(path, n, size):
    infos = b"".join(struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, size, 24, 0) for name in (b"w%d" % i for i in range(n)))
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, n, 0) + infos + bytes(size + 64))


@pytest.mark.parametrize("make, ending", [(safetensors_of_one_range, "safetensors"), (torch_of_one_storage, "pt"), (gguf_of_one_range, "gguf")])
def test_tensors_that_lie_over_each_other_count_each(measured, tmp_path, make, ending):
    path = tmp_path / f"x.{ending}"
    make(path, 3000, 32 * MB)  # 94 GB of 32 MB
    for command in ("ls", "audit", "fingerprint"):
        code, memory, said = measured(command, path, "--max-decoded", "1G:1")
        assert code == 128 and memory < 100 and "shown more than once" in said and "--max-decoded" in said, (command, code, memory, said)
    make(path, 100, 20000)  # some tensors may well be tied
    code, memory, said = measured("ls", path, "--max-decoded", "1G:1")
    assert code == 0, said


@pytest.mark.parametrize("text", ["1", "[]", "{}", '"a"', "0.5"])
def test_line_of_json_is_held_to_the_limit(measured, tmp_path, text):
    path = tmp_path / "tokens.jsonl"
    good = '{"token_ids":[1,2],"logprobs":[-1,-2]}\n'
    path.write_text(good + '{"token_ids":[' + (text + ",") * (4 * MB // (len(text) + 1)) + text + '],"logprobs":[]}\n' + good)
    code, memory, said = measured("parity", path, path, "--max-decoded", "32M")
    assert code == 128 and memory < 150, (code, memory, said)
    assert "line 2: its JSON holds more than 16.0 MB" in said and "--max-decoded" in said


def deep(path, make):
    path.write_bytes(make(b"[" * MB))
    return path


def test_deep_json_is_refused(measured, tmp_path):
    header = b'{"a":' + b"[" * MB
    files = {
        "parity": [deep(tmp_path / "t.jsonl", lambda text: b'{"logprobs":' + text)] * 2,
        "ls": [deep(tmp_path / "x.safetensors", lambda text: struct.pack("<Q", len(header)) + header)],
        "report": [deep(tmp_path / "r.json", lambda text: b'{"schema":' + text)],
        "watch": [deep(tmp_path / "log.jsonl", lambda text: b'{"loss":' + text)],
        "audit": [deep(tmp_path / "x.safetensors.index.json", lambda text: b'{"weight_map":' + text)],
    }
    for command, paths in files.items():
        code, memory, said = measured(command, *paths)
        assert code in (1, 128) and memory < 150, (command, code, memory, said)


def test_pickle_is_held_to_the_limit(measured, tmp_path):
    checkpoint.save({"a": torch.ones(4)}, checkpoint_id=tmp_path / "ck")
    metadata = tmp_path / "ck" / ".metadata"
    metadata.write_bytes(b"\x80\4" + pickle.EMPTY_LIST + pickle.MARK + pickle.EMPTY_DICT * (4 * MB) + pickle.APPENDS + pickle.STOP)
    code, memory, said = measured("ls", tmp_path / "ck", "--max-decoded", "64M")
    assert code == 128 and memory < 250 and "pickle: its objects take more than 64 MB" in said and "--max-decoded" in said, (code, memory, said)


def test_side_file_of_a_checkpoint_is_held_to_the_limit(measured, tmp_path):
    from safetensors.torch import save_file

    save_file(
        {"base_model.model.q.lora_A.weight": torch.ones(2, 4), "base_model.model.q.lora_B.weight": torch.ones(4, 2)},
        tmp_path / "adapter_model.safetensors",
    )
    (tmp_path / "adapter_config.json").write_text('{"r": 2, "x": [' + "[]," * MB + "1]}")
    code, memory, said = measured("audit", tmp_path, "--max-decoded", "32M")
    assert memory < 150, (code, memory, said)


def test_log_of_one_endless_line_and_an_event_that_claims_much(measured, tmp_path):
    (tmp_path / "train.log").write_bytes(b"step 1 loss 2.0\n" + b"x" * (64 * MB) + b"\nstep 2 loss 1.9\n")
    code, memory, said = measured("watch", tmp_path / "train.log")
    assert code == 0 and memory < 100 and "longer than a megabyte" in said, (code, memory, said)


ENDLESS = """
diff --map IT GOOD GOOD | bisect RUN --journal IT --resume | replay RUN --order op=sum=tree:IT | report IT -o OUT | parity IT IT
parity --matrix IT --work OUT | audit IT | ls IT | explain RUN RUN --tree IT
"""


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A GB without a newline, which takes no room on the disk: zeros behind what begins a JSON text."""
    folder = tmp_path_factory.mktemp("endless")
    with open(folder / "line.json", "wb") as file:
        file.write(b'{"logprobs":[')
        file.truncate(1 << 30)
    return folder / "line.json"


@pytest.mark.parametrize("command", [line.strip() for line in ENDLESS.replace("\n", "|").split("|") if line.strip()])
@pytest.mark.parametrize("what", ["a file", "a device"])
def test_text_without_an_end_is_read_in_bounded_memory(measured, endless, tmp_path, command, what):
    good = tmp_path / "good.npz"
    np.savez(good, w=np.ones(4, "<f4"))
    subprocess.run([BUILD / "train_in_c", tmp_path / "run.lb"], check=True, capture_output=True)
    places = {"IT": endless if what == "a file" else "/dev/zero", "GOOD": good, "RUN": tmp_path / "run.lb", "OUT": tmp_path / "out"}
    words = [str(places.get(word, word)).replace("tree:IT", f"tree:{places['IT']}") for word in command.split()]
    code, memory, said = measured(*words, "--max-decoded", "64M")
    assert code in (1, 125, 128, 129) and memory < 200 and str(places["IT"]) in said, (code, memory, said)


def test_words_of_the_option(lastbit, tmp_path):
    np.save(tmp_path / "x.npy", np.ones(3))
    for right in ("1M", "1M:5", "2GiB:0", "none"):
        lastbit.run("ls", tmp_path / "x.npy", "--max-decoded", right, expect=0)
    for wrong in ("", "0", "1M:", "1M:-1", "much", ":5"):
        assert "SIZE:RATIO or none" in lastbit.run("ls", tmp_path / "x.npy", "--max-decoded", wrong, expect=129).stderr
