# SPDX-License-Identifier: Apache-2.0
"""The TeRM paper's experiments as data: what is run, and how it is drawn. What there is to say about them by what was
measured is in paper_why.py.

Of the paper's figures only those numbers stand here that are certain. Its sweeps are those of its artifact's scripts
(github.com/thustorage/TeRM, ae/figure-*.py, ae/scripts/term_eval.py and octopus_eval.py).
"""
import dataclasses

FILES = "files"  # the batch that is measured by file_bench
FOUR = "pin,odp,rpc,term"
STEPS = "rpc,rpc_buffer,rpc_direct,rpc_tiering,+hotspot,term"

# What every point has, unless it says otherwise: equal points of several figures are measured once.
BASE = {"--size": "4K", "--theta": "0.99", "--writes": "0", "--dram-ratio": "0.5", "--threads": "2"}


@dataclasses.dataclass(frozen=True)
class Load:
    region: str
    warmup: float  # seconds of each kind, before what memory does not hold yet
    settle: float  # before what it holds from the point before
    seconds: float
    rounds: int
    most: float = 0  # seconds of warm-up for a kind that memory still fills with; 0: none beyond the above


@dataclasses.dataclass(frozen=True)
class FileLoad:
    """Of processes that access pieces of files."""
    mib: int  # of files in each volume
    processes: int
    writes: bool  # measure them, too
    warmup: float
    seconds: float
    rounds: int


FULL = Load("1G", 4, 0.8, 2.4, 3, 10)
QUICK = Load("256M", 0.8, 0.3, 0.75, 3, 2)


@dataclasses.dataclass(frozen=True)
class Point:
    label: str
    options: dict
    quick: bool = True  # part of a quick run, too
    served: dict = dataclasses.field(default_factory=dict)  # options of servers of its own


@dataclasses.dataclass(frozen=True, eq=False)  # one is itself, not its contents
class Experiment:
    name: str
    title: str
    shows: str  # what the paper's figure shows
    points: list
    draw: str  # lines, marks, bars, seconds, latencies
    batch: str  # experiments of one batch and the same kinds are measured on the same servers
    x_title: str = ""
    kinds: str = FOUR
    bound: str = "full"  # when the machine's limit is measured beside: always, full (not in a quick run), never
    full: Load = FULL
    quick: Load = QUICK
    reported: dict = dataclasses.field(default_factory=dict)  # {(label, kind, kind): the paper's ratio of their rates}
    tells_workers: bool = False  # the page says how many each server has
    throttles: bool = False  # needs control groups that slow the SSD down


def swept(option, values, quick, name="{}"):
    return [Point(name.format(value), {option: value}, value in quick) for value in values]


SIZES = swept("--size", ["256", "1K", "4K", "16K", "64K"], ["256", "4K", "64K"], "{}B")
RATIOS = [Point(f"{percent}%", {"--dram-ratio": ratio}, percent in ("20", "50"))
          for percent, ratio in (("20", "0.2"), ("50", "0.5"), ("80", "0.8"), ("99.9", "0.999"))]
ONE_BY_ONE = {"--depth": "1", "--threads": "1"}
MOVE_FULL, MOVE_QUICK = 16, 4  # the second of fig11

