"""Measures the memory that `llmc compile` needs for a large checkpoint: makes one of a configuration's shapes with random
bf16 weights, and compiles it with its weights outside of the plan and inside.

usage: compile_memory.py LLMC CONFIG_FOLDER WORK_FOLDER OUT.md [--target=NAME]    (takes twice the checkpoint's size on disk)

Pages of mapped files count as resident, though the kernel takes them back whenever it wants to, so each way is run twice:
free, where /proc/PID/smaps_rollup says every 20 ms what is resident, what of it is anonymous (heap and stacks) and what is
dirty; and, as root with cgroups of memory (version 1 or 2), under a hard limit that counts the page cache too, where the
checkpoint is read from the disk.
"""
import argparse
import os
import subprocess
import threading
import time

import real_load

MIB = 1 << 20
LIMITS = {"external": 1024 * MIB, "self-contained": 2048 * MIB}


class Group:
    """A cgroup with a limit, or none where it cannot be made."""

    def __init__(self, limit):
        self.folder, self.peak_file = None, None
        for root, limit_file, peak_file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
                                            ("/sys/fs/cgroup", "memory.max", "memory.peak")):
            folder = os.path.join(root, f"llmc-{os.getpid()}")
            try:
                os.mkdir(folder)
            except OSError:
                continue
            try:
                with open(os.path.join(folder, limit_file), "w") as file:
                    file.write(str(limit))
            except OSError:
                os.rmdir(folder)
                continue
            self.folder, self.peak_file = folder, os.path.join(folder, peak_file)
            return

    def enter(self):
        with open(os.path.join(self.folder, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))

    def leave(self):
        with open(self.peak_file) as file:
            peak = int(file.read())
        os.rmdir(self.folder)
        return peak


def watch(pid, peaks, done):
    names = {"Rss": "resident", "Anonymous": "anonymous", "Private_Dirty": "dirty", "Shared_Dirty": "dirty"}
    while not done.is_set():
        now = {}
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                for line in file:
                    key, _, rest = line.partition(":")
                    if key in names:
                        now[names[key]] = now.get(names[key], 0) + int(rest.split()[0]) * 1024
        except (OSError, ProcessLookupError):
            return
        for name, size in now.items():
            peaks[name] = max(peaks.get(name, 0), size)
        time.sleep(0.02)


def run(command, group=None):
    """Seconds, and peaks by name."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=group.enter if group else None) as process:
        peaks, done = {}, threading.Event()
        watcher = threading.Thread(target=watch, args=(process.pid, peaks, done))
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        done.set()
        watcher.join()
    peaks["maxrss"] = usage.ru_maxrss * 1024
    return process.returncode, time.perf_counter() - begin, peaks


def measure(command, limit, files):
    status, seconds, peaks = run(command)
    if status != 0:
        raise SystemExit(f"{' '.join(command)}: exit status {status}")
    row = {"seconds": f"{seconds:.0f}", **{name: f"{size / MIB:.0f}" for name, size in peaks.items()}}
    group = Group(limit)
    if group.folder is None:
        return {**row, "limited": "no cgroup here"}
    real_load.drop_caches(files, of_all=False)
    status, seconds, _ = run(command, group)
    peak = group.leave()
    return {**row, "limited": f"{'ends' if status == 0 else f'exit status {status}'} in {seconds:.0f} s under "
                              f"{limit / MIB:.0f} MiB (peak {peak / MIB:.0f})"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("llmc")
    parser.add_argument("config")
    parser.add_argument("work")
    parser.add_argument("out")
    parser.add_argument("--target", default="host")
    arguments = parser.parse_args()
    folder = os.path.join(arguments.work, "checkpoint")
    size = real_load.make_checkpoint(arguments.config, folder) if not os.path.exists(folder) else sum(
        os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    files = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors")]
    lines = []
    for kind, limit in LIMITS.items():
        plan = os.path.join(folder if kind == "external" else arguments.work, "plan")
        weights = ["--weights=external"] if kind == "external" else []
        row = measure([arguments.llmc, "compile", folder, "-o", plan, f"--target={arguments.target}", *weights], limit, files)
        lines.append(f"| {os.path.basename(os.path.normpath(arguments.config))}, {size / 1e9:.1f} GB | {kind} | "
                     f"{arguments.target} | {os.path.getsize(plan) / 1e9:.2f} GB | {row['seconds']} s | {row['anonymous']} | "
                     f"{row['dirty']} | {row['resident']} | {row['limited']} |")
        print(lines[-1], flush=True)
        os.remove(plan)
    with open(arguments.out, "a") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
