"""One Markdown table of targets, from the JSON lines of shapes that targets.sh measured: what is met, missed, or was not run."""

import json
import pathlib
import sys

# What a figure is held against: the same phase of another server, another phase of istiod, or a plain number.
# (server, phase or None for the same, factor, what is added), with server None for the number alone.
def floor(factor, more=0):
    return ("floor", None, factor, more)


def istiod(factor, phase=None):
    return ("istiod", phase, factor, 0)


def number(limit):
    return (None, None, 0, limit)


DELTA, SOTW, LARGE, MANY = "delta-1000x100", "sotw-1000x100", "sotw-10000x50", "delta-1000x1000"
KUBE = "kube-1000x100"

# Shape, phase, figure, in words, the most it may be; none: there is no target, and the figure is shown.
TARGETS = [
    (DELTA, "cold", "cpu_s", "all connect: CPU s", [floor(3), istiod(1 / 40), istiod(1 / 8, "warm")]),
    (DELTA, "cold", "peak_mb", "all connect: peak MB", [floor(1, 100)]),
    (DELTA, "warm", "cpu_s", "all connect again, warm: CPU s", []),
    (MANY, "cold", "cpu_s", "all connect: CPU s", [floor(3)]),
    (MANY, "cold", "peak_mb", "all connect: peak MB", [floor(1, 150)]),
    (LARGE, "cold", "cpu_s", "all connect: CPU s", [floor(3)]),
    (LARGE, "cold", "peak_mb", "all connect: peak MB", [istiod(1 / 10)]),
    (DELTA, "eds", "last_ms", "an endpoint changes: ms to the last", [floor(3)]),
    (SOTW, "eds", "last_ms", "an endpoint changes: ms to the last", [floor(3)]),
    (MANY, "eds", "last_ms", "an endpoint changes: ms to the last", [floor(3)]),
    (DELTA, "vs", "last_ms", "a VirtualService changes: ms to the last", [floor(4)]),
    (DELTA, "vs", "cpu_ms_per_change", "a VirtualService changes: CPU ms", [floor(4)]),
    (SOTW, "vs", "last_ms", "a VirtualService changes: ms to the last", [floor(4)]),
    (MANY, "vs", "last_ms", "a VirtualService changes: ms to the last", [floor(4)]),
    (MANY, "vs", "cpu_ms_per_change", "a VirtualService changes: CPU ms", [floor(4)]),
    (DELTA, "svc", "add_eds_last_ms", "a service comes: ms to the last", [floor(8)]),
    (DELTA, "svc", "del_cds_last_ms", "a service goes: ms to the last", [floor(8)]),
    (SOTW, "svc", "add_eds_last_ms", "a service comes: ms to the last", [floor(4)]),
    (SOTW, "svc", "del_cds_last_ms", "a service goes: ms to the last", [floor(4)]),
    (DELTA, "churn", "p50_ms", "10 changes a second: median ms", []),
    (DELTA, "churn", "p99_ms", "10 changes a second: p99 ms", [floor(4)]),
    (MANY, "churn", "p99_ms", "10 changes a second: p99 ms", [floor(4)]),
    ("churn-100", "churn", "p99_ms", "100 changes a second: p99 ms", []),
    ("churn-1000", "churn", "behind", "1000 changes a second: by how much it is too slow, %", [number(5)]),
    ("churn-1000", "churn", "p99_ms", "1000 changes a second: p99 ms", []),
    (DELTA, "start", "ready_ms", "start to ready: ms", [istiod(1 / 10)]),
    (LARGE, "start", "ready_ms", "start to ready: ms", [istiod(1 / 10)]),
    ("empty", "start", "idle_mb", "idle: MB", [istiod(1 / 5)]),
    (LARGE, "start", "idle_mb", "idle: MB", [floor(1, 100)]),
    ("scoped-1000x10000", "cold", "peak_mb", "all connect, Sidecars of 10 hosts: peak MB", [number(2048)]),
    (DELTA, "reconnect", "mb", "all come back: received MB", [number(1)]),
    (DELTA, "reconnect", "cpu_s", "all come back: CPU s", [floor(4)]),
    (KUBE, "eds", "last_ms", "an endpoint changes: ms to the last", [istiod(1 / 5)]),
    (KUBE, "vs", "last_ms", "a VirtualService changes: ms to the last", [istiod(1 / 15)]),
    (KUBE, "svc", "add_eds_last_ms", "a service comes: ms to the last", []),
    (KUBE, "svc", "del_cds_last_ms", "a service goes: ms to the last", []),
    (KUBE, "churn", "p99_ms", "10 changes a second: p99 ms", [istiod(1 / 15)]),
]


