"""Sample the compiled wave: float32 pairs of x and y."""

import ctypes
import sys
from array import array
from pathlib import Path

COUNT = 4096

library_path, out_path = sys.argv[1:]
wave = ctypes.CDLL(library_path).wave
wave.restype, wave.argtypes = ctypes.c_double, [ctypes.c_double]
points = [6.28 * i / COUNT - 3.14 for i in range(COUNT)]
samples = array("f", (number for x in points for number in (x, wave(x))))
Path(out_path).write_bytes(samples.tobytes())
