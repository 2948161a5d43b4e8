"""Stand-in for sgl_kernel: SGLang's compiled kernels."""

from glm52_tbench2.engines.cpu.standin import refuse

__getattr__ = refuse(__name__)
