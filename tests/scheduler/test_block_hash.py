"""Names of blocks: golden vectors, the chain, and what must and must not share a name."""

from dataclasses import fields, replace
from typing import Any

import pytest
from blake3 import blake3

from pyvt.scheduler.block_hash import (
    BlockHasher,
    Namespace,
    block_hash,
    extra_digest,
    root_hash,
    tenant_key,
)

TOKENS = list(range(40))
GOLDEN = Namespace(model="m", dtype="f32", layout="16")


def hashes_of(namespace: Namespace = GOLDEN, tokens: Any = TOKENS, **extra: Any) -> list[bytes]:
    found: list[bytes] = []
    BlockHasher(16, namespace).extend(found, tokens, **extra)
    return found


def test_namespace_is_messagepack_of_its_fields_in_order() -> None:
    packed = b"\x8b\xa6schema\x01\xa6tenant\xa0\xa5model\xa1m\xa8revision\xa0\xa7weights\xa0"
    packed += b"\xa9tokenizer\xa0\xa7adapter\xa0\xa4rope\xa0\xa7compute\xa0\xa5dtype\xa3f32"
    packed += b"\xa6layout\xa216"

    want = blake3(packed, derive_key_context="pyvt.kvtier.namespace.v1").digest()

    assert GOLDEN.digest() == want


@pytest.mark.parametrize(
    ("made", "golden"),
    [
        (
            lambda: GOLDEN.digest(),
            "1bf62b37c1b41b4c39a7680d1d3b5e97e4c0f5fd50dfd3d1695289c9b5658777",
        ),
        (
            lambda: tenant_key(""),
            "59c4be66eb89f7113ebcb01974ff41899cce8ee293c5ad45ce964013385b262b",
        ),
        (
            lambda: root_hash(GOLDEN, tenant_key("")),
            "8486ef06c6fe74a9db5c5a801a3b95ac638ddc36c75ed1a1320ed99c0591ed98",
        ),
        (
            lambda: extra_digest(None),
            "02cd6c44756afa997cf3286774ce5a9125e66e7ff24ea6a788a4d8a3105003ed",
        ),
        (
            lambda: extra_digest("salt"),
            "f56a32b329ccad992ed27a8a19174c322d9187ef6ff546c5c398b1cd0a318a45",
        ),
        (
            lambda: hashes_of()[0],
            "64299062b91118da0cfaea294ddf6acadd961b7569b0a162bf1be1a3c630ec02",
        ),
        (
            lambda: hashes_of()[1],
            "1b32579f83428775ab2facac2ca2f9fbe18bfdebf8dd01bf3c60c1e83923e9c0",
        ),
        (
            lambda: hashes_of(tenant="t", cache_salt="salt")[1],
            "c6d91f2dfddca4704e67beb0ac357f7885da905aac3b6d9cd8ef2e3b1e1cbce6",
        ),
    ],
    ids=["namespace", "key", "root", "no-extra", "salt", "first", "second", "tenant-and-salt"],
)
def test_names_are_these_bytes_in_every_process(made: Any, golden: str) -> None:
    assert made().hex() == golden


def test_hasher_follows_the_chain_of_single_blocks() -> None:
    key = tenant_key("")
    first = block_hash(root_hash(GOLDEN, key), TOKENS[:16], extra_digest(None), key)
    second = block_hash(first, TOKENS[16:32], extra_digest(None), key)

    assert hashes_of() == [first, second]


@pytest.mark.parametrize("cuts", [[16, 32], [5, 17, 31, 40], list(range(1, 41))])
def test_hasher_extended_bit_by_bit_gives_the_same_names(cuts: list[int]) -> None:
    hasher, found = BlockHasher(16, GOLDEN), []

    for cut in cuts:
        start = len(found) * 16
        hasher.extend(found, TOKENS[start:cut], start=start)

    assert found == hashes_of()


def test_partial_block_has_no_name() -> None:
    assert hashes_of(tokens=TOKENS[:15]) == []


def test_name_depends_on_every_token_before_its_end_and_on_none_behind() -> None:
    for changed in range(40):
        tokens = [*TOKENS]
        tokens[changed] += 1
        same = [a == b for a, b in zip(hashes_of(tokens=tokens), hashes_of(), strict=True)]
        assert same == [changed >= 16, changed >= 32]


@pytest.mark.parametrize("name", [f.name for f in fields(Namespace)])
def test_namespaces_that_differ_in_one_field_share_nothing(name: str) -> None:
    changed: dict[str, Any] = {name: 2 if name == "schema" else "other"}

    is_tenant = name == "tenant"
    other = hashes_of(GOLDEN if is_tenant else replace(GOLDEN, **changed), tenant=is_tenant * "b")

    assert not set(other) & set(hashes_of())


def test_adapter_salt_and_tenant_of_one_spelling_are_three_names() -> None:
    found = [
        hashes_of(replace(GOLDEN, adapter="x"))[0],
        hashes_of(cache_salt="x")[0],
        hashes_of(tenant="x")[0],
        hashes_of(cache_salt="")[0],
        hashes_of()[0],
    ]

    assert len(set(found)) == 5


def test_more_tenants_than_are_remembered_keep_their_names() -> None:
    hasher, first, again = BlockHasher(16, GOLDEN), [], []
    hasher.extend(first, TOKENS, tenant="0")
    for index in range(5000):
        hasher.extend([], TOKENS[:16], tenant=str(index))

    hasher.extend(again, TOKENS, tenant="0")

    assert again == first
    assert len(hasher._keys) <= 4096