def lines(folder, shape, server):
    """The last line of each phase."""
    file = folder / shape / f"{server}.jsonl"
    if not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{")]
    return {row["phase"]: row for row in rows}


def when(folder, shape):
    """What was measured when, and on what."""
    file = folder / shape / "when"
    return file.read_text().strip() if file.exists() else "not run"


def figure(row, key):
    if row is None:
        return None
    if key == "behind":
        return max(0.0, 100 * (1 - row["changes_per_s"] / row["rate"]))
    return row.get(key)


def is_complete(row):
    """Did every proxy get what it should?"""
    proxies = row.get("proxies", 0)
    return (
        row.get("missed", 0) == 0
        and row.get("synced", proxies) >= proxies
        and row.get("alive", proxies) >= proxies
        and row.get("deliveries", 0) >= row.get("expected", 0)
    )


def is_noisy(row):
    # What feeds a server from Kubernetes runs beside it.
    other = 0 if row.get("feed") == "kube" else row.get("other_cpu_s", 0)
    elsewhere = other + row.get("steal_s", 0)
    return elsewhere > 1 and elsewhere > 0.3 * row.get("cpu_s", 0)


def words(target):
    server, phase, factor, more = target
    if server is None:
        return f"{more:g}"
    times = "" if factor == 1 else f"{factor:g} × " if factor > 1 else f"1/{1 / factor:g} of "
    return f"{times}{server}{', ' + phase if phase else ''}{f' + {more}' if more else ''}"


def show(value):
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio(ours, other):
    return "–" if ours is None or not other else f"{ours / other:.2f}"


def verdict(ours, rows, target):
    """Of one figure, against all that it is held against."""
    phase, key, most = target
    row = rows["candidate"].get(phase)
    if ours is None:
        return "not run"
    if not is_complete(row):
        return "**missed**: not complete"
    if not most:
        return "no target"
    missing, missed = [], []
    for limit in most:
        server, other_phase, factor, more = limit
        other = figure(rows[server].get(other_phase or phase), key) if server else 0
        if other is None:
            missing.append(server)
        elif ours > factor * other + more:
            missed.append(words(limit))
    if missed:
        return "**missed**: " + "; ".join(missed)
    if len(missing) == len(most):
        return f"not judged: no {', '.join(sorted(set(missing)))}"
    return "met" + (f", without {', '.join(sorted(set(missing)))}" if missing else "")


def render(folder):
    print("| work | at most | ours | floor | istiod | ours/floor | ours/istiod | |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    for shape, phase, key, work, most in TARGETS:
        rows = {server: lines(folder, shape, server) for server in ("candidate", "istiod", "floor")}
        at = {server: rows[server].get(phase) for server in rows}
        ours, theirs, replayed = (figure(at[server], key) for server in ("candidate", "istiod", "floor"))
        said = verdict(ours, rows, (phase, key, most))
        noisy = sorted(server for server, row in at.items() if row and is_noisy(row))
        if noisy:
            said += f" (noisy: {', '.join(noisy)})"
        if when(folder, shape).startswith("tiny"):
            said += " (tiny)"
        print(
            f"| {shape}: {work} | {'; '.join(map(words, most)) or '–'} | {show(ours)} | {show(replayed)} | {show(theirs)} "
            f"| {ratio(ours, replayed)} | {ratio(ours, theirs)} | {said} |"
        )
    print()
    print("One run each. Of single changes it is the median of several. “noisy”: much of the machine went elsewhere.")
    print("A namespace for each of 1,000 services is no shape of this tool: `make bench SHAPES=bench/namespaces.yaml`.")
    print()
    for shape in dict.fromkeys(target[0] for target in TARGETS):
        print(f"- {shape}: {when(folder, shape)}")


if __name__ == "__main__":
    render(pathlib.Path(sys.argv[1]))
