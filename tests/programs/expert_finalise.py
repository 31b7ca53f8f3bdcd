"""One forward pass of a tiny Qwen3-MoE whose experts' outputs are put together as --finalise says. Every other expert's router row is all but that
of its neighbour, so that many choices are near ties; --nudge moves
elements of the second layer's attention by one unit in the last place, as an exponential of another library does now and then."""

import argparse
import types
import warnings

import torch
import torch.nn.functional as F
import transformers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--finalise", choices=["eager", "bmm", "ranks", "slots"], default="eager", help="`ranks` and `slots`: DeepEP's combines")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--apart", type=float, default=0.02, help="how far the rows of two neighbours in the router are apart")
parser.add_argument("--tokens", type=int, default=32, help="in each of two rows")
parser.add_argument("--nudge", type=int, default=0, help="so many elements of the second layer's attention")
parser.add_argument("--rolled", action="store_true", help="a fault: the last layer's experts' outputs go to the next token")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
config = transformers.Qwen3MoeConfig(
    vocab_size=256,
    hidden_size=args.hidden,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=128,
    moe_intermediate_size=32,
    num_experts=8,
    num_experts_per_tok=4,
    head_dim=16,
    norm_topk_prob=True,
    max_position_embeddings=256,
    use_cache=False,
)
config._experts_implementation = "eager"
model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, args.dtype))
tokens = torch.randint(0, 256, (2, args.tokens))


def finalise(self, hidden, ids, weights):
    count, chosen = ids.shape
    order = ids.reshape(-1).argsort(stable=True)
    token = order // chosen
    parts, start = [], 0
    for expert, rows in enumerate(torch.bincount(ids.reshape(-1), minlength=self.num_experts).tolist()):
        gate, up = F.linear(hidden[token[start : start + rows]], self.gate_up_proj[expert]).chunk(2, -1)
        parts.append(F.linear(self.act_fn(gate) * up, self.down_proj[expert]))
        start += rows
    sorted_rows = torch.cat(parts)
    back = torch.empty_like(sorted_rows)
    back[order] = sorted_rows
    back = back.view(count, chosen, -1)
    if self.rolled:
        back = back.roll(1, 0)
    if args.finalise == "bmm":
        return torch.bmm(weights[:, None, :].to(back.dtype), back)[:, 0]
    if args.finalise == "slots":
        total = torch.zeros(hidden.shape)
        for k in range(chosen):
            total.addcmul_(back[:, k].float(), weights[:, k, None].float())
        return total.to(hidden.dtype)
    total = 0
    for rank in range(4):  # each rank adds its experts' and rounds; then ranks are added
        mine = ids // (self.num_experts // 4) == rank
        total = total + (back.float() * (weights.float() * mine)[..., None]).sum(1).to(hidden.dtype).float()
    return total.to(hidden.dtype)


with torch.no_grad():
    for i, layer in enumerate(model.model.layers):
        layer.mlp.gate.weight[1::2] = layer.mlp.gate.weight[::2] + args.apart * layer.mlp.gate.weight[1::2]
        layer.mlp.experts.rolled = args.rolled and i == 2
        if args.finalise != "eager" or layer.mlp.experts.rolled:
            layer.mlp.experts.forward = types.MethodType(finalise, layer.mlp.experts)
    if args.nudge:
        name, calls = "aten::_scaled_dot_product_flash_attention_for_cpu", []
        kernel = torch.library.get_kernel(name, "CPU")

        def nudged(keys, query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
            out, sums = kernel.call_boxed(keys, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
            calls.append(0)
            if len(calls) == 2:
                bits = out.view({2: torch.int16, 4: torch.int32}[out.itemsize])
                for n in range(args.nudge):
                    bits[n % 2, n // 2 % 4, n // 8, 0] ^= 1
            return out, sums

        library = torch.library.Library("aten", "IMPL")
        warnings.simplefilter("ignore")
        library.impl(name.removeprefix("aten::"), nudged, "CPU", with_keyset=True)
    model(input_ids=tokens)
