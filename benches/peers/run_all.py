"""Runs fathom and its peers one after another on the same inputs and writes their lines and a table.

    python run_all.py --demo MODEL [--large DIR] --out DIR [--prompt 256,1024] [--decode 32] [--batch 1,4] [--threads N] [--tries 3]

--demo MODEL  the V4.1 demonstration model: fathom and the PyTorch reference
--large DIR   make_large.py's checkpoints, DIR/native and DIR/bf16: fathom and transformers in float32 and bfloat16
--only NAME   runs fathom, reference or transformers alone; may be repeated

Both sides run in the same call, with nothing else on the machine: thread pools that spin fall by ten times when cores
are shared, so each line carries the load average. Writes DIR/results.jsonl and DIR/table.md; ends with 1 when any
run failed.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NEEDED = {
    "reference": ["torch", "safetensors", "numpy", "tokenizers"],
    "transformers": ["torch", "transformers", "safetensors"],
}
PACKAGES = {"torch": "torch==2.15.0", "transformers": "transformers==5.24.0"}


def main():
    args = arguments()
    sides = wanted(args)
    missing = sorted({name for side, _, _ in sides for name in NEEDED.get(side, []) if not importlib.util.find_spec(name)})
    if missing:
        packages = " ".join(PACKAGES.get(name, name) for name in missing)
        sys.exit(f"bench: {sys.executable} lacks {', '.join(missing)}; install with: {sys.executable} -m pip install {packages}\n"
                 "bench: or name another interpreter: make bench PYTHON=…; or time fathom alone: make bench BENCH='--only fathom'")

    lines, failed = [], 0
    for side, label, command in sides:
        for batch in args.batch:
            for prompt in args.prompt:
                line = run(command, batch, prompt, args)
                line = dict(model=label, **line) if line else dict(model=label, peer=side, batch=batch, prompt=prompt, error=True)
                failed += "error" in line
                print(json.dumps(line), flush=True)
                lines.append(line)

    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "results.jsonl"), "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    text = table(lines)
    with open(os.path.join(args.out, "table.md"), "w") as file:
        file.write(text)
    print("\n" + text)
    return int(failed > 0)


def arguments():
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser()
    parser.add_argument("--demo")
    parser.add_argument("--large")
    parser.add_argument("--out", required=True)
    parser.add_argument("--prompt", type=numbers, default=[256, 1024])
    parser.add_argument("--batch", type=numbers, default=[1, 4])
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=1200, help="seconds for one run")
    parser.add_argument("--only", action="append")
    return parser.parse_args()


def wanted(args):
    """[(side, model, command)], ours and theirs next to each other."""
    fathom = ["cargo", "bench", "--locked", "--quiet", "--bench", "forward", "--"]
    script = lambda name: [sys.executable, os.path.join(HERE, name)]
    sides = []
    if args.demo:
        path = os.path.abspath(args.demo)
        sides += [("fathom", "demo", fathom + [path]), ("reference", "demo", script("reference_peer.py") + [path])]
    if args.large:
        native, bf16 = (os.path.abspath(os.path.join(args.large, form)) for form in ("native", "bf16"))
        sides.append(("fathom", "large", fathom + [native]))
        for dtype in ("float32", "bfloat16"):
            sides.append(("transformers", "large", script("transformers_peer.py") + [bf16, "--dtype", dtype]))
    return [side for side in sides if not args.only or side[0] in args.only]


def run(command, batch, prompt, args):
    """The JSON line of one run, or None; what went wrong is on stderr."""
    sizes = dict(prompt=prompt, batch=batch, decode=args.decode, threads=args.threads, tries=args.tries)
    command = command + [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        print(f"bench: more than {args.timeout} s: {' '.join(command)}", file=sys.stderr)
        return None
    line = next((text for text in done.stdout.splitlines() if text.startswith("{")), None)
    if done.returncode != 0 or line is None:
        print(f"bench: {' '.join(command)} ended with {done.returncode}\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    return json.loads(line)


def table(lines):
    """Markdown: medians, and how many times faster fathom is than each peer."""
    ours = {(line["model"], line["batch"], line["prompt"]): line for line in lines if line["peer"] == "fathom" and "error" not in line}
    rows = [machine(), "", "| model | batch | prompt | engine | prefill tok/s | decode tok/s | bandwidth | fathom: prefill, decode | load |",
            "|---|---|---|---|---|---|---|---|---|"]
    for line in sorted(lines, key=lambda line: (line["model"], line["batch"], line["prompt"])):
        place = (line["model"], line["batch"], line["prompt"])
        engine = " ".join(str(line[key]) for key in ("peer", "version", "dtype") if key in line)
        start = f"| {place[0]} | {place[1]} | {place[2]} | {engine} |"
        if "error" in line:
            rows.append(f"{start} failed | | | | |")
            continue
        share = f"{line['bandwidth_share']:.0%} of {line['read_gb_s']:.1f} GB/s" if "bandwidth_share" in line else ""
        times = ""
        if line["peer"] != "fathom" and place in ours:
            times = ", ".join(f"{ours[place][key] / line[key]:.1f}x" for key in ("prefill_tok_s_median", "decode_tok_s_median"))
        rows.append(f"{start} {line['prefill_tok_s_median']:.1f} | {line['decode_tok_s_median']:.1f} | {share} | {times} | {line['load1']} |")
    return "\n".join(rows) + "\n"


def machine():
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            cpu = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return f"{cpu}, {os.cpu_count()} cores, commit {commit or 'unknown'}; medians of the tries."


if __name__ == "__main__":
    sys.exit(main())
