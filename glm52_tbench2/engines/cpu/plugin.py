"""SGLang's plugin for a CPU: announced by `path/`, called once in each of its processes.

It makes a generation a function of the request alone. On a CPU in float32 the tokens and log-probs
of a request with a seed are the same to the last bit whatever runs beside it, whatever the prefix
cache holds, and however often the server was restarted. Three parts: sampling seeds of each
request (:mod:`.seeds`), matrix products that treat every row alike (:mod:`.invariant`), and
attention over the compressed latent in blocks of one size (:mod:`.attention`).
"""

import os
import traceback


def register() -> None:
    """Installs the parts. Ends the process when one does not fit: SGLang would only log that."""
    try:
        from glm52_tbench2.engines.cpu import attention, invariant, seeds, startup

        attention.install()
        invariant.install()
        seeds.install()
        startup.install()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
