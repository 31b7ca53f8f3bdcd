"""MoE decisions: what a router gave. Routers are recognised by what they return, not by their library."""

import torch

_INTEGERS = (torch.int64, torch.int32)


class Routing:
    def __init__(self, session):
        self.session = session
        self.kinds = {}  # class -> may be a router

    def left(self, module, scope, call, output):
        kind = type(module)
        known = self.kinds.get(kind)
        if known is None:
            name = kind.__name__.lower()
            known = self.kinds[kind] = "router" in name or "gate" in name or "topk" in name or "gating" in name
        if known:
            found = self.match(output)
            if found:
                self.send(scope, call, *found)

    def match(self, output):
        """(logits, ids, weights) among the results: integers (…, k), floats of the same shape, floats (…, experts)."""
        if not isinstance(output, (tuple, list)):
            return None
        tensors = [t for t in output if isinstance(t, torch.Tensor) and t.ndim >= 1]
        ids = next((t for t in tensors if t.dtype in _INTEGERS and t.ndim >= 2), None)
        if ids is None:
            return None
        floats = [t for t in tensors if t.is_floating_point()]
        weights = next((t for t in floats if t.shape == ids.shape), None)
        logits = next((t for t in floats if t.ndim >= 2 and t.shape[-1] > ids.shape[-1]), None)
        return logits, ids, weights

    def send(self, scope, call, logits, ids, weights, slots=None, dropped=None):
        self.session.native.routing(scope, call, logits, ids, weights, slots, dropped)
