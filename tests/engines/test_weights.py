"""Weights in folders and in buckets; how engines take them is in test_updates.py."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from glm52_tbench2.engines import weights
from glm52_tbench2.engines.weights.sender import buckets

NAMES = {"a": [2, 3], "b": [4], "c": [1, 5]}


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full(shape, value) for name, shape in NAMES.items()}


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """Starting weights with a config and a tokenizer."""
    folder = tmp_path / "start"
    folder.mkdir()
    save_file(tensors(0.0), folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "glm4_moe_lite"}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


def publish(folder: Path, start: Path, version: int) -> Path:
    return weights.publish(folder, tensors(float(version)).items(), start, version)


def test_nothing_is_latest_before_the_first_version(tmp_path: Path) -> None:
    assert weights.latest(tmp_path / "weights") is None


def test_published_version_is_a_model_of_its_own(tmp_path: Path, start: Path) -> None:
    folder = publish(tmp_path / "weights", start, 7)
    found = loaded(folder)
    assert {name: list(tensor.shape) for name, tensor in found.items()} == NAMES
    assert all(tensor.eq(7).all() for tensor in found.values())
    assert (folder / "config.json").read_bytes() == (start / "config.json").read_bytes()
    assert (folder / "tokenizer.json").exists()


def test_latest_is_the_highest_version(tmp_path: Path, start: Path) -> None:
    for version in (9, 10):
        publish(tmp_path / "weights", start, version)
    folder, version = weights.latest(tmp_path / "weights") or (None, None)
    assert (folder, version) == (tmp_path / "weights" / "version_000010", 10)


def test_old_versions_are_removed(tmp_path: Path, start: Path) -> None:
    for version in (1, 2, 3, 4):
        publish(tmp_path / "weights", start, version)
    left = sorted(path.name for path in (tmp_path / "weights").iterdir())
    assert left == ["version_000003", "version_000004"]


def test_what_a_killed_trainer_was_writing_is_removed(tmp_path: Path, start: Path) -> None:
    half = tmp_path / "weights" / ".version_000001.12345.tmp"
    half.mkdir(parents=True)
    (half / "model-00001.safetensors").write_bytes(b"half")
    publish(tmp_path / "weights", start, 1)
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["version_000001"]


def test_version_below_those_there_is_kept(tmp_path: Path, start: Path) -> None:
    for version in (8, 9, 2):
        publish(tmp_path / "weights", start, version)
    assert (tmp_path / "weights" / "version_000002" / "version.json").exists()


def test_version_published_again_replaces_the_first(tmp_path: Path, start: Path) -> None:
    publish(tmp_path / "weights", start, 3)
    folder = weights.publish(tmp_path / "weights", tensors(5.0).items(), start, 3)
    assert all(tensor.eq(5).all() for tensor in loaded(folder).values())


def test_large_weights_are_spread_over_files(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights.folders, "SHARD_BYTES", 40)
    folder = publish(tmp_path / "weights", start, 1)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) == 2
    assert all(name in load_file(folder / file) for name, file in index.items())


@pytest.mark.parametrize(
    "wrong",
    [{"a": [2, 3], "b": [4]}, {**NAMES, "d": [1]}, {**NAMES, "b": [5]}],
    ids=["missing", "unknown", "shape"],
)
def test_weights_unlike_the_starting_ones_are_refused(
    wrong: dict[str, list[int]], tmp_path: Path, start: Path
) -> None:
    bad = [(name, torch.zeros(shape)) for name, shape in wrong.items()]
    with pytest.raises(ValueError, match=r"1 tensors differ from the starting weights': [bcd]"):
        weights.publish(tmp_path / "weights", bad, start, 1)
    assert not list((tmp_path / "weights").iterdir())


def test_failure_in_the_middle_leaves_the_version_before(tmp_path: Path, start: Path) -> None:
    publish(tmp_path / "weights", start, 1)

    def failing():
        yield "a", torch.zeros(2, 3)
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        weights.publish(tmp_path / "weights", failing(), start, 2)
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["version_000001"]
    assert weights.latest(tmp_path / "weights") == (tmp_path / "weights" / "version_000001", 1)


def named(sizes: list[tuple[str, int]]) -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.zeros(size, dtype=torch.uint8)) for name, size in sizes]


@given(
    layers=st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=4), max_size=5),
    between=st.lists(st.integers(1, 30), min_size=5, max_size=5),
    limit=st.integers(1, 40),
)
def test_buckets_hold_everything_in_order_and_no_attention_in_two(
    layers: list[list[int]], between: list[int], limit: int
) -> None:
    sizes = []
    for number, (attention, mlp) in enumerate(zip(layers, between, strict=False)):
        prefix = f"model.layers.{number}"
        sizes += [(f"{prefix}.self_attn.{i}.weight", size) for i, size in enumerate(attention)]
        sizes.append((f"{prefix}.mlp.weight", mlp))
    found = list(buckets(named(sizes), limit))
    assert [(name, t.nbytes) for bucket in found for name, t in bucket] == sizes
    units = [[name.partition(".self_attn.")[0] for name, _ in bucket] for bucket in found]
    for bucket, here in zip(found, units, strict=True):
        assert sum(t.nbytes for _, t in bucket) <= limit or len(set(here)) == 1
    attentions = [
        {name.split(".")[2] for name, _ in bucket if ".self_attn." in name} for bucket in found
    ]
    assert sum(map(len, attentions)) == len(layers)


def test_attention_in_two_places_is_refused() -> None:
    q, kv = ("model.layers.1.self_attn.q.weight", 3), ("model.layers.1.self_attn.kv.weight", 3)
    with pytest.raises(ValueError, match=r"model\.layers\.1\.self_attn do not follow"):
        list(buckets(named([q, ("lm_head.weight", 2), kv]), 100))
