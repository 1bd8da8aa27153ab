import sys
from pathlib import Path

# The examples are scripts, not part of the package.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
