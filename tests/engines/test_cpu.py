"""The parts that make SGLang deterministic on a CPU, by themselves."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_tbench2.engines.cpu import attention, invariant, seeds, standin


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, of whole blocks, as published by Austin Appleby."""

    def rotate(x: int, r: int) -> int:
        return ((x << r) | (x >> (32 - r))) & 0xFFFFFFFF

    h = 0
    for (k,) in struct.iter_unpack("<I", data):
        k = rotate(k * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        h = (rotate(h ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def test_reference_hash_gives_the_published_value() -> None:
    assert murmur3(b"test") == 0xBA6BD213


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)), min_size=1, max_size=5
    ),
    vocab=st.integers(1, 40),
)
def test_noise_is_the_hash_of_seed_position_and_token(rows: list[tuple[int, int]], vocab: int):
    got = seeds.murmur_hash32(
        torch.tensor([seed for seed, _ in rows]).to(torch.uint64),
        torch.tensor([position for _, position in rows]),
        torch.arange(vocab),
    )
    expected = [
        [murmur3(struct.pack("<QII", seed, position, token)) for token in range(vocab)]
        for seed, position in rows
    ]
    assert got.tolist() == expected


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 70), wide=st.sampled_from([8, 48, 200]), seed=st.integers(0, 99))
def test_product_of_a_row_is_the_same_to_the_bit_in_any_batch(rows: int, wide: int, seed: int):
    torch.manual_seed(seed)
    a, b = torch.randn(70, 96), torch.randn(wide, 96).T
    many = invariant.mm(a, b)
    assert torch.equal(invariant.mm(a[:rows], b), many[:rows])
    torch.testing.assert_close(many, (a.double() @ b.double()).float(), atol=1e-4, rtol=0)
    pair = torch.stack([a, -a]), torch.stack([b, 2 * b])
    assert torch.equal(invariant.bmm(pair[0][:, :rows], pair[1]), invariant.bmm(*pair)[:, :rows])


@pytest.mark.parametrize("size", [3, 8, 31, 100])
@pytest.mark.parametrize(
    ("ours", "torchs"),
    [(invariant.sigmoid, torch.sigmoid), (invariant.silu, torch.nn.functional.silu)],
)
def test_activation_of_a_row_is_the_same_to_the_bit_in_any_batch(size, ours, torchs) -> None:
    x = 4 * torch.randn(40, size)
    assert all(torch.equal(ours(x[:rows]), ours(x)[:rows]) for rows in range(1, 40))
    torch.testing.assert_close(ours(x), torchs(x))


HEADS, SIZE, VALUE, SCALE = 4, 40, 24, 0.2


def attend(q_THD: torch.Tensor, kv_LD: torch.Tensor, first: int) -> torch.Tensor:
    """Causal attention of tokens first, first + 1, ... the way the backend calls it, [T, H, V]."""
    tokens = len(q_THD)
    length = invariant.padded(first + tokens, attention.BLOCK)
    kv = torch.zeros(1, length, SIZE)
    kv[0, : first + tokens] = kv_LD[: first + tokens]
    rows = tokens * HEADS
    missing = invariant.padded(rows) - rows
    q = torch.nn.functional.pad(q_THD.reshape(1, rows, SIZE), (0, 0, 0, missing))
    lengths = torch.arange(first + 1, first + tokens + 1).repeat_interleave(HEADS)[None]
    lengths = torch.nn.functional.pad(lengths, (0, missing), value=1)
    out = attention.latent_attention(q, kv, lengths, SCALE, VALUE)
    return out[0, :rows].view(tokens, HEADS, VALUE)


def test_attention_is_the_softmax_of_the_scores() -> None:
    q, kv = torch.randn(150, HEADS, SIZE), torch.randn(150, SIZE)
    scores = SCALE * torch.einsum("thd,ld->htl", q.double(), kv.double())
    scores.masked_fill_(torch.ones(150, 150, dtype=torch.bool).triu(1), float("-inf"))
    expected = torch.einsum("htl,lv->thv", scores.softmax(-1), kv[:, :VALUE].double())
    torch.testing.assert_close(attend(q, kv, 0).double(), expected, atol=1e-5, rtol=0)


@settings(deadline=None, max_examples=40)
@given(first=st.integers(0, 299), tokens=st.integers(1, 300), seed=st.integers(0, 99))
def test_attention_of_a_token_is_the_same_to_the_bit_in_any_chunk(first, tokens, seed) -> None:
    torch.manual_seed(seed)
    q, kv = torch.randn(300, HEADS, SIZE), torch.randn(300, SIZE)
    chunk = attend(q[first : first + tokens], kv, first)
    assert torch.equal(chunk, attend(q, kv, 0)[first : first + tokens])


def test_attention_of_a_token_is_the_same_to_the_bit_in_any_batch() -> None:
    lengths = torch.tensor([1, 63, 64, 65, 300])
    rows = invariant.padded(HEADS)
    q, kv = torch.randn(5, rows, SIZE), torch.randn(5, 320, SIZE)
    together = attention.latent_attention(q, kv, lengths[:, None].expand(5, rows), SCALE, VALUE)
    for i, length in enumerate(lengths.tolist()):
        needed = invariant.padded(length, attention.BLOCK)
        alone = attention.latent_attention(
            q[i : i + 1], kv[i : i + 1, :needed], lengths[i].expand(1, rows), SCALE, VALUE
        )
        assert torch.equal(alone[0], together[i])


def test_kernel_of_a_missing_package_cannot_be_called() -> None:
    kernel = standin.refuse("sgl_kernel")("rmsnorm")
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.rmsnorm"):
        kernel(1)
