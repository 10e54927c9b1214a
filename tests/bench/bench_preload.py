"""Start-up of whole commands: puffrun with and without --preload against torchrun.

The program initialises gloo, barriers and ends. The three take turns, so that the machine's moods
hit all.
"""

import tempfile
from pathlib import Path

from measuring import BIN, PROGRAMS, print_table, time_in_turn

TARGETS = {2: {"preload": 0.65, "no-preload": 1.1}, 8: {"preload": 0.3, "no-preload": 1.1}}
ROUNDS = {2: 5, 8: 3}


def main() -> dict:
    rows, result = [], {}
    program = PROGRAMS / "barrier_once.py"
    with tempfile.TemporaryDirectory() as directory:
        for ranks, targets in TARGETS.items():
            medians = time_in_turn(
                {
                    "torchrun": [
                        BIN / "torchrun", "--standalone", f"--nproc-per-node={ranks}", program,
                    ],
                    **{
                        mode: [BIN / "puffrun", "train", f"--{mode}", "--cpus", str(ranks), program]
                        for mode in targets
                    },
                },
                Path(directory),
                ROUNDS[ranks],
            )  # fmt: skip
            ratios = {mode: round(medians[mode] / medians["torchrun"], 3) for mode in targets}
            result[f"ranks_{ranks}"] = {"s": medians, "ratio": ratios}
            for mode, target in targets.items():
                times = [medians[mode], medians["torchrun"]]
                rows.append([f"{ranks} ranks --{mode}", *times, ratios[mode], f"≤ {target}"])
    print_table(["start-up", "puffrun s", "torchrun s", "ratio", "target"], rows)
    return result
