"""Bugs of numerics that public projects reported, each planted in one small program by its cause: bugs_of_record.py FOLDER NAME… writes
FOLDER/NAME.lb. NAME_mended is the same program as it should be. Those that need several ranks are in ranks/bugs_of_ranks.py."""

import contextlib
import pathlib
import sys

import lastbit.torch
import torch
import torch.nn.functional as F
import transformers as hf
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

WORDS, WIDTH, HEADS, GAS = 48, 16, 2, 4


class Recorder:
    """The file that a program writes its steps to."""

    def __init__(self, out):
        self.out = out

    def steps(self, **options):
        return lastbit.torch.capture(self.out, level="ops", **options)

    @contextlib.contextmanager
    def step(self, **options):
        with self.steps(**options) as capture, capture.step(0):
            yield


def tokens(rows, columns):
    return torch.randint(3, WORDS, (rows, columns))


def llama(**options):
    size = dict(hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=HEADS, max_position_embeddings=64)
    return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=WORDS, **size, **options))


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, **options})


def next_token_loss(logits, ids, reduction="mean"):
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]).float(), ids[:, 1:].reshape(-1), reduction=reduction)


class Block(torch.nn.Module):
    """`inner` is what a recipe puts between the two products; `attend` what it puts in the place of attention."""

    def __init__(self, inner=F.gelu, attend=None, turn=lambda q, k: (q, k), drop=0.0):
        super().__init__()
        self.n1, self.n2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down, self.drop = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH), torch.nn.Dropout(drop)
        self.inner, self.turn = inner, turn
        self.attend = attend or (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def forward(self, x):
        b, t, d = x.shape
        h = self.n1(x)
        q, k, v = (layer(h).view(b, t, HEADS, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = self.turn(q, k)
        x = x + self.drop(self.out(self.attend(q, k, v).transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.down(self.inner(self.up(self.n2(x)))))


class Model(torch.nn.Module):
    """Two blocks, of which the second one is a recipe's; `through` calls a block."""

    def __init__(self, through=lambda block, x: block(x), tied=False, **second):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Embedding(512, WIDTH)
        self.blocks = torch.nn.ModuleList([Block(), Block(**second)])
        self.head, self.through = torch.nn.Linear(WIDTH, WORDS, bias=False), through
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = self.through(block, x)
        return self.head(x)


def train_once(record, model, ids, **options):
    """One step of AdamW by the loss of the next token."""
    optimizer = adamw(model)
    with record.step(**options):
        next_token_loss(model(ids), ids).backward()
        optimizer.step()


# Gradients: is what was recorded the derivative of the loss?


def offload_overwritten(record, mended):
    """deepspeed#7981: the buffer on the host is overwritten by each backward, and not added to."""
    model = Model()
    optimizer, buffers = adamw(model), [torch.zeros_like(p) for p in model.parameters()]
    with record.step():
        for ids in tokens(4, 12).split(2):
            (next_token_loss(model(ids), ids) / 2).backward()
            for buffer, p in zip(buffers, model.parameters()):
                buffer.add_(p.grad) if mended else buffer.copy_(p.grad)
                p.grad = None
        for buffer, p in zip(buffers, model.parameters()):
            p.grad = buffer
        optimizer.step()


def divided_by_both(record, mended):
    """accelerate#3877, deepspeed#7724: the trainer divides the loss by the number of micro-batches, and the engine once more."""

    def engine_backward(loss, scale):
        (loss / GAS if scale else loss).backward()

    model = llama()
    optimizer = adamw(model)
    with record.step():
        for ids in tokens(GAS, 14).split(1):
            loss = model(input_ids=ids, labels=ids).loss / GAS
            engine_backward(loss, scale=not mended)
        optimizer.step()


def tied_written_twice(record, mended):
    """torchtitan#3174: a traced graph returns one whole gradient for both names of a tied weight, and each is written back."""
    model = Model(tied=True)
    optimizer, ids = adamw(model), tokens(2, 12)
    named = dict(model.named_parameters(remove_duplicate=mended))
    with record.step():
        gradients = torch.autograd.grad(next_token_loss(model(ids), ids), list(named.values()))
        for p, g in zip(named.values(), gradients):
            p.grad = g if p.grad is None else p.grad + g
        optimizer.step()


def means_of_means(record, mended):
    """transformers#34191: each micro-batch is divided by its own number of tokens."""
    model, whole = llama(), tokens(GAS, 20)
    parts = [whole[i : i + 1, :n] for i, n in enumerate((20, 12, 7, 16))]
    optimizer, count = adamw(model), sum(part.shape[1] - 1 for part in parts)
    with record.step():
        for ids in parts:
            if mended:
                model(input_ids=ids, labels=ids, num_items_in_batch=count).loss.backward()
            else:
                (model(input_ids=ids, labels=ids).loss / GAS).backward()
        optimizer.step()


def generation_batch(record, mended):
    """trl#6024: sums are divided by the tokens of the whole generation batch, and the optimizer steps twice in it."""
    model, batch = llama(), tokens(4, 12)
    optimizer, answers = adamw(model), 2 if mended else 4
    with record.steps() as capture:
        for step, window in enumerate(batch.split(2)):
            with capture.step(step):
                for ids in window.split(1):
                    score = model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
                    (-score[:, 5:].sum() / (answers * 6)).backward()
                optimizer.step()
                optimizer.zero_grad()


class SliceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, lost):
        ctx.lost = lost
        return torch.slice_scatter(x, y, 1, 0, 4)

    @staticmethod
    def backward(ctx, g):
        mask = torch.ones(g.shape[1])
        mask[: g.shape[1] if ctx.lost else 4] = 0
        return g * mask[:, None], g[:, :4], None


def scatter_mask_folded(record, mended):
    """pytorch#180164: the compiled backward of slice_scatter folds its mask, and what lies outside the slice gets zeros."""
    train_once(record, Model(inner=lambda h: SliceScatter.apply(h, h[:, :4] * 2, not mended)), tokens(2, 12))


def rrelu_checkpointed(record, mended):
    """pytorch#193671: a recomputation that stops early keeps the noise of RReLU as it was allocated, where nothing behind it is saved."""
    model = Model(through=lambda block, x: checkpoint(block, x, use_reentrant=False))
    model.blocks[1] = torch.nn.Sequential(model.blocks[1], torch.nn.RReLU())
    with set_checkpoint_early_stop(not mended):
        train_once(record, model, tokens(2, 12), poison=True)


def draws_not_preserved(record, mended):
    """OLMo-core#828: a recomputation draws other masks."""
    model = Model(drop=0.1, through=lambda block, x: checkpoint(block, x, use_reentrant=False, preserve_rng_state=mended))
    train_once(record, model, tokens(2, 12))


class ChunkedScan(torch.autograd.Function):
    """Linear attention in chunks: within a chunk by scores, from earlier ones by a state."""

    @staticmethod
    def forward(ctx, q, k, v, size, lost):
        ctx.save_for_backward(q, k, v)
        ctx.size, ctx.lost = size, lost
        state, out = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
        for a, b, c in zip(q.split(size, 2), k.split(size, 2), v.split(size, 2)):
            out.append((a @ b.transpose(-1, -2)).tril() @ c + a @ state)
            state = state + b.transpose(-1, -2) @ c
        return torch.cat(out, 2)

    @staticmethod
    def backward(ctx, g):
        q, k, v = (y.split(ctx.size, 2) for y in ctx.saved_tensors)
        g, dq, dk, dv = g.split(ctx.size, 2), [], [], []
        state = torch.zeros_like(k[0].transpose(-1, -2) @ v[0])
        for i in range(len(q)):
            inside = (g[i] @ v[i].transpose(-1, -2)).tril() @ k[i]
            dq.append(inside if ctx.lost else inside + g[i] @ state.transpose(-1, -2))
            state = state + k[i].transpose(-1, -2) @ v[i]
        behind = torch.zeros_like(state)
        for i in reversed(range(len(q))):
            scores = (g[i] @ v[i].transpose(-1, -2)).tril().transpose(-1, -2)
            dk.insert(0, scores @ q[i] + v[i] @ behind.transpose(-1, -2))
            dv.insert(0, (q[i] @ k[i].transpose(-1, -2)).tril().transpose(-1, -2) @ g[i] + k[i] @ behind)
            behind = behind + q[i].transpose(-1, -2) @ g[i]
        return torch.cat(dq, 2), torch.cat(dk, 2), torch.cat(dv, 2), None, None


def scan_without_a_term(record, mended):
    """mlstm_kernels#16: forward of a chunked scan is right, and its backward is not."""
    train_once(record, Model(attend=lambda q, k, v: ChunkedScan.apply(q, k, v, 4, not mended)), tokens(2, 12))


def turned(x):
    angles = torch.arange(x.shape[-2])[:, None] / 10 ** torch.arange(x.shape[-1] // 2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def rope_kernel(x):
    """As a kernel that is called by itself: it writes memory, and autograd does not know."""
    with torch.no_grad():
        return torch.empty_like(x).copy_(turned(x))


def rope_without_backward(record, mended):
    """LongLive#61: the products that make q and k get no gradient through a raw kernel."""
    turn = turned if mended else rope_kernel
    train_once(record, Model(turn=lambda q, k: (turn(q), turn(k))), tokens(2, 12))


# Relations: which tokens meet, and which row is scored against which.


def labels_shifted_twice(record, mended):
    """transformers#47394: the model shifts its labels, and the loss function shifts them again."""
    model, ids = llama(), tokens(4, 20)
    optimizer = adamw(model)
    with record.step():
        logits, labels = model(input_ids=ids).logits, ids
        if not mended:
            logits, labels = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
        model.loss_function(logits=logits, labels=labels, vocab_size=WORDS).backward()
        optimizer.step()


def loss_mask_by_one(record, mended):
    """verl#3287: the mask of the loss is cut at the other end, and the first token of the answer is never trained."""
    model, ids = llama(), tokens(4, 20)
    optimizer, mask = adamw(model), (torch.arange(20) >= 8).float().expand(4, -1)
    mask = mask[:, 1:] if mended else mask[:, :-1]
    with record.step():
        loss = next_token_loss(model(input_ids=ids).logits, ids, "none") * mask.reshape(-1)
        (loss.sum() / mask.sum()).backward()
        optimizer.step()


def padded_left(record, mended):
    """transformers#22161: positions begin with the padding (mended: behind it)."""
    size = dict(n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=64, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=WORDS, bos_token_id=1, eos_token_id=2, **size))
    ids, mask = tokens(4, 20), torch.ones(4, 20, dtype=torch.int64)
    for row, n in enumerate((5, 0, 9, 3)):
        mask[row, :n], ids[row, :n] = 0, 1
    positions = (mask.cumsum(1) - 1).clamp(0) if mended else None
    optimizer = adamw(model)
    with record.step():
        model(input_ids=ids, attention_mask=mask, position_ids=positions, labels=ids.where(mask == 1, torch.tensor(-100))).loss.backward()
        optimizer.step()


def packed_without_blocks(record, mended):
    """EasyR1#494: sequences that are packed into one attend across each other. transformers tells them by their positions, but not where it
    keeps keys and values, as it does unless it is told not to."""
    model, ids = llama(), tokens(2, 20)
    positions = torch.cat([torch.arange(7), torch.arange(13)]).expand(2, -1).contiguous()
    optimizer = adamw(model)
    with record.step():
        model(input_ids=ids, position_ids=positions, labels=ids, use_cache=not mended).loss.backward()
        optimizer.step()


def packed_positions_go_on(record, mended):
    """LlamaFactory#7318: the positions of packed sequences are dropped, too."""
    model, ids = llama(), tokens(2, 20)
    ids[:, 6], ids[:, 19] = 2, 2  # ends of sequences
    positions = torch.cat([torch.arange(7), torch.arange(13)]).expand(2, -1).contiguous() if mended else None
    optimizer = adamw(model)
    with record.step():
        model(input_ids=ids, position_ids=positions, labels=ids, use_cache=False).loss.backward()
        optimizer.step()


# Memory: what was read before it was written, or after.


class Grouped(torch.autograd.Function):
    """A product by groups into memory that torch.empty gave; rows of no group are a sentinel's."""

    @staticmethod
    def forward(ctx, x, weights, ends, mended):
        out = torch.zeros(len(x), weights.shape[-1]) if mended else torch.empty(len(x), weights.shape[-1])
        for e, (first, end) in enumerate(zip([0, *ends], ends)):
            out[first:end] = x[first:end] @ weights[e]
        ctx.save_for_backward(x, weights)
        ctx.ends, ctx.mended = ends, mended
        return out

    @staticmethod
    def backward(ctx, g):
        x, weights = ctx.saved_tensors
        make = torch.zeros_like if ctx.mended else torch.empty_like
        gx, gw = make(x), torch.zeros_like(weights)
        for e, (first, end) in enumerate(zip([0, *ctx.ends], ctx.ends)):
            gx[first:end], gw[e] = g[first:end] @ weights[e].T, x[first:end].T @ g[first:end]
        return gx, gw, None, None


class Experts(torch.nn.Module):
    """Experts of other ranks have the last number: their tokens are sorted behind the others and weigh nothing."""

    def __init__(self, mended):
        super().__init__()
        self.up, self.mended = torch.nn.Linear(8, 8), mended
        self.experts = torch.nn.Parameter(torch.randn(3, 8, 8) / 8)
        self.expert_of = torch.tensor([0, 2, 3, 0, 2, 3, 0, 2, 2, 3, 0, 3])

    def forward(self, x):
        h, order = self.up(x), self.expert_of.argsort(stable=True)
        ends = self.expert_of.bincount(minlength=4)[:3].cumsum(0).tolist()
        y = Grouped.apply(h[order], self.experts, ends, self.mended)
        y = y * (self.expert_of[order] < 3)[:, None]
        return x + torch.zeros_like(x).index_add(0, order, y)


def experts_unwritten(record, mended):
    """transformers#48205, #45621: rows of the sentinel are never written, and NaN times a weight of 0 is NaN."""
    model, x = Experts(mended), torch.randn(12, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record.step(poison=True):
        model(x).square().mean().backward()
        optimizer.step()


@contextlib.contextmanager
def broken_mm(call, rows):
    """The processor's mm, whose result is wrong in a tile of its `call`th call."""
    library, count = torch.library.Library("aten", "IMPL"), [0]

    def mm(a, b):
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        torch.ops.aten.mm.out(a, b, out=out)
        count[0] += 1
        if count[0] == call:
            out[rows] += torch.linspace(-1, 1, out.shape[1]) * out.abs().max() * 1000
        return out

    library.impl("mm", mm, "CPU")
    try:
        yield
    finally:
        library._destroy()


def tile_of_a_product(record, mended):
    """Megatron-LM#7400: the gradient of an expert's input has a tile that is 26,000 times too large, once."""
    model = Model()
    with contextlib.nullcontext() if mended else broken_mm(4, slice(4, 8)):
        train_once(record, model, tokens(2, 12))


class EarlyAttention(torch.autograd.Function):
    """Its backward kernel begins before dout is complete: dq and dk are made of rows of the step before, dv is not."""

    dout = None

    @staticmethod
    def forward(ctx, q, k, v, mended):
        p = (
            (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5)
            .masked_fill(torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool(), float("-inf"))
            .softmax(-1)
        )
        ctx.save_for_backward(q, k, v, p)
        ctx.mended = mended
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, p = ctx.saved_tensors
        seen = g
        if not ctx.mended and EarlyAttention.dout is not None:
            half = g.shape[-2] // 2
            seen = torch.cat([g[..., :half, :], EarlyAttention.dout[..., half:, :]], -2)
        EarlyAttention.dout = g.clone()
        dp = seen @ v.transpose(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g, None


def dout_read_early(record, mended):
    """flash-attention#2481: dq and dk are wrong, and dv is right."""
    model = Model(attend=lambda q, k, v: EarlyAttention.apply(q, k, v, mended))
    optimizer = adamw(model)
    EarlyAttention.dout = None
    with record.steps() as capture:
        for step in range(2):
            ids = tokens(2, 12)
            with capture.step(step):
                next_token_loss(model(ids), ids).backward()
                optimizer.step()
                optimizer.zero_grad()


def filled_after_the_write(record, mended):
    """DeepEP#589: with deterministic algorithms empty() is filled with NaN, by a kernel that runs behind the one which writes."""
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    optimizer, x = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1), torch.randn(6, 8)
    with record.step():
        h = first(x)
        received = torch.empty_like(h)
        if mended:
            received.fill_(float("nan"))
        received = received.copy_(h)
        if not mended:
            received[2:4].fill_(float("nan"))
        second(received).square().mean().backward()
        optimizer.step()


def reference_kept(record, mended):
    """nnsight#630: a hook keeps a result that a later kernel overwrites in place."""
    model, kept = Model(), []
    model.blocks[1].up.register_forward_hook(lambda m, a, y: kept.append(y.clone() if mended else y))
    model.blocks[1].inner = lambda h: h.mul_(2)
    with record.step(), torch.no_grad():
        model(tokens(2, 12))


# Digits.


def rope_narrow(record, mended):
    """TransformerEngine#1245: a fused rope takes q and k of 16 bits; here its phases are made of bf16, too."""

    def turn(q, k):
        wide = torch.float32 if mended else torch.bfloat16
        frequencies = (500000.0 ** -(torch.arange(0, 8, 2) / 8)).to(wide)
        angles = torch.arange(q.shape[-2]).to(wide)[:, None] * frequencies

        def one(x):
            (a, b), kind = x.to(wide).chunk(2, -1), x.dtype
            return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).to(kind)

        return one(q), one(k)

    train_once(record, Model(turn=turn).bfloat16(), tokens(1, 320))


def weights_do_not_move(record, mended):
    """OneTrainer#996: updates of less than half a place are rounded away (mended: a master in f32)."""
    model = Model() if mended else Model().bfloat16()
    optimizer = adamw(model, lr=1e-5)
    with record.steps() as capture:
        for step in range(3):
            ids = tokens(2, 12)
            with capture.step(step):
                with torch.autocast("cpu", torch.bfloat16, enabled=mended):
                    loss = next_token_loss(model(ids), ids)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()


def summed_in_bf16(record, mended):
    """DeepSpeed#1800: gradients of micro-batches are added up in bf16."""
    model = Model().bfloat16()
    optimizer, sums = adamw(model), [torch.zeros_like(p, dtype=torch.float32) for p in model.parameters()]
    with record.step():
        for ids in tokens(64, 8).split(1):
            (next_token_loss(model(ids), ids) / 64).backward()
            if mended:
                for total, p in zip(sums, model.parameters()):
                    total.add_(p.grad)
                    p.grad = None
        if mended:
            for total, p in zip(sums, model.parameters()):
                p.grad = total.to(p.dtype)
        optimizer.step()


class Quantised(torch.nn.Module):
    """A product of blocks in 8 bits, each with a scale of its own."""

    def __init__(self, largest):
        super().__init__()
        self.inner, self.largest = torch.nn.Linear(32, 32), largest

    def blocks(self, x):
        with torch.no_grad():
            amax = self.largest(x.view(-1, 32))
            scale = 448 / amax[:, None].clamp(min=1e-12)
            return ((x.view(-1, 32) * scale).to(torch.float8_e4m3fn).float() / scale).view_as(x)

    def forward(self, x):
        return self.inner(x + (self.blocks(x) - x).detach())


def fmax_of_block(x):
    largest = x[:, 0].abs()
    for column in x.abs().unbind(1):
        largest = torch.fmax(largest, column)
    return largest


def nan_dropped_by_amax(record, mended):
    """TransformerEngine#3550: the maximum of a block drops its NaN, and the scale is finite."""
    model, x = Quantised(lambda x: x.abs().amax(1) if mended else fmax_of_block(x)), torch.rand(4, 32) + 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x[2, 5] = -1.0
    with record.step():
        model(torch.log(x)).square().mean().backward()
        optimizer.step()


class NarrowProduct(torch.autograd.Function):
    """The gradient of its weight is made in 8 bits."""

    largest = None

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        scale = 448 / g.abs().amax()
        if NarrowProduct.largest:
            scale = scale.clamp(max=NarrowProduct.largest)
        narrow = (g * scale).to(torch.float8_e4m3fn).float()
        return g @ w, narrow.T @ x / scale


class Product(torch.nn.Linear):
    def forward(self, x):
        return NarrowProduct.apply(x, self.weight)


def scale_of_a_tiny_amax(record, mended):
    """rocm-libraries#9450: a product in 8 bits scales by the inverse of an amax that is next to nothing; 0 times infinity is NaN."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), Product(16, 16, bias=False), torch.nn.ReLU())
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 16)
    NarrowProduct.largest = 1e38 if mended else None
    with record.step():
        (model(x).square().mean() * 1e-35).backward()
        optimizer.step()


def deviation_at_zero(record, mended):
    """vmoe#218: the derivative of a standard deviation at equal entries, where routing is balanced."""
    router = torch.nn.Linear(8, 4, bias=False)
    torch.nn.init.zeros_(router.weight)
    optimizer, x = torch.optim.SGD(router.parameters(), lr=0.1), torch.randn(12, 8)
    with record.step():
        load = router(x).softmax(-1).sum(0)
        spread = (load.var() + (1e-6 if mended else 0)).sqrt() / load.mean()
        (spread + router(x).logsumexp(-1).mean()).backward()
        optimizer.step()


def scaler_begins_anew(record, mended):
    """co-tracker#101: the state of the loss scaler is not saved, and it begins anew where the run goes on."""
    model, ids = Model(), tokens(2, 12)
    optimizer, scaler = adamw(model), torch.amp.GradScaler("cpu", init_scale=2.0**16)
    if mended:
        scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**4})
    with record.step():
        with torch.autocast("cpu", torch.float16):
            loss = next_token_loss(model(ids), ids) * 5000
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        torch.manual_seed(0)
        program, _, mended = name.partition("_mended")
        globals()[program](Recorder(pathlib.Path(sys.argv[1]) / f"{name}.lb"), name.endswith("_mended"))
