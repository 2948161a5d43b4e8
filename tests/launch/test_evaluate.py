"""Evaluations by themselves: what they are made from, which roles they have, what refuses them."""

import json
import shutil
import time

import pytest

from glm52_tbench2 import cli
from glm52_tbench2.config.compose import compose, save_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import ROOT
from glm52_tbench2.launch import evaluate, preflight
from glm52_tbench2.launch.placement import place

from ..engines.standin import standin_endpoint

EXTERNAL = ["experiment=smoke", "engine=external", "engine.api=openai"]


@pytest.fixture
def run_dir(tmp_path, smoke):
    """A run with two versions of its weights published."""
    folder = tmp_path / "some-run"
    folder.mkdir()
    save_run_config(smoke, folder)
    for version in (3, 4):
        weights = folder / "weights" / f"version_{version:06d}"
        shutil.copytree(ROOT / "data" / "tiny", weights)
        (weights / "version.json").write_text(json.dumps({"version": version}))
    return folder


def planned(*overrides, run=None):
    return evaluate.planned(overrides, run)


def test_it_is_a_run_without_steps_trainer_and_tracker(tmp_path):
    config, origin = planned("experiment=smoke", "data.eval=mini/mini8")
    assert not config.trains and config.name == "smoke-eval" and origin == {}
    assert [spec.role for spec in place(config, tmp_path)] == ["env", "engine", "driver"]


def test_what_a_url_serves_is_no_role(tmp_path):
    config, _ = planned(*EXTERNAL)
    assert [spec.role for spec in place(config, tmp_path)] == ["env", "driver"]


def test_tasks_that_were_trained_on_may_be_evaluated(tmp_path):
    config, _ = planned("experiment=smoke", "data.eval=mini/mini69", f"runs_dir={tmp_path}")
    assert preflight.problems(config) == []


def test_the_newest_weights_of_a_run_are_evaluated_by_its_config(run_dir):
    config, origin = planned("eval.samples_per_task=7", "data.eval=mini/mini8", run=run_dir)
    assert config.model.path == str(run_dir / "weights" / "version_000004")
    assert (config.eval.samples_per_task, config.data.eval) == (7, "mini/mini8")
    assert origin == {"evaluates": "some-run", "version": 4}
    assert preflight.problems(config) == []


def test_weights_that_lie_in_no_folder_are_not_taken_for_the_starting_ones(run_dir):
    shutil.rmtree(run_dir / "weights")
    assert planned(run=run_dir)[1]["version"] == 0
    with pytest.raises(UserError, match="keeps its weights in no folder"):
        planned("engine.transport=distributed", run=run_dir)


def test_weights_that_may_go_meanwhile_are_not_evaluated(run_dir):
    beat = {"phase": "running", "time": time.time()}
    (run_dir / "heartbeat.json").write_text(json.dumps(beat))
    with pytest.raises(UserError, match="is running"):
        planned(run=run_dir)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engine=external", "no groups chosen"),
        ("fast", "is no KNOB=VALUE"),
        ("eval.sample_per_task=2", "did you mean 'eval.samples_per_task'"),
        ("eval.samples_per_task=0", "must be above 0"),
    ],
)
def test_bad_changes_of_a_runs_config_get_one_sentence(run_dir, override, said):
    with pytest.raises(UserError, match=said) as caught:
        planned(override, run=run_dir)
    assert "\n" not in str(caught.value)


def test_what_has_no_meaning_without_a_trainer_is_told():
    with pytest.raises(UserError, match=r"engine\.dtype=fp8_rounded rounds what a trainer sends"):
        planned("experiment=smoke", "engine.dtype=fp8_rounded")


def test_an_evaluation_is_not_queued():
    with pytest.raises(UserError, match="write cluster=local"):
        planned()


@pytest.mark.parametrize(
    ("api", "said"), [("openai", "returns no log-probs of its tokens"), ("sglang", "no trainer")]
)
def test_nothing_is_trained_by_a_server_of_somebody_else(tmp_path, api, said):
    config = compose([*EXTERNAL, f"engine.api={api}", f"runs_dir={tmp_path}"])
    (problem,) = preflight.problems(config)
    assert said in problem and "evaluations only" in problem


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host", "write it as http://HOST:PORT"),
        ("http://", "write it as http://HOST:PORT"),
        ("localhost:30000", "write it as http://HOST:PORT"),
        ("http://host:port", "is no URL"),
        ("http://user:s3cret@host", "GLM52_ENDPOINT_KEY"),
        ('"http://host/v1?key=s3cret"', "GLM52_ENDPOINT_KEY"),
    ],
)
def test_a_url_is_one_and_holds_no_secret(url, said):
    with pytest.raises(UserError, match=said) as caught:
        compose([*EXTERNAL, f"engine.url={url}"])
    assert "s3cret" not in str(caught.value)


def test_a_budget_that_holds_no_turn_is_told_before_anything_starts():
    config, _ = planned(
        "experiment=smoke", "rollout.max_session_tokens=60", "rollout.max_turn_tokens=20"
    )
    with pytest.raises(UserError, match=r"max_session_tokens is 60, but the prompt of .* raise it"):
        evaluate.check_room(config)
    evaluate.check_room(planned("experiment=smoke")[0])


def test_only_the_tokenizer_of_an_endpoints_model_is_needed(tmp_path):
    shutil.copy(ROOT / "data" / "tiny" / "tokenizer.json", tmp_path)
    with standin_endpoint() as endpoint:
        config, _ = planned(
            *EXTERNAL,
            f"engine.url={endpoint.url}",
            f"model.path={tmp_path}",
            f"runs_dir={tmp_path}",
        )
        assert preflight.problems(config) == []
        named, origin = evaluate.with_endpoint(config, {})
    assert named.engine.model == "some-model"
    assert origin == {"served": ["some-model", None]}


def test_a_server_that_is_away_is_told_before_a_folder_is_made(tmp_path, capsys):
    with standin_endpoint() as endpoint:
        pass
    code = cli.main(["eval", *EXTERNAL, f"engine.url={endpoint.url}", f"runs_dir={tmp_path}"])
    assert code == 2
    assert "start the server there" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
