"""Compares ONNX Runtime's operators in llmc with ONNX Runtime; see harness.py.

    main.py GROUP --llmc=BINARY --packages=FOLDER [--data=FOLDER] [--only=TEXT]

Installs the Python packages that it needs into FOLDER; GROUP "packages" does nothing else. Exits with 77, which ctest takes for skipped, where that fails.
"""

import argparse
import fcntl
import importlib
import logging
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
PACKAGES = ["onnxruntime==1.31.1", "onnx==1.23.2", "onnx_ir", "numpy", "ml_dtypes"]


def install(folder):
    """Whether the packages are there; two runs at once install them once."""
    os.makedirs(folder, exist_ok=True)
    done = os.path.join(folder, "installed")
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(done):
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                       "--retries=1", "--timeout=20", "--upgrade", "--target", folder, *PACKAGES]
            try:
                result = subprocess.run(command, capture_output=True, text=True, timeout=500)
            except subprocess.TimeoutExpired:
                print("skipped: pip took too long")
                return False
            if result.returncode != 0:
                print(f"skipped: pip cannot install {', '.join(PACKAGES)}:\n{result.stderr.strip()[-1000:]}")
                return False
            open(done, "w").close()
    sys.path.insert(0, folder)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group")
    parser.add_argument("--llmc", default="")
    parser.add_argument("--packages", required=True)
    parser.add_argument("--data", default="")
    parser.add_argument("--require-data", action="store_true", help="fail where the shared test data is missing")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    if not install(arguments.packages):
        return SKIPPED
    if arguments.group == "packages":
        return 0
    logging.disable(logging.WARNING)  # the quantizer tells of every node
    from harness import Checks
    group = importlib.import_module(arguments.group)
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(arguments.llmc, folder, arguments.data)
        group.add_checks(checks)
        if not checks.jobs:
            print("the shared test data is not there")
            return 1 if arguments.require_data else SKIPPED
        return 1 if checks.run(arguments.only) else 0


if __name__ == "__main__":
    sys.exit(main())
