# SPDX-License-Identifier: Apache-2.0
"""The TeRM paper's experiments as data: what is run, how it is drawn, and what there is to say about it.

Of the paper's figures only those numbers stand here that are certain. Its sweeps are those of its artifact's scripts
(github.com/thustorage/TeRM, ae/figure-*.py, ae/scripts/term_eval.py and octopus_eval.py).

A sentence of `why` is filled with what was measured, by str.format: d[LABEL][KIND][FIELD] with the fields of
`term_bench --json` and those that paper_page.py derives. One whose numbers are not there (a quick run has fewer
points) is left out. LABELs hold a letter or a sign, as format takes bare digits for indices.
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
    why: tuple = ()
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
        reported={("256B", "term", "pin"): 0.38, ("4KB", "term", "pin"): 0.97},
        why=("The paper's PIN is limited by its NIC; ours is a copy by the client's own CPU, which takes "
             "{d[4KB][pin][cpu_us]:.2f} us for 4 KiB and {d[256B][pin][cpu_us]:.2f} us for 256 B. An absent page takes "
             "{d[4KB][limit][miss_cpu_us]:.1f} us from the same CPUs, and term misses {d[4KB][term][misses]:.1f}% (an "
             "oracle {d[4KB][limit][oracle_misses]:.1f}%): a read of 4 KiB costs term {d[4KB][term][cpu_us]:.2f} us in "
             "all, which alone keeps it to {d[4KB][term][cpu_share_of_pin]:.2f} of pin.",
             "At 256 B a hit gets cheaper and a miss does not: it is a page of the SSD whatever the access asks for "
             "({d[256B][term][ssd_bytes]:.0f} B of SSD for each access): term/pin falls where "
             "pin gains most.",
             "Above a page an access is absent when any of its pages is, and the SSD's bandwidth decides: "
             "{d[64KB][term][ssd_bytes]:.0f} B of it for each 64 KiB read of term, {d[64KB][odp][ssd_bytes]:.0f} "
             "of odp.")),
    Experiment(
        "fig9", "Figure 9: write throughput by access size",
        "Throughput of writes, otherwise as in figure 8. Numbers: see the paper's figure 9.",
        [dataclasses.replace(point, options={**point.options, "--writes": "1"}, quick=point.label in ("256B", "4KB"))
         for point in SIZES], "lines", "writes",
        "bytes of a write",
        why=("Here the writes of every kind are RPCs, those of pin as well, where RDMA would write pinned memory "
             "one-sided: a write of 4 KiB costs pin {d[4KB][pin][cpu_us]:.1f} us of processor time and term "
             "{d[4KB][term][cpu_us]:.1f}. So pin is less of a bound for writes than in the paper.",
             "A write of less than a page to an absent one has the page read first: term moves "
             "{d[256B][term][ssd_read_bytes]:.0f} B from the SSD and {d[256B][term][ssd_write_bytes]:.0f} B to it for "
             "a write of 256 B.")),
    Experiment(
        "table1", "Table 1: latency of a read",
        "Median and 99th percentile of the latency of reads. Sizes and numbers: see the paper's table 1. A page fault "
        "of its NIC (ODP) takes 127 + 74 + 129 us. Ours: one thread, one read of 4 KiB at a time.",
        [Point("4KB", {**ONE_BY_ONE})], "latencies", "reads", bound="never",
        why=("An odp fault here is the kernel's alone, without the 330 us that the paper's NIC and driver take; "
             "term_bench adds them with --odp-delay 330.",
             "A READ of term that hits is the client's copy ({d[4KB][term][call_us][p50]:.1f} us, pin "
             "{d[4KB][pin][call_us][p50]:.1f}); its tail is an RPC and the SSD, whose own median at depth 1 bounds it "
             "from below.")),
    Experiment(
        "table2", "Table 2: latency of a write",
        "The same of writes: see the paper's table 2. Ours: one thread, one write of 4 KiB at a time.",
        [Point("4KB", {**ONE_BY_ONE, "--writes": "1"})], "latencies", "writes", bound="never",
        why=("Every kind's write is an RPC here: the median of pin's is {d[4KB][pin][call_us][p50]:.1f} us, that of "
             "rpc's {d[4KB][rpc][call_us][p50]:.1f}, and that of term's, which also writes pages back, "
             "{d[4KB][term][call_us][p50]:.1f}.",)),
    Experiment(
        "fig10", "Figure 10: what each technique contributes",
        "The way from RPC to TeRM step by step: buffered and direct I/O, tiering, promotion of hot pages, magic pages; "
        "reads of 256 B and of 4 KiB. Numbers: see the paper's figure 10.",
        [Point("256B", {"--size": "256"}), Point("4KB", {}, False)], "bars", "steps", "bytes of a read", STEPS, "never",
        why=("Direct I/O alone reads {d[256B][rpc_direct][ssd_bytes]:.0f} B of SSD for an access of 256 B, a tier that "
             "keeps what it was filled with {d[256B][rpc_tiering][ssd_bytes]:.0f} B, one that follows the heat "
             "{d[256B][+hotspot][ssd_bytes]:.0f} B.",
             "Up to +hotspot every access is an RPC ({d[256B][+hotspot][cpu_us]:.1f} us of processor time at the end); "
             "reading the frames one-sided leaves {d[256B][term][cpu_us]:.1f} us. With no network between, an RPC is "
             "processor time above all, and so this last step is the largest where the SSD is not the limit.",
             "rpc and rpc_buffer leave it to the kernel's page cache what is in memory: "
             "{d[256B][rpc][ssd_bytes]:.0f} and {d[256B][rpc_buffer][ssd_bytes]:.0f} B of SSD for an access.")),
    Experiment(
        "fig11", "Figure 11: the hot set moves",
        "Throughput second by second over 120 s; after 60 s the hot spots change. See the paper's figure 11 for how "
        "long TeRM takes; it counts heat in units of 1 MiB.",
        [Point("moving", {"--distribution": "moving"})], "seconds", "moving", "second", "odp,rpc,term", "never",
        Load("1G", 8, 8, 20, 1), Load("256M", 2, 2, 5, 1),
        why=("After the change all that is hot is absent, and no one can be quicker than the SSD: term read "
             "{d[moving][term][ssd_bytes]:.0f} B of it for each access of the whole run, odp "
             "{d[moving][odp][ssd_bytes]:.0f}, rpc {d[moving][rpc][ssd_bytes]:.0f}. We count pages, and admit at once "
             "what is missed; units of 1 MiB bring in what is not asked for.",)),
    Experiment(
        "fig12a", "Figure 12a: skew",
        "Throughput by Zipf's theta: 0, 0.4, 0.8, 0.9, 0.99. Numbers: see the paper's figure 12.",
        swept("--theta", ["0", "0.6", "0.9", "0.99", "1.2"], ["0", "0.99"], "theta {}"), "lines", "reads", "theta",
        why=("Without skew half of the accesses miss for any choice of pages (term: {d[theta 0][term][misses]:.1f}%), "
             "and {d[theta 0][term][cpu_us]:.1f} us of processor time and {d[theta 0][term][ssd_bytes]:.0f} B of SSD "
             "for each access set the rate.",
             "At 1.2 term misses {d[theta 1.2][term][misses]:.2f}%, and an access costs "
             "{d[theta 1.2][term][cpu_us]:.2f} us; pin {d[theta 1.2][pin][cpu_us]:.2f}.")),
    Experiment(
        "fig12b", "Figure 12b: share of writes",
        "Throughput of 4 KiB accesses of which 0, 25, 50, 75, 100% write. Numbers: see the paper's figure 12.",
        [Point("no writes", {}), Point("10%", {"--writes": "0.1"}, False), Point("50%", {"--writes": "0.5"}, False),
         Point("all writes", {"--writes": "1"})], "lines", "writes", "share of writes",
        why=("A write costs term {d[all writes][term][cpu_us]:.1f} us of processor time, a read "
             "{d[no writes][term][cpu_us]:.2f}: the writes decide long before they are the most. A thread's writes go "
             "one by one here, its reads up to 32 at a time.",)),
    Experiment(
        "fig13a", "Figure 13a: client threads",
        "Throughput by client threads, 1 to 64 on two hosts. Numbers: see the paper's figure 13.",
        swept("--threads", ["1", "2", "4", "8"], ["2", "4"], "{} thr."), "lines", "reads", "client threads",
        bound="never",
        why=("Clients and server share this machine's processors, so that threads beyond their number add waiting and "
             "no rate: pin {d[1 thr.][pin][per_s]:.0f} reads/s with one, {d[8 thr.][pin][per_s]:.0f} with eight; term "
             "{d[1 thr.][term][per_s]:.0f} and {d[8 thr.][term][per_s]:.0f}.",)),
    Experiment(
        "fig13b", "Figure 13b: server threads",
        "Throughput of RPC and TeRM by threads of the server, 1 to 32. Numbers: see the paper's figure 13.",
        [Point(f"{n} thr.", {}, n in "14", served={"--workers": n, "--blocking-workers": n}) for n in "124"],
        "lines", "server threads", "threads of the server", "rpc,term", "never", Load("512M", 3, 3, 2.4, 3, 10),
        why=("A thread of rpc waits for the SSD, so it takes many of them to keep the SSD busy: "
             "{d[1 thr.][rpc][per_s]:.0f} reads/s with one and {d[4 thr.][rpc][per_s]:.0f} with four. A thread of term "
             "keeps as many reads of the SSD in flight as there are requests ({d[1 thr.][term][per_s]:.0f} and "
             "{d[4 thr.][term][per_s]:.0f}); what more of them bring is bounded by the processors, which they share "
             "with the clients.",)),
    Experiment(
        "fig14a", "Figure 14a: memory, uniform",
        "Throughput by the part of the region that memory holds, 20 to 100%, when every page is as likely. Numbers: "
        "see the paper's figure 14.",
        [dataclasses.replace(point, options={**point.options, "--theta": "0"}, quick=point.label == "20%")
         for point in RATIOS], "lines", "reads", "part of the region in memory",
        why=("No choice of pages is better than another: with a fifth in memory term misses "
             "{d[20%][term][misses]:.1f}%, and {d[20%][term][ssd_bytes]:.0f} B of SSD and "
             "{d[20%][term][cpu_us]:.1f} us of processor time for each access set the rate.",
             "A miss alone takes {d[20%][limit][miss_cpu_us]:.1f} us.",
             "At 80% term misses {d[80%][term][misses]:.1f}%, odp {d[80%][odp][misses]:.1f}%; what term has before the "
             "others is what a hit costs, {d[80%][term][cpu_us]:.2f} us for an access beside "
             "{d[80%][rpc][cpu_us]:.2f} us of rpc.")),
    Experiment(
        "fig14b", "Figure 14b: memory, Zipf 0.99",
        "The same with Zipf 0.99. Numbers: see the paper's figure 14.",
        RATIOS, "lines", "reads", "part of the region in memory",
        why=("With a fifth in memory term misses {d[20%][term][misses]:.1f}%, with half "
             "{d[50%][term][misses]:.1f}%; reads of the SSD and their processor time follow: "
             "{d[20%][term][ssd_bytes]:.0f} B and {d[20%][term][cpu_us]:.2f} us for an access, "
             "{d[50%][term][ssd_bytes]:.0f} B and {d[50%][term][cpu_us]:.2f} us.",
             "An oracle would miss {d[20%][limit][oracle_misses]:.1f}% and {d[50%][limit][oracle_misses]:.1f}%.",
             "With nearly all of it in memory what is left between term and pin is the bitmap's and the pattern's "
             "check of each page, the counting, and the server's own work: {d[99.9%][term][cpu_us]:.2f} us for an "
             "access, pin {d[99.9%][pin][cpu_us]:.2f}.")),
    Experiment(
        "fig15", "Figure 15: slower SSDs",
        "Throughput of ODP, RPC and TeRM on three SSDs. Numbers: see the paper's figure 15. Ours is one SSD, slowed "
        "down by a control group to so many reads a second for each server (a read of the kernel's may be larger than "
        "4 KiB).",
        [Point(f"{n}k/s", {"--ssd-iops": f"{n}000"}, n in (5, 20)) for n in (5, 10, 20)], "lines", "ssd",
        "reads a second of the SSD", "odp,rpc,term", "never", Load("256M", 6, 2, 3.6, 4, 12), Load("256M", 2, 0.6, 0.9, 3, 4),
        why=("From 20 to 5 thousand reads a second term goes from {d[20k/s][term][per_s]:.0f} accesses/s to "
             "{d[5k/s][term][per_s]:.0f} and odp from {d[20k/s][odp][per_s]:.0f} to {d[5k/s][odp][per_s]:.0f}: "
             "{d[5k/s][term][ssd_bytes]:.0f} and {d[5k/s][odp][ssd_bytes]:.0f} B of SSD for each access on the slowest "
             "one. Fewer misses count the more the slower the SSD is; where the rate follows the SSD, promotion "
             "competes with misses for it.",),
        throttles=True),
    Experiment(
        "fig16", "Figure 16: the file system",
        "Bandwidth of Octopus over PIN, ODP, RPC and TeRM: 32 client processes read or write 4 KiB or 16 KiB of files "
        "of 1 GiB, Zipf 0.99, half of the files in memory. Numbers: see the paper's figure 16. Ours: processes on a "
        "FUSE mount (O_DIRECT), and the same by the client library, as Octopus's clients are.",
        [], "marks", FILES, "access",
        full=FileLoad(768, 8, True, 2.5, 1.8, 3), quick=FileLoad(256, 8, False, 0.6, 0.6, 3),
        why=("By the library a read of 4 KiB that hits is an extent look-up and a READ: pin takes "
             "{d[library, read 4K][pin][cpu_us]:.2f} us of processor time, term, which misses "
             "{d[library, read 4K][term][misses]:.1f}%, {d[library, read 4K][term][cpu_us]:.2f} us, rpc "
             "{d[library, read 4K][rpc][cpu_us]:.1f} us.",
             "On a mount each access is a system call and a FUSE request to another process: "
             "{d[mount, read 4K][pin][cpu_us]:.1f} us even with pin. That is the same for every kind, and so the "
             "kinds come closer: term/pin is {d[mount, read 4K][term][over_pin]:.2f} there and "
             "{d[library, read 4K][term][over_pin]:.2f} by the library; at 16 KiB "
             "{d[mount, read 16K][term][over_pin]:.2f} and {d[library, read 16K][term][over_pin]:.2f}.",
             "Each process has one access under way at a time, so the SSD is not kept as busy as in figure 8: an "
             "absent page is waited for.",
             "A write is an RPC with every kind (pin {d[library, write 4K][pin][cpu_us]:.0f} us, term "
             "{d[library, write 4K][term][cpu_us]:.0f} us of processor time for 4 KiB by the library), where Octopus "
             "writes one-sided: the kinds differ less than for reads.")),
]

LEFT_OUT = {"Figure 17": "Left out: there is no key-value store over the library here."}
