"""A complete multi-rank training program: a car learns to drive (`puffrun train -c demo`).

It is an ordinary program and uses nothing of puffrun but a few environment variables. Copy it and
change what you like.
"""

import warnings

# torch says so at import when numpy is absent; nothing here needs it
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
