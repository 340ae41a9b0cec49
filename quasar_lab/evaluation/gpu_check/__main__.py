"""The check as a program; see `run`.

python3 quasar_lab/evaluation/gpu_check          # in a checkout where nothing is installed
python3 -m quasar_lab.evaluation.gpu_check       # where the package is installed
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    if not __package__:  # Python was given this folder, so the modules in it would hide others of the same names
        here = Path(__file__).resolve().parent
        root = here.parents[2]
        others = [path for path in sys.path if Path(path).resolve() != here]
        sys.path[:] = [str(root), str(root / "kernels"), *others]

    from quasar_lab.evaluation.gpu_check.run import main

    sys.exit(main())
