import subprocess
import sys

import numpy as np

from .test_convert import SEQUENCES


def test_nothing_is_replaced_where_cuda_is_present():
    code = (
        "import torch\n"
        "torch.cuda.is_available = lambda: True\n"
        "before = dict(vars(torch)), dict(vars(torch.cuda)), dict(vars(torch.Tensor))\n"
        "from glm52_tbench2.trainer.cpu import install\n"
        "assert install() is False\n"
        "after = dict(vars(torch)), dict(vars(torch.cuda)), dict(vars(torch.Tensor))\n"
        "assert before == after\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_transformers_still_computes_in_a_process_that_has_the_shim(ranks, run):
    (theirs,) = ranks(run, "transformers_logits", SEQUENCES)
    (mine,) = ranks(run, "logits", SEQUENCES)
    np.testing.assert_allclose(theirs, mine, atol=1e-4)
