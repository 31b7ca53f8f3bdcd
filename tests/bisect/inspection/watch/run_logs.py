"""Logs of training runs that never ran: the noise, the events and the formats are all chosen here."""

import json
import math
import random
import struct

TOTAL = 30000


def line(r, total=TOTAL):
    """One record as the one-line format prints it."""
    parts = ["step %05d/%d (%.2f%%)" % (r["step"], total, 100 * r["step"] / total)]
    formats = {"loss": "%.6g", "lrm": "%.4f", "dt": "%.2fms", "gnorm": "%.6g", "ema": "%.6g"}
    for name in ("loss", "lrm", "dt", "tok_sec", "mfu", "gnorm", "ema", "skipped", "shard", "rank", "tokens"):
        if name not in r:
            continue
        if name == "tok_sec":
            parts.append("tok/sec: {:,}".format(int(r[name])))
        else:
            parts.append("%s: %s" % (name, formats.get(name, "%s") % r[name]))
    return " | ".join(parts) + " | total time: 0.34m"


def lines(run):
    return "".join(line(r) + "\n" for r in run)


def jsonl(run, names=()):
    names = {"gnorm": "grad_norm", "tok_sec": "tokens_per_sec", **dict(names)}
    return "".join(json.dumps({names.get(k, k): v for k, v in r.items()}) + "\n" for r in run)


def csv(run, names=()):
    names, columns = dict(names), list(run[0])
    rows = [",".join(names.get(c, c) for c in columns)]
    return "\n".join(rows + [",".join(str(r.get(c, "")) for c in columns) for r in run]) + "\n"


def colons(run):
    """A format of nobody's, for --pattern."""
    return "".join("it=%d L=%r G=%r\n" % (r["step"], r["loss"], r["gnorm"]) for r in run)


COLONS = r"it=(?<step>\d+) L=(?<loss>\S+) G=(?<gnorm>\S+)"


# ---- TensorBoard's event file, written from the published format: TFRecord framing and protocol buffers


def _crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def _masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(n):
    out = b""
    n &= (1 << 64) - 1
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def _bytes(field, data):
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def frame(event):
    length = struct.pack("<Q", len(event))
    return length + _masked(length) + event + _masked(event)


def scalar(tag, value, tensor):
    body = _bytes(1, tag.encode())
    if tensor == "content":
        return body + _bytes(8, _varint(1 << 3) + _varint(1) + _bytes(2, b"") + _bytes(4, struct.pack("<f", value)))
    if tensor == "double":
        return body + _bytes(8, _varint(1 << 3) + _varint(2) + _bytes(6, struct.pack("<d", value)))
    return body + _varint(2 << 3 | 5) + struct.pack("<f", value)


def events(run, tensor=None, together=False):
    out = [frame(struct.pack("<Bd", 1 << 3 | 1, 1.0e9) + _bytes(3, b"brain.Event:2"))]
    tags = {"loss": "train/loss", "gnorm": "train/grad_norm", "lrm": "lrm", "tok_sec": "perf/tokens_per_sec"}
    for r in run:
        head = struct.pack("<Bd", 1 << 3 | 1, 1.0e9 + r["step"]) + _varint(2 << 3) + _varint(r["step"])
        values = [_bytes(1, scalar(tags[k], v, tensor)) for k, v in r.items() if k in tags]
        for summary in [b"".join(values)] if together else values:
            out.append(frame(head + _bytes(5, summary)))
    return b"".join(out)


# ---- runs


def clean(n, seed=0, noise="lognormal", loss=2.5, norm=1.2, spread=0.03, norm_spread=0.25):
    """A run without events: the loss falls slowly, numbers are noisy in the way asked for."""
    rng = random.Random(seed)
    state = [0.0, 0.0]
    run = []
    for step in range(n):
        draws = []
        for k in range(2):
            if noise == "heavy":
                z = rng.gauss(0, 1) / math.sqrt(max(sum(rng.gauss(0, 1) ** 2 for _ in range(4)) / 4, 1e-9))
            elif noise == "correlated":
                state[k] = 0.9 * state[k] + math.sqrt(1 - 0.81) * rng.gauss(0, 1)
                z = state[k]
            else:
                z = rng.gauss(0, 1)
            draws.append(z)
        fall = 3 * math.exp(-step / 1500) if noise == "decay" else 0.2 * math.exp(-step / 8000)
        run.append(
            {
                "step": step,
                "loss": (loss + fall) * math.exp(spread * draws[0]),
                "gnorm": norm * math.exp((0.05 if noise == "heavy" else norm_spread) * draws[1]) * (1 + fall / 2),
                "tok_sec": 254000 * math.exp(0.01 * rng.gauss(0, 1)),
            }
        )
    return run


def immediate_nan(n=200):
    """The optimizer's iteration in a narrow format: 14.79, then nothing but NaN."""
    return [{"step": s, "loss": 14.79 if s == 0 else math.nan, "gnorm": 310.5 if s == 0 else math.nan, "tok_sec": 254000} for s in range(n)]


def early_spike(n=3000, at=0, seed=1):
    run = clean(n, seed)
    for k, norm in enumerate((1160.0, 3648.0, 7200.0)):
        run[at + k]["gnorm"] = norm
    return run


def late_transient(n=30000, seed=2, ramp=60):
    """0.8 to 3.4 at step 24,850, back at 0.85 by 25,700."""
    run = clean(n, seed, loss=0.8, norm=0.4)
    for r in run[24850:]:
        t = r["step"] - 24850
        base = 0.8 + 2.6 * min(1, t / ramp) if t < 600 else 3.4 - 2.55 * min(1, (t - 600) / 250)
        r["loss"] *= base / 0.8
        if t < 850:
            r["gnorm"] *= 1 + 40 * min(1, t / ramp) * max(0, 1 - t / 850)
    return run
