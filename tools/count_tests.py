"""Sums the test cases of ctest's JUnit files and prints "N passed, N failed".

A test program counts with the cases that GoogleTest reports in its output. A program without such a report (a script,
a crash, a timeout) counts as one case. Exits with 1 when anything failed.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree


def reported(output, word):
    counts = re.findall(rf"^\[\s+{word}\s+\] (\d+) tests?[.,]", output, re.MULTILINE)
    return int(counts[-1]) if counts else 0


def count(testcase):
    """Returns (passed, failed, skipped) of one test program."""
    output = testcase.findtext("system-out") or ""
    passed, failed, skipped = (reported(output, word) for word in ("PASSED", "FAILED", "SKIPPED"))
    if testcase.find("failure") is not None:
        return passed, max(failed, 1), skipped
    if testcase.get("status") != "run":
        return 0, 0, 1
    return (passed, failed, skipped) if passed or failed or skipped else (1, 0, 0)


def main(files):
    cases = [count(case) for file in files for case in ElementTree.parse(file).getroot().iter("testcase")]
    passed, failed, skipped = (sum(column) for column in zip(*cases)) if cases else (0, 0, 0)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
