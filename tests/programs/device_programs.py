"""Programs as people write them for one device, beside those of on_device.py, which runs them: what they do with streams, memory and types.

transformers   three steps of a tiny Llama, and three more of it in bfloat16, with two micro-batches a step
optimizers     the same gradients for optimizers that update a tensor, a list (foreach), or a list by one kernel (fused)
embeddings     bags, embeddings and their gradients
views          what is written through slices, transposes, strides, chunks, diagonals and complex parts
dtypes         every type that tensors have
functions      autograd functions and hooks of the program's own
prefetch       batches copied on a side stream, and used by the main one behind an event
reuse          memory of a side stream that is freed while that stream is still to read it
sparse         embeddings whose gradients are sparse, by two optimizers that take them
fsdp           parameters sharded by FSDP2 over gloo: under torchrun
workers        batches from processes that are forked after the device was used
threads        two threads, each with a stream and a model
full           as large as the device's memory will have it
"""

import pathlib
import sys
import threading

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import on_device  # noqa: E402

functional = torch.nn.functional


def tiny_llama(device, dtype):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(4)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64)
    return LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=64, attn_implementation="eager")).to(device, dtype)


def transformers(device):
    made = []
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny_llama(device, dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        for _ in range(3):
            for _ in range(2):
                tokens = torch.randint(64, (2, 12)).to(device)
                (model(input_ids=tokens, labels=tokens).loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        made += model.parameters()
    return made


def optimizers(device):
    made = []
    for kind in (dict(foreach=False), dict(foreach=True), dict(fused=True)):
        for make in (torch.optim.AdamW, torch.optim.SGD):
            model = on_device.network(0).to(device)
            optimizer = make(model.parameters(), lr=0.01, **kind)
            for _ in range(2):
                x, y = torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            made += model.parameters()
    return made


def embeddings(device):
    torch.manual_seed(6)
    words, bags = torch.nn.Embedding(20, 8, padding_idx=3), torch.nn.EmbeddingBag(20, 8, mode="sum")
    model = torch.nn.ModuleList([words, bags]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(3):
        tokens = torch.randint(20, (4, 5)).to(device)
        loss = words(tokens).square().mean() + bags(tokens).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def sparse(device):
    torch.manual_seed(6)
    words, bags = torch.nn.Embedding(20, 8, sparse=True), torch.nn.EmbeddingBag(20, 8, mode="sum", sparse=True)
    model = torch.nn.ModuleList([words, bags]).to(device)
    optimizers = torch.optim.SparseAdam(words.parameters(), lr=0.1), torch.optim.SGD(bags.parameters(), lr=0.1, foreach=False)
    for _ in range(3):
        tokens = torch.randint(20, (4, 5)).to(device)
        loss = words(tokens).square().mean() + bags(tokens).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


def fsdp(device):
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.init_device_mesh(device, (torch.distributed.get_world_size(),))
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(3)), torch.nn.Linear(8, 4)).to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    torch.manual_seed(100 + torch.distributed.get_rank())
    batches = [(torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)) for _ in range(2)]
    for x, y in batches:
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    made = [p.detach().to_local().cpu() for p in model.parameters()]
    torch.distributed.barrier()  # gloo's threads let tensors go, for which they need Python's lock: the group's end waits for them with it
    torch.distributed.destroy_process_group()
    return made


def views(device):
    torch.manual_seed(7)
    x, c = torch.randn(6, 8).to(device), torch.randn(4, 4, dtype=torch.complex64).to(device)
    for _ in range(2):
        x[1:3].mul_(2)
        x.t()[2].add_(x[:, 3])
        x[:, ::3] -= 1
        a, b = x.chunk(2, dim=1)
        a.copy_(b.flip(0))
        x.diagonal().zero_()
        x.as_strided((3, 2), (16, 5), 1).add_(0.5)
        x.view(-1)[5:9].fill_(3)
        torch.sum(x.unsqueeze(0).expand(2, 6, 8), 0, out=x)
        torch.view_as_real(c)[..., 0].mul_(0.5)
        c.real.add_(c.imag)
        x[x > 2] = -1
        x.index_add_(0, torch.tensor([0, 0, 5]).to(device), x[:3].clone())
    return [x, torch.view_as_real(c.conj() * 2)]


