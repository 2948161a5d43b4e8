"""The page where it answers: maps, conversations, two runs, and what is said of health."""

import base64
import gzip
import html
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from glm52_tbench2.analysis import conversations, maps
from glm52_tbench2.analysis.report import write_report
from glm52_tbench2.analysis.run_files import RunFiles
from glm52_tbench2.analysis.sentinel.facts import GiantTurn
from glm52_tbench2.analysis.sentinel.history import Family
from glm52_tbench2.analysis.sentinel.sketch import Sketch
from glm52_tbench2.config.paths import command
from glm52_tbench2.rollout.batch import SCHEMA

from .pages import driven, opened, page_of, section, trained


def test_scores_without_their_column_are_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run_dir = trained(tmp_path / "run", tokenizer)
    path = run_dir / "train" / "step_000002.parquet"
    pq.write_table(pq.read_table(path).drop(["trainer_logprobs"]), path)
    assert "train/step_000002.parquet lacks log-probs" in write_report(run_dir).read_text()


def test_a_cell_leads_to_its_samples_and_to_a_conversation_with_the_files_numbers(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    finished_run = trained(tmp_path / "run", tokenizer)
    script = f"""{opened(0)}
      view.querySelector('select').value = 'drift';
      const told = [...view.querySelectorAll('.own')].slice(0, 5).map((span) => {{
        span.dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}));
        return [Number(span.dataset.at), view.querySelector('output').textContent];
      }});
      return [view.dataset.sample, told, view.querySelectorAll('script, b, img').length,
              view.querySelector('pre').textContent];
    """
    sample, told, elements, text = json.loads(driven(write_report(finished_run), script, tmp_path))
    run, step = RunFiles.open(finished_run), int(sample.split("-")[0])
    row = run.sample("rollouts", step, sample, SCHEMA.names)
    scored = run.sample("train", step, sample, ["trainer_logprobs"])
    assert row and scored
    assert len(told) == 5
    for at, said in told:
        engine, trainer = row["rollout_logprobs"][at], scored["trainer_logprobs"][at]
        found = re.fullmatch(
            r"token (\d+), id (\d+): trainer (\S+), engine (\S+), D (\S+), "
            r"weights of version (\d+)",
            said,
        )
        assert found and int(found[1]) == at and int(found[2]) == row["tokens"][at]
        assert float(found[3]) == pytest.approx(trainer, rel=1e-3)
        assert float(found[4]) == pytest.approx(engine, rel=1e-3)
        assert float(found[5]) == pytest.approx(trainer - engine, rel=1e-3, abs=1e-6)
        assert int(found[6]) == row["weight_versions"][at]
    assert elements == 0  # what the model wrote is text alone
    assert "Sort the lines of a.txt & keep them <unique>." in text


def test_two_runs_are_shown_side_by_side(finished_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(finished_run, other)
    page = write_report(finished_run, beside=other)
    script = f"{opened(0)} {{ {opened(1)} return view.dataset.sample; }}"
    assert json.loads(driven(page, script, tmp_path))
    assert f"<code>{command('diff', finished_run, other)}</code>" in page.read_text()


def test_two_runs_share_a_chart_but_for_a_metric_they_define_otherwise(
    finished_run: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(finished_run, other)
    log = other / "metrics.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    for record in records:
        if "trainer/entropy" in record["metrics"]:
            record["definitions"] = {"trainer/entropy": 99}
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    page = write_report(finished_run, beside=other).read_text()
    drawn = {
        label: {one["name"] for one in json.loads(html.unescape(data))["series"]}
        for label, data in re.findall(r'aria-label="([^"]*) by step" data-chart="([^"]*)"', page)
    }
    assert drawn["Truncated share"] == {"training batch", "training batch, other"}
    assert drawn["Entropy"] == {"entropy"}
    assert "trainer/entropy has different definitions" in page


def test_a_conversation_that_has_no_room_is_named_with_the_way_to_it(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "MOST_BYTES", 20_000)
    page = write_report(finished_run, steps=range(1, 2))
    text = page.read_text()
    assert "conversations in this page: " in text
    first = re.findall(r'<script type="text/plain" id="r0-(\d+)-', text)
    assert first and set(first) == {"000001"}


def test_a_family_of_repeated_turns_has_its_row() -> None:
    giant = GiantTurn("000001-0-0", "t", 2, 900, -1.5, 0.25, Sketch([1], [1], 0.5))
    family = Family(giant.sketch)
    family.add(1, giant)
    family.add(2, replace(giant, sample_id="000002-0-0", drift=0.75))
    found = maps._family(family)
    assert found["tokens"] == 900 and found["name"] == "t"
    assert found["cells"][2] == {
        "count": 1,
        "advantage": -1.5,
        "drift": 0.75,
        "turns": [["000002-0-0", 2]],
    }
    assert found["since"] == 1


@pytest.mark.parametrize("at_once", [7, 512])
def test_a_page_takes_conversations_by_importance_whatever_step_they_are_of(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    run = RunFiles.open(finished_run)
    every = [
        [(step, row["sample_id"]) for row in run.rows("rollouts", step, ["sample_id"])]
        for step in (9, 2, 5)
    ]
    wanted = [one for row in zip(*every, strict=True) for one in row]  # a step after another
    reads: list[int] = []
    columns = run.columns
    monkeypatch.setattr(
        run, "columns", lambda kind, step, names: reads.append(step) or columns(kind, step, names)
    )
    whole = conversations.Conversations()
    whole.add(run, wanted)
    assert whole.packed.keys() == {sample for _, sample in wanted}
    assert whole.left_out == 0
    sizes = [len(whole.packed[sample]) for _, sample in wanted]

    monkeypatch.setattr(conversations, "_AT_ONCE", at_once)
    monkeypatch.setattr(conversations, "MOST_BYTES", sum(sizes[:10]) + sizes[10] // 2)
    reads.clear()
    found = conversations.Conversations()
    found.add(run, wanted)
    assert found.packed.keys() == {sample for _, sample in wanted[:10]}
    assert found.left_out == len(wanted) - 10
    # Of a step, the samples' file and the trainer's.
    assert max(map(reads.count, reads)) <= 2 * -(-11 // at_once)


def alarms_of(run_dir: Path) -> str:
    return html.unescape(section(page_of(run_dir), "alarms"))


def test_where_nothing_was_judged_the_page_says_why(
    write_run: Callable[..., Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run_dir = write_run(0)
    assert "Nothing was judged: no batch has been written yet." in alarms_of(run_dir)

    def told(run_dir: Path) -> str:
        return maps.maps(RunFiles.open(run_dir))[1].told

    run_dir = trained(tmp_path / "scored", tokenizer)
    (run_dir / "alarms.jsonl").touch()
    assert "no sign of an unhealthy run in 3 steps." in told(run_dir)
    shutil.move(run_dir / "train", tmp_path / "train")
    assert "Nothing was judged: the trainer's scores (train/) are not there." in told(run_dir)
    (run_dir / "metrics.jsonl").unlink()
    assert "Nothing was judged: no step has been trained yet." in told(run_dir)
    shutil.move(tmp_path / "train", run_dir / "train")
    config = run_dir / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("  actions: {}", "  actions: {length: ignore}"))
    assert "in 3 steps. Not looked for: length." in told(run_dir)
    config.write_text(text.replace("action: note", "action: ignore"))
    assert "Nothing was judged: the config has the sentinel ignore every sign" in told(run_dir)


def test_alarms_of_a_run_that_nobody_watched_are_found_afterwards(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run_dir = trained(tmp_path / "run", tokenizer)
    assert "did not watch this run (alarms.jsonl is not there): afterwards" in alarms_of(run_dir)
    config = run_dir / "config.yaml"
    config.write_text(re.sub(r"(\n  visits:) .*", r"\1 0.5", config.read_text()))
    told = alarms_of(run_dir)
    assert "these alarms were found afterwards" in told
    assert '<span class="chip">visits</span></td><td>nothing</td>' in told
    assert 'class="mark"' in section(page_of(run_dir), "curves")


def test_signs_that_a_run_never_told_are_found_afterwards(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """As of older code, which did not know them; those it did tell are left as it told them."""
    run_dir = trained(tmp_path / "run", tokenizer)
    config = run_dir / "config.yaml"
    config.write_text(re.sub(r"(\n  visits:) .*", r"\1 0.5", config.read_text()))
    alarm = {"step": 1, "sign": "entropy", "action": "note", "sentence": "It fell."}
    (run_dir / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    told = alarms_of(run_dir)
    assert '<span class="chip">entropy</span></td><td>note</td>' in told
    assert '<span class="chip">visits</span></td><td>nothing</td>' in told
    assert "the run's sentinel told nothing of visits, found afterwards" in told
    (run_dir / "alarms.jsonl").write_text(json.dumps(alarm | {"sign": "visits"}) + "\n")
    told = alarms_of(run_dir)
    assert told.count('class="chip"') == 1 and "afterwards" not in told
    (run_dir / "alarms.jsonl").write_text("")
    assert "told nothing of visits" in alarms_of(run_dir)
    text = config.read_text().replace("  actions: {}", "  actions: {visits: ignore}")
    config.write_text(text)
    assert "chip" not in alarms_of(run_dir), "switched off on purpose"


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
@pytest.mark.parametrize("column", ["reward", "advantage"])
def test_a_number_that_is_none_is_shown_as_unknown(
    tokenizer: Tokenizer, tmp_path: Path, column: str, value: float | None
) -> None:
    run_dir = trained(tmp_path / "run", tokenizer)
    for kind, step in (("rollouts", 2), ("rollouts", 3), ("eval", 0)):
        path = run_dir / kind / f"step_{step:06d}.parquet"
        table = pq.read_table(path)
        numbers = table[column].to_pylist()
        numbers[0] = value
        if step == 3:
            numbers = [value] * len(numbers)
        place = table.schema.names.index(column)
        field = table.schema.field(place).with_nullable(True)
        pq.write_table(table.set_column(place, field, pa.array(numbers, field.type)), path)
    found, _ = maps.maps(RunFiles.open(run_dir))
    first, *rest = found["samples"][2]
    at = 2 if column == "reward" else 3
    assert first[at] is None and None not in [one[at] for one in rest]
    if column == "reward":
        cells = next(row["cells"] for row in found["tasks"] if row["task"] == first[1])
        known = [one[2] for one in rest if one[1] == first[1]]
        assert cells[2]["reward"] == pytest.approx(sum(known) / len(known))
        assert {row["cells"][3]["reward"] for row in found["tasks"] if 3 in row["cells"]} == {None}
    kept = conversations.Conversations()
    kept.add(RunFiles.open(run_dir), [(2, first[0])])
    told = json.loads(gzip.decompress(base64.b64decode(kept.packed[first[0]])))
    assert told[column] is None
    page = write_report(run_dir)
    assert "NaN" not in section(page.read_text(), "held-out")
    if value is not None:  # one page tells it: all three are null there
        return
    script = """
      const select = document.querySelector('.explore select');
      select.value = 'reward';
      select.dispatchEvent(new Event('change'));
      return document.querySelectorAll('.explore .map .spot.unknown').length;
    """
    unknown = sum(3 in row["cells"] for row in found["tasks"])
    assert driven(page, script, tmp_path) == str(unknown if column == "reward" else 0)


def test_maps_fit_their_card_have_a_key_and_tell_what_is_unknown_from_0(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run_dir = trained(tmp_path / "run", tokenizer, steps=25)
    (run_dir / "train" / "step_000025.parquet").unlink()
    script = """
      const card = document.querySelector('#explore-0 .card.wide');
      const key = () => [card.querySelector('.scale').textContent,
        getComputedStyle(card.querySelector('.scale i')).backgroundImage !== 'none'];
      const unknown = () => [...card.querySelectorAll('.spot.unknown title')]
        .map((one) => one.textContent.match(/step (\\d+)/)[1]);
      const first = [key(), [...new Set(unknown())]];
      const select = card.querySelector('select');
      select.value = 'reward';
      select.dispatchEvent(new Event('change'));
      const home = document.querySelector('#explore-0 .conversation');
      const side = JSON.parse(document.getElementById('explore-data').textContent)[0];
      const buttons = [];
      for (const step of [24, 25]) {
        await window.glm52Conversation(home, side, side.samples[step][0][0], null);
        buttons.push(home.querySelectorAll('.bar button').length);
      }
      return [first, [key(), unknown()], card.scrollWidth <= card.clientWidth, buttons];
    """
    first, second, fits, buttons = json.loads(driven(write_report(run_dir), script, tmp_path))
    assert first == [["-22not known", True], ["25"]]
    assert second == [["01", True], []]
    assert fits
    assert buttons == [1, 0]  # without the trainer's log-probs there is no D to look for
