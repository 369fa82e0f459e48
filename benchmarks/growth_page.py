# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/growth measured, as one page, with what it comes from."""

from names_growth import KINDS, median

PAGE = 4096
MIB = 2**20

HEAD = """# The cost of growth

What a region costs as it grows, at the level of the library, measured by `./dev bench growth`, which also wrote this
page (`benchmarks/growth BUILD_DIR --render` writes it again from `growth.json`). Only the region's size changes: the
DRAM tier has {dram} MiB, {active} MiB are written and read, in single pages spread evenly over the region, by one
client. The region is a sparse file of which the written log says that every page was written; the tier is on a tmpfs.
The promoter, access counts and pulled bitmaps have a period of {period} ms, not the default second, so that what a
period costs is not lost in what a process costs anyhow. `x` is the largest region's figure beside the smallest one's.
{starts}

{machine}; {date}{quick}.{busy}
"""

STARTS = "Of starts the median of {starts} counts, after {warm_up} of each kind that does not."
ALL_STARTS = "Of starts the median of {starts} counts, the first of all included."

MOST_LOAD = 0.5  # of a machine that does nothing else
BUSY = """
Other programs ran meanwhile: processor times and bytes say something, wall times scatter."""

# What, its unit, and where it is in a size's result.
ROWS = [
    ("Start", None, None),
    ("of a new region, wall", "ms", lambda s: s["start"]["fresh"]["ms"]),
    ("of a new region, processor", "ms", lambda s: s["start"]["fresh"]["cpu_ms"]),
    ("of a full one, wall", "ms", lambda s: s["start"]["full"]["ms"]),
    ("of a full one, processor", "ms", lambda s: s["start"]["full"]["cpu_ms"]),
    ("after SIGKILL, wall", "ms", lambda s: s["start"]["killed"]["ms"]),
    ("after SIGKILL, processor", "ms", lambda s: s["start"]["killed"]["cpu_ms"]),
    ("One read of 4 KiB", None, None),
    ("that hits, median", "us", lambda s: s["hit"]["p50_us"]),
    ("that misses, median", "us", lambda s: s["miss"]["p50_us"]),
    ("misses among the latter", "%", lambda s: 100 - 100 * s["miss"]["hits"] / s["miss"]["reads"]),
    ("One period, processor time", None, None),
    ("server without clients", "us", lambda s: s["period_us"]["server_alone"]),
    ("server with an idle client", "us", lambda s: s["period_us"]["server_idle"]),
    ("idle client, live bitmap", "us", lambda s: s["period_us"]["client_idle"]),
    ("idle client, pulled bitmap", "us", lambda s: s["period_us"]["client_pulling"]),
    ("server under load", "us", lambda s: s["period_us"]["server_load"]),
    ("client under load", "us", lambda s: s["period_us"]["client_load"]),
    ("hits under load", "%", lambda s: 100 * s["load"]["hits"] / s["load"]["reads"]),
    ("Server's bookkeeping", None, None),
    ("RNIC page table", "B/page", lambda s: per_page(s, s["server"]["page_table"])),
    ("page states", "B/page", lambda s: per_page(s, s["server"]["page_states"])),
    ("present bitmap", "B/page", lambda s: per_page(s, s["server"]["bitmap"])),
    ("heats, owners, log, the process's own", "MiB", lambda s: s["server"]["anonymous"] / MIB),
    ("the kernel's page tables", "MiB", lambda s: s["server"]["kernel_tables"] / MIB),
    ("together", "MiB", lambda s: s["server"]["bookkeeping"] / MIB),
    ("together, of the region", "%", lambda s: 100 * s["server"]["bookkeeping"] / s["region_bytes"]),
    ("Client's bookkeeping", None, None),
    ("mapped of the server's page table and bitmap", "MiB",
     lambda s: (s["client"]["page_table"] + s["client"]["bitmap"]) / MIB),
    ("its own, live bitmap", "MiB", lambda s: own(s["client"])),
    ("its own, pulled bitmap", "MiB", lambda s: own(s["client_pulling"])),
]

