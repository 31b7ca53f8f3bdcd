"""Programs for one device that do more with its streams than those of device_programs.py, which runs them with its own: what a program may do
while copies, other streams and other threads are under way.

pool        forwards for batches of two sizes, as two captured graphs that share a pool, in turns
early       memory of a side stream freed while that stream still works on it, and taken at once by the main one
slices      copies to pinned memory of strided slices into strided slices, used by the host behind an event or when it has asked for it
aside       gradients divided and copied by a side stream, in a hook, as soon as each is there
buckets     gradients that are views of flat buffers, which are scaled and reduced by hand
put_away    activations in pinned memory, by torch's own save_on_cpu
fed         batches from a thread that copies them on a stream of its own, each with an event
soon        an optimizer's step in backward, parameter by parameter
both        the same, and the first layer's by an optimizer that steps afterwards
overtaken   tensors written through views while copies of them are on their way to the host
bare        empty tensors, tensors without dimensions, expanded, flipped and overlapping ones, channels last, packed in halves of bytes
numpy       what arrived in pinned memory computed on by NumPy, and sent back
polled      a host that asks again and again whether a copy has arrived
replicas    a model on each of two devices, whose gradients are added on the first one, and whose weights come from there
split       a model of which each of two devices has a half: what lies between goes from one to the other, and back in backward
"""

import pathlib
import queue
import sys
import threading
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import device_programs  # noqa: E402
import on_device  # noqa: E402

functional, On = torch.nn.functional, device_programs.On


def pinned(device, *shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype, pin_memory=device != "cpu")


class Mark:
    """What was queued on the current stream by now."""

    def __init__(self, device):
        self.event = torch.Event(device=device) if device != "cpu" else None
        if self.event:
            self.event.record()

    def wait(self):
        if self.event:
            self.event.synchronize()

    def passed(self):
        return self.event is None or self.event.query()


def pool(device):
    model = on_device.network(0).to(device).eval()
    wide, narrow = torch.zeros(16, 8).to(device), torch.zeros(4, 8).to(device)
    graphs, made, shared = {}, [], None
    with torch.no_grad():
        for n in range(6):
            x = narrow if n % 2 else wide
            x.copy_(torch.randn(x.shape))
            if n > 1 and device != "cpu" and len(x) not in graphs:
                make, capture, handle = on_device.graph_kind(device)
                shared = shared or handle()
                graph = make()
                with capture(graph, pool=shared):
                    y = model(x)
                graphs[len(x)] = graph, y
            if len(x) in graphs:
                graph, y = graphs[len(x)]
                graph.replay()
            else:
                y = model(x)
            made.append(y * 1)
    return made


def early(device):
    torch.manual_seed(9)
    side, made, x = On(device), [], torch.randn(32, 32).to(device)
    total = torch.zeros(32, 32).to(device)
    for n in range(5):
        given = x + n
        with side:
            for _ in range(4):
                total.add_(given.tanh() @ x)
        side.uses(given)
        del given
        made.append([torch.full((32, 32), float(n + k), device=device) * 2 for k in range(3)][1])
    side.join()
    return [total * 1, *made]


def slices(device):
    torch.manual_seed(10)
    x, made = torch.randn(8, 12).to(device), []
    rows, columns, turned = pinned(device, 8, 12), pinned(device, 12, 8), pinned(device, 4, 6).t()
    for n in range(3):
        x.mul_(1.5).add_(n)
        rows[:, ::2].copy_(x[:, 1::2], non_blocking=True)
        columns[2:10].copy_(x.t()[2:10], non_blocking=True)
        first = Mark(device)
        x.neg_()
        turned.copy_(x[:6, :4], non_blocking=True)
        rows[1:3, 1::2].copy_(x[1:3, ::2], non_blocking=True)
        first.wait()
        made.append(columns.sum(0) * 2)
        on_device.wait_for(device)
        made += [rows[:, ::3] + columns[:8, :4], turned * 3]
    return [x, *made]


