# SPDX-License-Identifier: Apache-2.0
"""What the figures' numbers show, and why they differ from the paper's.

A sentence is text that str.format fills, d[LABEL][KIND][FIELD] with the fields of `term_bench --json` and those of
paper_numbers.py; LABELs hold a letter or a sign, as format takes bare digits for indices. Or it is a function of d, where
what can be said depends on the numbers; None says nothing. One whose numbers are not there (a quick run has fewer points)
is left out.
"""
ALIKE = 1.25  # times as much, and there is no difference to explain


def sentences(name, data):
    for sentence in WHY[name]:
        try:
            said = sentence(data) if callable(sentence) else sentence.format(d=data)
        except KeyError:
            continue  # a point that this run does not have
        if said:
            yield said


def listed(kinds, field, form="{:.1f}"):
    """`pin 1.0, odp 2.0` """
    return ", ".join(f"{name} {form.format(kinds[name][field])}" for name in ("pin", "odp", "rpc", "term") if name in kinds)


def by_processor_time(label):
    def said(d):
        term = d[label]["term"]
        return (f"By processor time alone term could have {term['cpu_share_of_pin']:.2f} of pin's rate; it has "
                f"{term['over_pin']:.2f}, and {term['limits']}.")

    return said


def limits(label, kind):
    return lambda d: f"At {label} {d[label][kind]['limits']}."


def heat_of_pages(d):
    if d["4KB"]["term"]["misses"] > 2 * d["4KB"]["limit"]["oracle_misses"]:
        return None
    return ("The paper's TeRM misses six times what an oracle does: its heat is that of units of 1 MiB, here it is that of "
            "pages.")


def smaller_reads(d):
    small, page = d["256B"], d["4KB"]
    begin = (f"At 256 B a hit costs {small['pin']['cpu_us']:.2f} us, an absent page still "
             f"{small['limit']['miss_cpu_us']:.1f}: it is a page of the SSD whatever the access asks for "
             f"({small['term']['ssd_bytes']:.0f} B of SSD for each access).")
    if small["term"]["over_pin"] >= page["term"]["over_pin"]:
        return begin
    return (f"{begin} So term/pin is {small['term']['over_pin']:.2f} where it is {page['term']['over_pin']:.2f} at 4 KiB; "
            "it falls in the paper, too (0.38 and 0.97).")


def part_of_a_page(d):
    small, page = d["256B"]["term"], d["4KB"]["term"]
    if small["ssd_read_bytes"] <= page["ssd_read_bytes"]:
        return None
    return (f"A write of less than a page to an absent one has the page read first: term reads {small['ssd_read_bytes']:.0f} "
            f"B of the SSD for a write of 256 B, {page['ssd_read_bytes']:.0f} B for one of 4 KiB, and writes "
            f"{small['ssd_write_bytes']:.0f} and {page['ssd_write_bytes']:.0f} B.")


def fault(d):
    if d["4KB"]["settings"]["odp_delay_us"] > 0:
        return None
    return ("An odp fault here is the kernel's alone, without the 330 us that the paper's NIC and driver take; term_bench "
            "adds them with --odp-delay 330.")


def hit_and_miss(d):
    term, pin = d["4KB"]["term"], d["4KB"]["pin"]
    if not 1 < term["misses"] < 50:
        return None  # the median is no hit, or the 99th percentile no miss
    return (f"Of term's reads {term['misses']:.1f}% miss. So its median is a hit, the client's copy "
            f"({term['call_us']['p50']:.1f} us, pin {pin['call_us']['p50']:.1f}), and its 99th percentile a miss, an RPC "
            f"and a read of the SSD ({term['call_us']['p99']:.0f} us).")


def medians_of_writes(d):
    kinds = d["4KB"]
    calls = {name: kinds[name]["call_us"] for name in ("pin", "odp", "rpc", "term")}
    medians = [call["p50"] for call in calls.values()]
    said = "Every kind's write is an RPC here, also pin's, where RDMA writes one-sided: medians of " + \
        listed(calls, "p50") + " us."
    if max(medians) > 2 * min(medians):
        return said
    return f"{said} They are alike; the kinds differ in the tail, in what a write has to wait for: " + \
        listed(calls, "p99", "{:.0f}") + " us at the 99th percentile."


