# SPDX-License-Identifier: Apache-2.0
"""What people's programs do on a mount: what a kernel may have cached, small files, a repository, an archive, a build;
beside the same on a journalled ext4 through libfuse's passthrough_ll. And two mounts that write beside each other."""
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import time

SOURCES = 40  # of the C program that is built
LONGEST = 600  # seconds for any one command


def run(*command, directory=None):
    environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}
    subprocess.run(command, check=True, capture_output=True, timeout=LONGEST, cwd=directory, env=environment)


def seconds_of(work):
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def fresh(directory):
    path = os.path.join(directory, "work")
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    return path


def make_tree(path, files):
    """So many files in directories of fifty, of a few hundred bytes to some KiB."""
    numbers = random.Random(7)
    for i in range(files):
        directory = os.path.join(path, f"d{i // 50:03}")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"f{i % 50:02}"), "wb") as file:
            file.write(numbers.randbytes(numbers.choice((300, 1000, 3000, 9000))))


def make_sources(path):
    with open(os.path.join(path, "all.h"), "w", encoding="ascii") as header:
        header.write("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n" +
                     "".join(f"int part{i}(int);\n" for i in range(SOURCES)))
    for i in range(SOURCES):
        with open(os.path.join(path, f"part{i}.c"), "w", encoding="ascii") as source:
            source.write(f'#include "all.h"\nint part{i}(int n) {{ return n < 2 ? n : part{(i + 1) % SOURCES}(n - 1) + {i}; }}\n')
    with open(os.path.join(path, "main.c"), "w", encoding="ascii") as source:
        source.write('#include "all.h"\nint main(void) { printf("%d\\n", part0(20)); return 0; }\n')
    with open(os.path.join(path, "Makefile"), "w", encoding="ascii") as makefile:
        makefile.write("program: $(patsubst %.c,%.o,$(wildcard *.c))\n\tcc -o $@ $^\n%.o: %.c all.h\n\tcc -O1 -c -o $@ $<\n")


def writes_beside(places, seconds):
    """Writes of 4 KiB a second to a file in each of the directories, by a process for each."""
    begin = multiprocessing.Barrier(len(places))
    counts = multiprocessing.Array("Q", len(places))

    def write_on(index):
        descriptor = os.open(os.path.join(places[index], f"beside{index}"), os.O_CREAT | os.O_WRONLY, 0o644)
        page, count = bytes(4096), 0
        begin.wait()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            os.pwrite(descriptor, page, 4096 * (count % 1024))
            count += 1
        os.close(descriptor)
        counts[index] = count

    writers = [multiprocessing.Process(target=write_on, args=(i,)) for i in range(len(places))]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        if writer.exitcode != 0:
            raise RuntimeError(f"a writer ended with {writer.exitcode}")
    return sum(counts) / seconds


def rates_of(load, directory, files):
    output = subprocess.run([load, directory, str(files), "4096"], check=True, capture_output=True, timeout=LONGEST)
    return json.loads(output.stdout)


def bars(load, scratch, ours, theirs, other, quick, bar):
    """`load`: the program metadata_load; `other`: a second mount of the volume of `ours`. `bar` makes a bar."""
    pairs, files, tree = (7, 1000, 1000) if quick else (7, 10_000, 5000)

    def rates(directory):
        return rates_of(load, directory, files)

    rates(ours)
    rates(theirs)
    turns = [(rates(ours), rates(theirs)) for _ in range(pairs)]
    for name, key, bound in ((f"{files} files of 4 KiB created", "create", 0.8), ("stat, cached", "stat_again", 0.9),
                             ("open and close, cached", "open_again", 0.9),
                             ("open, read 4 KiB, close, cached", "read_again", 0.9),
                             ("read of a page, cached", "bytes_again", 0.9)):
        yield bar(f"{name}, rate / passthrough_ll", bound, [a[key] / b[key] for a, b in turns])

    source = os.path.join(scratch, "source")
    os.mkdir(source)
    make_tree(source, tree)
    archive = os.path.join(scratch, "tree.tar")
    run("tar", "cf", archive, "-C", source, ".")
    run("git", "init", "-q", source)
    run("git", "-C", source, "add", ".")
    run("git", "-C", source, "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", "all")

    def clone(directory):
        path = fresh(directory)
        return seconds_of(lambda: run("git", "-c", "safe.directory=*", "clone", "-q", "--no-local", source, os.path.join(path, "c")))

    def extract(directory):
        path = fresh(directory)
        return seconds_of(lambda: run("tar", "xf", archive, "-C", path))

    def build(directory):
        path = fresh(directory)
        make_sources(path)
        return seconds_of(lambda: run("make", "-s", "-j2", directory=path))

    for name, work in (("git clone", clone), ("tar x", extract), ("make", build)):
        work(ours)
        work(theirs)
        yield bar(f"{name}, time / passthrough_ll", 1.5, [work(ours) / work(theirs) for _ in range(pairs)],
                  lower_is_better=True)

    def both():
        return writes_beside((ours, other), 1)

    def one():
        return writes_beside((ours, ours), 1)

    both()
    one()
    yield bar("two mounts writing beside each other, rate / one mount", 1.0, [both() / one() for _ in range(pairs)])


def fill_with_names(path, files):
    """So many empty files, a thousand in a directory."""
    for i in range(files):
        if i % 1000 == 0:
            directory = os.path.join(path, f"many{i // 1000}")
            os.mkdir(directory)
        os.mknod(f"{directory}/{i}")


def bars_of_many(load, full, empty, quick, bar):
    """`full`: a mount of a volume that is given a million files first; `empty`: one of another volume."""
    pairs, files, names = (7, 1000, 100_000) if quick else (7, 3000, 1_000_000)
    fill_with_names(full, names)
    rates_of(load, full, files)
    rates_of(load, empty, files)
    turns = [(rates_of(load, full, files), rates_of(load, empty, files)) for _ in range(pairs)]
    for name, key in (("files of 4 KiB created", "create"), ("stat, cached", "stat_again"),
                      ("open and close, cached", "open_again"), ("open, read 4 KiB, close, cached", "read_again"),
                      ("read of a page, cached", "bytes_again")):
        yield bar(f"beside {names:,} files: {name}, rate / alone", 0.8, [a[key] / b[key] for a, b in turns])