def aside(device):
    model, side, halves = on_device.network(0).to(device), On(device), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def hook(p):
        with side, torch.no_grad():
            p.grad.div_(2)
            halves[p] = p.grad.to(torch.bfloat16)
        side.uses(p.grad)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(3):
        x, y = torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)
        functional.cross_entropy(model(x), y).backward()
        side.join()
        for p in model.parameters():
            p.grad.copy_(halves.pop(p))
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def buckets(device):
    model, side = on_device.network(0).to(device), On(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    flat = torch.zeros(sum(p.numel() for p in model.parameters()), device=device)
    at = 0
    for p in model.parameters():
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    half = at // 2
    for _ in range(3):
        flat.zero_()
        x, y = torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)
        functional.cross_entropy(model(x), y).backward()
        with side:
            sent = flat[:half].to(torch.bfloat16).to(torch.float32)
            flat[:half].copy_(sent)
        flat[half:].mul_(0.5)
        side.join()
        optimizer.step()
    return [*model.parameters(), flat]


def put_away(device):
    model = on_device.network(0).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for _ in range(3):
        x, y = torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)
        with torch.autograd.graph.save_on_cpu(pin_memory=device != "cpu"):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*model.parameters(), *model.buffers()]


def fed(device):
    """The thread has turns, so that ops have one order."""
    model, ready, wanted = on_device.network(0).to(device), queue.Queue(), threading.Semaphore(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    batches = [(torch.randn(16, 8), torch.randint(4, (16,))) for _ in range(4)]

    def feed():
        own = On(device)
        for batch in batches:
            wanted.acquire()
            with own:
                there = [t.to(device, non_blocking=True) for t in (batch if device == "cpu" else [t.pin_memory() for t in batch])]
                there[0] = there[0] * 0.5
                ready.put((there, own.stream.record_event() if own.stream else None))

    thread = threading.Thread(target=feed)
    thread.start()
    for _ in batches:
        (x, y), event = ready.get()
        if event:
            now = torch.accelerator.current_stream()
            now.wait_event(event)
            x.record_stream(now), y.record_stream(now)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        wanted.release()
    thread.join()
    return list(model.parameters())


def soon(device, kept=0):
    """`kept` parameters have an optimizer that steps when backward is over."""
    model = on_device.network(0).to(device)
    early, late = list(model.parameters())[kept:], list(model.parameters())[:kept]
    of = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9, foreach=False) for p in early}
    optimizer = torch.optim.AdamW(late, lr=1e-2, foreach=False) if late else None

    def hook(p):
        of[p].step()
        of[p].zero_grad()

    for p in early:
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(3):
        x, y = torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)
        functional.cross_entropy(model(x), y).backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


def overtaken(device):
    torch.manual_seed(12)
    x, side, made = torch.randn(16, 16).to(device), On(device), []
    here, there = pinned(device, 16, 16), pinned(device, 256)
    for n in range(3):
        here.copy_(x, non_blocking=True)
        x.view(-1)[3::5].add_(n + 1)
        there.copy_(x.view(-1), non_blocking=True)
        x.t()[:4].mul_(-1)
        with side:
            y = x * 2
            y[::2].sub_(1)
        side.uses(x)
        side.join()
        x.copy_(y)
        on_device.wait_for(device)
        made += [here + there.view(16, 16), y.clone()]
    return [x, *made]