def first_steps(d):
    """rpc_direct differs from the kind before it in two things."""
    direct, buffered = d["256B"]["rpc_direct"], d["256B"]["rpc_buffer"]
    said = (f"From rpc_buffer to rpc_direct ({direct['over_before']:.2f}) two things change: "
            f"the kernel's page cache is left out, and {buffered['workers']} workers that wait for the SSD become "
            f"{direct['workers']} that does not. ")
    if buffered["workers"] == direct["workers"]:
        said = f"From rpc_buffer to rpc_direct it is {direct['over_before']:.2f}: the page cache is left out. "
    return (f"{said}The former reads {buffered['ssd_bytes']:.0f} B of SSD for an access of 256 B and takes "
            f"{buffered['cpu_us']:.1f} us of processor time, the latter {direct['ssd_bytes']:.0f} B and "
            f"{direct['cpu_us']:.1f} us.")


def tiers(d):
    fixed, hot = d["256B"]["rpc_tiering"], d["256B"]["+hotspot"]
    said = (f"A tier that keeps what it was filled with reads {fixed['ssd_bytes']:.0f} B "
            f"({fixed['over_before']:.2f} times the rate), one that follows the heat {hot['ssd_bytes']:.0f} B "
            f"({hot['over_before']:.2f}).")
    if fixed["over_before"] < 1.1:
        said += f" Fewer reads of the SSD are no gain where it is not the limit: {d['256B']['rpc_direct']['limits']}."
    return said


def last_step(d):
    steps, term = d["256B"], d["256B"]["term"]
    said = (f"Up to +hotspot every access is an RPC ({steps['+hotspot']['cpu_us']:.1f} us of processor time); reading the "
            f"frames one-sided leaves {term['cpu_us']:.1f} us.")
    if term["over_before"] == max(kind["over_before"] for name, kind in steps.items()
                                  if name not in ("settings", "limit", "rpc")):
        said += (f" This is the largest step ({term['over_before']:.2f}), as with no network between an RPC is processor "
                 "time above all.")
    return f"{said} In the end {term['limits']}."


def after_the_move(d):
    kinds = d["moving"]
    parts = [f"{name} {kind['least_share']:.2f}, {kind['back_words']}, {kind['ssd_bytes']:.0f} B"
             for name, kind in kinds.items() if name in ("odp", "rpc", "term")]
    return (f"What has got hot is absent until it has been read. Least second beside the rate before, back at 90% of it, "
            f"and bytes of SSD for each access of the whole run: {'; '.join(parts)}.")


def first_back(d):
    backs = {name: d["moving"][name]["back"] for name in ("odp", "rpc", "term")}
    others = [back for name, back in backs.items() if name != "term" and back is not None]
    if backs["term"] is None or any(back <= backs["term"] for back in others):
        return None
    return "Term is the first that is back."


def without_skew(d):
    term = d["theta 0"]["term"]
    return (f"Without skew the share of misses is that of the pages which memory does not hold, whatever is chosen (term: "
            f"{term['misses']:.1f}%); an access takes {term['cpu_us']:.1f} us of processor time and "
            f"{term['ssd_bytes']:.0f} B of SSD: {term['limits']}.")


def cost_of_writes(d):
    read, some, write = (d[label]["term"]["cpu_us"] for label in ("no writes", "10%", "all writes"))
    said = f"A write costs term {write:.1f} us of processor time, a read {read:.2f}"
    return said + (f": with a tenth of writes an access costs {some:.1f} us already." if some > 2 * read else ".")


def mixed(d):
    half, whole = d["50%"], d["all writes"]
    said = "A thread's writes go one by one here, its reads up to 32 at a time, and while it writes it begins no read."
    slower = [name for name in ("pin", "term") if half[name]["per_s"] < whole[name]["per_s"]]
    if len(slower) < 2:
        return said
    return (f"{said} With one half of writes an access costs pin {half['pin']['cpu_us']:.1f} us and term "
            f"{half['term']['cpu_us']:.1f}, with writes alone {whole['pin']['cpu_us']:.1f} and "
            f"{whole['term']['cpu_us']:.1f}: both are slower mixed, also pin, which misses nothing.")


def client_threads(d):
    two, eight = d["2 thr."], d["8 thr."]
    parts = []
    for name in ("pin", "term"):
        times = eight[name]["per_s"] / two[name]["per_s"]
        parts.append(f"{name} has {times:.2f} times its rate of two threads with eight "
                     f"({two[name]['busy']:.1f} and {eight[name]['busy']:.1f} processors busy)")
    return f"Clients and server share {two['pin']['cpus']} processors here: {'; '.join(parts)}."