BELOW = """A hit looks at one entry of the RNIC's page table, whatever the region's size. But the same pages, spread
over a region {times} times as large, have their entries in more cache lines and pages of that table: those of {active}
MiB, in single pages, are {near} bytes apart in the smallest region, and {far} in the largest. A miss costs what the SSD
costs.

## What costs what

| structure | bytes per page of the region | gets memory |
| --- | --- | --- |
| RNIC page table, `driver/softnic/page_table.h` | 8 | at the start: a full tmpfs is an error then, no SIGBUS later |
| page states, `tlib/server/page_entry.h` | 8 | at the start, where the tier outlives the process; else when touched |
| present bitmap, `driver/softnic/term_region.h` | 1/8 | at the start |
| written log, `tlib/server/written_log.h` | 0.127; on the SSD twice that | at the start |
| heats, `tlib/server/heat_map.h` | 4 | 4 KiB for 1024 neighbours of which one was accessed |
| references, `tlib/server/tier_policy.h` | 1/8 | as heats, where frames are chosen by recency |
| queue of dirty pages, `tlib/server/cleaner.h` | none; 16 for a dirty page | when one gets dirty |
| owners, `tlib/server/frame_supply.h` | none; 4 for a frame | when the frame is used |
| frame pool, `tlib/server/frames.h` | none; 4 and a bit for a frame | when the tier gets its budget |
| client: frames, page table, live bitmap | none of its own: the server's memory, mapped | |
| client: pulled bitmap | 1/8 | when it connects |
| client: access counts, `tlib/client/heat_exporter.h` | none; 4 MiB at most, 64 KiB for a thread | as it reads |
| metadata: free space, `metadata/allocator.h` | 0.0005; on the SSD a bit per page | at the start |

So a start is linear in the region with a small constant: it gives memory to page table, page states and bitmap, reads
the written log, and of a full region sets a bit in each state; after SIGKILL it looks at each state and hides absent
pages. All else of it goes with the tier's size.

## What happens every period, and why that does not grow

| what | every | costs |
| --- | --- | --- |
| promoter: threshold, hit ratio, `TierPolicy::EndPeriod` | sample period | 2048 buckets of a histogram |
| ageing, `HeatMap::Age` | sample period | 65536 heats while a turn is new, or a hundredth of all for each time that they halve, less than once as a rule; otherwise none |
| promoter, `Promoter::Sweep` | sample period | 65536 pages in a second, others each time; 8192 loads in a second at most |
| access counts, `HeatReader` | half a sample period, at most 125 ms; as clients tell | what the client has read since, 131072 pages at most |
| cleaner, `Cleaner::Round` | 500 ms | what is dirty and old; a queue, no search |
| reserve, `FrameSupply::RefillReserve` | 500 ms, on demand | 256 frames at most |
| commit, `WrittenLog::Sync` | with each flush | blocks of 32256 pages that changed |
| read-ahead, `ReadAhead::Advance` | with a miss | 64 streams, up to 256 pages |
| sessions, `ControlServer::OnTick` | 1 s | connections |
| file system's `Reclaimer::Loop` | 1 s | inodes changed, closed or unlinked; clients; space that was freed |
| `stats`, gauges | when asked | counters that are kept along |
| client: rings and counts, `HeatExporter` | 25 to 200 ms, by how full they are; heat period, a quarter of it while misses rise | what was read since, 131072 pages at most |
| client: bitmap, `SessionThread::PullInTurn` | pull period | the bits of 4 Mi pages, 16 GiB; more comes in turns |

Patterns change when an administrator says so, and cost as much as there are clients. What walks over all of a range:
`fsync`, over the states of the file's pages; the end of a server and, once in the background, the start of a volume's,
over those of the region; a change of the capacity, over what is added or cut off.

`HeatMap.Age_NeverWalksTheWholeRegion` and `Promoter.Round_WalksOverAShareOfTheRegion` count what a period touches,
`ServerTest.Read_PulledBitmapOfALargeRegionComesInTurns` what it pulls; each fails when that is the whole region.
"""


FILES = """## Names

What an operation on names costs a server whose volume has more and more files: empty ones, 1,000 in a directory. They
are made as records of the metadata layer, a directory's by one transaction, while the volume is not served; all that is
measured is measured on `termfs serve` with `--metadata-memory {memory}`, asked through the client library by 8 threads, so
that the server always has a request, about files drawn at random from all of them; the volumes in turns, {rounds} times, of
which the median counts. A list is of 1,000 names with attributes. Cold look-ups are the first of all after a start, in
each of which the server's reads are counted; then all directories are listed, which fills the store's memory. `x` is the
figure of most files beside that of fewest.

{machine}; {date}{quick}.{busy}
"""

