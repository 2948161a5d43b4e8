"""A run that is damaged in one place: verify must find it, and say where."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.compose import load_run_config, save_run_config
from glm52_tbench2.config.identity import load_identity, save_identity

from .runs import STEPS, Change, changed, file_of, first_generated, stamped, told


def test_a_whole_run_is_whole_and_what_was_read_is_counted(first: Path) -> None:
    code, text = told(first)
    assert code == 0, text
    assert "Every file is whole." in text
    assert "3 steps, 18 samples" in text
    assert "after step 3" in text


def damage_a_page(run_dir: Path) -> None:
    """A token becomes another one, in a page that can still be decoded."""
    path = file_of(run_dir, "rollouts", 2)
    pq.write_table(
        pq.read_table(path), path, compression=None, use_dictionary=False, write_page_checksum=True
    )
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(file.schema_arrow.names.index("tokens"))
        at = column.data_page_offset + column.total_compressed_size - 4
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    pq.read_table(path)


def one_token_less(rows: list[dict]) -> None:
    rows[0]["tokens"] = rows[0]["tokens"][:-1]


def one_score_less(rows: list[dict]) -> None:
    rows[1]["entropy"] = rows[1]["entropy"][:-1]


def another_mask(rows: list[dict]) -> None:
    at = first_generated(rows[1])
    rows[1]["loss_mask"][at] = False
    rows[1]["weight_versions"][at] = -1
    rows[1]["rollout_logprobs"][at] = 0.0


def without_version(rows: list[dict]) -> None:
    rows[2]["weight_versions"][first_generated(rows[2])] = -1


def not_finite(rows: list[dict]) -> None:
    rows[2]["rollout_logprobs"][first_generated(rows[2])] = float("nan")


def without_metrics(run_dir: Path) -> None:
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    records = [json.loads(line) for line in lines]
    gone = next(r for r in records if (r["source"], r["step"]) == ("trainer", 2))
    path.write_text("".join(lines[i] for i, r in enumerate(records) if r is not gone))


def other_count(run_dir: Path) -> None:
    metrics = metrics_log.read(run_dir)["driver"][2]
    metrics_log.append(run_dir, 2, "driver", {**metrics, "rollout/generated_tokens": 7.0})


def other_config(run_dir: Path) -> None:
    save_run_config(replace(load_run_config(run_dir), seed=8), run_dir)


def other_facts(run_dir: Path) -> None:
    identity, history = load_identity(run_dir)
    save_identity(replace(identity, model="0" * 64), run_dir, history)


def unlinked(name: str) -> Change:
    return lambda run_dir: (run_dir / name).unlink()


def written(name: str, content: bytes) -> Change:
    return lambda run_dir: (run_dir / name).write_bytes(content) and None


DAMAGE: dict[str, tuple[Change, str]] = {
    "page": (damage_a_page, "rollouts/step_000002.parquet is damaged"),
    "dropped batch": (
        unlinked("rollouts/step_000002.parquet"),
        "rollouts/step_000002.parquet is missing",
    ),
    "dropped scores": (
        unlinked("train/step_000001.parquet"),
        "train/step_000001.parquet is missing",
    ),
    "dropped last": (
        unlinked("rollouts/step_000003.parquet"),
        "rollouts/step_000003.parquet is missing",
    ),
    "dropped eval": (unlinked("eval/step_000000.parquet"), "eval/step_000000.parquet is missing"),
    "foreign batch": (
        stamped("rollouts", 1, "identity", "feedfeedfeedfeed"),
        "rollouts/step_000001.parquet belongs to a run of identity feedfeedfeedfeed",
    ),
    "foreign scores": (
        stamped("train", 3, "identity", "feed"),
        "train/step_000003.parquet belongs",
    ),
    "other schema": (stamped("eval", 3, "schema_version", "99"), "has schema version 99"),
    "other step": (
        stamped("rollouts", 3, "step", "2"),
        "rollouts/step_000003.parquet holds step 2",
    ),
    "columns": (
        lambda run: pq.write_table(
            pq.read_table(file_of(run, "train", 1)).drop_columns(["entropy"]),
            file_of(run, "train", 1),
        ),
        "train/step_000001.parquet lacks the columns entropy",
    ),
    "lengths": (changed("rollouts", 2, one_token_less), "sample 000002-0-0"),
    "scores' lengths": (changed("train", 2, one_score_less), "sample 000002-0-1"),
    "other samples": (
        changed("train", 2, lambda rows: rows.reverse()),
        "holds other samples than rollouts/step_000002.parquet",
    ),
    "mask": (changed("rollouts", 1, another_mask), "the loss mask is not the union"),
    "version": (changed("eval", 3, without_version), "a generated token has no weight version"),
    "not finite": (changed("rollouts", 3, not_finite), "a log-prob is not finite"),
    "lost sample": (changed("rollouts", 3, lambda rows: rows.pop()), "5 samples, not 6"),
    "order": (changed("eval", 0, lambda rows: rows.reverse()), "out of order"),
    "twice": (changed("rollouts", 1, lambda rows: rows.append(rows[-1])), "is there twice"),
    "metrics": (without_metrics, "no record of trainer for step 2"),
    "count": (other_count, "rollout/generated_tokens 7 at step 2"),
    "config": (other_config, "config seed: 1 -> 8"),
    "facts": (other_facts, "but its facts are those of"),
    "identity": (written("identity.json", b"{"), "identity.json is damaged"),
    "weights": (
        written("checkpoints/step_000003/__0_0.distcp", b"weightz"),
        "checkpoints/step_000003 is damaged: __0_0.distcp is not what was written",
    ),
    "lost weights": (unlinked("checkpoints/step_000003/c.pt"), "c.pt is missing"),
    "STABLE": (written("checkpoints/step_000003/STABLE", b"[]"), "STABLE file is damaged"),
    "checkpoint": (
        lambda run: shutil.rmtree(run / "checkpoints" / "step_000003"),
        "checkpoints/step_000003 is missing",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_its_place_named(copy: Path, kind: str) -> None:
    change, said = DAMAGE[kind]
    change(copy)
    code, text = told(copy)
    assert code == 1
    assert said in text
    assert "Not whole" in text


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_step_file_cut_anywhere_is_found(
    second: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["rollouts", "train", "eval"]))
    step = data.draw(st.sampled_from([0, STEPS] if kind == "eval" else [1, 2, 3]))
    run = Path(shutil.copytree(second, tmp_path_factory.mktemp("cut") / "run"))
    content = file_of(run, kind, step).read_bytes()
    cut = data.draw(st.integers(0, len(content) - 1))
    file_of(run, kind, step).write_bytes(content[:cut])
    code, text = told(run)
    assert code == 1
    assert f"{kind}/step_{step:06d}.parquet is damaged" in text


def test_what_a_kill_leaves_behind_is_no_damage(copy: Path) -> None:
    (copy / "finished").unlink()
    for name in ("rollouts/step_000003.parquet", "train/step_000003.parquet"):
        (copy / name).unlink()
    file_of(copy, "eval", 3).unlink()
    (copy / "rollouts" / ".step_000003.parquet.7.tmp").write_bytes(b"PAR1")
    (copy / "checkpoints" / "step_000003" / "STABLE").unlink()
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "sou')
    code, text = told(copy)
    assert code == 0, text
    assert "checkpoints/step_000003 was not finished" in text
    assert ".step_000003.parquet.7.tmp is left over" in text
    assert "1 line cut short" in text


def test_the_last_step_of_a_stopped_run_may_lack_its_metrics(copy: Path) -> None:
    (copy / "finished").unlink()
    path = copy / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["step"] < STEPS))
    assert told(copy)[0] == 0


def test_an_identity_without_contents_of_code_is_said_and_no_damage(copy: Path) -> None:
    path = copy / "identity.json"
    content = json.loads(path.read_text())
    del content["made"], content["tasks"]
    content["code"] = {"revision": "f" * 40, "changes": ""}
    path.write_text(json.dumps(content))
    code, text = told(copy)
    assert code == 0, text
    assert "does not record the contents of code and tasks" in text


def test_a_rerun_beside_it_is_named(copy: Path) -> None:
    assert "run again" not in told(copy)[1]
    again = Path(shutil.copytree(copy, copy.with_name("again")))
    identity, history = load_identity(again)
    assert identity.made is not None
    made = replace(identity.made, origin={"rerun_of": "copy"})
    save_identity(replace(identity, made=made), again, history)
    assert told(copy)[1].endswith(f"glm52 verify {copy} {again}")
    assert "run again" not in told(again)[1]
