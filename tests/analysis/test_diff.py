"""Experiments and overrides compared: what differs, what it allows to conclude, what would tell."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from glm52_tbench2 import cli
from glm52_tbench2.analysis.diff.causes import Verdict
from glm52_tbench2.analysis.diff.comparison import Comparison, as_json, compared
from glm52_tbench2.analysis.diff.experiments import Plan, _composed
from glm52_tbench2.analysis.diff.sides import Kind, plain_knobs
from glm52_tbench2.config.classes import Effect, effect
from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import ROOT


def names(found: Comparison) -> list[str]:
    return [one.name for one in found.differences]


def conclusion(*sides: str) -> tuple[Verdict, str, Plan]:
    """Of the second side against the first."""
    one, plan = compared(sides).conclusions[0]
    return one.verdict, one.sentence, plan


def composed(command: str) -> dict[str, object]:
    """The knobs that a command trains with, composed by Hydra alone."""
    words = shlex.split(command)
    assert words[:2] == ["glm52", "train"]
    return plain_knobs(compose(words[2:]))


def changed(command: str, base: Sequence[str]) -> set[str]:
    """The knobs in which a command differs from a base, without cosmetic ones."""
    mine, theirs = composed(command), plain_knobs(compose(list(base)))
    return {
        name
        for name in {**mine, **theirs}
        if mine.get(name) != theirs.get(name) and effect(name) is not Effect.cosmetic
    }


# The published A/B: reference/recipe of the finding.
PUBLISHED = {
    "data.train": Effect.measured,
    "rollout.max_turn_tokens": Effect.measured,
    "rollout.max_session_tokens": Effect.measured,
    "clip.correction_low": Effect.training,
}


@pytest.fixture(scope="module")
def published() -> Comparison:
    return compared(["job1794", "job2350"])


def test_the_published_runs_differ_in_these_knobs_and_nothing_else(published: Comparison) -> None:
    assert {one.name: one.effect for one in published.differences} == PUBLISHED
    values = {one.name: tuple(one.values.values()) for one in published.differences}
    assert values["rollout.max_turn_tokens"] == (16384, 8192)
    assert values["rollout.max_session_tokens"] == (131072, 65536)
    assert values["clip.correction_low"] == (0.5, 0.0)
    train, change = published.differences[0].values, published.differences[0].tasks["B"]
    assert (train["A"]["num_tasks"], train["B"]["num_tasks"]) == (69, 8)
    assert (len(change.added), len(change.removed), change.kept) == (0, 61, 8)
    assert all(one.doc for one in published.differences)


def test_the_published_comparison_is_confounded_and_four_runs_would_tell(
    published: Comparison,
) -> None:
    ((one, plan),) = published.conclusions
    assert one.verdict is Verdict.confounded
    assert "4 causes" in one.sentence
    assert plan.inseparable == ()
    assert [run.command for run in plan.experiments] == [
        "glm52 train experiment=job1794",
        "glm52 train experiment=job1794 data=train8",
        "glm52 train experiment=job1794 rollout.max_turn_tokens=8192",
        "glm52 train experiment=job1794 rollout.max_session_tokens=65536",
        "glm52 train experiment=job1794 clip.correction_low=0.0",
    ]
    base = ["experiment=job1794"]
    assert [changed(run.command, base) for run in plan.experiments] == [
        set(),
        *({name} for name in PUBLISHED),
    ]
    assert any("published run are not recorded" in note for note in published.notes)


def test_why_step_curves_do_not_compare_is_said(published: Comparison) -> None:
    assert published.incomparable.startswith("Step curves are not comparable: a step visits other")
    assert "rollout.max_turn_tokens and rollout.max_session_tokens" in published.incomparable
    other_tasks = compared(["job1794", "experiment=job1794 data=train8"])
    assert "Held-out rewards are" in other_tasks.incomparable
    assert not compared(["job1794", "experiment=job1794 clip=dppo"]).incomparable


@pytest.mark.parametrize(
    ("overrides", "verdict", "words"),
    [
        ("", Verdict.same, "No difference"),
        ("name=other", Verdict.same, "No difference"),
        ("tracking.project=other runs_dir=there", Verdict.cosmetic, "Only places and labels"),
        ("engine.request_timeout_s=9", Verdict.speed, "another speed"),
        ("seed=2", Verdict.seed, "A repeat with another seed (1 -> 2)"),
        ("seed=2 checkpoint.every=1", Verdict.seed, "A repeat"),
        ("clip.correction_low=0.5", Verdict.clean, "what clip.correction_low = 0.5 does"),
        ("clip=icepop", Verdict.clean, "clip.correction with clip.correction_low"),
        ("clip=overlong_mask", Verdict.clean, "clip.overlong = mask"),
        ("data=mini8", Verdict.clean, "mini/mini8 (8 tasks) in the place of mini/mini69"),
        ("data=train69", Verdict.clean, "the task set (data.train, data.eval, data.suite"),
        ("data=mini8 seed=2", Verdict.clean, "compare several seeds of each"),
        ("data=mini8 clip=july", Verdict.confounded, "2 causes changed at once"),
        ("clip.correction_low=0.5 optim.lr=1e-5", Verdict.confounded, "2 causes"),
    ],
)
def test_the_verdict(overrides: str, verdict: Verdict, words: str) -> None:
    found, sentence, plan = conclusion("smoke", f"experiment=smoke {overrides}")
    assert found is verdict
    assert words in sentence
    assert bool(plan.experiments) == (verdict is Verdict.confounded)


def test_another_set_size_is_said_to_change_three_things() -> None:
    ((one, _),) = compared(["smoke", "experiment=smoke data=mini8"]).conclusions
    assert "every 8.62 steps -> every 1 steps" in one.remark
    alone = "rollout.groups_per_draw=8"  # one task a step
    ((one, _),) = compared(
        [f"experiment=smoke {alone}", f"experiment=smoke data=mini8 {alone}"]
    ).conclusions
    assert "every 69 steps -> every 8 steps" in one.remark


def test_a_change_that_does_not_compose_alone_is_joined_with_what_it_needs() -> None:
    _, _, plan = conclusion(
        "smoke",
        "experiment=smoke optim.lr=1e-5 rollout.max_turn_tokens=800 "
        "rollout.max_session_tokens=1600",
    )
    runs = {run.changes: run.command for run in plan.experiments}
    assert ("rollout.max_turn_tokens",) not in runs
    command = runs["rollout.max_turn_tokens", "rollout.max_session_tokens"]
    base = ["experiment=smoke"]
    assert changed(command, base) == {"rollout.max_turn_tokens", "rollout.max_session_tokens"}
    assert ("rollout.max_session_tokens",) in runs and ("optim.lr",) in runs


def test_every_command_of_distant_sides_composes_to_what_it_says() -> None:
    found = compared(["smoke", "reference"])
    ((one, plan),) = found.conclusions
    knobs = {cause.name: set(cause.knobs) for cause in one.causes}
    assert plan.inseparable == ()
    assert len(plan.experiments) == 1 + len(one.causes)
    for run in plan.experiments:
        wanted = set().union(*(knobs[name] for name in run.changes))
        moved = changed(run.command, ["experiment=smoke"])
        assert wanted <= moved
        assert all(effect(name) is Effect.speed for name in moved - wanted), run.command
    assert "glm52 train experiment=smoke sandbox=daytona" in [r.command for r in plan.experiments]


@pytest.mark.parametrize(
    "overrides",
    [
        ("experiment=smoke", "rollout.system_prompt='it\\'s \"a\"\nb'", "steps=3"),
        ("experiment=smoke", "++engine.server_args.new-one=[1,x]", "rollout.filters=[]"),
        ("engine=low_latency", "~engine.server_args.page-size", "clip.dual_clip=3"),
        ("data=train8", "data.train=tbench2/train69", "rollout.max_staleness=null"),
    ],
)
def test_values_on_top_of_choices_give_what_hydra_gives(overrides: tuple[str, ...]) -> None:
    assert _composed(overrides) == plain_knobs(compose(list(overrides)))


def test_a_prompt_with_quotes_and_lines_survives_its_command() -> None:
    prompt = "It's \\'odd\\': \"a\",\nb = {c} [d]"
    quoted = prompt.replace("\\'", "\\\\\\'").replace("'s", "\\'s")
    side = shlex.join(["experiment=smoke", f"rollout.system_prompt='{quoted}'", "clip=july"])
    found = compared(["smoke", side])
    ((_, plan),) = found.conclusions
    (command,) = [r.command for r in plan.experiments if r.changes == ("rollout.system_prompt",)]
    assert (
        composed(command)["rollout.system_prompt"] == found.sides[1].knobs["rollout.system_prompt"]
    )


def test_several_sides_are_each_compared_with_the_first() -> None:
    found = compared(["smoke", "experiment=smoke seed=2", "experiment=smoke clip=july seed=3"])
    assert set(names(found)) == {"seed", "clip.correction_low"}
    seed = next(one for one in found.differences if one.name == "seed")
    assert dict(seed.values) == {"A": 1, "B": 2, "C": 3}
    assert [one.verdict for one, _ in found.conclusions] == [Verdict.seed, Verdict.clean]


def test_a_key_that_one_side_lacks_is_named_alone() -> None:
    found = compared(["reference", "engine=low_latency"])
    assert "engine.server_args.moe-runner-backend" in names(found)
    (one,) = [d for d in found.differences if d.name.endswith("moe-runner-backend")]
    assert dict(one.values) == {"B": "flashinfer_trtllm_routed"}
    assert one.doc == "SGLang server arguments, by their command-line names."


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        (["smoke"], "two sides or more"),
        (["smoke", "smoek"], "did you mean smoke?"),
        (["smoke", "runs/absent"], "no run folder and no experiment runs/absent"),
        (["smoke", "experiment=smoek"], r"B \(experiment=smoek\) does not compose"),
        (["smoke", "optim.lr=fast"], "optim.lr"),
        (["smoke", "name='open"], "close the quotes"),
        (["smoke"] * 27, "at most 26"),
    ],
)
def test_bad_input_is_one_sentence(sides: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        compared(sides)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        compared(["smoke", str(tmp_path)])
    points = [{"folder": name, "overrides": []} for name in ("a", "b", "c")]
    (tmp_path / "sweep.json").write_text(json.dumps({"base": [], "points": points}))
    with pytest.raises(UserError, match=r"is a sweep; name runs of it, .* diff \S+/a \S+/b$"):
        compared(["smoke", str(tmp_path)])


def test_a_folder_that_is_named_like_an_experiment_hides_it_only_as_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smoke").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [side.kind for side in compared(["smoke", "reference"]).sides] == [Kind.experiment] * 2


def test_exit_codes_are_those_of_diff(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "smoke", "experiment=smoke"]) == 0
    assert "Nothing differs" in capsys.readouterr().out
    assert cli.main(["diff", "smoke", "experiment=smoke seed=2"]) == 1
    assert "A repeat with another seed" in capsys.readouterr().out
    assert cli.main(["diff", "smoke", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_text_in_a_pipe_is_plain_and_names_every_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["diff", "job1794", "job2350"]) == 1
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert all(name in text for name in PUBLISHED)
    assert "16384" in text and "8192" in text and "69 tasks" in text
    assert "changes what is measured" in text
    assert "Confounded" in text
    assert "    glm52 train experiment=job1794 data=train8\n" in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "job1794", "job2350", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {
        "version",
        "equal",
        "sides",
        "differences",
        "comparable",
        "conclusions",
        "outcomes",
        "notes",
    }
    page = (ROOT / "docs" / "diff.md").read_text()
    inner = [
        key
        for part in found.values()
        if isinstance(part, list)
        for one in part[:1]
        for key in one
        if isinstance(one, dict)
    ]
    assert [key for key in [*found, *inner] if f"`{key}`" not in page] == []
    assert [one["name"] for one in found["differences"]] == list(PUBLISHED)
    assert found["differences"][0]["class"] == "changes what is measured"
    assert found["comparable"]["curves"] is False
    assert found["conclusions"][0]["verdict"] == "confounded"
    assert found["outcomes"] == []


def test_json_of_a_comparison_holds_nothing_json_lacks() -> None:
    json.dumps(as_json(compared(["smoke", "reference"])), allow_nan=False)
