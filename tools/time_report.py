"""Says what took how long in a run of tools/test.sh: each stage, the slowest steps of the builds, the slowest tests.

    time_report.py STAGES START FOLDER...

STAGES has a line "name: wall user system" in seconds for each stage, START is when the run began (seconds since 1970), the
folders are those it built in, with Ninja's log and ctest's results.xml.
"""

import os
import sys
import xml.etree.ElementTree as ElementTree

SHOWN = 12


def minutes(seconds):
    return f"{int(seconds) // 60:3}:{int(seconds) % 60:02}"


def stages(file):
    rows = [(name, *map(float, times.split())) for name, times in (line.rsplit(":", 1) for line in open(file))]
    rows.append(("all", *(sum(column) for column in list(zip(*rows))[1:])))
    return [f"{minutes(wall)} min, {minutes(user + system)} of the processor  {name}" for name, wall, user, system in rows]


def steps(folder, start):
    """(seconds, output) of what was built since `start`."""
    found = {}
    log = os.path.join(folder, ".ninja_log")
    for line in open(log) if os.path.exists(log) else []:
        if line.startswith("#"):
            continue
        begin, end, _, output, _ = line.rstrip("\n").split("\t")
        found[output] = (int(end) - int(begin)) / 1000
    return [(seconds, os.path.join(folder, output)) for output, seconds in found.items()
            if os.path.exists(os.path.join(folder, output)) and os.path.getmtime(os.path.join(folder, output)) >= start]


def tests(folder):
    results = os.path.join(folder, "results.xml")
    cases = ElementTree.parse(results).getroot().iter("testcase") if os.path.exists(results) else []
    return [(float(case.get("time") or 0), f"{os.path.basename(folder)}: {case.get('name')}") for case in cases]


def slowest(title, rows):
    print(f"{title}: {len(rows)}, {minutes(sum(seconds for seconds, _ in rows))} min; the slowest:")
    for seconds, name in sorted(rows, reverse=True)[:SHOWN]:
        print(f"{seconds:8.1f} s  {name}")


def main(stage_file, start, *folders):
    slowest("steps of builds", [row for folder in folders for row in steps(folder, float(start))])
    slowest("tests", [row for folder in folders for row in tests(folder)])
    print("stages:", *stages(stage_file), sep="\n  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