def dtypes(device):
    torch.manual_seed(8)
    made = []
    numbers = torch.empty(5, 7, device=device).copy_(torch.randn(5, 7) * 9)
    floats = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    eight = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
    whole = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]
    for dtype in (*floats, *whole, torch.complex64, torch.complex128):
        x = numbers.to(dtype)
        made += [x.clone() if dtype == torch.bool else x + x, x.t().contiguous(), x[:, 1:4] == x[:, 2:5]]
    for dtype in eight:
        x = numbers.abs().to(dtype)
        made += [x.to(torch.float32) * 2, x[1:, ::2].clone().view(torch.uint8)]
    return [torch.view_as_real(t) if t.is_complex() else t for t in made]


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


def functions(device):
    model = on_device.network(0).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    model[2].register_full_backward_hook(lambda module, given, came: (given[0] + 0.01,))
    for _ in range(3):
        x = torch.randn(16, 8).to(device)
        Clipped.apply(model(Clipped.apply(x))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


class On:
    """Within it ops are queued on a stream of their own, behind what was queued before; None: there are no streams."""

    def __init__(self, device):
        self.stream = torch.Stream(device=device) if device != "cpu" else None

    def __enter__(self):
        if self.stream:
            self.before = torch.accelerator.current_stream()
            self.stream.wait_stream(self.before)
            torch.accelerator.set_stream(self.stream)

    def __exit__(self, *_):
        if self.stream:
            torch.accelerator.set_stream(self.before)

    def join(self):
        """What is queued from now on comes behind it."""
        if self.stream:
            torch.accelerator.current_stream().wait_event(self.stream.record_event())

    def uses(self, *tensors):
        for t in tensors if self.stream else ():
            t.record_stream(self.stream)


def prefetch(device):
    model, side = on_device.network(0).to(device), On(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    batches = [(torch.randn(16, 8), torch.randint(4, (16,))) for _ in range(4)]

    def fetch(batch):
        with side:
            return [t.to(device, non_blocking=True) * 1 for t in (batch if device == "cpu" else [t.pin_memory() for t in batch])]

    coming = fetch(batches[0])
    for n in range(3):
        side.join()
        x, y = coming
        functional.cross_entropy(model(x), y).backward()
        coming = fetch(batches[n + 1])
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def reuse(device):
    torch.manual_seed(9)
    side, made, x = On(device), [], torch.randn(64, 64).to(device)
    total = torch.zeros(64, 64).to(device)
    for n in range(6):
        big = x * (n + 1)
        with side:
            for _ in range(3):
                total.add_(big @ x)
        side.uses(big)
        del big
        made.append(torch.full((64, 64), float(n), device=device) + 1)
    side.join()
    return [total * 1, *made]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, n):
        return torch.arange(8.0) * 0.1 + n, n % 4


def workers(device):
    model = on_device.network(0).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for x, y in torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=2):
        functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def threads(device):
    """One after the other, so that ops have one order."""
    made, models, turn = {}, [on_device.network(0).to(device) for _ in range(2)], threading.Lock()
    batches = [torch.randn(16, 8).to(device) for _ in range(2)]

    def work(n):
        with turn:
            own = On(device)
            with own:
                made[n] = [models[n](batches[n]).tanh() for _ in range(3)]
            own.join()
            on_device.wait_for(device)

    for n in range(2):
        thread = threading.Thread(target=work, args=(n,))
        thread.start()
        thread.join()
    return [*made[0], *made[1]]


def full(device):
    x = torch.ones(1 << 20).to(device)
    kept = [x * n for n in range(8)]
    for n in range(3):
        kept[n] = torch.cat(kept[n : n + 2])[: 1 << 20] + 1
    return [t[:100].clone() for t in kept]


on_device.RUNS.update(
    transformers=transformers,
    optimizers=optimizers,
    embeddings=embeddings,
    sparse=sparse,
    fsdp=fsdp,
    views=views,
    dtypes=dtypes,
    functions=functions,
    prefetch=prefetch,
    reuse=reuse,
    workers=workers,
    threads=threads,
    full=full,
)

if __name__ == "__main__":
    on_device.main()
