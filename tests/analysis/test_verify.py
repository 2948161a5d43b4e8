"""Runs that are damaged or differ in one place: verify must find it, and say where."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from glm52_tbench2.analysis.verify import verify_one, verify_two
from glm52_tbench2.config import metrics_log
from glm52_tbench2.config.compose import load_run_config, save_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.identity import identify, load_identity, save_identity
from glm52_tbench2.rollout.batch import SCHEMA_VERSION
from glm52_tbench2.tasks.sets import load_set

from . import fake_run
from .fake_run import FakeRun

STEPS = 3
Change = Callable[[Path], None]


def make(path: Path, tokenizer: Tokenizer) -> Path:
    """A finished run of three small steps with every kind of file."""
    run = FakeRun(path, tokenizer, steps=STEPS, num_tasks=4, num_eval=3, groups=2, samples=3)
    run.start()
    config = load_run_config(path)
    identity = identify(config, [load_set(name) for name in (config.data.train, config.data.eval)])
    save_identity(identity, path, [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_run, "IDENTITY", identity.hash)
        run.evaluate(0)
        for step in range(1, STEPS + 1):
            run.step(step)
            score(path, step, identity.hash)
        run.evaluate(STEPS)
    checkpoint(path / "checkpoints" / f"step_{STEPS:06d}", STEPS)
    (path / "finished").write_text("now\n")
    return path


def score(path: Path, step: int, identity: str) -> None:
    """train/step_N.parquet, as the trainer writes it."""
    batch = pq.read_table(path / "rollouts" / f"step_{step:06d}.parquet").to_pylist()
    logprobs = [np.where(row["loss_mask"], row["rollout_logprobs"], 0.0) * 1.01 for row in batch]
    table = pa.table(
        {
            "sample_id": pa.array([row["sample_id"] for row in batch], pa.string()),
            "trainer_logprobs": pa.array(logprobs, pa.list_(pa.float32())),
            "entropy": pa.array([-one for one in logprobs], pa.list_(pa.float32())),
        }
    ).replace_schema_metadata(
        {"schema_version": SCHEMA_VERSION, "identity": identity, "step": str(step)}
    )
    (path / "train").mkdir(exist_ok=True)
    pq.write_table(
        table, path / "train" / f"step_{step:06d}.parquet", compression="zstd",
        write_page_checksum=True,
    )  # fmt: skip


def checkpoint(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    for name, content in ((".metadata", b"index"), ("__0_0.distcp", b"weights"), ("c.pt", b"c")):
        (folder / name).write_bytes(content)
    files = {
        path.name: {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in folder.iterdir()
    }
    stable = {"step": step, "weight_version": step, "files": files}
    (folder / "STABLE").write_text(json.dumps(stable))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def first(tokenizer: Tokenizer, runs: Path) -> Path:
    """Read only."""
    return make(runs / "smoke-1", tokenizer)


@pytest.fixture(scope="module")
def second(tokenizer: Tokenizer, runs: Path) -> Path:
    """The same run, made again. Read only."""
    return make(runs / "smoke-2", tokenizer)


@pytest.fixture
def copy(second: Path, tmp_path: Path) -> Path:
    """The second run, free to be changed."""
    return Path(shutil.copytree(second, tmp_path / "copy"))


def told(*run_dirs: Path, everything: bool = False) -> tuple[int, str]:
    """Exit code and text of verify."""
    lines: list[str] = []
    if len(run_dirs) == 1:
        return verify_one(run_dirs[0], lines.append), "\n".join(lines)
    return verify_two(*run_dirs, everything, lines.append), "\n".join(lines)


def file_of(run_dir: Path, kind: str, step: int) -> Path:
    return run_dir / kind / f"step_{step:06d}.parquet"


def rewrite(run_dir: Path, kind: str, step: int, change: Callable[[list[dict]], None]) -> None:
    """Writes a step file again with changed rows, its checksums right."""
    path = file_of(run_dir, kind, step)
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(
        pa.Table.from_pylist(rows, schema=table.schema), path, compression="zstd",
        write_page_checksum=True,
    )  # fmt: skip


def stamp(run_dir: Path, kind: str, step: int, key: str, value: str) -> None:
    """Writes a step file again that says other things about itself."""
    path = file_of(run_dir, kind, step)
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, key.encode(): value.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path, write_page_checksum=True)


def set_in(kind: str, step: int, row: int, column: str, value: object) -> Change:
    def change(run_dir: Path) -> None:
        rewrite(run_dir, kind, step, lambda rows: rows[row].__setitem__(column, value))

    return change


def first_generated(row: dict) -> int:
    return int(np.argmax(row["loss_mask"]))


# --- one run -----------------------------------------------------------------------------------


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


def changed(kind: str, step: int, change: Callable[[list[dict]], None]) -> Change:
    return lambda run_dir: rewrite(run_dir, kind, step, change)


def stamped(kind: str, step: int, key: str, value: str) -> Change:
    return lambda run_dir: stamp(run_dir, kind, step, key, value)


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
    assert "1 lines that were cut short" in text


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


# --- two runs ----------------------------------------------------------------------------------


def test_a_run_made_twice_is_one(first: Path, second: Path) -> None:
    code, text = told(first, second)
    assert code == 0, text
    assert "Bit-identical: 3 batches (18 samples" in text
    assert "2 evaluations" in text
    assert "weights and optimizer state after step 3" in text


def test_times_and_the_load_of_the_machine_are_no_difference(first: Path, copy: Path) -> None:
    def slower(rows: list[dict]) -> None:
        for name in ("generate_s", "sandbox_s", "verify_s", "total_s"):
            rows[0][name] += 1
        for name in ("generate_s", "exec_s", "cached_tokens"):
            rows[0]["turns"][0][name] += 1

    rewrite(copy, "rollouts", 2, slower)
    stamp(copy, "rollouts", 1, "stats", '{"wall_s": 99.0}')
    metrics = metrics_log.read(copy)["driver"][2]
    cost = {"time/rollout_s": 9.0, "rollout/tokens_per_s": 9.0, "rollout/replaced/sandbox": 1.0}
    metrics_log.append(copy, 2, "driver", {**metrics, **cost})
    (copy / "checkpoints/step_000003/.metadata").write_bytes(b"other index")
    assert told(first, copy)[0] == 0


def move_bits(rows: list[dict], column: str) -> None:
    """The least change of a float32 there is, in the second sample."""
    at = first_generated(rows[1]) if "loss_mask" in rows[1] else int(np.argmax(rows[1][column]))
    at = at or int(np.flatnonzero(rows[1][column])[0])
    rows[1][column][at] = float(np.nextafter(np.float32(rows[1][column][at]), np.float32(-9)))


def other_weights(run_dir: Path) -> None:
    folder = run_dir / "checkpoints" / "step_000003"
    shutil.rmtree(folder)
    checkpoint(folder, STEPS)
    (folder / "__0_0.distcp").write_bytes(b"weightz")
    stable = json.loads((folder / "STABLE").read_text())
    stable["files"]["__0_0.distcp"]["sha256"] = hashlib.sha256(b"weightz").hexdigest()
    (folder / "STABLE").write_text(json.dumps(stable))


def other_metric(source: str, name: str, value: float) -> Change:
    def change(run_dir: Path) -> None:
        metrics = metrics_log.read(run_dir)[source][2]
        metrics_log.append(run_dir, 2, source, {**metrics, name: value})

    return change


def with_turn(name: str, value: object) -> Change:
    def change(rows: list[dict]) -> None:
        rows[3]["turns"][0][name] = value

    return changed("rollouts", 2, change)


PARTS: dict[str, tuple[Change, list[str]]] = {
    "log-prob": (
        changed("rollouts", 2, lambda rows: move_bits(rows, "rollout_logprobs")),
        ["step 2, in the batch", "sample 000002-0-1 (task ", "turn 1, token ", "(generated)",
         "rollout_logprobs -", "1 of 6 samples differ", "100.0%"],
    ),
    "task": (set_in("rollouts", 1, 0, "task_id", "other"), ["step 1, in the batch", "'other'"]),
    "reward": (
        set_in("rollouts", 3, 5, "reward", 0.5), ["step 3, in the batch", "reward", "| 0.5"]
    ),
    "end": (set_in("rollouts", 3, 5, "end_reason", "x"), ["end_reason", "| 'x'"]),
    "advantage": (
        set_in("rollouts", 3, 5, "advantage", 9.0), ["sample 000003-1-2", "advantage", "| 9.0"]
    ),
    "error": (set_in("rollouts", 3, 5, "error", "x"), ["error: None | 'x'"]),
    "command": (with_turn("command", "ls"), ["sample 000002-1-0", "turn 1, command", "| 'ls'"]),
    "observation": (with_turn("observation", "no"), ["turn 1, observation", "| 'no'"]),
    "trainer": (
        changed("train", 2, lambda rows: move_bits(rows, "trainer_logprobs")),
        ["step 2, in the trainer, on a batch that is the same", "train/step_000002.parquet",
         "sample 000002-0-1 (task ", "trainer_logprobs -", "(generated)"],
    ),
    "entropy": (changed("train", 2, lambda rows: move_bits(rows, "entropy")), ["entropy "]),
    "weights": (
        other_weights,
        ["step 3, in the update", "checkpoints/step_000003/__0_0.distcp: sha256"],
    ),
    "batch metric": (
        other_metric("driver", "rollout/reward_std", 0.1),
        ["step 2, in the metrics of a batch", "rollout/reward_std: ", "| 0.1"],
    ),
    "trainer metric": (
        other_metric("trainer", "trainer/grad_norm", 0.1),
        ["step 2, in the trainer's metrics", "trainer/grad_norm: ", "1 of "],
    ),
    "new metric": (other_metric("trainer", "trainer/new", 0.1), ["trainer/new: absent | 0.1"]),
    "evaluation": (
        set_in("eval", 0, 2, "reward", 0.5), ["step 0, in the evaluation", "eval/step_000000"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PARTS)
def test_runs_part_where_one_was_changed(first: Path, copy: Path, kind: str) -> None:
    change, said = PARTS[kind]
    change(copy)
    code, text = told(first, copy)
    assert code == 1
    for part in said:
        assert part in text, text
    assert "must be bit-identical: a fault" in text  # one identity, a CPU, rollout.mode=sync


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_changed_token_is_found_wherever_it_is(
    first: Path, second: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["rollouts", "eval"]))
    step = data.draw(st.sampled_from([0, STEPS] if kind == "eval" else [1, 2, 3]))
    run = Path(shutil.copytree(second, tmp_path_factory.mktemp("flip") / "run"))
    rows = pq.read_table(file_of(run, kind, step)).to_pylist()
    row = data.draw(st.integers(0, len(rows) - 1))
    at = data.draw(st.integers(0, len(rows[row]["tokens"]) - 1))
    old = rows[row]["tokens"][at]
    new = data.draw(st.integers(0, 2**31 - 1).filter(lambda token: token != old))

    def change(rows: list[dict]) -> None:
        rows[row]["tokens"][at] = new

    rewrite(run, kind, step, change)
    code, text = told(first, run)
    assert code == 1
    assert f"They part at step {step}, " in text
    assert f"{kind}/step_{step:06d}.parquet, sample {rows[row]['sample_id']} " in text
    assert f"token {at} (" in text
    assert f"tokens {old} | {new}" in text


def test_the_cause_is_told_before_its_effects(first: Path, copy: Path) -> None:
    """A change of step 2's batch, of its advantages, and of everything that follows from it."""
    other_weights(copy)
    PARTS["trainer"][0](copy)
    PARTS["trainer metric"][0](copy)
    set_in("rollouts", 2, 0, "advantage", 9.0)(copy)
    PARTS["log-prob"][0](copy)
    code, text = told(first, copy, everything=True)
    assert code == 1
    places = [line for line in text.splitlines() if line.startswith("  ")]
    assert [place.split(",")[0].strip() for place in places] == [
        "rollouts/step_000002.parquet",
        "train/step_000002.parquet",
        "metrics.jsonl",
        "checkpoints/step_000003/__0_0.distcp: sha256 "
        + " | ".join(hashlib.sha256(w).hexdigest()[:12] for w in (b"weights", b"weightz")),
    ]
    assert "rollout_logprobs" in places[0] and "advantage" not in places[0]
    only_first = told(first, copy)[1]
    assert places[0] in only_first and places[1] not in only_first


