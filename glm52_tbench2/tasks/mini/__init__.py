"""The suite `mini`: small terminal tasks, generated; 89 of them are committed under data/mini.

`FAMILIES[name](rng)` samples a task of a family; `fresh(rng)` one that is not held out.
"""

from .families import FAMILIES as FAMILIES
from .generate import build as build
from .generate import committed as committed
from .generate import fresh as fresh
from .generate import held_out_keys as held_out_keys
from .instance import Instance as Instance
from .instance import instance_key as instance_key
from .words import WORDS as WORDS
