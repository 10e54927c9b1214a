"""Start-up of whole commands: puffrun (with fresh artifacts) against torchrun, and of --help."""

import tempfile
from pathlib import Path

from measuring import BIN, PROGRAMS, print_table, time_in_turn

CONFIG = """
[artifacts.one]
cmd = ["cc", "-O1", "one.c", "-o", "{out}/one"]
inputs = ["*.c"]
outputs = ["one"]
tools = ["cc"]
probe = ["python-abi", "torch"]

[artifacts.two]
cmd = ["cc", "-O1", "one.c", "-o", "{out}/two"]
inputs = ["*.c"]
outputs = ["two"]
needs = ["one"]
"""
TARGET_2, TARGET_HELP = 1.1, 0.2


def main() -> dict:
    rows, result = [], {}
    with tempfile.TemporaryDirectory() as directory:
        cwd = Path(directory)
        (cwd / "puffrun.toml").write_text(CONFIG)
        (cwd / "one.c").write_text("int main(void) { return 0; }\n")
        program = PROGRAMS / "barrier_once.py"
        for ranks, rounds in ((2, 7), (8, 3)):
            medians = time_in_turn(
                {
                    "torchrun": [
                        BIN / "torchrun",
                        "--standalone",
                        f"--nproc-per-node={ranks}",
                        program,
                    ],
                    "puffrun": [BIN / "puffrun", "train", "--cpus", str(ranks), program],
                },
                cwd,
                rounds,
            )
            ratio = round(medians["puffrun"] / medians["torchrun"], 3)
            result[f"ranks_{ranks}"] = medians | {"ratio": ratio}
            target = f"≤ {TARGET_2}"
            rows.append([f"{ranks} ranks", medians["puffrun"], medians["torchrun"], ratio, target])
        medians = time_in_turn(
            {"torchrun": [BIN / "torchrun", "--help"], "puffrun": [BIN / "puffrun", "--help"]},
            cwd,
            5,
        )
        ratio = round(medians["puffrun"] / medians["torchrun"], 3)
        result["help"] = medians | {"ratio": ratio}
        rows.append(["--help", medians["puffrun"], medians["torchrun"], ratio, f"≤ {TARGET_HELP}"])
    print_table(["start-up", "puffrun s", "torchrun s", "ratio", "target"], rows)
    return result
