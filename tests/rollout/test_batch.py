import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_tbench2.rollout.batch import (
    SCHEMA_VERSION,
    TOKEN_COLUMNS,
    CorruptBatchError,
    ForeignBatchError,
    Sample,
    batch_path,
    read_batch,
    read_columns,
    read_info,
    write_batch,
)  # fmt: skip

from .make import make_sample


def same(a: Sample, b: Sample) -> bool:
    return all(
        np.array_equal(getattr(a, f.name), getattr(b, f.name))
        if f.name in TOKEN_COLUMNS
        else getattr(a, f.name) == getattr(b, f.name)
        for f in dataclasses.fields(Sample)
    )


@pytest.fixture
def path(tmp_path):
    path = batch_path(tmp_path, "rollouts", 7)
    samples = [make_sample(g, i, step=7, turns=1 + i) for g in (1, 0) for i in (1, 0)]
    write_batch(path, samples, "me", 7, {"wall_s": 2.5})
    return path


def test_what_is_written_is_read_in_order(path):
    samples = read_batch(path, "me", 7)
    assert [(s.group, s.index) for s in samples] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(same(s, make_sample(s.group, s.index, step=7, turns=1 + s.index)) for s in samples)
    assert samples[0].tokens.dtype == np.int32 and samples[0].loss_mask.dtype == np.bool_
    assert read_info(path).stats == {"wall_s": 2.5}
    assert path.name == "step_000007.parquet"


def test_the_file_says_what_it_is_to_any_reader(path):
    metadata = pq.read_metadata(path).metadata
    assert metadata[b"schema_version"] == SCHEMA_VERSION.encode()
    assert (metadata[b"identity"], metadata[b"step"]) == (b"me", b"7")
    row = pq.read_table(path).to_pylist()[0]
    assert row["turns"][0]["command"] == "ls" and len(row["tokens"]) == len(row["loss_mask"])


def test_columns_alone_come_as_numpy(path):
    columns = read_columns(path, ["reward", "task_id", "tokens", "loss_mask"], "me", 7)
    samples = read_batch(path)
    assert columns["reward"].tolist() == [1.0] * 4
    assert columns["task_id"].tolist() == [s.task_id for s in samples]
    for tokens, mask, sample in zip(columns["tokens"], columns["loss_mask"], samples, strict=True):
        assert np.array_equal(tokens, sample.tokens) and np.array_equal(mask, sample.loss_mask)


@pytest.mark.parametrize(("identity", "step"), [("other", 7), ("me", 8)])
def test_a_file_of_another_run_or_step_is_told_from_a_damaged_one(path, identity, step):
    with pytest.raises(ForeignBatchError, match="step_000007"):
        read_batch(path, identity, step)


def test_another_schema_version_is_foreign(path):
    table = pq.read_table(path)
    pq.write_table(
        table.replace_schema_metadata({**table.schema.metadata, b"schema_version": b"9"}), path
    )
    with pytest.raises(ForeignBatchError, match="schema version 9"):
        read_batch(path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_noticed_or_reads_the_same(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.parquet"
    samples = [make_sample(0, i) for i in range(2)]
    write_batch(path, samples, "me", 1)
    whole = path.read_bytes()
    if data.draw(st.booleans(), "truncate"):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1), "length")]
    else:
        at = data.draw(st.integers(0, len(whole) - 1), "position")
        flip = data.draw(st.integers(1, 255), "flip")
        damaged = whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]
    path.write_bytes(damaged)
    try:
        found = read_batch(path, "me", 1)
    except (CorruptBatchError, ForeignBatchError) as error:
        assert "damaged.parquet" in str(error)
    else:
        assert all(map(same, found, samples))


def test_a_missing_file_is_not_a_corrupt_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_batch(tmp_path / "none.parquet")


def test_a_file_of_other_columns_is_corrupt(path):
    pq.write_table(pq.read_table(path).drop_columns(["reward"]), path)
    with pytest.raises(CorruptBatchError, match=r"step_000007"):
        read_batch(path)
    with pytest.raises(CorruptBatchError, match="reward"):
        read_columns(path, ["reward"])


BROKEN = {
    "another step": {"step": 2},
    "a mask that is not its turns": {"loss_mask": np.ones(14, dtype=bool)},
    "lengths that differ": {"tokens": np.zeros(9, dtype=np.int32)},
    "a log-prob that is not finite": {"rollout_logprobs": np.full(14, np.nan, dtype=np.float32)},
    "a token without a version": {"weight_versions": np.full(14, -1, dtype=np.int32)},
    "a reward that is not finite": {"reward": float("nan")},
    "an advantage that is not finite": {"advantage": float("inf")},
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_sample_that_contradicts_itself_is_not_written(tmp_path, case):
    sample = dataclasses.replace(make_sample(prompt=4), **BROKEN[case])
    assert len(make_sample(prompt=4).tokens) == 14
    with pytest.raises(ValueError, match="000001-0-0"):
        write_batch(tmp_path / "x.parquet", [sample], "me", 1)
    assert list(tmp_path.iterdir()) == []
