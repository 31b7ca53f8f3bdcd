"""Programs as people write them, on the device that --device names: `standin` is tests/capture/device/standin.py. Where torch takes other
ops on an accelerator than on the CPU, the choice is said: no foreach kernels, attention by its own formula, dropout of the CPU.

    train      three steps of a small network with AdamW, clipped gradients, a batch norm
    dropout    the same with dropout between
    ddp        the same without them, data-parallel by gloo: under torchrun
    checkpoint forwards that backward runs again, both ways
    graph      five steps, the last three as replays of a captured graph where the device has graphs
    drawing    the same with dropout, and noise of several kinds that is drawn inside the graph
    partial    five steps, the last two with a graph of a part's forward and one of its backward, in one pool
    decode     five tokens, the last three from replays of a forward, captured by torch.accelerator; what picks the next token is no part of it
    offload    three steps whose activations wait for backward in pinned memory, whose batches come from one pinned buffer, and whose losses
               and outputs go to the host while the device goes on
    generate   eight tokens from a tiny Llama with a key-value cache
"""

import argparse
import contextlib
import pathlib
import sys

import torch
import torch.utils.checkpoint

TESTS = pathlib.Path(__file__).resolve().parent.parent


def graph_kind(device):
    """A graph, how it is captured in a `with`, and a pool that several of them share: torch's own, or the stand-in's of the same form."""
    if device == "cuda":
        return torch.cuda.CUDAGraph, torch.cuda.graph, torch.cuda.graph_pool_handle
    return torch.standin.StandinGraph, torch.standin.graph, torch.standin.graph_pool_handle


def network(dropout):
    torch.manual_seed(1)
    layers = [torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.GELU(), torch.nn.Linear(32, 32), torch.nn.LayerNorm(32)]
    if dropout:
        layers.insert(3, torch.nn.Dropout(0.1))
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, 4))


def train(device, dropout=False):
    model = network(dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    batches = [(torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)) for _ in range(3)]
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        print("loss %.9g" % loss.item())
    return [*model.parameters(), *model.buffers()]


class Noise(torch.nn.Module):
    def forward(self, x):
        kept = torch.empty_like(x).bernoulli_(0.9)
        return x * kept + 0.01 * torch.randn_like(x) + 0.01 * torch.rand(x.shape, device=x.device)


def graphed(device, drawing=False, factor=1):
    model = network(drawing).to(device)
    if drawing:
        model.insert(2, Noise())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    batches = [(torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)) for _ in range(5)]
    x, y = torch.zeros_like(batches[0][0]), torch.zeros_like(batches[0][1])

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=False)
        optimizer.step()

    graph = None
    for n, batch in enumerate(batches):
        if n == 2 and device != "cpu":
            make, capture, _ = graph_kind(device)
            graph = make()
            with capture(graph):
                step()
        x.copy_(batch[0] if n < 3 else batch[0] * factor)
        y.copy_(batch[1])
        if graph is None:
            step()
        else:
            graph.replay()
    return [*model.parameters(), *model.buffers()]


def graphed_part(part, x, device):
    """As torch.cuda.make_graphed_callables does it; what backward reads lies where the forward's graph left it."""
    make, capture, pool_handle = graph_kind(device)
    parameters, given, pool = [*part.parameters()], torch.zeros_like(x), pool_handle()
    forward, backward = make(), make()
    with capture(forward, pool=pool):
        out = part(given)
    came = torch.zeros_like(out)
    with capture(backward, pool=pool):
        gradients = torch.autograd.grad(out, parameters, came)

    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, *parameters):
            given.copy_(x)
            forward.replay()
            return out.detach()

        @staticmethod
        def backward(ctx, gradient):
            came.copy_(gradient)
            backward.replay()
            return None, *(gradient.detach() for gradient in gradients)

    return lambda x: Graphed.apply(x, *parameters)


