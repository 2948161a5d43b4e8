"""OpenEnv's core, imported without its web interface.

`openenv.core` imports gradio when it is installed, which takes two thirds of its time, and does
without when it is not. Nothing here shows that interface, so gradio is hidden while it imports.
"""

import sys

_hidden = "gradio" not in sys.modules
if _hidden:
    sys.modules["gradio"] = None  # type: ignore[assignment]
try:
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, ConcurrencyConfig, Observation, State
finally:
    if _hidden:
        del sys.modules["gradio"]

__all__ = [
    "Action",
    "ConcurrencyConfig",
    "EnvClient",
    "Environment",
    "Observation",
    "State",
    "StepResult",
    "create_fastapi_app",
]
