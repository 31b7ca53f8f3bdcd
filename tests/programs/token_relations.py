"""Steps of tiny language models that keep, or break, a relation between tokens: token_relations.py FOLDER NAME… writes FOLDER/NAME.lb.
NAME@ROWS,COLUMNS,WIDTH,HEADS is of another shape."""

import pathlib
import sys

import lastbit.torch
import torch
import torch.nn.functional as F

VOCABULARY, PAD = 48, 0


class Attention(torch.nn.Module):
    def __init__(self, d, heads, name):
        super().__init__()
        self.qkv, self.out, self.heads, self.name = torch.nn.Linear(d, 3 * d), torch.nn.Linear(d, d), heads, name
        self.past = None

    def weights(self, scores, allowed):
        t, keys = scores.shape[-2:]
        diagonal = 2 if self.name == "future_mask_by_one" else 1 + keys - t
        scores = scores.masked_fill(torch.ones(t, keys, dtype=torch.bool).triu(diagonal), float("-inf"))
        if self.name == "future_softmax_of_queries":
            return scores.softmax(-2).nan_to_num()
        return (scores if allowed is None else scores + allowed).softmax(-1)

    def forward(self, x, allowed):
        b, t, d = x.shape
        heads = (b, t, self.heads, d // self.heads)
        if self.name == "rows_heads_viewed":
            q, k, v = (y.reshape(self.heads, b, t, -1).transpose(0, 1) for y in self.qkv(x).transpose(0, 1).chunk(3, -1))
        else:
            q, k, v = (y.view(heads).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if self.name == "carried_cache":  # a cache that no one clears
            if self.past is not None:
                k, v = torch.cat([self.past[0], k], 2), torch.cat([self.past[1], v], 2)
            self.past = k.detach(), v.detach()
        if self.name.startswith("sdpa"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.name != "sdpa_not_causal")
        else:
            y = self.weights(q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5, allowed) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(torch.nn.Module):
    def __init__(self, d, heads, name, index):
        super().__init__()
        self.name, self.index = name, index
        faults = ("future_mask_by_one", "future_softmax_of_queries", "sdpa_not_causal", "rows_heads_viewed", "carried_cache")
        faulty = name in faults and index == 0
        self.attention = Attention(d, heads, "sdpa" if name == "sdpa_not_causal" and not faulty else name if faulty or name == "sdpa" else "")
        self.n1, self.n2 = torch.nn.LayerNorm(d), torch.nn.LayerNorm(d)
        self.up, self.down = torch.nn.Linear(d, 2 * d), torch.nn.Linear(2 * d, d)
        self.conv = torch.nn.Conv1d(d, d, 3, groups=d) if name.startswith(("conv", "future_conv")) else None
        self.batch = torch.nn.BatchNorm1d(d) if name == "batch_norm" else None
        self.register_buffer("mean", torch.zeros(d))
        if name.startswith("experts"):
            n = 8 if name == "experts_found" else 3
            self.router, self.experts = torch.nn.Linear(d, n), torch.nn.ModuleList(torch.nn.Linear(d, 2 * d) for _ in range(n))

    def keep_mean(self, h):
        """A mean over all batches so far; whether this one sees it is the question."""
        seen = h - self.mean if self.name in ("carried_mean", "stream") else h
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean((0, 1)), alpha=0.1)
        return seen

    def give_to_experts(self, h):
        """Tokens in the order of their experts, cut by a list of Python's: other tokens would be cut elsewhere."""
        flat = h.flatten(0, 1)
        gates, chosen = self.router(flat).softmax(-1).max(-1)
        if self.name == "experts_found":  # as many as there are for each
            out = torch.zeros(flat.shape[0], 2 * flat.shape[1])
            hit = F.one_hot(chosen, len(self.experts)).sum(0).gt(0).nonzero()
            for number in hit:
                (found,) = torch.where(chosen == number[0])
                out.index_add_(0, found, self.experts[number[0]](flat[found]) * gates[found, None])
            return out.view(*h.shape[:2], -1)
        order, sizes = chosen.sort(stable=True)[1], F.one_hot(chosen, 3).sum(0).tolist()
        parts = [expert(part) for expert, part in zip(self.experts, flat[order].split(sizes))]
        out = torch.zeros(flat.shape[0], 2 * flat.shape[1]).index_add(0, order, torch.cat(parts) * gates[order, None])
        return out.view(*h.shape[:2], -1)

    def forward(self, x, allowed):
        if self.conv is not None:
            pad = (1, 1) if self.name == "future_conv" and self.index == 1 else (2, 0)
            x = x + self.conv(F.pad(x.transpose(1, 2), pad)).transpose(1, 2)
        if self.batch is not None:
            x = self.batch(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.attention(self.n1(x), allowed)
        h = self.n2(x)
        if self.name in ("carried_mean", "stream", "mean_kept") and self.index == 1:
            h = self.keep_mean(h)
        if self.name == "future_norm_of_sequence" and self.index == 1:
            h = h / h.std((1, 2), keepdim=True)
        if self.name == "rows_scale_of_batch" and self.index == 1:
            h = h / h.abs().amax()
        if self.name == "rows_mean_of_batch" and self.index == 1:
            h = h + h.mean(0, keepdim=True)
        if self.name == "rows_first_of_batch" and self.index == 0:
            h = h * h[:1].sigmoid()
        h = self.give_to_experts(h) if self.name.startswith("experts") else self.up(h)
        if self.name == "future_mean" and self.index == 0:
            h = h + h.mean(1, keepdim=True)
        if self.name == "prefix_mean":
            h = h + h.cumsum(1) / torch.arange(1, h.shape[1] + 1)[:, None]
        if self.name == "chunk_leak" and self.index == 1:
            b, t, d = h.shape
            h = h + h.view(b, t // 4, 4, d).mean(2, keepdim=True).expand(b, t // 4, 4, d).reshape(b, t, d)
        return x + self.down(F.gelu(h))


class Model(torch.nn.Module):
    def __init__(self, name, d, heads):
        super().__init__()
        self.name = name
        self.wte, self.wpe = torch.nn.Embedding(VOCABULARY, d), torch.nn.Embedding(64, d)
        self.blocks = torch.nn.ModuleList(Block(d, heads, name, i) for i in range(2))
        self.head = torch.nn.Linear(d, VOCABULARY)
        self.ahead = torch.nn.Linear(d, VOCABULARY) if name == "two_heads" else None
        self.second = torch.nn.Embedding(VOCABULARY, d) if name == "two_tables" else None
        if self.second is not None:  # what is looked up there changes nothing yet
            torch.nn.init.zeros_(self.second.weight)

    def forward(self, ids, positions=None, allowed=None):
        positions = torch.arange(ids.shape[1]) if positions is None else positions
        if self.name.startswith("tokens_first"):
            x = self.wte(ids.t().contiguous()) + self.wpe(positions)[:, None]
            x = x + (x.mean(0) if self.name == "tokens_first_mean" else x.cumsum(0) / 64)
            x = x.transpose(0, 1)
        else:
            x = self.wte(ids) + self.wpe(positions)
        if self.second is not None:
            x = x + self.second(torch.where(ids < VOCABULARY, ids, 0))
        for i, block in enumerate(self.blocks):
            x = block(x, None if self.name.endswith("_once") and i == 1 else allowed)
        return (self.head(x), self.ahead(x)) if self.ahead else self.head(x)


def documents(name, ids):
    """Documents of 7 and 13 tokens; attention is told of them unless that is the fault."""
    lengths = (7, ids.shape[1] - 7)
    positions = torch.cat([torch.arange(n) for n in lengths]).expand(ids.shape[0], -1).contiguous()
    number = torch.cat([torch.full((n,), float(i)) for i, n in enumerate(lengths)])
    allowed = torch.where(number[:, None] == number, 0.0, float("-inf"))
    return positions, None if name == "documents_meet" else allowed


def padded(name, ids, left):
    """Sequences of other lengths: ids, labels, the mask over keys."""
    mask = torch.ones_like(ids)
    for row, n in enumerate((5, 0, 9, 3)[: len(ids)]):
        place = slice(0, n) if left else slice(ids.shape[1] - n, None)
        mask[row, place] = 0
    ids = torch.where(mask == 1, ids, PAD)
    return ids, torch.where(mask == 1, ids, -100), mask


def squares(name, ids, labels, positions, allowed):
    """Masks of tokens by tokens; of documents nothing else tells."""
    t = ids.shape[1]
    causal = torch.full((t, t), torch.finfo(torch.float32).min).triu(1)
    if "documents" in name:
        return ids, labels, None, (allowed + causal).clamp(min=torch.finfo(torch.float32).min)
    ids, labels, mask = padded(name, ids, left=True)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return ids, labels, positions, torch.where(mask[:, None, None] == 0, causal.min(), causal)


def own_model_loss(name, ids, d, heads):
    model = Model(name, d, heads)
    labels, positions, allowed = ids, None, None
    if name == "next_tokens":  # a batch of inputs and one of targets, cut out of one stream of tokens
        stream = torch.randint(1, VOCABULARY, (ids.numel() + 1,))
        ids, labels = stream[:-1].view(ids.shape).clone(), stream[1:].view(ids.shape).clone()
    if "documents" in name:
        positions, allowed = documents(name, ids)
    if name.startswith("padding"):
        ids, labels, mask = padded(name, ids, left=True)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        allowed = (1 - mask[:, None, None].float()) * torch.finfo(torch.float32).min
    if name.startswith("squares"):  # as they come from a loader that makes masks
        ids, labels, positions, allowed = squares(name, ids, labels, positions, allowed)
    yield model
    if name == "padding_shifts":
        positions = None
    if name == "padding_weakly":
        allowed = (1 - mask[:, None, None].float()) * -2.0
    logits = model(ids, positions, allowed)
    loss = 0
    if name == "two_heads":
        logits, ahead = logits
        loss = F.cross_entropy(ahead[:, :-2].reshape(-1, VOCABULARY), labels[:, 2:].reshape(-1))
    if name == "target_twice":
        logits, labels = logits[:, :-1], labels[:, 1:]
    if name == "chosen":
        yield -logits[:, :-1].log_softmax(-1).gather(-1, labels[:, 1:, None]).mean()
    if name == "next_tokens":
        yield F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))
    yield loss + F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1))


