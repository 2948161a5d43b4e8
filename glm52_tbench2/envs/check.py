"""`glm52 tasks check`: the golden scan of a task set in real sandboxes."""

from collections.abc import Callable

from omegaconf import OmegaConf

from ..config.paths import CONF
from ..config.schema import SandboxConfig
from ..tasks.check import check_suite, report
from ..tasks.named import full_name, named_tasks
from ..tasks.suite import Task
from .local import LocalSandbox
from .local import check as check_bubblewrap
from .sandbox import Verdict


def check(name: str) -> int:
    """Runs solution, nothing and the wrong attempt of each task of `name`; 0 when all are sound.

    Raises UserError for an unknown set and where sandboxes cannot be made.
    """
    tasks = named_tasks(full_name(name))
    check_bubblewrap()
    return report(check_suite(tasks, scripted(local_sandbox())))


def scripted(config: SandboxConfig) -> Callable[[Task, str | None], Verdict]:
    """Runs a script, or nothing, in a fresh sandbox of a task and takes the verdict."""

    def run(task: Task, script: str | None) -> Verdict:
        sandbox = LocalSandbox(task, config)
        try:
            if script is not None:
                sandbox.exec(script, config.command_timeout_s)
            return sandbox.verify()
        finally:
            sandbox.close()

    return run


def local_sandbox() -> SandboxConfig:
    """conf/sandbox/local.yaml."""
    written = OmegaConf.load(CONF / "sandbox" / "local.yaml")
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(SandboxConfig), written))
    assert isinstance(config, SandboxConfig)
    return config
