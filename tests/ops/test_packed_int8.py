"""The tiles of block formats: nothing is lost, and the bytes lie where the layout says."""

import numpy as np
import pytest

from pyvt.ops.packed_int8 import FIELDS, pack, unpack
from pyvt.tensor.dtype import DTYPES


def random_blocks(name: str, num_rows: int) -> np.ndarray:
    num_bytes = DTYPES[name].row_bytes(512)
    return np.random.default_rng(5).integers(0, 256, (num_rows, num_bytes), np.uint8)


@pytest.mark.parametrize("num_rows", [1, 16, 33])
@pytest.mark.parametrize("name", FIELDS)
def test_packed_tiles_unpacked_give_the_blocks_back(name, num_rows):
    blocks = random_blocks(name, num_rows)
    tiles = pack(DTYPES[name], blocks)
    assert tiles.shape == (-(-num_rows // 16), 16 * blocks.shape[1])
    np.testing.assert_array_equal(unpack(DTYPES[name], tiles, num_rows), blocks)


@pytest.mark.parametrize("name", FIELDS)
def test_fields_of_a_format_cover_its_block_and_its_tile_once(name):
    in_file = np.zeros(DTYPES[name].block_bytes, int)
    in_tile = np.zeros(16 * DTYPES[name].block_bytes, int)
    for field in FIELDS[name]:
        in_file[field.file_bytes()] += 1
        for i in range(field.count):
            in_tile[field.tile_bytes(i)] += 1
    assert (in_file == 1).all()
    assert (in_tile == 1).all()


def test_pack_missing_rows_are_zero_bytes():
    tiles = pack(DTYPES["q8_0"], np.full((1, 34), 255, np.uint8))
    codes = tiles[0, 32:].reshape(8, 16, 4)
    assert (codes[:, 0] == 255).all()
    assert not codes[:, 1:].any()


def test_pack_fifth_bits_lie_by_column_of_the_quad():
    block = np.zeros((1, 22), np.uint8)
    block[0, 2:6] = np.array([1 << (4 * 3 + 2)], "<u4").view(np.uint8)
    word = pack(DTYPES["q5_0"], block)[0, 32:36].view("<u4")
    assert word[0] == 1 << (8 * 2 + 3)