def server_threads(name):
    def said(d):
        one, four = d["1 thr."][name], d["4 thr."][name]
        times = four["per_s"] / one["per_s"]
        more = f", with eight {d['8 thr.'][name]['per_s'] / one['per_s']:.2f}" if "8 thr." in d else ""
        what = "about" if 1 / ALIKE < times < ALIKE else "no less than" if times >= ALIKE else "only"
        return (f"With four threads {name} has {what} {times:.2f} times the rate of one{more}. Of one thread's server "
                f"{one['server_busy']:.2f} processors are busy, of four threads' {four['server_busy']:.2f}, and from the "
                f"SSD come {one['ssd_pages_per_s']:.0f} and {four['ssd_pages_per_s']:.0f} pages a second: with four, "
                f"{four['limits']}.")

    return said


def most_in_memory(label):
    def said(d):
        kinds = d[label]
        fewer = kinds["term"]["misses"] <= min(kinds["odp"]["misses"], kinds["rpc"]["misses"])
        cheaper = kinds["term"]["cpu_us"] < min(kinds["odp"]["cpu_us"], kinds["rpc"]["cpu_us"])
        gains = [word for word, has in (("fewer misses", fewer), ("less processor time", cheaper)) if has]
        return (f"At {label} odp, rpc and term miss {kinds['odp']['misses']:.1f}, {kinds['rpc']['misses']:.1f} and "
                f"{kinds['term']['misses']:.1f}%, and an access costs them {kinds['odp']['cpu_us']:.1f}, "
                f"{kinds['rpc']['cpu_us']:.1f} and {kinds['term']['cpu_us']:.2f} us" +
                (f": term has {' and '.join(gains)}." if gains else "."))

    return said


def nearly_all(d):
    term, pin = d["99.9%"]["term"], d["99.9%"]["pin"]
    if term["cpu_us"] <= pin["cpu_us"]:
        return None
    return (f"With nearly all of it in memory an access costs term {term['cpu_us']:.2f} us (client "
            f"{term['client_cpu_us']:.2f}, server {term['server_cpu_us']:.2f}), pin {pin['cpu_us']:.2f}: between them are "
            "the bitmap's and the pattern's check of each page, the counting, and the server's own work.")


def slower_ssds(d):
    parts = []
    for name in ("term", "rpc", "odp"):
        fast, slow = d["20k/s"][name], d["5k/s"][name]
        parts.append(f"{name} keeps {slow['per_s'] / fast['per_s']:.2f} of its rate and reads {slow['ssd_bytes']:.0f} B of "
                     "SSD for an access")
    return f"From 20 to 5 thousand reads a second {'; '.join(parts)}."


def lead(d):
    fast, slow = (d[label]["term"]["over_odp"] for label in ("20k/s", "5k/s"))
    way = "falls" if slow < fast else "grows"
    return f"On the slowest SSD {d['5k/s']['term']['limits']}; {d['5k/s']['odp']['limits']}. So term's lead over odp " \
        f"{way} from {fast:.2f} to {slow:.2f} times."


def mount_and_library(d):
    mount, library = d["mount, read 4K"], d["library, read 4K"]
    said = (f"On a mount each access is a system call and a FUSE request to another process: "
            f"{mount['pin']['cpu_us']:.1f} us even with pin. ")
    if mount["term"]["over_pin"] > library["term"]["over_pin"]:
        said += "Every kind has that to pay, and so the kinds come closer: "
    large = (d[f"{way}, read 16K"]["term"]["over_pin"] for way in ("mount", "library"))
    return (f"{said}term/pin is {mount['term']['over_pin']:.2f} there and {library['term']['over_pin']:.2f} by the "
            "library; at 16 KiB {:.2f} and {:.2f}.".format(*large))


def writes_of_files(d):
    read, write = d["library, read 4K"], d["library, write 4K"]
    said = (f"A write is an RPC with every kind (pin {write['pin']['cpu_us']:.0f} us, term {write['term']['cpu_us']:.0f} us "
            "of processor time for 4 KiB by the library), where Octopus writes one-sided")
    if write["term"]["over_pin"] > read["term"]["over_pin"]:
        said += f": term/pin is {write['term']['over_pin']:.2f}, that of reads {read['term']['over_pin']:.2f}"
    return said + "."


