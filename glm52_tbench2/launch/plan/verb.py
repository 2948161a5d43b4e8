"""`glm52 plan`: composes, then shows the plan, or every layout of the same nodes."""

import json

from ...config import checks
from ...config.compose import compose_unchecked
from ...config.errors import UserError
from ...config.schema import RunConfig
from .. import preflight
from . import search, terminal
from .planned import as_json, plan


def run(overrides: list[str], *, as_text: bool, searching: bool) -> int:
    """Prints a plan. Exit code: 0 it fits, 2 it does not.

    Raises UserError when the config cannot be composed or the model cannot be built.
    """
    config = compose_unchecked(overrides)
    if searching:
        return _search(config, as_text)
    if found := checks.problems(config):
        if as_text:
            raise UserError("\n".join(found))
        print(json.dumps({"version": 1, "fits": False, "problems": found}, indent=1))
        return 2
    preflight.tell([config])
    planned = plan(config)
    if as_text:
        terminal.show(planned)
    else:
        print(json.dumps(as_json(planned), indent=1))
    return 2 if planned.problems else 0


def _search(config: RunConfig, as_text: bool) -> int:
    if found := checks.numbers(config):
        raise UserError("\n".join(found))
    layouts, always = search.search(config)
    parallel = config.parallel
    if as_text:
        ranks = f"{parallel.nodes} x {parallel.gpus_per_node} ranks"
        terminal.show_search(layouts, always, ranks)
    else:
        shown = {"version": 1, "problems": always, "layouts": search.as_json(layouts)}
        print(json.dumps(shown, indent=1))
    fits = not always and any(one.problem is None for one in layouts)
    return 0 if fits else 2
