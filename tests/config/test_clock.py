"""A machine's clock may be set at any moment: the wall clock is written down, never waited for."""

import ast
from collections.abc import Iterator

from glm52_tbench2.config.paths import ROOT

SHOWN = {
    # How old another process's sign of life is; for 10 s wrong after a jump, until the next one.
    ("analysis/run_files.py", "state"),
    ("launch/slurm/watch.py", "_line"),
    # The time that is left, as a person is told.
    ("launch/run_numbers.py", "seconds_left"),
}
"""(file, function) that may compute with the wall clock, since nothing waits for the result."""
WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}


def computed(tree: ast.AST, function: str = "", within: bool = False) -> Iterator[str]:
    """Functions in which a reading of the wall clock is added, subtracted or compared."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and within:
            name = ast.unparse(node.func)
            if any(name == wall or name.endswith(f".{wall}") for wall in WALL):
                yield function
        named = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        inside = isinstance(node, ast.BinOp | ast.AugAssign | ast.Compare) or (
            within and isinstance(node, ast.expr)
        )
        yield from computed(node, named, inside)


def test_the_wall_clock_is_no_measure_of_how_long_to_wait() -> None:
    found = set()
    for folder in ("glm52_tbench2", "hydra_plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            bare = {"time", "time_ns", "datetime", "date"}
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
                    assert not bare & {alias.name for alias in node.names}, f"{path}: import time"
            name = str(path.relative_to(ROOT / folder))
            found |= {(name, function) for function in computed(tree)}
    assert found == SHOWN


def test_what_it_looks_for() -> None:
    code = """
def a(): until = time.time() + 5
def b():
    while time.time() < until: pass
def c(): return max(0, 3 - round(time.time()))
def d(): return {"time": time.time()}
def e(): return time.monotonic() + 5
"""
    assert set(computed(ast.parse(code))) == {"a", "b", "c"}
