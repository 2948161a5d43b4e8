"""What a sweep shares between its points changes none: each is the run it would be alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from glm52_tbench2.config.checks import problems
from glm52_tbench2.config.compose import compose, register_schema, to_yaml
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.identity import load_identity
from glm52_tbench2.config.once import fact, looked_up_once
from glm52_tbench2.config.paths import CONF
from glm52_tbench2.launch import sweep_plan
from glm52_tbench2.launch.run_folder import identity_now
from hydra_plugins.glm52_tbench2 import Composer

OVERRIDES = [
    "experiment=smoke",
    "experiment=job1794",
    "experiment=null",
    "~experiment",
    "data=mini8",
    "data=no_such",
    "clip=july",
    "clip=dppo",
    "clip={eps_low: 0.3}",
    "clip@optim=july",
    "engine=cpu",
    "cluster=slurm",
    "seed=7",
    "seed=07",
    "seed=seven",
    "optim.lr=1e-4",
    "optim.lr=0",
    "optim.lr=${eval.temperature}",
    "clip.eps_low=0.1",
    "clip.eps_lo=0.1",
    "+clip.eps_low=0.1",
    "++clip.eps_low=0.1",
    "+clip=july",
    "~clip.eps_low",
    "rollout.filters=[]",
    "~rollout.filters",
    "parallel.pipeline_layers=[1,2]",
    "+engine.server_args.port=30000",
    "+engine.server_args={a: [1, {b: 2}], c: null}",
    "++engine.server_args.a.b=x",
    "cluster.slurm={time_min: 5, setup: [a b]}",
    "cluster.slurm.setup=['module load gcc']",
    "+cluster.slurm.extra.mail-type=END",
    "name='a b'",
    'runs_dir="a folder"',
    "no_such=1",
    "+no_such=1",
    "data.train=mini/mini8",
]
POINT = st.lists(st.sampled_from(OVERRIDES), max_size=5)


@pytest.fixture
def composer() -> Iterator[Composer]:
    register_schema()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        yield Composer(loader, loader.load_configuration("config", [], RunMode.MULTIRUN))


def alone(point: list[str]) -> str:
    """What a run of its own composes to, or why it does not."""
    there = GlobalHydra.instance().hydra
    try:
        return to_yaml(compose(point))
    except UserError as error:
        return str(error)
    finally:
        GlobalHydra.instance().hydra = there


def in_sweep(composer: Composer, point: list[str]) -> str:
    try:
        config = composer(point)
    except UserError as error:
        return str(error)
    return "\n".join(problems(config)) or to_yaml(config)


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(POINT, min_size=1, max_size=4))
@example([[override] for override in OVERRIDES])
@example([["clip.eps_low=0.1"], ["optim.lr=1e-4"], []])
@example([["+engine.server_args.port=30000"], ["++engine.server_args.a.b=x"], ["engine=cpu"]])
@example([["rollout.filters=[]"], ["~rollout.filters"], ["seed=7", "experiment=smoke"]])
def test_a_point_composes_to_what_it_is_alone(composer: Composer, points: list[list[str]]) -> None:
    for point in [*points, points[0]]:
        assert in_sweep(composer, point) == alone(point)


def test_the_folders_of_points_hold_what_runs_of_their_own_would(
    composer: Composer, tmp_path: Path
) -> None:
    varying = [["seed=1"], ["seed=2", "data=mini8"], ["seed=3", "clip=july", "model=tiny"]]
    points = [["experiment=smoke", f"runs_dir={tmp_path}", *one] for one in varying]
    sweep_plan.create(sweep_plan.plan(points, composer), tmp_path / "sweep")
    folders = [tmp_path / "sweep" / name for name in sweep_plan.point_names(varying)]
    for folder, point in zip(folders, points, strict=True):
        config = compose(point)
        assert (folder / "config.yaml").read_text() == to_yaml(config)
        identity, history = load_identity(folder)
        origin = {"sweep": "sweep", "point": folder.name}
        assert (identity, history) == (identity_now(config, origin), [])
        assert identity.made == identity_now(config, origin).made
        assert json.loads((folder / "identity.json").read_text())["hash"] == identity.hash


def test_a_fact_is_looked_up_once_only_where_that_is_said() -> None:
    asked = []

    @fact
    def number(of: str) -> int:
        asked.append(of)
        return len(asked)

    assert [number("a"), number("a")] == [1, 2]
    for first in (3, 5):
        with looked_up_once():
            assert [number("a"), number("b"), number("a")] == [first, first + 1, first]
    assert number("a") == 7
