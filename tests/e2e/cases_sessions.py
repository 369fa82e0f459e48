# SPDX-License-Identifier: Apache-2.0
"""Servers that are stopped, die and come back; clients that are interrupted, killed and expelled."""
import os
import signal
import subprocess
import time

from cases_posix import MIB, read_file, write_file
from volume import check, ended, eventually, run, stop

GONE = 25  # seconds; an interrupted process is gone within one, a call without an answer ends after 30


def waits_in_kernel(pid):
    """Its system call waits for an answer of FUSE, or for a lock that somebody has who does."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii") as where, open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            # Who waits for a lock of a directory is in one of many functions, and cannot be interrupted.
            return "request_wait_answer" in where.read() or stat.read().rsplit(")", 1)[1].split()[0] == "D"
    except OSError:
        return False


def start_waiting(site, *command):
    child = site.start(*command)
    eventually(lambda: waits_in_kernel(child.pid), f"{command[0]} waits for the server")
    return child


def end_by_signal(number, *children):
    """All of them, for some may have a lock that others wait for."""
    for child in children:
        child.send_signal(number)
    for child in children:
        code = child.wait(GONE)
        check(code == -number, f"{child.args} ended with {code}, not by signal {number}")


class Stopped:
    """The server, stopped by SIGSTOP for a while."""

    def __init__(self, volume):
        self.pid = volume.server

    def __enter__(self):
        stop(self.pid)
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGCONT)


def case_mount_waits_as_long_as_it_was_told(site):
    volume = site.volume("16M")
    place = os.path.join(site.scratch, "place")
    os.mkdir(place)
    with Stopped(volume):
        began = time.monotonic()
        run(site.termfs, "mount", volume.path, place, "-o", "timeout=1", code=1)
        check(time.monotonic() - began < 20, "a server that does not answer is waited for beyond the mount's timeout")
    os.rmdir(place)


def case_interrupt_stopped_server(site):
    """More callers than the mount has threads, of every kind, with a server that answers nobody; all can be killed."""
    volume = site.volume("256M", 0.5)
    m = volume.mount("threads=4")
    content = os.urandom(4 * MIB)
    write_file(m / "f", content)
    with Stopped(volume):
        for number in (signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
            children = [start_waiting(site, *command) for command in (
                ["cat", m / "f"], ["ls", "-l", m.path], ["touch", m / f"new{number}"],
                ["cp", "/etc/passwd", m / "written"], ["cat", m / "f"], ["stat", m / "f"],
                ["rm", m / "none"], ["truncate", "-s", "1", m / "cut"])]
            end_by_signal(number, *children)
        check(m.describe()["pid"] == str(m.pid), "the mount itself answers")
        # A write whose outcome nobody knows.
        writer = start_waiting(site, "dd", "if=/dev/zero", f"of={m / 'f'}", "bs=1M", "count=1", "seek=4", "conv=notrunc")
        end_by_signal(signal.SIGKILL, writer)
    eventually(lambda: os.stat(m / "f").st_size in (4 * MIB, 5 * MIB), "the server answers again")
    eventually(lambda: volume.metrics()["pages_dirty"] >= 0, "the server is well")
    size = os.stat(m / "f").st_size
    check(read_file(m / "f") == content + bytes(size - 4 * MIB), "what is read is what is there")
    other = volume.mount()
    check(read_file(other / "f") == read_file(m / "f"), "both mounts agree")
    write_file(m / "g", content)
    check(read_file(other / "g") == content, "the mount goes on")


# Opens a file; at a line of its input overwrites its start by io_submit, in a thread that ends, and says so; at the next
# one says what came of it.
SUBMITTER = r"""
import ctypes, mmap, os, sys, threading
setup, events, submit = {"x86_64": (206, 208, 209), "aarch64": (0, 4, 2)}[os.uname().machine]
class Request(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("opcode", ctypes.c_uint16),
                ("priority", ctypes.c_int16), ("file", ctypes.c_uint32), ("buffer", ctypes.c_uint64),
                ("length", ctypes.c_uint64), ("offset", ctypes.c_int64), ("rest", ctypes.c_uint64 * 2)]
class Event(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("request", ctypes.c_uint64), ("result", ctypes.c_int64), ("rest", ctypes.c_int64)]
syscall = ctypes.CDLL(None, use_errno=True).syscall
syscall.restype = ctypes.c_long
memory, length = mmap.mmap(-1, 1 << 20), 1 << 20
memory[:] = b"n" * length
file = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
context, event = ctypes.c_ulong(0), Event()
assert syscall(setup, 1, ctypes.byref(context)) == 0
request = Request(opcode=1, file=file, buffer=ctypes.addressof(ctypes.c_char.from_buffer(memory)), length=length)
def begin():
    assert syscall(submit, context, ctypes.c_long(1), (ctypes.c_void_p * 1)(ctypes.addressof(request))) == 1
