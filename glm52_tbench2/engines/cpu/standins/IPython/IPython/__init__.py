"""Stand-in for IPython; `get_ipython` answers that this is no notebook."""

from glm52_tbench2.engines.cpu.standin import install

install(__name__, __file__, get_ipython=lambda: None)