def llama_loss(name, ids, d, heads):
    import transformers as hf  # takes seconds

    config = hf.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=d, intermediate_size=32, num_hidden_layers=2, num_attention_heads=heads, max_position_embeddings=64
    )
    config._attn_implementation = "eager" if "eager" in name else "sdpa"
    model = hf.LlamaForCausalLM(config)
    left = "left" in name
    ids, labels, mask = padded(name, ids, left)
    if left:
        mask[1, :2] = 0
    yield model
    if name == "llama_target_twice":
        logits = model(input_ids=ids, attention_mask=mask).logits
        yield model.loss_function(logits=logits[:, :-1].contiguous(), labels=labels[:, 1:].contiguous(), vocab_size=VOCABULARY)
    yield model(input_ids=ids, attention_mask=mask, labels=labels).loss


def train(name, out):
    name, _, shape = name.partition("@")
    rows, columns, d, heads = map(int, shape.split(",")) if shape else (4, 20, 16, 2)
    torch.manual_seed(0)
    ids = torch.randint(1, VOCABULARY, (rows, columns))
    parts = [ids]
    if name.startswith("means"):
        parts = [ids[:1], ids[1:2, :12], ids[2:3, :7], ids[3:, :16]]
    if name in ("micro_batches", "divided_twice", "summed", "carried_cache", "carried_mean", "mean_kept"):
        parts = list(ids.split(1))
    if name == "stream":  # chunks of one stream a row, one token more than is read
        parts = [ids[:, i : i + 7].clone() for i in (0, 6, 12)]
    losses = (llama_loss if name.startswith("llama") else own_model_loss)(name, parts[0], d, heads)
    model = next(losses)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with lastbit.torch.capture(out, level="ops") as capture, capture.step(0):
        if len(parts) > 1:
            tokens = sum(part.shape[1] - 1 for part in parts)
            for part in parts:
                logits = model(part)[:, :-1].reshape(-1, VOCABULARY)
                total = F.cross_entropy(logits, part[:, 1:].reshape(-1), reduction="sum" if name == "means_of_all" else "mean")
                divisor = {"means_of_all": tokens, "divided_twice": len(parts) ** 2, "summed": 1}.get(name, len(parts))
                (total / divisor).backward()
        else:
            next(losses).backward()
        optimizer.step()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        train(name, pathlib.Path(sys.argv[1]) / f"{name}.lb")