thread = threading.Thread(target=begin)
print("open", flush=True)
sys.stdin.readline()
thread.start()
thread.join()
print("submitted", flush=True)
sys.stdin.readline()
assert syscall(events, context, ctypes.c_long(1), ctypes.c_long(1), ctypes.byref(event), None) == 1
print(event.result)
"""


def case_asynchronous_write_outlives_its_thread(site):
    """The thread that has submitted a write may end before the server answers: its process waits for that."""
    volume = site.volume("64M", 0.5)
    m = volume.mount()
    write_file(m / "f", b"o" * MIB)
    program = site.start("python3", "-c", SUBMITTER, m / "f", stdin=subprocess.PIPE)
    check(program.stdout.readline() == "open\n", "the file is open")
    with Stopped(volume):
        program.stdin.write("\n")
        program.stdin.flush()
        check(program.stdout.readline() == "submitted\n", "the write is under way")
        time.sleep(2)  # the mount has looked who waits for it several times
    output, _ = program.communicate("\n", timeout=GONE)
    check((program.returncode, output) == (0, f"{MIB}\n"), f"its result: {output}")
    check(read_file(m / "f") == b"n" * MIB, "what it has written")


HANDLED = r"""
import ctypes, errno, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)  # Python itself would hide EINTR
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
at, failed, data = sys.argv[1].encode(), {}, ctypes.create_string_buffer(1 << 20)
def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    if result < 0:
        failed[name] = errno.errorcode[ctypes.get_errno()]
    return result
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and not failed:
    file = call("open", at + b"/f", 0o102, 0o644)
    call("pwrite", file, data, len(data), 0)
    call("fsync", file)
    call("close", file)
    call("rename", at + b"/f", at + b"/g")
    call("unlink", at + b"/g")
    call("mkdir", at + b"/d", 0o755)
    call("rmdir", at + b"/d")
signal.setitimer(signal.ITIMER_REAL, 0)
sys.exit(str(failed) if failed else 0)
"""


def case_signals_that_are_handled(site):
    """As on a local disk: a timer of the program's own never makes a call on a file fail."""
    volume = site.volume("64M", 0.5)
    for threads in (1, 8):
        m = volume.mount(f"threads={threads}")
        os.makedirs(m / "here", exist_ok=True)
        run("python3", "-c", HANDLED, m / "here", 3, seconds=60)


def case_interrupt_after_handled_signal(site):
    """A signal that the program handles goes by; one that ends it still does, in the same call."""
    volume = site.volume("64M", 0.5)
    m = volume.mount("threads=2")
    write_file(m / "f", b"x")
    with Stopped(volume):
        child = start_waiting(site, "python3", "-c", "import signal, sys; signal.signal(signal.SIGUSR1, print);"
                              "signal.siginterrupt(signal.SIGUSR1, False); open(sys.argv[1]).read()", m / "f")
        child.send_signal(signal.SIGUSR1)
        time.sleep(0.5)  # long enough for a call to fail that would
        check(child.poll() is None and waits_in_kernel(child.pid), "the call goes on")
        end_by_signal(signal.SIGTERM, child)
    check(read_file(m / "f") == b"x", "the mount goes on")


def case_interrupt_unlinked_then_forgotten(site):
    """An open that was interrupted holds nothing for ever: its file's space comes back."""
    volume = site.volume("256M", 0.5)
    m = volume.mount("threads=2")
    write_file(m / "f", bytes(32 * MIB))
    free = volume.status()["free_bytes"]
    with Stopped(volume):
        end_by_signal(signal.SIGKILL, start_waiting(site, "sh", "-c", f"exec 3<{m / 'f'}; sleep 60"))
    os.unlink(m / "f")

    def back():
        for _ in range(8):
            os.stat(m.path)  # every thread takes in what came late
        return volume.status()["free_bytes"] >= free + 32 * MIB
    eventually(back, "the space of the unlinked file comes back")


def case_end_with_stopped_server(site):
    """umount and SIGTERM end a mount whose server is stopped, also while programs wait in it."""
    volume = site.volume("256M", 0.5)
    for how in ("SIGTERM", "umount"):
        m = volume.mount("threads=2")
        write_file(m / "f", b"x")
        with Stopped(volume):
            children = [start_waiting(site, "cat", m / "f") for _ in range(4)] if how == "SIGTERM" else []
            began = time.monotonic()
            if how == "SIGTERM":
                os.kill(m.pid, signal.SIGTERM)
            else:
                run(site.termfs, "umount", m.path, seconds=60)
            eventually(lambda pid=m.pid: ended(pid), f"the mount's process ends after {how}", 25)
            check(time.monotonic() - began < 25, "promptly")
            for child in children:
                child.wait(GONE)
        volume.mounts.remove(m)
        check(not os.path.ismount(m.path), "it is unmounted")
        os.rmdir(m.path)
    eventually(lambda: not volume.status()["sessions"], "the server has noticed")


def case_lazy_umount_with_waiting_programs(site):
    """umount -l of a busy mount with a stopped server: those who wait can be killed, then all is gone."""
    volume = site.volume("64M", 0.5)
    m = volume.mount("threads=2")
    write_file(m / "f", b"x")
    with Stopped(volume):
        children = [start_waiting(site, "cat", m / "f") for _ in range(3)]
        subprocess.run(["umount", "-l", m.path], check=True, timeout=60)
        end_by_signal(signal.SIGINT, *children)
        eventually(lambda: ended(m.pid), "the mount's process ends with its last user", 25)
    volume.mounts.remove(m)
