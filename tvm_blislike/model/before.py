"""Configurations as versions before 0.4 wrote them: all algorithms' fields in one record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tvm_blislike.model.config import Config

_FIELDS = frozenset(
    "mr nr kr mc nc kc loop_order columns packing data_layout out_layout tile_h tile_w oh_block "
    "prefetch ring transform prefetch_bytes parallel".split()
)


def own_fields(config_type: type[Config], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a class has, under its names, of those that a record has."""
    names = {field.name for field in dataclasses.fields(config_type)}
    renamed = {new: fields[old] for old, new in config_type.BEFORE.items() if old in fields}
    kept = {name: v for name, v in fields.items() if name in names or name not in _FIELDS}
    return kept | renamed
