# SPDX-License-Identifier: Apache-2.0
"""What the cases share: a Site (build and scratch directory) that makes Volumes, and puts everything away after each case,
by the process ids of what was started."""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time

WAIT = 60  # seconds; the longest wait for anything that should happen soon


class Skip(Exception):
    """The case cannot run here; the text says why."""


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def alone(case):
    """A case that no other runs beside: it says how long something took, or keeps all CPUs busy by itself."""
    case.alone = True
    return case


def eventually(condition, text, seconds=WAIT):
    """Waits until condition() is true, and returns it: for what happens after a call has returned, such as a close."""
    deadline = time.monotonic() + seconds
    while not (met := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{text}, not after {seconds} s")
        time.sleep(0.05)
    return met


def run(*command, code=0, seconds=300, **options):
    """Runs a command to its end; its standard output. An exit code other than `code` is a failure."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds, **options)
    check(done.returncode == code,
          f"{' '.join(map(str, command))}: exit code {done.returncode}, not {code}: {(done.stderr or done.stdout)[-600:]}")
    return done.stdout


def umount(termfs, path):
    """What it says."""
    done = subprocess.run([termfs, "umount", path], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise AssertionError(f"umount {path}: {done.returncode}: {done.stderr.strip()}; used by {users_of(path)}")
    return done.stderr


def free_port(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.bind((address, 0))
        return one.getsockname()[1]


def need(program):
    if shutil.which(program) is None:
        raise Skip(f"{program} is not installed")


def need_less_than(path, size):
    """So much does not fit there."""
    space = os.statvfs(path)
    if space.f_bavail * space.f_frsize >= size:
        raise Skip(f"{size >> 40} TiB are free at {path}")


def ended(pid):
    """A process that has ended, with all its threads, even when nobody has collected it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except OSError:
        return True


def states(pid):
    """Of the threads of a process, with their names."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as stat:
            name, rest = stat.read().split("(", 1)[1].rsplit(")", 1)
        found.append((name, rest.split()[0]))
    return found


def is_stopped(pid):
    return all(state in "Tt" for _, state in states(pid))


def stop(pid):
    """Returns when all of its threads have: one could answer once more."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: is_stopped(pid), "a process stops")


def unmount_below(directory):
    """Whatever is mounted there, also where its server is dead: nothing is asked of it."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        places = [line.split()[1] for line in mounts]
    for place in reversed(places):
        if place.startswith(directory + "/"):
            subprocess.run(["umount", "-f", "-l", place], stderr=subprocess.DEVNULL, check=False)


def start_time(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[19]
    except OSError:
        return None


def users_of(path):
    """Processes that have `path`, or what is below it, open or as their directory; those of others, too."""
    found = []
    for entry in os.listdir("/proc"):
        links = [f"/proc/{entry}/cwd", f"/proc/{entry}/root"]
        try:
            links += [f"/proc/{entry}/fd/{fd}" for fd in os.listdir(f"/proc/{entry}/fd")] if entry.isdigit() else []
            with open(f"/proc/{entry}/comm", encoding="utf-8", errors="replace") as name:
                comm = name.read().strip()
        except OSError:
            continue
        for link in links:
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target == path or target.startswith(path + "/"):
                found.append(f"{comm} {link} -> {target}")
    return found


class Mount:
    def __init__(self, path, pid):
        self.path = path
        self.pid = pid

    def __truediv__(self, name):
        return os.path.join(self.path, name)

    def describe(self):
        text = os.getxattr(self.path, "system.termfs.mount").decode()
        return dict(line.split(" ", 1) for line in text.splitlines())


class Volume:
    def __init__(self, site, name, capacity, ratio, *flags):
        self.site = site
        self.path = os.path.join(site.scratch, name)
        self.mounts = []
        self.server = None
        self.address = [self.path]  # how mounts reach it
        run(site.termfs, "format", self.path, "--capacity", capacity, "--dram-ratio", ratio, *flags)

    def serve(self, *flags, at=()):
        """`at`: words before the command."""
        if self.site.network is not None and "--listen" not in flags:
            flags = (*flags, "--listen", self.listen_at(self.site.network))
        if self.site.wire == "plain" and "--listen" in flags:
            flags = (*flags, "--tls", "off")
        run(*at, self.site.termfs, "serve", self.path, *flags)
        self.server = self.site.find_process("serve", self.path)
        return self

    def listen_at(self, host):
        """Where it is served to other hosts from now on; mounts go there."""
        if len(self.address) == 1:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            place = f"[{host}]" if ":" in host else host
            self.address = [f"{place}:{free_port(family, host)}", "--secret", os.path.join(self.path, "secret")]
        return self.address[0]

    def stop(self):
        pid, self.server = self.server, None
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: ended(pid), "the server ends after SIGTERM")

    def kill(self):
        """The server dies without a word."""
        pid, self.server = self.server, None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: ended(pid), "the server is dead")

    def tier(self):
        """Where the memory of the server is, while one runs or after it was killed."""
        try:
            with open(os.path.join(self.path, "tier"), encoding="utf-8") as record:
                return record.read().split("directory ")[1].strip()
        except OSError:
            return None

    def drop_tier(self):
        """What a restart of the machine does to the memory of a killed server."""
        path = self.tier()
        if path is not None and os.path.exists(path):
            subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL, check=False)
            shutil.rmtree(path, ignore_errors=True)

    def abandon(self, mount):
        """Takes a mount away whose server is dead. It may wait for the next one, until a signal says that none comes."""
        self.mounts.remove(mount)
        subprocess.run(["umount", "-l", mount.path], stderr=subprocess.DEVNULL, check=False)

        def has_ended():
            if not ended(mount.pid) and start_time(mount.pid) == self.site.started.get(mount.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(mount.pid, signal.SIGTERM)
            return ended(mount.pid)
        eventually(has_ended, "the mount's process ends")
        os.rmdir(mount.path)

    def mount(self, options="", **kwargs):
        path = os.path.join(self.site.scratch, f"mnt{self.site.next_number()}")
        os.mkdir(path)
        options = [options] if options else []
        if not any("fuse=" in option for option in options):
            options.append(f"fuse={self.site.fuse}")
        if len(self.address) > 1:  # with a secret: over a network
            options += ["tls=off"] if self.site.wire == "plain" else [f"rdma-wire={self.site.wire}"] if self.site.wire else []
        run(*kwargs.pop("at", ()), self.site.termfs, "mount", *self.address, path, "-o", ",".join(options), **kwargs)
        return self.mounted(path)

    def mounted(self, path):
        mount = Mount(path, 0)
        mount.pid = int(mount.describe()["pid"])
        self.site.remember(mount.pid)
        self.mounts.append(mount)
        return mount

    def umount(self, mount):
        self.mounts.remove(mount)
        said = umount(self.site.termfs, mount.path)
        check(ended(mount.pid), f"umount returned before the mount's process had ended: {said or 'it said nothing'}")
        os.rmdir(mount.path)

    def status(self):
        return json.loads(run(self.site.termfs, "status", self.path, "--json"))

    def metrics(self):
        return json.loads(run(self.site.termfs, "stats", self.path, "--json", "--count", "1"))["server"]

    def fsck(self):
        return run(self.site.termfs, "fsck", self.path)


class NoMoreThreads:
    """Until its end a process has no thread more than it has now: it is in a control group of its own, which is full."""

    def __init__(self, pid):
        version1 = os.path.isdir("/sys/fs/cgroup/pids")
        root = "/sys/fs/cgroup/pids" if version1 else "/sys/fs/cgroup"
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as lines:
            groups = [line.rstrip().split(":", 2)[1:] for line in lines]
        home = next((path for names, path in groups if names == ("pids" if version1 else "")), "/")
        self.pid = pid
        self.home = root + home
        self.group = f"{root}/termfs_{os.getpid()}_{pid}"
        try:
            os.mkdir(self.group)
        except OSError as error:
            raise Skip(f"no control group: {error}") from None
        try:
            if not os.path.exists(f"{self.group}/pids.max"):
                raise Skip("control groups do not limit the number of threads here")
            self.put(f"{self.group}/cgroup.procs", pid)
            self.fill()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def put(path, value):
        with open(path, "w", encoding="ascii") as file:
            file.write(str(value))

    def threads(self):
        with open(f"{self.group}/pids.current", encoding="ascii") as file:
            return int(file.read())

    def fill(self, but=0):
        """Those that have ended meanwhile are not replaced either, but for so many."""
        self.put(f"{self.group}/pids.max", self.threads() + but)

    def close(self):
        if not ended(self.pid):
            self.put(f"{self.home}/cgroup.procs", self.pid)

        def removed():
            with contextlib.suppress(OSError):
                os.rmdir(self.group)
            return not os.path.exists(self.group)
        eventually(removed, "the control group is empty")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class RingSwitch:
    """FUSE over io_uring is on in the kernel until close(), or until this process has ended in any way."""

    def __init__(self):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "ring_switch.sh")
        self.holder = subprocess.Popen(["bash", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       start_new_session=True)
        self.said = self.holder.stdout.readline().strip()
        self.on = self.said == "on"

    def close(self):
        self.holder.stdin.close()
        self.holder.wait()
        self.holder.stdout.close()


class Site:
    def __init__(self, build, scratch, quick, fuse, new_seed):
        self.termfs = os.path.join(build, "mount", "termfs")
        self.helper = os.path.join(build, "mount", "mount.termfs")
        self.workloads = os.path.join(build, "benchmarks", "workloads")
        self.term_bench = os.path.join(build, "benchmarks", "term_bench")
        self.file_bench = os.path.join(build, "benchmarks", "file_bench")
        self.names_bench = os.path.join(build, "benchmarks", "names_bench")
        self.fio_engine = os.path.join(build, "benchmarks", "fio", "libtermfs_fio.so")
        self.set_features = os.path.join(build, "tests", "e2e", "set_features")
        self.stores_beside = os.path.join(build, "tests", "e2e", "stores_beside")
        self.followed_file = os.path.join(build, "tests", "e2e", "followed_file")
        self.told_changes = os.path.join(build, "tests", "e2e", "told_changes")
        self.shown_sizes = os.path.join(build, "tests", "e2e", "shown_sizes")
        self.scratch = scratch
        self.quick = quick
        self.parity_seconds = 15
        self.parity_seed = None
        self.new_parity_seed = new_seed
        self.coherence_seconds = 15
        self.coherence_seed = None
        self.coherence_all = False
        self.new_coherence_seed = new_seed
        self.stores_rounds, self.stores_calls = None, None
        self.told_files = None
        self.network = None  # an address of this host at which volumes are served and mounted; None: not over a network
        self.wire = None  # of mounts over a network: iwarp, roce, plain (iWARP outside of TLS), or what they choose
        self.fuse = fuse  # what mounts get their requests over: io_uring or device
        self.volumes = []
        self.number = 0
        self.started = {}  # pid: start time, so that a number used again is not taken for ours
        self.children = []

    def next_number(self):
        self.number += 1
        return self.number

    def size(self, full, quick):
        return quick if self.quick else full

    def volume(self, capacity="256M", ratio=0.5, *flags):
        """A new volume, served; `flags` are format's."""
        volume = Volume(self, f"vol{self.next_number()}", capacity, ratio, *flags)
        self.volumes.append(volume)
        return volume.serve()

    def mounted(self, capacity="256M", ratio=0.5, options=""):
        return self.volume(capacity, ratio).mount(options)

    def remember(self, pid):
        self.started[pid] = start_time(pid)

    def start(self, *command, **options):
        """A program in the background, ended after the case."""
        child = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, **options)
        self.children.append(child)
        return child

    def find_process(self, command, path):
        """The process that runs `termfs COMMAND PATH`, by its arguments."""
        wanted = [command.encode(), path.encode()]
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/cmdline", "rb") as line:
                        words = line.read().split(b"\0")
                except OSError:
                    continue
                if words[0].endswith(b"termfs") and words[1:3] == wanted:
                    self.remember(int(entry))
                    return int(entry)
        raise AssertionError(f"no process termfs {command} {path}")

    def last_log_lines(self):
        text = ""
        for volume in self.volumes:
            log = os.path.join(volume.path, "log")
            if os.path.exists(log):
                with open(log, encoding="utf-8", errors="replace") as lines:
                    text += "".join(f"\n       server: {line.rstrip()}" for line in lines.readlines()[-4:])
        return text

    def clean_up_case(self):
        """Unmounts and stops what the case has left, checks the volumes; what went wrong, or None."""
        problem = self.end_children()
        for volume in self.volumes:
            try:
                for mount in list(volume.mounts):
                    volume.umount(mount)
                if volume.server is not None:
                    volume.stop()
                volume.fsck()
            except Exception as error:  # pylint: disable=broad-except
                problem = problem or f"afterwards: {error}"
        self.end_processes()
        for volume in self.volumes:
            for mount in volume.mounts:
                subprocess.run(["umount", "-l", mount.path], stderr=subprocess.DEVNULL, check=False)
            volume.drop_tier()
            shutil.rmtree(volume.path, ignore_errors=True)
        self.volumes = []
        return problem

    def end_children(self):
        """One that waits in a mount for what does not come loses the mount; what was wrong, or None."""
        problem = None
        for child in self.children:
            if child.poll() is None:
                child.kill()
        for child in self.children:
            try:
                child.wait(WAIT)
            except subprocess.TimeoutExpired:
                problem = f"afterwards: {child.args} could not be killed"
                unmount_below(self.scratch)
                child.wait()
            child.stdout.close()
        self.children = []
        return problem

    def end_processes(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = [pid for pid, began in self.started.items() if start_time(pid) == began and not ended(pid)]
            for pid in left:
                os.kill(pid, number)
            deadline = time.monotonic() + 10
            while any(not ended(pid) for pid in left) and time.monotonic() < deadline:
                time.sleep(0.05)
        self.started = {}

    def close(self):
        self.clean_up_case()