def write_weights(run_dir: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """weights/version_000003, in the layout of safetensors."""
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        span = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": span}
        data += values.tobytes()
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    folder = run_dir / "weights" / "version_000003"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model-00001.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    ("changed_in", "said"),
    [
        ("", "; optimizer state alone"),
        ("norm", "; norm[2]: 1 | 2"),
        ("expert", "; expert[1, 2]: 1 | 2"),
        ("scale", "; scale[0]"),
    ],
)
def test_the_first_weight_that_differs_is_told(
    first: Path, copy: Path, tmp_path: Path, changed_in: str, said: str
) -> None:
    tensors = {
        "norm": ("F32", np.ones(4, np.float32)),
        "expert": ("BF16", np.full((2, 3), 0x3F80, np.uint16)),
        "scale": ("F8_E8M0", np.ones(2, np.uint8)),
    }
    one = Path(shutil.copytree(first, tmp_path / "one"))
    other_weights(copy)
    write_weights(one, tensors)
    if changed_in == "norm":
        tensors["norm"][1][2] = 2
    elif changed_in == "expert":
        tensors["expert"][1][1, 2] = 0x4000
    elif changed_in == "scale":
        tensors["scale"][1][0] = 7
    write_weights(copy, tensors)
    code, text = told(one, copy)
    assert code == 1
    assert f"{hashlib.sha256(b'weightz').hexdigest()[:12]}{said}\n" in text