def bare(device):
    torch.manual_seed(13)
    x = torch.randn(2, 4, 6, 6).to(device)
    last = x.to(memory_format=torch.channels_last)
    nothing = torch.empty(0, 5).to(device)
    one = torch.tensor(2.5).to(device)
    codes = torch.randint(0, 16, (4, 6), dtype=torch.uint8).to(device)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    flags, turning = x > 0, torch.randn(3, 3, dtype=torch.complex64).to(device)
    eight = x.to(torch.float8_e4m3fn)
    lap = x.flatten().as_strided((5, 8), (3, 1), 2)
    made = [
        last * 2,
        last[:, 1:3].contiguous(memory_format=torch.channels_last) + 1,
        functional.max_pool2d(last, 2),
        nothing @ torch.ones(5, 3).to(device),
        torch.cat([nothing, torch.ones(2, 5).to(device)]),
        nothing.sum() + one,
        one * one,
        one.expand(3, 4) + 1,
        x.expand(3, 2, 4, 6, 6).sum(0),
        x.flip(1, 3) * 3,
        x.flip(0)[:, ::2].mean(1),
        lap * 1,
        lap.t() @ lap,
        packed,
        (packed & 15) + (packed >> 4),
        packed.view(torch.int8) * 2,
        flags.logical_not(),
        flags.sum(),
        torch.view_as_real(turning @ turning.mH),
        torch.view_as_real(turning.conj().t() * 2),
        turning.imag + turning.abs(),
        eight.view(torch.uint8).clone(),
        eight[:, ::2].to(torch.float32) * 2,
        x[1:1] * 2,
        x.new_zeros(()).add_(one),
    ]
    nothing.add_(1)
    one.mul_(2)
    last[0].neg_()
    return [*made, one, last]


def numpy(device):
    torch.manual_seed(14)
    x, here, made = torch.randn(6, 5).to(device), pinned(device, 6, 5), []
    for n in range(3):
        here.copy_(x * (n + 1), non_blocking=True)
        on_device.wait_for(device)
        seen = here.numpy()
        seen[n] = seen[n] * 2 + 1
        x = x + torch.from_numpy(seen).to(device, non_blocking=True)
        on_device.wait_for(device)
        made.append(x.cumsum(0))
    return made


def polled(device):
    torch.manual_seed(15)
    x, here, made = torch.randn(64, 64).to(device), pinned(device, 64, 64), []
    for _ in range(3):
        x = torch.tanh(x @ x)
        here.copy_(x, non_blocking=True)
        mark = Mark(device)
        x = x + 1
        while not mark.passed():
            time.sleep(0.001)
        made.append(here * 2)
    return [x, *made]


def two(device):
    return [torch.device(device)] * 2 if device == "cpu" else [torch.device(device, n) for n in range(2)]


def moved(t, place):
    return torch.empty(t.shape, dtype=t.dtype, device=place).copy_(t)


def replicas(device):
    places = two(device)
    models = [on_device.network(0).to(place) for place in places]
    optimizer = torch.optim.SGD(models[0].parameters(), lr=0.1, momentum=0.9, foreach=False)
    for _ in range(3):
        x, y = torch.randn(16, 8), torch.randint(4, (16,))
        for n, (model, place) in enumerate(zip(models, places)):
            half = slice(8 * n, 8 * n + 8)
            functional.cross_entropy(model(x[half].clone().to(place)), y[half].clone().to(place)).backward()
        for ours, theirs in zip(models[0].parameters(), models[1].parameters()):
            ours.grad.add_(moved(theirs.grad, places[0])).div_(2)
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(models[0].parameters(), models[1].parameters()):
                theirs.copy_(ours, non_blocking=True)
                ours.grad = theirs.grad = None
    return [*models[0].parameters(), *models[1].parameters()]


def split(device):
    places, model = two(device), on_device.network(0)
    halves = [model[:3].to(places[0]), model[3:].to(places[1])]
    optimizer = torch.optim.AdamW([p for half in halves for p in half.parameters()], lr=1e-2, foreach=False)
    for _ in range(3):
        x, y = torch.randn(16, 8).to(places[0]), torch.randint(4, (16,)).to(places[1])
        functional.cross_entropy(halves[1](moved(halves[0](x), places[1])), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


on_device.RUNS.update(
    pool=pool,
    early=early,
    slices=slices,
    aside=aside,
    buckets=buckets,
    put_away=put_away,
    fed=fed,
    soon=soon,
    both=lambda device: soon(device, kept=2),
    overtaken=overtaken,
    bare=bare,
    numpy=numpy,
    polled=polled,
    replicas=replicas,
    split=split,
)

if __name__ == "__main__":
    on_device.main()
