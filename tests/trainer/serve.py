"""What a rank of the tests imports: first the shim, then Megatron."""

from glm52_tbench2.trainer.cpu import install

install()

from . import jobs  # noqa: E402, F401