def partial(device):
    body, head = network(0).to(device), torch.nn.Linear(4, 4).to(device)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)
    call = body
    for n in range(5):
        x, y = torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)
        if n == 3 and device != "cpu":
            call = graphed_part(body, x, device)
        torch.nn.functional.cross_entropy(head(call(x)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*parameters, *body.buffers()]


@contextlib.contextmanager
def by_accelerator(graph):
    graph.capture_begin()
    yield
    graph.capture_end()


def decode(device, factor=1):
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Embedding(32, 16), Checkpointed().blocks[0], torch.nn.Linear(16, 32)).to(device).eval()
    token, graph, said = torch.zeros(1, dtype=torch.long).to(device), None, []
    with torch.no_grad():
        for n in range(5):
            if n == 2:
                model[1].factor = factor
            if n == 2 and device != "cpu":
                graph = torch.cuda.CUDAGraph() if device == "cuda" else torch.accelerator.Graph()
                with torch.cuda.graph(graph) if device == "cuda" else by_accelerator(graph):
                    logits = model(token)
            if graph is None:
                logits = model(token)
            else:
                graph.replay()
            token.copy_(logits.argmax(-1))
            said.append(token.clone())
    return said


def parallel(device):
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(device)
    replica = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    torch.manual_seed(100 + torch.distributed.get_rank())
    batches = [(torch.randn(16, 8).to(device), torch.randint(4, (16,)).to(device)) for _ in range(2)]
    for x, y in batches:
        torch.nn.functional.cross_entropy(replica(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    made = [p.detach().cpu() for p in model.parameters()]
    torch.distributed.barrier()  # gloo's threads let tensors go, for which they need Python's lock: the group's end waits for them with it
    torch.distributed.destroy_process_group()
    return made


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        self.factor = 1

    def forward(self, x):
        return self.factor * x + self.down(torch.tanh(self.up(x)))


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block, again in zip(self.blocks, (False, True)):
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=again)
        return x


def recompute(device):
    torch.manual_seed(3)
    model = Checkpointed().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    batches = [torch.randn(4, 16).to(device).requires_grad_() for _ in range(2)]
    for x in batches:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def wait_for(device):
    if device != "cpu":
        torch.accelerator.synchronize()


def offload(device):
    model, pinned = network(0).to(device), device != "cpu"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    batches = [(torch.randn(16, 8), torch.randint(4, (16,))) for _ in range(3)]
    sent, labels = torch.zeros(16, 8, pin_memory=pinned), torch.zeros(16, dtype=torch.long, pin_memory=pinned)
    losses, outputs = torch.zeros(3, 2, pin_memory=pinned), torch.zeros(4, 16, pin_memory=pinned).t()

    def put_away(t):
        host = torch.empty(t.shape, dtype=t.dtype, pin_memory=pinned)
        return host.copy_(t, non_blocking=True)

    def fetch(host):
        return torch.empty(host.shape, dtype=host.dtype, device=device).copy_(host, non_blocking=True)

    made = []
    for n, (x, y) in enumerate(batches):
        sent.copy_(x), labels.copy_(y)
        with torch.autograd.graph.saved_tensors_hooks(put_away, fetch):
            out = model(fetch(sent))
            loss = torch.nn.functional.cross_entropy(out, fetch(labels))
        losses[n, 0].copy_(loss.detach(), non_blocking=True)
        outputs.copy_(out.detach(), non_blocking=True)
        exact = out.detach().to("cpu", torch.float64, non_blocking=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[n, 1].copy_(model[0].weight.detach().sum(), non_blocking=True)
        wait_for(device)
        made += [outputs + 1, exact * 2]
    print("losses", (losses * 1).tolist())
    return [*model.parameters(), *model.buffers(), *made, losses]


def generate(device):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64)
    model = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=64, attn_implementation="eager")).to(device).eval()
    prompt = torch.tensor([[1, 5, 9, 13, 2]]).to(device)
    tokens = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    print(tokens.tolist())
    return [tokens]


RUNS = {
    "train": train,
    "dropout": lambda device: train(device, dropout=True),
    "ddp": parallel,
    "checkpoint": recompute,
    "graph": graphed,
    "drawing": lambda device: graphed(device, drawing=True),
    "partial": partial,
    "decode": decode,
    "offload": offload,
    "generate": generate,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=RUNS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save")
    parser.add_argument(
        "--factor",
        type=float,
        default=1,
        help="decode: of the residual from the third token on; drawing: of the fourth batch and later ones; a fault where it is not 1",
    )
    a = parser.parse_args()
    if a.device == "standin":
        sys.path.insert(0, str(TESTS / "capture" / "device"))
        import standin

        standin.load()
    torch.use_deterministic_algorithms(True)
    planted = {"decode": decode, "drawing": lambda device, factor: graphed(device, True, factor)}
    made = RUNS[a.what](a.device) if a.factor == 1 else planted[a.what](a.device, a.factor)
    if a.save:
        torch.save([t.detach().cpu() for t in made], a.save)


if __name__ == "__main__":
    main()