def test_how_far_apart_is_told(first: Path, copy: Path) -> None:
    rows = pq.read_table(file_of(copy, "rollouts", 1)).to_pylist()
    generated = [np.flatnonzero(row["loss_mask"]) for row in rows]
    total = sum(map(len, generated))
    last = int(generated[0][-1])

    def change(rows: list[dict]) -> None:
        rows[0]["rollout_logprobs"][int(generated[0][0])] -= 0.125
        rows[0]["tokens"][last] = 7
        rows[0]["rollout_logprobs"][last] -= 5.0  # of another token: not comparable
        rows[1]["rollout_logprobs"][int(generated[1][0])] -= 0.25

    rewrite(copy, "rollouts", 1, change)
    text = told(first, copy)[1]
    assert f"Of its {total:,} generated tokens {(total - 1) / total:.1%} come before" in text
    assert "at most 0.25 nats apart" in text
    assert (
        f"sample 000001-0-0 (task {rows[0]['task_id']}), turn 1, token {generated[0][0]} " in text
    )
    assert "2 of 6 samples differ" in text


def test_runs_that_cannot_be_identical_are_not_called_faulty(first: Path, copy: Path) -> None:
    config = load_run_config(copy)
    text = (copy / "config.yaml").read_text()
    assert config.parallel.device.name == "cpu"
    (copy / "config.yaml").write_text(text.replace("device: cpu", "device: cuda"))
    PARTS["log-prob"][0](copy)
    code, text = told(first, copy)
    assert code == 1
    assert "cannot be bit-identical (parallel.device=cuda" in text
    assert "fault" not in text


