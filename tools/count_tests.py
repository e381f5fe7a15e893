"""Sums the test cases of ctest's JUnit files and prints "N passed, N failed".

A test program counts with the cases that GoogleTest reports in its output. A program without such a report (a script,
a crash, a timeout) counts as one case. Lines before it name what failed, with what its output says of that, and say how
many cases were skipped for want of a GPU, and why others were. Exits with 1 when anything failed.
"""

import collections
import re
import sys
import xml.etree.ElementTree as ElementTree

SHOWN_LINES = 30  # of the output of one failed program


def output_of(testcase):
    return testcase.findtext("system-out") or ""


def reported(output, word):
    counts = re.findall(rf"^\[\s+{word}\s+\] (\d+) tests?[.,]", output, re.MULTILINE)
    return int(counts[-1]) if counts else 0


def count(testcase):
    """Returns (passed, failed, skipped) of one test program."""
    output = output_of(testcase)
    passed, failed, skipped = (reported(output, word) for word in ("PASSED", "FAILED", "SKIPPED"))
    if testcase.find("failure") is not None:
        return passed, max(failed, 1), skipped
    if testcase.get("status") != "run":
        return 0, 0, 1
    return (passed, failed, skipped) if passed or failed or skipped else (1, 0, 0)


def skip_reasons(testcases):
    """How many cases each reason skipped, as GoogleTest and the scripts print it."""
    reasons = collections.Counter()
    for testcase in testcases:
        output = output_of(testcase)
        found = re.findall(r": Skipped\n(.+)", output)
        if testcase.get("status") not in ("run", "fail") and not found:
            found = [output.strip().splitlines()[-1] if output.strip() else "no reason given"]
        reasons.update("there is no GPU" if "needs a GPU" in reason else reason for reason in found)
    return reasons


def failure_text(testcase):
    """The name of a failed program and the end of its output, without the tests in it that passed."""
    lines = [line for line in output_of(testcase).splitlines() if not re.match(r"\[ (RUN|      OK|-----)", line)]
    return "\n".join([f"FAILED: {testcase.get('name')}", *(f"  {line[:300]}" for line in lines[-SHOWN_LINES:])])


def main(files):
    testcases = [case for file in files for case in ElementTree.parse(file).getroot().iter("testcase")]
    cases = [count(case) for case in testcases]
    for reason, number in skip_reasons(testcases).most_common(12):
        print(f"skipped {number}: {reason}")
    for testcase, (_, failed, _) in zip(testcases, cases):
        if failed:
            print(failure_text(testcase))
    passed, failed, skipped = (sum(column) for column in zip(*cases)) if cases else (0, 0, 0)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
