"""Architectures of torchvision, timm and transformers, written by both of torch's exporters.

Weights are random, of a seed: files are the same on every machine with the same versions, and
nothing is downloaded. `EXPORTS` has the architectures, `save` writes one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import wild_sound
import wild_volumes

_SEED = 3
_OPSET = {"script": 17, "dynamo": 18}
# A network, and what it runs on.
Made = tuple[Any, tuple[Any, ...]]


def _image(size: int = 224) -> tuple[Any, ...]:
    import torch

    return (torch.randn(1, 3, size, size),)


def _vision(name: str, size: int = 224, **options: object) -> Callable[[], Made]:
    """A network of torchvision."""

    def make() -> Made:
        from torchvision import models

        return models.get_model(name, weights=None, **options), _image(size)

    return make


def _timm(name: str, size: int = 224) -> Callable[[], Made]:
    def make() -> Made:
        import timm

        return timm.create_model(name, pretrained=False), _image(size)

    return make


def _segmentation() -> Made:
    from torchvision import models

    net = models.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None)
    return _only("out", net), _image(320)


def _detection() -> Made:
    """The part of a detector that is one graph of fixed sizes: backbone, necks and heads."""
    import torch
    from torchvision import models

    whole = models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = whole.backbone, whole.head

        def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = self.head(list(self.backbone(image).values()))
            return found["bbox_regression"], found["cls_logits"]

    return Heads(), _image(320)


def _only(name: str, net: Any) -> Any:
    """A network of one of the results that another one names."""
    import torch

    class Only(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            return self.net(*values)[name]

    return Only()


def _bert(hidden: int, heads: int, layers: int, tokens: int) -> Callable[[], Made]:
    def make() -> Made:
        import torch
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=3000,
            hidden_size=hidden,
            num_attention_heads=heads,
            num_hidden_layers=layers,
            intermediate_size=4 * hidden,
        )
        ids = torch.randint(0, config.vocab_size, (1, tokens))
        return _only("last_hidden_state", BertModel(config)), (ids, torch.ones_like(ids))

    return make


def _deberta() -> Made:
    import torch
    from transformers import DebertaV2Config, DebertaV2Model

    config = DebertaV2Config(
        vocab_size=3000,
        hidden_size=384,
        num_attention_heads=6,
        num_hidden_layers=6,
        intermediate_size=1536,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    )
    ids = torch.randint(0, config.vocab_size, (1, 128))
    return _only("last_hidden_state", DebertaV2Model(config)), (ids, torch.ones_like(ids))


def _gpt2() -> Made:
    import torch
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=3000, use_cache=False)
    return _only("last_hidden_state", GPT2Model(config)), (torch.randint(0, 3000, (1, 128)),)


def _whisper() -> Made:
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6)
    config.encoder_ffn_dim = 1536
    return _only("last_hidden_state", WhisperEncoder(config)), (torch.randn(1, 80, 3000),)


def _clip() -> Made:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return _only("pooler_output", CLIPVisionModel(CLIPVisionConfig())), _image()


def _unet() -> Made:
    """Two steps down and up, each of two convolutions, joined across."""
    import torch
    from torch import nn

    def twice(ci: int, co: int) -> nn.Sequential:
        def once(a: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, co, 3, padding=1), nn.BatchNorm2d(co), nn.ReLU())

        return nn.Sequential(once(ci), once(co))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([twice(3, 32), twice(32, 64), twice(64, 128)])
            self.wider = nn.ModuleList([nn.ConvTranspose2d(2 * c, c, 2, 2) for c in (64, 32)])
            self.up = nn.ModuleList([twice(2 * c, c) for c in (64, 32)])
            self.last = nn.Conv2d(32, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.down[0](x)
            second = self.down[1](nn.functional.max_pool2d(first, 2))
            x = self.down[2](nn.functional.max_pool2d(second, 2))
            x = self.up[0](torch.cat([self.wider[0](x), second], 1))
            return self.last(self.up[1](torch.cat([self.wider[1](x), first], 1)))

    return Net(), _image(256)


def _edsr() -> Made:
    """Residual blocks without norms, then pixels out of channels."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 0.1 * self.body(x)

    blocks = [Block() for _ in range(8)]
    ends = [nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(64, 3, 3, padding=1)]
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *blocks, *ends), _image(128)


def _recurrent(kind: str, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        import torch

        net = getattr(torch.nn, kind)(128, 256, num_layers=2, batch_first=True, **options)
        return net, (torch.randn(1, 100, 128),)

    return make


EXPORTS: dict[str, Callable[[], Made]] = {
    "efficientnet_b0": _vision("efficientnet_b0"),
    "mobilenet_v3_large": _vision("mobilenet_v3_large"),
    "shufflenet_v2_x1_0": _vision("shufflenet_v2_x1_0"),
    "shufflenet_v2_x1_5": _vision("shufflenet_v2_x1_5"),
    "regnet_y_400mf": _vision("regnet_y_400mf"),
    "convnext_tiny": _vision("convnext_tiny"),
    "vit_b_16": _vision("vit_b_16"),
    "swin_t": _vision("swin_t"),
    "swin_v2_t": _vision("swin_v2_t"),
    "nf_resnet50": _timm("nf_resnet50"),
    "deit_tiny": _timm("deit_tiny_patch16_224"),
    "mixer_b16": _timm("mixer_b16_224"),
    "deeplabv3_mobilenet": _segmentation,
    "ssdlite320_mobilenet": _detection,
    "bert_base_128": _bert(768, 12, 12, 128),
    "bert_base_512": _bert(768, 12, 12, 512),
    "minilm_l6_128": _bert(384, 12, 6, 128),
    "deberta_v2": _deberta,
    "gpt2_128": _gpt2,
    "whisper_tiny_encoder": _whisper,
    "clip_vit_b32": _clip,
    "unet": _unet,
    "wavenet": wild_sound.wavenet,
    "tcn": wild_sound.tcn,
    "conv_tasnet": wild_sound.conv_tasnet,
    "edsr": _edsr,
    "lstm": _recurrent("LSTM"),
    "bilstm": _recurrent("LSTM", bidirectional=True),
    "gru": _recurrent("GRU"),
    **wild_volumes.EXPORTS,
}


def save(name: str, exporter: str, path: Path) -> None:
    """Write an architecture, and beside it `NAME.npz` with what it runs on.

    Parameters
    ----------
    name : str
        Out of `EXPORTS`.
    exporter : str
        "script" or "dynamo".
    path : Path
        The file.
    """
    import torch

    torch.manual_seed(_SEED)
    net, values = EXPORTS[name]()
    names = [f"input_{i}" for i in range(len(values))]
    torch.onnx.export(
        net.eval(),
        values,
        path,
        input_names=names,
        opset_version=_OPSET[exporter],
        dynamo=exporter == "dynamo",
    )
    arrays = {n: v.numpy() for n, v in zip(names, values, strict=True)}
    np.savez(path.with_suffix(".npz"), **arrays)
