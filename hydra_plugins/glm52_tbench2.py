"""Hydra's side of a sweep: `-m` composes every point first, then the project runs them.

Hydra takes plugins from this namespace alone, and imports it whenever it composes: keep it light.

Hydra's stock sweeper makes a folder before anything is checked, and its launchers compose a point
when its turn comes. These two hand all points over at once, and nothing is written before every
one of them is known to start.
"""

import sys
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from glm52_tbench2.config.compose import explain, typed
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import RunConfig


class Composer:
    """Composes the points of a sweep, files once for all points of the same group choices.

    Hydra merges the files that the choices name, and then applies every other override to what
    comes out; reading and merging is nearly all of its time.
    """

    def __init__(self, loader: ConfigLoaderImpl, sweep: DictConfig) -> None:
        self._loader, self._sweep = loader, sweep
        self._merged: dict[tuple[str, ...], DictConfig] = {}

    def __call__(self, overrides: Sequence[str]) -> RunConfig:
        """The config of one point. Raises UserError as Hydra refuses it."""
        try:
            parsed = OverridesParser.create(config_loader=self._loader).parse_overrides(
                list(overrides)
            )
            choices = tuple(str(one.input_line) for one in parsed if self._is_choice(one))
            composed = deepcopy(self._merge(choices))
            self._loader._apply_overrides_to_config(
                [one for one in parsed if not self._is_choice(one)], composed
            )
            return typed(composed)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise UserError(explain(error)) from error

    def _is_choice(self, override: Override) -> bool:
        """As Hydra tells it: a dict given to a group's name is merged into its values."""
        is_dict = isinstance(override.value(), dict)
        return not is_dict and self._loader.repository.group_exists(override.key_or_group)

    def _merge(self, choices: tuple[str, ...]) -> DictConfig:
        if choices not in self._merged:
            merged = self._loader.load_sweep_config(self._sweep, list(choices))
            with open_dict(merged):
                del merged["hydra"]
            self._merged[choices] = merged
        return self._merged[choices]


class SweepLauncher(Launcher):
    """Checks the points that a sweeper asks for and runs them as one sweep."""

    codes: ClassVar[list[int]] = []
    """Exit codes of the sweeps of this process: Hydra hands none back from a multirun."""

    def __init__(self, dry_run: bool = False) -> None:
        self._dry_run = dry_run

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra."""
        assert isinstance(hydra_context.config_loader, ConfigLoaderImpl)
        self._loader, self._config = hydra_context.config_loader, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Runs a sweep of these points; each return value is the point's exit code.

        A sweeper that asks for points in batches gets one sweep a batch. Raises UserError, before
        anything is made, with all that stands in the way of any point.
        """
        from glm52_tbench2.launch import sweep
        from glm52_tbench2.launch.sweep_plan import plan

        setup_globals()
        composer = Composer(self._loader, self._config)
        sweep_dir = resolve(self._config.hydra.sweep.dir)
        if self._dry_run:
            self._show(job_overrides, composer, sweep_dir)
            return []
        codes = sweep.start(plan(job_overrides, composer), sweep_dir)
        self.codes.append(sweep.exit_code(codes))
        return [
            JobReturn(overrides=point, _return_value=code, status=JobStatus.COMPLETED)
            for point, code in zip(job_overrides, codes, strict=True)
        ]

    def _show(
        self, job_overrides: Sequence[Sequence[str]], composer: Composer, sweep_dir: Path
    ) -> None:
        from glm52_tbench2.launch import dry_run, preflight
        from glm52_tbench2.launch.sweep_plan import draft, raise_told

        drafted = draft(job_overrides, composer)
        preflight.tell(drafted.composed.values())
        print(dry_run.points(drafted, sweep_dir), end="", flush=True)
        try:
            raise_told(drafted.problems, drafted.names, "start")
        except UserError as error:
            print(error, file=sys.stderr)
            self.codes.append(2)
        print(dry_run.jobs(drafted, sweep_dir), end="")


class Sweeper(BasicSweeper):
    """Hydra's choices and ranges, every combination handed to the launcher at once."""

    def __init__(self, params: dict[str, str] | None = None) -> None:
        super().__init__(max_batch_size=None, params=params)

    def sweep(self, arguments: list[str]) -> Any:
        """Called by Hydra."""
        assert self.hydra_context is not None and self.launcher is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        (points,) = self.split_arguments(overrides, max_batch_size=None)
        if len(points) == 1:
            raise UserError(
                "Nothing varies, so this is no sweep; leave -m away, or give a knob several "
                "values, as seed=1,2."
            )
        return [self.launcher.launch(points, initial_job_idx=0)]
