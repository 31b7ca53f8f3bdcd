"""Two steps of training a small model of recurrent cells and layers as CUDA runs them: LSTM and GRU cells with their fused steps, and stacks
of layers as cuDNN's one op, one of them over a packed batch.

    cuda_cells.py [--dtype float32|bfloat16] [--wrong OP]     the first call of OP errs in one element, a stack of layers in its sign
"""

import argparse

import cuda_kernels
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class Cell(nn.Module):
    """What torch's own lstm_cell and gru_cell do with tensors on CUDA."""

    def __init__(self, kind, width):
        super().__init__()
        self.cell = getattr(nn, kind)(width, width)
        self.step = torch.ops.aten._thnn_fused_lstm_cell if kind == "LSTMCell" else torch.ops.aten._thnn_fused_gru_cell

    def forward(self, sequence):
        c = self.cell
        state = sequence.new_zeros(sequence.shape[1], c.hidden_size)
        h, cx = state, state
        for x in sequence:
            gates = x @ c.weight_ih.t(), h @ c.weight_hh.t()
            if self.step is torch.ops.aten._thnn_fused_lstm_cell:
                h, cx, _ = self.step(*gates, cx, c.bias_ih, c.bias_hh)
            else:
                h, _ = self.step(*gates, h, c.bias_ih, c.bias_hh)
        return h


class Layers(nn.Module):
    """What nn.LSTM and its kin hand to cuDNN."""

    def __init__(self, kind, width, **how):
        super().__init__()
        self.layers = getattr(nn, kind)(width, width, **how)
        self.mode = {"RNN": 1, "LSTM": 2, "GRU": 3}[kind]

    def forward(self, x, sizes=()):
        m = self.layers
        directions = 2 if m.bidirectional else 1
        samples = sizes[0] if sizes else x.shape[0 if m.batch_first else 1]
        state = x.new_zeros(m.num_layers * directions, samples, m.hidden_size)
        weights = [w for group in m.all_weights for w in group]
        kind = (self.mode, m.hidden_size, 0, m.num_layers, m.batch_first, 0.0, True, m.bidirectional, list(sizes), None)
        return torch._cudnn_rnn(x, weights, 4, None, state, state if self.mode == 2 else None, *kind)[0]


class Model(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.lstm_cell, self.gru_cell = Cell("LSTMCell", width), Cell("GRUCell", width)
        self.lstm = Layers("LSTM", width, num_layers=2, bidirectional=True)
        self.gru = Layers("GRU", width, batch_first=True)
        self.rnn = Layers("RNN", width)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths)
        several = self.lstm(packed.data, packed.batch_sizes.tolist())
        parts = self.lstm_cell(x), self.gru_cell(x), several, self.gru(x.transpose(0, 1)), self.rnn(x)
        return sum(p.float().pow(2).mean() for p in parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--wrong")
    args = parser.parse_args()
    if args.wrong:
        cuda_kernels.plant(args.wrong, factor=-1 if "cudnn" in args.wrong else 1.01)
    torch.manual_seed(0)
    model = Model().to(getattr(torch, args.dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        model(torch.randn(5, 3, 8).to(getattr(torch, args.dtype)), [5, 4, 2]).backward()
        optimizer.step()
        optimizer.zero_grad()
