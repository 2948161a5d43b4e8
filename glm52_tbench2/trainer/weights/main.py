"""What the two verbs of `glm52 weights` do with their arguments."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from glm52_tbench2.config.compose import compose, load_run_config
from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import resolve, short
from glm52_tbench2.config.schema import RunConfig


def import_weights(folder: Path, target: Path, overrides: Sequence[str]) -> None:
    """Makes a checkpoint of a folder in transformers' format. Raises UserError."""
    run = _with_path(compose(list(overrides)), folder)
    from ..cpu import install_alone

    install_alone()
    from .importing import import_hf

    with _told(target):
        import_hf(run, folder, target)


def export_weights(
    checkpoint: Path, target: Path, overrides: Sequence[str], *, in_fp8: bool
) -> None:
    """Makes a folder in transformers' format of a checkpoint. Raises UserError.

    One in a run folder is of that run's config, any other of the overrides'.
    """
    run_dir = checkpoint.resolve().parents[1]
    if not (run_dir / "config.yaml").is_file():
        run = compose(list(overrides))
    elif overrides:
        raise UserError(
            f"{short(checkpoint)} is of the run {short(run_dir)}, whose config is taken; leave out "
            f"{overrides[0]}."
        )
    else:
        run = load_run_config(run_dir)
    run = _with_path(run, resolve(run.model.path))
    from ..cpu import install_alone

    install_alone()
    from .exporting import export_hf

    with _told(target):
        export_hf(run, checkpoint, target, "fp8" if in_fp8 else "")


@contextmanager
def _told(target: Path) -> Iterator[None]:
    """Tells of a disk that fills up meanwhile. Raises UserError."""
    from ..checkpoint_files import disk_full

    try:
        yield
    except (OSError, RuntimeError) as error:
        if not disk_full(error):
            raise
        raise UserError(
            f"The disk of {target.parent} is full; free some space, then give the same command "
            "again, which goes on where it was stopped."
        ) from error


def _with_path(run: RunConfig, path: Path) -> RunConfig:
    return replace(run, model=replace(run.model, path=str(path)))
