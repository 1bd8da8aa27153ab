"""Transformers of random weights as torch's exporters write them; sizes are those of known models.

Models are Hugging Face's and timm's classes, so torch, transformers and timm have to be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_SEED = 5


@dataclass(frozen=True)
class Model:
    """A model and its only input.

    Parameters
    ----------
    make : callable
        () to a module of torch, of one input.
    shape : tuple of int
        Of the input.
    tokens : int
        Numbers of tokens that there are; 0: the input is floats.
    """

    make: Callable[[], Any]
    shape: tuple[int, ...]
    tokens: int = 0


def _first_output(module: Any) -> Any:
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            return self.module(x)[0]

    return First()


def _bert(hidden: int, layers: int) -> Any:
    import transformers

    config = transformers.BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * hidden,
        vocab_size=2000,
    )
    return _first_output(transformers.BertModel(config, add_pooling_layer=False))


def _gpt2() -> Any:
    import torch
    import transformers

    config = transformers.GPT2Config(vocab_size=2000, use_cache=False)
    model = transformers.GPT2Model(config)

    class Prefill(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids, use_cache=False)[0]

    return Prefill()


def _whisper() -> Any:
    import transformers

    config = transformers.WhisperConfig(
        d_model=384,
        encoder_layers=4,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_layers=1,
        decoder_attention_heads=6,
        decoder_ffn_dim=1536,
    )
    return _first_output(transformers.WhisperModel(config).encoder)


def _vision(name: str) -> Any:
    import timm
    import torch

    model = timm.create_model(name)
    head = model.get_classifier()
    if not head.weight.any():
        # The mixer's starts as zeros, so that all results would be zero.
        torch.nn.init.trunc_normal_(head.weight, std=0.02)
    return model


_IMAGE = (1, 3, 224, 224)
MODELS = {
    "bert_base_128": Model(lambda: _bert(768, 12), (1, 128), 2000),
    "bert_base_512": Model(lambda: _bert(768, 12), (1, 512), 2000),
    "minilm_l6": Model(lambda: _bert(384, 6), (1, 128), 2000),
    "deit_tiny": Model(lambda: _vision("deit_tiny_patch16_224"), _IMAGE),
    "deit_tiny_8": Model(lambda: _vision("deit_tiny_patch16_224"), (8, *_IMAGE[1:])),
    "vit_base": Model(lambda: _vision("vit_base_patch16_224"), _IMAGE),
    "swin_tiny": Model(lambda: _vision("swin_tiny_patch4_window7_224"), _IMAGE),
    "convnext_tiny": Model(lambda: _vision("convnext_tiny"), _IMAGE),
    "mixer_b16": Model(lambda: _vision("mixer_b16_224"), _IMAGE),
    "gpt2_128": Model(_gpt2, (1, 128), 2000),
    "whisper_tiny": Model(_whisper, (1, 80, 3000)),
}


def inputs_of(name: str) -> dict[str, np.ndarray]:
    """Return the seeded input of a model."""
    model, rng = MODELS[name], np.random.default_rng(_SEED)
    if model.tokens:
        return {"x": rng.integers(0, model.tokens, model.shape)}
    return {"x": rng.standard_normal(model.shape, dtype=np.float32)}


def saved(name: str, folder: Path) -> Path:
    """Return the ONNX file of a model, which is exported where it is missing."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        import torch

        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(_SEED)
        module = MODELS[name].make().eval()
        example = torch.from_numpy(inputs_of(name)["x"])
        partly = path.with_suffix(".part")
        with torch.no_grad():
            torch.onnx.export(
                module, (example,), str(partly), input_names=["x"], dynamo=True, external_data=False
            )
        partly.rename(path)
    return path