EXPERIMENTS = [
    Experiment(
        "fig8", "Figure 8: read throughput by access size",
        "Throughput of reads of 64 B to 16 KiB by 64 client threads, Zipf 0.99, 32 of 64 GiB in memory. On that "
        "testbed (a ConnectX NIC of 3 to 18 million reads/s, an SSD of 1.25 million 4 KiB reads/s) TeRM reaches 0.97 "
        "of PIN at 4 KiB and 0.38 at 256 B. TeRM misses 27% of its accesses where an oracle would miss 4.4%.",
        SIZES, "lines", "reads", "bytes of a read", bound="always",
        reported={("256B", "term", "pin"): 0.38, ("4KB", "term", "pin"): 0.97}),
    Experiment(
        "fig9", "Figure 9: write throughput by access size",
        "Throughput of writes, otherwise as in figure 8. Numbers: see the paper's figure 9.",
        [dataclasses.replace(point, options={**point.options, "--writes": "1"}, quick=point.label in ("256B", "4KB"))
         for point in SIZES], "lines", "writes",
        "bytes of a write"),
    Experiment(
        "table1", "Table 1: latency of a read",
        "Median and 99th percentile of the latency of reads. Sizes and numbers: see the paper's table 1. A page fault "
        "of its NIC (ODP) takes 127 + 74 + 129 us. Ours: one thread, one read of 4 KiB at a time.",
        [Point("4KB", {**ONE_BY_ONE})], "latencies", "reads", bound="never"),
    Experiment(
        "table2", "Table 2: latency of a write",
        "The same of writes: see the paper's table 2. Ours: one thread, one write of 4 KiB at a time.",
        [Point("4KB", {**ONE_BY_ONE, "--writes": "1"})], "latencies", "writes", bound="never"),
    Experiment(
        "fig10", "Figure 10: what each technique contributes",
        "The way from RPC to TeRM step by step: buffered and direct I/O, tiering, promotion of hot pages, magic pages; "
        "reads of 256 B and of 4 KiB. Numbers: see the paper's figure 10.",
        [Point("256B", {"--size": "256"}), Point("4KB", {}, False)], "bars", "steps", "bytes of a read", STEPS, "never",
        tells_workers=True),
    Experiment(
        "fig11", "Figure 11: the hot set moves",
        "Throughput second by second over 120 s; after 60 s the hot spots change. See the paper's figure 11 for how "
        "long TeRM takes; it counts heat in units of 1 MiB.",
        [Point("moving", {"--distribution": "moving"})], "seconds", "moving", "second", "odp,rpc,term", "never",
        Load("1G", 8, 8, 20, 1), Load("256M", 2, 2, 5, 1)),
    Experiment(
        "fig12a", "Figure 12a: skew",
        "Throughput by Zipf's theta: 0, 0.4, 0.8, 0.9, 0.99. Numbers: see the paper's figure 12.",
        swept("--theta", ["0", "0.6", "0.9", "0.99", "1.2"], ["0", "0.99"], "theta {}"), "lines", "reads", "theta"),
    Experiment(
        "fig12b", "Figure 12b: share of writes",
        "Throughput of 4 KiB accesses of which 0, 25, 50, 75, 100% write. Numbers: see the paper's figure 12.",
        [Point("no writes", {}), Point("10%", {"--writes": "0.1"}, False), Point("50%", {"--writes": "0.5"}, False),
         Point("all writes", {"--writes": "1"})], "lines", "writes", "share of writes"),
    Experiment(
        "fig13a", "Figure 13a: client threads",
        "Throughput by client threads, 1 to 64 on two hosts. Numbers: see the paper's figure 13.",
        swept("--threads", ["1", "2", "4", "8"], ["2", "4"], "{} thr."), "lines", "reads", "client threads",
        bound="never"),
    Experiment(
        "fig13b", "Figure 13b: server threads",
        "Throughput of RPC and TeRM by threads of the server, 1 to 32. Numbers: see the paper's figure 13.",
        [Point(f"{n} thr.", {}, n in "14", served={"--workers": n, "--blocking-workers": n}) for n in "1248"],
        "lines", "server threads", "threads of the server", "rpc,term", "never", Load("512M", 3, 3, 2.4, 3, 10),
        tells_workers=True),
    Experiment(
        "fig14a", "Figure 14a: memory, uniform",
        "Throughput by the part of the region that memory holds, 20 to 100%, when every page is as likely. Numbers: "
        "see the paper's figure 14.",
        [dataclasses.replace(point, options={**point.options, "--theta": "0"}, quick=point.label == "20%")
         for point in RATIOS], "lines", "reads", "part of the region in memory"),
    Experiment(
        "fig14b", "Figure 14b: memory, Zipf 0.99",
        "The same with Zipf 0.99. Numbers: see the paper's figure 14.",
        RATIOS, "lines", "reads", "part of the region in memory"),
    Experiment(
        "fig15", "Figure 15: slower SSDs",
        "Throughput of ODP, RPC and TeRM on three SSDs. Numbers: see the paper's figure 15. Ours is one SSD, slowed "
        "down by a control group to so many reads a second for each server (a read of the kernel's may be larger than "
        "4 KiB).",
        [Point(f"{n}k/s", {"--ssd-iops": f"{n}000"}, n in (5, 20)) for n in (5, 10, 20)], "lines", "ssd",
        "reads a second of the SSD", "odp,rpc,term", "never", Load("256M", 6, 2, 3.6, 4, 12),
        Load("256M", 2, 0.6, 0.9, 3, 4),
        throttles=True),
    Experiment(
        "fig16", "Figure 16: the file system",
        "Bandwidth of Octopus over PIN, ODP, RPC and TeRM: 32 client processes read or write 4 KiB or 16 KiB of files "
        "of 1 GiB, Zipf 0.99, half of the files in memory. Numbers: see the paper's figure 16. Ours: processes on a "
        "FUSE mount (O_DIRECT), and the same by the client library, as Octopus's clients are. Misses by the library are "
        "pages that a READ found absent; on a mount, of the bytes that were asked for those that the SSD read, for "
        "whatever reason.",
        [], "marks", FILES, "access",
        full=FileLoad(768, 8, True, 2.5, 1.8, 3), quick=FileLoad(256, 8, False, 0.6, 0.6, 3)),
]

LEFT_OUT = {"Figure 17": "Left out: there is no key-value store over the library here."}
