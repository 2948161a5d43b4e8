"""The suite `mini`: small terminal tasks, generated; 89 of them are committed under data/mini.

`FAMILIES[name](rng)` samples a fresh task; `fresh(rng)` samples one that is not held out.
"""

from . import families as families
from .instance import FAMILIES as FAMILIES
from .instance import Instance as Instance
from .instance import instance_key as instance_key
from .words import WORDS as WORDS
