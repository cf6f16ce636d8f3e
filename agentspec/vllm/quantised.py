"""Bytes of a weight, as the `quantization_config` of a config.json tells them."""

from __future__ import annotations

from collections.abc import Mapping

# what a group's scale adds is counted in
_BITS = {
    "fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4.25, "nvfp4": 4.5, "mxfp8": 8.25, "bitsandbytes": 4.5,
}  # fmt: skip


def bytes_of(quantised: object) -> float:
    """Bytes of one weight of a layer, 2 where nothing is quantised, or in a way not known."""
    if not isinstance(quantised, Mapping):
        return 2.0
    method = str(quantised.get("quant_method") or "")
    algorithm = str(quantised.get("quant_algo") or "").lower()
    if (kind := algorithm if method == "modelopt" else method) in _BITS:
        eight = quantised.get("load_in_8bit") is True
        return (8 if eight else _BITS[kind]) / 8
    bits = quantised.get("bits") or quantised.get("w_bit") or _compressed(quantised)
    return with_scales(bits) if isinstance(bits, int) and 0 < bits <= 8 else 2.0


def with_scales(bits: int) -> float:
    """Bytes of a weight whose groups of 128 share a 16-bit scale and a zero point."""
    return (bits + (16 + bits) / 128) / 8


def _compressed(quantised: Mapping[str, object]) -> object:
    """Bits of the weights of the first group, as compressed-tensors tells them."""
    groups = quantised.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            return weights.get("num_bits")
    return None