FILE_ROWS = [
    *[(f"{kind}, server's processor time, us", lambda v, kind=kind: median(v, kind, "server_us")) for kind in KINDS],
    *[(f"{kind}, client's processor time, us", lambda v, kind=kind: median(v, kind, "client_us")) for kind in KINDS],
    *[(f"{kind}, from request to reply, median, us", lambda v, kind=kind: median(v, kind, "p50_us")) for kind in KINDS],
    *[(f"{kind}, read by the server, B", lambda v, kind=kind: median(v, kind, "read_bytes")) for kind in KINDS],
    ("cold look-up, read by the server, mean, B", lambda v: v["rounds"][0]["cold look-up"]["read_bytes"]),
    ("cold look-up, the most that one read, B", lambda v: v["rounds"][0]["cold look-up"]["most_read_bytes"]),
    ("server's own memory, MiB", lambda v: v["anonymous_bytes"] / MIB),
    ("of the metadata store's memory used, MiB", lambda v: v["metadata_used_bytes"] / MIB),
    ("the store's files, MiB", lambda v: v["metadata_table_bytes"] / MIB),
    ("start after SIGKILL, wall, s", lambda v: v["killed"]["seconds"]),
    ("start after SIGKILL, processor, s", lambda v: v["killed"]["processor_seconds"]),
]


def per_page(size, count):
    return count / (size["region_bytes"] / PAGE)


def own(memory):
    return (memory["anonymous"] + memory["kernel_tables"]) / MIB


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(sizes):
    head = [""] + [f"{size['region_bytes'] / 2**30:g} GiB" for size in sizes] + ["x"]
    rows = [head, ["---"] * len(head)]
    for name, unit, value in ROWS:
        if value is None:
            rows.append([f"**{name}**"] + [""] * (len(head) - 1))
            continue
        values = [value(size) for size in sizes]
        times = f"{values[-1] / values[0]:.2f}" if values[0] > 0 else "-"
        rows.append([f"{name}, {unit}"] + [number(v) for v in values] + [times])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def starts_of(settings):
    warm_up = settings.get("warm_up_starts", 0)
    return (STARTS if warm_up else ALL_STARTS).format(starts=settings["starts"], warm_up=warm_up)


def machine_of(measured):
    machine = measured["machine"]
    return (f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['memory_gib']} GiB, Linux {machine['kernel']}, load average "
            f"{machine['load_before']} before")


def circumstances(measured):
    return {"machine": machine_of(measured), "date": measured["date"],
            "quick": ", a quick run" if measured["quick"] else "",
            "busy": BUSY if measured["machine"]["load_before"] > MOST_LOAD else ""}


def files_part(measured):
    result = measured["result"]
    volumes = result["volumes"]
    rows = [[""] + [f"{volume['files']:,} files" for volume in volumes] + ["x"]]
    rows.append(["---"] * len(rows[0]))
    for name, value in FILE_ROWS:
        values = [value(volume) for volume in volumes]
        times = f"{values[-1] / values[0]:.2f}" if values[0] > 0 else "-"
        rows.append([name] + [number(v) for v in values] + [times])
    head = FILES.format(memory=result["memory"], rounds=len(volumes[0]["rounds"]), **circumstances(measured))
    return [head.strip(), "\n".join("| " + " | ".join(row) + " |" for row in rows)]


def render(stored):
    parts = regions_part(stored) if "result" in stored else ["# The cost of growth"]
    return "\n\n".join(parts + (files_part(stored["files"]) if "files" in stored else [])) + "\n"


def regions_part(stored):
    settings = stored["result"]["settings"]
    head = HEAD.format(dram=settings["dram_bytes"] >> 20, active=settings["active_bytes"] >> 20,
                       period=settings["period_ms"], starts=starts_of(settings), **circumstances(stored))
    sizes = stored["result"]["sizes"]
    apart = [8 * size["region_bytes"] // settings["active_bytes"] for size in (sizes[0], sizes[-1])]
    below = BELOW.format(active=settings["active_bytes"] >> 20, near=apart[0], far=apart[1],
                              times=f"{apart[1] / apart[0]:g}")
    return [head.strip(), table(sizes), below.strip()]


def write(path, words):
    with open(path, "w", encoding="utf-8") as out:
        out.write(words)