def test_other_identities_and_machines_are_named(first: Path, copy: Path) -> None:
    identity, _ = load_identity(copy)
    assert identity.made is not None
    made = replace(identity.made, machine={**identity.made.machine, "cpu": "Other CPU"})
    other = replace(identity, packages={**identity.packages, "numpy": "9"}, made=made)
    other = replace(other, hash=other.expected_hash())
    save_identity(other, copy, [])
    for path in copy.glob("*/step_*.parquet"):
        stamp(copy, path.parent.name, int(path.stem[5:]), "identity", other.hash)
    PARTS["log-prob"][0](copy)
    text = told(first, copy)[1]
    assert "package numpy: " in text and " -> 9" in text
    assert "cpu Other CPU" in text
    assert "Two identities need not give the same." in text


def test_a_run_that_is_not_as_far_is_compared_as_far_as_it_is(first: Path, copy: Path) -> None:
    (copy / "finished").unlink()
    for kind in ("rollouts", "train", "eval"):
        file_of(copy, kind, 3).unlink()
    code, text = told(first, copy)
    assert code == 0
    assert "Bit-identical as far as both go, which is step 2" in text


def test_a_damaged_file_is_no_comparison(first: Path, copy: Path) -> None:
    file_of(copy, "train", 2).write_bytes(b"PAR1")
    code, text = told(first, copy)
    assert code == 1
    assert "Not comparable: " in text and "train/step_000002.parquet is damaged" in text


def test_a_file_of_another_run_is_no_comparison(first: Path, copy: Path) -> None:
    stamp(copy, "rollouts", 2, "identity", "feed")
    code, text = told(first, copy)
    assert code == 1
    assert "rollouts/step_000002.parquet belongs to a run of identity feed" in text


def test_a_finished_run_that_lost_its_last_step_is_not_the_same(first: Path, copy: Path) -> None:
    for kind in ("rollouts", "train", "eval"):
        file_of(copy, kind, 3).unlink()
    code, text = told(first, copy)
    assert code == 1
    assert "rollouts/step_000003.parquet" in text


def test_what_cannot_be_compared_is_refused(first: Path, copy: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        told(tmp_path)
    with pytest.raises(UserError, match="one folder"):
        told(first, first)
    (copy / "finished").unlink()
    for kind in ("rollouts", "train", "eval"):
        shutil.rmtree(copy / kind)
    with pytest.raises(UserError, match="no step in common"):
        told(first, copy)
