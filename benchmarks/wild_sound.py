"""Convolutional networks over time, of sound and other signals, for torch's exporters."""

from __future__ import annotations

import itertools
from typing import Any

# A network, and what it runs on.
Made = tuple[Any, tuple[Any, ...]]


def wavenet() -> Made:
    """Gated convolutions of growing dilation over a second of sound, each adding to the sum."""
    import torch
    from torch import nn

    channels, dilations = 64, [2**i for i in range(8)] * 2

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(1, channels, 1)
            self.gates = nn.ModuleList(
                [nn.Conv1d(channels, 2 * channels, 3, dilation=d, padding=d) for d in dilations]
            )
            self.residuals = nn.ModuleList([nn.Conv1d(channels, channels, 1) for _ in dilations])
            self.last = nn.Conv1d(channels, 256, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            total = torch.zeros_like(x)
            for gate, residual in zip(self.gates, self.residuals, strict=True):
                value, opening = gate(x).chunk(2, 1)
                step = residual(torch.tanh(value) * torch.sigmoid(opening))
                x, total = x + step, total + step
            return self.last(torch.relu(total))

    return Net(), (torch.randn(1, 1, 16000),)


def tcn() -> Made:
    """Causal residual blocks of growing dilation (Bai, Kolter, Koltun, 2018)."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, ci: int, co: int, dilation: int) -> None:
            super().__init__()
            self.past = nn.ConstantPad1d((2 * dilation, 0), 0.0)
            self.first = nn.Conv1d(ci, co, 3, dilation=dilation)
            self.second = nn.Conv1d(co, co, 3, dilation=dilation)
            self.shortcut = nn.Conv1d(ci, co, 1) if ci != co else nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.first(self.past(x)))
            y = torch.relu(self.second(self.past(y)))
            return torch.relu(y + self.shortcut(x))

    channels = [32, *[128] * 6]
    blocks = [Block(ci, co, 2**i) for i, (ci, co) in enumerate(itertools.pairwise(channels))]
    return nn.Sequential(*blocks, nn.Conv1d(channels[-1], 10, 1)), (torch.randn(1, 32, 1000),)


def conv_tasnet() -> Made:
    """Conv-TasNet (Luo and Mesgarani, 2019) of the paper's best sizes, over a second of sound."""
    import torch
    from torch import nn

    filters, taps, narrow, wide, depth, repeats, speakers = 512, 16, 128, 512, 8, 3, 2

    def norm(channels: int) -> nn.Module:
        # Over channels and time at once ("global layer norm").
        return nn.GroupNorm(1, channels, eps=1e-8)

    class Block(nn.Module):
        def __init__(self, dilation: int) -> None:
            super().__init__()
            around = {"padding": dilation, "dilation": dilation, "groups": wide}
            self.inside = nn.Sequential(
                nn.Conv1d(narrow, wide, 1),
                nn.PReLU(),
                norm(wide),
                nn.Conv1d(wide, wide, 3, **around),
                nn.PReLU(),
                norm(wide),
            )
            self.onward, self.skip = nn.Conv1d(wide, narrow, 1), nn.Conv1d(wide, narrow, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.inside(x)
            return x + self.onward(y), self.skip(y)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Conv1d(1, filters, taps, stride=taps // 2, bias=False)
            self.narrow = nn.Sequential(norm(filters), nn.Conv1d(filters, narrow, 1))
            self.blocks = nn.ModuleList([Block(2**i) for _ in range(repeats) for i in range(depth)])
            self.masks = nn.Sequential(
                nn.PReLU(), nn.Conv1d(narrow, speakers * filters, 1), nn.Sigmoid()
            )
            self.decoder = nn.ConvTranspose1d(filters, 1, taps, stride=taps // 2, bias=False)

        def forward(self, sound: torch.Tensor) -> torch.Tensor:
            code = torch.relu(self.encoder(sound))
            x = self.narrow(code)
            total = torch.zeros_like(x)
            for block in self.blocks:
                x, skip = block(x)
                total = total + skip
            masks = self.masks(total).reshape(speakers, filters, -1)
            return self.decoder(masks * code)

    return Net(), (torch.randn(1, 1, 8000),)