WHY = {
    "fig8": (
        "The paper's PIN is limited by its NIC; ours is a copy by the client's own CPU, which takes "
        "{d[4KB][pin][cpu_us]:.2f} us for 4 KiB and {d[256B][pin][cpu_us]:.2f} us for 256 B. An absent page takes "
        "{d[4KB][limit][miss_cpu_us]:.1f} us of the same CPUs, and term misses {d[4KB][term][misses]:.1f}% (an oracle "
        "{d[4KB][limit][oracle_misses]:.1f}%): a read of 4 KiB costs term {d[4KB][term][cpu_us]:.2f} us in all.",
        by_processor_time("4KB"), heat_of_pages, smaller_reads,
        "An access of more than a page is absent when any of its pages is: term reads {d[64KB][term][ssd_bytes]:.0f} B of "
        "the SSD for each of 64 KiB, odp {d[64KB][odp][ssd_bytes]:.0f}, and {d[64KB][term][limits]}."),
    "fig9": (
        "Here the writes of every kind are RPCs, those of pin as well, where RDMA would write pinned memory one-sided: a "
        "write of 4 KiB costs pin {d[4KB][pin][cpu_us]:.1f} us of processor time and term {d[4KB][term][cpu_us]:.1f}. So "
        "pin is the rate of an RPC, and no NIC's as in the paper.",
        by_processor_time("4KB"), part_of_a_page),
    "table1": (fault, hit_and_miss, "Every read of rpc is an RPC: {d[4KB][rpc][call_us][p50]:.1f} us in the median."),
    "table2": (medians_of_writes,),
    "fig10": (
        first_steps, tiers, last_step,
        "rpc and rpc_buffer leave it to the kernel's page cache what is in memory: {d[256B][rpc][ssd_bytes]:.0f} and "
        "{d[256B][rpc_buffer][ssd_bytes]:.0f} B of SSD for an access."),
    "fig11": (
        after_the_move, first_back,
        "Here heat is counted in pages, and what is missed is admitted at once; the paper's units of 1 MiB bring in what "
        "is not asked for."),
    "fig12a": (
        without_skew,
        "At 1.2 term misses {d[theta 1.2][term][misses]:.2f}%, and an access costs {d[theta 1.2][term][cpu_us]:.2f} us; "
        "pin {d[theta 1.2][pin][cpu_us]:.2f}.",
        by_processor_time("theta 1.2")),
    "fig12b": (cost_of_writes, mixed, limits("50%", "term")),
    "fig13a": (client_threads, limits("8 thr.", "term")),
    "fig13b": (server_threads("rpc"), server_threads("term")),
    "fig14a": (
        "No choice of pages is better than another: with a fifth in memory term misses {d[20%][term][misses]:.1f}%, an "
        "access takes {d[20%][term][ssd_bytes]:.0f} B of SSD and {d[20%][term][cpu_us]:.1f} us of processor time, a miss "
        "alone {d[20%][limit][miss_cpu_us]:.1f} us: {d[20%][term][limits]}.",
        most_in_memory("80%")),
    "fig14b": (
        "With a fifth in memory term misses {d[20%][term][misses]:.1f}% (an oracle {d[20%][limit][oracle_misses]:.1f}%), "
        "with half {d[50%][term][misses]:.1f}% ({d[50%][limit][oracle_misses]:.1f}%); an access takes "
        "{d[20%][term][ssd_bytes]:.0f} B of SSD and {d[20%][term][cpu_us]:.2f} us, and {d[50%][term][ssd_bytes]:.0f} B and "
        "{d[50%][term][cpu_us]:.2f} us.",
        nearly_all, by_processor_time("99.9%")),
    "fig15": (slower_ssds, lead),
    "fig16": (
        "By the library a read of 4 KiB that hits is an extent look-up and a READ: pin takes "
        "{d[library, read 4K][pin][cpu_us]:.2f} us of processor time, term, which misses "
        "{d[library, read 4K][term][misses]:.1f}% of its pages, {d[library, read 4K][term][cpu_us]:.2f} us, rpc "
        "{d[library, read 4K][rpc][cpu_us]:.1f} us.",
        mount_and_library,
        "Each process has one access under way at a time, and waits for what is absent: by the library term reads "
        "{d[library, read 4K][term][ssd_pages_per_s]:.0f} pages of the SSD a second.",
        writes_of_files),
}
