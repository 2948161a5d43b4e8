"""python -m glm52_tbench2.cli"""

import sys

from . import main

sys.exit(main())
