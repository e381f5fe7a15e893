"""Puts the ONNX project's node tests where the test programs look for them, for a build without shared test data.

    onnx_nodes.py FOLDER

FOLDER becomes a link into the Python package onnx of the version below: one that is installed, or one that pip installs
beside it. Exits with 77, which ctest takes for skipped, where neither works.
"""

import importlib.metadata
import os
import subprocess
import sys

SKIPPED = 77
VERSION = "1.22.0"  # the one that onnx_node_refusals.txt is for; it has 1,765 tests
PLACE = os.path.join("onnx", "backend", "test", "data", "node")


def installed():
    try:
        package = importlib.metadata.distribution("onnx")
    except importlib.metadata.PackageNotFoundError:
        return None
    nodes = str(package.locate_file(PLACE))
    return nodes if package.version == VERSION and os.path.isdir(nodes) else None


def main():
    folder = os.path.abspath(sys.argv[1])
    if os.path.isdir(folder):
        return 0
    nodes = installed()
    if nodes is None:
        packages = folder + "-package"
        nodes = os.path.join(packages, PLACE)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1",
                   "--timeout=20", "--no-deps", "--only-binary=:all:", "--upgrade", "--target", packages,
                   f"onnx=={VERSION}"]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=500)
        except subprocess.TimeoutExpired:
            print("skipped: pip took too long")
            return SKIPPED
        if result.returncode != 0:
            print(f"skipped: pip cannot install onnx=={VERSION}:\n{result.stderr.strip()[-1000:]}")
            return SKIPPED
    if os.path.islink(folder):  # to what is gone
        os.remove(folder)
    os.symlink(nodes, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
