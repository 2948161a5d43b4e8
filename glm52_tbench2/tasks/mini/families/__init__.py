"""The families, a few a file; importing this package registers them all."""

from ..instance import FAMILIES as FAMILIES
from . import archives as archives
from . import compare as compare
from . import files as files
from . import git as git
from . import hunts as hunts
from . import lines as lines
from . import tables as tables
from . import text as text
