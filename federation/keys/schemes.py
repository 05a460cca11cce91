"""Ready-made key patterns of engines that write to Mooncake directly, by name; `NAME:TAG` with a tag.

They follow what these engines write, as of SGLang 0.5.18, vLLM 0.29 and LMCache 0.3: see decision 014. What
is not here (sidecar pools, layerwise keys, heads split over two sizes, decode context parallelism, a store
namespace of vLLM, the format's name before LMCache's keys) is written out as a pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from federation.identity import Envelope

_LMCACHE_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "half",
    "float16": "half",
    "fp32": "float",
    "float32": "float",
    # Under vLLM, whose tensors of such blocks are of bytes, and elsewhere.
    "fp8": "{uint8|fp8_e4m3fn}",
    "fp8_e4m3": "{uint8|fp8_e4m3fn}",
    "fp8_e4m3fn": "{uint8|fp8_e4m3fn}",
    "fp8_e4m3fnuz": "{uint8|fp8_e4m3fnuz}",
    "fp8_e5m2": "{uint8|fp8_e5m2}",
    "fp8_e5m2fnuz": "{uint8|fp8_e5m2fnuz}",
}
"""How LMCache calls what an envelope may call otherwise: torch's dtype, in its own words."""


def _sglang(envelope: Envelope, tag: str) -> str:
    return f"{f'{tag}_' if tag else ''}{envelope.model.replace('/', '-')}_{{hex:64}}"


def _sglang_mha(envelope: Envelope, tag: str) -> list[str]:
    head = f"{_sglang(envelope, tag)}_{{tp_rank}}"
    return [f"{head}{ranks}_{{k|v}}" for ranks in _sglang_ranks(envelope)]


def _sglang_mla(envelope: Envelope, tag: str) -> list[str]:
    # Without pipeline or context ranks their place is empty, and the separator is there twice.
    head = _sglang(envelope, tag)
    return [f"{head}{ranks or '_'}_k" for ranks in _sglang_ranks(envelope)]


def _sglang_ranks(envelope: Envelope) -> list[str]:
    """What follows the rank of tensor parallelism; with and without context ranks, as older ones write."""
    if envelope.pp == envelope.cp == 1:
        return [""]
    return ["_{pp_rank}_{cp_rank}", *(["_{pp_rank}"] if envelope.cp == 1 else [])]


def _vllm(envelope: Envelope, prefix: str) -> list[str]:
    model = envelope.model.rstrip("/").rsplit("/", 1)[-1]
    head = f"{f'{prefix}@' if prefix else ''}{model}"
    return [
        f"{head}@tp_rank:{{tp_rank}}@pcp{{cp_rank}}@dcp0@pp_rank:{{pp_rank}}@group:{{int}}@{{hex}}"
    ]


def _lmcache(envelope: Envelope, tag: str) -> list[str]:
    world = envelope.tp * envelope.pp * envelope.cp
    workers = f"{{{'|'.join(map(str, range(world)))}}}" if world > 1 else "0"
    return _lmcache_keys(envelope, f"{world}@{workers}", tag)


def _lmcache_mla(envelope: Envelope, tag: str) -> list[str]:
    # All ranks have the same, the first one stores it, and the key says that there is no other.
    return _lmcache_keys(envelope, "1@0", tag)


def _lmcache_keys(envelope: Envelope, worker: str, tag: str) -> list[str]:
    dtype = _LMCACHE_DTYPES.get(envelope.kv_dtype, envelope.kv_dtype)
    end = f"{dtype}{f'@{tag}' if tag else ''}"
    # Its hash is Python's if it is not told otherwise: a signed number, of which every other is negative.
    return [f"{{model}}@{worker}@{sign}{{hex}}@{end}" for sign in ("", "-")]


_SCHEMES: dict[str, Callable[[Envelope, str], list[str]]] = {
    "sglang-hicache": _sglang_mha,
    "sglang-hicache-mla": _sglang_mla,
    "vllm-mooncake": _vllm,
    "lmcache": _lmcache,
    "lmcache-mla": _lmcache_mla,
}


def patterns_of(item: str, envelope: Envelope) -> list[str]:
    """What one item of `keys` stands for: the patterns of a scheme, or itself if it is a pattern.

    Raises:
        ValueError: it has no field in braces, and is the name of no scheme.
    """
    if "{" in item or "}" in item:
        return [item]
    name, _, tag = item.partition(":")
    if name not in _SCHEMES:
        raise ValueError(
            f"{item!r} is neither a pattern (it has no field in braces) nor one of: {', '.join(_SCHEMES)}"
        )
    if any(brace in value for value in (envelope.model, envelope.kv_dtype) for brace in "{}"):
        raise ValueError("the name of the model or of the kv_dtype has a brace: write a pattern")
    return _SCHEMES[name](envelope, tag)
