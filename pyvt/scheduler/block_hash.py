"""Names of KV blocks: what must be equal for two requests to share one.

A block is named by a chain of keyed BLAKE3 hashes, so that equal names mean equal tokens from the
start of the prompt on, in the same namespace:

1. ``ns = blake3(namespace, context "pyvt.kvtier.namespace.v1")``, where the namespace is written as
   MessagePack, a map of its fields in the order of their definition.
2. ``h_0 = blake3(ns, key=K)`` with the tenant's key K of 32 bytes.
3. ``h_i = blake3(h_(i-1) ‖ u32le(tokens of block i) ‖ digest(extra), key=K)``, where extra is the
   cache salt and other inputs of the model beside tokens, and its digest ``blake3`` of its
   MessagePack in the context "pyvt.kvtier.extra.v1".

The bytes depend on nothing of the process: not on a seed, the machine or the order of anything. A
tier that engines share uses them as they are; a change of them is a new version of the contexts.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields

from blake3 import blake3

HASH_BYTES = 32
_NAMESPACE_CONTEXT = "pyvt.kvtier.namespace.v1"
_EXTRA_CONTEXT = "pyvt.kvtier.extra.v1"
_TENANT_CONTEXT = "pyvt.kvtier.tenant.v1"
# Tenants whose keys are remembered; with more, all are derived anew.
_MAX_TENANTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Everything but tokens and salt that decides the bytes of a KV block.

    Attributes:
        schema: version of this list.
        tenant: whose requests share.
        model: name or path of the model, as the operator calls it.
        revision: of the repository, or empty.
        weights: digest of what tells checkpoints of one name apart.
        tokenizer: digest of the tokenizer.
        adapter: an adapter and its revision, or empty.
        rope: the effective rotary parameters; keys are stored rotated.
        compute: backend and mode of arithmetic.
        dtype: of keys and values.
        layout: cache groups, their layers, block size and shapes.
    """

    schema: int = 1
    tenant: str = ""
    model: str = ""
    revision: str = ""
    weights: str = ""
    tokenizer: str = ""
    adapter: str = ""
    rope: str = ""
    compute: str = ""
    dtype: str = ""
    layout: str = ""

    def digest(self) -> bytes:
        """Return the 32 bytes that stand for the namespace."""
        pairs: dict[str, int | str] = {f.name: getattr(self, f.name) for f in fields(self)}
        packed = _pack_map(pairs)
        return blake3(packed, derive_key_context=_NAMESPACE_CONTEXT).digest()


def tenant_key(tenant: str) -> bytes:
    """Return the key of a tenant where no key ring gives one; the same in every process."""
    return blake3(tenant.encode(), derive_key_context=_TENANT_CONTEXT).digest()


def root_hash(namespace: Namespace, key: bytes) -> bytes:
    """Return ``h_0``, the parent of a first block."""
    return blake3(namespace.digest(), key=key).digest()


def extra_digest(cache_salt: str | None) -> bytes:
    """Return the digest of what a request adds to its tokens; no salt differs from an empty one."""
    pairs: dict[str, int | str] = {} if cache_salt is None else {"salt": cache_salt}
    return blake3(_pack_map(pairs), derive_key_context=_EXTRA_CONTEXT).digest()


def block_hash(parent: bytes, token_ids: Sequence[int], extra: bytes, key: bytes) -> bytes:
    """Return the name of one full block.

    Args:
        parent: name of the block before it, or ``root_hash``.
        token_ids: the tokens of the block.
        extra: ``extra_digest`` of the request.
        key: the tenant's key.
    """
    tokens = struct.pack(f"<{len(token_ids)}I", *token_ids)
    return blake3(parent + tokens + extra, key=key).digest()


class BlockHasher:
    """Names the blocks of requests of one engine."""

    __slots__ = ("_keys", "_namespace", "_roots", "block_size")

    def __init__(self, block_size: int, namespace: Namespace | None = None) -> None:
        self.block_size = block_size
        self._namespace = namespace or Namespace()
        self._keys: dict[str, bytes] = {}
        self._roots: dict[str, bytes] = {}

    def extend(
        self,
        hashes: list[bytes],
        token_ids: Sequence[int],
        *,
        start: int = 0,
        tenant: str = "",
        cache_salt: str | None = None,
    ) -> None:
        """Append the names of the full blocks of a request that are not named yet.

        Args:
            hashes: names of its first blocks.
            token_ids: its tokens from ``start`` on.
            start: position of the first of them, at most that of the first block without a name.
            tenant: whose request it is.
            cache_salt: its salt.
        """
        size = self.block_size
        first, num_blocks = len(hashes), (start + len(token_ids)) // size
        if first >= num_blocks:
            return
        key = self._key(tenant)
        parent = hashes[-1] if hashes else self._roots[tenant]
        extra = extra_digest(cache_salt)
        begin = first * size - start
        words = struct.pack(
            f"<{(num_blocks - first) * size}I", *token_ids[begin : num_blocks * size - start]
        )
        width = 4 * size
        for at in range(0, len(words), width):
            parent = blake3(parent + words[at : at + width] + extra, key=key).digest()
            hashes.append(parent)

    def _key(self, tenant: str) -> bytes:
        if tenant not in self._keys:
            if len(self._keys) == _MAX_TENANTS:
                self._keys.clear()
                self._roots.clear()
            key = tenant_key(tenant)
            own = {f.name: getattr(self._namespace, f.name) for f in fields(self._namespace)}
            self._roots[tenant] = root_hash(Namespace(**(own | {"tenant": tenant})), key)
            self._keys[tenant] = key
        return self._keys[tenant]


def _pack_map(pairs: dict[str, int | str]) -> bytes:
    """Return MessagePack of a small map; maps of up to 15 pairs have one byte of head."""
    assert len(pairs) < 16, "a longer map has another head"
    packed = [bytes([0x80 | len(pairs)])]
    for name, value in pairs.items():
        packed += [_pack_text(name), _pack_value(value)]
    return b"".join(packed)


def _pack_value(value: int | str) -> bytes:
    if isinstance(value, str):
        return _pack_text(value)
    assert 0 <= value < 128, "versions are small"
    return bytes([value])


def _pack_text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 32:
        return bytes([0xA0 | len(data)]) + data
    if len(data) < 2**8:
        return b"\xd9" + bytes([len(data)]) + data
    if len(data) < 2**16:
        return b"\xda" + struct.pack(">H", len(data)) + data
    return b"\xdb" + struct.pack(">I", len(data)) + data
