"""What JAX computes in the twins: `python main.py NAME..` prints each array in a line, as the Rust example does."""
import importlib
import sys

import numpy as np

for name in sys.argv[1:]:
    print("==", name)
    for x in importlib.import_module(name).run():
        print(*np.ravel(x).tolist())
