"""What a run is: the schema, its composition, its checks and its identity."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compose import load_run_config as load_run_config
    from .compose import recorded_config as recorded_config
    from .compose import save_run_config as save_run_config


def __getattr__(name: str) -> Any:
    """Hydra is imported only by who composes or loads, so that `glm52 --help` stays quick."""
    if name in ("load_run_config", "recorded_config", "save_run_config"):
        from . import compose as module

        return getattr(module, name)
    raise AttributeError(name)
