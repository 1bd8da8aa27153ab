"""Parts of well-known networks as torch modules."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """Two convolutions of stride 2 and 1 around a projection, as in ResNet-18."""

    def __init__(self, inputs: int = 16, outputs: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, 2), nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        inner = self.relu(self.first_norm(self.first(image)))
        inner = self.second_norm(self.second(inner))
        inner += self.shortcut(image)
        return self.relu(inner)


class MobileBlock(nn.Module):
    """Expansion, depthwise convolution, squeeze and excitation, projection: of MobileNet-v3."""

    def __init__(self, channels: int = 16, expanded: int = 48) -> None:
        super().__init__()
        self.expand = nn.Sequential(
            nn.Conv2d(channels, expanded, 1, bias=False), nn.BatchNorm2d(expanded), nn.Hardswish()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(expanded, expanded, 5, padding=2, groups=expanded, bias=False),
            nn.BatchNorm2d(expanded),
            nn.Hardswish(inplace=True),
        )
        self.squeeze = nn.Conv2d(expanded, 12, 1)
        self.excite = nn.Conv2d(12, expanded, 1)
        self.project = nn.Sequential(
            nn.Conv2d(expanded, channels, 1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        inner = self.depthwise(self.expand(image))
        weights = self.squeeze(functional.adaptive_avg_pool2d(inner, 1))
        weights = functional.hardsigmoid(self.excite(functional.relu(weights)))
        return image + self.project(inner * weights)


class AttentionBlock(nn.Module):
    """Attention of several heads and a perceptron, each behind a normalization: of a ViT."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, count, width = tokens.shape
        found = self.queries_keys_values(self.norms[0](tokens))
        found = found.view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(found[0], found[1], found[2])
        tokens = tokens + self.merge(mixed.transpose(1, 2).reshape(batch, count, width))
        return tokens + self.perceptron(self.norms[1](tokens))


def settled(module: nn.Module) -> nn.Module:
    """Return a module for inference, its normalizations with statistics of their own."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 2)
            nn.init.normal_(part.bias)
    return module.eval()
